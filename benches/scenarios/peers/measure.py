"""One loader in this process: an unmeasured epoch, then whole epochs until the time is full. One line of JSON.

    python measure.py GROUP PEER WORKERS WORK [--seconds 5] [--rows-gib 2]

Every batch is touched: one byte of each row and all labels. Their means over the epochs must be the data's own, so that
a loader that skips or repeats does not pass for a fast one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from loaders import BATCH, PEERS, Place

TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: str) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may itself hold spaces."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def children(pid: str) -> Iterator[str]:
    parents = {p.name: _stat(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()}
    below = [pid]
    while below:
        above = below.pop()
        for child, fields in parents.items():
            if fields and fields[1] == above:
                below.append(child)
                yield child


def cpu_seconds() -> float:
    """User and system time of this process and of all below it, those that ended included."""
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    alive = sum(int(t) for child in children(str(os.getpid())) for t in _stat(child)[11:15])
    return sum(u.ru_utime + u.ru_stime for u in ended) + alive / TICKS


def machine_seconds() -> float:
    """CPU time that anybody on this machine has used, guests and the hypervisor's share included."""
    times = [int(t) for t in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) / TICKS


class Totals:
    """What came, and what was seen of it."""

    def __init__(self) -> None:
        self.samples = self.bytes = self.seen = self.labels = 0

    def add(self, x: Any, y: Any) -> None:
        rows = len(x)
        self.samples += rows
        # Views: NumPy sums these few bytes in a third of torch's time.
        pixels, labels = np.asarray(x), np.asarray(y)
        self.bytes += pixels.nbytes
        # The first byte is the red of the upper left pixel, channels first or last.
        self.seen += int(pixels.reshape(rows, -1)[:, 0].sum())
        self.labels += int(labels.sum())

    def check(self, place: Place, epochs: int, workers: int) -> None:
        x, y = place.arrays(in_memory=False)
        share, least = self.samples / epochs / len(y), 1 - BATCH * (workers + 1) / len(y)
        byte, byte_true = self.seen / max(1, self.samples), x.reshape(len(x), -1)[:, 0].mean()
        label, label_true = self.labels / max(1, self.samples), y.mean()
        # Decoders differ by a step or two of a pixel, and loaders with worker processes drop a short batch in each.
        if not least < share <= 1 or abs(byte - byte_true) > 2 or abs(label - label_true) > 0.02 * label_true:
            raise RuntimeError(
                f"not the data: {share:.3f} of the samples an epoch, mean first byte {byte:.1f} for {byte_true:.1f}, "
                f"mean label {label:.3f} for {label_true:.3f}"
            )


def versions(packages: tuple[str, ...]) -> str:
    return ", ".join(f"{p} {metadata.version(p)}" for p in packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("workers", type=int)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rows-gib", type=float, default=2.0)
    args = parser.parse_args()
    import torch

    # The consumer does no work worth a thread; what a loader needs it has as workers.
    torch.set_num_threads(1)
    place = Place(args.work, args.group, args.rows_gib)
    peer = PEERS[args.peer]
    packages = versions(peer.packages)
    epoch = peer.make(place, args.workers)
    warm_up = Totals()
    for x, y in epoch():
        warm_up.add(x, y)
    warm_up.check(place, 1, args.workers)
    totals, epochs = Totals(), 0
    cpu, machine, started = cpu_seconds(), machine_seconds(), time.perf_counter()
    while not epochs or time.perf_counter() - started < args.seconds:
        for x, y in epoch():
            totals.add(x, y)
        epochs += 1
    wall = time.perf_counter() - started
    cpu, machine = cpu_seconds() - cpu, machine_seconds() - machine
    totals.check(place, epochs, args.workers)
    result = {
        "samples": totals.samples,
        "bytes": totals.bytes,
        "epochs": epochs,
        "wall_s": wall,
        "cpu_s": cpu,
        "others_cores": max(0.0, machine - cpu) / wall,
        "versions": f"python {sys.version.split()[0]}, numpy {np.__version__}, {packages}",
    }
    print(json.dumps(result), flush=True)
    # Not every peer's threads end when asked to; the result is out.
    os._exit(0)


if __name__ == "__main__":
    main()

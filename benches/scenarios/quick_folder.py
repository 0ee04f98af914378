"""What it costs to look whether reads of files are slow, where they are not.

    python benches/scenarios/quick_folder.py [--rounds 7]

Small pictures in a folder, small rows of one file and small members of a shard, all in the system's page cache, are read
anew each epoch. ``read_ahead=0`` looks at no read; by default some are timed, and only if they are slow anything is read
ahead (decision 50). Each runs in fresh processes in turn; counted is processor time (all threads) of a process's quickest
epoch, which other work on the machine disturbs least, and the threads that read ahead at its end.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from record import Record

SAMPLES = 8_000
ROWS = 100_000
KINDS = ("folder", "shard", "rows")


def make(root: Path) -> None:
    """Grey pictures of 8 x 8, and rows of 64 bytes."""
    import numpy
    from PIL import Image

    chance = numpy.random.default_rng(1)
    with tarfile.open(root / "shard.tar", "w") as shard:
        for number in range(SAMPLES):
            path = root / "folder" / str(number % 10) / f"{number:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            said = io.BytesIO()
            Image.fromarray(chance.integers(0, 256, (8, 8), dtype=numpy.uint8)).save(said, "png")
            path.write_bytes(said.getvalue())
            member = tarfile.TarInfo(f"{number % 10}/{number:05}.png")
            member.size = len(said.getvalue())
            shard.addfile(member, io.BytesIO(said.getvalue()))
    numpy.save(root / "rows.npy", chance.integers(0, 256, (ROWS, 64), dtype=numpy.uint8))


def measure(root: Path, kind: str, ahead: bool) -> dict[str, float]:
    """Processor time of the quickest epoch within a second and a half, and the threads that read ahead at its end."""
    import lossfeed as lf

    data = lf.open(str(root / {"folder": "folder", "shard": "shard.tar", "rows": "rows.npy"}[kind]))
    loader = lf.Loader(
        data, 256, shuffle=True, num_workers=1, seed=1, stats=False, read_ahead=None if ahead else 0
    )
    quickest, until = float("inf"), time.process_time() + 1.5
    while time.process_time() < until:
        started = time.process_time()
        for _ in loader:
            pass
        quickest = min(quickest, time.process_time() - started)
    threads = sum(name.startswith(("lossfeed-ahead", "lossfeed-read-")) for name in names())
    return {"us_a_sample": quickest / len(data) * 1e6, "threads": threads, "changes": loader.stats()["read_ahead_changes_total"]}


def names() -> Iterator[str]:
    """Of this process's threads."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield (task / "comm").read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--date", help="of the record, where it is not today's")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        root, kind, ahead = args.measure
        print(json.dumps(measure(Path(root), kind, ahead == "True")))
        return
    record = Record("quick-folder", {"samples": SAMPLES, "rows": ROWS, "batch": 256}, args.date)
    figures: dict[str, list[dict[bool, dict[str, Any]]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch))
        for turn in range(args.rounds):
            for kind in KINDS:
                pair = {}
                for ahead in random.Random(turn).sample([False, True], 2):
                    argv = [sys.executable, __file__, "--measure", scratch, kind, str(ahead)]
                    alone = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
                    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | alone)
                    pair[ahead] = json.loads(done.stdout)
                    record.add({"kind": kind, "looks": ahead, "round": turn, **pair[ahead]})
                figures[kind].append(pair)
    for kind, pairs in figures.items():
        ratios = [pair[True]["us_a_sample"] / pair[False]["us_a_sample"] for pair in pairs]
        us = [statistics.median(pair[looks]["us_a_sample"] for pair in pairs) for looks in (False, True)]
        threads = [sorted({pair[looks]["threads"] for pair in pairs}) for looks in (False, True)]
        print(
            f"{kind:8}{us[0]:9.2f}{us[1]:9.2f} us a sample, ratio {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}), threads {threads[0]} {threads[1]}"
        )


if __name__ == "__main__":
    main()

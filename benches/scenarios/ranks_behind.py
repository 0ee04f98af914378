"""Ranks of one machine that step together, with pictures that cost one of them more: who gets the processors?

    python benches/scenarios/ranks_behind.py [--seconds 12]

Two or four ranks read JPEGs that are cached as they are, compute for 2 ms, and wait for each other (gloo), as in
data-parallel training:

- ``even``: pictures of 384 x 384 for all; ``uneven``: 64 x 64, and 512 x 512 for the last rank;
- ``turns``: small and large ones by turns, about 4 s each, and never the same for both;
- ``even-4``, ``uneven-4``: the same with four ranks.

``private``: a cache for each rank, and ``num_workers="auto"``, which has its part of the processors. ``node``: the same
with ``cache=lf.Cache(…, share="node")``, whose owner gives a rank that waits what the others leave. Controls are the
node cache and a fixed number of threads a rank: ``part``, its part of the processors (at least one), and ``all``, one
for each processor.

``ms`` is an iteration's time from the fourth second on. ``unbalanced`` is the share of iterations in which one rank
waited for its batch at least a tenth of an iteration longer than another (Lobster's figure 8, which does
not say where it draws the line).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Record

BATCH, STEP_S, WARM_S = 16, 0.002, 4.0
#: For each rank of a profile, the sizes of its pictures in turn.
SIZES: dict[str, list[list[int]]] = {
    "even": [[384]] * 2,
    "uneven": [[64], [512]],
    "turns": [[64, 512], [512, 64]],
    "even-4": [[384]] * 4,
    "uneven-4": [[64]] * 3 + [[512]],
}
#: Batches of one size, which make ``turns``.
RUN = 256


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12, help="each is timed for so long")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def shards(where: Path) -> None:
    """A shard of pictures for each rank of each profile, in the order in which they are read."""
    import numpy as np
    from PIL import Image

    for size in {size for ranks in SIZES.values() for sizes in ranks for size in sizes}:
        small = np.random.default_rng(size).integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize((size, size)).save(where / f"{size}.jpg", quality=90)
    for profile, ranks in SIZES.items():
        for rank, sizes in enumerate(ranks):
            with tarfile.open(where / f"{profile}-{rank}.tar", "w") as made:
                for k in range(RUN * BATCH * len(sizes)):
                    made.add(where / f"{sizes[k // (RUN * BATCH)]}.jpg", f"one/{k:06}.jpg")


def process(asked: dict[str, Any]) -> None:
    """A rank: prints the time of each iteration and what it waited for its batch."""
    import torch
    import torch.distributed as dist

    import lossfeed as lf

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=asked["rank"], world_size=asked["ranks"])
    cache = lf.Cache("512MiB", share=None if asked["how"] == "private" else "node", form="encoded")
    data, together, times = lf.open(asked["data"], resize=(64, 64), latency=0.002), torch.zeros(1), []
    with lf.Loader(data, BATCH, cache=cache, rank=0, world_size=1, shuffle=False, **asked["options"]) as loader:
        for _ in loader:
            pass
        begun, over = time.perf_counter(), False
        while not over:
            batches = iter(loader)
            while not over:
                asks = time.perf_counter()
                if next(batches, None) is None:
                    break
                comes = time.perf_counter()
                time.sleep(STEP_S)
                together[0] = float(comes - begun > WARM_S + asked["seconds"])
                dist.all_reduce(together)
                over = bool(together[0] > 0)
                times.append((comes - asks, time.perf_counter() - asks, comes - begun))
        threads = loader.stats()["workers"]
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"times": [(wait, all) for wait, all, at in times if at > WARM_S], "threads": threads}))


def measured(profile: str, how: str, where: Path, seconds: float) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    number = len(SIZES[profile])
    together = {"LOCAL_WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = os.environ | together | {"LOSSFEED_RUNTIME_DIR": str(where / f"run-{profile}-{how}")}
    processors = len(os.sched_getaffinity(0))
    fixed = {"part": max(1, processors // number), "all": processors}
    options = {"num_workers": fixed[how]} if how in fixed else {}
    made = []
    for rank in range(number):
        asked: dict[str, Any] = {"rank": rank, "ranks": number, "how": how, "options": options, "seconds": seconds}
        asked["data"] = str(where / f"{profile}-{rank}.tar")
        command = [sys.executable, __file__, "--process", json.dumps(asked)]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    ranks = [json.loads(rank.communicate(timeout=600)[0]) for rank in made]
    assert not any(rank.returncode for rank in made)
    # Ranks step together: their last iterations are the same ones.
    common = min(len(rank["times"]) for rank in ranks)
    iterations = list(zip(*(rank["times"][-common:] for rank in ranks), strict=True))
    mean_s = statistics.fmean(iteration[0][1] for iteration in iterations)
    apart = [max(rank[0] for rank in it) - min(rank[0] for rank in it) > mean_s / 10 for it in iterations]
    return {
        "ms": round(1000 * mean_s, 2),
        "unbalanced": round(statistics.fmean(apart), 3),
        "threads": " ".join(str(round(rank["threads"])) for rank in ranks),
        "iterations": common,
    }


def main() -> int:
    args = arguments()
    if args.process:
        process(json.loads(args.process))
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("ranks-behind", {"batch": BATCH, "step_ms": 1000 * STEP_S}, args.date, **where)
    with tempfile.TemporaryDirectory() as made:
        shards(Path(made))
        for profile in SIZES:
            for how in ("part", "all", "private", "node"):
                row = {"profile": profile, "how": how} | measured(profile, how, Path(made), args.seconds)
                record.add(row)
                print(row, flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

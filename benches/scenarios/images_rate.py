"""Images on the CPU: pixels from the cache to normalised float32 batches, by the loader's threads and by torch's
operators in the loop.

    python benches/scenarios/images_rate.py [--workers N] [--rounds 5]

Random uint8 pixels, all in the cache, decoded; epochs of the three ways in turn:

    bytes    the pixels as they are: what the others pay on top of
    ours     ImageTransform: shifted by up to 4 pixels, mirrored by chance (a sample its own), normalised, channels-last
    torch    the same arithmetic in the loop: permute, float, subtract, divide; one flip by chance for the whole batch, no shift

Samples a second and CPU time a sample, medians over the rounds. torch's operators run on all cores, the loader on its
threads.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from record import Record

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="loader threads (default: one a core)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    args = arguments()
    workers = args.workers or len(os.sched_getaffinity(0))
    import numpy as np
    import torch

    import lossfeed as lf

    where = {} if args.record is None else {"root": args.record}
    record = Record("images-rate", {"workers": workers, "rounds": args.rounds}, args.date, **where)
    mean, std = (255 * torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))

    def by_torch(batch: Any) -> torch.Tensor:
        data = batch.data.permute(0, 3, 1, 2)
        return ((data.flip(3) if random.random() < 0.5 else data).float() - mean) / std

    for side, samples in ((32, 50_000), (224, 2_048)):
        pixels = np.random.default_rng(0).integers(0, 256, (samples, side, side, 3), dtype=np.uint8)
        data = lf.open((pixels, np.arange(samples)))
        common = {"num_workers": workers, "cache": 1.0, "cache_form": "decoded", "stats": False, "framework": "torch", "drop_last": True, "shuffle": True}
        transform = lf.ImageTransform("float32", mean=MEAN, std=STD, layout="channels_last", padding=4, flip=0.5)
        plain = lf.Loader(data, 256, **common)
        ways: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "bytes": (plain, lambda batch: batch.data),
            "ours": (lf.Loader(data, 256, transform=transform, **common), lambda batch: batch.data),
            "torch": (plain, by_torch),
        }
        wall: dict[str, list[float]] = {way: [] for way in ways}
        cpu: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(args.rounds + 1):
            for way, (loader, take) in ways.items():
                used, started, count = cpu_seconds(), time.perf_counter(), 0
                for batch in loader:
                    count += len(take(batch))
                if number > 0:  # the first epochs fill the caches
                    wall[way].append((time.perf_counter() - started) * 1e6 / count)
                    cpu[way].append((cpu_seconds() - used) * 1e6 / count)
        for way in ways:
            wall_us, cpu_us = statistics.median(wall[way]), statistics.median(cpu[way])
            record.add(
                {"side": side, "way": way, "samples_per_s": round(1e6 / wall_us), "wall_us": round(wall_us, 3), "cpu_us": round(cpu_us, 3)}
            )
            print(f"{side:>4} {way:<6} {1e6 / wall_us:>12,.0f} samples/s  {cpu_us:8.2f} us of CPU a sample", flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Does a long run grow? A million batches of tiny rows, with cache, scores and a sampler that uses them.

    python benches/scenarios/peers/memory.py [--batches 1000000] [--every 100000] [--limit-mib 4]

Each sample is the process's resident memory and the loader's own counters. The first one, after --every batches, is the
warm-up; exits 1 if any later one lies more than the limit above it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# record.py lies one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from record import Record

ROWS, COLUMNS = 16_384, 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, help="loader threads (default: as many as the run needs)")
    parser.add_argument("--limit-mib", type=float, default=4.0)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    args = arguments()
    if args.batches < 2 * args.every:
        raise SystemExit("--batches must be at least twice --every: one sample is the warm-up")
    import numpy as np

    import lossfeed as lf

    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (ROWS, COLUMNS), dtype=np.uint8)
    loader = lf.Loader(
        (x, np.arange(ROWS)),
        args.batch_size,
        drop_last=True,
        sampler="cost-aware",
        policy="importance",
        cache="20%",
        num_workers=args.workers,
        framework="numpy",
        seed=0,
    )
    settings = {"batches": args.batches, "every": args.every, "batch_size": args.batch_size, "workers": args.workers}
    where = {} if args.record is None else {"root": args.record}
    record = Record("memory", settings, args.date, **where)
    losses = generator.random((64, args.batch_size), dtype=np.float32)
    samples: list[float] = []
    count, started = 0, time.perf_counter()
    while count < args.batches:
        for batch in loader:
            loader.score_losses(losses[count % len(losses)], batch)
            count += 1
            if count % args.every == 0:
                stats = {name: value for name, value in sorted(loader.stats().items()) if value}
                samples.append(resident_mib())
                seconds = time.perf_counter() - started
                record.add({"batches": count, "resident_mib": round(samples[-1], 2), "seconds": round(seconds, 1), "stats": stats})
                print(f"{count:>10,} batches  {samples[-1]:8.2f} MiB  {seconds:7.1f} s", flush=True)
            if count >= args.batches:
                break
    growth = max(samples[1:]) - samples[0]
    print(f"growth after the warm-up: {growth:.2f} MiB (limit {args.limit_mib:g})\n{record.json}")
    return 0 if growth <= args.limit_mib else 1


if __name__ == "__main__":
    sys.exit(main())

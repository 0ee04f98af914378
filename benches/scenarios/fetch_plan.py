"""Requests for small pictures in shards, and how soon batches come, with and without a fetch plan.

    python benches/scenarios/fetch_plan.py [--cifar FOLDER] [--before FOLDER] [--rounds 3] [--latency 0.01]

The store is this engine's own throttle (``latency=``) before files of this machine. ``one shard``: 5,000 pictures
of 2 KB in one shard. ``cifar``: the 50,000 JPEGs of CIFAR-10 in ten shards (``train-*.tar`` in ``--cifar``), or as
many made pictures of that size. Each by ``uniform`` and by ``auto`` with a fifth in the cache, shuffled, without
steps. ``--before``: a folder with the package ``lossfeed`` of another version; both run in turns, each run in a
process of its own. ``first_s`` and ``tenth_s`` are the seconds up to those batches, ``needed_mb`` the delivered
samples' bytes, ``between_mb`` bytes between samples that came with them: headers, padding, and samples that were
not needed. What comes in one epoch may be needed in the next.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Record

BATCH, EPOCHS, WORKERS = 64, 3, 2
ORDERS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": "uniform"},
    "auto, all deliveries alike": {"sampler": {"name": "auto", "augmented": False}, "cache": "20%"},
    "auto, augmented": {"sampler": {"name": "auto", "augmented": True}, "cache": "20%"},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, help="folder with CIFAR-10's train-*.tar; without it pictures are made")
    parser.add_argument("--before", type=Path, help="folder with the package of another version")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.01, help="seconds before an answer")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    return parser.parse_args()


def made(folder: Path, shards: int, each: int, size: int) -> None:
    """Shards of JPEGs of noise, of about ``size`` bytes."""
    import numpy as np
    from PIL import Image

    rng, bodies = np.random.default_rng(0), []
    for _ in range(200):
        coarse = Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).resize((32, 32))
        body = io.BytesIO()
        coarse.save(body, "JPEG", quality=75)
        # What follows the end of the picture is read with it and decodes to nothing.
        bodies.append(body.getvalue().ljust(int(size * rng.uniform(0.8, 1.2)), b"\0"))
    folder.mkdir()
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:02}.tar", "w") as tar:
            for n in range(each):
                body = bodies[(shard * each + n) % len(bodies)]
                info = tarfile.TarInfo(f"{n % 10}/{shard}-{n:06d}.jpg")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))


def run(folder: str, latency: float, order: str) -> list[dict[str, Any]]:
    import lossfeed as lf

    data, epochs = lf.open(f"{folder}/train-*.tar", latency=latency), []
    with lf.Loader(data, BATCH, seed=0, num_workers=WORKERS, stats=False, shuffle=True, **ORDERS[order]) as loader:
        before = loader.stats()
        for epoch in range(EPOCHS):
            times, samples, started = [], 0, time.perf_counter()
            for batch in loader:
                samples += len(batch.ids)
                times.append(time.perf_counter() - started)
            stats = loader.stats()
            came = {name: stats[name] - before[name] for name in stats if name.endswith("_total")}
            before = stats
            needed, vain = came["fetched_bytes_total"], came["store_vain_bytes_total"]
            row = {"epoch": epoch, "samples": samples, "fetched": came["fetched_samples_total"]}
            requests = came["store_requests_total"]
            row |= {"requests": requests, "requests_per_sample": round(requests / samples, 4)}
            row |= {"needed_mb": round(needed / 1e6, 2), "between_mb": round(vain / 1e6, 2)}
            row |= {"first_s": round(times[0], 4), "tenth_s": round(times[9], 4), "seconds": round(times[-1], 3)}
            epochs.append(row)
    return epochs


def main() -> int:
    args = arguments()
    if args.run:
        print(json.dumps(run(**json.loads(args.run))))
        return 0
    where = {} if args.record is None else {"root": args.record}
    settings = {"batch": BATCH, "workers": WORKERS, "latency_s": args.latency, "cifar": args.cifar is not None}
    record = Record("fetch-plan", settings, args.date, **where)
    versions = {"now": None} if args.before is None else {"before": args.before, "now": None}
    with tempfile.TemporaryDirectory() as scratch:
        made(Path(scratch) / "one", 1, 5000, 2000)
        kinds = {"one shard": Path(scratch) / "one", "cifar": args.cifar or Path(scratch) / "ten"}
        if args.cifar is None:
            made(kinds["cifar"], 10, 5000, 921)
        for round_ in range(args.rounds):
            for kind, folder in kinds.items():
                for order in ORDERS:
                    for version, package in versions.items():
                        ask = json.dumps({"folder": str(folder), "latency": args.latency, "order": order})
                        path = [str(package)] * (package is not None) + [os.environ.get("PYTHONPATH", "")]
                        answer = subprocess.run(
                            [sys.executable, __file__, "--run", ask], env=os.environ | {"PYTHONPATH": ":".join(path)},
                            check=True, capture_output=True, text=True,
                        )  # fmt: skip
                        for epoch in json.loads(answer.stdout.splitlines()[-1]):
                            row = {"version": version, "round": round_, "kind": kind, "order": order} | epoch
                            record.add(row)
                            print(row, flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

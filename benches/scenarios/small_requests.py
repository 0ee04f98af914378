"""How many requests an epoch takes of pictures in shards behind a store, and how long it takes.

    python benches/scenarios/small_requests.py [--version NAME] [--rounds 1] [--blocks]

The store is this engine's own throttle (``latency=``, ``bandwidth=``) before files of this machine: 20,000 pictures of 3 KB,
as many from 1 to 2 KB, and 2,400 of 110 KB, eight shards each, read in order and shuffled, one epoch each without steps and
without a cache. ``vain`` is what lay between pictures and came along.

``--blocks``: four epochs of ``replay`` instead, a quarter of each batch new, with a fifth of the pictures in the cache and
2 MB read ahead, a small part of the dataset as where datasets are large: new samples one by one, in blocks of 64, and in
blocks as long as requests are dear.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Record

SHARDS, BATCH = 8, 64
#: Name: pictures, pixels of a side, and whether they are JPEGs of many sizes.
KINDS = {"3 KB": (20_000, 31, False), "1 to 2 KB": (20_000, 31, True), "110 KB": (2400, 191, False)}
#: (seconds before an answer, bytes a second or None): every kind through each, by name.
STORES = [(0.01, 20_000_000), (0.01, None), (0.05, 20_000_000), (0.05, None)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="this", help="what the runs are called in the record")
    parser.add_argument("--blocks", action="store_true", help="what blocks of the stream of new samples bring")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def shards(folder: Path, samples: int, side: int, jpeg: bool) -> None:
    """Writes pictures of noise."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for n in range(samples // SHARDS):
                picture = Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8))
                body = io.BytesIO()
                if jpeg:
                    picture.save(body, "JPEG", quality=int(rng.integers(30, 95)))
                else:
                    picture.save(body, "PNG", compress_level=0)
                info = tarfile.TarInfo(f"{n % 10}/{shard}-{n:06d}.{'jpg' if jpeg else 'png'}")
                info.size = len(body.getvalue())
                tar.addfile(info, io.BytesIO(body.getvalue()))


#: Name of an order: options of the loader, and epochs.
ORDERS: dict[str, tuple[dict[str, Any], int]] = {
    "in order": ({"sampler": "uniform", "shuffle": False}, 1),
    "shuffled": ({"sampler": "uniform"}, 1),
}
BLOCKS: dict[str, tuple[dict[str, Any], int]] = {
    f"replay, block {block}": ({"sampler": {"name": "replay", "block": block}, "cache": "20%", "read_ahead": "2MB"}, 4)
    for block in (1, 64, "auto")
}


def epochs(folder: Path, latency: float, bandwidth: int | None, options: dict[str, Any], count: int) -> dict[str, float]:
    import lossfeed as lf

    data = lf.open(str(folder / "*.tar"), latency=latency, bandwidth=bandwidth)
    with lf.Loader(data, BATCH, seed=0, num_workers=2, stats=False, **options) as loader:
        started = time.perf_counter()
        samples = sum(len(batch.ids) for _ in range(count) for batch in loader)
        took, stats = time.perf_counter() - started, loader.stats()
    requests, vain = stats["store_requests_total"], stats["store_vain_bytes_total"]
    return {
        "samples": samples,
        "fetched": stats["fetched_samples_total"],
        "requests": requests,
        "requests_per_fetch": round(requests / max(stats["fetched_samples_total"], 1), 4),
        "block": stats["block_samples"],
        "wanted_mb": round(stats["fetched_bytes_total"] / 1e6, 1),
        "vain_mb": round(vain / 1e6, 1),
        "seconds": round(took, 2),
    }


def main() -> int:
    args = arguments()
    where = {} if args.record is None else {"root": args.record}
    record = Record("small-requests-blocks" if args.blocks else "small-requests", {"batch": BATCH, "shards": SHARDS}, args.date, **where)
    with tempfile.TemporaryDirectory() as made:
        for number, (kind, (samples, side, jpeg)) in enumerate(KINDS.items()):
            folder = Path(made) / str(number)
            shards(folder, samples, side, jpeg)
            # Opened once before: the index of shards is kept, and each run finds the same.
            epochs(folder, 0.001, None, *ORDERS["in order"])
            for round_ in range(args.rounds):
                for latency, bandwidth in STORES:
                    for order, how in (BLOCKS if args.blocks else ORDERS).items():
                        run = {"version": args.version, "round": round_, "kind": kind, "latency_s": latency}
                        run |= {"bandwidth": bandwidth or "none", "order": order}
                        run |= epochs(folder, latency, bandwidth, *how)
                        record.add(run)
                        print(run, flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A shuffled epoch of 14 million samples, simulated: requests, bytes, memory and how well it is mixed, beside the
published rules of MosaicML Streaming, litData and webdataset.

    python benches/scenarios/shuffles.py [--samples 14197122]

Takes a minute and 2 GB. One node, one rank, eight workers; the sizes are those of ImageNet-22k (1.36 TB). Every loader
has its own defaults, and shards of the size that its documentation gives. Mixing is measured on data sorted by class,
where it is hardest: distinct classes in a batch, and how far apart two neighbours of the store are delivered (median,
as a share of the epoch; a full shuffle has 29 %, and where an epoch has not all samples there is none).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from record import Record

SAMPLE_BYTES = 95_800
CLASSES = 21_841
BATCH, WORKERS = 256, 8
MIB = 1 << 20
RULES = {
    "lossfeed, shuffle=True": "a permutation; one request for neighbours in a prefetch window of 1 GiB (decision 67)",
    "lossfeed, replay, block 64": "a quarter new in runs of 64 neighbours; the rest uniformly from a cache of 32 GB",
    "mosaic, py1e": "64 MiB shards in random order, samples moved by up to half of 4,000,000",
    "mosaic, py1s": "64 MiB shards in random order, shuffled within each",
    "litData": "64 MB chunks in random order, dealt to workers, shuffled within each; two ahead",
    "webdataset, shuffle(1000)": "1 GB shards in random order, dealt to workers, a buffer of 1,000 each",
    "webdataset, shuffle(5000)": "the same with a buffer of 5,000",
}


def shards(samples: int, size: int) -> tuple[int, int]:
    """Samples a shard, and shards."""
    each = max(1, size // SAMPLE_BYTES)
    return each, -(-samples // each)


def in_shard_order(samples: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Ids, shard after shard, the shards in random order."""
    each, count = shards(samples, size)
    ids = (rng.permutation(count)[:, None] * each + np.arange(each)[None, :]).ravel().astype(np.int32)
    return ids[ids < samples]


def dealt(ids: np.ndarray, size: int, move: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Shards dealt to workers, each worker's ids put in another order by ``move``; a batch comes from one worker."""
    each = max(1, size // SAMPLE_BYTES)
    starts = np.flatnonzero(np.r_[True, np.diff(ids // each) != 0])
    parts = np.split(ids, starts[1:])
    rows = [move(np.concatenate(parts[worker::WORKERS])) for worker in range(WORKERS)]
    batches = [[row[at : at + BATCH] for at in range(0, len(row), BATCH)] for row in rows]
    longest = max(map(len, batches))
    return np.concatenate([row[at] for at in range(longest) for row in batches if at < len(row)])


def live(order: np.ndarray, size: int) -> float:
    """The most bytes of shards between the first and the last use of each."""
    each = max(1, size // SAMPLE_BYTES)
    shard = order // each
    last = np.zeros(shard.max() + 1, np.int64)
    last[shard] = np.arange(len(order))
    first = np.zeros_like(last)
    first[shard[::-1]] = np.arange(len(order))[::-1]
    steps = np.zeros(len(order) + 1, np.int32)
    np.add.at(steps, first, 1)
    np.add.at(steps, last + 1, -1)
    return float(np.cumsum(steps).max()) * each * SAMPLE_BYTES


def mixing(order: np.ndarray, samples: int, rng: np.random.Generator) -> dict[str, float]:
    """Distinct classes in a batch, and how far apart the store's neighbours are."""
    starts = rng.integers(0, len(order) // BATCH, 2000) * BATCH
    classes = [len(np.unique(order[at : at + BATCH].astype(np.int64) * CLASSES // samples)) for at in starts]
    place = np.full(samples, -1, np.int64)
    place[order[::-1]] = np.arange(len(order))[::-1]
    found = {"classes_a_batch": round(float(np.mean(classes)), 1)}
    if (place >= 0).all():
        pairs = rng.integers(0, samples - 1, 1_000_000)
        apart = np.median(np.abs(place[pairs] - place[pairs + 1])) / len(order)
        found["neighbours_apart"] = float(f"{apart:.3g}")
    return found


def replayed(samples: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """An epoch of batches of 64 new neighbours and 192 of the cache, oldest out first, and the new ones' runs."""
    room, new = int(32e9) // SAMPLE_BYTES, 64
    stream = (rng.permutation(-(-samples // new))[:, None] * new + np.arange(new)[None, :]).ravel().astype(np.int32)
    stream = stream[stream < samples]
    stream = np.r_[stream, stream[: room + samples // 4]]  # the cache is full when the epoch begins
    batches = samples // BATCH
    ends = room + np.arange(batches) * new
    old = ends[:, None] - 1 - rng.integers(0, min(room, samples), (batches, BATCH - new))
    return np.concatenate([stream[ends[:, None] + np.arange(new)], stream[old]], axis=1).ravel(), batches


def rows(samples: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    found = []

    def add(name: str, order: np.ndarray, requests: int, share: float, memory: float, disk: float) -> None:
        found.append(
            {
                "loader": name,
                "requests": requests,
                "requests_a_sample": round(requests / samples, 4),
                "bytes_read": share,
                "memory_gb": round(memory / 1e9, 2),
                "disk_gb": round(disk / 1e9, 1),
                **mixing(order, samples, rng),
            }
        )

    order = rng.permutation(samples).astype(np.int32)
    window = min(131_072, 1024 * MIB // SAMPLE_BYTES)
    looks = [np.sort(order[at : at + window]) for at in range(0, samples, window)]
    runs = sum(1 + int(np.count_nonzero(np.diff(look) != 1)) for look in looks)
    add("lossfeed, shuffle=True", order, runs, 1.0, 1024 * MIB, 0)
    order, runs = replayed(samples, rng)
    add("lossfeed, replay, block 64", order, runs, 0.25, 32e9 + 1024 * MIB, 0)
    size = 64 * MIB
    each, count = shards(samples, size)
    base = in_shard_order(samples, size, rng)
    half = np.repeat((rng.uniform(0.75, 1.25, count) * 4e6 - each).clip(0) / 2, each)[:samples]
    place = np.arange(samples)
    first = place - place % each
    moved = place + rng.uniform(np.maximum(-half, -first), np.minimum(half, samples - first - each).clip(0))
    order = base[np.argsort(moved, kind="stable")]
    add("mosaic, py1e", order, count, 1.0, 0, live(order, size))
    within = np.argsort(first + rng.uniform(0, each, samples), kind="stable")
    add("mosaic, py1s", base[within], count, 1.0, 0, live(base[within], size))
    size = 64_000_000
    each, count = shards(samples, size)

    def within_chunks(ids: np.ndarray) -> np.ndarray:
        return ids[np.argsort(np.arange(len(ids)) // each * each + rng.uniform(0, each, len(ids)), kind="stable")]

    order = dealt(in_shard_order(samples, size, rng), size, within_chunks)
    add("litData", order, count, 1.0, 0, live(order, size) + 2 * WORKERS * size)
    size = 10**9

    def buffered(ids: np.ndarray, room: int) -> np.ndarray:
        return ids[np.argsort(np.arange(len(ids)) + rng.exponential(room, len(ids)), kind="stable")]

    for room in (1000, 5000):
        order = dealt(in_shard_order(samples, size, rng), size, partial(buffered, room=room))
        add(f"webdataset, shuffle({room})", order, shards(samples, size)[1], 1.0, WORKERS * room * SAMPLE_BYTES, 0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=14_197_122)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="write it below benches/record")
    parser.add_argument("--date", help="the record's date, if it is not today's")
    args = parser.parse_args()
    found = rows(args.samples, args.seed)
    record = None
    if args.record:
        sizes = {"samples": args.samples, "sample_bytes": SAMPLE_BYTES, "classes": CLASSES}
        settings = {**sizes, "batch": BATCH, "workers": WORKERS, "seed": args.seed, "rules": RULES}
        record = Record("shuffles", settings, args.date)
    heads = f"{'requests':>11} {'a sample':>9} {'read':>5} {'memory GB':>10} {'disk GB':>8} {'classes':>8} {'apart':>8}"
    print(f"{'':27}{heads}")
    for row in found:
        apart = f"{row['neighbours_apart']:8.3%}" if "neighbours_apart" in row else f"{'-':>8}"
        print(
            f"{row['loader']:27}{row['requests']:11,} {row['requests_a_sample']:9.4f} {row['bytes_read']:5.2f} "
            f"{row['memory_gb']:10.2f} {row['disk_gb']:8.1f} {row['classes_a_batch']:8.1f} {apart}"
        )
        if record:
            record.add(row)


if __name__ == "__main__":
    main()

"""Blocks of neighbours in mixed and in sorted shards: accuracy, requests, and what ``sampler="auto"`` chooses.

    python benches/scenarios/mixed_labels.py [FOLDER] --seeds 3
    python benches/scenarios/mixed_labels.py [FOLDER] --chosen     # which of the two auto is, without training

10,000 of CIFAR-10's pictures (two shards) behind the engine's own throttle (``latency=0.01``), as they were packed
(mixed) and sorted by class. ``auto`` with a fifth cached, pictures shifted and mirrored, and a prefetch window of 1 MB,
so that the dataset (9 MB) exceeds it as a large one exceeds 128 MiB. ``"block": 1`` is the control, new samples one by
one; ``"block": "auto"`` takes neighbours together whatever their labels are. The network of ``lossfeed train`` with 16
channels, 8 epochs in batches of 128.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from arranged import arranged
from record import Record, cifar_folder
from short_epochs import held_out, rate

import lossfeed as lf
from lossfeed.train import model as models

EPOCHS, BATCH, SHARDS, WAYS, BLOCKS = 8, 128, 2, ("as-packed", "by-class"), (1, "auto")


def loader_of(folder: Path, sampler: dict[str, Any], seed: int) -> lf.Loader:
    data = lf.open(str(folder / "train-*.tar"), latency=0.01)
    pixels = lf.ImageTransform("uint8", layout="NHWC", padding=4, flip=0.5)
    usual: dict[str, Any] = {"cache": "20%", "read_ahead": 1_000_000, "num_workers": 1, "drop_last": True}
    return lf.Loader(data, BATCH, shuffle=True, sampler=sampler, transform=pixels, seed=seed, stats=False, **usual)


def run(folder: Path, block: Any, seed: int, test: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
    torch.manual_seed(seed)
    loader = loader_of(folder, {"name": "auto", "block": block}, seed)
    model = models.build((32, 32, 3), 10, 16, torch.full((3,), 120.0), torch.full((3,), 64.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    started, steps = time.perf_counter(), len(loader) * EPOCHS
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            for group in optimizer.param_groups:
                group["lr"] = rate((epoch * len(loader) + number) / steps)
            loss = loader.cross_entropy(model(batch.data), batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    seconds, stats = time.perf_counter() - started, loader.stats()
    loader.close()
    model.eval()
    with torch.no_grad():
        pairs = zip(test[0].split(500), test[1].split(500), strict=True)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)
    fetched = int(stats["fetched_samples_total"])
    return {
        "accuracy": round(100 * right / len(test[1]), 2),
        "fetched": fetched,
        "requests": int(stats["store_requests_total"]),
        "requests_per_fetched": round(stats["store_requests_total"] / fetched, 3),
        "block_samples": int(stats["block_samples"]),
        "seconds": round(seconds, 1),
    }


def chosen(folder: Path, seed: int) -> dict[str, Any]:
    """The order of two epochs by ``auto``, beside those with its blocks set; weights are not read."""

    def ids(sampler: dict[str, Any]) -> list[list[int]]:
        with loader_of(folder, sampler, seed) as loader:
            return [batch.ids.tolist() for _ in range(2) for batch in loader]

    made = ids({"name": "auto"})
    same = [block for block in BLOCKS if made == ids({"name": "auto", "block": block})]
    return {"auto_is": " and ".join(f"block={block}" for block in same)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="CIFAR-10 as train-*.tar and test-*.tar (default: $LOSSFEED_CIFAR)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, action="append", help="only these (default: both)")
    parser.add_argument("--chosen", action="store_true", help="say which blocks auto takes, and train nothing")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    args = parser.parse_args()
    folder = cifar_folder(args.folder)
    if folder is None:
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    where = {} if args.record is None else {"root": args.record}
    settings = {"epochs": EPOCHS, "batch": BATCH, "shards": SHARDS, "read_ahead": 1_000_000, "latency_s": 0.01}
    record = Record("mixed-labels", settings, args.date, **where)
    test = held_out(folder)
    with tempfile.TemporaryDirectory() as scratch:
        few = Path(scratch) / "few"
        few.mkdir()
        for shard in sorted(folder.glob("train-*.tar"))[:SHARDS]:
            (few / shard.name).symlink_to(shard)
        for seed in range(args.first_seed, args.seeds):
            for way in args.way or WAYS:
                at = arranged(few, way, Path(scratch))
                for block in ("",) if args.chosen else BLOCKS:
                    row = {"way": way, "block": block, "seed": seed}
                    row |= chosen(at, seed) if args.chosen else run(at, block, seed, test)
                    record.add(row)
                    print(row, flush=True)
    print(f"\n{record.csv}")


if __name__ == "__main__":
    main()

"""One training through one feed, in a process of its own: what it took, as one line of JSON.

    python train.py FEED URL WORK DATA --epochs 10 --seed 0

The network, its schedule and its augmentation are those of ``lossfeed train``. The clock runs from the making of the
loader to the last step; only then the network is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
from feeds import BATCH, FEEDS, Place
from lossfeed.train import model as models
from pictures import KINDS

from shards import judged, size

#: The channels' means and deviations over CIFAR-10's training pictures, in 0 to 255.
MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)


def shifted(x: torch.Tensor, chance: torch.Generator) -> torch.Tensor:
    """A shift by up to 4 pixels and a mirror image half of the time, for a whole batch at once."""
    count, side = x.shape[0], x.shape[1]
    padded = torch.nn.functional.pad(x, (0, 0, 4, 4, 4, 4))
    rows = torch.randint(9, (count, 1), generator=chance) + torch.arange(side)
    columns = torch.randint(9, (count, 1), generator=chance) + torch.arange(side)
    columns = torch.where(torch.rand(count, 1, generator=chance) < 0.5, columns.flip(1), columns)
    return padded[torch.arange(count).view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]


def counts(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/-/counts") as answer:
        return json.load(answer)


def accuracy(model: torch.nn.Module, shards: str, resize: int | None) -> float:
    import lossfeed as lf

    model.eval()
    right = total = 0
    with torch.inference_mode():
        for x, y in lf.Loader(lf.open(shards, resize=resize), 500, device="cpu"):
            right += int((model(x).argmax(1) == y).sum())
            total += len(y)
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("feed", choices=FEEDS)
    parser.add_argument("url")
    parser.add_argument("work", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pictures", choices=KINDS, default="small")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    chosen = FEEDS[args.feed]
    names = sorted(p.name for p in (args.work / "bucket" / "objects").iterdir())
    (args.work / "scratch").mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=args.work / "scratch"))
    place = Place(args.url, scratch, names, size(args.work, chosen.form), args.seed, KINDS[args.pictures])
    os.environ |= place.environment
    try:
        print(json.dumps(run(chosen.name, place, args)))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.flush()
    # Worker processes of some peers outlive their loader.
    os._exit(0)


def run(name: str, place: Place, args: argparse.Namespace) -> dict[str, Any]:
    steps = len(place.names) // BATCH
    model = models.build((32, 32, 3), 10, 24, torch.tensor(MEAN), torch.tensor(DEVIATION))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=args.epochs * steps, pct_start=0.2)
    chance = torch.Generator().manual_seed(args.seed)
    before, started = counts(args.url), time.perf_counter()
    source = FEEDS[name].make(place)
    ours = getattr(source, "loader", None)
    batches, waited, ends = iter(source), 0.0, []
    for step in range(args.epochs * steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        if ours is not None:
            loss = ours.cross_entropy(model(batch.data), batch)
        else:
            loss = torch.nn.functional.cross_entropy(model(shifted(batch[0], chance)), batch[1])
        del batch
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % steps == 0:
            ends.append(round(time.perf_counter() - started, 2))
    after = counts(args.url)
    stats = {} if ours is None else ours.stats()
    of_ours = ("fetched_samples_total", "hits_total", "store_vain_bytes_total", "read_ahead_vain_total")
    return {
        "feed": name,
        "seed": args.seed,
        "seconds": ends[-1],
        "waited_s": round(waited, 2),
        "first_epoch_s": ends[0],
        "requests": after["requests"] - before["requests"],
        "bytes": after["bytes"] - before["bytes"],
        "accuracy": round(accuracy(model, judged(args.data, args.work, place.kind), place.kind.resize), 4),
        **{name: int(stats[name]) for name in of_ours if name in stats},
        "epoch_ends_s": ends,
    }


if __name__ == "__main__":
    main()

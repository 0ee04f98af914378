"""Samplers that were published with shorter epochs, as long as the others and short: accuracy, bytes and time. Beside
them iCACHE's cache policy and what else may keep its samples.

    python benches/scenarios/short_epochs.py [FOLDER] --seeds 2

Scaled down to fit in four minutes of one core a seed: 5,000 of CIFAR-10's pictures (one shard), the network of
``lossfeed train`` with 16 channels, 12 epochs in batches of 128, a fifth cached, no augmentation. The learning rate
follows the run's progress, so a short run ends its schedule too. ``iis`` warms up for two epochs (published: five of
ninety). The control of short epochs is ``uniform`` with fewer epochs: 9 and 6 have 360 and 240 steps; that of scores
is ``scores=batch``, which gives a batch's samples one score, as BLS does.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from record import Record, cifar_folder

import lossfeed as lf
from lossfeed.train import model as models

EPOCHS, BATCH, PEAK = 12, 128, 0.05
SHARDS, TEST_SHARDS = "train-00.tar", "test-00.tar"
IIS = {"name": "iis", "warm_up": 2}
PUBLISHED = {**IIS, "corrected": False}
INFOBATCH = {"name": "infobatch", "epochs": EPOCHS}
SELECTIVE = {"name": "selective"}
FEWER = 9, 6
ROWS: list[tuple[Any, str]] = [
    ("uniform", "minio"),
    ("uniform", "icache"),
    (PUBLISHED, "minio"),
    (PUBLISHED, "importance"),
    (PUBLISHED, "icache"),
    ({**IIS, "short": True}, "importance"),
    ({**IIS, "short": True}, "icache"),
    (INFOBATCH, "importance"),
    ({**INFOBATCH, "short": True}, "importance"),
    ({**IIS, "short": True, "scores": "batch"}, "importance"),
    ({**INFOBATCH, "short": True, "scores": "batch"}, "importance"),
    (SELECTIVE, "importance"),
    ({**SELECTIVE, "short": True}, "importance"),
]


def rate(progress: float) -> float:
    """A fifth of the run up to the peak, then down by a cosine."""
    return PEAK * (progress / 0.2 if progress < 0.2 else 0.5 + 0.5 * math.cos(math.pi * (progress - 0.2) / 0.8))


def held_out(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    data = lf.open(str(folder / TEST_SHARDS))
    loader = lf.Loader(data, 500, shuffle=False, num_workers=0, stats=False)
    batches = [(batch.data.clone(), batch.target.clone()) for batch in loader]
    return torch.cat([data for data, _ in batches]), torch.cat([target for _, target in batches])


def run(
    folder: Path, sampler: Any, policy: str, epochs: int, seed: int, test: tuple[torch.Tensor, torch.Tensor]
) -> dict[str, Any]:
    torch.manual_seed(seed)
    data = lf.open(str(folder / SHARDS))
    usual: dict[str, Any] = {"cache": 0.2, "seed": seed, "num_workers": 0, "score": "loss", "stats": False}
    if isinstance(sampler, dict) and "scores" in sampler:
        usual["score"], sampler = sampler["scores"], {key: value for key, value in sampler.items() if key != "scores"}
    loader = lf.Loader(data, BATCH, sampler=sampler, policy=policy, **usual)
    mean, std = torch.full((3,), 120.0), torch.full((3,), 64.0)
    model = models.build((32, 32, 3), 10, 16, mean, std)
    optimizer = torch.optim.SGD(model.parameters(), lr=PEAK, momentum=0.9, weight_decay=5e-4, nesterov=True)
    started, steps, warm = time.perf_counter(), 0, loader.stats()
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        batches = iter(loader)
        count = loader.stats()["batches_per_epoch"]
        for number, batch in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = rate((epoch + number / count) / epochs)
            loss = loader.cross_entropy(model(batch.data), batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            steps += 1
        if epoch == epochs // 2 - 1:
            warm = loader.stats()
    seconds = time.perf_counter() - started
    model.eval()
    with torch.no_grad():
        pairs = zip(test[0].split(500), test[1].split(500), strict=True)
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)
    stats = loader.stats()
    loader.close()
    asked = stats["requests_total"] - warm["requests_total"]
    return {
        "accuracy": round(100 * right / len(test[1]), 2),
        "steps": steps,
        "samples": int(stats["requests_total"]),
        "fetched_mb": round(stats["fetched_bytes_total"] / 1e6, 1),
        "hits_late": round(100 * (stats["hits_total"] - warm["hits_total"]) / asked, 1),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="CIFAR-10 as train-*.tar and test-*.tar (default: $LOSSFEED_CIFAR)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--date", help="the record's date, if it is not today's")
    args = parser.parse_args()
    folder = cifar_folder(args.folder)
    if folder is None:
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    test = held_out(folder)
    settings = {"samples": 5_000, "epochs": EPOCHS, "batch": BATCH, "cache": 0.2, "peak": PEAK}
    record = Record("short-epochs", settings, args.date)
    done = {(run["sampler"], run["policy"], run["seed"]) for run in record.runs()}
    for seed in range(args.seeds):
        rows = [(*row, EPOCHS) for row in ROWS] + [("uniform", "minio", epochs) for epochs in FEWER]
        for sampler, policy, epochs in rows:
            told = sampler if isinstance(sampler, str) else sampler["name"]
            if isinstance(sampler, dict):
                shown = "short", "corrected", "scores"
                told += "".join(f" {key}={value}" for key, value in sampler.items() if key in shown)
            told += f" epochs={epochs}" if epochs != EPOCHS else ""
            if (told, policy, seed) in done:
                continue
            found = run(folder, sampler, policy, epochs, seed, test)
            record.add({"sampler": told, "policy": policy, "seed": seed, **found})
            told_of = "  ".join(f"{key} {value}" for key, value in found.items())
            print(f"{seed} {told:22} {policy:10} {told_of}", flush=True)


if __name__ == "__main__":
    main()

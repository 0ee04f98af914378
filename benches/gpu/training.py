"""ResNet-18 on CIFAR-10 through the job of ``lossfeed train``, fed uniformly and cost-aware: accuracy, bytes fetched,
and whether the loader keeps up with the GPU.

Data is a folder of train-*.tar and test-*.tar (``--data``, else ``$LOSSFEED_CIFAR``, else what the bundle brought);
without any, the job's own digits. Runs go seed by seed, every recipe on each, and no new seed begins when the time it
would take is not left. Sections: ``alone`` (a step on one batch that stays where it is: what the GPU could do),
``runs`` (a row a run). ``--device cpu --quick`` tries the program itself and measures nothing.
"""

from __future__ import annotations

import gzip
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from common import Report, arguments, failed, medians_us, rows_of, say
from resnet import ResNet18
from torch import nn

import lossfeed as lf
from lossfeed.train import model as models
from lossfeed.train.data import find
from lossfeed.train.job import Job, prepare
from lossfeed.train.options import Options
from lossfeed.train.run import train

RECIPES = "uniform+minio,cost-aware"
BUNDLED = Path(__file__).resolve().parents[2] / ".gpu-bundle" / "cifar"
SEEDS = 8
SEEDS_WANTED = 5


class Mixed(nn.Module):
    """Pixels to logits: the job's normalisation, then ResNet-18 in bfloat16 where the GPU has it."""

    def __init__(self, normalise: nn.Module, net: nn.Module, on_gpu: bool) -> None:
        super().__init__()
        self.normalise, self.net, self.on_gpu = normalise, net, on_gpu

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, H, W, C) u8 to (B, classes) float32."""
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.on_gpu):
            return self.net(self.normalise(images)).float()


def build(report: Report) -> Any:
    """What makes the job's network, in the place of its own small one."""

    def made(
        shape: tuple[int, int, int], classes: int, _width: int, mean: torch.Tensor, std: torch.Tensor, _depth: int = 1
    ) -> nn.Module:
        net = ResNet18(classes, 4 if report.quick else 64, shape[2])
        return Mixed(models.Normalise(mean, std), net, report.device.type == "cuda").to(memory_format=torch.channels_last)

    return made


def folder(given: str | None, scratch: Path) -> str | None:
    """Where the shards lie, unpacked if they came packed."""
    if given or (given := os.environ.get("LOSSFEED_CIFAR")):
        return given
    packed = sorted(BUNDLED.glob("*.tar.gz"))
    for file in packed:
        with gzip.open(file) as shard, (scratch / file.stem).open("wb") as to:
            shutil.copyfileobj(shard, to)
    return str(scratch) if packed else None


def alone(report: Report, job: Job) -> dict[str, float]:
    """Samples a second of the job's step when nothing has to be fetched."""
    torch.manual_seed(0)
    net = models.build(job.shape, job.classes, job.width, job.mean, job.std).to(report.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, nesterov=True)
    x = torch.randint(0, 256, (job.batch_size, *job.shape), dtype=torch.uint8, device=report.device)
    y = torch.randint(job.classes, (job.batch_size,), device=report.device)

    def step() -> None:
        loss = lf.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    us = medians_us({"step": step}, report.device, 2 if report.quick else 100, warmup=1 if report.quick else 20)["step"]
    return {"batch_size": job.batch_size, "step_us": us, "samples_per_s": job.batch_size / us * 1e6}


def row(result: Any) -> dict[str, Any]:
    """What is kept of a run. The first epoch is cold and compiles what torch compiles: rates are the later ones' if
    there are any."""
    warm = result.epochs[1:] or result.epochs
    return {
        "recipe": result.recipe,
        "seed": result.seed,
        "accuracy": result.accuracy,
        "accuracy_by_epoch": [e.accuracy for e in result.epochs],
        "samples": result.samples,
        "fetched_samples": result.fetched_samples,
        "fetched_bytes": result.fetched_bytes,
        "hit_ratio": result.hit_ratio,
        "seconds": result.seconds,
        "samples_per_s": sum(e.samples for e in warm) / sum(e.seconds for e in warm),
        "stall_share": sum(e.stall_share * e.seconds for e in warm) / sum(e.seconds for e in warm),
    }


def runs(report: Report, job: Job, options: Options, ends: float) -> list[dict[str, Any]]:
    """Every recipe on every seed for which there is time."""
    longest = 0.0
    for seed in range(options.seeds):
        begun = time.monotonic()
        if seed and begun + longest > ends:
            break
        for recipe in options.compare:
            report.row("runs", row(train(job, recipe, seed)))
        longest = max(longest, time.monotonic() - begun)
    return report.data["sections"]["runs"]


def table(found: list[dict[str, Any]]) -> None:
    """Mean and deviation over the seeds."""
    rows = []
    for recipe in dict.fromkeys(r["recipe"] for r in found):
        mine = [r for r in found if r["recipe"] == recipe]

        def mean(key: str, mine: list[dict[str, Any]] = mine) -> float:
            return statistics.fmean(r[key] for r in mine)

        spread = statistics.stdev(r["accuracy"] for r in mine) if len(mine) > 1 else None
        rows.append((recipe, len(mine), mean("accuracy"), spread, mean("fetched_samples"), mean("samples_per_s"), mean("stall_share")))
    say(rows, ("recipe", "seeds", "accuracy", "deviation", "fetched", "samples/s", "stalled"))


def asked_for(sections: dict[str, Any]) -> list[tuple[str, str, Any, Any]]:
    """What was asked for, the limit, and what was seen."""
    found = rows_of(sections.get("runs"))
    speed = sections.get("alone") or {}
    rates = [r["samples_per_s"] for r in found]
    share = None if failed(speed) or not rates else statistics.median(rates) / speed["samples_per_s"]
    seeds = min((len([r for r in found if r["recipe"] == recipe]) for recipe in RECIPES.split(",")), default=0)
    accuracy = {recipe: [r["accuracy"] for r in found if r["recipe"] == recipe] for recipe in RECIPES.split(",")}
    pairs = [b - a for a, b in zip(*accuracy.values(), strict=False)]
    fetched = {recipe: sum(r["fetched_samples"] for r in found if r["recipe"] == recipe) for recipe in RECIPES.split(",")}
    uniform, aware = fetched.values()
    return [
        ("training, steps with the loader", "≥ 0.95 of the GPU's speed alone", share, lambda v: v >= 0.95),
        ("training, seeds of every recipe", f"≥ {SEEDS_WANTED}", seeds, lambda v: v >= SEEDS_WANTED),
        ("training, cost-aware minus uniform, accuracy", "≥ -0.005", statistics.fmean(pairs) if pairs else None, lambda v: v >= -0.005),
        ("training, cost-aware against uniform, samples fetched", "≤ 1", aware / uniform if uniform and aware else None, lambda v: v <= 1),
    ]


def main() -> int:
    """Runs the sections; always 0, unless the program itself cannot start."""
    begun = time.monotonic()
    parser = arguments(__doc__)
    parser.add_argument("--data", help="folder of train-*.tar and test-*.tar")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--within", type=float, default=400.0, metavar="SECONDS", help="begin no seed that would not end within this")
    given = parser.parse_args()
    report = Report("training", given)
    models.build = build(report)
    with tempfile.TemporaryDirectory() as scratch:
        data = None if report.quick else folder(given.data, Path(scratch))
        small = {"steps": 3, "batch_size": 16, "seeds": 1} if report.quick else {"epochs": given.epochs, "batch_size": 512, "seeds": given.seeds}
        options = Options.from_mapping({"data": data, "compare": RECIPES, "device": str(report.device), "lr": 0.2, "latency": 0, "bandwidth": 0, **small})
        job = prepare(options, find(options.data, options.work_dir))
        report.data["job"] = job.describe()
        report.section("alone", lambda: alone(report, job))
        report.judge(asked_for(report.data["sections"]), silent=True)
        table(rows_of(report.section("runs", lambda: runs(report, job, options, begun + given.within))))
    report.judge(asked_for(report.data["sections"]))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

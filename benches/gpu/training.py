"""ResNet-18 on CIFAR-10 through the job of ``lossfeed train``, fed uniformly and cost-aware: accuracy, bytes fetched,
and whether the loader keeps up with the GPU.

Data is a folder of train-*.tar and test-*.tar (``--data``, else ``$LOSSFEED_CIFAR``, else what the bundle brought);
without any, the job's own digits. Runs go seed by seed, every recipe on each, and no new seed begins when the time it
would take is not left. One section, ``train``: a step on one batch that stays where it is (what the GPU could do), and a
row a run. ``--device cpu --quick`` tries the program itself and measures nothing.
"""

from __future__ import annotations

import gzip
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import Report, arguments, attempt, failed, medians_us, quotient
from resnet import ResNet18
from torch import nn

import lossfeed as lf
from lossfeed.train import model as models
from lossfeed.train.data import find
from lossfeed.train.job import Job, prepare
from lossfeed.train.options import Options
from lossfeed.train.run import train

RECIPES = "uniform+minio,cost-aware,cost-aware:scores=batch"
BUNDLED = Path(__file__).resolve().parents[2] / ".gpu-bundle" / "cifar"


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
    report.figure("the job's step on a batch that stays", us, "µs", n=100)
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


def runs(report: Report, job: Job, options: Options, first_seed: int, alone_per_s: float | None) -> None:
    """Every recipe on every seed for which there is time."""
    whole: list[Any] = []
    for seed in range(first_seed, first_seed + options.seeds):
        if report.left() < report.longest * len(options.compare):
            report.data["not_reached"].append(f"seed {seed}")
            break
        pair = [report.row({"seed": seed}, lambda recipe=recipe, seed=seed: row(train(job, recipe, seed))) for recipe in options.compare]
        if any(r is None or failed(r) for r in pair):
            break
        whole += pair
        uniform, aware, control = (whole[k :: len(pair)] for k in (0, 1, 2))

        def mean(rows: list[dict[str, Any]], key: str) -> float:
            return statistics.fmean(r[key] for r in rows)

        n = len(uniform)
        spread = statistics.stdev(b["accuracy"] - a["accuracy"] for a, b in zip(uniform, aware, strict=True)) if n > 1 else None
        report.figure("training with the loader over the GPU's speed alone", quotient(mean(whole, "samples_per_s"), alone_per_s), least=0.95, n=n)
        report.figure("share of the time that training waited", mean(whole, "stall_share"), n=n)
        report.figure("accuracy, uniform", mean(uniform, "accuracy"), n=n)
        report.figure("accuracy, cost-aware minus uniform", mean(aware, "accuracy") - mean(uniform, "accuracy"), least=-0.005, n=n, spread=spread)
        by_scores = mean(aware, "accuracy") - mean(control, "accuracy")
        report.figure("accuracy, cost-aware minus the same with a batch's mean for scores", by_scores, n=n)
        report.figure("samples fetched, cost-aware over uniform", quotient(mean(aware, "fetched_samples"), mean(uniform, "fetched_samples")), most=1.0, n=n)


def main() -> int:
    """Runs the sections; always 0, unless the program itself cannot start."""
    parser = arguments(__doc__)
    parser.add_argument("--data", help="folder of train-*.tar and test-*.tar")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=6)
    given = parser.parse_args()
    report = Report("training", given)
    models.build = build(report)
    with tempfile.TemporaryDirectory() as scratch:

        def whole() -> None:
            data = None if report.quick else folder(given.data, Path(scratch))
            small = {"steps": 3, "batch_size": 16, "seeds": 1} if report.quick else {"epochs": given.epochs, "batch_size": 512, "seeds": given.seeds}
            options = Options.from_mapping({"data": data, "compare": RECIPES, "device": str(report.device), "lr": 0.2, "latency": 0, "bandwidth": 0, **small})
            job = prepare(options, find(options.data, options.work_dir))
            report.data["job"] = job.describe()
            speed = report.data["alone"] = attempt(lambda: alone(report, job))
            runs(report, job, options, given.first_seed, None if failed(speed) else speed["samples_per_s"])

        report.section("train", whole)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

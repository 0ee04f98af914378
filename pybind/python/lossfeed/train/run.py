"""One training run: a recipe, a seed, a fixed number of steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import lossfeed as lf
import torch

from . import model as models
from .job import Job
from .options import Recipe

_SHOW_EVERY_S = 0.1


@dataclass
class EpochResult:
    """What one epoch was like. Shares are in 0 … 1."""

    epoch: int
    steps: int
    samples: int
    accuracy: float
    """Held-out accuracy after the epoch."""
    loss: float
    """Mean weighted training loss."""
    fetched_samples: int
    fetched_bytes: int
    hit_ratio: float
    """Share of requests answered from the cache. High is cheap, and says nothing about what was learnt."""
    coverage: float
    """Distinct samples delivered this epoch ÷ samples in the set."""
    coverage_ever: float
    """Distinct samples delivered since the run began ÷ samples in the set."""
    ess: float
    """Effective sample size of the weights, (Σw)²/(n Σw²). 1: all weights equal; low: few samples carry the
    gradient."""
    stall_share: float
    """Share of the epoch's wall time spent waiting for the next batch."""
    seconds: float


@dataclass
class RunResult:
    """A finished run; shares are over the whole run, the cold first epoch included."""

    recipe: str
    seed: int
    steps: int
    samples: int
    accuracy: float
    fetched_samples: int
    fetched_bytes: int
    hit_ratio: float
    hit_ratio_last: float
    coverage: float
    """Mean over the epochs of distinct samples delivered ÷ samples in the set."""
    coverage_ever: float
    ess: float
    """Mean over the epochs."""
    stall_share: float
    samples_per_s: float
    seconds: float
    wrong_among_most_used: float | None = None
    """Of the hundred samples that came most often in the last epoch, the share whose label is wrong; None where all
    labels are right."""
    epochs: list[EpochResult] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass
class Progress:
    """Where a run is now; what a progress bar shows."""

    recipe: str
    seed: int
    epoch: int
    epochs: int
    step: int
    steps: int
    """Steps of this epoch."""
    hit_ratio: float
    coverage: float
    coverage_ever: float
    stall_share: float
    samples_per_s: float
    accuracy: float
    """Held-out accuracy when the epoch began."""


class _Tally:
    """Who was delivered and with what weight, kept on the device so that counting never waits for it."""

    def __init__(self, samples: int, device: str) -> None:
        self.samples = samples
        self.ever = torch.zeros(samples, dtype=torch.bool, device=device)
        self.epoch = torch.zeros(samples, dtype=torch.bool, device=device)
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.delivered = 0

    def begin_epoch(self) -> None:
        self.epoch.zero_()
        self.sums.zero_()
        self.delivered = 0

    def add(self, ids: torch.Tensor, weight: torch.Tensor, loss: torch.Tensor) -> None:
        ids, weight = ids.to(self.ever.device), weight.to(self.ever.device).double()
        self.ever[ids] = True
        self.epoch[ids] = True
        self.sums += torch.stack((weight.sum(), (weight * weight).sum(), loss.detach().double() * len(ids)))
        self.delivered += len(ids)

    def coverage(self) -> tuple[float, float]:
        return int(self.epoch.sum()) / self.samples, int(self.ever.sum()) / self.samples

    def ess(self) -> float:
        total, squares, _ = self.sums.tolist()
        return total * total / (self.delivered * squares) if squares else math.nan

    def loss(self) -> float:
        return float(self.sums[2]) / max(self.delivered, 1)


def make_loader(job: Job, recipe: Recipe, seed: int) -> Any:
    """The loader of one run, with a cold cache of decoded samples."""
    chosen: dict[str, Any] = {"policy": recipe.policy, **recipe.loader_options}
    if job.workers is not None:
        chosen["num_workers"] = job.workers
    options = dict(recipe.sampler_options)
    if recipe.sampler == "auto":
        options.setdefault("augmented", job.augment != "none")
    name = "".join(c if c.isalnum() or c in "+-._=" else "_" for c in recipe.label)
    journal = None if job.journal is None else job.journal / f"{name}-seed{seed}.csv.gz"
    return lf.Loader(
        job.open_train(),
        batch_size=job.batch_size,
        drop_last=True,
        device=job.device,
        cache=job.cache,
        cache_form="decoded",
        transform=job.transform(),
        sampler={"name": recipe.sampler, **options},
        seed=seed,
        job=f"train {recipe.label} seed {seed}",
        journal=journal,
        **chosen,
    )


def train(
    job: Job,
    recipe: Recipe,
    seed: int,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_epoch: Callable[[EpochResult], None] = lambda _: None,
) -> RunResult:
    """Trains a fresh model for ``job.steps`` steps and says how it went.

    The same seed gives the same initial weights whatever the recipe, so that recipes can be compared in pairs. Time
    spent on evaluation is not counted. Raises whatever the engine raises; the loader is closed in any case.
    """
    run = _Run(job, recipe, seed)
    try:
        run.evaluate()
        epochs: list[EpochResult] = []
        for number in range(job.epochs):
            result = run.epoch(number, on_progress)
            result.accuracy = run.evaluate()
            epochs.append(result)
            on_epoch(result)
        whole = _summary(recipe, seed, epochs, run.loader.stats())
        whole.wrong_among_most_used = run.wrong_among_most_used()
        return whole
    finally:
        run.loader.close()


class _Run:
    """A model in training and what feeds it."""

    def __init__(self, job: Job, recipe: Recipe, seed: int) -> None:
        self.job, self.recipe, self.seed = job, recipe, seed
        torch.manual_seed(seed)
        model = models.build(job.shape, job.classes, job.width, job.mean, job.std, job.depth)
        self.model = model.to(job.device)
        # SGD with a one-cycle schedule: the shortest recipe that reaches the accuracy this network is good for.
        of_sgd: dict[str, Any] = {"lr": job.lr, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}
        self.optimizer = torch.optim.SGD(self.model.parameters(), **of_sgd)
        # A fifth of the steps is warm-up; a run of fewer than ten cannot be divided so and ends in mid-cycle.
        steps = max(job.steps, 10)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, job.lr, total_steps=steps, pct_start=0.2)
        self.tally = _Tally(job.samples, job.device)
        self.shifts = job.label_shifts(seed)
        self.accuracy = math.nan
        self.steps_left = job.steps
        self.loader = make_loader(job, recipe, seed)

    def evaluate(self) -> float:
        self.accuracy = self.job.held_out.accuracy(self.model, self.job.device)
        return self.accuracy

    def step(self, batch: Any) -> None:
        target = None
        if self.shifts is not None:
            target = (batch.target + self.shifts[batch.ids]) % self.job.classes
        loss = self.loader.cross_entropy(self.model(batch.data), batch, target=target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.tally.add(batch.ids, batch.weight, loss)

    def epoch(self, number: int, on_progress: Callable[[Progress], None]) -> EpochResult:
        limit = min(self.job.steps_per_epoch, self.steps_left)
        self.tally.begin_epoch()
        self.loader.set_epoch(number)
        before = self.loader.stats()
        steps, waited, shown = 0, 0.0, 0.0
        started = time.perf_counter()
        batches = iter(self.loader)
        while steps < limit:
            asked = time.perf_counter()
            batch = next(batches, None)
            now = time.perf_counter()
            waited += now - asked
            if batch is None:
                break
            self.step(batch)
            del batch  # its memory goes back before the next one is asked for
            steps += 1
            if now - shown > _SHOW_EVERY_S:
                shown = now
                on_progress(self._progress(number, steps, limit, waited, now - started, before))
        del batches
        loss = self.tally.loss()  # waits for the device, so that its work is inside the time measured
        seconds = time.perf_counter() - started
        self.steps_left -= steps
        after = self.loader.stats()
        coverage, ever = self.tally.coverage()
        return EpochResult(
            epoch=number,
            steps=steps,
            samples=self.tally.delivered,
            accuracy=math.nan,
            loss=loss,
            fetched_samples=_delta(before, after, "fetched_samples_total"),
            fetched_bytes=_delta(before, after, "fetched_bytes_total"),
            hit_ratio=_hits(before, after),
            coverage=coverage,
            coverage_ever=ever,
            ess=self.tally.ess(),
            stall_share=waited / seconds,
            seconds=seconds,
        )

    def wrong_among_most_used(self) -> float | None:
        if self.shifts is None:
            return None
        most = list(self.loader.epoch_report()["most_used"])
        return float((self.shifts[most] != 0).double().mean())

    def _progress(
        self, number: int, steps: int, limit: int, waited: float, seconds: float, before: dict[str, float]
    ) -> Progress:
        coverage, ever = self.tally.coverage()
        seconds = max(seconds, 1e-9)
        return Progress(
            recipe=self.recipe.label,
            seed=self.seed,
            epoch=number,
            epochs=self.job.epochs,
            step=steps,
            steps=limit,
            hit_ratio=_hits(before, self.loader.stats()),
            coverage=coverage,
            coverage_ever=ever,
            stall_share=waited / seconds,
            samples_per_s=self.tally.delivered / seconds,
            accuracy=self.accuracy,
        )


def _delta(before: dict[str, float], after: dict[str, float], name: str) -> int:
    return int(after[name] - before[name])


def _hits(before: dict[str, float], after: dict[str, float]) -> float:
    requests = after["requests_total"] - before["requests_total"]
    return (after["hits_total"] - before["hits_total"]) / requests if requests else 0.0


def _summary(recipe: Recipe, seed: int, epochs: list[EpochResult], stats: dict[str, float]) -> RunResult:
    seconds = sum(e.seconds for e in epochs)
    samples = sum(e.samples for e in epochs)
    return RunResult(
        recipe=recipe.label,
        seed=seed,
        steps=sum(e.steps for e in epochs),
        samples=samples,
        accuracy=epochs[-1].accuracy,
        fetched_samples=int(stats["fetched_samples_total"]),
        fetched_bytes=int(stats["fetched_bytes_total"]),
        hit_ratio=stats["hits_total"] / max(stats["requests_total"], 1),
        hit_ratio_last=epochs[-1].hit_ratio,
        coverage=sum(e.coverage for e in epochs) / len(epochs),
        coverage_ever=epochs[-1].coverage_ever,
        ess=sum(e.ess for e in epochs) / len(epochs),
        stall_share=sum(e.stall_share * e.seconds for e in epochs) / seconds,
        samples_per_s=samples / seconds,
        seconds=seconds,
        epochs=epochs,
    )

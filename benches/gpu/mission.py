"""The whole of it in one training run: the hook scores a ResNet-18's samples, the scores choose what is drawn and what the
cache keeps, and the batches come out of page-locked slots by asynchronous copies. What of the step's time that costs,
beside the same step on data that stays on the device and behind a tuned DataLoader (whole batches by index, workers,
pinned memory).

The three take turns in rounds. `stall` is the time between two steps on the training's stream, in which it waits for the
next batch or for the host. Times never make this fail; errors are recorded. ``--device cpu --quick`` tries the program
itself and measures nothing.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import figures
import numpy as np
import torch
from common import Report, Span, Stopwatch, arguments, quotient, synchronize, times_of, watched
from hook import endless, pixels_step

import lossfeed as lf

#: Kernels of one stream that follow each other this closely are one stretch of work.
LAUNCH_GAP_US = 10.0
Loss = Callable[[torch.Tensor], torch.Tensor]


def resident(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], batch_size: int, device: torch.device) -> Iterator[tuple[torch.Tensor, Loss]]:
    """A few batches that stay on the device, again and again."""
    held = [(torch.from_numpy(a).to(device), torch.from_numpy(b).to(device)) for a, b in zip(x[: 4 * batch_size].reshape(4, batch_size, *x.shape[1:]), y[: 4 * batch_size].reshape(4, -1), strict=True)]
    return ((pixels, lambda z, target=target: lf.cross_entropy(z, target)) for pixels, target in itertools.cycle(held))


def fed(loader: lf.Loader, given: list[int]) -> Iterator[tuple[torch.Tensor, Loss]]:
    """Batches of ours, with the hook as their loss; the lengths of those that were given out."""
    for batch in endless(loader):
        given.append(len(batch))
        yield batch.data, lambda z, batch=batch: loader.cross_entropy(z, batch)


def tuned(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], batch_size: int, device: torch.device, workers: int) -> Iterator[tuple[torch.Tensor, Loss]]:
    """Batches of torch's DataLoader, which indexes whole ones."""
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), batch_size, drop_last=True)
    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "prefetch_factor": 4} if workers else {}
    batches = torch.utils.data.DataLoader(dataset, batch_size=None, sampler=sampler, pin_memory=device.type == "cuda", **more)
    for pixels, target in endless(batches):
        there = target.to(device, non_blocking=True)
        yield pixels.to(device, non_blocking=True), lambda z, there=there: lf.cross_entropy(z, there)


def overlapped(spans: list[Span]) -> dict[str, float | None]:
    """How much of the copies' time to the device the training's kernels were at work, and how much of the whole time."""
    copies, work = [], []
    for span in spans:
        if span.name.startswith("Memcpy HtoD") or "lossfeed_gather" in span.name:
            copies.append(span)
        elif not span.launch and not span.name.startswith(("Memcpy", "Memset")):
            if work and span.start_us - work[-1][1] <= LAUNCH_GAP_US:
                work[-1][1] = max(work[-1][1], span.end_us)
            else:
                work.append([span.start_us, span.end_us])
    hidden = sum(max(0.0, min(c.end_us, end) - max(c.start_us, start)) for c in copies for start, end in work)
    length = work[-1][1] - work[0][0] if work else 0.0
    return {
        "overlap": quotient(hidden, sum(c.end_us - c.start_us for c in copies)),
        "busy": quotient(sum(end - start for start, end in work), length),
        "copy_us": sum(c.end_us - c.start_us for c in copies),
    }


def round_of(report: Report, source: Iterator[tuple[torch.Tensor, Loss]], step: Callable[[torch.Tensor, Loss], None], steps: int) -> dict[str, float]:
    """A step's time, by the clock and between events, and what of it nothing was done in."""
    watch, waits = Stopwatch(report.device), Stopwatch(report.device)
    begun = 0.0
    # What lay ready before the round is used up first.
    for number in range(-steps // 4, steps):
        if number == 0:
            synchronize(report.device)
            begun = time.perf_counter()
        before = watch.mark()
        pixels, loss_of = next(source)
        ready = watch.mark()
        step(pixels, loss_of)
        if number >= 0:
            waits.spans.append((before, ready))
            watch.spans.append((before, watch.mark()))
    synchronize(report.device)
    return {
        "step_us": 1e6 * (time.perf_counter() - begun) / steps,
        "stall": sum(waits.us()) / sum(watch.us()),
        "between_events_us": times_of(watch.us()).median,
    }


def mission(report: Report) -> None:
    """Rounds, and what is known after each."""
    device, quick = report.device, report.quick
    batch_size, samples, side, rounds, steps = (8, 64, 8, 1, 4) if quick else (256, 51_200, 32, 3, 100)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (samples, side, side, 3), dtype=np.uint8), rng.integers(0, 10, samples)
    step = pixels_step(report)
    loader = lf.Loader(
        (x, y), batch_size, sampler="cost-aware", cache="50%", seed=0, device=str(device), drop_last=True, stats=False, framework="torch"
    )
    given: list[int] = []
    sources = {"resident": resident(x, y, batch_size, device), "lossfeed": fed(loader, given)}
    for workers in (0,) if quick else (4, 8):
        sources[f"DataLoader, {workers} workers"] = tuned(x, y, batch_size, device, workers)
    # The first epoch is cold: it fills the cache, and every sample gets a score.
    for pixels, loss_of in itertools.islice(sources["lossfeed"], len(loader)):
        step(pixels, loss_of)
    seen = overlapped(watched(lambda: [step(*next(sources["lossfeed"])) for _ in range(4 if quick else 10)], device))
    report.figure("overlap of copies with the training's kernels", seen["overlap"], "of the copies' time", least=0.98, n=10, predicted=0.99)
    report.figure("training's kernels at work", seen["busy"], "of the time", n=10)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
    for number in range(rounds):
        for name, source in sources.items():
            row = report.row({"source": name, "round": number}, lambda source=source: round_of(report, source, step, steps))
            if row is not None and "step_us" in row:
                rows[name].append(row)
        tell(report, rows, steps)
        loader.state_dict()  # waits for the scores under way
        stats = loader.stats()
        report.figure("scores that came home", stats["scores_total"] / sum(given), "of the samples", least=0.99, n=sum(given), predicted=1.0)
        report.figure("hits", stats["hit_ratio"], "of the samples", n=int(stats["requests_total"]))
        report.data["loader"] = {"copy_path": loader.copy_path, "copy_paths": loader.copy_paths(), "stats": stats, "gpu": seen}
    loader.close()


def tell(report: Report, rows: dict[str, list[dict[str, Any]]], steps: int) -> None:
    """The figures of the rounds so far."""
    n = len(rows["lossfeed"])
    us = {name: times_of([row["step_us"] for row in found]) for name, found in rows.items() if found}
    if "lossfeed" not in us:
        return
    ours, alone = us["lossfeed"], us.get("resident")
    score_us = figures.SCORE_STAGES_US["with ranks and mail"]
    others = {name: t for name, t in us.items() if name.startswith("DataLoader")}
    stall = times_of([row["stall"] for row in rows["lossfeed"]])
    report.figure("stall", stall.median, "of the step", most=0.01, n=n * steps, spread=stall.spread, predicted=0.002)
    report.figure("step", ours.median, "µs", n=n * steps, spread=ours.spread)
    if alone is not None:
        report.figure("step over the same step on resident data", ours.median / alone.median, "times", most=1.02, n=n, spread=alone.spread, predicted=1 + score_us / alone.median)
    if others:
        best = min(others, key=lambda name: others[name].median)
        report.figure("step behind the best tuned DataLoader, over ours", others[best].median / ours.median, "times", least=1.0, n=n, spread=others[best].spread)
        report.figure("stall behind the best tuned DataLoader", times_of([row["stall"] for row in rows[best]]).median, "of the step", n=n * steps)


def main() -> int:
    """Runs it; always 0, unless the program itself cannot start."""
    report = Report("mission", arguments(__doc__).parse_args())
    report.section("mission", lambda: mission(report))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

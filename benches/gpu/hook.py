"""The hook in a training loop: what it adds to a step, its host time, and whether scores arrive from a replayed graph.

Batches come from a loader over generated CIFAR-shaped images, so that every variant pays for the loader alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import figures
import numpy as np
import torch
import torch.nn.functional as F
from common import Report, Stopwatch, host_us, launches, medians_us, quotient, synchronize, times_of
from resnet import ResNet18

import lossfeed as lf


def make_loader(report: Report, batch_size: int, samples: int, classes: int = 10) -> lf.Loader:
    """A loader of random (32, 32, 3) uint8 images on the device."""
    rng = np.random.default_rng(0)
    side = 8 if report.quick else 32
    images = rng.integers(0, 256, (samples, side, side, 3), dtype=np.uint8)
    data = lf.open((images, rng.integers(0, classes, samples)))
    return lf.Loader(data, batch_size=batch_size, shuffle=True, drop_last=True, device=str(report.device), seed=0, stats=False, framework="torch")


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from batches


def pixels_step(report: Report, width: int = 64) -> Callable[[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]], None]:
    """A whole training step of ResNet-18 in bfloat16 on a batch of pixels, with the loss that is given."""
    torch.manual_seed(0)
    device = report.device
    model = ResNet18(width=4 if report.quick else width).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(pixels: torch.Tensor, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        x = pixels.permute(0, 3, 1, 2).to(dtype=torch.bfloat16, memory_format=torch.channels_last) / 255
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def step_times(report: Report) -> dict[str, Any]:
    """Time of a ResNet-18 step with F.cross_entropy, with loader.score beside it, and with loader.cross_entropy.

    The three take turns batch by batch on one model. On the GPU a step is the time between two events on its stream,
    which includes waiting for the host: what the hook costs there is in it.
    """
    device, quick = report.device, report.quick
    batch_size, rounds = (8, 3) if quick else (256, 100)
    step = pixels_step(report)
    loader = make_loader(report, batch_size, batch_size * 8 if quick else 50_000)

    def scored(z: torch.Tensor, batch: Any) -> torch.Tensor:
        loader.score(z, batch)
        return F.cross_entropy(z, batch.target)

    variants: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
        "F.cross_entropy": lambda z, batch: F.cross_entropy(z, batch.target),
        "+ loader.score": scored,
        "loader.cross_entropy": loader.cross_entropy,
    }
    batches = endless(loader)

    def whole(name: str) -> None:
        batch = next(batches)
        step(batch.data, lambda z: variants[name](z, batch))

    order = list(variants)
    for name in order * (1 if quick else 10):
        whole(name)
    synchronize(device)
    watches = {name: Stopwatch(device) for name in order}
    for k in range(rounds):
        # Another one goes first every time.
        for name in order[k % 3 :] + order[: k % 3]:
            watches[name].time(lambda name=name: whole(name))
    synchronize(device)
    times = {name: times_of(watch.us()) for name, watch in watches.items()}
    loader.state_dict()  # waits for the scores under way
    stats = loader.stats()
    loader.close()
    base = times["F.cross_entropy"]
    score_us = figures.SCORE_STAGES_US["with ranks and mail"]
    # Noise of the comparison itself is a few thousandths.
    for name, limit, more_us in (("+ loader.score", 0.005, score_us), ("loader.cross_entropy", 0.005, 0.0)):
        slower, spread = times[name].median / base.median - 1, times[name].spread
        report.figure(f"ResNet-18 step, {name}, slower by", slower, "of it", most=limit, n=rounds, spread=spread, predicted=more_us / base.median)
    return {
        "batch_size": batch_size,
        "rounds": rounds,
        "step_us": {name: t.median for name, t in times.items()},
        "scores_total": stats.get("scores_total"),
        "scores_dropped_total": stats.get("scores_dropped_total"),
    }


def host_times(report: Report) -> dict[str, Any]:
    """Host time of a call in µs at (256, 10), and of the calls it is compared with."""
    device, calls = report.device, 20 if report.quick else 400
    rows = 8 if report.quick else 256
    loader = make_loader(report, rows, rows * 16)
    batches = endless(loader)
    z, y = torch.randn(rows, 10, device=device), next(batches).target
    leaf = z.clone().requires_grad_()
    found = {
        "F.cross_entropy": host_us(lambda: F.cross_entropy(z, y), device, calls),
        "lf.cross_entropy": host_us(lambda: lf.cross_entropy(z, y), device, calls),
        "lf.sample_scores": host_us(lambda: lf.sample_scores(z, y), device, calls),
    }
    # A batch is scored once, so each call needs a batch of its own.
    for name, hook, limit in (("loader.score", lambda b: loader.score(z, b), 10), ("loader.cross_entropy", lambda b: loader.cross_entropy(leaf, b), 20)):
        t = found[name] = host_us(hook, device, calls, lambda: next(batches))
        report.figure(f"{name}, host", t.median, "µs", most=limit, n=calls, spread=t.spread, predicted=figures.HOST_US[name])
    loader.close()
    return {"rows": rows, "classes": 10, "host_us": {name: t.median for name, t in found.items()}}


def graph(report: Report) -> dict[str, Any]:
    """Loss and gradient inside a CUDA graph: launches from Python per replay, equal results, and the time of a replay
    against eager torch's."""
    if report.device.type != "cuda":
        report.figure("launches from Python per replay", None, most=0)
        return {"skipped": "CUDA graphs need a GPU"}
    found = {}
    for rows, classes in ((256, 10), (256, 1000), (1024, 1000)):
        captured: dict[str, Callable[[], Any]] = {}
        for name, loss in (("lossfeed", lf.cross_entropy), ("eager", F.cross_entropy)):
            z = torch.randn(rows, classes, device=report.device, requires_grad=True)
            y = torch.randint(classes, (rows,), device=report.device)

            def body(z: torch.Tensor = z, y: torch.Tensor = y, loss: Any = loss) -> torch.Tensor:
                z.grad = None
                value = loss(z, y)
                value.backward()
                return value

            made, outputs = capture(body)
            # The graph writes to its tensors at every replay: they stay as long as it does.
            captured[name] = lambda made=made, kept=(z, y, outputs): made.replay()
        us = medians_us(captured, report.device, 2 if report.quick else 20, inner=2 if report.quick else 50)
        replay = launches(captured["lossfeed"], report.device)
        found[f"{rows}x{classes}"] = {"us": us, "launches": replay}
        report.figure(f"replayed loss and gradient {rows}x{classes}, eager over ours", quotient(us["eager"], us["lossfeed"]), "times", least=1.0, n=20)
        report.figure(f"launches from Python per replay {rows}x{classes}", replay["host_launches"], most=0)
    return found


def capture(body: Callable[[], Any], warmup: int = 3) -> tuple[torch.cuda.CUDAGraph, Any]:
    """`body` captured, after a warm-up on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            body()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        outputs = body()
    return captured, outputs

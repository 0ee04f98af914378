"""The hook in a training loop: what it adds to a step, its host time, and whether scores arrive from a replayed graph.

Batches come from a loader over generated CIFAR-shaped images, so that every variant pays for the loader alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import Report, failed, host_us, launches, medians_us, synchronize
from resnet import ResNet18

import lossfeed as lf


def make_loader(report: Report, batch_size: int, samples: int, classes: int = 10) -> lf.Loader:
    """A loader of random (32, 32, 3) uint8 images on the device."""
    rng = np.random.default_rng(0)
    side = 8 if report.quick else 32
    images = rng.integers(0, 256, (samples, side, side, 3), dtype=np.uint8)
    data = lf.open((images, rng.integers(0, classes, samples)))
    return lf.Loader(data, batch_size=batch_size, shuffle=True, drop_last=True, device=str(report.device), seed=0, stats=False, framework="torch")


def endless(loader: lf.Loader) -> Iterator[Any]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


def step_times(report: Report) -> dict[str, Any]:
    """Time of a ResNet-18 step with F.cross_entropy, with loader.score beside it, and with loader.cross_entropy.

    The three take turns batch by batch on one model. On the GPU a step is the time between two events on its stream,
    which includes waiting for the host: what the hook costs there is in it.
    """
    device, quick = report.device, report.quick
    batch_size, rounds = (8, 3) if quick else (256, 200)
    torch.manual_seed(0)
    model = ResNet18(width=4 if quick else 64).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = make_loader(report, batch_size, batch_size * 8 if quick else 50_000)

    def plain(z: torch.Tensor, batch: Any) -> torch.Tensor:
        return F.cross_entropy(z, batch.target)

    def scored(z: torch.Tensor, batch: Any) -> torch.Tensor:
        loader.score(z, batch)
        return F.cross_entropy(z, batch.target)

    def ours(z: torch.Tensor, batch: Any) -> torch.Tensor:
        return loader.cross_entropy(z, batch)

    variants: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
        "F.cross_entropy": plain,
        "+ loader.score": scored,
        "loader.cross_entropy": ours,
    }
    batches = endless(loader)

    def step(loss_of: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
        batch = next(batches)
        x = batch.data.permute(0, 3, 1, 2).to(dtype=torch.bfloat16, memory_format=torch.channels_last) / 255
        with torch.autocast(device.type, dtype=torch.bfloat16):
            z = model(x)
            loss = loss_of(z, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for loss_of in list(variants.values()) * (1 if quick else 10):
        step(loss_of)
    synchronize(device)
    spans: dict[str, list[Any]] = {name: [] for name in variants}
    order = list(variants)
    for k in range(rounds):
        # Another one goes first every time.
        for name in order[k % 3 :] + order[: k % 3]:
            if device.type == "cuda":
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                step(variants[name])
                end.record()
                spans[name].append((start, end))
            else:
                begun = time.perf_counter()
                step(variants[name])
                spans[name].append(time.perf_counter() - begun)
    synchronize(device)
    us = {
        name: statistics.median([1e3 * s[0].elapsed_time(s[1]) if isinstance(s, tuple) else 1e6 * s for s in found])
        for name, found in spans.items()
    }
    synchronize(device)
    time.sleep(0.2)  # the last scores are on their way
    stats = loader.stats()
    loader.close()
    base = us["F.cross_entropy"]
    return {
        "batch_size": batch_size,
        "rounds": rounds,
        "step_us": us,
        "slowdown_fraction": {name: value / base - 1 for name, value in us.items()},
        "scores_total": stats.get("scores_total"),
        "scores_dropped_total": stats.get("scores_dropped_total"),
    }


def host_times(report: Report) -> dict[str, Any]:
    """Host time of a call in µs at (256, 10), and of the calls it is compared with."""
    device, calls = report.device, 20 if report.quick else 400
    rows = 8 if report.quick else 256
    loader = make_loader(report, rows, rows * 16)
    batches = endless(loader)
    z = torch.randn(rows, 10, device=device)
    held = next(batches)
    y = held.target
    found: dict[str, Any] = {
        "F.cross_entropy": host_us(lambda: F.cross_entropy(z, y), device, calls),
        "lf.cross_entropy": host_us(lambda: lf.cross_entropy(z, y), device, calls),
        "lf.sample_scores": host_us(lambda: lf.sample_scores(z, y), device, calls),
    }
    # A batch is scored once, so each call needs a batch of its own; fetching it is outside the clock.
    for name, hook in (
        ("loader.score", lambda b: loader.score(z, b)),
        ("loader.cross_entropy", lambda b: loader.cross_entropy(z, b)),
    ):
        times = []
        for k in range(calls):
            batch = next(batches)
            if k % 8 == 0:
                synchronize(device)
            begun = time.perf_counter_ns()
            hook(batch)
            times.append(time.perf_counter_ns() - begun)
        found[name] = statistics.median(times[5:]) / 1e3
    loader.close()
    return {"rows": rows, "classes": 10, "host_us": found}


def graph(report: Report) -> dict[str, Any]:
    """Forward, backward and scores inside a CUDA graph: launches from Python per replay, equal results, scores that
    arrive."""
    device = report.device
    if device.type != "cuda":
        return {"skipped": "CUDA graphs need a GPU"}
    rows, classes = 256, 1000
    z = torch.randn(rows, classes, device=device, requires_grad=True)
    y = torch.randint(classes, (rows,), device=device)

    def body() -> tuple[torch.Tensor, Any]:
        z.grad = None
        loss = lf.cross_entropy(z, y)
        loss.backward()
        return loss, lf.sample_scores(z, y)

    captured, outputs = _capture(body)
    with torch.no_grad():
        z.copy_(torch.randn(rows, classes, device=device))
        y.copy_(torch.randint(classes, (rows,), device=device))
    captured.replay()
    synchronize(device)
    twin = z.detach().double().requires_grad_()
    expected = F.cross_entropy(twin, y)
    expected.backward()
    replay = launches(captured.replay, device)
    found = {
        "loss_equals_torch": bool((outputs[0].double() - expected).abs() < 1e-4),
        "gradient_equals_torch": bool(torch.allclose(z.grad.double(), twin.grad, atol=1e-6)),
        "scores_follow": bool(torch.allclose(outputs[1].loss.double(), F.cross_entropy(twin, y, reduction="none"), atol=1e-4)),
        "python_launches_per_replay": replay["host_launches"],
        "gpu_us_per_replay": replay["gpu_us"],
    }
    return found | {"replays": [_replay_times(report, *shape) for shape in ((256, 10), (256, 1000), (1024, 1000))], "loader": _graph_loader(report)}


def _replay_times(report: Report, rows: int, classes: int) -> dict[str, Any]:
    """Median time of replaying loss and gradient, ours and eager torch's; replays follow each other, so the host is not
    in it."""
    captured: dict[str, Callable[[], Any]] = {}
    for name, loss in (("lossfeed", lf.cross_entropy), ("eager", F.cross_entropy)):
        z = torch.randn(rows, classes, device=report.device, requires_grad=True)
        y = torch.randint(classes, (rows,), device=report.device)

        def body(z: torch.Tensor = z, y: torch.Tensor = y, loss: Any = loss) -> torch.Tensor:
            z.grad = None
            value = loss(z, y)
            value.backward()
            return value

        graph, outputs = _capture(body)
        # The graph writes to its tensors at every replay: they stay as long as it does.
        captured[name] = lambda graph=graph, kept=(z, y, outputs): graph.replay()
    us = medians_us(captured, report.device, 20, inner=50)
    ratio = us["eager"] / us["lossfeed"] if not any(failed(v) for v in us.values()) else None
    return {"shape": f"{rows}x{classes}", "us": us, "times_lossfeed": ratio}


def _capture(body: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """`body` captured, after a warm-up on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        outputs = body()
    return captured, outputs


def _graph_loader(report: Report) -> dict[str, Any]:
    """``loader.score`` captured with one batch and replayed: scores that arrive and those that are dropped."""
    loader = make_loader(report, 64, 64 * 16)
    try:
        batches = endless(loader)
        z = torch.randn(64, 10, device=report.device)
        held = [next(batches) for _ in range(4)]
        loader.score(z, held[0])
        synchronize(report.device)
        time.sleep(0.2)
        before = loader.stats()
        captured, _ = _capture_once(lambda: loader.score(z, held[1]))
        for _ in range(10):
            captured.replay()
            synchronize(report.device)
        time.sleep(0.3)
        after = loader.stats()
        names = [n for n in after if n.startswith("scores_")]
        return {"replays": 10, "stats": {n: after[n] - before.get(n, 0.0) for n in names}}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
    finally:
        loader.close()


def _capture_once(body: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """`body` captured without a warm-up of its own: a batch can be scored once."""
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        outputs = body()
    return captured, outputs

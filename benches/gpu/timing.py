"""What the GPU path costs, and what is asked of it. Times never make this fail; errors are recorded.

Sections: ``bandwidth`` (what this GPU reads, by its own reductions), ``forward`` (the kernel alone, with the mean, with
ranks, against that), ``backward`` and ``backward-f32`` (loss and gradient against torch, torch.compile, Liger and QuACK,
and the peak of memory), ``small`` (GPU time of ``loader.score`` by stage), ``graph`` (replays), ``host`` (the hook's time
on the CPU), ``step`` (a ResNet-18 step with and without it), ``warm`` (fills the compilers' caches for ``backward``).
``backward-f32`` and ``warm`` run only if they are named. GPU time is CUPTI's, by torch's profiler; what the host adds is
in the times between events beside it. ``--device cpu --quick`` tries the program itself and measures nothing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import figures
import hook
import torch
import torch.nn.functional as F
from common import Report, all_times, arguments, failed, launches, logits, medians_us, number, peak_bytes, quotient, targets
from peers import MAKERS, Loss, losses

import lossfeed as lf

SMALL = ((256, 10), (256, 1000), (1024, 1000))
LARGE = ((16384, 8192), (4096, 32000), (4096, 128256), (8192, 151936))
#: Where a compiler's tens of seconds are spent, and where the peak of memory is worth knowing.
COMPILED = ((4096, 32000), (4096, 128256))
MEMORY = LARGE[-2:]
#: What every peer is asked to take, as a multiple of our time.
ASKED = {"eager": 3.0, "liger": 1.0, "quack": 1.0}


def shapes(report: Report, real: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The shapes, or a tiny one."""
    return ((4, 8192),) if report.quick else real


def rounds(report: Report, usual: int) -> int:
    """Repeats of a case."""
    return 2 if report.quick else usual


def short(dtype: torch.dtype) -> str:
    """float32 and so on."""
    return str(dtype).removeprefix("torch.")


def bandwidth(report: Report) -> dict[str, Any]:
    """Bytes a second that this device reads: the best of several of torch's own reductions over buffers in turn; and
    copies (bytes read and written)."""
    size = 1 << (20 if report.quick else 30)
    buffers = [torch.ones(size // 4, dtype=torch.float32, device=report.device) for _ in range(3)]
    turn = itertools.cycle(buffers)
    cases = {
        "sum of float32": lambda: next(turn).sum(),
        "max of float32": lambda: next(turn).amax(),
        "row sums of bfloat16": lambda: next(turn).view(torch.bfloat16).view(-1, 8192).sum(1),
        "row maxima of bfloat16": lambda: next(turn).view(torch.bfloat16).view(-1, 8192).amax(1),
        "copy": lambda: next(turn).copy_(next(turn)),
    }
    times = all_times(cases, report.device, rounds(report, 30))
    gb_per_s = {n: t if failed(t) else (2 if n == "copy" else 1) * size / t.median / 1e3 for n, t in times.items()}
    best = max((n for n, v in gb_per_s.items() if n != "copy" and not failed(v)), key=lambda n: gb_per_s[n])
    report.figure("read bandwidth", gb_per_s[best], "GB/s", n=times[best].n, spread=times[best].spread)
    report.figure("copy bandwidth", number(gb_per_s["copy"]), "GB/s", n=rounds(report, 30))
    return {"bytes": size, "gb_per_s": gb_per_s}


def forward(report: Report) -> None:
    """The forward pass of every large shape and type, against the read bandwidth."""
    read = figures.known("read bandwidth")
    for dtype in (torch.bfloat16, torch.float32):
        for rows, classes in shapes(report, LARGE):
            report.row({"shape": f"{rows}x{classes}", "dtype": short(dtype)}, lambda r=rows, c=classes, d=dtype: forward_row(report, r, c, d, read))


def forward_row(report: Report, rows: int, classes: int, dtype: torch.dtype, read: float | None) -> dict[str, Any]:
    """Losses alone, the mean, and scores with ranks, of two inputs in turn."""
    turn = itertools.cycle([logits(rows, classes, dtype, report.device, seed) for seed in (0, 1)])
    y = targets(rows, classes, report.device)
    cases: dict[str, Callable[[], Any]] = {
        "kernel alone": lambda: lf.cross_entropy(next(turn), y, reduction="none"),
        "with the mean": lambda: lf.cross_entropy(next(turn), y),
        "with ranks": lambda: lf.sample_scores(next(turn), y),
    }
    calls, size = rounds(report, 20), rows * classes * dtype.itemsize
    sms = report.data["machine"].get("multiprocessors")
    model_us = figures.forward_us(rows, classes, dtype.itemsize, read, sms) if read and sms else None
    seen = {name: launches(case, report.device, calls) for name, case in cases.items()}
    for name, got in seen.items():
        us = sum(v for k, v in got["us_by_kernel"].items() if "lossfeed" in k) or None if name == "kernel alone" else got["gpu_us"]
        limit = (0.95 if classes >= 32_000 else 0.93) if name == "kernel alone" else None
        more_us = figures.ranks_us(rows) if name == "with ranks" else 0.0
        predicted = None if model_us is None else quotient(quotient(size / 1e3, read), model_us + more_us)
        what = f"forward {rows}x{classes} {short(dtype)}, {name}"
        report.figure(what, quotient(quotient(size / 1e3, us), read), "of read bandwidth", least=limit, n=calls, spread=got["spread"], predicted=predicted)
    return {"bytes": size, "launches": seen}


def backward(report: Report, dtype: torch.dtype) -> None:
    """Loss and gradient of every large shape, by everybody; what has to be compiled last."""
    candidates, missing = losses(report.device, [name for name in MAKERS if name != "compiled"])
    report.data["left_out"] = missing
    for rows, classes in shapes(report, LARGE):
        report.row({"shape": f"{rows}x{classes}", "dtype": short(dtype)}, lambda r=rows, c=classes: backward_row(report, r, c, dtype, candidates))
    if dtype != torch.bfloat16 or report.left() < 5:
        return
    two, late = losses(report.device, ("lossfeed", "compiled"))
    missing |= late
    for rows, classes in shapes(report, COMPILED) if "compiled" in two else ():
        report.row({"shape": f"{rows}x{classes}", "dtype": short(dtype)}, lambda r=rows, c=classes: backward_row(report, r, c, dtype, two))


def backward_row(report: Report, rows: int, classes: int, dtype: torch.dtype, candidates: dict[str, Loss]) -> dict[str, Any]:
    """Everybody in turn, each on a leaf of its own: some write the gradient over it. It is restored before every call,
    by a copy that is not timed."""
    given, y = logits(rows, classes, dtype, report.device), targets(rows, classes, report.device)
    leaves = {name: given.clone().requires_grad_() for name in candidates}

    def restore(name: str) -> None:
        leaves[name].grad = None
        with torch.no_grad():
            leaves[name].copy_(given)

    def once(name: str) -> None:
        candidates[name](leaves[name], y).backward()

    def fresh(name: str) -> None:
        restore(name)
        once(name)
        leaves[name].grad = None

    cases = {name: lambda name=name: once(name) for name in candidates}
    times = all_times(cases, report.device, rounds(report, 10), before=restore)
    alive = [name for name, t in times.items() if not failed(t)]
    seen = {n: launches(cases[n], report.device, rounds(report, 10), before=lambda n=n: restore(n)) for n in alive}
    restore("lossfeed")
    us = {n: seen[n]["gpu_us"] or times[n].median for n in alive}
    what = f"loss and gradient {rows}x{classes} {short(dtype)}"
    read, copy, sms = figures.known("read bandwidth"), figures.known("copy bandwidth"), report.data["machine"].get("multiprocessors")
    if "compiled" not in candidates and "lossfeed" in us:
        model_us = figures.forward_us(rows, classes, dtype.itemsize, read, sms) + figures.backward_us(rows, classes, dtype.itemsize, copy) if read and copy and sms else None
        report.figure(f"{what}, ours", us["lossfeed"], "µs", n=10, spread=times["lossfeed"].spread, predicted=model_us)
    for name in us:
        if name != "lossfeed":
            asked = ASKED.get(name) if dtype == torch.bfloat16 else None
            ratio = quotient(us[name], us.get("lossfeed"))
            report.figure(f"{what}, {name} over ours", ratio, "times", least=asked, n=10, spread=times[name].spread, predicted=figures.PEERS.get(name))
    row: dict[str, Any] = {"between_events_us": {n: t if failed(t) else t.median for n, t in times.items()}, "launches": seen}
    if (rows, classes) in shapes(report, MEMORY) and "compiled" not in candidates:
        peaks = row["peak_bytes"] = {n: peak_bytes(lambda n=n: fresh(n), report.device) for n in alive}
        report.figure(f"peak of memory {rows}x{classes} {short(dtype)}, ours over eager's", quotient(peaks.get("lossfeed"), peaks.get("eager")), most=0.5, predicted=1 / 3)
    return row


def small(report: Report) -> None:
    """GPU time where launches are all that matters."""
    for rows, classes in ((4, 10),) if report.quick else SMALL:
        report.row({"shape": f"{rows}x{classes}"}, lambda r=rows, c=classes: small_row(report, r, c))


def small_row(report: Report, rows: int, classes: int) -> dict[str, Any]:
    """``loader.score`` by stage, and loss and gradient."""
    z, y = torch.randn(rows, classes, device=report.device), targets(rows, classes, report.device)
    leaf = z.clone().requires_grad_()
    loader = hook.make_loader(report, rows, rows, classes)
    held = next(iter(loader))

    def both(loss: Loss) -> Callable[[], None]:
        def run() -> None:
            leaf.grad = None
            loss(leaf, y).backward()

        return run

    cases: dict[str, Callable[[], Any]] = {
        "loss alone": lambda: lf.cross_entropy(z, y, reduction="none"),
        "with ranks": lambda: lf.sample_scores(z, y),
        # The same batch again and again: the work is that of a new one, its scores count once.
        "with ranks and mail": lambda: loader.score(z, held),
        "lf.cross_entropy + backward": both(lf.cross_entropy),
        "F.cross_entropy + backward": both(F.cross_entropy),
    }
    # No more than the mailbox has slots: a batch that finds none is not mailed.
    seen = {name: launches(case, report.device, 12) for name, case in cases.items()}
    loader.close()
    for name, predicted in figures.SCORE_STAGES_US.items():
        most, got = 8.0 if name == "with ranks and mail" else None, seen[name]
        report.figure(f"score {rows}x{classes}, {name}", got["gpu_us"], "µs", most=most, n=12, spread=got["spread"], predicted=predicted)
    # Above 512 rows the ranks are a launch of their own.
    report.figure(f"loader.score {rows}x{classes}, kernels", seen["with ranks and mail"]["kernels"], most=2 if rows > 512 else 1)
    report.figure(f"lf.cross_entropy + backward {rows}x{classes}, kernels", seen["lf.cross_entropy + backward"]["kernels"], most=3)
    return {"cases": seen}


def warm(report: Report) -> None:
    """One step of whatever is compiled, at the shapes that will be timed: the caches on disk keep what it made."""
    candidates, report.data["left_out"] = losses(report.device, ("compiled", "liger", "quack"))
    for rows, classes in shapes(report, COMPILED):
        z = logits(rows, classes, torch.bfloat16, report.device).requires_grad_()
        for name in candidates:
            report.row({"peer": name, "shape": f"{rows}x{classes}"}, lambda name=name, z=z: {"us": medians_us({name: lambda: candidates[name](z, targets(*z.shape, z.device)).backward()}, report.device, 1, warmup=0)})


def main() -> int:
    """Runs the sections; always 0, unless the program itself cannot start."""
    report = Report("timing", arguments(__doc__).parse_args())
    report.section("warm", lambda: warm(report), when_named=True)
    report.section("bandwidth", lambda: bandwidth(report))
    report.section("forward", lambda: forward(report))
    report.section("backward", lambda: backward(report, torch.bfloat16))
    report.section("small", lambda: small(report))
    report.section("graph", lambda: hook.graph(report))
    report.section("host", lambda: hook.host_times(report))
    report.section("step", lambda: hook.step_times(report))
    report.section("backward-f32", lambda: backward(report, torch.float32), when_named=True)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

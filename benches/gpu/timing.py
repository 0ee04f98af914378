"""What the GPU path costs, and what is asked of it. Times never make this fail; errors are recorded.

Sections: ``bandwidth`` (what this GPU reads, by its own reductions), ``forward`` (the kernel alone, and scores with
ranks, against that), ``backward`` (loss and gradient against torch, torch.compile, Liger and QuACK), ``small``
(launches and GPU time), ``host`` (the hook's time on the CPU), ``step`` (a ResNet-18 step with and without it),
``graph`` (replays), ``memory`` (peak of loss and gradient). Every figure carries its unit in its name. ``--device cpu
--quick`` tries the program itself and measures nothing.
"""

from __future__ import annotations

import sys
from typing import Any

import hook
import torch
from common import Report, arguments, failed, launches, logits, medians_us, peak_bytes, rows_of, say, targets
from peers import Loss, losses, step

import lossfeed as lf

#: (rows, classes) that every table has: an image batch, ImageNet's classes, language models.
SHAPES = ((256, 10), (256, 1000), (1024, 1000), (16384, 8192), (4096, 32000), (4096, 128256), (8192, 151936))
#: From so many classes on, memory is asked to be the limit; below, launches are.
LARGE_CLASSES = 8192
SMALL = tuple(shape for shape in SHAPES if shape[1] < LARGE_CLASSES)
#: Where the peak of memory is worth knowing.
MEMORY = SHAPES[-2:]
DTYPES = (torch.bfloat16, torch.float32)


def shapes(report: Report, real: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The shapes, or tiny ones: one small, one large."""
    return ((4, 10), (4, 8192)) if report.quick else real


def rounds(report: Report, usual: int) -> int:
    """Repeats of a case."""
    return 2 if report.quick else usual


def about(rows: int, classes: int, dtype: torch.dtype) -> dict[str, Any]:
    """What a row of a table is about."""
    return {"shape": f"{rows}x{classes}", "dtype": str(dtype).removeprefix("torch."), "large": classes >= LARGE_CLASSES}


def bandwidth(report: Report) -> dict[str, Any]:
    """Bytes a second that this device reads: the best of several of torch's own reductions, and of a copy."""
    size = 1 << (20 if report.quick else 31)
    x = torch.ones(size // 4, dtype=torch.float32, device=report.device)
    half = x.view(torch.bfloat16).view(-1, 8192)
    out = torch.empty_like(x)
    us = medians_us(
        {
            "sum of float32": lambda: x.sum(),
            "max of float32": lambda: x.amax(),
            "row sums of bfloat16": lambda: half.sum(1),
            "copy": lambda: out.copy_(x),
        },
        report.device,
        rounds(report, 50),
    )
    gb_per_s = {n: v if failed(v) else (2 if n == "copy" else 1) * size / v / 1e3 for n, v in us.items()}
    reads = [v for n, v in gb_per_s.items() if n != "copy" and not failed(v)]
    return {"bytes": size, "gb_per_s": gb_per_s, "read_gb_per_s": max(reads)}


def calls_between(report: Report, rows: int, classes: int) -> int:
    """Calls between two events: short ones many, or the events' own resolution is measured."""
    return 1 if report.quick or rows * classes > 1 << 22 else 20


def forward_row(report: Report, rows: int, classes: int, dtype: torch.dtype, read_gb_per_s: float | None) -> dict[str, Any]:
    """Losses alone and scores with ranks. Shares of the read bandwidth are of GPU time, by the profiler: what the host
    adds between launches is in ``us``."""
    z, y = logits(rows, classes, dtype, report.device), targets(rows, classes, report.device)
    cases = {
        "lf.cross_entropy": lambda: lf.cross_entropy(z, y, reduction="none"),
        "lf.sample_scores": lambda: lf.sample_scores(z, y),
        "F.cross_entropy": lambda: torch.nn.functional.cross_entropy(z, y, reduction="none"),
    }
    us = medians_us(cases, report.device, rounds(report, 20), inner=calls_between(report, rows, classes))
    seen = {name: launches(case, report.device, calls=5) for name, case in cases.items() if not failed(us[name])}
    size = z.numel() * z.element_size()

    def share(busy_us: float | None) -> float | None:
        return size / busy_us / 1e3 / read_gb_per_s if busy_us and read_gb_per_s else None

    by_kernel = seen.get("lf.cross_entropy", {}).get("us_by_kernel") or {}
    kernel_us = sum(v for k, v in by_kernel.items() if "lossfeed_score" in k) or None
    ranked_us = seen.get("lf.sample_scores", {}).get("gpu_us")
    return {
        **about(rows, classes, dtype),
        "us": us,
        "kernel_us": kernel_us,
        "with_ranks_us": ranked_us,
        "read_fraction": share(kernel_us),
        "read_fraction_with_ranks": share(ranked_us),
        "launches": seen,
    }


def forward(report: Report, read_gb_per_s: float | None) -> list[dict[str, Any]]:
    """The forward pass of every shape and type."""
    for rows, classes in shapes(report, SHAPES):
        for dtype in DTYPES:
            report.attempt_row("forward", about(rows, classes, dtype), lambda r=rows, c=classes, d=dtype: forward_row(report, r, c, d, read_gb_per_s))
    found = report.data["sections"]["forward"]
    say(
        [
            (f["shape"], f["dtype"], f["kernel_us"], f["with_ranks_us"], f["us"]["lf.cross_entropy"], f["us"]["F.cross_entropy"], f["read_fraction"], f["read_fraction_with_ranks"])
            for f in rows_of(found)
        ],
        ("forward", "logits", "kernel µs", "with ranks µs", "loss µs", "eager loss µs", "of read bandwidth", "with ranks"),
    )
    return found


def backward_row(report: Report, rows: int, classes: int, dtype: torch.dtype, candidates: dict[str, Loss], missing: dict[str, Any]) -> dict[str, Any]:
    """Loss and gradient, everybody in turn."""
    z = logits(rows, classes, dtype, report.device).requires_grad_()
    y = targets(rows, classes, report.device)
    # Each shape costs torch.compile seconds; the types would cost as many again.
    left_out = {"compiled": {"error": "compared in bfloat16 only"}} if "compiled" in candidates and dtype != torch.bfloat16 else {}
    cases = {n: step(loss, z, y) for n, loss in candidates.items() if n not in left_out}
    us = medians_us(cases, report.device, rounds(report, 15), inner=calls_between(report, rows, classes)) | missing | left_out
    ours = us["lossfeed"]
    ratio = {n: v / ours for n, v in us.items() if not failed(v) and not failed(ours)}
    return {**about(rows, classes, dtype), "us": us, "times_lossfeed": ratio}


def backward(report: Report, candidates: dict[str, Loss], missing: dict[str, Any]) -> list[dict[str, Any]]:
    """Loss and gradient of every shape and type."""
    for rows, classes in shapes(report, SHAPES):
        for dtype in DTYPES:
            report.attempt_row("backward", about(rows, classes, dtype), lambda r=rows, c=classes, d=dtype: backward_row(report, r, c, d, candidates, missing))
    found = report.data["sections"]["backward"]
    names = [*candidates, *missing]
    say([(f["shape"], f["dtype"], *(f["us"].get(n) for n in names)) for f in rows_of(found)], ("forward + backward, µs", "logits", *names))
    return found


def small(report: Report) -> list[dict[str, Any]]:
    """Launches and GPU time where launches are all that matters."""
    for rows, classes in ((4, 10),) if report.quick else SMALL:
        z, y = torch.randn(rows, classes, device=report.device), targets(rows, classes, report.device)
        leaf = z.clone().requires_grad_()
        loader = hook.make_loader(report, rows, rows, classes)
        held = next(iter(loader))
        cases = {
            # The same batch again and again: the work is that of a new one, its scores count once.
            "loader.score": lambda z=z, loader=loader, held=held: loader.score(z, held),
            "lf.sample_scores": lambda z=z, y=y: lf.sample_scores(z, y),
            "lf.cross_entropy": lambda z=z, y=y: lf.cross_entropy(z, y),
            "lf.cross_entropy + backward": step(lf.cross_entropy, leaf, y),
            "F.cross_entropy": lambda z=z, y=y: torch.nn.functional.cross_entropy(z, y),
            "F.cross_entropy + backward": step(torch.nn.functional.cross_entropy, leaf, y),
        }
        report.attempt_row(
            "small", {"shape": f"{rows}x{classes}"}, lambda cases=cases, r=rows, c=classes: {"shape": f"{r}x{c}", "cases": {n: launches(case, report.device) for n, case in cases.items()}}
        )
        loader.close()
    found = report.data["sections"]["small"]
    say(
        [(f["shape"], n, c["kernels"], c["fills_and_copies"], c["gpu_us"]) for f in rows_of(found) for n, c in f["cases"].items()],
        ("shape, float32", "call", "kernels", "fills, copies", "GPU µs"),
    )
    return found


def memory(report: Report, candidates: dict[str, Loss], missing: dict[str, Any]) -> list[dict[str, Any]]:
    """Peak memory of loss and gradient beyond the logits, in bytes."""
    found = []
    for rows, classes in shapes(report, MEMORY):
        z = logits(rows, classes, torch.bfloat16, report.device).requires_grad_()
        y = targets(rows, classes, report.device)
        peaks: dict[str, Any] = dict(missing)
        for name, loss in candidates.items():
            z.grad = None
            try:
                peaks[name] = peak_bytes(_fresh(loss, z, y), report.device)
            except Exception as error:
                peaks[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        found.append({"shape": f"{rows}x{classes}", "dtype": "bfloat16", "logits_bytes": z.numel() * 2, "peak_bytes": peaks})
        del z, y
    names = list(found[0]["peak_bytes"])
    say(
        [(f["shape"], *(_mib(f["peak_bytes"][n]) for n in names)) for f in found],
        ("peak beyond the logits, bf16, MiB", *names),
    )
    return found


def _fresh(loss: Loss, z: torch.Tensor, y: torch.Tensor) -> Any:
    """One step that leaves nothing behind, so that what it allocates is its peak."""
    run = step(loss, z, y)

    def once() -> None:
        run()
        z.grad = None

    return once


def _mib(value: Any) -> Any:
    return float(value) / 2**20 if isinstance(value, int) else value


def asked_for(sections: dict[str, Any]) -> list[tuple[str, str, Any, Any]]:
    """What was asked for, the limit, and what was measured; None where nothing was."""
    asked: list[tuple[str, str, Any, Any]] = []

    def dig(*path: Any) -> Any:
        at: Any = sections
        for key in path:
            if failed(at) or at is None:
                return None
            at = at.get(key) if isinstance(at, dict) else at[key] if isinstance(at, list) and key < len(at) else None
        return None if failed(at) else at

    for f in rows_of(dig("forward")):
        what = f"forward {f['shape']} {f['dtype']}"
        if f["large"]:
            asked.append((f"{what}, kernel alone", "≥ 0.95 of read bandwidth", f["read_fraction"], lambda v: v >= 0.95))
            asked.append((f"{what}, with ranks", "≥ 0.95 of read bandwidth", f["read_fraction_with_ranks"], lambda v: v >= 0.95))
        asked.append((f"{what}, loss", "≤ 2 kernels", dig_launches(f, "lf.cross_entropy"), lambda v: v <= 2))
    for f in rows_of(dig("backward")):
        what = f"loss and gradient {f['shape']} {f['dtype']}"
        for name, least in (("eager", 3.5), ("liger", 1.7), ("quack", 1.0)) if f["large"] and f["dtype"] == "bfloat16" else (("eager", 1.0),):
            asked.append((f"{what} against {name}", f"≥ {least:g} times faster", f["times_lossfeed"].get(name), lambda v, m=least: v >= m))
    for f in rows_of(dig("small")):
        # Above 512 rows the ranks are a launch of their own.
        most = 2 if f["shape"].startswith("1024x") else 1
        case = f["cases"]["loader.score"]
        asked.append((f"{f['shape']} loader.score", f"≤ {most} kernels", case["kernels"], lambda v, m=most: v <= m))
        asked.append((f"{f['shape']} loader.score", "≤ 6 µs on the GPU", case["gpu_us"], lambda v: v <= 6))
        both = f["cases"]["lf.cross_entropy + backward"]["kernels"]
        asked.append((f"{f['shape']} lf.cross_entropy + backward", "≤ 3 kernels", both, lambda v: v <= 3))
    asked.append(("ResNet-18 step, + loader.score", "< 0.005 slower", dig("step", "slowdown_fraction", "+ loader.score"), lambda v: v < 0.005))
    # Noise of the comparison itself is a few thousandths.
    asked.append(
        ("ResNet-18 step, loader.cross_entropy", "not slower (< 0.002)", dig("step", "slowdown_fraction", "loader.cross_entropy"), lambda v: v < 0.002)
    )
    asked.append(("loader.score, host", "≤ 10 µs", dig("host", "host_us", "loader.score"), lambda v: v <= 10))
    asked.append(("loader.cross_entropy, host", "≤ 20 µs", dig("host", "host_us", "loader.cross_entropy"), lambda v: v <= 20))
    asked.append(("launches from Python per replay", "0", dig("graph", "python_launches_per_replay"), lambda v: v == 0))
    for f in rows_of(dig("graph", "replays")):
        times = f["times_lossfeed"]
        asked.append((f"replayed loss and gradient {f['shape']}", "≥ 1 times as fast as eager's", times, lambda v: v >= 1))
    for f in dig("memory") or []:
        peaks = f["peak_bytes"]
        both = [peaks.get(n) for n in ("lossfeed", "eager")]
        ratio = both[0] / both[1] if all(isinstance(b, int) and b for b in both) else None
        asked.append((f"peak memory {f['shape']}", "≤ 0.5 of eager's", ratio, lambda v: v <= 0.5))
    return asked


def dig_launches(row: dict[str, Any], case: str) -> float | None:
    """Kernels that a case of the forward table launched."""
    return row["launches"].get(case, {}).get("kernels")


def main() -> int:
    """Runs the sections; always 0, unless the program itself cannot start."""
    options = arguments(__doc__).parse_args()
    report = Report("timing", options)

    def section(name: str, body: Any) -> Any:
        found = report.section(name, body)
        # What is known so far is judged so far: this may be stopped at any time.
        report.judge(asked_for(report.data["sections"]), silent=True)
        return found

    speed = section("bandwidth", lambda: bandwidth(report))
    read = None if speed is None or failed(speed) else speed["read_gb_per_s"]
    candidates, missing = losses(report.device)
    report.data["left_out"] = missing
    report.data["shapes"] = [list(shape) for shape in SHAPES]
    section("forward", lambda: forward(report, read))
    section("backward", lambda: backward(report, candidates, missing))
    section("small", lambda: small(report))
    section("host", lambda: hook.host_times(report))
    section("graph", lambda: hook.graph(report))
    section("step", lambda: hook.step_times(report))
    section("memory", lambda: memory(report, candidates, missing))
    print(f"\n{report.data['machine'].get('name', report.device)}; read bandwidth {read or 0:.0f} GB/s")
    for name in ("host", "step", "graph"):
        if (found := report.data["sections"].get(name)) is not None:
            print(f"  {name}: {found}")
    report.judge(asked_for(report.data["sections"]))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

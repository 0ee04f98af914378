"""What the GPU path costs, and what is asked of it. Times never make this fail; errors are recorded.

Sections: ``bandwidth`` (what this GPU reads, by its own reductions), ``forward`` (scores against that), ``backward`` (loss and
gradient against torch, Liger and QuACK), ``small`` (launches and GPU time), ``memory`` (peak of loss and gradient), ``host``
(the hook's time on the CPU), ``step`` (a ResNet-18 step with and without it), ``graph`` (replays). Every figure carries its unit
in its name. ``--device cpu --quick`` tries the program itself and measures nothing.
"""

from __future__ import annotations

import sys
from typing import Any

import hook
import torch
from common import Report, arguments, failed, launches, logits, medians_us, peak_bytes, say, targets
from peers import Loss, losses, step

import lossfeed as lf

#: (rows, classes) of the forward pass: from 8 k classes on, one read of the logits is the floor.
FORWARD = ((16384, 8192), (8192, 32000), (16384, 50257), (4096, 128256))
#: The language-model shapes of the comparison.
BACKWARD = ((4096, 128256), (16384, 50257))
#: Shapes that are bound by launches.
SMALL = ((256, 10), (512, 100), (1024, 1000))


def shapes(report: Report, real: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The shapes, or tiny ones."""
    return ((4, 8192),) if report.quick else real


def rounds(report: Report, usual: int) -> int:
    """Repeats of a case."""
    return 2 if report.quick else usual


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


def forward(report: Report, read_gb_per_s: float | None) -> list[dict[str, Any]]:
    """Scores alone (ranks included), as a share of the read bandwidth."""
    found = []
    for rows, classes in shapes(report, FORWARD):
        for dtype in (torch.bfloat16, torch.float32):
            z, y = logits(rows, classes, dtype, report.device), targets(rows, classes, report.device)
            cases = {
                "lf.sample_scores": lambda z=z, y=y: lf.sample_scores(z, y),
                "F.cross_entropy": lambda z=z, y=y: torch.nn.functional.cross_entropy(z, y, reduction="none"),
            }
            us = medians_us(cases, report.device, rounds(report, 30))
            ours = us["lf.sample_scores"]
            rate = None if failed(ours) else z.numel() * z.element_size() / ours / 1e3
            found.append(
                {
                    "shape": f"{rows}x{classes}",
                    "dtype": str(dtype).removeprefix("torch."),
                    "us": us,
                    "gb_per_s": rate,
                    "read_fraction": rate / read_gb_per_s if rate and read_gb_per_s else None,
                }
            )
            del z, y
    say(
        [(f["shape"], f["dtype"], f["us"]["lf.sample_scores"], f["us"]["F.cross_entropy"], f["gb_per_s"], f["read_fraction"]) for f in found],
        ("forward", "logits", "scores µs", "F.cross_entropy µs", "scores GB/s", "of read bandwidth"),
    )
    return found


def backward(report: Report, candidates: dict[str, Loss], missing: dict[str, Any]) -> list[dict[str, Any]]:
    """Loss and gradient, bf16, everybody in turn."""
    found = []
    for rows, classes in shapes(report, BACKWARD):
        z = logits(rows, classes, torch.bfloat16, report.device).requires_grad_()
        y = targets(rows, classes, report.device)
        us = medians_us({n: step(loss, z, y) for n, loss in candidates.items()}, report.device, rounds(report, 20)) | missing
        ours = us["lossfeed"]
        ratio = {n: v / ours for n, v in us.items() if not failed(v) and not failed(ours)}
        found.append({"shape": f"{rows}x{classes}", "dtype": "bfloat16", "us": us, "times_lossfeed": ratio})
        del z, y
    names = list(found[0]["us"])
    say([(f["shape"], *(f["us"][n] for n in names)) for f in found], ("forward + backward, bf16, µs", *names))
    return found


def small(report: Report) -> list[dict[str, Any]]:
    """Launches and GPU time where launches are all that matters."""
    found = []
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
        found.append({"shape": f"{rows}x{classes}", "cases": {n: launches(case, report.device) for n, case in cases.items()}})
        loader.close()
    say(
        [(f["shape"], n, c["kernels"], c["fills_and_copies"], c["gpu_us"]) for f in found for n, c in f["cases"].items()],
        ("shape, float32", "call", "kernels", "fills, copies", "GPU µs"),
    )
    return found


def memory(report: Report, candidates: dict[str, Loss], missing: dict[str, Any]) -> list[dict[str, Any]]:
    """Peak memory of loss and gradient beyond the logits, in bytes."""
    found = []
    for rows, classes in shapes(report, BACKWARD):
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

    for f in dig("forward") or []:
        asked.append((f"forward {f['shape']} {f['dtype']}", "≥ 0.90 of read bandwidth", f["read_fraction"], lambda v: v >= 0.9))
    for f in dig("backward") or []:
        for name, least in (("eager", 3.0), ("liger", 1.5), ("quack", 1.0)):
            asked.append((f"{f['shape']} against {name}", f"≥ {least:g} times faster", f["times_lossfeed"].get(name), lambda v, m=least: v >= m))
    for f in dig("small") or []:
        if f["shape"] in ("256x10", "1024x1000"):
            # Above 512 rows the ranks are a launch of their own.
            most = 1 if f["shape"] == "256x10" else 2
            case = f["cases"]["loader.score"]
            asked.append((f"{f['shape']} loader.score", f"≤ {most} kernels", case["kernels"], lambda v, m=most: v <= m))
            asked.append((f"{f['shape']} loader.score", "≤ 6 µs on the GPU", case["gpu_us"], lambda v: v <= 6))
    asked.append(("ResNet-18 step, + loader.score", "< 0.005 slower", dig("step", "slowdown_fraction", "+ loader.score"), lambda v: v < 0.005))
    # Noise of the comparison itself is a few thousandths.
    asked.append(
        ("ResNet-18 step, loader.cross_entropy", "not slower (< 0.002)", dig("step", "slowdown_fraction", "loader.cross_entropy"), lambda v: v < 0.002)
    )
    asked.append(("loader.score, host", "≤ 15 µs", dig("host", "host_us", "loader.score"), lambda v: v <= 15))
    asked.append(("launches from Python per replay", "0", dig("graph", "python_launches_per_replay"), lambda v: v == 0))
    for f in dig("memory") or []:
        peaks = f["peak_bytes"]
        both = [peaks.get(n) for n in ("lossfeed", "eager")]
        ratio = both[0] / both[1] if all(isinstance(b, int) and b for b in both) else None
        asked.append((f"peak memory {f['shape']}", "≤ 0.5 of eager's", ratio, lambda v: v <= 0.5))
    return asked


def main() -> int:
    """Runs the sections; always 0, unless the program itself cannot start."""
    options = arguments(__doc__).parse_args()
    report = Report("timing", options)
    speed = report.section("bandwidth", lambda: bandwidth(report))
    read = None if speed is None or failed(speed) else speed["read_gb_per_s"]
    candidates, missing = losses(report.device)
    report.data["left_out"] = missing
    report.section("forward", lambda: forward(report, read))
    report.section("backward", lambda: backward(report, candidates, missing))
    report.section("small", lambda: small(report))
    report.section("memory", lambda: memory(report, candidates, missing))
    report.section("host", lambda: hook.host_times(report))
    report.section("step", lambda: hook.step_times(report))
    report.section("graph", lambda: hook.graph(report))
    print(f"\n{report.data['machine'].get('name', report.device)}; read bandwidth {read or 0:.0f} GB/s")
    for name in ("host", "step", "graph"):
        if (section := report.data["sections"].get(name)) is not None:
            print(f"  {name}: {section}")
    report.judge(asked_for(report.data["sections"]))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

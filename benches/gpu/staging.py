"""What staging costs, and what is asked of it. Times never make this fail; errors are recorded.

Sections: ``copy`` (host to device: the best single copy of this machine, and what batches of the loader reach),
``overlap`` (a step's time against the longer of compute and copy, over a sweep of their ratio, and what staging costs
the compute), ``paths`` (the ways cached rows take to the device: what was measured at the start, and what a run then
sees), ``images`` (the kernel that makes batches of pixels, against torch's operators), ``retouch`` (colours and
RandAugment by the device, and by the loader's threads), ``loaders`` (decoded samples in memory, end to end, against
torch's DataLoader and with ``lf.stage`` around it). Every figure carries its unit in its
name. ``--device cpu --quick`` tries the program itself and measures nothing.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from common import Report, arguments, attempt, failed, medians_us, rows_of, say, synchronize

import lossfeed as lf

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pixels(samples: int, side: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random uint8 images and labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (samples, side, side, 3), dtype=np.uint8), rng.integers(0, 10, samples)


def loader(report: Report, data: Any, batch_size: int, **keywords: Any) -> lf.Loader:
    """A loader whose samples are all in its cache."""
    made = lf.Loader(
        data, batch_size, shuffle=True, seed=0, cache=1.0, cache_form="decoded", drop_last=True, device=str(report.device), stats=False, framework="torch", **keywords
    )
    for _ in made:
        pass
    return made


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from batches


def rate(batches: Iterable[Any], count: int, device: torch.device, work: Callable[[Any], None] | None = None) -> dict[str, float]:
    """Wall and CPU time of `count` batches, after a few that are not counted."""
    source = endless(batches)
    for batch in islice(source, 3):
        if work is not None:
            work(batch)
    synchronize(device)

    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in used)

    cpu_before, begun = cpu(), time.perf_counter()
    for batch in islice(source, count):
        if work is not None:
            work(batch)
    synchronize(device)
    wall = time.perf_counter() - begun
    return {"batch_us": 1e6 * wall / count, "cpu_us": 1e6 * (cpu() - cpu_before) / count}


def copy(report: Report) -> dict[str, Any]:
    """GB/s of single copies out of page-locked memory by size, and of the loader's batches of at least 8 MiB."""
    device, cuda = report.device, report.device.type == "cuda"
    single = {}
    for mib in (1,) if report.quick else (1, 2, 4, 8, 32, 128, 512):
        host = torch.empty(mib << 20, dtype=torch.uint8, pin_memory=cuda)
        there = torch.empty(mib << 20, dtype=torch.uint8, device=device)
        us = medians_us({"copy": lambda h=host, t=there: t.copy_(h, non_blocking=True)}, device, 2 if report.quick else 30)["copy"]
        single[f"{mib} MiB"] = us if failed(us) else (mib << 20) / us / 1e3
    best = max(v for v in single.values() if not failed(v))
    side, sizes = (8, (4,)) if report.quick else (224, (64, 256))
    data = lf.open(pixels(16 if report.quick else 4096, side))
    found = {}
    for batch_size in sizes:
        with loader(report, data, batch_size) as made:
            us = rate(made, 4 if report.quick else 200, device)["batch_us"]
        size = batch_size * side * side * 3
        found[f"{size / 2**20:.1f} MiB"] = {"gb_per_s": size / us / 1e3, "fraction_of_best": size / us / 1e3 / best}
    return {"single_gb_per_s": single, "best_gb_per_s": best, "loader": found}


def overlap(report: Report) -> list[dict[str, Any]]:
    """Step time with batches of 9.2 MiB against the longer of compute and copy (a loop over the loader that does
    nothing else), each measured alone; GPU time of the compute alone and while batches are on their way."""
    device = report.device
    side, batch_size, count = (8, 4, 4) if report.quick else (224, 64, 150)
    n = 64 if report.quick else 4096
    a = torch.randn(n, n, device=device, dtype=torch.float32 if report.quick else torch.bfloat16)
    out = torch.empty_like(a)
    one_us = medians_us({"matmul": lambda: torch.mm(a, a, out=out)}, device, 2 if report.quick else 30)["matmul"]
    with loader(report, lf.open(pixels(batch_size * 8, side)), batch_size) as made:
        copy_us = rate(made, count, device)["batch_us"]
        for ratio in (1.0,) if report.quick else (0.25, 0.5, 1.0, 2.0, 4.0):
            calls = max(1, round(ratio * copy_us / one_us))

            def compute(_: Any = None, calls: int = calls) -> None:
                for _ in range(calls):
                    torch.mm(a, a, out=out)

            alone_us = rate([None], count, device, compute)["batch_us"]
            both_us = rate(made, count, device, compute)["batch_us"]
            report.row(
                "overlap",
                {
                    "compute_us": alone_us,
                    "copy_us": copy_us,
                    "step_us": both_us,
                    "overlap_fraction": max(alone_us, copy_us) / both_us,
                    "compute_slowdown_fraction": slowdown(made, compute, count, device),
                }
            )
    return report.data["sections"]["overlap"]


def slowdown(batches: Iterable[Any], compute: Callable[[], None], count: int, device: torch.device) -> float | None:
    """How much longer the GPU takes for `compute` while batches are on their way; None without a GPU."""
    if device.type != "cuda":
        return None
    spans: list[Any] = []

    def clocked(_: Any) -> None:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        compute()
        end.record()
        spans.append((start, end))

    medians = []
    for source in ([None], batches):
        spans.clear()
        rate(source, count, device, clocked)
        medians.append(float(np.median([start.elapsed_time(end) for start, end in spans])))
    return medians[1] / medians[0] - 1


def paths(report: Report) -> list[dict[str, Any]]:
    """Each way to the device for rows of several lengths, by one loader thread and by eight: what the loader measured
    at its start and chose, the time and the CPU time of a batch that nothing is done with, and how much a loop of
    matrix products is slowed down."""
    device, quick = report.device, report.quick
    cuda = device.type == "cuda"
    n = 64 if quick else 4096
    a = torch.randn(n, n, device=device, dtype=torch.float32 if quick else torch.bfloat16)
    out = torch.empty_like(a)

    def compute() -> None:
        for _ in range(4):
            torch.mm(a, a, out=out)

    for side, batch_size, samples in ((8, 4, 64),) if quick else ((8, 256, 200_000), (32, 256, 100_000), (96, 256, 20_000), (224, 64, 4_096)):
        data = lf.open(pixels(samples, side))
        for workers in (1,) if quick else (1, 8):
            row: dict[str, Any] = {"batch": f"{batch_size}x{side}x{side}x3", "loader_threads": workers}
            with loader(report, data, batch_size, num_workers=workers) as made:
                row |= {"chosen": made.copy_path, "measured_at_start": made.copy_paths(), "paths": {}}
            for path in ("gathered", "batched", "mapped") if cuda else ("auto",):

                def run(path: str = path, workers: int = workers, batch_size: int = batch_size, data: Any = data) -> dict[str, Any]:
                    with loader(report, data, batch_size, num_workers=workers, copy_path=path) as made:
                        count = 4 if quick else 100
                        return {**rate(made, count, device), "compute_slowdown_fraction": slowdown(made, compute, count, device)}

                row["paths"][path] = attempt(run)
            report.row("paths", row)
    return report.data["sections"]["paths"]


def images(report: Report) -> list[dict[str, Any]]:
    """A batch of pixels on the device to normalised float16, cropped and flipped: the loader's step with it and without
    it, and torch's operators for it (which flip and crop the whole batch alike)."""
    device = report.device
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) * 255 for v in (MEAN, STD))
    for side, batch_size, padding in ((8, 4, 1),) if report.quick else ((32, 512, 4), (224, 256, 0)):
        data = lf.open(pixels(batch_size * 4, side))
        transform = lf.ImageTransform("float16", mean=MEAN, std=STD, layout="channels_last", padding=padding, flip=0.5)
        u8 = torch.randint(0, 256, (batch_size, side, side, 3), dtype=torch.uint8, device=device)

        def by_torch(u8: torch.Tensor = u8) -> torch.Tensor:
            return ((u8.flip(2).permute(0, 3, 1, 2).float() - mean) / std).half()

        us = medians_us({"torch": by_torch}, device, 2 if report.quick else 30)["torch"]
        count = 4 if report.quick else 200
        with loader(report, data, batch_size) as plain, loader(report, data, batch_size, transform=transform) as made:
            twin = lf.Loader(data, batch_size, shuffle=True, seed=0, drop_last=True, transform=transform, stats=False, framework="torch")
            made.set_epoch(5)
            twin.set_epoch(5)
            same = all(torch.equal(x.data.cpu(), y.data) for x, y in zip(made, twin, strict=True))
            twin.close()
            report.row(
                "images",
                {
                    "batch": f"{batch_size}x{side}x{side}x3",
                    "equals_the_cpu": same,
                    "bytes_alone": rate(plain, count, device),
                    "with_images": rate(made, count, device),
                    "torch_operators_us": us,
                    "images_kernel_us": _kernel_us(made, device, "lossfeed_image"),
                }
            )
    return report.data["sections"]["images"]


def retouch(report: Report) -> list[dict[str, Any]]:
    """Batches whose colours change and that are augmented, by the device's kernel and by the loader's threads: the time
    and the CPU time of a batch that nothing is done with, how much a loop of matrix products is slowed down, and the
    kernel's own time."""
    device, quick = report.device, report.quick
    n = 64 if quick else 4096
    a = torch.randn(n, n, device=device, dtype=torch.float32 if quick else torch.bfloat16)
    out = torch.empty_like(a)

    def compute() -> None:
        for _ in range(4):
            torch.mm(a, a, out=out)

    asked: dict[str, Any] = {"flip": 0.5, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "augment": "rand"}
    for side, batch_size in ((8, 4),) if quick else ((32, 512), (224, 256)):
        data = lf.open(pixels(batch_size * 4, side))
        row: dict[str, Any] = {"batch": f"{batch_size}x{side}x{side}x3"}
        for name, by in (("device", "auto"), ("threads", "threads")):
            transform = lf.ImageTransform("float16", mean=MEAN, std=STD, retouch=by, **asked)

            def run(transform: lf.ImageTransform = transform, batch_size: int = batch_size, data: Any = data) -> dict[str, Any]:
                with loader(report, data, batch_size, transform=transform) as made:
                    count = 4 if quick else 50
                    found = {**rate(made, count, device), "compute_slowdown_fraction": slowdown(made, compute, count, device)}
                    return {**found, "kernel_us": _kernel_us(made, device, "lossfeed_retouch")}

            row[name] = attempt(run)
        report.row("retouch", row)
    return report.data["sections"]["retouch"]


def _kernel_us(batches: Iterable[Any], device: torch.device, name: str) -> float | None:
    """GPU time of a kernel, by the profiler; None where it cannot be told."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in islice(endless(batches), 20):
            pass
        synchronize(device)
    times = [e.time_range.elapsed_us() for e in seen.events() if name in e.name]
    return float(np.median(times)) if times else None


def loaders(report: Report) -> list[dict[str, Any]]:
    """Decoded samples in memory to the device, end to end: samples a second, and CPU seconds for a million samples."""
    device, quick = report.device, report.quick
    cuda = device.type == "cuda"
    for side, batch_size, samples in ((8, 4, 64),) if quick else ((32, 256, 50_000), (224, 256, 8_192)):
        x, y = pixels(samples, side)
        dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        count = 4 if quick else (400 if side == 32 else 100)

        def torchs(workers: int) -> Any:
            return torch.utils.data.DataLoader(
                dataset, batch_size, shuffle=True, drop_last=True, pin_memory=cuda, num_workers=workers, persistent_workers=workers > 0
            )

        def moved(batches: Any) -> Any:
            class Moved:
                def __iter__(self) -> Iterator[Any]:
                    for parts in batches:
                        yield [p.to(device, non_blocking=True) for p in parts]

            return Moved()

        cases: dict[str, Callable[[], Any]] = {"lossfeed": lambda: loader(report, lf.open((x, y)), batch_size)}
        for workers in (0,) if quick else (0, 4, 8):
            cases[f"DataLoader, {workers} workers"] = lambda w=workers: moved(torchs(w))
            cases[f"lf.stage(DataLoader, {workers} workers)"] = lambda w=workers: lf.stage(torchs(w), str(device))
        for name, make in cases.items():
            got = attempt(lambda make=make: rate(make(), count, device))
            if not failed(got):
                got = {"samples_per_s": batch_size / got["batch_us"] * 1e6, "cpu_s_per_million": got["cpu_us"] / batch_size}
            report.row("loaders", {"batch": f"{batch_size}x{side}x{side}x3", "loader": name, **got})
    return report.data["sections"]["loaders"]


def asked_for(sections: dict[str, Any]) -> list[tuple[str, str, Any, Any]]:
    """What was asked for, the limit, and what was seen."""
    asked: list[tuple[str, str, Any, Any]] = []
    whole = sections.get("copy") or {}
    for size, got in (whole.get("loader") or {}).items():
        asked.append((f"host to device, batches of {size}", "≥ 0.97 of the best single copy", got["fraction_of_best"], lambda v: v >= 0.97))
    for got in rows_of(sections.get("overlap")):
        ratio = got["compute_us"] / got["copy_us"]
        asked.append((f"overlap at compute/copy {ratio:.2f}", "≥ 0.98", got["overlap_fraction"], lambda v: v >= 0.98))
        asked.append((f"compute slowed down at {ratio:.2f}", "< 0.03", got["compute_slowdown_fraction"], lambda v: v < 0.03))
    for got in rows_of(sections.get("paths")):
        times = {path: t["batch_us"] for path, t in got["paths"].items() if not failed(t)}
        if got["chosen"] in times:
            lost = times[got["chosen"]] / min(times.values())
            what = f"path chosen for {got['batch']}, {got['loader_threads']} threads: {got['chosen']}"
            asked.append((what, "≤ 1.15 of the fastest", lost, lambda v: v <= 1.15))
    for got in rows_of(sections.get("images")):
        asked.append((f"images of {got['batch']} equal the CPU's", "yes", got["equals_the_cpu"], bool))
    return asked


def main() -> int:
    """Runs the sections; always 0, unless the program itself cannot start."""
    report = Report("staging", arguments(__doc__).parse_args())
    for name, body in {"copy": copy, "overlap": overlap, "images": images, "retouch": retouch, "paths": paths, "loaders": loaders}.items():
        report.section(name, lambda body=body: body(report))
        # What is known so far is judged so far: this may be stopped at any time.
        report.judge(asked_for(report.data["sections"]), silent=True)
    report.judge(asked_for(report.data["sections"]))
    rows = rows_of(report.data["sections"].get("loaders"))
    columns = ("batch", "loader", "samples_per_s", "cpu_s_per_million")
    say([tuple(r.get(c) for c in columns) for r in rows], columns)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

"""What staging costs, and what is asked of it. Times never make this fail; errors are recorded.

Sections: ``copy`` (host to device: single copies out of torch's page-locked memory and out of memory as the cache has it,
in pieces of several sizes, and what batches of the loader reach), ``overlap`` (a step's time against the longer of compute
and copy, over a sweep of their ratio, and what staging costs the compute), ``paths`` (the ways cached rows take to the
device: what was measured at the start, and what a run then sees), ``pictures`` (batches of pixels normalised, and with
colours and RandAugment, by the device and by the loader's threads), ``loaders`` (decoded samples in memory, end to end,
against torch's DataLoader and with ``lf.stage`` around it). ``--device cpu --quick`` tries the program itself and measures
nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from common import Report, Stopwatch, arguments, attempt, failed, medians_us, number, quotient, synchronize, watched
from hook import endless

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


def matmul(report: Report) -> tuple[Callable[[], Any], float]:
    """A matrix product, and its time in µs."""
    n = 64 if report.quick else 4096
    a = torch.randn(n, n, device=report.device, dtype=torch.float32 if report.quick else torch.bfloat16)
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, a, out=out)

    return multiply, medians_us({"matmul": multiply}, report.device, 2 if report.quick else 30)["matmul"]


def rate(batches: Iterable[Any], count: int, device: torch.device, work: Callable[[], None] | None = None) -> dict[str, float]:
    """Wall and CPU time of `count` batches, after a few that are not counted."""
    source = endless(batches)

    def take(n: int) -> None:
        for _ in islice(source, n):
            if work is not None:
                work()
        synchronize(device)

    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in used)

    take(3)
    cpu_before, begun = cpu(), time.perf_counter()
    take(count)
    wall = time.perf_counter() - begun
    return {"batch_us": 1e6 * wall / count, "cpu_us": 1e6 * (cpu() - cpu_before) / count}


def slowdown(batches: Iterable[Any], compute: Callable[[], None], count: int, device: torch.device) -> float | None:
    """How much longer the GPU takes for `compute` while batches are on their way; None without a GPU."""
    if device.type != "cuda":
        return None
    medians = []
    for source in ([None], batches):
        watch = Stopwatch(device)
        rate(source, count, device, lambda watch=watch: watch.time(compute))
        medians.append(statistics.median(watch.us()))
    return medians[1] / medians[0] - 1


@contextlib.contextmanager
def page_locked(size: int, flags: int, cuda: bool) -> Iterator[torch.Tensor]:
    """Anonymous memory that is mapped, advised and registered as the cache's is."""
    mapped = mmap.mmap(-1, size, flags=flags | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    host = torch.frombuffer(mapped, dtype=torch.uint8).fill_(1)
    if cuda:
        # Portable and mapped.
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), size, 3))
    try:
        yield host
    finally:
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(host.data_ptr()))


def copy(report: Report) -> dict[str, Any]:
    """GB/s of single copies out of page-locked memory of three kinds, whole and in pieces; and of the loader's batches."""
    device, cuda = report.device, report.device.type == "cuda"
    size = (1 if report.quick else 128) << 20
    there = torch.empty(size, dtype=torch.uint8, device=device)

    def speed(host: torch.Tensor, whole: int, piece: int) -> Any:
        def run() -> None:
            for first in range(0, whole, piece):
                there[first : first + piece].copy_(host[first : first + piece], non_blocking=True)

        return quotient(whole / 1e3, medians_us({"copy": run}, device, 2 if report.quick else 20)["copy"])

    found: dict[str, Any] = {}

    def measure(kind: str, host: torch.Tensor) -> None:
        for mib in (1,) if report.quick else (1, 4, 32, 128):
            found[f"{kind}, one copy of {mib} MiB"] = speed(host, mib << 20, mib << 20)
        for mib in () if report.quick else (1, 4, 8, 32):
            found[f"{kind}, {size >> 20} MiB in pieces of {mib} MiB"] = speed(host, size, mib << 20)

    torchs = "torch's pinned memory"
    measure(torchs, torch.empty(size, dtype=torch.uint8, pin_memory=cuda))
    for kind, flags in (("memory as the cache's", mmap.MAP_SHARED), ("the same, private", mmap.MAP_PRIVATE)):

        def inside(kind: str = kind, flags: int = flags) -> None:
            with page_locked(size, flags, cuda) as host:
                measure(kind, host)

        found |= attempt(inside) or {}
    best = max(v for name, v in found.items() if name.startswith(f"{torchs}, one") and number(v))
    cached = [v for name, v in found.items() if name.startswith("memory as the cache's, one") and number(v)]
    pieces = found.get(f"memory as the cache's, {size >> 20} MiB in pieces of 4 MiB")
    report.figure("best single copy", best, "GB/s", n=20, predicted=55.0)
    report.figure("copies of 4 MiB out of memory as the cache's, over the best", quotient(pieces, best), n=20, predicted=0.98)
    report.figure("best single copy out of memory as the cache's, over torch's", quotient(max(cached, default=None), best), least=0.97, n=20, predicted=1.0)
    side, sizes = (8, (4,)) if report.quick else (224, (64, 256))
    data = lf.open(pixels(16 if report.quick else 2048, side))
    for batch_size in sizes:
        with loader(report, data, batch_size) as made:
            us = rate(made, 4 if report.quick else 200, device)["batch_us"]
        mib = batch_size * side * side * 3 / 2**20
        found[f"batches of {mib:.1f} MiB"] = batch_size * side * side * 3 / us / 1e3
        report.figure(f"batches of {mib:.1f} MiB over the best single copy", quotient(found[f"batches of {mib:.1f} MiB"], best), least=0.97, n=200, predicted=0.98)
    return {"gb_per_s": found}


def overlap(report: Report) -> None:
    """Step time with batches of 9.2 MiB against the longer of compute and copy (a loop over the loader that does
    nothing else), each measured alone; GPU time of the compute alone and while batches are on their way."""
    device, (multiply, one_us) = report.device, matmul(report)
    side, batch_size, count = (8, 4, 4) if report.quick else (224, 64, 150)
    with loader(report, lf.open(pixels(batch_size * 8, side)), batch_size) as made:
        copy_us = rate(made, count, device)["batch_us"]

        def row(ratio: float) -> dict[str, Any]:
            def compute() -> None:
                for _ in range(max(1, round(ratio * copy_us / one_us))):
                    multiply()

            alone_us = rate([None], count, device, compute)["batch_us"]
            both_us = rate(made, count, device, compute)["batch_us"]
            reached, slower = max(alone_us, copy_us) / both_us, slowdown(made, compute, count, device)
            report.figure(f"overlap at compute/copy {ratio:g}", reached, "of the longer one's time", least=0.98, n=count, predicted=0.99)
            report.figure(f"compute slowed down at compute/copy {ratio:g}", slower, "of its time", most=0.03, n=count, predicted=0.01)
            return {"compute_us": alone_us, "copy_us": copy_us, "step_us": both_us}

        # What decides first: with as much compute as copy, nothing is left to hide behind.
        for ratio in (1.0,) if report.quick else (1.0, 2.0, 0.5):
            report.row({"ratio": ratio}, lambda ratio=ratio: row(ratio))


def paths(report: Report) -> None:
    """Each way to the device for short and long rows: what the loader measured at its start and chose, the time and the
    CPU time of a batch that nothing is done with, and how much a loop of matrix products is slowed down."""
    device, quick, (multiply, _) = report.device, report.quick, matmul(report)

    def compute() -> None:
        for _ in range(4):
            multiply()

    def row(side: int, batch_size: int, samples: int) -> dict[str, Any]:
        data = lf.open(pixels(samples, side))
        threads = 1 if quick else 8
        with loader(report, data, batch_size, num_workers=threads) as made:
            found: dict[str, Any] = {"chosen": made.copy_path, "measured_at_start": made.copy_paths(), "paths": {}}
        for path in ("gathered", "batched", "mapped") if device.type == "cuda" else ("auto",):

            def run(path: str = path) -> dict[str, Any]:
                with loader(report, data, batch_size, num_workers=threads, copy_path=path) as made:
                    count = 4 if quick else 100
                    return {**rate(made, count, device), "compute_slowdown_fraction": slowdown(made, compute, count, device)}

            found["paths"][path] = attempt(run)
        times = {path: t["batch_us"] for path, t in found["paths"].items() if not failed(t)}
        lost = quotient(times.get(found["chosen"], times.get("auto")), min(times.values(), default=None))
        report.figure(f"path chosen for {batch_size}x{side}x{side}x3, {threads} threads, over the fastest", lost, "times", most=1.15, n=100, predicted=1.0)
        return found

    for side, batch_size, samples in ((8, 4, 64),) if quick else ((32, 256, 50_000), (224, 64, 2_048)):
        report.row({"batch": f"{batch_size}x{side}x{side}x3"}, lambda s=side, b=batch_size, n=samples: row(s, b, n))


def pictures(report: Report) -> None:
    """Batches of pixels as they are, made into normalised float16, and with colours changed and augmented, by the device's
    kernels and by the loader's threads: the time and the CPU time of a batch that nothing is done with, and the kernel's."""
    device, quick = report.device, report.quick
    plain: dict[str, Any] = {"dtype": "float16", "mean": MEAN, "std": STD, "flip": 0.5}
    colours = {**plain, "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "augment": "rand"}
    kinds = {
        "bytes": None,
        "normalised": lf.ImageTransform(**plain, layout="channels_last"),
        "colours": lf.ImageTransform(**colours),
        "colours, by threads": lf.ImageTransform(**colours, retouch="threads"),
    }

    def row(data: Any, batch_size: int, what: str, kind: str) -> dict[str, Any]:
        with loader(report, data, batch_size, transform=kinds[kind]) as made:
            found = rate(made, 4 if quick else 50, device)
            spans = watched(lambda: sum(1 for _ in islice(endless(made), 20)), device)
        for name in ("lossfeed_image", "lossfeed_retouch"):
            times = [s.end_us - s.start_us for s in spans if name in s.name]
            if times:
                report.figure(f"{name}, {what}, {kind}", statistics.median(times), "µs", n=len(times))
        report.figure(f"batch of {what}, {kind}", found["batch_us"], "µs", n=50)
        return found

    for side, batch_size in ((8, 4),) if quick else ((32, 512), (224, 256)):
        data, what = lf.open(pixels(batch_size * 4, side)), f"{batch_size}x{side}x{side}x3"
        for kind in kinds:
            report.row({"batch": what, "kind": kind}, lambda d=data, b=batch_size, w=what, k=kind: row(d, b, w, k))


def loaders(report: Report) -> None:
    """Decoded samples in memory to the device, end to end: samples a second, and CPU seconds for a million samples."""
    device, quick = report.device, report.quick
    for side, batch_size, samples in ((8, 4, 64),) if quick else ((32, 256, 50_000), (224, 256, 8_192)):
        x, y = pixels(samples, side)
        dataset = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        count = 4 if quick else (400 if side == 32 else 100)

        def torchs(workers: int) -> Any:
            pin = device.type == "cuda"
            return torch.utils.data.DataLoader(dataset, batch_size, shuffle=True, drop_last=True, pin_memory=pin, num_workers=workers, persistent_workers=workers > 0)

        cases: dict[str, Callable[[], Any]] = {"lossfeed": lambda: loader(report, lf.open((x, y)), batch_size)}
        for workers in (0,) if quick else (0, 4, 8):
            cases[f"DataLoader, {workers} workers"] = lambda w=workers: moved(torchs(w), device)
            cases[f"lf.stage(DataLoader, {workers} workers)"] = lambda w=workers: lf.stage(torchs(w), str(device))

        def row(make: Callable[[], Any]) -> dict[str, float]:
            got = rate(make(), count, device)
            return {"samples_per_s": batch_size / got["batch_us"] * 1e6, "cpu_s_per_million": got["cpu_us"] / batch_size}

        rows = [report.row({"batch": f"{batch_size}x{side}x{side}x3", "loader": name}, lambda make=make: row(make)) for name, make in cases.items()]
        ours, *others = [r and r.get("samples_per_s") for r in rows]
        best = max((v for v in others[::2] if v), default=None)
        report.figure(f"samples/s of {batch_size}x{side}x{side}x3 over the best DataLoader's", quotient(ours, best), "times", least=1.0, n=count)


class moved:
    """A DataLoader's batches on the device, copied behind the loop's back as far as torch does."""

    def __init__(self, batches: Any, device: torch.device) -> None:
        self.batches, self.device = batches, device

    def __iter__(self) -> Iterator[Any]:
        for parts in self.batches:
            yield [p.to(self.device, non_blocking=True) for p in parts]


def main() -> int:
    """Runs the sections; always 0, unless the program itself cannot start."""
    report = Report("staging", arguments(__doc__).parse_args())
    for name, body in {"copy": copy, "overlap": overlap, "paths": paths, "pictures": pictures, "loaders": loaders}.items():
        report.section(name, lambda body=body: body(report))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())

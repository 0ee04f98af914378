"""What the GPU programs share: the device, the clock, the profiler, cases that may fail, and the JSON.

A case that raises is recorded as the text of its error and the next one runs. A case for which no time is left is
recorded too: the machine is lent, and the next program waits.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()  # importing torch is part of a program's time

import argparse
import functools
import json
import math
import os
import platform
import statistics
import sys
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import figures
import torch

SCHEMA_VERSION = 2


def arguments(description: str) -> argparse.ArgumentParser:
    """The options every program has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, cuda:N or cpu")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few repeats: tries the program, measures nothing")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "dist/gpu")), help="folder of the JSON")
    parser.add_argument("--only", action="append", default=[], metavar="SECTION", help="run only these sections; may be repeated")
    parser.add_argument("--until", type=float, default=float("inf"), metavar="SECONDS", help="begin nothing that would not end within so many")
    return parser


def machine(device: torch.device) -> dict[str, Any]:
    """What ran it, with the versions that matter."""
    versions = {}
    for package in ("lossfeed", "torch", "triton", "liger-kernel", "quack-kernels"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    about: dict[str, Any] = {"device": str(device), "python": platform.python_version(), "versions": versions}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        about |= {
            "name": found.name,
            "compute_capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "memory_bytes": found.total_memory,
            "cuda": torch.version.cuda,
        }
    return about


class Report:
    """The results of one program, replaced after every section and every row, so that a program cut short leaves what
    it had."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.device = torch.device(options.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        self.quick: bool = options.quick
        if self.quick:
            torch.set_num_threads(1)
        self.only: list[str] = options.only
        self.until: float = options.until
        options.out.mkdir(parents=True, exist_ok=True)
        # Programs with other sections may run beside this one.
        self.path: Path = options.out / f"{'-'.join([name, *self.only])}.json"
        self.data: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "quick": self.quick,
            "machine": machine(self.device),
            "seconds": {},
            "not_reached": [],
            "sections": {},
            "figures": [],
        }
        self.under_way = ""
        self.longest = 0.0

    def left(self) -> float:
        """Seconds until this program has to end."""
        return self.until - (time.monotonic() - STARTED)

    def section(self, name: str, body: Callable[[], Any], when_named: bool = False) -> Any:
        """Runs one section (unless others were asked for, or, `when_named`, this one was not) and records what it
        returns, or its error."""
        if name not in self.only and (self.only or when_named):
            return None
        if self.left() <= 0:
            self.data["not_reached"].append(name)
            return self.write()
        started = time.monotonic()
        print(f"── {name}", flush=True)
        self.under_way, self.longest = name, 0.0
        result = attempt(body)
        # Of a table that broke off, the rows that there are say more than the error alone.
        rows = self.data["sections"].get(name)
        if result is not None:
            self.data["sections"][name] = [*rows, result] if rows and failed(result) else result
        self.data["seconds"][name] = round(time.monotonic() - started, 1)
        self.write()
        if self.device.type == "cuda":
            attempt(torch.cuda.empty_cache)
        return self.data["sections"].get(name)

    def row(self, about: dict[str, Any], body: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """Adds what the body returns, or its error, to the table under way, beside what it is about. None if as long a
        row as the longest before it would not end in time."""
        if self.left() < self.longest:
            self.data["not_reached"].append(f"{self.under_way}: {about}")
            return self.write()
        started = time.monotonic()
        found = {**about, **attempt(body)}
        self.longest = max(self.longest, time.monotonic() - started)
        self.data["sections"].setdefault(self.under_way, []).append(found)
        self.write()
        return found

    def figure(self, name: str, value: Any, unit: str = "", **more: Any) -> None:
        """Records a figure of the section under way; see :func:`figures.figure`."""
        self.data["figures"].append(figures.figure(self.under_way, name, value, unit, **more))

    def close(self) -> int:
        """Writes the rest and says where everything is; the program's exit status."""
        self.write()
        if self.quick:
            print("  a quick run: these figures mean nothing")
        if self.data["not_reached"]:
            print(f"  not reached: {'; '.join(self.data['not_reached'])}")
        print(self.path)
        return 0

    def write(self) -> None:
        """Writes the file whole."""
        draft = self.path.with_suffix(".json.new")
        draft.write_text(json.dumps(self.data, indent=1, default=str) + "\n")
        os.replace(draft, self.path)


def attempt(body: Callable[[], Any]) -> Any:
    """What `body` returns, or ``{"error": …}``."""
    try:
        return body()
    except Exception as error:
        traceback.print_exc(limit=3, file=sys.stdout)
        return {"error": f"{type(error).__name__}: {str(error).strip()[:500]}"}


def failed(result: Any) -> bool:
    """Whether a case was recorded as its error."""
    return isinstance(result, dict) and "error" in result


def number(value: Any) -> float | None:
    """What was measured; None for an error or nothing."""
    return None if value is None or failed(value) else float(value)


def quotient(a: Any, b: Any) -> float | None:
    """`a` over `b`, where both were measured."""
    above, below = number(a), number(b)
    return above / below if above is not None and below else None


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Times(NamedTuple):
    """µs of one call."""

    median: float
    spread: float  # between the quartiles, as a share of the median
    n: int


def times_of(us: list[float]) -> Times:
    """Median and spread."""
    median = statistics.median(us)
    quartiles = statistics.quantiles(us, n=4) if len(us) > 1 else [median] * 3
    return Times(median, (quartiles[2] - quartiles[0]) / median if median else 0.0, len(us))


class Stopwatch:
    """Times spans between two events on the current stream; on the CPU by the clock."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.spans: list[tuple[Any, Any]] = []

    def mark(self) -> Any:
        """Now, in the stream's order."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def time(self, body: Callable[[], Any]) -> None:
        """Runs and times one span."""
        start = self.mark()
        body()
        self.spans.append((start, self.mark()))

    def us(self) -> list[float]:
        """Every span. The device must have been waited for."""
        return [1e3 * a.elapsed_time(b) if self.cuda else 1e6 * (b - a) for a, b in self.spans]


def medians_us(cases: dict[str, Callable[[], Any]], device: torch.device, rounds: int, **more: Any) -> dict[str, Any]:
    """The medians of :func:`all_times`."""
    return {name: t if failed(t) else t.median for name, t in all_times(cases, device, rounds, **more).items()}


def all_times(
    cases: dict[str, Callable[[], Any]],
    device: torch.device,
    rounds: int,
    warmup: int = 3,
    inner: int = 1,
    before: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """Times of each case, the cases taking turns, so that a clock that drifts moves all of them.

    `inner` calls are timed together, for what is shorter than an event's resolution; ``before(name)`` runs before, not
    timed. A case that raises is its error and takes no further part.
    """
    found: dict[str, Any] = {}
    watches: dict[str, Stopwatch] = {}

    def once(case: Callable[[], Any]) -> None:
        for _ in range(inner):
            case()

    def warm(name: str, case: Callable[[], Any]) -> None:
        for _ in range(warmup):
            if before is not None:
                before(name)
            once(case)
        synchronize(device)

    for name, case in cases.items():
        found[name] = attempt(functools.partial(warm, name, case))
        if not failed(found[name]):
            watches[name] = Stopwatch(device)
    for _ in range(rounds):
        for name, watch in watches.items():
            if before is not None:
                before(name)
            watch.time(functools.partial(once, cases[name]))
    synchronize(device)
    for name, watch in watches.items():
        found[name] = times_of([us / inner for us in watch.us()])
    return found


def host_us(case: Callable[..., Any], device: torch.device, calls: int, given: Callable[[], Any] | None = None) -> Times:
    """Host time of one call in µs, of what `given` returns if there is one. The device is waited for between bursts,
    outside the clock, so that its queue never fills up and holds the host back."""
    times = []
    for k in range(-5, calls):
        arguments = () if given is None else (given(),)
        if k % 8 == 0:
            synchronize(device)
        begun = time.perf_counter_ns()
        case(*arguments)
        if k >= 0:
            times.append((time.perf_counter_ns() - begun) / 1e3)
    synchronize(device)
    return times_of(times)


def peak_bytes(case: Callable[[], Any], device: torch.device) -> int | None:
    """Device memory that a call needs at most beyond what was there before it; None where it cannot be told (CPU)."""
    case()
    if device.type != "cuda":
        return None
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    case()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class Span(NamedTuple):
    """What the GPU did, as CUPTI saw it; `launch` for the host's own calls that launch a kernel."""

    name: str
    start_us: float
    end_us: float
    launch: bool = False


def watched(body: Callable[[], Any], device: torch.device) -> list[Span]:
    """Runs the body; what the GPU did meanwhile by torch's profiler, in its order. Empty on the CPU."""
    if device.type != "cuda":
        body()
        return []
    from torch.profiler import ProfilerActivity, profile

    synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        # Kernels of a session's first moments may be lost: their clock is behind the host's (pytorch/pytorch#192021).
        time.sleep(0.02)
        body()
        synchronize(device)
    spans = []
    for event in seen.events():
        span = Span(event.name, event.time_range.start, event.time_range.end)
        if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            spans.append(span)
        elif event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel")):
            spans.append(span._replace(launch=True))
    return sorted(spans, key=lambda span: span.start_us)


def launches(case: Callable[[], Any], device: torch.device, calls: int = 10, before: Callable[[], Any] | None = None) -> dict[str, Any]:
    """Kernels a call launches, copies and fills beside them, launch calls from the host, and GPU time in µs: what the
    host waits for is not in it. `before` may copy within the device, which is left out. None where it was not seen."""
    for _ in range(3):
        case()

    def body() -> None:
        for _ in range(calls):
            if before is not None:
                before()
            case()

    spans = watched(body, device)
    ran = [s for s in spans if not s.launch and not (before is not None and s.name.startswith("Memcpy DtoD"))]
    if not ran:
        return {"kernels": None, "fills_and_copies": None, "host_launches": None, "gpu_us": None, "us_by_kernel": {}, "spread": None}
    by_name: dict[str, list[float]] = {}
    for s in ran:
        by_name.setdefault(s.name[:80], []).append(s.end_us - s.start_us)
    # Medians: one launch that met a cold clock or another process says nothing. Whole launches: some may be lost.
    each = {name: math.ceil(len(spans) / calls) for name, spans in by_name.items()}
    us = {name: statistics.median(spans) * each[name] for name, spans in by_name.items()}
    fills = sum(n for name, n in each.items() if name.startswith(("Memcpy", "Memset")))
    return {
        "kernels": sum(each.values()) - fills,
        "fills_and_copies": fills,
        "host_launches": sum(s.launch for s in spans) / calls,
        "gpu_us": sum(us.values()),
        "us_by_kernel": {name: v for name, v in us.items() if not name.startswith(("Memcpy", "Memset"))},
        "spread": times_of(max(by_name.values(), key=sum)).spread,
    }


def logits(rows: int, classes: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> torch.Tensor:
    """(rows, classes) normal numbers times 3, made block by block: a float32 copy of the whole might not fit."""
    made = torch.empty(rows, classes, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    block = max(1, 2**26 // classes)
    for first in range(0, rows, block):
        n = min(block, rows - first)
        made[first : first + n] = torch.randn(n, classes, device=device, generator=generator) * 3.0
    return made


def targets(rows: int, classes: int, device: torch.device, seed: int = 1) -> torch.Tensor:
    """(rows) int64 class indices."""
    return torch.randint(classes, (rows,), device=device, generator=torch.Generator(device).manual_seed(seed))

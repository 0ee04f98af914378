"""What the GPU programs share: the device, the clock, cases that may fail, and the JSON.

A case that raises is recorded as the text of its error and the next one runs: on a machine that is lent for half an
hour, nine figures and one error are worth more than one error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

SCHEMA_VERSION = 1


def arguments(description: str) -> argparse.ArgumentParser:
    """The options every program has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda, cuda:N or cpu")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few repeats: tries the program, measures nothing")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "dist/gpu")), help="folder of the JSON")
    parser.add_argument("--only", action="append", default=[], metavar="SECTION", help="run only these sections; may be repeated")
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
    """The results of one program, written anew after every section and every row, so that a program cut short leaves
    what it had."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.device = torch.device(options.device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        self.quick: bool = options.quick
        if self.quick:
            torch.set_num_threads(1)
        self.only: list[str] = options.only
        options.out.mkdir(parents=True, exist_ok=True)
        self.path: Path = options.out / f"{name}.json"
        self.data: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "quick": self.quick,
            "machine": machine(self.device),
            "seconds": {},
            "sections": {},
        }

    def section(self, name: str, body: Callable[[], Any]) -> Any:
        """Runs one section (unless others were asked for) and records what it returns, or its error."""
        if self.only and name not in self.only:
            return None
        started = time.perf_counter()
        print(f"── {name}", flush=True)
        result = attempt(body)
        # Of a table that broke off, the rows that there are say more than the error alone.
        rows = self.data["sections"].get(name)
        self.data["sections"][name] = [*rows, result] if rows and failed(result) else result
        self.data["seconds"][name] = round(time.perf_counter() - started, 1)
        self.write()
        if self.device.type == "cuda":
            attempt(torch.cuda.empty_cache)
        return result

    def row(self, section: str, row: Any) -> None:
        """Adds a row to a section that is under way."""
        self.data["sections"].setdefault(section, []).append(row)
        self.write()

    def attempt_row(self, section: str, about: dict[str, Any], body: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Adds what the body returns; or its error, with what it was about."""
        found = attempt(body)
        self.row(section, {**about, **found} if failed(found) else found)
        return found

    def judge(self, asked: list[tuple[str, str, Any, Callable[[Any], Any]]], silent: bool = False) -> None:
        """Records (and prints) what was asked for, the limit, what was measured (None: nothing was), and whether it is
        met."""
        self.data["verdicts"] = [
            {"what": what, "asked": limit, "measured": value, "met": None if value is None else bool(met(value))}
            for what, limit, value, met in asked
        ]
        self.write()
        if silent:
            return
        word = {True: "yes", False: "NO", None: ""}
        columns = ("asked for", "limit", "measured", "met")
        say([(v["what"], v["asked"], v["measured"], word[v["met"]]) for v in self.data["verdicts"]], columns)

    def close(self) -> int:
        """Says where everything is; the program's exit status."""
        if self.quick:
            print("  a quick run: these figures mean nothing")
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


def rows_of(section: Any) -> list[dict[str, Any]]:
    """A table's rows that are no errors."""
    return [row for row in section if not failed(row)] if isinstance(section, list) else []


def synchronize(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def medians_us(
    cases: dict[str, Callable[[], Any]], device: torch.device, rounds: int, warmup: int = 3, inner: int = 1
) -> dict[str, Any]:
    """Median time of each case in µs, the cases taking turns, so that a clock that drifts moves all of them.

    On CUDA between two events on the current stream (`inner` calls between them, for what is shorter than an event's
    resolution); on the CPU by the wall clock. A case that raises is its error and takes no further part.
    """
    found: dict[str, Any] = {}
    alive = dict(cases)

    def once(case: Callable[[], Any]) -> None:
        for _ in range(inner):
            case()

    for name, case in cases.items():
        result = attempt(lambda case=case: [once(case) for _ in range(warmup)] and synchronize(device))
        if failed(result):
            found[name] = result
            del alive[name]
    times: dict[str, list[Any]] = {name: [] for name in alive}
    for _ in range(rounds):
        for name, case in alive.items():
            if device.type == "cuda":
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                once(case)
                end.record()
                times[name].append((start, end))
            else:
                begun = time.perf_counter()
                once(case)
                times[name].append(time.perf_counter() - begun)
    synchronize(device)
    for name, spans in times.items():
        us = [1e3 * s[0].elapsed_time(s[1]) if isinstance(s, tuple) else 1e6 * s for s in spans]
        found[name] = statistics.median(us) / inner
    return {name: found[name] for name in cases}


def host_us(case: Callable[[], Any], device: torch.device, calls: int, burst: int = 16) -> float:
    """Median host time of one call in µs. The device is waited for between bursts, outside the clock, so that its queue
    never fills up and holds the host back."""
    times = []
    for _ in range(5):
        case()
    for k in range(calls):
        if k % burst == 0:
            synchronize(device)
        begun = time.perf_counter_ns()
        case()
        times.append(time.perf_counter_ns() - begun)
    synchronize(device)
    return statistics.median(times) / 1e3


def peak_bytes(case: Callable[[], Any], device: torch.device) -> int | None:
    """Device memory that a call needs at most beyond what was there before it; None where it cannot be told (CPU)."""
    if device.type != "cuda":
        case()
        return None
    case()
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    case()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def launches(case: Callable[[], Any], device: torch.device, calls: int = 10) -> dict[str, Any]:
    """Kernels a call launches, copies and fills beside them, launch calls from the host, and GPU time in µs."""
    if device.type != "cuda":
        case()
        return {"kernels": None, "fills_and_copies": None, "host_launches": None, "gpu_us": None, "us_by_kernel": {}}
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        case()
    synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            case()
        synchronize(device)
    kernels = fills = host = 0
    busy_us = 0.0
    by_kernel: dict[str, float] = {}
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            busy_us += event.time_range.elapsed_us()
            if event.name.startswith(("Memcpy", "Memset")):
                fills += 1
            else:
                kernels += 1
                by_kernel[event.name[:80]] = by_kernel.get(event.name[:80], 0.0) + event.time_range.elapsed_us() / calls
        elif event.name.startswith(("cudaLaunchKernel", "cuLaunchKernel")):
            host += 1
    return {
        "kernels": kernels / calls,
        "fills_and_copies": fills / calls,
        "host_launches": host / calls,
        "gpu_us": busy_us / calls,
        "us_by_kernel": by_kernel,
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


def say(rows: list[tuple[Any, ...]], head: tuple[str, ...]) -> None:
    """Prints a table with right-aligned columns; cases that failed and figures that are missing are said (the errors
    are in the JSON)."""

    def text(value: Any) -> str:
        if failed(value):
            return "left out"
        if value is None:
            return "not measured"
        if not isinstance(value, float):
            return str(value)
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"

    cells = [head, *(tuple(text(v) for v in row) for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    for row in cells:
        print("  " + "  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))))

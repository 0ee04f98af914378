"""Host time of the hooks' CUDA path, without a GPU: Python and native code down to the driver's door, beside torch's
own loss.

    python benches/scenarios/hook_host.py [--label after] [--blocks 60]

The driver double of ``tests/driver`` is in the driver's place and takes launches without running them; torch's CPU
tensors play CUDA ones. So the figures hold everything but two things that a GPU's machine adds: the driver's own time
for a launch (about 2.5 µs) and torch's CUDA allocator in the place of the host's. The stand-ins (a property for
``device``, a function for ``torch.empty``) cost some tenths of a microsecond that a real tensor does not.

``F.cross_entropy`` is timed on the CPU on two rows of two classes, so that its arithmetic is next to nothing.
Goals: ``loader.score`` 10 µs, ``loader.cross_entropy`` forward 20 µs. What counts is the processor's time of the
calling thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CALLS = 100
GOALS = {"loader.score": 10.0, "loader.cross_entropy": 20.0}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60, help=f"blocks of {CALLS} calls")
    parser.add_argument("--label", default="now", help="what is timed, for the record: before, after, a commit")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def with_the_double() -> int:
    """This program again, with the double in the driver's place."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-std=c++17", "-O1", "-Wno-unknown-pragmas", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
        sources = ["-I", str(ROOT / "kernels/cuda"), str(ROOT / "tests/driver/double.cpp"), "-o", f"{folder}/libcuda.so"]
        subprocess.run([os.environ.get("CXX", "c++"), *options, "-Wl,-soname,libcuda.so", *sources], check=True)
        paths = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        again = os.environ | {"LD_LIBRARY_PATH": paths, "LOSSFEED_ON_THE_DOUBLE": "1"}
        return subprocess.run([sys.executable, *sys.argv], env=again, check=False).returncode


def play_cuda(torch: Any) -> None:
    """CPU tensors are on ``cuda:0`` from now on, for whoever asks in Python."""
    import driver_double

    from lossfeed._torch import cuda as _cuda

    driver_double.call("set", b"idle", 1)
    # torch's threads have their device's context current.
    driver_double.driver("cuStreamIsCapturing", 0, driver_double.ctypes.byref(driver_double.ctypes.c_int()))
    stream, cuda, cpu = driver_double.call("stream"), torch.device("cuda", 0), torch.device("cpu")
    where = type("Stream", (), {"cuda_stream": stream})
    torch.version.cuda = torch.version.cuda or "12.8"
    torch.cuda.current_device = lambda: 0
    torch.cuda.current_stream = lambda device=None: where
    torch.cuda.is_current_stream_capturing = lambda: False
    if hasattr(_cuda, "raw_stream"):
        _cuda.raw_stream = lambda index: stream
    empty, to, aligned = torch.empty, torch.Tensor.to, {}

    def aligned_empty(shape: Any, dtype: Any = None, device: Any = None) -> Any:
        if dtype is not torch.uint8 or not isinstance(shape, int):
            return empty(shape, dtype=dtype)
        # Scratch starts at a multiple of 256; nobody writes to it here.
        if shape not in aligned:
            room = empty(shape + 256, dtype=torch.uint8)
            aligned[shape] = room[-room.data_ptr() % 256 :][:shape]
        return aligned[shape]

    def to_here(tensor: Any, *args: Any, **keywords: Any) -> Any:
        return to(tensor, *(cpu if a is cuda else a for a in args), **keywords)

    torch.empty, torch.Tensor.to = aligned_empty, to_here
    torch.Tensor.device = property(lambda tensor: cuda)
    torch.Tensor.is_cuda = property(lambda tensor: True)


def microseconds(call: Callable[[], Any], blocks: int) -> dict[str, float]:
    """µs a call: the processor's time of this thread (median of the blocks), which other work on the machine leaves
    alone, and by the clock."""
    for _ in range(3 * CALLS):
        call()
    worked, taken = [], []
    for _ in range(blocks):
        started, clock = time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        worked.append((time.thread_time_ns() - started) / CALLS / 1e3)
        taken.append((time.perf_counter_ns() - clock) / CALLS / 1e3)
    return {"host_us": statistics.median(worked), "clock_us": statistics.median(taken), "clock_best_us": min(taken)}


def loader_of(torch: Any, lf: Any, rows: int) -> tuple[Any, Any]:
    """A loader that plays one of a device, and a batch of it."""
    loader = lf.Loader((torch.zeros(4 * rows, 1), torch.arange(4 * rows) % 10), rows, shuffle=True, num_workers=0, framework="torch", stats=False)
    from lossfeed._torch.plans import Plans

    loader._account.plans = Plans()
    return loader, next(iter(loader))


def main() -> int:
    options = arguments()
    if "LOSSFEED_ON_THE_DOUBLE" not in os.environ:
        return with_the_double()
    sys.path.insert(0, str(ROOT / "tests/python"))
    import driver_double
    import torch

    import lossfeed as lf
    from record import RECORD, Record

    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    rows, classes = 256, 10
    small, pair = torch.randn(2, 2, requires_grad=True), torch.tensor([0, 1])
    found["F.cross_entropy"] = microseconds(lambda: torch.nn.functional.cross_entropy(small, pair), options.blocks)
    found["F.cross_entropy step"] = microseconds(lambda: torch.nn.functional.cross_entropy(small, pair).backward(), options.blocks)
    loader, batch = loader_of(torch, lf, rows)
    logits, target = torch.randn(rows, classes), batch.target.clone()
    half, grown = logits.bfloat16().requires_grad_(), logits.clone().requires_grad_()
    play_cuda(torch)
    calls: dict[str, Callable[[], Any]] = {
        "loader.score": lambda: loader.score(logits, batch),
        "loader.cross_entropy": lambda: loader.cross_entropy(grown, batch),
        "loader.cross_entropy bf16": lambda: loader.cross_entropy(half, batch),
        "loader.cross_entropy step": lambda: loader.cross_entropy(grown, batch).backward(),
        "lf.cross_entropy": lambda: lf.cross_entropy(grown, target),
        "lf.cross_entropy step": lambda: lf.cross_entropy(grown, target).backward(),
    }
    for name, call in calls.items():
        found[name] = microseconds(call, options.blocks)
    settings = {"rows": rows, "classes": classes, "blocks": options.blocks, "calls": CALLS}
    record = Record("hook-host", settings, options.date, options.record or RECORD)
    for name, us in found.items():
        goal = GOALS.get(name)
        verdict = "" if goal is None else f"  goal {goal:g}: {'met' if us['host_us'] <= goal else 'MISSED'}"
        print(f"{name:28} {us['host_us']:7.1f} µs   by the clock {us['clock_us']:7.1f}, best {us['clock_best_us']:7.1f}{verdict}", flush=True)
        record.add({"label": options.label, "call": name, **{k: round(v, 2) for k, v in us.items()}})
    # The mailbox is closed by a kernel, which must run.
    driver_double.call("set", b"idle", 0)
    loader.close()
    print(record.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

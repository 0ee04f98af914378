"""Runs a program of ``benches/gpu`` with tiny shapes as if there were a GPU: CPU tensors play CUDA ones, events are the
clock, a captured graph is the function itself, and the profiler tells a made-up story. So the lines that only a GPU
machine reaches are run where there is none; what the kernels do is another test's affair.

    python gpu_programs_played.py PROGRAM.py OUT [ARGUMENT…]
"""

import contextlib
import runpy
import sys
import time
import types
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

import lossfeed as lf
from lossfeed import _cuda

CPU = torch.device("cpu")
PROGRAMS = Path(__file__).resolve().parents[2] / "benches" / "gpu"


def here(value):
    """The CPU, for a CUDA device."""
    return CPU if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda")) else value


class Redirected(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        named = {k: here(v) for k, v in (kwargs or {}).items() if k != "pin_memory"}
        return function(*(here(a) for a in args), **named)


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, later):
        return 1e3 * max(later.at - self.at, 1e-7)


class Stream:
    def wait_stream(self, other):
        assert isinstance(other, Stream)


class Autocast(torch.autocast):
    def __init__(self, device_type, dtype=None, enabled=True):
        assert device_type == "cuda"
        super().__init__("cpu", dtype=dtype, enabled=enabled)


class Generator(torch.Generator):
    def __new__(cls, device=None):
        return super().__new__(cls)


class CUDAGraph:
    def replay(self):
        self.body()


@contextlib.contextmanager
def profiled(activities):
    """A kernel of everybody's, a copy and a launch a millisecond."""
    begun = time.perf_counter()
    seen = types.SimpleNamespace(spans=1)
    yield seen
    seen.spans = max(1, int((time.perf_counter() - begun) * 1e3))
    cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU

    def event(name, where, start, end):
        return types.SimpleNamespace(name=name, device_type=where, time_range=types.SimpleNamespace(start=start, end=end))

    told = [
        one
        for k in range(seen.spans)
        for one in (
            event("lossfeed_score_block_bf16", cuda, 1000 * k, 1000 * k + 990),
            event("Memcpy HtoD (Pinned -> Device)", cuda, 1000 * k, 1000 * k + 100),
            event("Memcpy DtoD (Device -> Device)", cuda, 1000 * k, 1000 * k + 100),
            event("cudaLaunchKernel", cpu, 1000 * k, 1000 * k + 5),
        )
    ]
    seen.events = lambda: told


class Played(lf.Loader):
    def __init__(self, *args, device=None, copy_path="auto", **keywords):
        super().__init__(*args, **keywords)


def play():
    only = Stream()
    properties = types.SimpleNamespace(name="played", major=9, minor=0, multi_processor_count=132, total_memory=1 << 36)
    cudart = types.SimpleNamespace(cudaHostRegister=lambda *a: 0, cudaHostUnregister=lambda *a: 0)
    names = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "current_stream": lambda device=None: only,
        "stream": lambda stream: contextlib.nullcontext(),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "get_device_properties": lambda device: properties,
        "mem_get_info": lambda device: (1 << 30, 1 << 36),
        "reset_peak_memory_stats": lambda device: None,
        "memory_allocated": lambda device: 0,
        "max_memory_allocated": lambda device: 1 << 20,
        "cudart": lambda: cudart,
        "check_error": lambda code: None,
        "Event": Event,
        "Stream": Stream,
        "CUDAGraph": CUDAGraph,
    }
    for name, value in names.items():
        setattr(torch.cuda, name, value)
    torch.autocast, torch.Generator = Autocast, Generator
    torch.profiler.profile = profiled
    loading = torch.utils.data.DataLoader
    torch.utils.data.DataLoader = lambda *args, pin_memory=False, **keywords: loading(*args, **keywords)
    staging, lf.Loader = lf.stage, Played
    lf.stage = lambda batches, device: staging(batches, "cpu")
    _cuda.kernels = lambda device: None if device.type == "cpu" else object()


def main():
    play()
    program, out, *more = sys.argv[1:]
    sys.path[:0] = [str(PROGRAMS)]
    import hook
    import peers

    def capture(body, warmup=3):
        graph = CUDAGraph()
        state = {}

        def again():
            made = body()
            if isinstance(state.get("made"), torch.Tensor):
                state["made"].data.copy_(made.data)
            state.setdefault("made", made)

        graph.body = again
        if warmup:
            again()
        return graph, state.get("made")

    hook.capture = capture
    for name in ("compiled", "liger", "quack"):
        peers.MAKERS[name] = peers.MAKERS["eager"]
    sys.argv = [program, "--device", "cuda", "--quick", "--out", out, *more]
    with Redirected():
        runpy.run_path(str(PROGRAMS / program), run_name="__main__")


if __name__ == "__main__":
    main()

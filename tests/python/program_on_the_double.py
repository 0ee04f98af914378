"""Runs a program of ``benches/gpu`` on the driver double, in whose eyes everything is on ``cuda:0``.

    python tests/python/program_on_the_double.py benches/gpu/correct.py --device cuda --quick …

The double is in the driver's place; torch's CPU tensors play CUDA ones. What torch itself does on a device is played by
the host, clocks included: a program's branches for a GPU are tried, no figure means anything.
"""

import contextlib
import runpy
import sys
import time
import types
from pathlib import Path

import torch
from driver_double import call, violations
from torch_on_the_double import Stream, on_the_double

BYTES = 32 << 30


class PlayedStream(Stream):
    """A stream of the double, as torch has it."""

    def __init__(self, device=None, priority=0, handle=None):
        self.cuda_stream = call("stream") if handle is None else handle

    def __eq__(self, other):
        return self.cuda_stream == other.cuda_stream

    __hash__ = None

    def synchronize(self):
        call("synchronize", self.cuda_stream)

    def wait_stream(self, other):
        other.synchronize()

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event


CURRENT = [PlayedStream(handle=Stream.cuda_stream)]


class Event:
    """The host's clock once the current stream has done what it was given."""

    def __init__(self, enable_timing=False, blocking=False):
        self.seconds = 0.0

    def record(self, stream=None):
        synchronize()
        self.seconds = time.perf_counter()

    def elapsed_time(self, other):
        return max(1e-3, 1e3 * (other.seconds - self.seconds))

    def query(self):
        return True

    def synchronize(self):
        pass

    def wait(self, stream=None):
        pass


def capture(body, warmup=3):
    """A graph whose replay runs the body once more, into the same memory."""

    def replay():
        for old, new in zip(tensors(outputs), tensors(body()), strict=True):
            with torch.no_grad():
                old.copy_(new)

    # What may run but once does not run while it is captured.
    outputs = body() if warmup else None
    return types.SimpleNamespace(replay=replay), outputs


def tensors(value):
    """All of a nested value's."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, tuple | list) else []


class Profile:
    """Makes up a kernel of ours, two copies and a launch for every millisecond, so that what reads them has something."""

    def __init__(self, **_):
        pass

    def __enter__(self):
        self.begun = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.milliseconds = int((time.perf_counter() - self.begun) * 1e3) + 1

    def events(self):
        cuda, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
        told = [
            ("lossfeed_score_block_bf16", cuda, 990),
            ("Memcpy HtoD (Pinned -> Device)", cuda, 100),
            ("Memcpy DtoD (Device -> Device)", cuda, 100),
            ("cudaLaunchKernel", cpu, 5),
        ]
        return [
            types.SimpleNamespace(name=name, device_type=where, time_range=types.SimpleNamespace(start=1000 * k, end=1000 * k + us))
            for k in range(min(self.milliseconds, 100))
            for name, where, us in told
        ]


class Generator(torch.Generator):
    """The host's, whatever device is named."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu")


class Autocast(torch.autocast):
    """The host's."""

    def __init__(self, device_type, *arguments, **keywords):
        super().__init__("cpu", *arguments, **keywords)


def synchronize(device=None):
    call("synchronize", CURRENT[-1].cuda_stream)


@contextlib.contextmanager
def stream(chosen):
    if chosen is None:
        yield
        return
    CURRENT.append(chosen)
    Stream.cuda_stream = chosen.cuda_stream
    try:
        yield
    finally:
        chosen.synchronize()
        CURRENT.pop()
        Stream.cuda_stream = CURRENT[-1].cuda_stream


def play():
    """torch.cuda, as a program sees it."""
    properties = types.SimpleNamespace(name="driver double", major=9, minor=0, multi_processor_count=132, total_memory=BYTES, L2_cache_size=50 << 20)
    played = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "device": lambda device: contextlib.nullcontext(),
        "synchronize": synchronize,
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: CURRENT[-1],
        "default_stream": lambda device=None: CURRENT[0],
        "stream": stream,
        "Stream": PlayedStream,
        "ExternalStream": lambda handle, device=None: PlayedStream(handle=handle),
        "Event": Event,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (9, 0),
        "cudart": lambda: types.SimpleNamespace(cudaHostRegister=lambda *a: 0, cudaHostUnregister=lambda *a: 0),
        "check_error": lambda code: None,
        "mem_get_info": lambda device=None: (1 << 30, BYTES),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
    }
    for name, value in played.items():
        setattr(torch.cuda, name, value)
    torch.Generator, torch.autocast, torch.profiler.profile = Generator, Autocast, Profile
    torch.Tensor.record_stream = lambda tensor, stream: None
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor
    torch.Tensor.is_pinned = lambda tensor, device=None: True


def main():
    program = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(program.parent))
    sys.argv = [str(program), *sys.argv[2:]]
    play()
    status = 0
    with on_the_double():
        import hook

        hook.capture = capture
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            status = end.code
    if found := violations():
        print(f"the driver would have punished:\n{found}")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())

"""torch's CPU tensors play CUDA ones, on the driver double: for programs of ``test_on_the_double.py``.

torch has no CUDA device here. A property tells everybody in Python that tensors are on ``cuda:0``, the double lets its
kernels reach all of the host's memory, and every operator of torch first waits for the stream, as the stream's order
would have it.
"""

import collections
import contextlib

import numpy as np
import torch
from driver_double import call
from torch.overrides import TorchFunctionMode

from lossfeed._torch import cuda, plans, probabilities, rows

STREAM = call("stream")
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
#: The handle of the stream that captures a graph, as torch and the driver are told; None for none.
_capturing = None


class Stream:
    cuda_stream = STREAM


torch.version.cuda = torch.version.cuda or "12.8"
torch.cuda.current_device = lambda: 0
torch.cuda.current_stream = lambda device=None: Stream
torch.cuda.is_current_stream_capturing = lambda: _capturing == Stream.cuda_stream
cuda.raw_stream = lambda index: Stream.cuda_stream
call("set", b"unified", 1)

#: A stream-ordered allocator gives memory back in the stream's order; the host's does at once, unless somebody holds
#: it.
kept = collections.deque(maxlen=20_000)


def aligned(*shape, dtype=None, device=None, size=None, **_):
    """Memory as torch's CUDA allocator gives it out: at multiples of 512 bytes, of any content."""
    shape = size or (shape[0] if len(shape) == 1 else shape)
    shape = (shape,) if isinstance(shape, int) else shape
    dtype = dtype or torch.get_default_dtype()
    size = int(np.prod(shape)) * dtype.itemsize
    room = torch.full((size + 512,), 0xDB, dtype=torch.uint8)
    start = -room.data_ptr() % 512
    return room[start : start + size].view(dtype).view(shape)


def is_device(value):
    """Whether torch takes it for one."""
    return isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))


class Redirected(TorchFunctionMode):
    """What is asked for on a device comes from the host, in the stream's order."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        call("synchronize", Stream.cuda_stream)
        here = [CPU if is_device(a) else a for a in args]
        named = {k: CPU if is_device(a) else a for k, a in (kwargs or {}).items()}
        made = aligned(*here, **named) if function is torch.empty else function(*here, **named)
        kept.append((args, made))
        return made


class Operators(TorchFunctionMode):
    """Notes the names of torch's functions that are called, but for what only reads a tensor's fields."""

    FIELDS = {"__get__", "stride", "data_ptr", "is_neg", "is_contiguous", "dim", "size"}

    def __init__(self, into):
        super().__init__()
        self.into = into

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ not in self.FIELDS:
            self.into.append(function.__name__)
        return function(*args, **(kwargs or {}))


def redirected_again(whole):
    """A backward runs inside of an operator, for whose time the mode is off; the operators of the graph behind it are
    C++."""

    def backward(ctx, *gradients):
        if torch.Tensor.device is HOSTS:
            return whole(ctx, *gradients)
        with Redirected():
            made = whole(ctx, *gradients)
        call("synchronize", Stream.cuda_stream)
        return made

    return staticmethod(backward)


HOSTS = torch.Tensor.device
for kind in (rows.RowLosses, plans.PlannedLoss, probabilities.ProbabilityLosses):
    kind.backward = redirected_again(kind.backward)


def on_device():
    """Whether tensors are on the double now."""
    return torch.Tensor.device is not HOSTS


@contextlib.contextmanager
def on_the_double():
    """CPU tensors are on ``cuda:0``, for whoever asks in Python."""
    if on_device():
        with Redirected():
            yield
        return
    torch.Tensor.device, torch.Tensor.is_cuda = property(lambda tensor: CUDA), property(lambda tensor: True)
    try:
        with Redirected():
            yield
    finally:
        del torch.Tensor.device, torch.Tensor.is_cuda
    call("synchronize", Stream.cuda_stream)


@contextlib.contextmanager
def capture(stream):
    """A graph is being captured on `stream`: nothing runs, in fact everything does, but driver and torch say so."""
    global _capturing
    _capturing = stream
    call("set", b"capturing", stream)
    try:
        yield
    finally:
        _capturing = None
        call("set", b"capturing", (1 << 64) - 1)


@contextlib.contextmanager
def on_stream(stream):
    """`stream` is torch's current one."""
    before, Stream.cuda_stream = Stream.cuda_stream, stream
    try:
        yield
    finally:
        Stream.cuda_stream = before

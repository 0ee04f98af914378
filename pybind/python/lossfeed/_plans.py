"""The hooks' short way on a CUDA device: what a call decides from shapes, types and keywords is decided once and kept as a plan.

A call that meets its plan reads some fields of two tensors and makes one native call. Everything else, wrong calls included, takes the
long way through :mod:`lossfeed._hook`, which says what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _cuda, _native
from ._scores import LOGIT_DTYPES, RANK_BASE

if TYPE_CHECKING:
    from ._batch import Batch
    from ._loader import Loader

#: Plans of a loader. A run has few shapes; one that has many must not fill the memory with them.
_PLANS_MAX = 256
#: Streams with scratch of their own, in the process.
_STREAMS_MAX = 64
#: Least bytes of scratch, so that small shapes share the first piece.
_SCRATCH_MIN = 1 << 16

_Tensor = torch.Tensor


class _Scratch:
    """Memory of one stream that serves call after call, in the stream's order."""

    __slots__ = ("address", "size", "memory")

    def __init__(self, device: torch.device, size: int) -> None:
        with _cuda.on(device):
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.address, self.size = self.memory.data_ptr(), size


_scratch: dict[tuple[int, int], _Scratch] = {}


def _more_scratch(device: torch.device, stream: int, size: int) -> _Scratch | None:
    """A piece of at least `size` bytes for this stream, which is the current one. The old one goes back to torch's allocator, in the
    stream's order. None in a capture: what is allocated there is the graph's own, and goes with it."""
    if torch.cuda.is_current_stream_capturing():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    if len(_scratch) >= _STREAMS_MAX:
        _scratch.pop(next(iter(_scratch)), None)
    made = _scratch[index, stream] = _Scratch(device, max(_SCRATCH_MIN, 1 << (size - 1).bit_length()))
    return made


class _Score:
    """The plan of a shape, and what it needs beside the addresses."""

    __slots__ = ("launch", "size", "device", "index", "mailbox")

    def __init__(self, plan: _native.ScorePlan, device: torch.device, mailbox: _native.Mailbox) -> None:
        self.launch, self.size = plan.launch, plan.scratch_bytes
        self.device, self.mailbox = device, mailbox
        self.index = torch.cuda.current_device() if device.index is None else device.index


class Plans:
    """A loader's plans. They do not refer to it: it ends when its last user lets go."""

    def __init__(self) -> None:
        #: None for what takes the long way.
        self._scores: dict[Any, _Score | None] = {}

    def score(self, loader: Loader, logits: Any, batch: Batch, ignore_index: int) -> bool:
        """:meth:`lossfeed.Loader.score` of logits with a row a sample, if a plan takes it; False if the long way must."""
        target = batch.target
        if type(logits) is not _Tensor or type(target) is not _Tensor:
            return False
        key = logits.shape, logits.stride(), logits.dtype, logits.device, target.shape, target.stride(), target.dtype, target.device, ignore_index
        plan = self._scores.get(key, key)
        if plan is key:
            plan = self._make(loader, key)
        if plan is None or logits.is_neg():
            return False
        stream = _cuda.raw_stream(plan.index)
        scratch = _scratch.get((plan.index, stream))
        if scratch is None or scratch.size < plan.size:
            scratch = _more_scratch(plan.device, stream, plan.size)
            if scratch is None:
                return False
        return plan.launch(plan.mailbox, batch._ticket, stream, logits.data_ptr(), target.data_ptr(), scratch.address)

    def _make(self, loader: Loader, key: Any) -> _Score | None:
        shape, strides, dtype, device, *target, ignore_index = key
        made = None
        if len(shape) == 2 and _readable(shape, strides, dtype) and target == [shape[:1], (1,), torch.int64, device]:
            native = _cuda.kernels(device)
            if native is not None:
                row_stride = strides[0] if shape[0] > 1 else shape[1]
                plan = _native.ScorePlan(native, str(dtype).removeprefix("torch."), *shape, row_stride, ignore_index, RANK_BASE)
                made = _Score(plan, device, _cuda.mailbox(loader, device))
        if len(self._scores) >= _PLANS_MAX:
            self._scores.clear()
        self._scores[key] = made
        return made


def _readable(shape: Any, strides: Any, dtype: torch.dtype) -> bool:
    """Whether the kernels read such rows in place, as :func:`lossfeed._rows.readable` has it."""
    (rows, classes), (row, column) = shape, strides
    plain = (column == 1 or classes == 1) and (row >= classes or rows == 1 or row == 0)
    return plain and rows > 0 and classes > 0 and str(dtype).removeprefix("torch.") in LOGIT_DTYPES

"""Plans: what a call on a CUDA device decides from shapes, types and keywords, decided once.

A call that meets its plan reads some fields of its tensors and makes one native call. Everything else, wrong calls
included, is left to :mod:`lossfeed._torch.hook` and :mod:`lossfeed._torch.cross_entropy`, which say what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from .. import _native
from .._loss.columns import LOGIT_DTYPES, RANK_BASE
from . import cuda
from .rows import composite_gradient

if TYPE_CHECKING:
    from .._loss.scoring import Account
    from .._batch.batch import Batch

#: Plans of a kind. A run has few shapes; one that has many must not fill the memory with them.
_PLANS_MAX = 256
#: Streams with scratch of their own, in the process.
_STREAMS_MAX = 64
#: Least bytes of scratch, so that small shapes share the first piece.
_SCRATCH_MIN = 1 << 16

_Tensor = torch.Tensor
#: In the place of a plan that nobody has made yet.
_UNMADE: Any = object()
#: The name of the logits' dtype, how many rows and classes, and the elements from row to row.
_Rows = tuple[str, int, int, int]


class _Scratch:
    """Memory that serves call after call in the order of its stream: the one that is current when it is made."""

    __slots__ = ("address", "size", "memory")

    def __init__(self, device: torch.device, size: int) -> None:
        with cuda.on(device):
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.address, self.size = self.memory.data_ptr(), size


#: By device and stream.
_scratch: dict[tuple[int, int], _Scratch] = {}


def _scratch_of(plan: _Plan, stream: int) -> _Scratch:
    """A piece of at least the plan's size. Whoever uses it keeps it until the launch is queued: another thread may
    put a larger one in its place, and it goes back to torch's allocator, in the stream's order, with its last user."""
    found = _scratch.get((plan.index, stream))
    if found is not None and found.size >= plan.size:
        return found
    # What is allocated in a capture is the graph's own, and ends with it.
    if torch.cuda.is_current_stream_capturing():
        return _Scratch(plan.device, plan.size)
    if len(_scratch) >= _STREAMS_MAX:
        _scratch.pop(next(iter(_scratch)), None)
    made = _scratch[plan.index, stream] = _Scratch(plan.device, max(_SCRATCH_MIN, 1 << (plan.size - 1).bit_length()))
    return made


class _Plan:
    """A native plan, and what a call needs beside the addresses."""

    __slots__ = ("native", "size", "device", "index", "mailbox", "real", "dtype", "kept")
    #: A loss's arithmetic and its own type, and how many numbers its backward needs of the rows.
    real: torch.dtype
    dtype: torch.dtype
    kept: int

    def __init__(self, native: Any, device: torch.device, mailbox: _native.Mailbox | None) -> None:
        self.native, self.size = native, native.scratch_bytes
        self.device, self.mailbox = device, mailbox
        self.index = torch.cuda.current_device() if device.index is None else device.index


class Plans:
    """The plans of a loader's account, or those of no loader."""

    def __init__(self) -> None:
        #: None for what no plan takes.
        self._scores: dict[Any, _Plan | None] = {}
        self._losses: dict[Any, _Plan | None] = {}

    def score(self, account: Account, logits: Any, batch: Batch, ignore_index: int) -> bool:
        """:meth:`lossfeed.Loader.score` of logits with a row a sample, if a plan takes it; False if none does."""
        target = batch.target
        if type(logits) is not _Tensor or type(target) is not _Tensor:
            return False
        key = (
            *(logits.shape, logits.stride(), logits.dtype, logits.device),
            *(target.shape, target.stride(), target.dtype, target.device),
            ignore_index,
        )
        plan = self._scores.get(key, _UNMADE)
        if plan is _UNMADE:
            plan = _make(self._scores, key, account, _score_plan)
        if plan is None or logits.is_neg() or len(batch._ticket) != key[0][0]:
            return False
        stream = cuda.raw_stream(plan.index)
        scratch = _scratch_of(plan, stream)
        there = stream, logits.data_ptr(), target.data_ptr()
        if not plan.native.launch(plan.mailbox, batch._ticket, *there, scratch.address):
            assert plan.mailbox is not None
            scratch, ids = _Scratch(plan.device, plan.size), cuda.captured_ids(plan.mailbox, batch, plan.device)
            plan.native.launch(plan.mailbox, None, *there, scratch.address, ids)
        return True

    def cross_entropy(
        self,
        logits: Any,
        target: Any,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
        overwrite: bool,
        account: Account | None = None,
        batch: Batch | None = None,
        sample_weight: Any = None,
    ) -> Any:
        """The mean or the sum of the rows' losses, times `sample_weight` where given, if a plan takes it; None if
        none does. The scores go to the batch where one is given, a row a sample."""
        if type(logits) is not _Tensor or type(target) is not _Tensor:
            return None
        wide = torch.is_autocast_enabled("cuda")
        key = (
            *(logits.shape, logits.stride(), logits.dtype, logits.device),
            *(target.shape, target.stride(), target.dtype, target.device),
            *(ignore_index, reduction, label_smoothing, wide),
        )
        plan = self._losses.get(key, _UNMADE)
        if plan is _UNMADE:
            plan = _make(self._losses, key, account, _loss_plan)
        # Inside vmap, grad and their like the tensors stand for others.
        if plan is None or logits.is_neg() or torch._C._functorch.peek_interpreter_stack() is not None:
            return None
        # A launch has no tangent; who sees whether there is one comes after.
        if forward_ad._current_level >= 0 or (batch is not None and len(batch._ticket) != key[0][0]):
            return None
        # The kernels read weights as they lie: a batch that was moved to another dtype has others.
        if sample_weight is not None and not (
            sample_weight.device == key[3] and sample_weight.dtype is torch.float32 and sample_weight.is_contiguous()
        ):
            return None
        if logits.requires_grad and torch.is_grad_enabled():
            return PlannedLoss.apply(logits, target, sample_weight, plan, batch, overwrite)
        return _launch_loss(plan, logits, target, sample_weight, batch)[0]


#: Of losses without a loader.
FREE = Plans()


def _launch_loss(
    plan: _Plan, logits: torch.Tensor, target: torch.Tensor, sample_weight: Any, batch: Batch | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and what its backward needs of the rows: maxima, log-sums, and the divisor of the mean."""
    stream = cuda.raw_stream(plan.index)
    loss = torch.empty((), dtype=plan.dtype, device=plan.device)
    kept = torch.empty(plan.kept, dtype=plan.real, device=plan.device)
    scratch = _scratch_of(plan, stream)
    weight = 0 if sample_weight is None else sample_weight.data_ptr()
    there = stream, logits.data_ptr(), target.data_ptr(), weight, loss.data_ptr(), kept.data_ptr()
    if not plan.native.forward(plan.mailbox, None if batch is None else batch._ticket, *there, scratch.address):
        scratch = _Scratch(plan.device, plan.size)
        ids = 0 if batch is None or plan.mailbox is None else cuda.captured_ids(plan.mailbox, batch, plan.device)
        plan.native.forward(plan.mailbox, None, *there, scratch.address, True, ids)
    return loss, kept


class PlannedLoss(torch.autograd.Function):
    """The loss of a plan: one call forward, one backward. The gradient has a gradient: asked for one
    (``create_graph``), the backward is torch's own operators."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        sample_weight: torch.Tensor | None,
        plan: _Plan,
        batch: Batch | None,
        overwrite: bool,
    ) -> torch.Tensor:
        loss, kept = _launch_loss(plan, logits, target, sample_weight, batch)
        # The logits and not the softmax: half the memory of a saved log-softmax for half-precision logits, none beyond
        # what the caller holds anyway.
        ctx.save_for_backward(logits, target, sample_weight, kept)
        ctx.plan, ctx.overwrite = plan, overwrite
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        logits, target, sample_weight, kept = ctx.saved_tensors
        plan = ctx.plan
        if torch.is_grad_enabled():
            gradient = _composite(plan, logits, target, sample_weight, kept, grad)
        else:
            grad = grad.resolve_neg()
            here = ctx.overwrite and logits.is_contiguous()
            gradient = logits.detach() if here else torch.empty(logits.shape, dtype=logits.dtype, device=plan.device)
            weight = 0 if sample_weight is None else sample_weight.data_ptr()
            there = logits.data_ptr(), target.data_ptr(), weight, kept.data_ptr(), grad.data_ptr(), gradient.data_ptr()
            plan.native.backward(cuda.raw_stream(plan.index), *there)
            if here:
                # Whoever saved these logits for a backward of their own is told by autograd.
                torch.autograd.graph.increment_version(logits)
        return gradient, None, None, None, None, None


def _composite(
    plan: _Plan, logits: Any, target: Any, sample_weight: Any, kept: Any, grad: torch.Tensor
) -> torch.Tensor:
    ignore_index, mean, label_smoothing = plan.native.settings
    # One a row before the weights: a number without a dimension would take on their single precision.
    term = (grad.to(plan.real) / kept[-1] if mean else grad.to(plan.real)).expand(len(logits))
    term = term if sample_weight is None else term * sample_weight
    return composite_gradient(logits, target, None, ignore_index, label_smoothing, term)


# ---- making plans ---------------------------------------------------------------------------------------------------


def _make(plans: dict[Any, _Plan | None], key: Any, account: Account | None, kind: Any) -> _Plan | None:
    shape, strides, dtype, device, *target = key[:8]
    made = None
    if _readable(shape, strides, dtype) and target == [shape[:1], (1,), torch.int64, device]:
        native = cuda.kernels(device)
        if native is not None:
            row_stride = strides[0] if shape[0] > 1 else shape[1]
            made = kind(native, (str(dtype).removeprefix("torch."), *shape, row_stride), key, account)
    if len(plans) >= _PLANS_MAX:
        plans.clear()
    plans[key] = made
    return made


def _readable(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether the kernels read such rows in place, as :func:`lossfeed._torch.forward.readable` has it."""
    if len(shape) != 2 or 0 in shape or str(dtype).removeprefix("torch.") not in LOGIT_DTYPES:
        return False
    (rows, classes), (row, column) = shape, strides
    return (column == 1 or classes == 1) and (row >= classes or rows == 1 or row == 0)


def _score_plan(native: _native.CudaKernels, rows: _Rows, key: Any, account: Any) -> _Plan:
    return _Plan(_native.ScorePlan(native, *rows, key[8], RANK_BASE), key[3], cuda.mailbox(account, key[3]))


def _loss_plan(native: _native.CudaKernels, rows: _Rows, key: Any, account: Account | None) -> _Plan | None:
    ignore_index, reduction, label_smoothing, wide = key[8:]
    if reduction not in ("mean", "sum") or not 0.0 <= label_smoothing <= 1.0:
        return None
    dtype, device, mailbox = key[2], key[3], None if account is None else cuda.mailbox(account, key[3])
    narrow = dtype.itemsize == 2 and not wide
    mean = reduction == "mean"
    native_plan = _native.LossPlan(native, *rows, ignore_index, label_smoothing, mean, narrow, RANK_BASE)
    made = _Plan(native_plan, device, mailbox)
    made.real = torch.float64 if dtype == torch.float64 else torch.float32
    made.dtype, made.kept = dtype if narrow else made.real, 2 * key[0][0] + 1
    return made

"""Cross entropy of ``(R, C)`` logits against class indices: one read forward, one read and one write back.

The same two functions serve eager autograd (:class:`RowTerms`) and compiled graphs (``torch.ops.lossfeed.rows_forward`` and
``rows_backward``); imported only by functions that were handed a tensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from . import _cuda, _native
from ._memory import dtype_name, span, to_torch
from ._scores import RANK_BASE, RowScores

# On the CPU the loss shares torch's threads and heeds `torch.set_num_threads`: a second pool would fight torch's, whose idle
# workers spin.
_native.use_torch_threads()


class Forward(NamedTuple):
    """What a forward returns: the differentiable column, and the rest."""

    term: torch.Tensor
    """``(R,)``: each row's loss with class weight and smoothing; 0 where ignored."""
    rest: torch.Tensor
    """``(6, R)``: share (what the row adds to the denominator of a mean), loss, max, log_sum, grad_norm, entropy."""
    correct: torch.Tensor
    """uint8 ``(R,)``; 255 where ignored."""
    count: torch.Tensor | None = None
    """int32 ``(R,)``: rank counts; -1 where there is none. None: nobody asked for ranks."""
    rank_score: torch.Tensor | None = None
    """float32 ``(R,)``, from :func:`forward` alone: training has no use for it."""

    def scores(self) -> RowScores:
        """The scores of the plain loss."""
        _, loss, _, _, grad_norm, entropy = self.rest.unbind()
        return RowScores(loss, grad_norm, entropy, self.correct, self.count, self.rank_score)

    @property
    def softmax(self) -> torch.Tensor:
        """``(2, R)``: what :func:`backward` needs of the rows: the largest logit, and ln of the sum of exp(z - that). Apart, for their
        sum is rounded to the last place of the logits' offset."""
        return self.rest[2:4]


class Reduction(NamedTuple):
    """How a launch on CUDA makes one number of its terms."""

    mean: bool
    """Over the shares; else the sum."""
    dtype: torch.dtype
    """The result's: the logits', or :func:`real_dtype`."""
    sample_weight: torch.Tensor | None = None
    """float32 ``(B,)``, contiguous, on the device: a factor of each sample's terms. A sample is R / B neighbouring rows."""


def real_dtype(logits: torch.Tensor) -> torch.dtype:
    """The precision of the arithmetic: float64 for float64 logits, else float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def readable(rows: torch.Tensor) -> torch.Tensor:
    """`rows` as the kernels read them: any row stride, the classes of a row side by side. Copies only what is not."""
    rows = rows.detach()
    if rows.is_neg():
        rows = rows.resolve_neg()
    count, classes = rows.shape
    if (rows.stride(1) != 1 and classes > 1) or (rows.stride(0) < classes and count > 1 and rows.stride(0) != 0):
        rows = rows.contiguous()
    return rows


def class_indices(target: torch.Tensor) -> torch.Tensor:
    """`target` as the kernels read it: int64, side by side. Copies only what is not."""
    return target.detach().to(torch.int64).contiguous()


def _plain(values: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if values is None else values.detach().to(dtype).contiguous()


@torch.compiler.assume_constant_result
def native_on(device: torch.device) -> bool:
    """Whether the native kernels run on this device."""
    return device.type == "cpu" or _cuda.kernels(device) is not None


def forward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    home: _cuda.Home = _cuda.NOWHERE,
    ranks: bool = True,
    reduction: Reduction | None = None,
) -> Forward:
    """The forward through the native kernels, on the logits' device. ``weight``: ``(C,)`` or None. ``home``: where a CUDA launch
    mails the scores, if it does. ``ranks``: whether anybody looks at them (a CPU ranks anyway). ``reduction``: on CUDA, makes ``term``
    one number and leaves the mean's divisor in ``rest[0, 0]``.

    Raises:
        SampleError: a target outside the classes, with its row; on CUDA at a later call, for this one does not wait.
    """
    rows, labels = readable(logits), class_indices(target)
    weight = _plain(weight, real_dtype(rows))
    if (native := _cuda.kernels(rows.device)) is not None:
        return _cuda.forward(native, rows, labels, weight, ignore_index, label_smoothing, home, ranks, reduction)
    count, classes = rows.shape
    fields = _native.forward_rows(
        span(rows),
        dtype_name(rows),
        count,
        classes,
        rows.stride(0) if count > 1 else classes,
        span(labels),
        ignore_index,
        RANK_BASE,
        None if weight is None else span(weight),
        label_smoothing,
    )
    real = str(real_dtype(rows)).removeprefix("torch.")
    return Forward(
        to_torch(fields[0], real, (count,)),
        to_torch(fields[1], real, (6, count)),
        to_torch(fields[2], "uint8", (count,)),
        to_torch(fields[3], "int32", (count,)),
        to_torch(fields[4], "float32", (count,)),
    )


def backward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softmax: torch.Tensor,
    grad_term: torch.Tensor,
    overwrite: bool = False,
    divisor: torch.Tensor | None = None,
    sample_weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of ``(grad_term * term).sum()`` at the logits, contiguous, in their dtype. ``softmax``: the forward's.
    ``overwrite``: it takes the place of the logits where those are contiguous. On CUDA ``grad_term`` may be one number without a dimension
    in the dtype of a reduced loss, to be divided by ``divisor`` and multiplied with each sample's weight."""
    real = real_dtype(logits)
    labels, softmax = class_indices(target), softmax.detach().contiguous()
    # The mean and the sum hand down one number, expanded.
    one = grad_term.dim() > 0 and len(grad_term) > 1 and grad_term.stride(0) == 0
    upstream = grad_term.detach() if grad_term.dim() == 0 else _plain(grad_term[:1] if one else grad_term, real)
    weight = _plain(weight, real)
    overwrite = overwrite and logits.is_contiguous() and not logits.is_neg()
    rows = logits.detach() if overwrite else readable(logits)
    count, classes = rows.shape
    out = rows if overwrite else torch.empty((count, classes), dtype=rows.dtype, device=rows.device)
    if (native := _cuda.kernels(rows.device)) is not None:
        _cuda.backward(native, rows, labels, weight, ignore_index, label_smoothing, softmax, upstream, out, divisor, sample_weight)
    else:
        _native.backward_rows(
            None if overwrite else span(rows),
            dtype_name(rows),
            count,
            classes,
            rows.stride(0) if count > 1 else classes,
            span(softmax),
            span(labels),
            ignore_index,
            None if weight is None else span(weight),
            label_smoothing,
            span(upstream),
            span(out),
        )
    if overwrite:
        # Whoever saved these logits for a backward of their own is told by autograd.
        torch.autograd.graph.increment_version(logits)
    return out


def composite_gradient(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    grad_term: torch.Tensor,
) -> torch.Tensor:
    """:func:`backward` in torch's own operators, on any device: differentiable itself, and what the native one is tested against."""
    real, classes = real_dtype(logits), logits.shape[1]
    valid = target != ignore_index
    index = torch.where(valid, target, torch.zeros_like(target))
    w = torch.ones(classes, dtype=real, device=logits.device) if weight is None else weight.to(real)
    g = torch.where(valid, grad_term.to(real), torch.zeros((), dtype=real, device=logits.device))
    own = g * (1.0 - label_smoothing) * w[index]
    spread = g * (label_smoothing / classes)
    p = torch.softmax(logits, dim=-1, dtype=real)
    gradient = p * (own + spread * w.sum()).unsqueeze(1) - spread.unsqueeze(1) * w
    gradient = gradient.scatter_add(1, index.unsqueeze(1), -own.unsqueeze(1))
    # An ignored row may hold anything, NaN too: it has no gradient.
    return torch.where(valid.unsqueeze(1), gradient, torch.zeros_like(gradient)).to(logits.dtype)


class RowTerms(torch.autograd.Function):
    """(term, rest, correct, count) of :class:`Forward`. The gradient has a gradient: asked for one (``create_graph``), the
    backward is :func:`composite_gradient`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignore_index: int,
        label_smoothing: float,
        overwrite: bool,
        home: _cuda.Home,
        ranks: bool,
    ) -> tuple[torch.Tensor | None, ...]:
        found = forward(logits, target, weight, ignore_index, label_smoothing, home, ranks)
        # The logits and not the softmax: half the memory of a saved log-softmax for half-precision logits, none beyond
        # what the caller holds anyway.
        ctx.save_for_backward(logits, target, weight, found.softmax)
        ctx.settings = ignore_index, label_smoothing
        ctx.overwrite = overwrite
        ctx.mark_non_differentiable(*(column for column in found[1:4] if column is not None))
        return tuple(found[:4])

    @staticmethod
    def backward(ctx: Any, grad_term: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        logits, target, weight, softmax = ctx.saved_tensors
        if torch.is_grad_enabled():
            gradient = composite_gradient(logits, target, weight, *ctx.settings, grad_term)
        else:
            gradient = backward(logits, target, weight, *ctx.settings, softmax, grad_term, ctx.overwrite)
        return gradient, None, None, None, None, None, None, None


class RowsReduced(torch.autograd.Function):
    """(mean or sum, rest, correct) of :class:`Forward` on CUDA: one launch forward, one backward. The gradient has a gradient, as that of
    :class:`RowTerms`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignore_index: int,
        label_smoothing: float,
        overwrite: bool,
        home: _cuda.Home,
        reduction: Reduction,
    ) -> tuple[torch.Tensor, ...]:
        found = forward(logits, target, weight, ignore_index, label_smoothing, home, False, reduction)
        ctx.save_for_backward(logits, target, weight, found.rest, reduction.sample_weight)
        ctx.settings = ignore_index, label_smoothing
        ctx.overwrite, ctx.mean = overwrite, reduction.mean
        ctx.mark_non_differentiable(found.rest, found.correct)
        return tuple(found[:3])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        logits, target, weight, rest, sample_weight = ctx.saved_tensors
        divisor = rest[0, :1] if ctx.mean else None
        if torch.is_grad_enabled():
            each = grad.to(rest.dtype) if divisor is None else grad.to(rest.dtype) / divisor
            each = each.expand(len(logits))
            if sample_weight is not None:
                each = each * sample_weight.repeat_interleave(len(logits) // len(sample_weight))
            gradient = composite_gradient(logits, target, weight, *ctx.settings, each)
        else:
            gradient = backward(logits, target, weight, *ctx.settings, rest[2:4], grad, ctx.overwrite, divisor, sample_weight)
        return gradient, None, None, None, None, None, None, None


# ---- compiled graphs -----------------------------------------------------------------------------------------------


@torch.library.custom_op("lossfeed::rows_forward", mutates_args=())
def rows_forward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: Optional[torch.Tensor],
    ignore_index: int,
    label_smoothing: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`forward` as an operator. Nobody looks at its ranks: what goes home is ranked where it is credited."""
    return tuple(forward(logits, target, weight, ignore_index, label_smoothing, ranks=False)[:3])  # type: ignore[return-value]


@rows_forward.register_fake
def _(logits, target, weight, ignore_index, label_smoothing):  # type: ignore[no-untyped-def]
    rows, real = logits.shape[0], real_dtype(logits)
    return (
        logits.new_empty((rows,), dtype=real),
        logits.new_empty((6, rows), dtype=real),
        logits.new_empty((rows,), dtype=torch.uint8),
    )


@torch.library.custom_op("lossfeed::rows_backward", mutates_args=())
def rows_backward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: Optional[torch.Tensor],
    ignore_index: int,
    label_smoothing: float,
    softmax: torch.Tensor,
    grad_term: torch.Tensor,
) -> torch.Tensor:
    """:func:`backward` as an operator."""
    return backward(logits, target, weight, ignore_index, label_smoothing, softmax, grad_term)


@rows_backward.register_fake
def _(logits, target, weight, ignore_index, label_smoothing, softmax, grad_term):  # type: ignore[no-untyped-def]
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _save_forward(ctx: Any, inputs: tuple, output: tuple) -> None:
    logits, target, weight, ignore_index, label_smoothing = inputs
    ctx.save_for_backward(logits, target, weight, output[1])
    ctx.settings = ignore_index, label_smoothing
    ctx.set_materialize_grads(False)


def _backward_of_forward(ctx: Any, grad_term: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    logits, target, weight, rest = ctx.saved_tensors
    gradient = None
    if grad_term is not None:
        gradient = torch.ops.lossfeed.rows_backward(logits, target, weight, *ctx.settings, rest[2:4].detach(), grad_term)
    return gradient, None, None, None, None


def _save_backward(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    logits, target, weight, ignore_index, label_smoothing, _, grad_term = inputs
    ctx.save_for_backward(logits, target, weight, grad_term)
    ctx.settings = ignore_index, label_smoothing


def _backward_of_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    logits, target, weight, grad_term = ctx.saved_tensors
    with torch.enable_grad():
        z, g = logits.detach().requires_grad_(), grad_term.detach().requires_grad_()
        gradient = composite_gradient(z, target, weight, *ctx.settings, g)
        at_logits, at_term = torch.autograd.grad(gradient, (z, g), grad)
    return at_logits, None, None, None, None, None, at_term


torch.library.register_autograd("lossfeed::rows_forward", _backward_of_forward, setup_context=_save_forward)
torch.library.register_autograd("lossfeed::rows_backward", _backward_of_backward, setup_context=_save_backward)


def terms(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    overwrite: bool = False,
    home: _cuda.Home = _cuda.NOWHERE,
    ranks: bool = True,
) -> Forward:
    """:class:`Forward` with a differentiable ``term``, as suits the caller: eager, or being compiled (then without ranks)."""
    if torch.compiler.is_compiling():
        return Forward(*torch.ops.lossfeed.rows_forward(logits, target, weight, ignore_index, label_smoothing))
    return Forward(*RowTerms.apply(logits, target, weight, ignore_index, label_smoothing, overwrite, home, ranks))


def reduced(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    overwrite: bool,
    home: _cuda.Home,
    reduction: Reduction,
) -> Forward:
    """:class:`Forward` whose ``term`` is one differentiable number, on CUDA and outside of a compiler."""
    return Forward(*RowsReduced.apply(logits, target, weight, ignore_index, label_smoothing, overwrite, home, reduction))

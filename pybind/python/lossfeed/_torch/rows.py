"""Cross entropy of ``(R, C)`` logits against class indices: one read forward, one read and one write back.

:func:`forward` and :func:`backward` serve eager autograd (:class:`RowLosses`) and compiled graphs alike
(``torch.ops.lossfeed.rows_forward`` and ``rows_backward``).
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _native
from .._base.memory import dtype_name, span, to_torch
from .._loss.columns import RANK_BASE
from . import cuda
from .forward import KINDS, Forward, Reduction, class_indices, plain, readable, real_dtype

# On the CPU the loss shares torch's threads and heeds `torch.set_num_threads`: a second pool would fight torch's, whose
# idle workers spin.
_native.use_torch_threads()


def native_on(device: torch.device) -> bool:
    """Whether the native kernels run on this device."""
    return device.type == "cpu" or cuda.kernels(device) is not None


# A compiled graph takes the answer for a constant. This mark is all that `torch.compiler.assume_constant_result` sets,
# but calling that imports Dynamo: two seconds for everyone, compiled or not.
native_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


def forward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    home: cuda.Home = cuda.NOWHERE,
    ranks: bool = True,
    reduction: Reduction | None = None,
) -> Forward:
    """The forward through the native kernels, on the logits' device.

    Args:
        weight: ``(C,)`` or None.
        home: where a CUDA launch mails the scores, if it does.
        ranks: whether anybody looks at them; the CPU ranks anyway.
        reduction: on CUDA, makes ``term`` one number and leaves the mean's divisor in ``rest[0, 0]``.

    Raises:
        SampleError: a target outside the classes, with its row; on CUDA at a later call, for this one does not wait.
    """
    kind, real, real_name = KINDS[logits.dtype]
    rows = logits.detach() if logits.is_contiguous() and not logits.is_neg() else readable(logits)
    labels, weight = class_indices(target), plain(weight, real)
    if (native := cuda.kernels(rows.device)) is not None:
        return cuda.forward(native, rows, labels, weight, ignore_index, label_smoothing, home, ranks, reduction)
    count, classes = rows.shape
    row_stride = rows.stride(0) if count > 1 else classes
    weights = None if weight is None else span(weight)
    shape = kind, count, classes, row_stride
    settings = ignore_index, RANK_BASE, weights, label_smoothing
    fields = _native.forward_rows(span(rows), *shape, span(labels), *settings)
    return Forward(
        to_torch(fields[0], real_name, (count,)),
        to_torch(fields[1], real_name, (6, count)),
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
    """The gradient of ``(grad_term * term).sum()`` at the logits, contiguous, in their dtype.

    Args:
        softmax: the forward's.
        grad_term: one number a row. On CUDA it may be one number without a dimension, in the dtype of a reduced loss;
            it is divided by `divisor` and multiplied with each sample's weight.
        overwrite: the gradient takes the place of the logits where those are contiguous.
    """
    real = real_dtype(logits)
    labels, softmax = class_indices(target), softmax.detach().contiguous()
    # The mean and the sum hand down one number, expanded.
    one = grad_term.dim() > 0 and len(grad_term) > 1 and grad_term.stride(0) == 0
    upstream = grad_term.detach() if grad_term.dim() == 0 else plain(grad_term[:1] if one else grad_term, real)
    weight = plain(weight, real)
    overwrite = overwrite and logits.is_contiguous() and not logits.is_neg()
    rows = logits.detach() if overwrite else readable(logits)
    count, classes = rows.shape
    out = rows if overwrite else torch.empty((count, classes), dtype=rows.dtype, device=rows.device)
    if (native := cuda.kernels(rows.device)) is not None:
        settings = ignore_index, label_smoothing
        cuda.backward(native, rows, labels, weight, *settings, softmax, upstream, out, divisor, sample_weight)
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
    """:func:`backward` in torch's own operators, on any device. It is differentiable itself, and what the native one is
    tested against."""
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


class RowLosses(torch.autograd.Function):
    """(term, rest, correct, count) of :class:`Forward`; with a reduction, which is for CUDA, ``term`` is one number.

    The gradient has a gradient: asked for one (``create_graph``), the backward is :func:`composite_gradient`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None,
        ignore_index: int,
        label_smoothing: float,
        overwrite: bool,
        home: cuda.Home,
        reduction: Reduction | None,
    ) -> tuple[torch.Tensor | None, ...]:
        found = forward(logits, target, weight, ignore_index, label_smoothing, home, False, reduction)
        # The logits and not the softmax: half the memory of a saved log-softmax for half-precision logits, none beyond
        # what the caller holds anyway.
        sample_weight = None if reduction is None else reduction.sample_weight
        ctx.save_for_backward(logits, target, weight, found.rest, sample_weight)
        ctx.settings = ignore_index, label_smoothing
        ctx.overwrite, ctx.mean = overwrite, reduction is not None and reduction.mean
        ctx.mark_non_differentiable(found.rest, found.correct, *(() if found.rank_count is None else (found.rank_count,)))
        return tuple(found[:4])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        logits, target, weight, rest, sample_weight = ctx.saved_tensors
        divisor = rest[0, :1] if ctx.mean else None
        ignore_index, label_smoothing = ctx.settings
        if torch.is_grad_enabled():
            each = grad if grad.dim() else _each_row(grad.to(rest.dtype), divisor, sample_weight, len(logits))
            gradient = composite_gradient(logits, target, weight, ignore_index, label_smoothing, each)
        else:
            of_logits = logits, target, weight, ignore_index, label_smoothing, rest[2:4]
            gradient = backward(*of_logits, grad, ctx.overwrite, divisor, sample_weight)
        return gradient, None, None, None, None, None, None, None


def _each_row(
    grad: torch.Tensor, divisor: torch.Tensor | None, sample_weight: torch.Tensor | None, rows: int
) -> torch.Tensor:
    """The gradient at a reduced loss as one at each row's term."""
    each = (grad if divisor is None else grad / divisor).expand(rows)
    return each if sample_weight is None else each * sample_weight.repeat_interleave(rows // len(sample_weight))


# ---- compiled graphs ------------------------------------------------------------------------------------------------

# Schemas are written out: PyTorch 2.4 cannot read them from annotations that are text.
_INPUTS = "Tensor logits, Tensor target, Tensor? weight, int ignore_index, float label_smoothing"


@torch.library.custom_op("lossfeed::rows_forward", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor, Tensor)")
def rows_forward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`forward` as an operator. Nobody looks at its ranks: what goes home is ranked where it is credited."""
    found = forward(logits, target, weight, ignore_index, label_smoothing, ranks=False)
    return found.term, found.rest, found.correct


@rows_forward.register_fake
def _(logits, target, weight, ignore_index, label_smoothing):  # type: ignore[no-untyped-def]
    rows, real = logits.shape[0], real_dtype(logits)
    return (
        logits.new_empty((rows,), dtype=real),
        logits.new_empty((6, rows), dtype=real),
        logits.new_empty((rows,), dtype=torch.uint8),
    )


@torch.library.custom_op(
    "lossfeed::rows_backward", mutates_args=(), schema=f"({_INPUTS}, Tensor softmax, Tensor grad_term) -> Tensor"
)
def rows_backward(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
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


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    logits, target, weight, ignore_index, label_smoothing = inputs
    ctx.save_for_backward(logits, target, weight, output[1])
    ctx.settings = ignore_index, label_smoothing
    ctx.set_materialize_grads(False)


def _backward_of_forward(ctx: Any, grad_term: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    logits, target, weight, rest = ctx.saved_tensors
    gradient = None
    if grad_term is not None:
        softmax = rest[2:4].detach()
        gradient = torch.ops.lossfeed.rows_backward(logits, target, weight, *ctx.settings, softmax, grad_term)
    return gradient, None, None, None, None


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    logits, target, weight, ignore_index, label_smoothing, _, grad_term = inputs
    ctx.save_for_backward(logits, target, weight, grad_term)
    ctx.settings = ignore_index, label_smoothing


def _backward_of_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    logits, target, weight, grad_term = ctx.saved_tensors
    ignore_index, label_smoothing = ctx.settings
    with torch.enable_grad():
        z, g = logits.detach().requires_grad_(), grad_term.detach().requires_grad_()
        gradient = composite_gradient(z, target, weight, ignore_index, label_smoothing, g)
        at_logits, at_term = torch.autograd.grad(gradient, (z, g), grad)
    return at_logits, None, None, None, None, None, at_term


torch.library.register_autograd("lossfeed::rows_forward", _backward_of_forward, setup_context=_save_forward)
torch.library.register_autograd("lossfeed::rows_backward", _backward_of_backward, setup_context=_save_backward)


def traced(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
) -> Forward:
    """:class:`Forward` as an operator of the graph that is being compiled, without ranks."""
    return Forward(*torch.ops.lossfeed.rows_forward(logits, target, weight, ignore_index, label_smoothing))

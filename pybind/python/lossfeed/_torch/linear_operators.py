"""The cross entropy of a linear head as operators of a compiled graph."""

from __future__ import annotations

from typing import Any

import torch

from .forward import real_dtype
from .linear import Call, divisor_waits, held, of_rows, reduced, scaled, share, sweep, upstream

#: Schemas are written out, for PyTorch 2.4: see rows.py.
_INPUTS = (
    "Tensor hidden, Tensor weight, Tensor? bias, Tensor target, Tensor? row_weight, ScalarType dtype, "
    "SymInt ignore_index, float label_smoothing"
)
_NEEDS = "bool needs_hidden, bool needs_weight, bool needs_bias"
_Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _real(like: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    return real_dtype(like.new_empty(0, dtype=dtype))


def _given(gradients: tuple[torch.Tensor | None, ...], like: torch.Tensor) -> list[torch.Tensor]:
    """An operator has no optional results: what is not needed is empty."""
    return [like.new_empty(0) if g is None else g for g in gradients]


@torch.library.custom_op(
    "lossfeed::linear_forward",
    mutates_args=(),
    schema=f"({_INPUTS}, str reduction, {_NEEDS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def linear_forward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    row_weight: torch.Tensor | None,
    dtype: torch.dtype,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    needs_hidden: bool,
    needs_weight: bool,
    needs_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Result, rest and correct of :class:`lossfeed._torch.linear.LinearLoss`, and the gradients of a reduced result."""
    call = Call(hidden, weight, bias, target, row_weight, dtype, ignore_index, label_smoothing, reduction)
    needs = (needs_hidden, needs_weight, needs_bias)
    if reduction == "none":
        found = sweep(call)
    else:
        real = _real(hidden, dtype)
        found = sweep(call, needs, upstream(call, None, real, None if divisor_waits(call) else share(call, real)))
    result = reduced(call, found.term)
    result = result.clone() if result is found.term else result
    of_hidden, of_weight, of_bias = _given(held(call, found.gradients), hidden)
    return result, found.rest, found.correct, of_hidden, of_weight, of_bias


@linear_forward.register_fake
def _(  # type: ignore[no-untyped-def]
    hidden, weight, bias, target, row_weight, dtype, ignore_index, label_smoothing, reduction, *needs
):
    rows, whole, real = hidden.shape[0], reduction != "none", _real(hidden, dtype)
    late = whole and reduction == "mean" and dtype == torch.float16

    def gradient(like: Any, needed: bool, waits_in: torch.dtype) -> Any:
        if like is None or not (needed and whole):
            return hidden.new_empty(0)
        return like.new_empty(like.shape, dtype=waits_in if late else like.dtype)

    return (
        hidden.new_empty(() if whole else (rows,), dtype=real),
        hidden.new_empty((6, rows), dtype=real),
        hidden.new_empty((rows,), dtype=torch.uint8),
        gradient(hidden, needs[0], dtype),
        gradient(weight, needs[1], real),
        gradient(bias, needs[2], real),
    )


@torch.library.custom_op(
    "lossfeed::linear_backward",
    mutates_args=(),
    schema=f"({_INPUTS}, {_NEEDS}, Tensor grad, Tensor softmax) -> (Tensor, Tensor, Tensor)",
)
def linear_backward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    row_weight: torch.Tensor | None,
    dtype: torch.dtype,
    ignore_index: int,
    label_smoothing: float,
    needs_hidden: bool,
    needs_weight: bool,
    needs_bias: bool,
    grad: torch.Tensor,
    softmax: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of unreduced losses."""
    call = Call(hidden, weight, bias, target, row_weight, dtype, ignore_index, label_smoothing, "none")
    found = _given(of_rows(call, (needs_hidden, needs_weight, needs_bias), grad, softmax), hidden)
    return found[0], found[1], found[2]


@linear_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    hidden, weight, bias, target, row_weight, dtype, ignore_index, label_smoothing, *rest
):
    parts = zip((hidden, weight, bias), rest[:3], strict=True)
    made = [hidden.new_empty(0) if like is None or not needed else like.new_empty(like.shape) for like, needed in parts]
    return tuple(made)


def _save(ctx: Any, inputs: tuple[Any, ...], output: _Outputs) -> None:
    ctx.settings, ctx.needs = inputs[5:9], inputs[9:]
    call = Call(*inputs[:9])
    factor = share(call, _real(call.hidden, call.dtype)) if divisor_waits(call) else None
    softmax = output[1][2:4].detach() if inputs[8] == "none" else None
    ctx.save_for_backward(*inputs[:5], factor, softmax, *output[3:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    hidden, weight, bias, target, row_weight, factor, softmax, *gradients = ctx.saved_tensors
    likes = (hidden, weight, bias)
    found: tuple[Any, ...] = (None, None, None)
    if grad is not None and softmax is not None:
        found = torch.ops.lossfeed.linear_backward(
            hidden, weight, bias, target, row_weight, *ctx.settings[:3], *ctx.needs, grad, softmax
        )
    elif grad is not None:
        grad = grad if factor is None else grad * factor
        each = zip(gradients, likes, ctx.needs, strict=True)
        found = tuple(scaled(g.detach(), like, grad, False) if needed else None for g, like, needed in each)
    each = zip(found, likes, ctx.needs, strict=True)
    return *(g if needed and like is not None else None for g, like, needed in each), *[None] * 9


torch.library.register_autograd("lossfeed::linear_forward", _backward, setup_context=_save)

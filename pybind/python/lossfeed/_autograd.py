"""The parts that are torch through and through; imported only by functions that were handed a tensor."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from ._scores import RANK_BASE, RowScores, class_rows, cpu_rows

_NATIVE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class RowLosses(torch.autograd.Function):
    """(loss, lse, then the scores) of ``(rows, C)`` logits, with a backward of plain torch ops, so that the gradient has
    a gradient too."""

    @staticmethod
    def forward(logits: torch.Tensor, target: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, ...]:
        return tuple(cpu_rows(logits, target, ignore_index))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        logits, target, ignore_index = inputs
        # The logits and not the softmax: half the memory of a saved log-softmax for half-precision logits, none beyond
        # what the caller holds anyway.
        ctx.save_for_backward(logits, target)
        ctx.ignore_index = ignore_index
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, grad_loss: torch.Tensor, grad_lse: torch.Tensor, *_: Any) -> tuple:
        logits, target = ctx.saved_tensors
        valid = target != ctx.ignore_index
        zero = torch.zeros((), dtype=grad_loss.dtype, device=grad_loss.device)
        grad_loss = torch.where(valid, grad_loss, zero)
        grad_lse = torch.where(valid, grad_lse, zero)
        p = torch.softmax(logits, dim=-1, dtype=grad_loss.dtype)
        # d lse / dz = p; d loss / dz = p - onehot(y). An ignored row may hold anything, NaN too: it has no gradient.
        grad = torch.where(valid.unsqueeze(1), p * (grad_loss + grad_lse).unsqueeze(1), zero)
        index = torch.where(valid, target, torch.zeros_like(target)).unsqueeze(1)
        grad = grad.scatter_add(1, index, -grad_loss.unsqueeze(1))
        return grad.to(logits.dtype), None, None


def native_path(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, label_smoothing: float) -> bool:
    """Whether the native forward can take this call. Everything else, wrong calls included, goes to torch, which
    computes it or says what is wrong with it."""
    if not (isinstance(logits, torch.Tensor) and isinstance(target, torch.Tensor)) or torch.compiler.is_compiling():
        return False
    plain = type(logits) in (torch.Tensor, torch.nn.Parameter) and type(target) is torch.Tensor
    if not plain or logits.device.type != "cpu" or target.device.type != "cpu" or logits.layout != torch.strided:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or logits.dtype not in _NATIVE_DTYPES:
        return False
    shape = logits.shape
    wanted = () if logits.dim() == 1 else (*shape[:1], *shape[2:])
    if logits.dim() == 0 or logits.numel() == 0 or target.is_floating_point() or tuple(target.shape) != tuple(wanted):
        return False
    if target.dtype not in (torch.int64, torch.uint8) or not 0.0 <= label_smoothing <= 1.0:
        return False
    classes = shape[0] if logits.dim() == 1 else shape[1]
    return weight is None or (weight.dim() == 1 and weight.numel() == classes and weight.dtype == logits.dtype and not weight.requires_grad)


def result_dtype(logits: torch.Tensor) -> torch.dtype:
    """The dtype of torch's cross entropy on these logits: theirs, or float32 under autocast."""
    kind = logits.device.type
    if logits.dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled(kind):
        return torch.float32
    return logits.dtype


def row_terms(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, RowScores]:
    """Per-row terms of a class-index cross entropy on the native path.

    Returns, for ``R`` rows: the class-weighted, smoothed losses (0 where ignored), what each row adds to the
    denominator of a mean, and the scores of the plain loss.
    """
    rows, labels = class_rows(logits), target.reshape(-1).to(torch.int64)
    loss, lse, *rest = RowLosses.apply(rows, labels, ignore_index)
    valid = labels != ignore_index
    share = valid.to(loss.dtype)
    if weight is not None:
        weight = weight.to(loss.dtype)
        share = torch.where(valid, weight[torch.where(valid, labels, torch.zeros_like(labels))], share)
    terms = loss * share
    if label_smoothing > 0.0:
        # sum over classes of w_c (lse - z_c): the second half of torch's definition, from the same lse.
        if weight is None:
            smooth = lse * rows.shape[1] - rows.sum(-1, dtype=loss.dtype)
        else:
            smooth = lse * weight.sum() - rows.to(loss.dtype) @ weight
        smooth = torch.where(valid, smooth, torch.zeros_like(smooth))
        terms = terms * (1.0 - label_smoothing) + smooth * (label_smoothing / rows.shape[1])
    scores = RowScores(loss.detach(), lse.detach(), *rest)
    return terms, share, scores


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> torch.Tensor:
    """See :func:`lossfeed.cross_entropy`."""
    if reduction not in ("none", "mean", "sum") or not native_path(logits, target, weight, label_smoothing):
        return F.cross_entropy(
            logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
    terms, share, _ = row_terms(logits, target, weight, ignore_index, label_smoothing)
    if reduction == "mean":
        value = terms.sum() / share.sum()
    elif reduction == "sum":
        value = terms.sum()
    else:
        value = terms.view(target.shape)
    return value.to(result_dtype(logits))


@torch.no_grad()
def device_rows(rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> RowScores:
    """The scores of ``(R, C)`` logits on any device in torch ops, queued on the current stream without a wait."""
    real = torch.float64 if rows.dtype == torch.float64 else torch.float32
    z = rows.detach().to(real)
    labels = labels.to(torch.int64)
    valid = labels != ignore_index
    # An index out of range would trip a device-side assertion and take the context with it.
    inside = valid & (labels >= 0) & (labels < z.shape[1])
    index = torch.where(inside, labels, torch.zeros_like(labels)).unsqueeze(1)
    lse = torch.logsumexp(z, dim=-1)
    p = torch.exp(z - lse.unsqueeze(1))
    p_y = p.gather(1, index).squeeze(1)
    nan = torch.full_like(lse, math.nan)
    loss = torch.where(inside, lse - z.gather(1, index).squeeze(1), torch.where(valid, nan, torch.zeros_like(lse)))
    grad_norm = torch.where(inside, (p.square().sum(-1) - 2.0 * p_y + 1.0).clamp_min(0.0).sqrt(), nan)
    entropy = torch.where(inside, lse - torch.where(p == 0, torch.zeros_like(p), p * z).sum(-1), nan)
    hit = (z.argmax(-1) == labels).to(torch.uint8)
    correct = torch.where(valid, hit, torch.full_like(hit, 255))
    count = rank_counts(torch.where(inside, loss, nan))
    rank_score = torch.where(count >= 0, torch.log(count.to(torch.float32) + RANK_BASE), nan.to(torch.float32))
    return RowScores(loss, lse, grad_norm, entropy, correct, count, rank_score)


@torch.no_grad()
def rank_counts(losses: torch.Tensor) -> torch.Tensor:
    """int32 counts of strictly smaller finite losses; -1 where a loss is not finite."""
    losses = losses.detach().to(torch.float32)
    finite = torch.isfinite(losses)
    # Everything without a rank sorts behind everything with one, so it is below nobody.
    ordered = torch.where(finite, losses, torch.full_like(losses, math.inf)).sort().values
    below = torch.searchsorted(ordered, losses, side="left").to(torch.int32)
    return torch.where(finite, below, torch.full_like(below, -1))

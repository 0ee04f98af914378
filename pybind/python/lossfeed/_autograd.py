"""The parts that are torch through and through; imported only by functions that were handed a tensor."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from . import _cuda, _rows
from ._plans import FREE
from ._scores import RANK_BASE, RowScores, class_rows

_NATIVE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def native_path(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, label_smoothing: float) -> bool:
    """Whether the native forward can take this call. Everything else, wrong calls included, goes to torch, which
    computes it or says what is wrong with it."""
    if not (isinstance(logits, torch.Tensor) and isinstance(target, torch.Tensor)):
        return False
    plain = type(logits) in (torch.Tensor, torch.nn.Parameter) and type(target) is torch.Tensor
    if not plain or target.device != logits.device or logits.layout != torch.strided or not _rows.native_on(logits.device):
        return False
    # Inside vmap, grad and their like the tensors stand for others; a compiler only ever sees plain ones.
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if logits.dtype not in _NATIVE_DTYPES:
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
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    overwrite: bool = False,
    home: _cuda.Home = _cuda.NOWHERE,
    ranks: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, _rows.Forward]:
    """Per-row terms of a class-index cross entropy on the native path.

    Returns, for ``R`` rows: the class-weighted, smoothed losses (0 where ignored), what each row adds to the
    denominator of a mean, and everything the forward found.
    """
    rows, labels = class_rows(logits), target.reshape(-1).to(torch.int64)
    found = _rows.terms(rows, labels, weight, ignore_index, label_smoothing, overwrite, home, ranks)
    return found.term, found.rest[0].detach(), found


def one_launch(logits: torch.Tensor, reduction: str) -> bool:
    """Whether the launch that scores these logits makes the mean or the sum too (see :func:`reduced_rows`)."""
    return reduction != "none" and logits.is_cuda and not torch.compiler.is_compiling()


def reduced_rows(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    overwrite: bool = False,
    home: _cuda.Home = _cuda.NOWHERE,
    sample_weight: torch.Tensor | None = None,
) -> _rows.Forward:
    """The mean or the sum of a class-index cross entropy, in its dtype, as ``term``. Weights of samples are float32 ``(B,)``."""
    how = _rows.Reduction(reduction == "mean", result_dtype(logits), sample_weight)
    rows, labels = class_rows(logits), target.reshape(-1).to(torch.int64)
    return _rows.reduced(rows, labels, weight, ignore_index, label_smoothing, overwrite, home, how)


def reduced(terms: torch.Tensor, share: torch.Tensor, reduction: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The mean over what the rows share, the sum, or the rows in the target's shape."""
    if reduction == "mean":
        return terms.sum() / share.sum()
    if reduction == "sum":
        return terms.sum()
    return terms.view(shape)


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    overwrite_logits: bool,
) -> torch.Tensor:
    """See :func:`lossfeed.cross_entropy`."""
    if weight is None and isinstance(logits, torch.Tensor) and logits.is_cuda and not torch.compiler.is_compiling():
        done = FREE.cross_entropy(logits, target, ignore_index, reduction, label_smoothing, overwrite_logits)
        if done is not None:
            return done
    known = reduction in ("none", "mean", "sum")
    if known and isinstance(target, torch.Tensor) and target.is_floating_point() and target.is_cuda:
        from . import _probabilities

        if _probabilities.takes(logits, target, weight, label_smoothing):
            terms = _probabilities.losses(logits, target, weight, label_smoothing)
            return reduced(terms, torch.ones_like(terms), reduction, tuple(terms.shape)).to(result_dtype(logits))
    if not known or not native_path(logits, target, weight, label_smoothing):
        return F.cross_entropy(
            logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
    if one_launch(logits, reduction):
        return reduced_rows(logits, target, weight, ignore_index, reduction, label_smoothing, overwrite_logits).term
    terms, share, _ = row_terms(logits, target, weight, ignore_index, label_smoothing, overwrite_logits)
    return reduced(terms, share, reduction, tuple(target.shape)).to(result_dtype(logits))


@torch.no_grad()
def device_rows(rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> RowScores:
    """The scores of ``(R, C)`` logits in torch's operators, for devices that our kernels do not know; waits for nothing."""
    real = torch.float64 if rows.dtype == torch.float64 else torch.float32
    z = rows.detach().to(real)
    labels = labels.to(torch.int64)
    valid = labels != ignore_index
    # An index out of range would trip a device-side assertion and take the context with it.
    inside = valid & (labels >= 0) & (labels < z.shape[1])
    index = torch.where(inside, labels, torch.zeros_like(labels)).unsqueeze(1)
    # Differences from the maximum, never the log-sum-exp: that one is rounded to the last place of the logits' offset.
    d = z - z.amax(-1, keepdim=True)
    log_sum = d.exp().sum(-1).log()
    p = torch.exp(d - log_sum.unsqueeze(1))
    p_y = p.gather(1, index).squeeze(1)
    nan = torch.full_like(log_sum, math.nan)
    loss = torch.where(inside, log_sum - d.gather(1, index).squeeze(1), torch.where(valid, nan, torch.zeros_like(log_sum)))
    grad_norm = torch.where(inside, (p.square().sum(-1) - 2.0 * p_y + 1.0).clamp_min(0.0).sqrt(), nan)
    entropy = torch.where(inside, log_sum - torch.where(p == 0, torch.zeros_like(p), p * d).sum(-1), nan)
    # torch calls the first NaN of a row its largest; a row that holds one has no softmax and nothing in it is correct.
    hit = ((z.argmax(-1) == labels) & ~torch.isnan(loss)).to(torch.uint8)
    correct = torch.where(valid, hit, torch.full_like(hit, 255))
    count = rank_counts(torch.where(inside, loss, nan))
    rank_score = torch.where(count >= 0, torch.log(count.to(torch.float32) + RANK_BASE), nan.to(torch.float32))
    return RowScores(loss, grad_norm, entropy, correct, count, rank_score)


@torch.no_grad()
def rank_counts(losses: torch.Tensor) -> torch.Tensor:
    """int32 counts of strictly smaller finite losses; -1 where a loss is not finite."""
    losses = losses.detach().to(torch.float32)
    finite = torch.isfinite(losses)
    # Everything without a rank sorts behind everything with one, so it is below nobody.
    ordered = torch.where(finite, losses, torch.full_like(losses, math.inf)).sort().values
    below = torch.searchsorted(ordered, losses, side="left").to(torch.int32)
    return torch.where(finite, below, torch.full_like(below, -1))

"""The cross entropy of tensors: on our kernels where they can take the call, else in torch's operators."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .._loss.columns import Columns
from . import cuda, probabilities, rows as _rows
from .forward import KINDS, Reduction, class_rows, has_tangent, in_forward_mode
from .operators import device_rows
from .plans import FREE

#: How the losses of rows become a result.
REDUCTIONS = ("none", "mean", "sum")


class Terms(NamedTuple):
    """A cross entropy, row by row."""

    term: torch.Tensor
    """``(R,)``, differentiable: losses with class weight and smoothing. With a reduction one number, the result."""
    share: torch.Tensor
    """``(R,)``: what each row adds to the denominator of a mean."""
    columns: Columns
    """The scores of the plain loss."""


def takes(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, label_smoothing: float
) -> bool:
    """Whether the native forward can take this call. Everything else, wrong calls included, goes to torch, which
    computes it or says what is wrong with it."""
    if not (isinstance(logits, torch.Tensor) and isinstance(target, torch.Tensor)):
        return False
    plain = type(logits) in (torch.Tensor, torch.nn.Parameter) and type(target) is torch.Tensor
    if not plain or target.device != logits.device or logits.layout != torch.strided:
        return False
    if not _rows.native_on(logits.device):
        return False
    # Inside vmap, grad and their like the tensors stand for others; a compiler only ever sees plain ones.
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if logits.dtype not in KINDS or (in_forward_mode() and has_tangent(logits, weight)):
        return False
    shape = logits.shape
    wanted = () if logits.dim() == 1 else (*shape[:1], *shape[2:])
    if logits.dim() == 0 or logits.numel() == 0 or target.is_floating_point() or tuple(target.shape) != tuple(wanted):
        return False
    if target.dtype not in (torch.int64, torch.uint8) or not 0.0 <= label_smoothing <= 1.0:
        return False
    if weight is None:
        return True
    classes = shape[0] if logits.dim() == 1 else shape[1]
    return weight.shape == (classes,) and weight.dtype == logits.dtype and not weight.requires_grad


def named_reduction(size_average: bool | None, reduce: bool | None) -> str:
    """What torch's deprecated pair means, with torch's own warning."""
    return torch.nn._reduction.legacy_get_string(size_average, reduce)


def result_dtype(logits: torch.Tensor) -> torch.dtype:
    """The dtype of torch's cross entropy on these logits: theirs, or float32 under autocast."""
    kind = logits.device.type
    if logits.dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled(kind):
        return torch.float32
    return logits.dtype


def one_launch(logits: torch.Tensor, reduction: str) -> bool:
    """Whether the launch that scores these logits makes the mean or the sum too."""
    return reduction != "none" and logits.is_cuda and not torch.compiler.is_compiling()


def row_losses(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    overwrite: bool,
    home: cuda.Home = cuda.UNSEEN,
    reduction: Reduction | None = None,
) -> Terms:
    """A class-index cross entropy on the native path. A reduction is for a call of :func:`one_launch`; losses that
    suffice on CUDA come without the other columns."""
    rows, labels = logits if logits.dim() == 2 else class_rows(logits), target.reshape(-1).to(torch.int64)
    if torch.compiler.is_compiling():
        term, rest, correct, count, _ = _rows.traced(rows, labels, weight, ignore_index, label_smoothing)
    else:
        settings = ignore_index, label_smoothing, overwrite, home, reduction
        term, rest, correct, count = _rows.RowLosses.apply(rows, labels, weight, *settings)
    share, loss, _, _, *norms = rest.detach().unbind()
    grad_norm, entropy = norms or (None, None)
    return Terms(term, share, Columns(loss, grad_norm, entropy, correct, count))


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
        done: torch.Tensor | None = FREE.cross_entropy(logits, target, ignore_index, reduction, label_smoothing, overwrite_logits)
        if done is not None:
            return done
    known = reduction in REDUCTIONS
    if known and isinstance(target, torch.Tensor) and target.is_floating_point() and target.is_cuda:
        if probabilities.takes(logits, target, weight, label_smoothing):
            terms = probabilities.losses(logits, target, weight, label_smoothing)
            return reduced(terms, torch.ones_like(terms), reduction, tuple(terms.shape)).to(result_dtype(logits))
    if not known or not takes(logits, target, weight, label_smoothing):
        settings: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        return F.cross_entropy(logits, target, weight=weight, reduction=reduction, **settings)
    settings_of_rows = weight, ignore_index, label_smoothing, overwrite_logits
    if one_launch(logits, reduction):
        how = Reduction(reduction == "mean", result_dtype(logits))
        return row_losses(logits, target, *settings_of_rows, reduction=how).term
    found = row_losses(logits, target, *settings_of_rows)
    return reduced(found.term, found.share, reduction, tuple(target.shape)).to(result_dtype(logits))


def measure(logits: torch.Tensor, target: Any, ignore_index: int) -> Columns:
    """The columns of :func:`lossfeed.sample_scores`, a row for each element of `target`."""
    logits = logits.detach()
    rows = class_rows(logits)
    labels = torch.as_tensor(target).to(rows.device).reshape(-1)
    if _rows.native_on(rows.device):
        return _rows.forward(rows, labels, None, ignore_index, 0.0).scores()
    return device_rows(rows, labels, ignore_index)

"""What goes into a forward over rows of logits, and what comes out of it."""

from __future__ import annotations

from typing import NamedTuple, overload

import torch
from torch.autograd import forward_ad

from .._loss.columns import Columns


class Forward(NamedTuple):
    """What a forward returns: the differentiable column, and the rest."""

    term: torch.Tensor
    """``(R,)``: each row's loss with class weight and smoothing, 0 where ignored; or one number, with a reduction."""
    rest: torch.Tensor
    """``(6, R)``: share (what the row adds to the denominator of a mean), loss, max, log_sum, grad_norm, entropy; on
    CUDA ``(4, R)``, without the last two, where the losses suffice."""
    correct: torch.Tensor
    """uint8 ``(R,)``; 255 where ignored."""
    rank_count: torch.Tensor | None = None
    """int32 ``(R,)``: rank counts; -1 where there is none. None: nobody asked for ranks."""
    rank_score: torch.Tensor | None = None
    """float32 ``(R,)``; None for those who train, who have no use for it."""

    def scores(self) -> Columns:
        """The scores of the plain loss."""
        _, loss, _, _, grad_norm, entropy = self.rest.unbind()
        return Columns(loss, grad_norm, entropy, self.correct, self.rank_count, self.rank_score)

    @property
    def softmax(self) -> torch.Tensor:
        """``(2, R)``: what a backward needs of the rows: the largest logit, and ln of the sum of exp(z - that). They
        are apart because their sum is rounded to the last place of the logits' offset."""
        return self.rest[2:4]


class Reduction(NamedTuple):
    """How a launch on CUDA makes one number of its terms."""

    mean: bool
    """Over the shares; else the sum."""
    dtype: torch.dtype
    """The result's: the logits', or :func:`real_dtype`."""
    sample_weight: torch.Tensor | None = None
    """float32 ``(B,)``, contiguous, on the device: a factor of each sample's terms. A sample is R / B neighbouring
    rows."""


#: Float types the kernels read -> their name, and the precision of the arithmetic with its name.
KINDS = {
    torch.float16: ("float16", torch.float32, "float32"),
    torch.bfloat16: ("bfloat16", torch.float32, "float32"),
    torch.float32: ("float32", torch.float32, "float32"),
    torch.float64: ("float64", torch.float64, "float64"),
}


def real_dtype(logits: torch.Tensor) -> torch.dtype:
    """The precision of the arithmetic: float64 for float64 logits, else float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def in_forward_mode() -> bool:
    """Whether tensors may carry tangents of :mod:`torch.autograd.forward_ad`. A compiler sees none."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def has_tangent(*tensors: torch.Tensor | None) -> bool:
    """Whether one of them carries a tangent of :mod:`torch.autograd.forward_ad`: torch's own operators know what to do
    with it. A compiler sees none."""
    if not in_forward_mode():
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def class_rows(logits: torch.Tensor) -> torch.Tensor:
    """Logits as ``(rows, C)``; copies only when the class dimension is not already last."""
    if logits.dim() == 1:
        return logits.unsqueeze(0)
    if logits.dim() > 2:
        return logits.movedim(1, -1).reshape(-1, logits.shape[1])
    return logits


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


@overload
def plain(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor: ...
@overload
def plain(values: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None: ...
def plain(values: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """`values` as the kernels read them: of that type, side by side, without a gradient."""
    return None if values is None else values.detach().to(dtype).contiguous()

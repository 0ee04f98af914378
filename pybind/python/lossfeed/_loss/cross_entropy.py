"""The cross entropy that reads the logits once."""

from __future__ import annotations

from typing import Any

from .._base import literals
from .._base.torch_imports import torch_half


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: literals.Reduction = "mean",
    label_smoothing: float = 0.0,
    *,
    overwrite_logits: bool = False,
) -> Any:
    """Equals :func:`torch.nn.functional.cross_entropy` in value and gradient, and reads the logits once forward, once
    backward.

    Args:
        input: logits ``(C,)``, ``(B, C)`` or ``(B, C, d1, …)``; float16, bfloat16, float32, float64. Rows with unit
            stride between classes are read in place, any other layout (``(B, C, d1, …)`` among them) is copied once.
        target: class indices in the shape of ``input`` without the class dimension (int64), or class probabilities in
            the shape of ``input``.
        weight: ``(C,)`` rescaling weight per class, in the dtype of ``input``.
        size_average, reduce: deprecated in torch too, which says what to write instead; they keep the positions of the
            other arguments.
        ignore_index: rows with this target are ignored.
        reduction: ``"mean"`` (over the class weights of the rows that count), ``"sum"`` or ``"none"``.
        label_smoothing: in ``[0, 1]``.
        overwrite_logits: True writes the gradient over contiguous logits, which halves the loss's memory. The logits
            cannot be used after the backward; autograd raises if another operation saved them. For class indices in
            eager mode; elsewhere it changes nothing.

    Returns:
        A tensor in the dtype of ``input`` (float32 under autocast): a scalar, or the shape of a class-index target for
        ``"none"``. Arithmetic is float32 inside (float64 for float64). Gradients of gradients work.

    Class indices use the native forward and backward, which write nothing of the logits' size but the gradient, also
    under ``torch.compile`` (one operator, no graph break). On CUDA devices probability targets do too, and the work is
    queued on the current stream without a wait; it can be captured in a graph once it has run outside of one.
    ``torch.func`` transforms, probability targets on the CPU and unusual inputs use torch's implementation and errors.

    Raises:
        SampleError: a target outside ``[0, C)`` that is not ``ignore_index``, with the row, the target and C. On a
            CUDA device that row's loss is NaN and a later call on the stream raises, because checking at once would
            stall.
    """
    losses = torch_half("cross_entropy").cross_entropy
    if size_average is not None or reduce is not None:
        reduction = losses.named_reduction(size_average, reduce)
    return losses.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing, overwrite_logits)

"""Measuring a batch of logits, on its own."""

from __future__ import annotations

from typing import Any

from .._base.memory import check_dense, is_tensor
from .._base.torch_imports import torch_half
from . import arrays
from .columns import SampleScores, check_ignored, check_logits


def sample_scores(logits: Any, target: Any, ignore_index: int = -100) -> SampleScores:
    """Measures every sample of a batch of classification logits in one read.

    Args:
        logits: ``(C,)``, ``(B, C)`` or ``(B, C, d1, …)``; float16, bfloat16, float32 or float64; a torch tensor (CPU or
            CUDA) or a NumPy array. Rows with unit stride between classes are read in place; other layouts are copied
            once. No gradient is recorded.
        target: class indices, any integer type, in the shape of ``logits`` without the class dimension.
        ignore_index: rows with this target get no score.

    Returns:
        :class:`SampleScores` in the library and on the device of ``logits``. Ranks are taken over all rows together.
        On a CUDA device the work is queued on the current stream and nothing is waited for.

    Raises:
        SettingsError: shapes or dtypes that do not fit, with both.
        SampleError: a target outside ``[0, C)``, with the row and the target. On a CUDA device such a row gets no rank
            and a NaN loss, and a later call on that stream raises: checking at once would stall.
    """
    check_ignored(ignore_index)
    check_dense("logits", logits)
    _, shape = check_logits(logits, target)
    if is_tensor(logits):
        found = torch_half("sample_scores").cross_entropy.measure(logits, target, ignore_index)
    else:
        found = arrays.measure(logits, target, ignore_index)
    fields = SampleScores(*found._replace(correct=found.correct == 1))
    # Columns have the shape of (B,) targets already; six views would be a fifth of a small batch's time.
    return fields if len(shape) == 1 else SampleScores(*(field.reshape(shape) for field in fields))

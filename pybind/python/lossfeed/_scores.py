"""What one read of the logits tells about every sample."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _native
from ._errors import SettingsError
from ._memory import as_bytes, dtype_name, is_tensor, require_numpy, to_numpy

#: Added to a rank count before the logarithm: SHADE's published code (the paper leaves it open).
RANK_BASE = 10.0

#: Float types the kernels read.
LOGIT_DTYPES = ("float16", "bfloat16", "float32", "float64")


class SampleScores(NamedTuple):
    """Per-sample measurements, each in the shape of ``target``.

    Floats are float32 (float64 for float64 logits). In a row whose target is ``ignore_index``: loss 0, ``grad_norm`` and
    ``entropy`` NaN, ``correct`` False, ``rank_count`` -1, ``rank_score`` NaN.
    """

    loss: Any
    """Cross entropy, lse(z) - z_y, in nats."""
    grad_norm: Any
    """sqrt(sum p^2 - 2 p_y + 1): the norm of the loss's gradient at the logits, which bounds the sample's gradient."""
    entropy: Any
    """Entropy of softmax(z), in nats."""
    correct: Any
    """Whether the first largest logit is the target's (bool)."""
    rank_count: Any
    """int32: how many rows of the batch have a strictly smaller loss; -1 for ignored, NaN or infinite losses."""
    rank_score: Any
    """float32: ln(rank_count + 10); NaN where there is no rank."""


class RowScores(NamedTuple):
    """What is known of rows: tensors or arrays of one dimension."""

    loss: Any
    grad_norm: Any
    entropy: Any
    correct: Any
    rank_count: Any
    rank_score: Any


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
        SampleError: a target outside ``[0, C)``, with the row and the target. On a CUDA device such a row gets no rank and a NaN
            loss, and a later call on that stream raises: finding out at once would have to wait.
    """
    classes, shape = _check_shapes(logits, target)
    if not is_tensor(logits):
        return _array_scores(logits, target, classes, shape, ignore_index)
    import torch

    logits = logits.detach()
    if not is_tensor(target):
        target = torch.as_tensor(target, device=logits.device)
    rows = class_rows(logits)
    labels = target.reshape(-1)
    from . import _rows

    labels = labels.to(rows.device)
    if _rows.native_on(rows.device):
        scores = _rows.forward(rows, labels, None, ignore_index, 0.0).scores()
    else:
        from ._autograd import device_rows

        scores = device_rows(rows, labels, ignore_index)
    correct = scores.correct == 1
    fields = SampleScores(scores.loss, scores.grad_norm, scores.entropy, correct, scores.rank_count, scores.rank_score)
    # Columns have the shape of (B,) targets already; six views would be a fifth of a small batch's time.
    return fields if len(shape) == 1 else SampleScores(*(field.view(shape) for field in fields))


def _check_shapes(logits: Any, target: Any) -> tuple[int, tuple[int, ...]]:
    """The number of classes and the target's shape."""
    shape = tuple(getattr(logits, "shape", ()))
    wanted = () if len(shape) == 1 else (shape[:1] + shape[2:])
    if not shape:
        raise SettingsError(f"logits must be a torch tensor or NumPy array of shape (C,), (B, C) or (B, C, d1, …), not {logits!r}")
    if dtype_name(logits) not in LOGIT_DTYPES:
        raise SettingsError(f"logits of {logits.dtype} cannot be scored: use float16, bfloat16, float32 or float64")
    kind = str(getattr(target, "dtype", ""))
    if "int" not in kind:
        raise SettingsError(f"target must hold class indices of an integer type, not {kind or type(target).__name__}")
    if tuple(target.shape) != wanted:
        raise SettingsError(f"target of shape {tuple(target.shape)} does not fit logits of shape {shape}: it must be {wanted}")
    classes = shape[0] if len(shape) == 1 else shape[1]
    if classes == 0:
        raise SettingsError(f"logits of shape {shape} have no classes")
    return classes, wanted


def class_rows(logits: Any) -> Any:
    """A tensor of logits as ``(rows, C)``; copies only when the class dimension is not already last."""
    if logits.dim() == 1:
        return logits.unsqueeze(0)
    if logits.dim() > 2:
        return logits.movedim(1, -1).reshape(-1, logits.shape[1])
    return logits


def _array_scores(logits: Any, target: Any, classes: int, shape: tuple[int, ...], ignore_index: int) -> SampleScores:
    numpy = require_numpy("scoring arrays")
    rows = logits if logits.ndim < 3 else numpy.moveaxis(logits, 1, -1)
    rows = numpy.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("=")).reshape(-1, classes)
    labels = numpy.ascontiguousarray(target, dtype=numpy.int64).reshape(-1)
    _, rest, correct, count, rank_score = _native.forward_rows(
        as_bytes(rows), dtype_name(rows), len(rows), classes, classes, as_bytes(labels), ignore_index, RANK_BASE, None, 0.0
    )
    real = "float64" if rows.dtype == numpy.float64 else "float32"
    _, loss, _, _, grad_norm, entropy = to_numpy(rest, real, (6, len(rows)))
    scores = RowScores(
        loss,
        grad_norm,
        entropy,
        to_numpy(correct, "uint8", (len(rows),)),
        to_numpy(count, "int32", (len(rows),)),
        to_numpy(rank_score, "float32", (len(rows),)),
    )
    return SampleScores(
        scores.loss.reshape(shape),
        scores.grad_norm.reshape(shape),
        scores.entropy.reshape(shape),
        (scores.correct == 1).reshape(shape),
        scores.rank_count.reshape(shape),
        scores.rank_score.reshape(shape),
    )

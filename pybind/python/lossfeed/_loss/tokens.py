"""Shapes of language models: logits with their classes last, and tokens end to end. torch or NumPy comes in as `xp`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._base.errors import SettingsError
from .._batch.batch import arrays_in
from .columns import own_means

if TYPE_CHECKING:
    from .._batch.batch import Batch


def laid_out(logits: Any, target: Any, batch: Batch[Any, Any]) -> tuple[Any, Any, bool]:
    """Logits and class indices as ``F.cross_entropy`` takes them, and whether they were, or are, a row a token.

    ``(B, T, C)`` logits of ``(B, T)`` targets and ``(B · T, C)`` of ``(B, T)`` become rows. ``(B · T, C)`` of ``(B · T,)``
    are rows, of a sample each T neighbours, if the samples are sequences; those of packed targets get their shape.

    Raises:
        SettingsError: ``(B, T, T)``, whose classes may be the second axis and the last.
    """
    shape, labels, rows = tuple(logits.shape), tuple(target.shape), _rows(batch)
    if "int" not in str(target.dtype):
        return logits, target, False
    if len(shape) == 3 and len(labels) == 2 and shape[:2] == labels:
        if shape[1] != shape[2]:
            return logits.reshape(-1, shape[2]), target if batch.documents is not None else target.reshape(-1), True
        if shape[1] > 1:
            raise SettingsError(
                f"logits of shape {shape} may be (B, C, T) and (B, T, C), and target of shape {labels} fits both: pass rows, "
                "logits.flatten(0, 1) if the last axis are the classes, logits.transpose(1, 2).flatten(0, 1) if the second are"
            )
    elif len(shape) == 2 and len(labels) > 1 and labels[0] == rows[0]:
        if math.prod(labels) == shape[0]:
            return logits, target if batch.documents is not None else target.reshape(-1), True
    elif len(shape) == 2 and labels == shape[:1] and shape[0] != batch.ids.shape[0]:
        if (found := _sequences(batch, shape[0])) is not None:
            return logits, target.reshape(found) if batch.documents is not None else target, True
    return logits, target, False


def hidden_rows(hidden: Any, target: Any, batch: Batch[Any, Any]) -> tuple[Any, Any]:
    """Hidden states as ``(R, H)``, and class indices: ``(rows, length)`` of packed tokens, else ``(R,)``. A sample
    has equally many neighbouring rows.

    Raises:
        SettingsError: rows of another number than the targets, or not of this batch's samples.
    """
    shape, labels, rows = tuple(hidden.shape[:-1]), tuple(target.shape), _rows(batch)
    count = math.prod(shape)
    fits = count == math.prod(labels) and (shape == labels or len(shape) == 1 or len(labels) == 1)
    if fits and batch.documents is not None:
        fits = math.prod(rows) == count and all(len(own) == 1 or own == rows for own in (shape, labels))
        labels = rows
    elif fits:
        whole = all(len(own) < 2 or own[:1] == rows[:1] for own in (shape, labels))
        whole = whole and (rows[0] in (shape[:1] + labels[:1]) or _sequences(batch, count) is not None)
        fits = whole and (count % rows[0] == 0 if rows[0] else count == 0)
        labels = (count,)
    if not fits:
        of = f"packed rows {rows}" if batch.documents is not None else f"{rows[0]} samples"
        raise SettingsError(
            f"hidden of shape {tuple(hidden.shape)} and target of shape {tuple(target.shape)} for a batch of {of}: give "
            "hidden states (…, features) of this very batch, in its order, and one target for each"
        )
    return hidden.reshape(count, hidden.shape[-1]), target.reshape(labels)


def token_losses(losses: Any, batch: Batch[Any, Any]) -> Any:
    """Losses of a number a token, as ``(B, T)`` or packed ``(rows, length)``; None if they are others."""
    shape = tuple(getattr(losses, "shape", ()))
    if len(shape) == 1 and shape[0] != batch.ids.shape[0]:
        found = _sequences(batch, shape[0])
        return None if found is None else losses.reshape(found)
    if len(shape) == 2 and shape[0] == _rows(batch)[0] and _sequences(batch, shape[0] * shape[1]) == shape:
        return losses
    return None


def by_sample(xp: Any, values: Any, batch: Batch[Any, Any]) -> Any:
    """Values of tokens as one a sample; others as they are. No gradient is recorded."""
    if (tokens := token_losses(values, batch)) is None:
        return values
    return sample_losses(xp, tokens.detach() if hasattr(tokens, "detach") else tokens, batch)


def sample_losses(xp: Any, losses: Any, batch: Batch[Any, Any]) -> Any:
    """The mean over a sample's tokens of those that count: -100 in ``batch.target`` is no target. NaN where none does."""
    owners, target = _owners(xp, batch, losses), batch.target
    if "int" in str(getattr(target, "dtype", "")) and tuple(target.shape) == tuple(losses.shape):
        marks = xp.asarray(target) != -100
        owners = xp.where(marks.to(owners.device) if hasattr(owners, "device") and hasattr(marks, "to") else marks, owners, -1)
    return own_means(xp, owners.reshape(-1), batch.ids.shape[0], losses)


def _owners(xp: Any, batch: Batch[Any, Any], losses: Any) -> Any:
    """The sample of each token, by its place in the batch; -1 is filling."""
    beside = {"device": losses.device} if hasattr(losses, "is_cuda") else {}
    if batch.documents is not None:
        return xp.asarray(batch.documents.samples, **beside)
    return xp.zeros(tuple(losses.shape), dtype=xp.int64, **beside) + xp.arange(batch.ids.shape[0], **beside)[:, None]


def _rows(batch: Batch[Any, Any]) -> tuple[int, ...]:
    """Rows of a batch's tokens, and their length where samples are packed."""
    return (batch.ids.shape[0],) if batch.documents is None else tuple(batch.documents.samples.shape)


def _sequences(batch: Batch[Any, Any], tokens: int) -> tuple[int, int] | None:
    """The shape of `tokens` of the batch; None unless its samples are sequences of as many at least. Rows of other samples,
    as two views of each image end to end, say nothing of whose they are."""
    rows, *length = _rows(batch)
    if length:
        return (rows, length[0]) if tokens == rows * length[0] else None
    if rows == 0 or tokens % rows:
        return None
    for array in arrays_in([batch.data, batch.target]):
        if getattr(array, "is_nested", False) or "int" not in str(array.dtype) or len(array.shape) != 2:
            continue
        if array.shape[0] == rows and array.shape[1] >= tokens // rows:
            return rows, tokens // rows
    return (1, tokens) if rows == 1 else None

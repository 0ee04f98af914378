"""Scores of NumPy arrays: measured on the CPU and credited at once. Nothing here imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _native
from .._base.errors import SampleError, SettingsError
from .._base.memory import as_bytes, dtype_name, is_tensor, require_numpy, to_numpy
from .._batch.documents import owned
from .columns import (
    RANK_BASE,
    Columns,
    check_ignored,
    check_logits,
    check_losses,
    check_packed_logits,
    check_rows,
    check_sequence,
    known,
    per_document,
    per_sample,
)
from .tokens import by_sample, laid_out

if TYPE_CHECKING:
    from .scoring import Account
    from .._batch.batch import Batch


def score(account: Account, logits: Any, batch: Batch, ignore_index: int, sequence: str) -> None:
    """See :meth:`lossfeed.Loader.score`."""
    check_sequence(sequence)
    check_ignored(ignore_index)
    numpy = require_numpy("scoring arrays")
    documents, by_token, target = batch.documents, False, numpy.asarray(known(batch.target))
    if hasattr(logits, "reshape"):
        logits, target, by_token = laid_out(logits, target, batch)
    if documents is not None and owned(documents, target):
        check_packed_logits(logits, documents)
        owners = numpy.asarray(documents.samples)
        target = numpy.where(owners >= 0, target, ignore_index)
        found = measure(logits, target.reshape(-1) if logits.ndim == 2 else target, ignore_index)
        _send(account, batch, per_document(numpy, found, owners.reshape(-1), len(batch), sequence))
        return
    check_rows("logits", logits, len(logits) if by_token else len(batch))
    found = measure(logits, target, ignore_index)
    _send(account, batch, found if len(found.loss) == len(batch) else per_sample(numpy, found, len(batch), sequence))


def score_losses(account: Account, losses: Any, batch: Batch, grad_norms: Any, entropies: Any) -> None:
    """See :meth:`lossfeed.Loader.score_losses`."""
    numpy = require_numpy("scoring arrays")
    losses, entropies = by_sample(numpy, losses, batch), by_sample(numpy, entropies, batch)
    check_rows("losses", losses, len(batch))
    check_losses(losses, grad_norms, entropies)
    _send(account, batch, Columns(losses, grad_norms, entropies))


def score_ids(account: Account, samples: int, ids: Any, losses: Any, grad_norms: Any) -> None:
    """See :meth:`lossfeed.Scores.score_ids`."""
    numpy = require_numpy("scoring by ids")
    # NumPy has no bfloat16.
    plain = [v.float() if is_tensor(v) and v.is_floating_point() else v for v in (ids, losses, grad_norms)]
    host = [v.detach().cpu().numpy() if is_tensor(v) else v for v in plain]
    try:
        names, *floats = (None if v is None else numpy.asarray(v) for v in host)
    except ValueError as cause:
        raise SettingsError(f"ids and losses are one number a sample, (B,): {cause}") from None
    if names is None or names.ndim != 1 or names.dtype.kind not in "iu":
        found = "None" if names is None else f"{names.dtype} of shape {names.shape}"
        raise SettingsError(f"ids are {found}: give one integer a sample, (B,)")
    if len(names) and not 0 <= (wrong := names.max() if names.max() >= samples else names.min()) < samples:
        raise SampleError(f"id {wrong} is none of {samples} samples: ids are 0 to {samples - 1}")
    check_rows("losses", floats[0], len(names))
    check_losses(*floats)
    account.uses.scored = True
    losses, grad_norms = map(_float32, floats)
    account.engine().apply_scores_to_ids(as_bytes(names.astype(numpy.int64)), losses, grad_norms, None, None)


def measure(logits: Any, target: Any, ignore_index: int) -> Columns:
    """The columns of logits ``(C,)``, ``(B, C)`` or ``(B, C, d1, …)``, a row for each element of `target`."""
    classes, _ = check_logits(logits, target)
    numpy = require_numpy("scoring arrays")
    rows = logits if logits.ndim == 1 else numpy.moveaxis(logits, 1, -1)
    rows = numpy.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("=")).reshape(-1, classes)
    labels = as_bytes(numpy.ascontiguousarray(target, dtype=numpy.int64).reshape(-1))
    shape = len(rows), classes, classes
    _, rest, correct, count, rank_score = _native.forward_rows(
        as_bytes(rows), dtype_name(rows), *shape, labels, ignore_index, RANK_BASE, None, 0.0
    )
    real = "float64" if rows.dtype == numpy.float64 else "float32"
    _, loss, _, _, grad_norm, entropy = to_numpy(rest, real, (6, len(rows)))
    marks = to_numpy(correct, "uint8", (len(rows),))
    ranks = to_numpy(count, "int32", (len(rows),)), to_numpy(rank_score, "float32", (len(rows),))
    return Columns(loss, grad_norm, entropy, marks, *ranks)


def _send(account: Account, batch: Batch, columns: Columns) -> None:
    loss, grad_norm, entropy = map(_float32, (columns.loss, columns.grad_norm, columns.entropy))
    count = None if columns.rank_count is None else as_bytes(columns.rank_count)
    account.engine().apply_scores(batch._ticket, loss, grad_norm, entropy, count)


def _float32(column: Any) -> Any:
    """A column as the engine reads it; None where nobody measured it."""
    numpy = require_numpy("scoring arrays")
    return None if column is None else as_bytes(numpy.ascontiguousarray(column, dtype=numpy.float32))

"""The loss hook: logits or losses of a batch become scores of exactly its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import SettingsError
from ._memory import as_bytes, compiling, dtype_name, is_tensor, require_numpy, require_torch, span, to_numpy, to_torch
from ._scores import LOGIT_DTYPES, RowScores, class_rows, sample_scores

if TYPE_CHECKING:
    from ._batch import Batch
    from ._loader import Loader

#: How the token losses of a sequence become the loss of the sample.
SEQUENCES = ("mean", "max", "sum")


def score(loader: Loader, logits: Any, batch: Batch, ignore_index: int, sequence: str) -> None:
    """See :meth:`lossfeed.Loader.score`."""
    plans = loader._plans
    if plans is not None and sequence in SEQUENCES and not compiling() and plans.score(loader, logits, batch, ignore_index):
        return
    _check_rows("logits", logits, batch)
    _check_sequence(sequence)
    if is_tensor(logits):
        _score_tensor(loader, batch, logits, _as_tensor(batch.target, logits), ignore_index, sequence)
        return
    numpy = require_numpy("scoring arrays")
    found = sample_scores(logits, numpy.asarray(batch.target), ignore_index)
    columns = found.loss, found.grad_norm, found.entropy
    count = found.rank_count
    if logits.ndim > 2:
        kept = numpy.asarray(batch.target) != ignore_index
        columns = _per_sample(numpy, len(batch), *columns, kept, sequence)
        count = to_numpy(_native.rank_counts(as_bytes(columns[0].astype(numpy.float32))), "int32", (len(batch),))
    loss, grad_norm, entropy = (as_bytes(numpy.asarray(c, dtype=numpy.float32)) for c in columns)
    loader._open_engine().apply_scores(batch._ticket, loss, grad_norm, entropy, as_bytes(count))


def score_losses(loader: Loader, losses: Any, batch: Batch, grad_norms: Any = None) -> None:
    """See :meth:`lossfeed.Loader.score_losses`."""
    _check_rows("losses", losses, batch)
    for name, column in (("losses", losses), ("grad_norms", grad_norms)):
        if column is None:
            continue
        if tuple(column.shape) != tuple(losses.shape) or len(column.shape) != 1:
            raise SettingsError(f"{name} have shape {tuple(column.shape)}: give one number a sample, (B,)")
        if dtype_name(column) not in LOGIT_DTYPES:
            raise SettingsError(f"{name} have dtype {dtype_name(column)}: give floats")
    if is_tensor(losses):
        _credit(loader, batch, *(None if c is None else c.detach() for c in (losses, grad_norms)))
        return
    numpy = require_numpy("scoring arrays")
    losses, grad_norms = (
        None if c is None else as_bytes(numpy.ascontiguousarray(c, dtype=numpy.float32)) for c in (losses, grad_norms)
    )
    engine = loader._open_engine()
    if grad_norms is None:
        engine.apply_losses(batch._ticket, losses)
    else:
        engine.apply_scores(batch._ticket, losses, grad_norms, None, _native.rank_counts(losses))


def cross_entropy(
    loader: Loader,
    logits: Any,
    batch: Batch,
    target: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    weighted: bool,
    sequence: str,
    overwrite_logits: bool,
) -> Any:
    """See :meth:`lossfeed.Loader.cross_entropy`."""
    plans = loader._plans
    if plans is not None and weight is None and sequence in SEQUENCES and not compiling():
        mine, weights = batch.target if target is None else target, batch.weight if weighted else None
        done = plans.cross_entropy(
            logits, mine, ignore_index, reduction, label_smoothing, overwrite_logits, loader, batch, weights
        )
        if done is not None:
            return done
    torch = require_torch("cross_entropy")
    from . import _autograd

    _check_reduction(reduction)
    _check_sequence(sequence)
    _check_tensor("logits", logits, "; score NumPy logits with loader.score")
    _check_rows("logits", logits, batch)
    target = _as_tensor(batch.target if target is None else target, logits)
    if not target.is_floating_point():
        target = target.to(torch.int64)
    if weight is not None:
        weight = weight.to(device=logits.device, dtype=logits.dtype)

    if _autograd.native_path(logits, target, weight, label_smoothing):
        from . import _cuda

        mails = logits.is_cuda and not compiling()
        home = _cuda.home(loader, batch, logits.device) if mails else _cuda.NOWHERE
        direct = target.numel() == _samples(batch)
        where = home if direct else _cuda.NOWHERE
        if mails and _autograd.one_launch(logits, reduction):
            shares = _as_tensor(batch.weight, logits).to(torch.float32).contiguous() if weighted else None
            found = _autograd.reduced_rows(
                logits, target, weight, ignore_index, reduction, label_smoothing, overwrite_logits, where, shares
            )
            if not direct:
                _cuda.mail_sequences(found, _samples(batch), sequence, home)
            return found.term
        # What is mailed is ranked on its way, what becomes one loss a sample later.
        terms, share, found = _autograd.row_terms(
            logits, target, weight, ignore_index, label_smoothing, overwrite_logits, where, direct and not mails
        )
        if not mails:
            _apply(loader, batch, found.scores(), sequence)
        elif not direct:
            _cuda.mail_sequences(found, _samples(batch), sequence, home)
        shape = target.shape
    else:
        terms = torch.nn.functional.cross_entropy(
            logits, target, weight=weight, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing
        )
        shape = terms.shape
        terms = terms.reshape(-1)
        if target.is_floating_point():
            share = torch.ones_like(terms)
            plain = torch.nn.functional.cross_entropy(logits.detach(), target.detach(), reduction="none").float()
            _credit(loader, batch, plain.reshape(_samples(batch), -1).mean(1), None)
        else:
            labels = target.reshape(-1)
            valid = labels != ignore_index
            share = valid.to(terms.dtype)
            if weight is not None:
                share = torch.where(valid, weight[torch.where(valid, labels, torch.zeros_like(labels))], share)
            _score_tensor(loader, batch, logits, target, ignore_index, sequence)

    terms = terms * _weights(batch, logits, terms.numel()) if weighted else terms
    return _autograd.reduced(terms, share, reduction, shape).to(_autograd.result_dtype(logits))


def loss(
    loader: Loader,
    kind: str,
    prediction: Any,
    batch: Batch,
    target: Any,
    reduction: str,
    weighted: bool,
    options: dict[str, Any],
) -> Any:
    """See :meth:`lossfeed.Loader.loss`."""
    require_torch("loss")
    from . import _elementwise

    _check_reduction(reduction)
    _check_tensor("prediction", prediction, "")
    _check_rows("prediction", prediction, batch)
    target = _as_tensor(batch.target if target is None else target, prediction)
    losses, grad_norms = _elementwise.sample_losses(kind, prediction, target, options)
    _credit(loader, batch, losses.detach(), grad_norms)
    if weighted:
        losses = losses * _weights(batch, losses, losses.numel())
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


def _score_tensor(loader: Loader, batch: Batch, logits: Any, target: Any, ignore_index: int, sequence: str) -> None:
    """Scores a tensor of logits on its device."""
    from . import _cuda, _rows, _scores

    _scores._check_shapes(logits, target)
    rows, labels = class_rows(logits.detach()), target.reshape(-1)
    if _rows.native_on(rows.device) and rows.is_cuda and not compiling():
        home = _cuda.home(loader, batch, rows.device)
        if len(labels) == _samples(batch):
            _cuda.score(_rows.readable(rows), _rows.class_indices(labels), ignore_index, home)
        else:
            found = _rows.forward(rows, labels, None, ignore_index, 0.0, ranks=False)
            _cuda.mail_sequences(found, _samples(batch), sequence, home)
    elif rows.is_cuda and not _rows.native_on(rows.device):
        from ._autograd import device_rows

        _apply(loader, batch, device_rows(rows, labels, ignore_index), sequence)
    else:
        if not rows.is_cuda:
            rows, labels = rows.cpu(), labels.cpu()
        _apply(loader, batch, _rows.terms(rows, labels, None, ignore_index, 0.0).scores(), sequence)


def _apply(loader: Loader, batch: Batch, scores: RowScores, sequence: str) -> None:
    """Takes row scores home; rows of one sample become one first."""
    import torch

    samples = _samples(batch)
    columns = scores.loss, scores.grad_norm, scores.entropy
    if scores.loss.numel() == samples:
        _credit(loader, batch, *columns, scores.rank_count)
    else:
        _credit(loader, batch, *_per_sample(torch, samples, *columns, scores.correct != 255, sequence))


def _credit(loader: Loader, batch: Batch, loss: Any, grad_norm: Any, entropy: Any = None, count: Any = None) -> None:
    """Takes ``(B,)`` tensors of scores home. Columns that are None were not measured; the ranks are counted if need be."""
    import torch

    floats = [c.detach().to(torch.float32) for c in (loss, grad_norm, entropy) if c is not None]
    if compiling():
        loader._graph.credit(batch, floats)
        return
    engine, ticket = loader._open_engine(), batch._ticket
    if loss.device.type == "cuda":
        from . import _cuda
        from ._autograd import rank_counts

        if (native := _cuda.kernels(loss.device)) is not None:
            _cuda.mail_columns(native, floats, _cuda.home(loader, batch, loss.device))
            return

        _mail(loader).post(ticket, torch.stack(floats), rank_counts(floats[0]) if count is None else count)
        return
    spans = [span(c.cpu().contiguous()) for c in floats]
    if len(spans) == 1:
        engine.apply_losses(ticket, spans[0])
    else:
        count = _native.rank_counts(spans[0]) if count is None else span(count)
        engine.apply_scores(ticket, spans[0], spans[1], spans[2] if len(spans) > 2 else None, count)


def _per_sample(
    xp: Any, samples: int, loss: Any, grad_norm: Any, entropy: Any, kept: Any, sequence: str
) -> tuple[Any, Any, Any]:
    """One loss a sample from its positions that count (their mean, largest or sum), and means of the rest; NaN where none
    counts. The mean of the gradient norms bounds the norm of the mean gradient."""
    kept = kept.reshape(samples, -1)
    share = kept.sum(1)
    some = xp.where(share > 0, share, xp.nan)

    def mean(column: Any) -> Any:
        return total(column) / some

    def total(column: Any) -> Any:
        column = column.reshape(samples, -1)
        return xp.where(kept, column, xp.zeros_like(column)).sum(1)

    if sequence == "mean":
        loss = mean(loss)
    elif sequence == "sum":
        loss = xp.where(share > 0, total(loss), xp.nan)
    else:
        loss = loss.reshape(samples, -1)
        # A cross entropy is never negative: 0 is below every loss that counts, and NaN stays NaN.
        loss = xp.where(share > 0, xp.amax(xp.where(kept, loss, xp.zeros_like(loss)), 1), xp.nan)
    return loss, mean(grad_norm), mean(entropy)


def _weights(batch: Batch, like: Any, terms: int) -> Any:
    """The batch's weights, one a term."""
    weights = _as_tensor(batch.weight, like)
    positions = terms // max(1, _samples(batch))
    return weights if positions == 1 else weights.repeat_interleave(positions)


def _samples(batch: Batch) -> int:
    return int(batch.ids.shape[0])


def _mail(loader: Loader) -> Any:
    if loader._mail is None:
        from ._device import Mail

        loader._mail = Mail(loader._open_engine())
    return loader._mail


def _as_tensor(value: Any, like: Any) -> Any:
    """`value` as a tensor on the device of `like`."""
    import torch

    return torch.as_tensor(value).to(like.device, non_blocking=True)


def _check_rows(name: str, values: Any, batch: Batch) -> None:
    shape = tuple(getattr(values, "shape", ()))
    if not shape:
        raise SettingsError(f"{name} must be a torch tensor or NumPy array with one row a sample, not {type(values).__name__}")
    if shape[0] != _samples(batch):
        raise SettingsError(
            f"{name} of shape {shape} for a batch of {_samples(batch)} samples: give one row a sample of this very batch, in its order"
        )


def _check_tensor(name: str, value: Any, remedy: str) -> None:
    if not is_tensor(value):
        raise SettingsError(f"{name} must be a torch tensor, not {type(value).__name__}{remedy}")


def _check_reduction(reduction: str) -> None:
    if reduction not in ("none", "mean", "sum"):
        raise SettingsError(f"reduction={reduction!r} is unknown: use none, mean or sum")


def _check_sequence(sequence: str) -> None:
    if sequence not in SEQUENCES:
        raise SettingsError(f"sequence={sequence!r} is unknown: use mean, max or sum")

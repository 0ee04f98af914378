"""The loss hook: logits or losses of a batch become scores of exactly its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native
from ._errors import SettingsError
from ._memory import as_bytes, dtype_name, is_tensor, require_numpy, require_torch, span, to_numpy, to_torch
from ._scores import LOGIT_DTYPES, RowScores, class_rows, cpu_rows, sample_scores

if TYPE_CHECKING:
    from ._batch import Batch
    from ._loader import Loader


def score(loader: Loader, logits: Any, batch: Batch, ignore_index: int) -> None:
    """See :meth:`lossfeed.Loader.score`."""
    engine = loader._open_engine()
    _check_rows("logits", logits, batch)
    if is_tensor(logits):
        target = _as_tensor(batch.target, logits)
        _apply(loader, engine, batch, _tensor_scores(logits, target, ignore_index))
        return
    numpy = require_numpy("scoring arrays")
    found = sample_scores(logits, numpy.asarray(batch.target), ignore_index)
    loss, grad_norm, entropy, count = found.loss, found.grad_norm, found.entropy, found.rank_count
    if logits.ndim > 2:
        kept = numpy.asarray(batch.target) != ignore_index
        loss, grad_norm, entropy = _per_sample(numpy, len(batch), loss, grad_norm, entropy, kept)
        count = to_numpy(_native.rank_counts(as_bytes(loss.astype(numpy.float32))), "int32", (len(batch),))
    loss, grad_norm, entropy = (as_bytes(numpy.asarray(c, dtype=numpy.float32)) for c in (loss, grad_norm, entropy))
    engine.apply_scores(batch._ticket, loss, grad_norm, entropy, as_bytes(count))


def score_losses(loader: Loader, losses: Any, batch: Batch) -> None:
    """See :meth:`lossfeed.Loader.score_losses`."""
    engine = loader._open_engine()
    _check_rows("losses", losses, batch)
    if len(losses.shape) != 1:
        raise SettingsError(f"losses have shape {tuple(losses.shape)}: give one number a sample, (B,)")
    if dtype_name(losses) not in LOGIT_DTYPES:
        raise SettingsError(f"losses have dtype {dtype_name(losses)}: give floats")
    if is_tensor(losses):
        import torch

        values = losses.detach().to(torch.float32)
        if values.device.type == "cuda":
            from ._autograd import rank_counts

            _mail(loader).post(batch._ticket, values.unsqueeze(0), rank_counts(values))
            return
        values = values.cpu().contiguous()
        engine.apply_losses(batch._ticket, span(values))
        return
    numpy = require_numpy("scoring arrays")
    engine.apply_losses(batch._ticket, as_bytes(numpy.ascontiguousarray(losses, dtype=numpy.float32)))


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
) -> Any:
    """See :meth:`lossfeed.Loader.cross_entropy`."""
    torch = require_torch("cross_entropy")
    from . import _autograd

    engine = loader._open_engine()
    if reduction not in ("none", "mean", "sum"):
        raise SettingsError(f"reduction={reduction!r} is unknown: use none, mean or sum")
    if not is_tensor(logits):
        raise SettingsError(f"logits must be a torch tensor, not {type(logits).__name__}; score NumPy logits with loader.score")
    _check_rows("logits", logits, batch)
    target = _as_tensor(batch.target if target is None else target, logits)
    if not target.is_floating_point():
        target = target.to(torch.int64)
    if weight is not None:
        weight = weight.to(device=logits.device, dtype=logits.dtype)

    if _autograd.native_path(logits, target, weight, label_smoothing):
        terms, share, scores = _autograd.row_terms(logits, target, weight, ignore_index, label_smoothing)
        _apply(loader, engine, batch, scores)
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
            score_losses(loader, plain.reshape(len(batch), -1).mean(1), batch)
        else:
            labels = target.reshape(-1)
            valid = labels != ignore_index
            share = valid.to(terms.dtype)
            if weight is not None:
                share = torch.where(valid, weight[torch.where(valid, labels, torch.zeros_like(labels))], share)
            _apply(loader, engine, batch, _tensor_scores(logits, target, ignore_index))

    if weighted:
        weights = _as_tensor(batch.weight, logits)
        positions = terms.numel() // max(1, len(batch))
        terms = terms * (weights if positions == 1 else weights.repeat_interleave(positions))
    if reduction == "mean":
        value = terms.sum() / share.sum()
    elif reduction == "sum":
        value = terms.sum()
    else:
        value = terms.view(shape)
    return value.to(_autograd.result_dtype(logits))


def _tensor_scores(logits: Any, target: Any, ignore_index: int) -> RowScores:
    """Row scores of a tensor of logits, on its device."""
    from . import _scores

    _scores._check_shapes(logits, target)
    rows, labels = class_rows(logits.detach()), target.reshape(-1)
    if logits.device.type == "cuda":
        from ._autograd import device_rows

        return device_rows(rows, labels, ignore_index)
    return cpu_rows(rows.cpu(), labels.cpu(), ignore_index)


def _apply(loader: Loader, engine: _native.Engine, batch: Batch, scores: RowScores) -> None:
    """Takes row scores home; rows of one sample are averaged first."""
    import torch

    loss, grad_norm, entropy, count = scores.loss, scores.grad_norm, scores.entropy, scores.rank_count
    on_device = loss.device.type == "cuda"
    if loss.numel() != len(batch):
        loss, grad_norm, entropy = _per_sample(torch, len(batch), loss, grad_norm, entropy, scores.correct != 255)
        loss = loss.to(torch.float32)
        if on_device:
            from ._autograd import rank_counts

            count = rank_counts(loss)
        else:
            count = to_torch(_native.rank_counts(span(loss)), "int32", (len(batch),))
    loss, grad_norm, entropy = (c.to(torch.float32) for c in (loss, grad_norm, entropy))
    if on_device:
        _mail(loader).post(batch._ticket, torch.stack((loss, grad_norm, entropy)), count)
        return
    engine.apply_scores(batch._ticket, span(loss), span(grad_norm), span(entropy), span(count))


def _per_sample(xp: Any, samples: int, loss: Any, grad_norm: Any, entropy: Any, kept: Any) -> tuple[Any, Any, Any]:
    """Means over a sample's positions that count; NaN where none does. The mean of the gradient norms bounds the norm of
    the mean gradient."""
    kept = kept.reshape(samples, -1)
    share = kept.sum(1)

    def mean(column: Any) -> Any:
        column = column.reshape(samples, -1)
        return xp.where(kept, column, xp.zeros_like(column)).sum(1) / xp.where(share > 0, share, xp.nan)

    return mean(loss), mean(grad_norm), mean(entropy)


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
    if shape[0] != len(batch):
        raise SettingsError(
            f"{name} of shape {shape} for a batch of {len(batch)} samples: give one row a sample of this very batch, in its order"
        )

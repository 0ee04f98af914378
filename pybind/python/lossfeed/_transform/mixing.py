"""Batches whose images are mixed in pairs, by mixup and CutMix: who is in a row beside its own sample, and what becomes
of targets. The pixels are mixed before, by the loader's threads or on the device."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from .. import _native
from .._base.checks import real, whole
from .._base.errors import SampleError, SettingsError
from .._base.memory import is_array, is_tensor, require_numpy


class Mix(NamedTuple):
    """How a batch's images are mixed: row k with row B − 1 − k, and that one with it.

    The loss of a row is ``lam · loss(own target) + (1 − lam) · loss(partner's target)``; the partners' values of
    anything else are ``x.flip(0)``.
    """

    lam: Any
    """float32 ``(B,)``: the share of the own image, at least ½; 1 in rows that are not mixed: the middle of an odd batch,
    and all where chance left the batch as it is."""
    target: Any
    """The partners' targets, made as ``batch.target``; None where that is no tensor or array."""
    kind: Literal["mixup", "cutmix"] | None
    """What was drawn for the batch; None: nothing."""


class Mixer:
    """Knows what was drawn for each batch of one rank."""

    def __init__(self, transform: _native.ImageTransform, rank: int) -> None:
        self._transform, self._rank = transform, rank

    def of(self, target: Any, weight: Any, seed: int, ticket: _native.Ticket) -> Mix:
        """The mix of a delivered batch, beside its target and weight: on their device, in their library."""
        drawn = self._transform.mixed(_native.ImageTransform.key(seed, ticket.epoch, ticket.number), self._rank)
        share, kind = (1.0, None) if drawn is None else (drawn[0], "mixup" if drawn[1] is None else "cutmix")
        rows = len(ticket)
        if is_array(weight):
            lam = require_numpy("mixed arrays").full(rows, share, dtype="float32")
        else:
            lam = weight.new_full((rows,), share)
        if rows % 2 and kind is not None:
            lam[rows // 2 : rows // 2 + 1] = 1.0
        return Mix(lam, _partners(target), kind)  # type: ignore[arg-type]


def _partners(target: Any) -> Any:
    if is_array(target):
        return require_numpy("mixed arrays").ascontiguousarray(target[::-1])
    return target.flip(0) if hasattr(target, "flip") and not getattr(target, "is_nested", False) else None


def soft_target(target: Any, mix: Mix | None, num_classes: int, label_smoothing: float) -> Any:
    """See :meth:`lossfeed.Batch.soft_target`."""
    classes = whole("num_classes", num_classes, 1, 2**31)
    smoothing = real("label_smoothing", label_smoothing, 0.0, 1.0)
    kind = str(getattr(target, "dtype", type(target).__name__))
    if "int" not in kind or len(target.shape) != 1:
        shape = tuple(getattr(target, "shape", ()))
        raise SettingsError(f"soft_target is for one class index a sample, and these targets are {kind} of shape {shape}")
    parts = [(target, None)] if mix is None else [(target, mix.lam), (mix.target, 1 - mix.lam)]
    made: Any = 0
    for labels, share in parts:
        rows = _one_hot(labels, classes, 1.0 - smoothing, smoothing / classes)
        made = rows if share is None else made + rows * share[:, None]
    return made


def _one_hot(labels: Any, classes: int, on: float, off: float) -> Any:
    """float32 ``(B, classes)``: `off` everywhere and `on` more at the label; NaN for a label that names no class, where
    finding out would be a wait for the device."""
    wrong = (labels < 0) | (labels >= classes)
    if is_tensor(labels):
        import torch

        named = labels[:, None] == torch.arange(classes, device=labels.device)
        made = torch.full(named.shape, off, device=labels.device) + named * on
        if labels.device.type != "cpu":
            return made.masked_fill(wrong[:, None], torch.nan)
    else:
        numpy = require_numpy("soft targets")
        named = labels[:, None] == numpy.arange(classes)
        made = numpy.where(named, numpy.float32(off + on), numpy.float32(off))
    if bool(wrong.any()):
        raise SampleError(f"target {int(labels[wrong][0])} is none of {classes} classes, 0 to {classes - 1}")
    return made

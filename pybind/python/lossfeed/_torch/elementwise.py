"""Losses that are sums over elements: one loss a sample, and the norm of its gradient at the prediction.
Differentiable, on any device, in torch's own operators; imported only by functions that were handed a tensor."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F

from .._base.checks import real
from .._base.errors import SettingsError
from .._loss.columns import own_means, summed

#: Each loss's own keywords, as in torch.nn.functional.
_OPTIONS: dict[str, dict[str, Any]] = {
    "bce_with_logits": {"pos_weight": None},
    "mse": {},
    "l1": {},
    "huber": {"delta": 1.0},
    "smooth_l1": {"beta": 1.0},
}


def _bce(z: torch.Tensor, y: torch.Tensor, pos_weight: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    losses = F.binary_cross_entropy_with_logits(z, y, pos_weight=pos_weight, reduction="none")
    p = torch.sigmoid(z.detach())
    slope = p - y if pos_weight is None else (1.0 - y) * p - pos_weight * y * (1.0 - p)
    return losses, slope


def _mse(z: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.mse_loss(z, y, reduction="none"), 2.0 * (z.detach() - y)


def _l1(z: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.l1_loss(z, y, reduction="none"), torch.sign(z.detach() - y)


def _huber(z: torch.Tensor, y: torch.Tensor, delta: float) -> tuple[torch.Tensor, torch.Tensor]:
    return F.huber_loss(z, y, reduction="none", delta=delta), (z.detach() - y).clamp(-delta, delta)


def _smooth_l1(z: torch.Tensor, y: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    away = z.detach() - y
    slope = torch.sign(away) if beta == 0 else (away / beta).clamp(-1.0, 1.0)
    return F.smooth_l1_loss(z, y, reduction="none", beta=beta), slope


_LOSSES: dict[str, Callable[..., tuple[torch.Tensor, torch.Tensor]]] = {
    "bce_with_logits": _bce,
    "mse": _mse,
    "l1": _l1,
    "huber": _huber,
    "smooth_l1": _smooth_l1,
}


def sample_losses(
    kind: str,
    prediction: torch.Tensor,
    target: torch.Tensor,
    options: dict[str, Any],
    owners: tuple[torch.Tensor, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(B,)`` losses, the mean over each sample's elements, and ``(B,)`` norms of their gradients at the prediction.
    Half precision is computed in float32. `owners`: of packed tokens ``(rows, length, …)`` the sample of each, and how
    many samples there are.

    Raises:
        SettingsError: an unknown loss or option, or shapes that differ.
    """
    if not isinstance(kind, str) or kind not in _LOSSES:
        raise SettingsError(
            f"loss {kind!r} is unknown: use {', '.join(_LOSSES)}; for classes loader.cross_entropy; for anything "
            "else loader.score_losses"
        )
    known = _OPTIONS[kind]
    for name in options:
        if name not in known:
            raise SettingsError(f"{kind} has no option {name!r}: it takes {', '.join(known) or 'none'}")
    if prediction.shape != target.shape:
        # torch broadcasts here, with a warning; a (B,) target under a (B, 1) prediction then gives B losses a sample.
        raise SettingsError(
            f"target of shape {tuple(target.shape)} does not fit predictions of shape {tuple(prediction.shape)}: "
            "they must be equal"
        )
    for name, value in (("predictions", prediction), ("targets", target)):
        if value.is_complex() or (name == "predictions" and not value.is_floating_point()):
            raise SettingsError(f"{name} of {value.dtype} have no {kind} loss: give floats")
    for name, value in options.items():
        _check_option(kind, name, value, prediction)
    if prediction.numel() == 0:
        raise SettingsError(f"predictions of shape {tuple(prediction.shape)} are empty: there is no loss to compute")
    real = torch.float64 if prediction.dtype == torch.float64 else torch.float32
    losses, slope = _LOSSES[kind](prediction.to(real), target.to(real), **{**known, **options})
    if owners is not None:
        owner, samples = owners
        tokens = owner.shape[0]
        width = losses.numel() // tokens
        mine = own_means(torch, owner, samples, losses.reshape(tokens, -1).mean(1))
        squares = slope.detach().square().reshape(tokens, -1).sum(1)
        elements = summed(torch, owner, torch.ones_like(squares), samples) * width
        return mine, summed(torch, owner, squares, samples).sqrt() / torch.where(elements > 0, elements, torch.nan)
    samples = prediction.shape[0]
    losses, slope = losses.reshape(samples, -1), slope.detach().reshape(samples, -1)
    return losses.mean(1), torch.linalg.vector_norm(slope, dim=1) / slope.shape[1]


def _check_option(kind: str, name: str, value: Any, prediction: torch.Tensor) -> None:
    """Refuses options that torch would refuse in words of its own, or take in silence."""
    if name != "pos_weight":
        number = real(name, value)
        if number == 0 and kind == "huber":
            raise SettingsError(f"{name}={value!r}: the width of a huber loss's parabola must be above 0")
    elif value is not None:
        if not isinstance(value, torch.Tensor):
            raise SettingsError(f"pos_weight={value!r} must be a tensor, a number for each class")
        try:
            torch.broadcast_shapes(value.shape, prediction.shape)
        except RuntimeError:
            raise SettingsError(
                f"pos_weight of shape {tuple(value.shape)} does not fit predictions of shape {tuple(prediction.shape)}: "
                "give a number for each class"
            ) from None

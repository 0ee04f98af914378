"""Scores in torch's own operators, for devices that our kernels do not know. Nothing waits for the device."""

from __future__ import annotations

import math

import torch

from .._loss.columns import IGNORED, RANK_BASE, Columns


@torch.no_grad()
def device_rows(rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> Columns:
    """The scores of ``(R, C)`` logits."""
    real = torch.float64 if rows.dtype == torch.float64 else torch.float32
    z = rows.detach().to(real)
    labels = labels.to(torch.int64)
    valid = labels != ignore_index
    # An index out of range would trip a device-side assertion and take the context with it.
    inside = valid & (labels >= 0) & (labels < z.shape[1])
    index = torch.where(inside, labels, torch.zeros_like(labels)).unsqueeze(1)
    # Differences from the maximum, never the log-sum-exp: that one is rounded to the last place of the logits' offset.
    d = z - z.amax(-1, keepdim=True)
    log_sum = d.exp().sum(-1).log()
    p = torch.exp(d - log_sum.unsqueeze(1))
    p_y = p.gather(1, index).squeeze(1)
    nan = torch.full_like(log_sum, math.nan)
    of_label = log_sum - d.gather(1, index).squeeze(1)
    loss = torch.where(inside, of_label, torch.where(valid, nan, torch.zeros_like(log_sum)))
    grad_norm = torch.where(inside, (p.square().sum(-1) - 2.0 * p_y + 1.0).clamp_min(0.0).sqrt(), nan)
    entropy = torch.where(inside, log_sum - torch.where(p == 0, torch.zeros_like(p), p * d).sum(-1), nan)
    # torch calls the first NaN of a row its largest; a row that holds one has no softmax and nothing in it is correct.
    hit = ((z.argmax(-1) == labels) & ~torch.isnan(loss)).to(torch.uint8)
    correct = torch.where(valid, hit, torch.full_like(hit, IGNORED))
    count = rank_counts(torch.where(inside, loss, nan))
    rank_score = torch.where(count >= 0, torch.log(count.to(torch.float32) + RANK_BASE), nan.to(torch.float32))
    return Columns(loss, grad_norm, entropy, correct, count, rank_score)


@torch.no_grad()
def rank_counts(losses: torch.Tensor) -> torch.Tensor:
    """int32 counts of strictly smaller finite losses; -1 where a loss is not finite."""
    losses = losses.detach().to(torch.float32)
    finite = torch.isfinite(losses)
    # Everything without a rank sorts behind everything with one, so it is below nobody.
    ordered = torch.where(finite, losses, torch.full_like(losses, math.inf)).sort().values
    below = torch.searchsorted(ordered, losses, side="left").to(torch.int32)
    return torch.where(finite, below, torch.full_like(below, -1))

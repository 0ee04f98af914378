"""Comparisons with float64 that count, keep the worst and the first failures, and allow no more than arithmetic explains:
a gradient is judged row by row against its own size, so that one of zeros is wrong however small it should be."""

from __future__ import annotations

from typing import Any

import torch
from common import Report

IGNORE = -100
#: (relative to 1 + |expected|) of values that are computed in float32, or in float64.
NARROW, WIDE = 3e-5, 1e-11
#: Norm of a gradient's error over the gradient's norm, row by row: the rounding of 16-bit types, the arithmetic of
#: others.
ROW_BOUND = {torch.bfloat16: 2**-8, torch.float16: 2**-10, torch.float32: 1e-5, torch.float64: 1e-11}
#: Error of the terms whose difference a gradient is, as a share of them.
TERMS_BOUND = {torch.float64: 1e-14}


def short(dtype: torch.dtype) -> str:
    """float16 and so on."""
    return str(dtype).removeprefix("torch.")


def last_place(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One unit in the last place of `x` (float64) rounded to `dtype`."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(x.to(dtype).double().abs().clamp(min=info.smallest_normal))
    return torch.ldexp(torch.full_like(x, info.eps), exponent - 1)


def terms_of(z: torch.Tensor, y: torch.Tensor, upstream: torch.Tensor, weight: torch.Tensor | None, smoothing: float, mean: bool) -> torch.Tensor:
    """The magnitudes whose signed sum is the loss's gradient: a softmax's share, the target's, the smoothing's."""
    classes, valid = z.shape[1], y != IGNORE
    index = torch.where(valid, y, 0)
    w = torch.ones(classes, dtype=z.dtype, device=z.device) if weight is None else weight.double()
    own = torch.where(valid, w[index], 0.0)
    g = (upstream / (own.sum() if mean else 1.0)).expand(len(y))
    target = g * (1 - smoothing) * own
    smooth = torch.where(valid, g * smoothing / classes, 0.0).unsqueeze(1) * w
    terms = z.softmax(1) * (target + smooth.sum(1)).unsqueeze(1) + smooth
    return terms.scatter_add(1, index.unsqueeze(1), target.unsqueeze(1))


class Check:
    """Counts comparisons, keeps the worst and the first failures."""

    def __init__(self) -> None:
        self.compared = 0
        self.failures: list[str] = []
        self.failed = 0
        self.worst: dict[str, float] = {}

    def close(self, what: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float, kind: str) -> None:
        """`actual` within ``tolerance * (1 + |expected|)``; NaN and infinities must be where they are expected."""
        self.compared += 1
        a, e = actual.detach().double(), expected.detach().double()
        if a.shape != e.shape:
            self.fail(f"{what}: shape {tuple(a.shape)} for {tuple(e.shape)}")
            return
        same = (a == e) | (a.isnan() & e.isnan())
        error = torch.where(same, torch.zeros_like(a), (a - e).abs() / (1 + e.abs()))
        error = torch.where(error.isnan(), torch.full_like(error, float("inf")), error)
        worst = float(error.max()) if error.numel() else 0.0
        self.worst[kind] = max(self.worst.get(kind, 0.0), worst)
        if worst > tolerance:
            at = int(error.flatten().argmax())
            self.fail(f"{what}: {float(a.flatten()[at]):.9g} for {float(e.flatten()[at]):.9g} at {at} (off by {worst:.2e}, {tolerance:.0e} allowed)")

    def value(self, what: str, actual: torch.Tensor, expected: torch.Tensor, kind: str) -> None:
        """A loss in the logits' type: off by no more than float32's arithmetic and one unit in its own last place."""
        narrow = actual.dtype in (torch.float16, torch.bfloat16)
        e = expected.detach()
        e = torch.where(e.to(actual.dtype).isinf(), e.to(actual.dtype).double(), e)
        unit = last_place(e, actual.dtype) / (1 + e.abs()) if narrow else torch.zeros_like(e)
        bound = float(unit.nan_to_num(0.0).max() if unit.numel() else 0.0) + (WIDE if actual.dtype == torch.float64 else NARROW)
        self.close(what, actual, e, bound, kind)

    def gradient(self, what: str, actual: torch.Tensor, expected: torch.Tensor, terms: torch.Tensor, kind: str) -> None:
        """A gradient (rows, classes) against the float64 one: the error's norm in every row, and every element (one unit
        in the last place of 16-bit types). `terms` are the magnitudes of what its elements are the difference of."""
        dtype, a, e = actual.dtype, actual.detach().double(), expected.detach()
        self.compared += 1
        if a.shape != e.shape:
            return self.fail(f"{what}: shape {tuple(a.shape)} for {tuple(e.shape)}")
        bound, slack = ROW_BOUND[dtype], TERMS_BOUND.get(dtype, 4e-6) * terms
        # Powers below 2^-126 of a row's largest are flushed to 0; halves of the last subnormal are rounded away.
        lost = 2.0**-126 * terms.amax(1, keepdim=True) + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2
        lost = torch.where(terms.amax(1, keepdim=True) == 0, torch.zeros_like(lost), lost)
        error = torch.where((a == e) | (a.isnan() & e.isnan()), torch.zeros_like(a), a - e).nan_to_num(float("inf")).abs()
        allowed = (last_place(e, dtype) if dtype.itemsize == 2 else bound * terms) + slack + lost
        rows_allowed = bound * e.norm(dim=1) + slack.norm(dim=1) + (lost * e.shape[1] ** 0.5).squeeze(1)
        for name, off, most in (("row", error.norm(dim=1), rows_allowed), ("element", error.flatten(), allowed.flatten())):
            # Where nothing is allowed, any error is more than the smallest number.
            share = off / most.clamp(min=5e-324)
            worst = float(share.max()) if share.numel() else 0.0
            self.worst[f"{kind} {name}"] = max(self.worst.get(f"{kind} {name}", 0.0), worst)
            if worst > 1:
                at = int(share.argmax())
                return self.fail(f"{what}: {name} {at} is off by {float(off[at]):.3g}, {float(most[at]):.3g} allowed")

    def that(self, what: str, true: Any) -> None:
        """`true`."""
        self.compared += 1
        if not bool(true):
            self.fail(what)

    def fail(self, text: str) -> None:
        """Counts a failure and keeps the first twenty."""
        self.failed += 1
        if len(self.failures) < 20:
            self.failures.append(text)
            print(f"  WRONG {text}")

    def result(self, report: Report) -> dict[str, Any]:
        """What the section records."""
        for kind, worst in self.worst.items():
            if kind.endswith((" row", " element")):
                report.figure(f"{kind}, worst error over what is allowed", worst, most=1.0)
        report.figure("wrong", self.failed, f"of {self.compared} comparisons", most=0, n=self.compared)
        return {"compared": self.compared, "wrong": self.failed, "failures": self.failures, "worst": self.worst}

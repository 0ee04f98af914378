"""The cross entropies that are compared, each as a function of (logits, target); those that cannot be imported say why.

What they do differs, and the table should be read with it: eager and compiled torch and QuACK write one gradient
tensor; Liger computes the gradient in its forward pass and writes it over the logits; lossfeed writes one gradient
tensor, or in place over the logits, and the scores of every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

import lossfeed as lf

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _compiled() -> Loss:
    # Compiled for every shape; past its limit torch would quietly run it uncompiled.
    for limit in ("recompile_limit", "cache_size_limit"):
        if hasattr(torch._dynamo.config, limit):
            setattr(torch._dynamo.config, limit, 64)
    compiled = torch.compile(lambda z, y: F.cross_entropy(z, y), dynamic=False)
    return lambda z, y: compiled(z, y)


def _liger() -> Loss:
    # The function itself: the package's front imports a model library on the way.
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return lambda z, y: LigerCrossEntropyFunction.apply(z, y, None, -100, 0.0, 0.0, "mean", None, False)[0]


def _quack() -> Loss:
    from quack.cross_entropy import cross_entropy

    return lambda z, y: cross_entropy(z, y, reduction="mean")


MAKERS: dict[str, Callable[[], Loss]] = {
    "lossfeed": lambda: lf.cross_entropy,
    "lossfeed in place": lambda: lambda z, y: lf.cross_entropy(z, y, overwrite_logits=True),
    "eager": lambda: F.cross_entropy,
    "compiled": _compiled,
    "liger": _liger,
    "quack": _quack,
}


def losses(device: torch.device, names: Iterable[str]) -> tuple[dict[str, Loss], dict[str, Any]]:
    """Those of `names` that run on `device`, tried once on a small batch, and the errors of the others."""
    found: dict[str, Loss] = {}
    missing: dict[str, Any] = {}
    for name in names:
        if device.type != "cuda" and name in ("liger", "quack", "compiled"):
            missing[name] = {"error": "compared on a GPU only"}
            continue
        try:
            loss = MAKERS[name]()
            z = torch.randn(8, 4096, device=device, dtype=torch.bfloat16, requires_grad=True)
            y = torch.arange(8, device=device)
            value = loss(z * 1.0, y)
            value.backward()
            value = value.detach()
            expected = F.cross_entropy(z.detach().double(), y)
            # A few last places of bfloat16: on some CPUs torch itself takes the mean in it.
            if abs(float(value) - float(expected)) > 0.02 * float(expected):
                raise ValueError(f"its loss is {float(value):.4f}, torch's in float64 {float(expected):.4f}")
            found[name] = loss
        except Exception as error:
            missing[name] = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
            print(f"  {name} is left out: {missing[name]['error'][:160]}")
    return found, missing

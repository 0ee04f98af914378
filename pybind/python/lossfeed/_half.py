"""The one door to the torch half of the package: the modules that import torch at their head.

lossfeed imports without torch. So nothing here imports that half before somebody uses torch, and whoever does asks
this door for it. The torch half never asks back: it imports the modules without torch at its head, as any module does.
"""

from __future__ import annotations

from typing import Any

from ._memory import require_torch

_half: Any = None


def torch_half(what: str) -> Any:
    """The modules of :mod:`lossfeed._torch`; imported at the first call, since an import costs as much as an operator.

    Raises:
        UsageError: there is no torch; it says what needs it and how to get it.
    """
    global _half
    if _half is None:
        require_torch(what)
        from . import _torch

        _half = _torch
    return _half

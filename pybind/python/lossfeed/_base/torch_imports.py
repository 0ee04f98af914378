"""The only import of :mod:`lossfeed._torch`, whose modules import torch at their head.

``import lossfeed`` needs no torch, so it is imported when something first uses it, through :func:`torch_half`.
"""

from __future__ import annotations

from typing import Any

from .memory import require_torch

_half: Any = None


def torch_half(what: str) -> Any:
    """The modules of :mod:`lossfeed._torch`; imported at the first call, since an import costs as much as an operator.

    Raises:
        UsageError: there is no torch; it says what needs it and how to get it.
    """
    global _half
    if _half is None:
        require_torch(what)
        from .. import _torch

        _half = _torch
    return _half

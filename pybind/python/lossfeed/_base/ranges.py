"""NVTX ranges for Nsight Systems, with ``LOSSFEED_NVTX=1`` in the environment when lossfeed is imported."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_ON = os.environ.get("LOSSFEED_NVTX") == "1"


def ranged(name: str) -> Callable[[F], F]:
    """A range of that name around every call of a function; without the variable the function itself. None where torch
    has no CUDA, nor in a compiled graph, which cannot hold one."""

    def around(function: F) -> F:
        if not _ON:
            return function

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is None or torch.compiler.is_compiling() or not torch.backends.cuda.is_built():
                return function(*args, **keywords)
            torch.cuda.nvtx.range_push(name)
            try:
                return function(*args, **keywords)
            finally:
                torch.cuda.nvtx.range_pop()

        return call  # type: ignore[return-value]

    return around

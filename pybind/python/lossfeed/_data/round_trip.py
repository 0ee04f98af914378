"""Whether items are the same once they have travelled as arrays."""

from __future__ import annotations

import sys
from typing import Any

from .._base.memory import DTYPES, dtype_name, is_array, is_tensor, require_numpy


def like_torch(value: Any, root: bool = True) -> bool:
    """Whether torch's ``default_collate`` makes of such items what a batch of them is here."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and like_torch(part, False) for key, part in value.items())
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        array = not root and not hasattr(kind, "_fields") and is_numbers(value)
        return not array and all(like_torch(part, False) for part in value)
    if is_tensor(value):
        return kind is sys.modules["torch"].Tensor and not value.requires_grad
    if is_array(value) or (kind.__module__ == "numpy" and hasattr(value, "dtype")):
        return value.dtype.isnative and value.dtype.name in DTYPES
    return kind in (int, float, bool, str, bytes)


def comes_back(value: Any, root: bool = True) -> bool:
    """Whether an item comes out of a batch slot equal in type and value, and so can be given to a ``collate_fn``."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and comes_back(part, False) for key, part in value.items())
    if kind in (tuple, list):
        return (root or not is_numbers(value)) and all(comes_back(part, False) for part in value)
    if is_tensor(value) or is_array(value):
        arrays = (sys.modules["torch"].Tensor if is_tensor(value) else require_numpy("an array").ndarray,)
        return kind in arrays and like_torch(value) and dtype_name(value) in DTYPES and 0 not in value.shape
    return kind in (float, bool, str, bytes) or (kind is int and value.bit_length() < 64)


def is_numbers(value: Any) -> bool:
    """Whether a list holds numbers, or lists of them, as far as its first elements tell."""
    while isinstance(value, (tuple, list)):
        if not value:
            return True
        value = value[0]
    return isinstance(value, (int, float))

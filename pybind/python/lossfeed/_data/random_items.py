"""Whether a Python dataset draws at random, which a cache would freeze."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._base.errors import SettingsError
from .._base.memory import as_bytes, is_array, is_tensor
from . import generators

if TYPE_CHECKING:
    from .adaptor import Adaptor
    from .process_pool import Processes
    from .data import Data

#: Reads of one item by which a dataset is found to draw at random, and how many items are tried.
_READS, _TRIED = 4, 2


def draws_at_random(adaptor: Adaptor | Processes, samples: int) -> int | None:
    """An item that is another one when it is read again, or None. Tries two items, four times each.

    The global generators of random, NumPy and torch are left as they were. Each read goes on where the one before has
    left them, as reads in training do. An item that cannot be read is no answer.
    """
    with generators.kept():
        for i in sorted({0, samples // 2})[:_TRIED]:
            first = _item_bytes(adaptor, i)
            if first is None:
                continue
            for _ in range(_READS - 1):
                again = _item_bytes(adaptor, i)
                if again is not None and again != first and not (adaptor.structure.whole and _equal(first, again)):
                    return i
    return None


def _item_bytes(adaptor: Adaptor | Processes, i: int) -> tuple[bytes, bytes] | None:
    (item,) = adaptor.turns.call(lambda: adaptor([i]))
    if len(item) == 2:
        return bytes(item[0]), bytes(item[1])
    if item[2]:
        raise item[1]
    return None


def _equal(first: tuple[bytes, bytes], again: tuple[bytes, bytes]) -> bool:
    """Whether two pickled items are equal. Their bytes may differ where they are, by what objects share."""
    return _alike(*(pickle.loads(memoryview(data)[8:]) for data, _ in (first, again)))


def _alike(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_alike, a, b))
    if is_tensor(a) or is_array(a):
        return a.shape == b.shape and bytes(as_bytes(a)) == bytes(as_bytes(b))
    if hasattr(a, "__dict__"):
        # Not by ==: that of a dataclass fails where it holds tensors.
        return _alike(vars(a), vars(b))
    return bool(a == b)


def refuse_random_items(data: Data) -> None:
    """For a loader with a cache: it would keep the draws of the first epoch for good.

    Raises:
        SettingsError: an item of a Python dataset is another one when it is read again.
    """
    for adaptor in data._adaptors:
        drawn = draws_at_random(adaptor, len(adaptor.dataset))
        if drawn is None:
            continue
        raise SettingsError(
            f"item {drawn} of this {type(adaptor.dataset).__name__} changes each time it is read, and the cache would "
            "freeze its first version: move the random part out of the dataset to after the cache "
            "(transform=lossfeed.ImageTransform(…) for images, or your own on batch.data), or leave out "
            "cache=, or accept it with frozen_augmentation=True"
        )

"""Batches of samples that are one array each: they read like the tensor that torch's loader would give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .batch import APART, FIELDS, Apart, Whole, shown_as_batch

_OPERATORS = (
    *(f"__{side}{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
      for side in ("", "r")),
    "__neg__", "__pos__", "__abs__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__",
)  # fmt: skip


class Plain(Whole):
    """A batch of samples that are one array each. It reads like their tensor or array, which is ``batch.data``: rows by
    position and in a loop, ``batch.shape``, ``batch / 255``, ``model(batch)``, ``torch.cat([batch, …])``. It is none for
    ``isinstance``, and ``==`` compares batches. ``batch.to()`` moves the batch; ``ids`` and ``weight`` are beside it.
    """

    __slots__ = ()

    _kind = "plain"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __getitem__(self, key: Any) -> Any:
        """Rows by position, slice or mask; or a field by its name."""
        if isinstance(key, str):
            return super().__getitem__(key)
        return self.data[_unwrapped(key)]

    def __contains__(self, key: object) -> bool:
        return _unwrapped(key) in self.data

    def __getattr__(self, name: str) -> Any:
        """What a tensor or array has and a batch has not."""
        if name in FIELDS or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.data, name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch's functions take its tensor."""
        return function(*_unwrapped(args), **_unwrapped(kwargs or {}))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """NumPy's functions take its array."""
        import numpy

        array = numpy.asarray(self.data, dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        return (
            f"<lossfeed.Batch {self.number} of epoch {self.epoch}: {len(self)} samples, data "
            f"{tuple(self.data.shape)} {self.data.dtype}>"
        )


class ApartPlain(Plain, Apart):
    """The same, out of a pickle."""

    __slots__ = ()


APART["plain"] = ApartPlain
shown_as_batch(Plain, ApartPlain)


def _unwrapped(value: Any) -> Any:
    """`value` with the data of batches in their place, in tuples, lists and dicts."""
    if isinstance(value, Plain):
        return value.data
    if type(value) in (tuple, list):
        return type(value)(_unwrapped(part) for part in value)
    if type(value) is dict:
        return {key: _unwrapped(part) for key, part in value.items()}
    return value


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: Plain, *others: Any) -> Any:
        found = getattr(type(self.data), name, None)
        return NotImplemented if found is None else found(self.data, *_unwrapped(others))

    apply.__name__ = name
    return apply


for _name in _OPERATORS:
    setattr(Plain, _name, _operator(_name))

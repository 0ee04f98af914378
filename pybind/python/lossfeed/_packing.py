"""Packing items quickly: what item 0 was made of decides once how each leaf of the others becomes bytes.

A dataset in memory gives an item in a microsecond or two; looking at all that could be wrong with each costs more than
ten times that. So an item is taken for granted first: whatever is not exactly as item 0 was ends in an exception, and
:meth:`lossfeed._structure.Structure.pack` looks at it again with care.
"""

from __future__ import annotations

import pickle
import struct
import sys
from typing import Any, Callable, NamedTuple, Sequence

from ._memory import torch_loaded

#: The bytes of a leaf's value, or, in the tail, its lengths and bytes. Any exception: look with care.
Quick = Callable[[Any], Any]


class Leaf(NamedTuple):
    """One leaf, by what item 0 had there."""

    #: "field", "target", "tail" (an array of any lengths) or "object" (pickled, in the tail).
    place: str
    #: Among the fields, or in the tail.
    number: int
    dtype: str
    #: Of a field or target; of an array in the tail as many dimensions, whatever their lengths.
    shape: tuple[int, ...]
    #: How a dataset gives it: "tensor", "array", "image", "int", "float", "bool", "list" or "object".
    given: str
    #: How messages, and ``pad=``, call it.
    path: str


class _Other(Exception):
    """Not as item 0 was."""


def tailed(tail: Sequence[tuple[tuple[int, ...], Any]]) -> list[Any]:
    """Lengths and bytes of the arrays of a tail as `pybind/src/tails.rs` reads them: all lengths, then the arrays, each
    at a multiple of 8."""
    if not tail:
        return []
    lengths = [n for shape, _ in tail for n in shape]
    parts: list[Any] = [struct.pack(f"={len(lengths)}Q", *lengths)]
    at = 0
    for _, raw in tail:
        if at % 8:
            parts.append(bytes(-at % 8))
            at += -at % 8
        parts.append(raw)
        at += len(raw)
    return parts


def quick(tree: Any, leaves: list[Leaf], plain: bool, values: Callable[[Any, int], Any]) -> Quick | None:
    """What packs items that are made exactly like item 0, of which these are the tree and its leaves; None if there is
    nothing quicker than care. `plain`: pairs of one field and one target; `values` takes any item apart."""
    of_leaf = [_of(leaf) for leaf in leaves]
    if not all(of_leaf):
        return None
    take = _taking(tree, leaves, values)
    if plain:
        first, second = of_leaf
        assert first is not None and second is not None

        def pair(item: Any) -> tuple[Any, Any]:
            x, y = item
            return first(x), second(y)

        return pair

    number = {"target": 0, "field": 1, "tail": 2, "object": 2}
    sorts = [number[leaf.place] for leaf in leaves]

    def whole(item: Any) -> tuple[Any, Any]:
        target, fields, tail = b"\0", [], []
        for sort, make, value in zip(sorts, of_leaf, take(item), strict=True):
            made = make(value)  # type: ignore[misc]
            if sort == 1:
                fields.append(made)
            elif sort == 2:
                tail.append(made)
            else:
                target = made
        return b"".join(fields + tailed(tail)), target

    return whole


def _taking(tree: Any, leaves: list[Leaf], values: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """What takes an item apart, quickly where that is no more than looking up keys."""
    if type(tree) is dict and list(tree.values()) == leaves:
        keys, same = list(tree), set(tree)

        def flat(item: Any) -> list[Any]:
            if item.keys() != same:
                raise _Other
            return [item[key] for key in keys]

        return flat
    return lambda item: values(item, 0)


def _of(leaf: Leaf) -> Quick | None:
    """What packs one leaf."""
    if leaf.place == "object":
        return _pickled
    make = _array(leaf)
    if make is None or leaf.place != "tail":
        return make and _fixed(leaf, make)
    dimensions = len(leaf.shape)

    def lengths(value: Any) -> tuple[Any, bytes]:
        array = make(value)
        if array.ndim != dimensions:
            raise _Other
        return array.shape, array.tobytes()

    return lengths


def _pickled(value: Any) -> tuple[tuple[int], bytes]:
    raw = pickle.dumps(value, protocol=5)
    return (len(raw),), raw


def _fixed(leaf: Leaf, make: Quick) -> Quick:
    shape = leaf.shape
    numbers: dict[str, Quick] = {
        "int": lambda value: value.to_bytes(8, sys.byteorder, signed=True),
        "bool": lambda value: b"\1" if value else b"\0",
        "float": struct.Struct("=f").pack,
    }
    if leaf.given in numbers:
        kind = {"int": int, "bool": bool, "float": float}[leaf.given]
        of_number = numbers[leaf.given]

        def number(value: Any) -> bytes:
            if type(value) is not kind:
                raise _Other
            return of_number(value)

        return number

    def array(value: Any) -> bytes:
        made = make(value)
        if made.shape != shape:
            raise _Other
        return made.tobytes()

    return array


def _array(leaf: Leaf) -> Quick | None:
    """What makes a NumPy array of the leaf's dtype of a value."""
    numpy = sys.modules.get("numpy")
    if numpy is None or leaf.given == "image":
        return None
    if leaf.dtype == "bfloat16":
        torch = torch_loaded()
        dtype = None if torch is None else torch.bfloat16

        def half(value: Any) -> Any:
            if value.dtype is not dtype:
                raise _Other
            return value.view(torch.int16).numpy()

        return None if torch is None else half
    wanted = numpy.dtype(leaf.dtype)
    kinds = (numpy.ndarray, *(kind for kind in numpy.sctypeDict.values() if issubclass(kind, numpy.generic)))
    plain = set(kinds)

    def tensor(value: Any) -> Any:
        # Raises for what has another device, a gradient, another layout or a pending conjugation.
        made = value.numpy()
        if made.dtype != wanted:
            raise _Other
        return made

    def array(value: Any) -> Any:
        if type(value) not in plain or value.dtype != wanted:
            raise _Other
        return value

    def listed(value: Any) -> Any:
        made = numpy.asarray(value)
        if type(value) not in (list, tuple) or made.dtype != wanted:
            raise _Other
        return made

    return {"tensor": tensor, "array": array, "list": listed}.get(leaf.given, lambda value: None)

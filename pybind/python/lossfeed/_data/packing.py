"""Packing items quickly: what item 0 was made of decides once how each leaf of the others becomes bytes.

A dataset in memory gives an item in a microsecond or two; looking at all that could be wrong with each costs more than
ten times that. So an item is taken for granted first, by native code that goes through it once: whatever is not exactly
as item 0 was is refused, and :meth:`lossfeed._data.structure.Structure.pack` looks at it again with care.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, Callable, NamedTuple, Sequence

from .. import _native
from .._base.memory import require_numpy, torch_loaded

#: What native code can look at in the place of an item. Any exception: look with care.
Prepare = Callable[[Any], Any]


class Leaf(NamedTuple):
    """One leaf, by what item 0 had there."""

    #: "field", "target", "tail" (an array of any lengths) or "object" (pickled, in the tail).
    place: str
    #: Among the fields, or in the tail.
    number: int
    dtype: str
    #: Of a field or target; of an array in the tail as many dimensions, whatever their lengths.
    shape: tuple[int, ...]
    #: How a dataset gives it: "tensor", "array", "image", "int", "float", "bool", "list" or "object"; or what a member of
    #: a shard holds: "json", "text", "npy" or "bytes".
    given: str
    #: How messages, and ``pad=``, call it.
    path: str


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


def walks(branch: Any) -> bool:
    """Whether native code finds the parts of a dict, tuple or list of item 0 as Python does."""
    kind = type(branch)
    if kind is dict:
        return all(type(key) is str for key in branch)
    # Named tuples lie in memory as tuples do, unless they are looked up in some way of their own.
    return kind in (tuple, list) or (hasattr(kind, "_fields") and kind.__getitem__ is tuple.__getitem__)


def packing(tree: Any, leaves: list[Leaf]) -> _native.Packing:
    """What packs items made like `tree`, which has the numbers of its leaves in their places."""
    numpy, torch = require_numpy("a Python dataset"), torch_loaded()
    numbers = {kind for kind in numpy.sctypeDict.values() if issubclass(kind, (numpy.number, numpy.bool_))}
    tensor = None
    if torch is not None:
        table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        tensor = torch.Tensor, torch.utils.dlpack.to_dlpack, table
    specs = [(leaf.place, leaf.dtype, leaf.shape) for leaf in leaves]
    return _native.Packing(tree, specs, tensor, [numpy.ndarray, numpy.memmap, *numbers])


def preparing(tree: Any, leaves: list[Leaf], values: Callable[[Any, int], Any], image: Any) -> Prepare:
    """What makes of an item the list of its leaves' values, with arrays or bytes in the place of those of which only
    Python knows how they become some: objects, lists of numbers, pictures. `values` takes any item apart."""
    take = _taking(tree, leaves, values)
    known = {"object": _pickled, "list": _listed, "image": image}
    makes = [(number, known[leaf.given]) for number, leaf in enumerate(leaves) if leaf.given in known]

    def prepare(item: Any) -> list[Any]:
        found = take(item)
        for number, make in makes:
            found[number] = make(found[number])
        return found

    return prepare


def _taking(tree: Any, leaves: list[Leaf], values: Callable[[Any, int], Any]) -> Callable[[Any], list[Any]]:
    """What takes an item apart, quickly where that is no more than looking up keys."""
    if type(tree) is dict and list(tree.values()) == leaves:
        keys, same = list(tree), set(tree)

        def flat(item: Any) -> list[Any]:
            if item.keys() != same:
                raise KeyError(*same)
            return [item[key] for key in keys]

        return flat
    return lambda item: list(values(item, 0))


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, protocol=5)


def _listed(value: Any) -> Any:
    if type(value) not in (list, tuple):
        raise TypeError("no list")
    return require_numpy("a list of numbers").asarray(value)

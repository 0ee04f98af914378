"""What a sample is made of, and how it travels.

A sample is a tree: dicts, tuples, lists and named tuples with *leaves*. A leaf of a fixed dtype and shape is a *field*:
it has a place in every batch slot. What differs in length from sample to sample, and what is no array at all (text, any
Python object, which is pickled), makes up the sample's *tail*. One leaf may be the *target*.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
from collections.abc import Mapping
from typing import Any, Callable, Iterator

from .. import _native
from .._base.errors import SampleError, SettingsError
from .._base.memory import DTYPES, as_bytes, check_dense, dtype_name, is_array, is_tensor, require_numpy
from .._base.signals import of_signal
from .packing import Leaf, Prepare, packing, preparing, tailed, walks
from .round_trip import comes_back, is_numbers, like_torch

Spec = tuple[str, tuple[int, ...]]

#: ``convert(buffer, dtype, shape)``: :func:`lossfeed._base.memory.to_torch` or ``to_numpy``.
Convert = Callable[[Any, str, tuple[int, ...]], Any]

#: Bytes of an element.
BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}
#: What a leaf is given as that travels as the signed type of its size: int64 in batches, as both libraries compute with.
WIDENED = {"uint16": 0xFFFF, "uint32": 0xFFFF_FFFF}
#: Keys that are taken for the target's where nobody names one, in this order.
TARGET_KEYS = ("labels", "label", "target", "targets", "y")
#: What stands for the target of samples that have none.
NO_TARGET: Spec = ("uint8", ())
#: Longest list of keys or shapes in a message.
_SHOWN = 8


class Structure:
    """The tree of one dataset's samples, as item 0 has it.

    `varying` says that arrays may differ in length. `target` names the target's key in a dict; None takes the first of
    :data:`TARGET_KEYS` that it has. In tuples the last part is the target. `image` makes pixels of a picture.
    """

    def __init__(
        self,
        item: Any,
        *,
        varying: bool = False,
        target: str | None = None,
        image: Callable[[Any], Any] | None = None,
    ) -> None:
        self._image = image
        self.varying: bool = varying
        self.pair: bool = type(item) in (tuple, list) and len(item) == 2
        self.target_key: Any = _target_of(item, self.pair, target)
        self.fields: list[Spec] = []
        self.tail: list[tuple[str, int]] = []
        self.target: Spec = NO_TARGET
        self.leaves: list[Leaf] = []
        self._walks = True
        #: Whether a batch is what torch's ``default_collate`` makes of its items.
        self.like_torch: bool = like_torch(item)
        #: Whether an item comes out of a batch equal in type and value.
        self.comes_back: bool = comes_back(item)
        #: Whether items travel pickled, each as a whole.
        self.whole: bool = item is WHOLE
        #: Whether items are packed; native code makes samples of leaves that are given.
        self.packs = True
        self.tree: Any = self._grow(item, "")
        #: Whether a sample is a pair of one array and one target, each of a fixed shape: what batches have by themselves.
        self.plain: bool = self.pair and [getattr(part, "place", None) for part in self.tree] == ["field", "target"]
        self._prepare, self._packing = self._made_quick()
        self._lengths_in_tail = sum(dimensions for _, dimensions in self.tail)

    # ---- item 0 ----------------------------------------------------------------------------------------------------

    def _grow(self, value: Any, path: str) -> Any:
        parts = self._parts(value, path)
        if parts is None:
            leaf = self._leaf(value, path)
            self.leaves.append(leaf)
            return leaf
        keys, values = parts
        self._walks &= walks(value)
        grown = [self._grow(v, self._path(path, key)) for key, v in zip(keys, values, strict=True)]
        return _like(value, keys, grown)

    def _path(self, path: str, key: Any) -> str:
        if not path and self.pair:
            return "xy"[key]
        return f"{path}.{key}" if path else str(key)

    def _parts(self, value: Any, path: str) -> tuple[Any, Any] | None:
        """Keys and values of a branch; None for a leaf."""
        if isinstance(value, Leaf):
            return None
        if isinstance(value, Mapping):
            return list(value), list(value.values())
        # Numbers in a list are an array, but for the sample itself, and where they have names.
        if isinstance(value, (tuple, list)) and not (path and is_numbers(value) and not hasattr(value, "_fields")):
            return range(len(value)), value
        return None

    def _leaf(self, value: Any, path: str) -> Leaf:
        if isinstance(value, Leaf):
            return self._whole(value) if value.place == "object" else self._made(value)
        name = path or "the sample"
        array, given = self._array(value, name, 0)
        if array is None:
            self.tail.append(("uint8", 1))
            return Leaf("object", len(self.tail) - 1, "uint8", (0,), "object", path)
        dtype, shape = dtype_name(array), tuple(int(n) for n in array.shape)
        if self.varying and shape:
            self.tail.append((dtype, len(shape)))
            return Leaf("tail", len(self.tail) - 1, dtype, shape, given, path)
        if 0 in shape:
            raise SettingsError(
                f"dataset item 0: {name} of shape {shape} has no elements; if items differ in length, open the dataset "
                "with varying=True"
            )
        if path and self.target_key is not None and path == self._path("", self.target_key):
            self.target = dtype, shape
            return Leaf("target", 0, dtype, shape, given, path)
        self.fields.append((dtype, shape))
        return Leaf("field", len(self.fields) - 1, dtype, shape, given, path)

    def _whole(self, leaf: Leaf) -> Leaf:
        self.tail.append((leaf.dtype, 1))
        return leaf

    def _made(self, leaf: Leaf) -> Leaf:
        """A leaf of samples that native code makes."""
        self.packs = False
        if leaf.place == "target":
            self.target = leaf.dtype, leaf.shape
        elif leaf.place == "field":
            self.fields.append((leaf.dtype, leaf.shape))
        else:
            self.tail.append((leaf.dtype, len(leaf.shape)))
        return leaf

    def _array(self, value: Any, name: str, i: int) -> tuple[Any, str]:
        """`value` as a CPU tensor or a native-endian array of a dtype that travels, and what it was; None for what is no
        array."""
        try:
            check_dense(name, value)
        except SettingsError as cause:
            raise SampleError(f"dataset item {i}: {cause}") from None
        if is_tensor(value):
            if value.device.type != "cpu":
                raise SampleError(f"dataset item {i}: {name} is a tensor on {value.device}: return CPU tensors")
            result, given = value.detach(), "tensor"
        elif hasattr(value, "getbands") and hasattr(value, "convert"):
            result, given = (value if self._image is None else self._image(value)), "image"
        else:
            kind = type(value)
            # What speaks NumPy's protocol is an array; text, None and other objects are not.
            speaks = is_array(value) or hasattr(value, "__array__") or hasattr(value, "__array_interface__")
            if kind not in (int, float, bool, list, tuple) and not speaks:
                return None, "object"
            numpy = require_numpy("a dataset of arrays or numbers")
            try:
                result = numpy.asarray(value)
            except Exception as cause:
                raise SampleError(
                    f"dataset item {i}: {name} ({kind.__name__}) is ragged or not numeric: {cause}"
                ) from cause
            given = {int: "int", float: "float", bool: "bool", list: "list", tuple: "list"}.get(kind, "array")
            if result.dtype.kind in "USOMm":
                return None, "object"
            if not result.dtype.isnative:
                result = result.astype(result.dtype.newbyteorder("="))
        if dtype_name(result) not in DTYPES:
            raise SampleError(
                f"dataset item {i}: {name} ({type(value).__name__}) has dtype {dtype_name(result)}, which cannot "
                f"travel in a batch: use one of {', '.join(DTYPES)}, fixed in shape"
            )
        return result, given

    # ---- every item ------------------------------------------------------------------------------------------------

    def _made_quick(self) -> tuple[Prepare | None, _native.Packing | None]:
        if not self.packs:
            return None, None
        if self._walks and all(leaf.given not in ("object", "list", "image") for leaf in self.leaves):
            numbers = iter(range(len(self.leaves)))
            return None, packing(self.build(lambda _: next(numbers)), self.leaves)
        return preparing(self.tree, self.leaves, self.values, self._image), packing([*range(len(self.leaves))], self.leaves)

    def rows(self, count: int, seconds: float) -> tuple[_native.Rows, Callable[[Any], bool | None]]:
        """A run of `count` items at most that are read within some time, and what adds an item to it and tells whether
        another may follow; None for one that :meth:`pack` must look at."""
        assert self._packing is not None
        rows, prepare = _native.Rows(self._packing, count, seconds), self._prepare
        if prepare is None:
            return rows, rows.add

        def add(item: Any) -> bool | None:
            # An exception in an item's place is none, not even where items may be any object.
            if isinstance(item, BaseException):
                return None
            try:
                return rows.add(prepare(item))
            except Exception as error:
                if of_signal(error):
                    raise
                return None

        return rows, add

    def pack(self, item: Any, i: int) -> tuple[Any, Any]:
        """An item's bytes as they travel: fields and tail, and the target. What :meth:`rows` is tested against.

        Raises:
            SampleError: it is not made as item 0 is; with both.
        """
        values = list(self.values(item, i))
        fields: list[Any] = []
        tail: list[Any] = []
        target: Any = b"\0"
        for leaf, value in zip(self.leaves, values, strict=True):
            if leaf.place == "object":
                tail.append(self._pickled(value, leaf, i))
                continue
            array, _ = self._array(value, leaf.path or "the sample", i)
            if array is None:
                raise SampleError(
                    f"dataset item {i}: {leaf.path or 'the sample'} is a {type(value).__name__}, item 0 had an array of "
                    f"{leaf.dtype}: every item must be made alike"
                )
            if leaf.place == "tail":
                tail.append(self._lengths(array, leaf, i))
                continue
            found = dtype_name(array), tuple(array.shape)
            if found != (leaf.dtype, leaf.shape):
                raise SampleError(self._differs(leaf, found, i))
            if leaf.place == "target":
                target = as_bytes(array)
            else:
                fields.append(as_bytes(array))
        if len(fields) == 1 and not self.tail:
            return fields[0], target
        return b"".join([*fields, *tailed(tail)]), target

    def values(self, item: Any, i: int) -> Iterator[Any]:
        """The leaves' values of an item, in their order.

        Raises:
            SampleError: it is another tree.
        """
        return self._values(self.tree, item, i, "")

    def _values(self, tree: Any, item: Any, i: int, path: str) -> Iterator[Any]:
        if isinstance(tree, Leaf):
            yield item
            return
        where = f"{path or 'it'} "
        if isinstance(tree, Mapping):
            if not isinstance(item, Mapping) or item.keys() != tree.keys():
                keys = f"a {type(item).__name__}" if not isinstance(item, Mapping) else f"keys {_some(item)}"
                raise SampleError(
                    f"dataset item {i}: {where}has {keys}, in item 0 it had keys {_some(tree)}: every item must be made "
                    "alike"
                )
            for key, part in tree.items():
                yield from self._values(part, item[key], i, self._path(path, key))
            return
        if not isinstance(item, (tuple, list)) or len(item) != len(tree):
            what = f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, (tuple, list)) else "")
            raise SampleError(
                f"dataset item {i}: {where}is {what}, in item 0 it was of {len(tree)} parts: every item must be made alike"
            )
        for number, part in enumerate(tree):
            yield from self._values(part, item[number], i, self._path(path, number))

    def _pickled(self, value: Any, leaf: Leaf, i: int) -> tuple[tuple[int, ...], bytes]:
        try:
            raw = pickle.dumps(value, protocol=5)
        except Exception as cause:
            raise SampleError(
                f"dataset item {i}: {leaf.path or 'the sample'} is a {type(value).__name__} that cannot be pickled "
                f"({cause}): return arrays, numbers, text, or objects that can"
            ) from cause
        return (len(raw),), raw

    def _lengths(self, array: Any, leaf: Leaf, i: int) -> tuple[tuple[int, ...], Any]:
        shape = tuple(int(n) for n in array.shape)
        if dtype_name(array) != leaf.dtype or len(shape) != len(leaf.shape):
            raise SampleError(
                f"dataset item {i}: {leaf.path or 'the sample'} is {_say((dtype_name(array), shape))}, item 0 had "
                f"{_say((leaf.dtype, leaf.shape))}: lengths may differ, dtype and number of dimensions may not"
            )
        return shape, as_bytes(array)

    def _differs(self, leaf: Leaf, found: Spec, i: int) -> str:
        resize = ", or pass resize=(height, width)" if len(leaf.shape) == 3 else ""
        return (
            f"dataset item {i}: {leaf.path or 'the sample'} is {_say(found)}, item 0 had "
            f"{_say((leaf.dtype, leaf.shape))}: every item must have the same dtype and shape; pad or crop in the "
            f"dataset{resize}; open it with varying=True if lengths differ"
        )

    # ---- and back --------------------------------------------------------------------------------------------------

    def build(self, value: Callable[[Leaf], Any]) -> Any:
        """The tree with ``value(leaf)`` in the place of every leaf."""
        return self._build(self.tree, value)

    def _build(self, tree: Any, value: Callable[[Leaf], Any]) -> Any:
        if isinstance(tree, Leaf):
            return value(tree)
        if isinstance(tree, Mapping):
            return {key: self._build(part, value) for key, part in tree.items()}
        return _like(tree, range(len(tree)), [self._build(part, value) for part in tree])

    def divided(self, columns: list[Any]) -> tuple[list[Any], Any]:
        """What there is for each leaf, in their order: that for the fields in theirs, and that for the target, or None.
        For samples without a tail."""
        placed = list(zip(self.leaves, columns, strict=True))
        return (
            [column for leaf, column in placed if leaf.place == "field"],
            next((column for leaf, column in placed if leaf.place == "target"), None),
        )

    def pick(self, tree: Any) -> Any:
        """The target of a tree that is made like this one; None if it has none."""
        return None if self.target_key is None else tree[self.target_key]

    def read(self, data: Any, target: Any, convert: Convert) -> Any:
        """The sample of :meth:`pack`'s bytes, every leaf as the dataset gave it."""
        raw = memoryview(data)
        at = 0
        fields: list[Any] = []
        for dtype, shape in self.fields:
            end = at + math.prod(shape) * BYTES[dtype]
            fields.append((raw[at:end], dtype, shape))
            at = end
        lengths = struct.unpack_from(f"={self._lengths_in_tail}Q", raw, at)
        raw, at = raw[at + 8 * self._lengths_in_tail :], 0
        tail: list[Any] = []
        for dtype, dimensions in self.tail:
            shape, lengths = lengths[:dimensions], lengths[dimensions:]
            end = at + math.prod(shape) * BYTES[dtype]
            tail.append((raw[at:end], dtype, shape))
            at = end + -end % 8

        def value(leaf: Leaf) -> Any:
            if leaf.place == "target":
                return restored(leaf, convert(target, leaf.dtype, leaf.shape))
            part, dtype, shape = (fields if leaf.place == "field" else tail)[leaf.number]
            if leaf.place == "object":
                return opened(leaf, part)
            # A copy of its own: fields of a row lie without gaps, where a type may not be aligned.
            return restored(leaf, convert(bytearray(part), dtype, shape))

        return self.build(value)

    def spec(self) -> Any:
        """The tree of ``(dtype, shape)``; a length that differs is None, and an object ``("object", ())``."""
        return self.build(_spec)

    def alike(self, other: Structure) -> bool:
        """Whether samples of both can be in one batch."""
        mine, others = ([leaf.given for leaf in of.leaves if leaf.place == "object"] for of in (self, other))
        return (self.spec(), self.target_key, mine) == (other.spec(), other.target_key, others)

    def here(self, image: Callable[[Any], Any] | None) -> Structure:
        """Itself, out of another process, fit to pack items in this one."""
        self._image = image
        self._prepare, self._packing = self._made_quick()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # For worker processes, which make pixels by themselves.
        return {**self.__dict__, "_image": None, "_prepare": None, "_packing": None}


#: The item of which every other is another: each travels pickled, as a whole, and comes back equal in type and value.
WHOLE = Leaf("object", 0, "uint8", (0,), "object", "")


def opened(leaf: Leaf, raw: Any) -> Any:
    """What the bytes of a leaf stand for that is no array of numbers.

    Raises:
        SampleError: they are not what the leaf is.
    """
    try:
        if leaf.given == "object":
            return pickle.loads(raw)
        if leaf.given == "json":
            return json.loads(bytes(raw))
        if leaf.given == "text":
            return str(raw, "utf-8")
        if leaf.given == "npy":
            return require_numpy("a member of an array").load(io.BytesIO(raw), allow_pickle=False)
    except (ValueError, EOFError, RecursionError) as cause:
        if leaf.given == "object":
            raise
        raise SampleError(f"{leaf.path}: {len(raw)} bytes are no {leaf.given}: {str(cause)[:200]}") from cause
    return bytes(raw)


def restored(leaf: Leaf, value: Any) -> Any:
    """An array or tensor as the dataset gave it: numbers and lists of numbers as Python's own."""
    if leaf.given in ("int", "float", "bool"):
        return value.item()
    if leaf.given == "list":
        return value.tolist()
    return widened(leaf, value)


def widened(leaf: Leaf, value: Any) -> Any:
    """Unsigned numbers that travelled as signed ones, in int64."""
    if leaf.given not in WIDENED:
        return value
    return (value.long() if is_tensor(value) else value.astype("int64")) & WIDENED[leaf.given]


def _target_of(item: Any, pair: bool, name: str | None) -> Any:
    """The key of the target in `item`; None if it has none."""
    if isinstance(item, Mapping):
        if name is not None and name not in item:
            raise SettingsError(f"target={name!r} is no key of this dataset's items: they have {_some(item)}")
        return next((key for key in TARGET_KEYS if key in item), None) if name is None else name
    if name is not None:
        raise SettingsError(
            f"target={name!r} names a key, but this dataset's items are not dicts: in tuples the last element is the "
            "target"
        )
    if isinstance(item, (tuple, list)) and len(item) > 1:
        return 1 if pair else len(item) - 1
    return None


def _like(branch: Any, keys: Any, values: list[Any]) -> Any:
    """`values` in a branch like `branch`."""
    if isinstance(branch, Mapping):
        return dict(zip(keys, values, strict=True))
    if hasattr(branch, "_fields"):
        return type(branch)(*values)
    return tuple(values) if isinstance(branch, tuple) else values


def _some(keys: Any) -> str:
    names = list(map(str, keys))
    return f"{names[:_SHOWN]}{'' if len(names) <= _SHOWN else f' and {len(names) - _SHOWN} more'}"


def _say(spec: Spec) -> str:
    return f"{spec[0]} {spec[1]}"


def _spec(leaf: Leaf) -> Any:
    if leaf.place == "object":
        return "object", ()
    if leaf.given in WIDENED:
        return "int64", leaf.shape
    return leaf.dtype, tuple(None for _ in leaf.shape) if leaf.place == "tail" else leaf.shape

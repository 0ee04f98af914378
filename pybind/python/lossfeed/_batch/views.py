"""What a filled batch slot becomes: tensors or arrays, in the shape that samples have."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping
from typing import Any, Callable, NamedTuple

from .. import _native
from .._base.errors import SampleError, SettingsError
from .._base.memory import as_bytes, require_numpy, to_numpy, to_torch
from .._base.signals import called, named
from .._data.packing import Leaf
from .._data.structure import TARGET_KEYS, Spec, Structure, opened, restored, widened
from .._transform.per_image import PerImage
from .array_batch import Plain
from .batch import Batch, Whole, moved, own
from .documents import Documents
from .mapping_batch import Keyed
from .packed import Packed
from .packer import Packer

#: ``pad=`` that joins arrays of different lengths without filling.
NESTED = "nested"
#: ``pad=`` that puts them end to end.
PACKED = "packed"


class Fields(NamedTuple):
    """A batch's fields."""

    data: Any
    target: Any
    ids: Any
    weight: Any
    #: Whether data and target are the two parts of a pair.
    paired: bool = True
    #: What lies where, if samples are packed.
    documents: Documents | None = None

    def apart(self) -> Fields:
        """The same in memory of its own."""
        data, target = own((self.data, self.target))
        return Fields(data, target, own(self.ids), own(self.weight), self.paired, own(self.documents))

    def to(self, device: str) -> Fields:
        """The same on `device`, but for the ids."""
        data, target, weight, documents = moved((self.data, self.target, self.weight, self.documents), device)
        return self._replace(data=data, target=target, weight=weight, documents=documents)

    def batch(self, ticket: _native.Ticket, uses: Any) -> Batch[Any, Any]:
        """The batch of them."""
        kind: type[Batch[Any, Any]] = Batch
        if not self.paired:
            # A TensorDict is a mapping with a shape.
            kind = Plain if hasattr(self.data, "shape") else Keyed if isinstance(self.data, Mapping) else Whole
        return kind(self.data, self.target, self.ids, self.weight, ticket, uses, None, self.documents)


class Views:
    """Makes the fields of a slot tensors or arrays.

    `pad` joins arrays that differ in length: a number to fill up with, ``"nested"``, or either by path; None takes them
    if they are of one length. `channels_last` numbers the fields of the data whose channels lie last in memory and are
    shown first.
    """

    def __init__(
        self,
        framework: str,
        data: list[tuple[str, list[int]]],
        target: tuple[str, list[int]],
        channels_last: Collection[int] = (),
        structure: Structure | None = None,
        pad: Any = None,
    ) -> None:
        self._torch = framework == "torch"
        self._convert: Callable[..., Any] = to_torch if self._torch else to_numpy
        self._data = [(dtype, tuple(shape)) for dtype, shape in data]
        self._target = (target[0], tuple(target[1]))
        self._channels_last = channels_last
        self.structure = structure
        dtypes = {spec[0] for spec in (*self._data, self._target, *(structure.tail if structure else ()))}
        if not self._torch and "bfloat16" in dtypes:
            raise SettingsError("NumPy has no bfloat16: use framework='torch', or convert the data to float32")
        self._pads = _pads(pad, structure, self._torch)
        self._packer = _packer(self._pads, structure, self._torch)
        #: The last answer of :meth:`kinds`, and for how many rows: batches are of one size but for the last.
        self._kinds: tuple[int, list[Spec]] = (-1, [])

    @property
    def packs(self) -> bool:
        """Whether samples are packed."""
        return self._packer is not None

    def kinds(self, rows: int) -> list[Spec]:
        """(dtype, shape in memory) of each field of the data, then of target, ids and weight."""
        known, kinds = self._kinds
        if known != rows:
            fields = [(dtype, (rows, *shape)) for dtype, shape in (*self._data, self._target)]
            kinds = [*fields, ("int64", (rows,)), ("float32", (rows,))]
            self._kinds = (rows, kinds)
        return kinds

    def shown(self, data: Any, field: int = 0) -> Any:
        """A field of the data in the shape that is promised: channels before height and width, wherever they lie in
        memory."""
        if field not in self._channels_last:
            return data
        return data.permute(0, 3, 1, 2) if self._torch else data.transpose(0, 3, 1, 2)

    def of(self, slot: _native.Slot) -> Fields:
        """A slot's fields, each keeping the slot alive."""
        return self.built(self._fields(slot), self.tail(slot))

    def _fields(self, slot: _native.Slot) -> list[Any]:
        return [self._convert(field, *kind) for field, kind in zip(slot.fields(), self.kinds(slot.rows), strict=True)]

    def built(self, fields: list[Any], tail: list[Any]) -> Fields:
        """The fields of a slot, wherever they are, and what :meth:`tail` gave for it."""
        *data, target, ids, weight = fields
        if self.structure is None:
            return Fields(self.shown(data[0]), target, ids, weight)
        # Pictures of shards are made as images alone are, and are the only array of their samples.
        shown = [self.shown(values, field) for field, values in enumerate(data)]
        made: Documents | None = None
        if self._packer is not None:
            *tail, made = tail
        places = {"field": shown, "target": [target], "tail": tail, "object": tail}
        tree = self.structure.build(lambda leaf: widened(leaf, places[leaf.place][leaf.number]))
        if self.structure.pair:
            return Fields(tree[0], tree[1], ids, weight, True, made)
        target = self.structure.pick(tree)
        if self._packer is not None and made is not None:
            tree = self._packer.beside(tree, made)
        return Fields(tree, target, ids, weight, False, made)

    def tail(self, slot: _native.Slot) -> list[Any]:
        """What of the samples is of no fixed size, in host memory, joined to batches; by number. What is
        packed has its :class:`Documents` behind it.

        Raises:
            SampleError: lengths differ and nothing says how to join them.
        """
        if self.structure is None or not self.structure.tail:
            return []
        tails = slot.tails(self.structure.tail)
        joined: dict[int, Any] = {}
        behind: list[Any] = []
        if self._packer is not None:
            joined, made = self._packer.join(tails)
            behind.append(made)
        for leaf in self.structure.leaves:
            if leaf.place == "object":
                joined[leaf.number] = [_opened(slot, tails, leaf, row) for row in range(slot.rows)]
            elif leaf.place == "tail" and leaf.number not in joined:
                joined[leaf.number] = self._join(tails, leaf)
        return [joined[number] for number in range(len(joined))] + behind

    def _join(self, tails: _native.Tails, leaf: Leaf) -> Any:
        pad = self._pads.get(leaf.path)
        if pad is None:
            shapes = tails.shapes(leaf.number)
            if any(shape != shapes[0] for shape in shapes):
                row = next(row for row, shape in enumerate(shapes) if shape != shapes[0])
                name = leaf.path or "the sample"
                raise SampleError(
                    f"{name} has shape {tuple(shapes[0])} in row 0 of a batch and {tuple(shapes[row])} in row {row}: "
                    f"choose how to join them: lf.Loader(…, pad={{{leaf.path!r}: 0}}) fills up with zeros, "
                    "pad='nested' makes "
                    "nested tensors, collate_fn= is yours"
                )
            pad = bytes(_element(leaf.dtype, 0, self._torch))
        if pad == NESTED:
            import torch

            values, offsets = tails.packed(leaf.number)
            ends = to_torch(offsets, "int64", (len(tails.shapes(leaf.number)) + 1,))
            rest = tails.shapes(leaf.number)[0][1:]
            flat = to_torch(values, leaf.dtype, (int(ends[-1]), *rest))
            return torch.nested.nested_tensor_from_jagged(flat, ends)
        buffer, shape = tails.padded_with(leaf.number, pad)
        return self._convert(buffer, leaf.dtype, tuple(shape))

    def items(self, slot: _native.Slot) -> tuple[list[Any], Any, Any]:
        """The samples of a slot one by one, as the dataset gave them, each keeping the slot alive; ids and weight."""
        structure = self.structure
        assert structure is not None
        *data, target, ids, weight = self._fields(slot)
        tails = slot.tails(structure.tail) if structure.tail else None

        def item(row: int) -> Any:
            def value(leaf: Leaf) -> Any:
                if leaf.place in ("field", "target"):
                    part = (target if leaf.place == "target" else data[leaf.number])[row]
                    return restored(leaf, part.numpy() if leaf.given == "array" and self._torch and structure.packs else part)
                assert tails is not None
                if leaf.place == "object":
                    return _opened(slot, tails, leaf, row)
                raw, shape = tails.part(row, leaf.number)
                convert = to_numpy if leaf.given == "array" and structure.packs else self._convert
                return restored(leaf, convert(raw, leaf.dtype, tuple(shape)))

            return structure.build(value)

        return [item(row) for row in range(slot.rows)], ids, weight


def _opened(slot: _native.Slot, tails: _native.Tails, leaf: Leaf, row: int) -> Any:
    try:
        return opened(leaf, tails.copied(row, leaf.number))
    except SampleError as cause:
        ids = memoryview(slot.fields()[-2]).cast("B").cast("q")
        raise SampleError(f"sample {ids[row]}: {cause}") from cause


def collated(views: Views, slot: _native.Slot, collate_fn: Any) -> Fields:
    """What the user's `collate_fn` makes of the samples of a slot."""
    if views.structure is not None:
        items, ids, weight = views.items(slot)
        return _of_collated(collate_fn, items, None, ids, weight, (views.structure.target_key, *TARGET_KEYS))
    return collated_rows(views.of(slot), collate_fn)


def collated_rows(fields: Fields, collate_fn: Any) -> Fields:
    """What the user's `collate_fn` makes of the rows of a batch of pairs."""
    data, target, ids, weight, *_ = fields
    return _of_collated(collate_fn, [(data[i], target[i]) for i in range(len(ids))], target, ids, weight)


def transformed(fields: Fields, transform: Callable[..., Any], structure: Structure | None) -> Fields:
    """`fields` with what the user's `transform` makes of the data. The target of samples that are no pairs is looked up in
    that."""
    if isinstance(transform, PerImage):
        tree = None if structure is None else structure.tree[0] if fields.paired else structure.tree
        data = called("transform", functools.partial(transform, fields.data, tree), len(fields.ids))
    else:
        data = called("transform", transform, fields.data)
    if data is None:
        raise SettingsError(
            f"transform={named(transform)} returned None: it gets batch.data and must return the new batch.data"
        )
    if fields.paired:
        return fields._replace(data=data)
    return fields._replace(data=data, target=_target_in(data, fields.target, structure))


def _target_in(data: Any, before: Any, structure: Structure | None) -> Any:
    """The target of a tree that was changed; `before` if it has none of that name."""
    if before is None:
        return None
    keys: tuple[Any, ...] = TARGET_KEYS if structure is None else (structure.target_key,)
    if isinstance(data, Mapping):
        return next((data[key] for key in keys if key in data), before)
    if isinstance(data, (tuple, list)) and data:
        at = -1 if structure is None else structure.target_key
        return data[at] if isinstance(at, int) and -len(data) <= at < len(data) else before
    return before


def _of_collated(
    collate_fn: Any, items: list[Any], target: Any, ids: Any, weight: Any, keys: tuple[Any, ...] = TARGET_KEYS
) -> Fields:
    given = list(items)
    result = called("collate_fn", collate_fn, items)
    two = type(result) in (tuple, list) and len(result) == 2 == len(given)
    return of_batch(result, two and all(map(operator.is_, result, given)), target, ids, weight, keys)


def of_batch(
    batch: Any, items: bool, target: Any, ids: Any, weight: Any, keys: tuple[Any, ...] = TARGET_KEYS
) -> Fields:
    """What ``collate_fn`` returned; `items` says that it is the batch's two items as they were given, which are no pair of
    data and target."""
    if batch is None:
        raise SettingsError("collate_fn returned None: it must return the batch, a pair (data, target) for example")
    if type(batch) in (tuple, list) and len(batch) == 2 and not items:
        return Fields(batch[0], batch[1], ids, weight)
    if isinstance(batch, Mapping):
        target = next((batch[key] for key in keys if key in batch), target)
    elif isinstance(batch, (tuple, list)) and len(batch) > 1:
        target = batch[-1]
    return Fields(batch, target, ids, weight, False)


def _element(dtype: str, value: Any, torch_half: bool) -> Any:
    """The bytes of one element."""
    if torch_half:
        import torch

        return as_bytes(torch.full((1,), value, dtype=getattr(torch, dtype)))
    numpy = require_numpy("pad=")
    return as_bytes(numpy.full((1,), value, dtype=dtype))


def _pads(pad: Any, structure: Structure | None, torch_half: bool) -> dict[str, Any]:
    """How each array that differs in length is joined, by path: the bytes to fill up with, :data:`NESTED` or a
    :class:`Packed`.

    Raises:
        SettingsError: what cannot be joined so.
    """
    if pad is None:
        return {}
    # Masks that went a picture's way have its size.
    tails = [leaf for leaf in (structure.leaves if structure else ()) if leaf.place == "tail" and leaf.given != "mask"]
    leaves = {leaf.path: leaf for leaf in tails if leaf.shape}
    if not leaves:
        raise SettingsError(
            f"pad={pad!r}: no array of this dataset varies in length; if one does, open the dataset with lf.open(…, "
            "varying=True)"
        )
    given = pad if isinstance(pad, Mapping) else dict.fromkeys(leaves, pad)
    found: dict[str, Any] = {}
    for path, value in given.items():
        if path not in leaves:
            raise SettingsError(f"pad={{{path!r}: …}} is not one of the arrays that vary in length: {sorted(leaves)}")
        found[path] = _pad(leaves[path], value, torch_half)
    return found


def _packer(pads: dict[str, Any], structure: Structure | None, torch_half: bool) -> Packer | None:
    """What packs the arrays that are to be packed, if any are."""
    rules = {path: rule for path, rule in pads.items() if isinstance(rule, Packed)}
    if not rules or structure is None:
        return None
    first = next(iter(rules.values()))
    if other := next((path for path, rule in rules.items() if rule != first), None):
        raise SettingsError(f"pad={rules}: {other} is packed differently from {next(iter(rules))}: a batch is packed by one rule")
    leaves = [leaf for leaf in structure.leaves if leaf.place == "tail" and leaf.path in rules]
    return Packer(first, leaves, structure, torch_half, lambda leaf, value: bytes(_pad(leaf, value, torch_half)))


def _pad(leaf: Leaf, value: Any, torch_half: bool) -> Any:
    if isinstance(value, Packed):
        return value
    if isinstance(value, str) and value == PACKED:
        return Packed()
    said = f"pad={value!r} for {leaf.path or 'the sample'} of {leaf.dtype}"
    if isinstance(value, str):
        if value != NESTED:
            raise SettingsError(f"{said}: give a padding value, {NESTED!r}, {PACKED!r} or lf.Packed(…)")
        if not torch_half:
            raise SettingsError(f"{said}: NumPy has no nested arrays; use framework='torch'")
        return NESTED
    if not isinstance(value, (int, float)) and not hasattr(value, "item"):
        raise SettingsError(f"{said}: give a padding value, {NESTED!r}, {PACKED!r} or lf.Packed(…)")
    try:
        raw = bytes(_element(leaf.dtype, value, torch_half))
        made = (to_torch if torch_half else to_numpy)(bytearray(raw), leaf.dtype, (1,))[0].item()
    except (TypeError, ValueError, OverflowError, RuntimeError) as cause:
        raise SettingsError(f"{said}: {cause}") from None
    whole = leaf.dtype.startswith(("int", "uint", "bool"))
    if whole and made != value:
        raise SettingsError(f"{said} would become {made}: give a number that {leaf.dtype} has")
    return raw

"""Packs the arrays of varying length of a batch, all by one rule, with what goes beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from .. import _native
from .._base.errors import SampleError, SettingsError
from .._base.memory import require_numpy, require_torch, to_numpy, to_torch
from .._data.packing import Leaf
from .._data.structure import Structure
from .documents import Documents, documents, filled
from .packed import KEYS, Packed, runs

#: What targets are filled with: torch's own `ignore_index`.
_IGNORED = -100


class Packer:
    """Packs `leaves` of a dataset's samples, which differ in their first dimension alone, by `rule`.

    `element` makes an element's bytes of a leaf and a number, or refuses it.
    """

    def __init__(
        self, rule: Packed, leaves: list[Leaf], structure: Structure, torch: bool, element: Callable[[Leaf, float], bytes]
    ) -> None:
        self._rule, self._leaves = rule, leaves
        self._convert = to_torch if torch else to_numpy
        self._xp = require_torch("packing") if torch else require_numpy("packing")
        target = structure.pick(structure.tree)
        self._target: Leaf | None = target if target in leaves else None
        for leaf in structure.leaves:
            if leaf.place == "target" and leaf.shape and leaf.shape[0] == rule.length:
                raise SettingsError(
                    f"{leaf.path} has {leaf.shape[0]} numbers a sample, as many as a row has tokens, so they cannot "
                    f"be told apart: use a length other than {rule.length}"
                )
        fill = rule.fill
        if isinstance(fill, Mapping) and (unknown := set(fill) - {leaf.path for leaf in leaves}):
            raise SettingsError(f"fill={fill!r}: {sorted(unknown)} are none of those packed: {[x.path for x in leaves]}")
        self._fills = {leaf.number: element(leaf, self._fill(leaf)) for leaf in leaves}
        if rule.separator is not None:
            if self._target is None:
                raise SettingsError(f"separator={rule.separator}: these samples have no packed target: name it with target=")
            element(self._target, rule.separator)
        names = {} if not isinstance(structure.tree, Mapping) else structure.tree
        if rule.keys is None:
            found = ["position_ids"] if isinstance(structure.tree, Mapping) and "position_ids" not in names else []
        else:
            found = list(rule.keys)
            if found and not isinstance(structure.tree, Mapping):
                raise SettingsError(f"keys={found}: samples are not dicts, so there are no keys: read batch.documents")
            if taken := [key for key in found if key in names]:
                raise SettingsError(f"keys={found}: the samples have {taken} themselves: leave them out")
        self._keys = found

    def _fill(self, leaf: Leaf) -> float:
        fill = self._rule.fill
        if isinstance(fill, Mapping):
            fill = fill.get(leaf.path)
        if fill is None:
            return _IGNORED if leaf is self._target and leaf.dtype.startswith("int") else 0
        return fill

    def join(self, tails: _native.Tails) -> tuple[dict[int, Any], Documents]:
        """The packed arrays by their leaves' numbers, and what lies where.

        Raises:
            SampleError: arrays of one sample differ in length, those of a batch in their further dimensions, or a sample
                is longer than a row.
        """
        shapes = [tails.shapes(leaf.number) for leaf in self._leaves]
        lengths = [shape[0] for shape in shapes[0]]
        for leaf, found in zip(self._leaves, shapes, strict=True):
            for row, shape in enumerate(found):
                if shape[0] != lengths[row]:
                    raise SampleError(
                        f"{self._leaves[0].path} has {lengths[row]} tokens in row {row} of a batch and {leaf.path} has {shape[0]}: "
                        "arrays packed together must have equal lengths: name those that do, "
                        "pad={{{self._leaves[0].path!r}: 'packed', …}}"
                    )
                if shape[1:] != found[0][1:]:
                    raise SampleError(
                        f"{leaf.path} has shape {tuple(found[0])} in row 0 of a batch and {tuple(shape)} in row {row}: packed "
                        "arrays may differ in their first dimension alone"
                    )
        rows, length, laid = runs(lengths, self._rule)
        made = documents(self._xp, laid, rows, length)
        joined: dict[int, Any] = {}
        for leaf, found in zip(self._leaves, shapes, strict=True):
            values, _ = tails.packed(leaf.number)
            flat = self._convert(values, leaf.dtype, (sum(lengths), *found[0][1:]))
            if self._rule.length is None:
                packed = flat.reshape((1, *flat.shape))
            else:
                begins = [0]
                for tokens in lengths:
                    begins.append(begins[-1] + tokens)
                fill = self._convert(bytearray(self._fills[leaf.number]), leaf.dtype, (1,))
                packed = filled(self._xp, flat, begins, laid, made, fill)
            if leaf is self._target and self._rule.separator is not None:
                packed = packed if not isinstance(packed, require_numpy("packing").ndarray) else packed.copy()
                starts = [at for at, run in zip(made.cu_seqlens.tolist(), laid) if run.sample >= 0]
                packed.reshape((rows * length, *flat.shape[1:]))[starts] = self._rule.separator
            joined[leaf.number] = packed
        return joined, made

    def beside(self, tree: Any, made: Documents) -> Any:
        """`tree` with the keys that were asked for."""
        if not self._keys:
            return tree
        added = {}
        for key in self._keys:
            field, dtype = KEYS[key]
            value = getattr(made, field)
            if dtype == "int32":
                value = value.int() if hasattr(value, "int") else value.astype(dtype)
            added[key] = value
        return {**tree, **added}

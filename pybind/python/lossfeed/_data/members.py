"""Samples of several parts: members of a tar shard, columns of Parquet files; what ``fields=`` of
:func:`lossfeed.open` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _native
from .._base.errors import SettingsError
from .packing import Leaf
from .structure import Structure


def names(fields: Any) -> list[str]:
    """The parts that ``fields=`` names, in its order.

    Raises:
        SettingsError: it is no sequence of names, and no dict of them.
    """
    if fields is None:
        return []
    given = list(fields.values()) if isinstance(fields, Mapping) else fields
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(name, str) for name in given):
        raise SettingsError(
            f"fields={fields!r}: give the parts of a sample, as ('jpg;png', 'json', 'cls'), or a dict of them, as "
            "{'image': 'jpg;png', 'caption': 'txt'}"
        )
    if isinstance(fields, Mapping) and not all(isinstance(key, str) for key in fields):
        raise SettingsError(f"fields={fields!r}: keys are text")
    return [name.removeprefix(".") for name in given]


def structure_of(fields: Any, source: _native.Source) -> Structure | None:
    """What samples of the parts `fields` are made of; None for pairs of a picture and a class number.

    Raises:
        SettingsError: the class number is not the last of a tuple.
    """
    pieces = source.pieces
    kinds = [kind for _, kind, _ in pieces]
    if not pieces or (fields is None and kinds == ["picture", "label"]):
        return None
    named = fields is None or isinstance(fields, Mapping)
    if not named and "label" in kinds[:-1]:
        raise SettingsError(f"fields={fields!r}: the class number comes last, as targets do; or give a dict")
    keys = list(fields) if isinstance(fields, Mapping) else [name for name, _, _ in pieces]
    paths = keys if named else [str(at) for at in range(len(pieces))]
    leaves, placed = [], 0
    for path, (_, kind, dtype) in zip(paths, pieces, strict=True):
        if kind == "picture":
            leaves.append(Leaf("field", 0, "uint8", tuple(source.fields[0][1]), "array", path))
        elif kind == "label":
            leaves.append(Leaf("target", 0, "int64", (), "int", path))
        else:
            leaves.append(in_tail(kind, placed, dtype, path))
            placed += 1
    label = next((path for path, kind in zip(paths, kinds) if kind == "label"), None)
    structure = Structure(dict(zip(keys, leaves)), target=label) if named else Structure(tuple(leaves))
    return None if structure.plain else structure


def in_tail(kind: str, number: int, dtype: str, path: str) -> Leaf:
    """The leaf of a part in the tail."""
    if kind == "number":
        return Leaf("tail", number, dtype, (), "bool" if dtype == "bool" else dtype.rstrip("0123456789"), path)
    if kind == "numbers":
        return Leaf("tail", number, dtype, (0,), "array", path)
    return Leaf("object", number, "uint8", (0,), kind, path)

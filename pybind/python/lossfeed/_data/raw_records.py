"""Files that are nothing but records of a fixed size, behind a header or none: CIFAR-10's binary version, files of tokens.
NumPy's dtype says what a record is."""

from __future__ import annotations

import glob
import os
from typing import Any

from .. import _native
from .._base.checks import whole
from .._base.errors import SettingsError, SourceError
from .._base.memory import DTYPES, require_numpy
from .array_files import Column
from .data import Data, concat
from .structure import WIDENED, Structure

#: What travels as the signed type of its size, and is widened where batches are made.
_SIGNED = {"uint16": "int16", "uint32": "int32"}


def of_records(data: Any, dtype: Any, header: Any, stride: Any, target: Any) -> Data:
    """The dataset of the records in the files that `data` names: a path, a pattern, or a list of them.

    Raises:
        SourceError: no file, or one that cannot be opened, is empty, or ends within a record. SettingsError: what a record
            is cannot travel.
    """
    numpy = require_numpy("dtype=")
    try:
        kind = numpy.dtype(dtype)
    except (TypeError, ValueError) as cause:
        raise SettingsError(f"dtype={dtype!r} is no NumPy dtype: {cause}") from None
    fields = _fields(kind)
    behind = whole("header", header, 0)
    step = None if stride is None else whole("stride", stride, 1)
    if step is not None and kind.names is None and step % kind.base.itemsize:
        raise SettingsError(
            f"stride={step} is in bytes, which is not a multiple of values of {kind.base.itemsize} bytes: for {step} "
            "values "
            f"say stride={step * kind.base.itemsize}"
        )
    if target is not None and target not in fields:
        raise SettingsError(f"target={target!r} is no field of dtype=: it has {list(fields)}")
    parts = [_of_file(path, kind.itemsize, fields, behind, step, target) for path in _files(data)]
    return parts[0] if len(parts) == 1 else concat(parts)


def _files(data: Any) -> list[str]:
    given = data if isinstance(data, (list, tuple)) else [data]
    found: list[str] = []
    for one in given:
        try:
            place = os.path.expanduser(os.fsdecode(one))
        except TypeError:
            raise SettingsError(f"{one!r} is no path: dtype= is for files, give their paths or a pattern") from None
        if "://" in place:
            raise SettingsError(f"{_native.without_secrets(place)!r}: raw records are read from files of this machine: copy them here first")
        names = [place] if os.path.exists(place) else sorted(glob.glob(place))
        if not names:
            raise SourceError(f"{place}: no such file")
        found += names
    if not found:
        raise SettingsError("no file was given: give at least one path")
    return found


def _fields(kind: Any) -> dict[str, tuple[int, str, tuple[int, ...]]]:
    """Offset, dtype and shape of each field; of a record without fields, of the whole under ""."""
    named = {"": (kind, 0)} if kind.names is None else {name: kind.fields[name][:2] for name in kind.names}
    found: dict[str, tuple[int, str, tuple[int, ...]]] = {}
    end, before = 0, ""
    for name, (of, offset) in sorted(named.items(), key=lambda item: item[1][1]):
        base, shape = of.subdtype or (of, ())
        said = f"dtype={kind}" if name == "" else f"field {name!r} of dtype="
        if base.names is not None:
            raise SettingsError(f"{said} is a structured field: list its parts as separate fields, with offsets")
        if not base.isnative:
            raise SettingsError(f"{said} has a foreign byte order ({base.str}): rewrite it in native byte order")
        if base.name not in DTYPES and base.name not in _SIGNED:
            raise SettingsError(f"{said} has dtype {base}, which cannot travel in a batch: use one of {', '.join(DTYPES)}")
        if of.itemsize == 0:
            raise SettingsError(f"{said} has shape {shape}, which is no bytes: leave it out")
        if offset < end:
            raise SettingsError(f"{said} begins at byte {offset}, within field {before!r}, which ends at {end}: leave one out")
        end, before = offset + of.itemsize, name
        found[name] = offset, base.name, tuple(int(n) for n in shape)
    if not found:
        raise SettingsError("dtype= has no fields: say what a record holds, as in [('label', 'u1'), ('data', 'u1', (3, 32, 32))]")
    return {name: found[name] for name in named}


def _of_file(path: str, size: int, fields: Any, header: int, stride: int | None, target: Any) -> Data:
    try:
        total = os.stat(path).st_size
    except OSError as cause:
        raise SourceError(f"{path} cannot be opened: {cause.strerror}") from cause
    held = total - header
    if held < size:
        raise SourceError(
            f"{path} has {total} bytes, which is not a record of {size} bytes behind a header of {header}: it is "
            "empty or cut short, "
            "or dtype= and header= are not its own"
        )
    if stride is None and held % size:
        raise SourceError(
            f"{path} has {held} bytes behind its header of {header}, which is {held // size} records of {size} bytes and {held % size} "
            f"bytes more: correct dtype= or header=, or say stride={size} to leave the rest out"
        )
    step = size if stride is None else stride
    samples = (held - size) // step + 1
    columns = {
        name: Column(path, header + offset, _SIGNED.get(dtype, dtype), (samples, *shape), step)
        for name, (offset, dtype, shape) in fields.items()
    }
    structure = _structure(columns, target, {name: dtype for name, (_, dtype, _) in fields.items()})
    pair = structure.pair
    rows = [columns[name] for name in columns if name != target] + [columns[target]] if pair else list(columns.values())
    data, last = structure.divided([column.row for column in rows])
    native = _native.record_source(data, last, samples)
    return Data(native, (), None if pair and not any(leaf.given in WIDENED for leaf in structure.leaves) else structure)


def _structure(columns: dict[str, Column], target: Any, kinds: dict[str, str]) -> Structure:
    """Samples are dicts by field; pairs of one field and the target that was named; of a record without fields, arrays."""
    numpy = require_numpy("dtype=")
    blanks = {name: numpy.empty(column.shape[1:], column.dtype) for name, column in columns.items()}
    others = [name for name in blanks if name != target]
    names = {}
    if list(blanks) == [""]:
        structure = Structure(blanks[""])
        names = {"": ""}
    elif target is not None and len(others) == 1:
        structure = Structure((blanks[others[0]], blanks[target]))
        names = {"x": others[0], "y": target}
    else:
        structure = Structure(blanks, target=target)
        names = {name: name for name in blanks}
    marked = {
        leaf: leaf._replace(given=kinds[names[leaf.path]]) if kinds[names[leaf.path]] in WIDENED else leaf
        for leaf in structure.leaves
    }
    structure.leaves, structure.tree = [marked[leaf] for leaf in structure.leaves], structure.build(marked.__getitem__)
    return structure

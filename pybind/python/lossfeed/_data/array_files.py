"""Rows in files of this machine: ``.npy``, ``.npz`` and ``.safetensors``. Heads are read here, rows by the engine."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from typing import Any, BinaryIO, NamedTuple

from .. import _native
from .._base.errors import SettingsError, SourceError
from .._base.memory import DTYPES, require_numpy, require_torch
from .data import Data
from .structure import BYTES, Structure

#: Suffixes of files that hold arrays.
SUFFIXES = (".npy", ".npz", ".safetensors")
#: safetensors' names for the dtypes that travel.
_SAFE = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U16": "uint16", "U32": "uint32", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32",
    "F64": "float64", "C64": "complex64",
}
#: The longest head of a safetensors file: what its own readers take.
_HEAD_MAX = 100_000_000


class Column(NamedTuple):
    """An array in a file."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    #: Bytes from row to row; None: as many as a row has.
    stride: int | None = None

    @property
    def row(self) -> tuple[str, int, int | None, tuple[str, tuple[int, ...]]]:
        """Where its rows lie, and what one is."""
        return self.path, self.offset, self.stride, (self.dtype, self.shape[1:])


def is_file(value: Any) -> bool:
    """Whether it names a file of this machine that holds arrays."""
    if not isinstance(value, (str, os.PathLike)):
        return False
    name = os.fspath(value)
    return isinstance(name, str) and name.endswith(SUFFIXES) and "://" not in name


def are_files(data: Any) -> bool:
    """Whether it is such a file, or a tuple or dict of ``.npy`` files."""
    if type(data) in (tuple, dict) and data:
        values = data.values() if type(data) is dict else data
        return all(is_file(value) and os.fspath(value).endswith(".npy") for value in values)
    return is_file(data)


def of_files(data: Any) -> Data:
    """The dataset in them. Samples are rows: of one ``.npy`` arrays, of several what the tuple or dict says, of the other
    two dicts by their arrays' names.

    Raises:
        SourceError: a file cannot be opened, is none of its kind, or cut short. SettingsError: its arrays cannot be
            rows of one dataset.
    """
    tree = _columns(data)
    columns = [tree] if isinstance(tree, Column) else list(tree.values() if isinstance(tree, dict) else tree)
    for column in columns:
        if column.dtype not in DTYPES:
            raise SettingsError(
                f"{column.path}: dtype {column.dtype} cannot travel in a batch: use one of {', '.join(DTYPES)}"
            )
        if not column.shape:
            raise SettingsError(f"{column.path}: an array without dimensions has no rows")
        if 0 in column.shape[1:]:
            raise SettingsError(f"{column.path}: rows of shape {column.shape[1:]} have no elements")
    first = columns[0]
    for column in columns:
        if column.shape[0] != first.shape[0]:
            raise SettingsError(
                f"{first.path} has {first.shape[0]} rows and {column.path} has {column.shape[0]}: they must have equally many"
            )
    if type(tree) is tuple and len(tree) == 2:
        return Data(_native.record_source([first.row], columns[1].row, first.shape[0]))
    rows = [_blank(column) for column in columns]
    structure = Structure(
        rows[0] if isinstance(tree, Column) else dict(zip(tree, rows)) if isinstance(tree, dict) else rows
    )
    fields, target = structure.divided([column.row for column in columns])
    return Data(_native.record_source(fields, target, first.shape[0]), (), structure)


def _columns(data: Any) -> Any:
    """The columns, as a tree like the samples' own."""
    if type(data) is dict:
        return {name: _npy(os.fspath(path)) for name, path in data.items()}
    if type(data) is tuple:
        return tuple(_npy(os.fspath(path)) for path in data)
    path = os.fspath(data)
    if path.endswith(".npy"):
        return _npy(path)
    found = _npz(path) if path.endswith(".npz") else _safetensors(path)
    if not found:
        raise SourceError(f"{path} holds no arrays")
    return found


def _open(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as cause:
        raise SourceError(f"{path} cannot be opened: {cause.strerror}") from cause


def _npy(path: str) -> Column:
    with _open(path) as file:
        return _head(file, path)


def _head(file: BinaryIO, name: str) -> Column:
    """Of the ``.npy`` that begins where `file` stands."""
    form = require_numpy("a file of arrays").lib.format
    try:
        version = form.read_magic(file)
        read = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"version {version} of the format")
        shape, fortran, dtype = read(file)
    except (ValueError, OSError, EOFError, SyntaxError) as cause:
        raise SourceError(f"{name} is not a numeric .npy file: {str(cause).splitlines()[0][:200]}") from None
    remedy = "np.save(path, np.ascontiguousarray(array))"
    if fortran and len(shape) > 1:
        raise SettingsError(f"{name} is stored column by column (Fortran order), but samples are rows: write it with {remedy}")
    if not dtype.isnative:
        raise SettingsError(f"{name} has a foreign byte order ({dtype.str}): rewrite it in native byte order")
    return Column(file.name, file.tell(), dtype.name, tuple(int(n) for n in shape))


def _npz(path: str) -> dict[str, Column]:
    found = {}
    with _open(path) as file:
        try:
            members = zipfile.ZipFile(file).infolist()
        except zipfile.BadZipFile as cause:
            raise SourceError(f"{path} is no .npz: {cause}") from None
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED:
                raise SettingsError(
                    f"{path}: {member.filename} is compressed, but rows are read in place: write it with np.savez, or "
                    "load it and open the arrays"
                )
            # The directory at the end does not tell how long the head before the member's bytes is.
            file.seek(member.header_offset + 26)
            lengths = file.read(4)
            if len(lengths) < 4:
                raise SourceError(f"{path} is cut short: {member.filename} has no head")
            file.seek(member.header_offset + 30 + sum(struct.unpack("<HH", lengths)))
            found[member.filename.removesuffix(".npy")] = _head(file, f"{path}: {member.filename}")
    return found


def _safetensors(path: str) -> dict[str, Column]:
    with _open(path) as file:
        length = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))[0]
        if length > min(_HEAD_MAX, os.fstat(file.fileno()).st_size):
            raise SourceError(f"{path} is not a safetensors file: its head would have {length} bytes")
        try:
            head = json.loads(file.read(length))
            tensors = {name: tensor for name, tensor in head.items() if name != "__metadata__"}
            return {name: _safe(path, 8 + length, **tensor) for name, tensor in tensors.items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as cause:
            raise SourceError(f"{path} is not a safetensors file: {str(cause)[:200]}") from None


def _safe(path: str, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Column:
    begin, end = data_offsets
    name = _SAFE.get(dtype, dtype)
    if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)):
        raise ValueError(f"shape {shape} at {data_offsets}")
    if name in BYTES and math.prod(shape) * BYTES[name] != end - begin:
        raise ValueError(f"shape {shape} of {name} is not {data_offsets[1] - data_offsets[0]} bytes")
    return Column(path, start + begin, name, tuple(shape))


def _blank(column: Column) -> Any:
    """A row that is one in dtype and shape alone."""
    if column.dtype == "bfloat16":
        return require_torch("bfloat16").empty(column.shape[1:], dtype=require_torch("bfloat16").bfloat16)
    return require_numpy("a file of arrays").empty(column.shape[1:], column.dtype)

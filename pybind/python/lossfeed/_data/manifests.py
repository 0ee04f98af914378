"""Manifests of images: CSV with a header, and JSON lines, as Hugging Face's ``metadata.csv`` and ``metadata.jsonl``."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._base.errors import SettingsError
from . import layouts, members
from .layouts import Column, Listed
from .structure import TARGET_KEYS

#: Endings of manifests.
CSV, LINES = (".csv", ".tsv"), (".jsonl", ".ndjson")
#: Names of columns of class labels, beside those that name targets anyway.
_LABELS = (*TARGET_KEYS, "class")
#: A column of files by its name, as Hugging Face has it.
_FILE_NAME = "file_name"
#: A whole number as people write one. What begins with zeros is a name.
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,999})")
_REAL = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def is_manifest(place: str) -> bool:
    return place.lower().endswith(CSV + LINES)


def read(place: str, fields: Any, labels: Any) -> Listed:
    """The table that a manifest lists.

    Raises:
        SettingsError: it is no table of images, with the line that is wrong.
    """
    if not isinstance(labels, str) and labels is not None:
        raise SettingsError(
            f"labels= with {place!r}, which has a column of labels: leave it out, or give None for no labels"
        )
    table = _of_csv(place) if place.lower().endswith(CSV) else _of_lines(place)
    if not table or not next(iter(table.values())):
        raise SettingsError(f"{place!r} has no rows: check the file")
    chosen = _chosen(place, fields, table)
    columns = [_column(place, name, column, table[column]) for name, column in chosen.items()]
    pictures = [column.name for column in columns if column.kind == "picture"]
    if not pictures:
        raise SettingsError(
            f"{place!r} has no column of image files among {', '.join(map(repr, table))}: call it file_name, or name "
            "it, fields={'image': 'COLUMN'}"
        )
    columns = [column._replace(kind="bytes") if column.name in pictures[1:] else column for column in columns]
    label = next((c for n in _LABELS for c in columns if c.name.lower() == n and not c.files), None)
    if labels is None:
        label = None
        columns = [column for column in columns if column.name.lower() not in _LABELS or column.files]
    given = [] if label is None else table[chosen[label.name]]
    beyond = next((at for at, value in enumerate(given) if layouts.is_beyond(value)), None)
    if beyond is not None:
        raise SettingsError(
            f"{place!r}, sample {beyond}: the label is {given[beyond]}, beyond int64: number the classes from 0"
        )
    form = "dict" if place.lower().endswith(CSV) or fields is not None else "nested"
    root = os.path.dirname(os.path.abspath(place))
    only = [column for column in columns if column is not label]
    if fields is None and len(only) == 1:
        return layouts.of_paths(place, root, only[0].values, None if label is None else label.values)
    if label is None or (found := layouts.classes_of(label.values)) is None:
        return Listed(place, root, columns, None, form)
    return Listed(place, root, only, found, form, label.name)


def _chosen(place: str, fields: Sequence[str] | Mapping[str, str] | None, table: dict[str, Any]) -> dict[str, str]:
    """Names of parts, and their columns."""
    if fields is None:
        return _apart(place, table)
    members.names(fields)
    named = dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields}
    for name, column in named.items():
        if column not in table:
            raise SettingsError(f"fields: {place!r} has no column {column!r}: it has {', '.join(map(repr, table))}")
    return named


def _apart(place: str, table: dict[str, Any]) -> dict[str, str]:
    """All columns by the names of their parts.

    Raises:
        SettingsError: two columns are one part, or one is in the other.
    """
    found: dict[str, str] = {}
    lines = not place.lower().endswith(CSV)
    for column in table:
        name = _plain(column)
        other = found.setdefault(name, column)
        if lines and other == column:
            within = (part for part in found if name.startswith(f"{part}.") or part.startswith(f"{name}."))
            other = found[next(within, name)]
        if other != column:
            part = min(_plain(other), name, key=len)
            raise SettingsError(
                f"{place!r}: columns {other!r} and {column!r} would be one part of a sample, {part!r}: name both, "
                f"fields={{{other!r}: {other!r}, {column!r}: {column!r}}}"
            )
    return found


def _plain(column: str) -> str:
    """The name of a part: ``file_name`` is the image, ``mask_file_name`` the mask."""
    return "image" if column == _FILE_NAME else column.removesuffix(f"_{_FILE_NAME}")


def _column(place: str, name: str, column: str, values: list[Any]) -> Column:
    if not layouts.is_text(column):
        raise SettingsError(f"{place!r}: the key {column!r} has half of a surrogate pair: write it in UTF-8")
    if all(isinstance(value, str) for value in values):
        at = next((at for at, value in enumerate(values) if not layouts.is_text(value)), None)
        if at is not None:
            raise SettingsError(
                f"{place!r}, sample {at}: {column} is {values[at]!r}, with half of a surrogate pair: write it in UTF-8"
            )
        named = column == _FILE_NAME or column.endswith(f"_{_FILE_NAME}")
        if named or all(value.lower().endswith((*layouts.IMAGES, ".npy")) for value in values):
            paths = [_file(place, column, at, value) for at, value in enumerate(values)]
            return Column(name, layouts.kind_of(values[0]), True, paths)
        return Column(name, "text", False, values)
    if all(type(value) in (int, float) and not layouts.is_beyond(value) for value in values):
        whole = all(type(value) is int for value in values)
        return Column(name, "number", False, values if whole else [float(value) for value in values])
    return Column(name, "json", False, [json.dumps(value) for value in values])


def _file(place: str, column: str, at: int, value: str) -> str:
    if not value or "://" in value:
        raise SettingsError(
            f"{place!r}, sample {at}: {column} is {value!r}, and the path of a local file is needed: relative paths "
            "begin at the manifest's folder"
        )
    return value


def _of_csv(place: str) -> dict[str, list[Any]]:
    """The columns of a CSV file. Those whose cells are all numbers have numbers."""
    header: list[str] | None = None
    rows: list[list[str]] = []
    with _text(place) as file:
        line = 0
        try:
            first = file.readline()
            file.seek(0)
            tabs = place.lower().endswith(".tsv")
            delimiter = "\t" if tabs else ";" if ";" in first and "," not in first else ","
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            for row in reader:
                line = reader.line_num
                if not row:
                    continue
                if header is None:
                    header = _header(place, [cell.strip() for cell in row])
                elif len(row) != len(header):
                    raise SettingsError(
                        f"{place!r}, line {line}: {len(row)} cells for {len(header)} columns: quote cells with commas"
                    )
                else:
                    rows.append(row)
        except (csv.Error, UnicodeDecodeError) as cause:
            raise SettingsError(f"{place!r}, near line {line + 1}: {cause}: save it as CSV in UTF-8") from None
    return {name: _numbers([row[at] for row in rows]) for at, name in enumerate(header or [])}


def _header(place: str, header: list[str]) -> list[str]:
    if any(map(layouts.is_image, header)):
        raise SettingsError(
            f"{place!r} begins with a row of values, {header}: write a header first, as file_name,label"
        )
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"{place!r} has two columns {twice!r}: rename one")
    return header


def _numbers(cells: list[str]) -> list[Any]:
    if all(map(_WHOLE.fullmatch, cells)):
        return [int(cell) for cell in cells]
    return [float(cell) for cell in cells] if all(map(_REAL.fullmatch, cells)) else list(cells)


def _of_lines(place: str) -> dict[str, list[Any]]:
    """The columns of JSON lines. Objects in objects are columns of their own, called by their path."""
    columns: dict[str, list[Any]] = {}
    with _text(place) as file:
        number = 0
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise SettingsError(f"{place!r}, line {number} is a {type(row).__name__}: each line is an object")
                flat = dict(_flat(row, "", f"{place!r}, line {number}"))
                if not columns:
                    columns = {name: [] for name in flat}
                if flat.keys() != columns.keys():
                    other = sorted(flat.keys() ^ columns.keys())
                    raise SettingsError(
                        f"{place!r}, line {number}: {other} are not in every line: give all lines the same keys"
                    )
                for name, value in flat.items():
                    columns[name].append(value)
        except (ValueError, RecursionError) as cause:
            if isinstance(cause, SettingsError):
                raise
            raise SettingsError(
                f"{place!r}, near line {number}: {cause}: each line is one JSON object in UTF-8"
            ) from None
    return columns


def _flat(row: dict[str, Any], path: str, place: str) -> Any:
    for key, value in row.items():
        if not key or "." in key:
            raise SettingsError(f"{place}: a key is {key!r}, and a dot separates the keys of a path: rename it")
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict) and value:
            yield from _flat(value, name, place)
        else:
            yield name, value


def _text(place: str) -> Any:
    try:
        return open(place, newline="" if place.lower().endswith(CSV) else None, encoding="utf-8-sig")
    except (OSError, ValueError) as cause:
        why = getattr(cause, "strerror", None) or cause
        raise SettingsError(f"{place!r} cannot be read: {why}") from None

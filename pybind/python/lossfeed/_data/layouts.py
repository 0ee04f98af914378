"""Layouts of images on disk beside class folders and shards: flat folders, files of one stem, lists of paths. What they
list is read by the engine, as class folders are."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import _native
from .._base.errors import SettingsError
from . import members
from .data import Data
from .packing import Leaf
from .resize import Resize
from .structure import Structure

_log = logging.getLogger("lossfeed")

#: Endings of images.
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".pbm")
#: Endings of shards.
SHARDS = (".tar", ".parquet")
#: Names of folders that are no classes, where there are two of them: parts of a dataset, and parts of its samples.
SPLITS = {"train", "training", "val", "valid", "validation", "eval", "test", "testing"}
PARTS = {"images", "image", "imgs", "img", "jpegimages", "masks", "mask", "segmentationclass", "segmentationobject",
         "annotations", "labels", "captions"}  # fmt: skip
#: Manifests that Hugging Face's ``imagefolder`` reads.
METADATA = ("metadata.jsonl", "metadata.csv")
#: What files hold, by ending; see ``PieceKind::of_member`` in the engine.
_KINDS = {".txt": "text", ".text": "text", ".transcript": "text", ".json": "json", ".npy": "npy"}


class Column(NamedTuple):
    """A part of every sample."""

    name: str
    #: "picture", "bytes", "text", "json", "npy" or "number".
    kind: str
    #: Whether the values are paths of files.
    files: bool
    values: list[Any]


class Listed(NamedTuple):
    """Columns, labels and form of a table."""

    url: str
    root: str
    columns: list[Column]
    #: One a sample, and the names of classes.
    labels: tuple[list[int], list[str]] | None
    #: "dict", "nested" (dicts in dicts, by dots in names), "tuple", or "pair": a picture and its target, or the picture
    #: alone.
    form: str
    #: What the label is called.
    label: str = "label"


def opened(listed: Listed, mode: str, resized: Resize | None, checksums: bool) -> Data:
    """The dataset of a table."""
    to, crop = (None, None) if resized is None else resized
    url, root, columns, labels, *_ = listed
    source = _native.table_source(url, root, columns, labels, mode, to, crop, checksums)
    return Data(source, (), _structure(listed, source))


def _structure(listed: Listed, source: _native.Source) -> Structure | None:
    if listed.form == "pair":
        picture = Leaf("field", 0, "uint8", tuple(source.fields[0][1]), "array", "x")
        if len(listed.columns) == 1:
            return None if listed.labels is not None else alone(picture._replace(path=""))
        value = members.in_tail("number", 0, source.pieces[1][2], "y")
        return Structure((picture, value))
    names = [column.name for column in listed.columns] + ([listed.label] if listed.labels is not None else [])
    if listed.form == "tuple":
        return members.structure_of(names, source)
    made = members.structure_of(dict.fromkeys(names, ""), source)
    if made is None or listed.form == "dict":
        return made
    tree: dict[str, Any] = {}
    for name, leaf in zip(names, made.leaves):
        *branches, last = name.split(".")
        at = tree
        for branch in branches:
            at = at.setdefault(branch, {})
        at[last] = leaf
    return Structure(tree, target=made.target_key)


def alone(leaf: Leaf) -> Structure:
    """The structure of samples of one array and no target."""
    made = Structure(leaf)
    made.target_key = None
    return made


# ---- folders ---------------------------------------------------------------------------------------------------------


def ask(folder: str, whatever: bool) -> None:
    """Refuses a folder that is no dataset of class folders, with the line to write. `whatever`: its folders are
    classes, however they are called.

    Raises:
        SettingsError: it holds splits, parts of samples, or images alone.
    """
    folders, files = _contents(folder)
    if any(name.lower().endswith(SHARDS) for name in files):
        return
    splits = [name for name in folders if name.lower() in SPLITS]
    parts = [name for name in folders if name.lower() in PARTS]
    if len(splits) > 1 and not whatever:
        raise SettingsError(which_split(folder, splits))
    if len(parts) > 1 and not whatever:
        named = {"image": _starred(folder, parts[0]), "mask": _starred(folder, parts[1])}
        raise SettingsError(
            f"{folder!r} holds {', '.join(map(repr, parts))}, which look like parts of samples and not like classes: "
            f"write lf.open({folder!r}, fields={named}), or labels='folders' if they are classes"
        )
    if folders or not any(is_image(name) for name in files):
        return
    manifest = next((name for name in METADATA if name in files), None)
    if manifest is not None:
        raise SettingsError(
            f"{folder!r} holds images and {manifest}: open that, lf.open({os.path.join(folder, manifest)!r}), or the "
            f"images alone, lf.open({folder!r}, labels=None)"
        )
    raise SettingsError(
        f"{folder!r} holds images and no class folders: write lf.open({folder!r}, labels=None) for images without "
        "labels, fields={'image': 'jpg', 'caption': 'txt'} for files of one stem"
    )


def which_split(place: str, splits: list[str]) -> str:
    """The question about a folder of splits."""
    first = next((name for name in splits if name.lower().startswith("train")), splits[0])
    return (
        f"which? {place!r} holds {', '.join(map(repr, splits))}, which look like splits of a dataset: open one, "
        f"lf.open({place.rstrip('/') + '/' + first!r}), or labels='folders' if they are classes"
    )


def _contents(folder: str) -> tuple[list[str], list[str]]:
    """Names of folders and files, sorted, without hidden ones; none where that cannot be read: the engine says why."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))
    except OSError:
        return [], []
    return [name for name, is_dir in found if is_dir], [name for name, is_dir in found if not is_dir]


def _starred(folder: str, part: str) -> str:
    endings = {os.path.splitext(name)[1] for name in _contents(os.path.join(folder, part))[1]}
    return f"{part}/*{min(endings, default='.png')}"


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGES)


def flat(folder: str) -> Listed:
    """All images below a folder, without labels."""
    names = [name for name in _native.files_below(folder) if is_image(name)]
    return Listed(folder, folder, [Column("image", "picture", True, names)], None, "pair")


def stems(folder: str, fields: Sequence[str] | Mapping[str, str]) -> Listed:
    """Files below a folder that belong together by their stem, or by what is in a star's place.

    Raises:
        SettingsError: a pattern that is none, or that two files of one sample match; no stem that has all fields.
    """
    patterns = members.names(fields)
    keys = list(fields) if isinstance(fields, Mapping) else [str(at) for at in range(len(patterns))]
    found: list[dict[str, str]] = [{} for _ in patterns]
    rules = [[_Rule.of(one, pattern) for one in pattern.split(";")] for pattern in patterns]
    kinds = _kinds(patterns, rules)
    for name in _native.files_below(folder):
        for pattern, of, stems in zip(patterns, rules, found):
            for rule in of:
                stem = rule.stem(name)
                if stem is None:
                    continue
                if stem in stems:
                    raise SettingsError(
                        f"fields: {pattern!r} is both {stems[stem]} and {name} in {folder}: name the folder too, "
                        "as 'images/*.jpg'"
                    )
                stems[stem] = name
                break
    whole = [stem for stem in found[0] if all(stem in stems for stems in found[1:])]
    if not whole:
        counts = ", ".join(f"{len(stems)} of {pattern!r}" for pattern, stems in zip(patterns, found))
        some = next((name for stems in found for name in stems.values()), None)
        hint = "" if some is None else f" (the first is {some})"
        raise SettingsError(
            f"fields: no files below {folder} have one stem: there are {counts}{hint}. In folders of their own they "
            "are named with a star: {'image': 'images/*.jpg', 'mask': 'masks/*.png'}"
        )
    for pattern, stems in zip(patterns, found):
        if len(stems) > len(whole):
            other = next(name for stem, name in stems.items() if stem not in set(whole))
            _log.warning(
                "lf.open(%r): %d files of %r are left out, because they lack a file of another field; the first: %s",
                folder, len(stems) - len(whole), pattern, other,
            )  # fmt: skip
    columns = [Column(key, kind, True, [stems[stem] for stem in whole]) for key, kind, stems in zip(keys, kinds, found)]
    return Listed(folder, folder, columns, None, "dict" if isinstance(fields, Mapping) else "tuple")


class _Rule(NamedTuple):
    """A pattern of names below a folder: around a star, or what follows the first dot as in shards."""

    before: str | None
    after: str

    @classmethod
    def of(cls, pattern: str, whole: str) -> _Rule:
        if pattern.count("*") > 1 or not pattern.strip("*/ ") or ("/" in pattern and "*" not in pattern):
            raise SettingsError(
                f"fields: {whole!r} names no files of a folder: give what follows the dot, 'jpg', or a pattern with "
                "one star, 'images/*.jpg'"
            )
        before, star, after = pattern.partition("*")
        return cls(before, after) if star else cls(None, pattern)

    def stem(self, name: str) -> str | None:
        if self.before is None:
            folder, slash, file = name.rpartition("/")
            stem, dot, rest = file.partition(".")
            return f"{folder}{slash}{stem}" if dot and rest.lower() == self.after.lower() else None
        fits = name.startswith(self.before) and name.lower().endswith(self.after.lower())
        end = len(name) - len(self.after)
        return name[len(self.before) : end] if fits and end > len(self.before) else None


def _kinds(patterns: list[str], rules: list[list[_Rule]]) -> list[str]:
    """The kind of each pattern's files. The first of images is the picture; others stay encoded."""
    kinds: list[str] = []
    for pattern, of in zip(patterns, rules):
        found = {kind_of("." + rule.after.rpartition(".")[2]) for rule in of}
        if len(found) > 1:
            raise SettingsError(f"fields: {pattern!r} has alternatives that are not of one kind: name one kind")
        (kind,) = found
        kinds.append("bytes" if kind == "picture" and "picture" in kinds else kind)
    return kinds


def kind_of(name: str) -> str:
    """The kind of a file of that name."""
    ending = name[name.rfind(".") :].lower()
    return "picture" if is_image(name) else _KINDS.get(ending, "bytes")


# ---- lists -----------------------------------------------------------------------------------------------------------


def are_names(data: Any) -> bool:
    """True for a list of names, or of pairs of one and a label."""
    return type(data) in (list, tuple) and len(data) > 0 and isinstance(_name(data[0]), (str, os.PathLike))


def is_list(data: Any) -> bool:
    """True if the first name is an image file: then it is no dataset of text."""
    return are_names(data) and is_image(os.fspath(_name(data[0]))) and os.path.isfile(_name(data[0]))


def _name(item: Any) -> Any:
    return item[0] if type(item) is tuple and len(item) == 2 else item


def of_list(data: Any, labels: Any) -> Listed:
    """A list of paths, with labels or None.

    Raises:
        SettingsError: labels that are none, or not one a path.
    """
    if all(type(item) is tuple and len(item) == 2 for item in data):
        if not isinstance(labels, str):
            raise SettingsError("labels= beside a list of pairs (path, label): give one of them")
        data, labels = [item[0] for item in data], [item[1] for item in data]
    paths = [_path(at, item) for at, item in enumerate(data)]
    if isinstance(labels, str):
        raise SettingsError(
            f"item 0 is {paths[0]!r}, a file name: write lf.open(paths, labels), or lf.open(paths, None) for images "
            "without labels"
        )
    return of_paths(f"{len(paths)} files", os.getcwd(), paths, labels)


def of_paths(url: str, root: str, paths: list[str], labels: Any) -> Listed:
    """Pictures with labels, values to regress, or nothing."""
    columns = [Column("image", "picture", True, paths)]
    if labels is None:
        return Listed(url, root, columns, None, "pair")
    values = _one_each(labels)
    if len(values) != len(paths):
        raise SettingsError(f"labels: {len(values)} for {len(paths)} paths: give one each")
    files = (isinstance(v, (str, os.PathLike)) and str(v).lower().endswith((*IMAGES, ".npy")) for v in values)
    if all(files):
        raise SettingsError(
            f"labels: {str(values[0])!r} is an image file: open their folder with fields=, or a manifest with two "
            "columns of files"
        )
    beyond = next((value for value in values if is_beyond(value)), None)
    if beyond is not None:
        raise SettingsError(f"labels: {beyond} is beyond int64: give names of classes, str(label)")
    broken = next((value for value in values if isinstance(value, str) and not is_text(value)), None)
    if broken is not None:
        raise SettingsError(f"labels: {broken!r} has half of a surrogate pair: rename it")
    found = classes_of(values)
    if found is not None:
        return Listed(url, root, columns, found, "pair")
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        other = next(value for value in values if isinstance(value, bool) or not isinstance(value, (int, float)))
        raise SettingsError(
            f"labels: {other!r} is no label: give whole numbers, names of classes, or real numbers, of one kind"
        )
    columns.append(Column("label", "number", False, [float(value) for value in values]))
    return Listed(url, root, columns, None, "pair")


def _one_each(labels: Any) -> list[Any]:
    """Labels as plain values of Python, also those of arrays and tensors of one number.

    Raises:
        SettingsError: it is one value, or has no order.
    """
    given = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(given, (Mapping, set, frozenset)) or not hasattr(given, "__iter__"):
        raise SettingsError(f"labels={labels!r}: give a list of labels, one a path")
    return [value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value for value in given]


def is_text(value: str) -> bool:
    """True for text that UTF-8 can hold."""
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)


def is_beyond(value: Any) -> bool:
    """True for a whole number that int64 cannot hold."""
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def classes_of(values: list[Any]) -> tuple[list[int], list[str]] | None:
    """Whole numbers as they are, names as classes in the order of names; None for what is neither."""
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return values, []
    if all(isinstance(value, str) for value in values):
        names = sorted(set(values))
        number = {name: at for at, name in enumerate(names)}
        return [number[value] for value in values], names
    return None


def _path(at: int, item: Any) -> str:
    try:
        path = os.fspath(item)
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise SettingsError(f"item {at} is {item!r}, and item 0 is a file name: give paths as text or pathlib.Path")
    if not is_text(path):
        raise SettingsError(f"item {at} is {path!r}, which is not UTF-8: rename it")
    return path

"""Samples of several parts that one image transform changes together: a picture, masks, boxes with what belongs to
them."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

from .._base.errors import SampleError, SettingsError, TrainingWarning
from .._base.memory import to_numpy
from .._data.data import Data
from .._data.packing import Leaf
from .._data.pictured import Pictured, Pictures
from .._data.structure import TARGET_KEYS, Structure, opened

#: Samples that are looked at for what no structure tells: the first with a box decides, or the first that can be read.
_LOOKED_AT = 16
#: What belongs to boxes unless it is named, beside them: torchvision's own word.
_LABELS = "labels"
#: Last names of JSON fields that hold whole numbers. The numbers of others may be real.
_WHOLE = {
    *TARGET_KEYS, *(f"{name}{end}" for name in ("class", "category") for end in ("", "_id", "_ids")),
    "classes", "categories", "id", "ids", "image_id", "iscrowd",
}  # fmt: skip


class Named(NamedTuple):
    """The fields that an :class:`lossfeed.ImageTransform` names."""

    image: str | None
    masks: tuple[str, ...]
    #: Boxes and what belongs to them; None: :data:`_LABELS`.
    boxes: dict[str, tuple[str, ...] | None]

    @property
    def any(self) -> bool:
        """True if a field is named."""
        return self.image is not None or self.beside

    @property
    def beside(self) -> bool:
        """True if there is more than a picture."""
        return bool(self.masks or self.boxes)

    def said(self) -> list[str]:
        """The keywords that named them."""
        said = [] if self.image is None else [f"image={self.image!r}"]
        said += [f"masks={self.masks}"] if self.masks else []
        if self.boxes:
            plain = all(of is None for of in self.boxes.values())
            said.append(f"boxes={tuple(self.boxes) if plain else self.boxes}")
        return said


def named(image: Any, masks: Any, boxes: Any) -> Named:
    """The keywords, checked."""
    if image is not None and not isinstance(image, str):
        raise SettingsError(f"image={image!r}: give the name of the picture's field, as 'image'")
    mapped = boxes if isinstance(boxes, Mapping) else dict.fromkeys(_names("boxes", boxes))
    found = {}
    for name, of in mapped.items():
        _names("boxes", [name])
        found[name] = None if of is None else _names(f"boxes: {name}", of)
    made = Named(image, _names("masks", masks), found)
    every = [*([image] if image is not None else []), *made.masks, *found]
    every += [name for of in found.values() for name in of or ()]
    twice = next((name for name in every if every.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"{', '.join(made.said())}: {twice!r} is named twice")
    return made


def _names(keyword: str, value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) and name for name in names):
        raise SettingsError(f"{keyword}={value!r}: give names of fields, as ('mask',)")
    return tuple(names)


def pictures(names: Named, data: Data, one_size: bool) -> Pictures | None:
    """The picture of a Python dataset's items and what goes with it; None: they travel as arrays. `one_size`: the
    transform makes one size of pictures of any."""
    if not data._adaptors:
        return None
    structure = data._adaptors[0].structure
    if isinstance(structure, Pictured):
        return structure.pictures
    leaves = structure.leaves
    found = [leaf.path for leaf in leaves if leaf.given == "image"]
    # Hugging Face's, where it is not decoded.
    found += [path[:-6] for path in (leaf.path for leaf in leaves) if path.endswith(".bytes")]
    found = [path for path in found if path not in names.masks]
    image = names.image
    if image is None:
        if structure.plain and not names.beside:
            return Pictures("x") if one_size and found == ["x"] else None
        if len(found) != 1:
            arrays = [leaf.path for leaf in leaves if leaf.dtype == "uint8" and len(leaf.shape) == 3]
            known = found or arrays or [leaf.path for leaf in leaves]
            raise SettingsError(
                "an ImageTransform is for pairs (image, target) and for samples with a picture: name the picture's "
                f"field, lf.ImageTransform(…, image={known[0] if known else 'image'!r}), or give a function of "
                "batch.data, transform=function"
            )
        (image,) = found
    _known("image", image, structure)
    for mask in names.masks:
        _known("masks", mask, structure)
    for boxes, along in names.boxes.items():
        for path in (boxes, *(along or ())):
            _known("boxes", path, structure)
    return asked(names)._replace(image=image)


def asked(names: Named) -> Pictures:
    """The same by the names alone."""
    along = [name for boxes, of in names.boxes.items() for name in ((_labels(boxes),) if of is None else of)]
    return Pictures(names.image, names.masks, tuple(names.boxes), tuple(along))


def _known(keyword: str, path: str, structure: Structure) -> None:
    paths = [leaf.path for leaf in structure.leaves]
    if path not in paths and not any(known.startswith(f"{path}.") for known in paths):
        raise SettingsError(
            f"{keyword}={path!r} is no field of this dataset: its fields are {', '.join(map(repr, paths))}"
        )


class Beside(NamedTuple):
    """Settings of masks and boxes, and the structure of batches with them."""

    settings: dict[str, Any] | None
    structure: Structure | None


def find(names: Named, data: Data, cut: dict[str, Any]) -> Beside:
    """Settings of masks and boxes. `cut` are the engine's settings of the crop without resizing and of the mirroring.

    Raises:
        SettingsError: a name is not that of a field of the kind.
    """
    structure = data._structure
    if names.any:
        if structure is None and (names.beside or names.image != "x"):
            raise SettingsError(
                f"{', '.join(names.said())}: samples are pairs of one image and its target: leave the names out, or "
                "open the dataset with its other parts (fields=)"
            )
        picture = next((leaf.path for leaf in structure.leaves if leaf.place == "field"), None) if structure else "x"
        if names.image not in (None, picture) or (structure is not None and not data._native.images):
            raise SettingsError(
                f"image={names.image!r} is not this dataset's picture, which is {picture!r}: name that, or name "
                "another first in fields="
            )
    if not names.beside or structure is None:
        return Beside(None, structure)
    look = _Look(data, structure, tuple(names.boxes))
    leaves = {leaf.path: leaf for leaf in structure.leaves}
    roles: dict[str, tuple[Any, Leaf]] = {}
    for path in names.masks:
        leaf = _leaf("masks", path, leaves)
        how = _stored("masks", leaf, ("array", "image", "npy"))
        dtype = leaf.dtype if how == "array" else look.mask(leaf)
        made = leaf._replace(place="tail", dtype=dtype, shape=(0, 0), given="mask")
        roles[path] = ({"mask": [how, _short(dtype)]}, made)
    order = [leaf for leaf in structure.leaves if leaf.place in ("tail", "object")]
    for path, along in names.boxes.items():
        leaf = _leaf("boxes", path, leaves)
        how = _stored("boxes", leaf, ("array", "npy", "json"))
        roles[path] = ({"boxes": how}, leaf._replace(place="tail", dtype="float32", shape=(0, 4), given="tensor"))
        at = order.index(leaf)
        for name in _along(path, along, leaves, look, {*names.masks, *names.boxes}):
            of = _leaf("boxes", name, leaves)
            how = _stored("boxes", of, ("array", "npy", "json"))
            dtype, rank = (of.dtype, len(of.shape)) if how == "array" else look.values(of)
            roles[name] = (
                {"along": [how, _short(dtype), at]},
                of._replace(place="tail", dtype=dtype, shape=(0,) * rank, given="tensor"),
            )
    parts = [
        {
            "name": leaf.path,
            "dimensions": len(leaf.shape),
            "dtype": _short(leaf.dtype),
            "role": roles[leaf.path][0] if leaf.path in roles else "keep",
        }
        for leaf in order
    ]
    tree = structure.build(lambda leaf: roles[leaf.path][1] if leaf.path in roles else leaf)
    keys = ("crop", "padding", "random_crop", "flip")
    return Beside({**{key: cut[key] for key in keys}, "parts": parts}, Structure(tree, target=_target(structure)))


def notice_left(data: Data, image: str | None) -> None:
    """Warns of fields that a transform of the picture alone would leave where they are: encoded images, and arrays as
    high and wide as the picture."""
    structure = data._structure
    if structure is None:
        specs = [data._native.spec, data._native.target_spec]
        sizes = {name: _size(tuple(spec[1])) for name, spec in zip("xy", specs) if spec is not None}
    else:
        sizes = {leaf.path: _size(tuple(leaf.shape)) for leaf in structure.leaves if leaf.place == "field"}
        look = _Look(data, structure, ())
        with contextlib.suppress(SampleError):
            for leaf in structure.leaves:
                if (leaf.place == "tail" and len(leaf.shape) > 1) or leaf.given in ("bytes", "image"):
                    sizes[leaf.path] = _size_of(look._value(leaf))
    picture = image if image in sizes else next((name for name, size in sizes.items() if size is not None), None)
    if picture is None:
        return
    left = [name for name, size in sizes.items() if size in (_ENCODED, sizes[picture]) and size and name != picture]
    if left:
        warnings.warn(
            f"the transform crops or turns {picture!r} alone, and {', '.join(map(repr, left))} stays as it is: if one "
            f"draw is to move both, transform=lf.ImageTransform(…, image={picture!r}, masks={tuple(left)})",
            TrainingWarning,
            stacklevel=5,  # the caller that makes the loader
        )


#: The size of an image that is not decoded.
_ENCODED = (-1, -1)


def _size(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Height and width of one image; None of another array."""
    if len(shape) == 3:
        return tuple(shape[:2] if shape[2] in (1, 3, 4) else shape[1:])
    return tuple(shape) if len(shape) == 2 and min(shape) > 4 else None


def _size_of(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, bytes):
        return _ENCODED if value.startswith((b"\x89PNG", b"\xff\xd8\xff")) else None
    return _size(tuple(getattr(value, "shape", ())))


def _target(structure: Structure) -> str | None:
    return structure.target_key if isinstance(structure.tree, Mapping) else None


def _leaf(keyword: str, path: str, leaves: dict[str, Leaf]) -> Leaf:
    leaf = leaves.get(path)
    if leaf is None:
        raise SettingsError(
            f"{keyword}={path!r} is no field of this dataset: its fields are {', '.join(map(repr, leaves))}"
        )
    if leaf.place not in ("tail", "object"):
        what = "the picture" if leaf.place == "field" else "the target, one number a sample"
        raise SettingsError(f"{keyword}={path!r} is {what} of this dataset: name another field")
    return leaf


def _stored(keyword: str, leaf: Leaf, kinds: tuple[str, ...]) -> str:
    how = "array" if leaf.place == "tail" else {"bytes": "image"}.get(leaf.given, leaf.given)
    if how not in kinds or (how == "array" and not leaf.shape):
        wanted = {"array": "an array", "image": "a PNG", "npy": "an npy file", "json": "a JSON list of numbers"}
        raise SettingsError(
            f"{keyword}={leaf.path!r} is {leaf.given} in this dataset, and must be "
            f"{', '.join(wanted[kind] for kind in kinds)}"
        )
    return how


def _along(
    path: str, along: tuple[str, ...] | None, leaves: dict[str, Leaf], look: _Look, others: set[str]
) -> tuple[str, ...]:
    """The fields with a value for each of the boxes `path`: without a word ``labels`` beside them. Others that may be
    such fields are asked about."""
    if along is not None:
        return along
    branch, mine = path.rpartition(".")[0], _labels(path)
    beside = [name for name in leaves if name.rpartition(".")[0] == branch and name not in others]
    count = look.count(leaves[path])
    alike = [name for name in beside if name != mine and count and look.count(leaves[name]) == count]
    if alike:
        known = tuple(name for name in beside if name in (mine, *alike))
        raise SettingsError(
            f"boxes=({path!r},): {', '.join(map(repr, alike))} may have a value a box, and would keep those of boxes "
            f"that vanish: say what goes with them, boxes={{{path!r}: {known}}}"
        )
    return (mine,) if mine in leaves and leaves[mine].place != "target" else ()


def _labels(boxes: str) -> str:
    branch, dot, _ = boxes.rpartition(".")
    return f"{branch}{dot}{_LABELS}"


class _Look:
    """A look at one sample, for what no structure tells. It has a box in each of the fields `boxes`, if one of those
    that are looked at has."""

    def __init__(self, data: Data, structure: Structure, boxes: tuple[str, ...]) -> None:
        self._data, self._structure, self._boxes = data, structure, boxes
        self._found: dict[str, Any] | None = None

    def _value(self, leaf: Leaf) -> Any:
        if self._found is None:
            self._found = self._read()
        return self._found.get(leaf.path)

    def _read(self) -> dict[str, Any]:
        count, why = min(_LOOKED_AT, len(self._data)), None
        spare: dict[str, Any] | None = None
        for id in range(count):
            try:
                sample = self._structure.read(*self._data._native.beside(id), to_numpy)
                values = self._structure.values(sample, id)
                found = {leaf.path: value for leaf, value in zip(self._structure.leaves, values)}
            except SampleError as cause:
                why = cause
                continue
            if all(_count(found.get(path)) != 0 for path in self._boxes):
                return found
            spare = spare or found
        if spare is not None:
            return spare
        raise SampleError(f"masks=, boxes=: none of the first {count} samples can be read: {why}") from why

    def mask(self, leaf: Leaf) -> str:
        """The dtype of an encoded mask."""
        value = self._value(leaf)
        if not isinstance(value, bytes):
            return str(value.dtype)
        # The depth in a PNG's header; 16 bits become int32. What is no PNG is refused where it is read.
        return "int32" if value[24:25] == b"\x10" else "uint8"

    def values(self, leaf: Leaf) -> tuple[str, int]:
        """Dtype and dimensions of what belongs to boxes."""
        value = self._value(leaf)
        if not isinstance(value, list):
            return str(value.dtype), value.ndim
        if not all(isinstance(v, (int, float)) for v in value):
            raise SettingsError(
                f"boxes: {leaf.path!r} holds {json.dumps(value)[:80]}, and what goes with boxes is numbers"
            )
        # The engine reads whole numbers where real ones are expected, but not the other way round.
        whole = leaf.path.rpartition(".")[2].lower() in _WHOLE and not any(isinstance(v, float) for v in value)
        return "int64" if whole else "float64", 1

    def count(self, leaf: Leaf) -> int | None:
        """The number of its elements; None for what is no list."""
        if leaf.place == "target" or (leaf.place == "tail" and not leaf.shape):
            return None
        return _count(self._value(leaf))


def _count(value: Any) -> int | None:
    """The number of elements; None for what is no list."""
    return len(value) if isinstance(value, list) or len(getattr(value, "shape", ())) else None


def _short(dtype: str) -> str:
    """The engine's name of a dtype."""
    for long, short in (("uint", "u"), ("int", "i"), ("float", "f"), ("complex", "c")):
        dtype = dtype.replace(long, short)
    return dtype

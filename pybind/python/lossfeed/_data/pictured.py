"""Items of a Python dataset whose picture travels encoded, as that of a shard does, so that each may have its own
size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from .. import _native
from .._base.errors import SampleError, SettingsError
from .._base.memory import as_bytes, dtype_name, is_array, is_tensor, require_numpy
from .packing import Leaf, Prepare, packing, tailed
from .structure import Structure


class Pictures(NamedTuple):
    """The picture of an item and what goes with it, by path."""

    #: None: the first that is one.
    image: str | None
    masks: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    #: What has a value a box.
    along: tuple[str, ...] = ()


class Pictured(Structure):
    """The tree of such items. The picture is the only field; everything but it and the target is in the tail."""

    def __init__(self, item: Any, pictures: Pictures, target: str | None, image: Callable[[Any], Any]) -> None:
        self.pictures = pictures
        super().__init__(item, varying=True, target=target, image=image)
        if not any(leaf.given == "picture" for leaf in self.leaves):
            named = f"image={pictures.image!r} is no field of this dataset"
            if pictures.image is None:
                named = "no field is a picture"
            paths = ", ".join(repr(leaf.path) for leaf in self.leaves)
            raise SettingsError(f"{named}, and an ImageTransform needs one: name it, image=…, of {paths}")

    def settled(self, spec: tuple[str, list[int]]) -> Pictured:
        """Itself, with the picture's dtype and shape as they were found."""
        dtype, shape = spec[0], tuple(spec[1])
        self.fields = [(dtype, shape)]
        found = [leaf._replace(dtype=dtype, shape=shape) if leaf.given == "picture" else leaf for leaf in self.leaves]
        self.leaves = found
        numbered = iter(self.leaves)
        self.tree = self.build(lambda _: next(numbered))
        return self

    @property
    def lengths(self) -> int:
        """Number of lengths in what is packed: the picture's is the first."""
        return 1 + self._lengths_in_tail

    def _parts(self, value: Any, path: str) -> tuple[Any, Any] | None:
        image, masks, boxes, along = self.pictures
        if path in (image, *masks, *boxes, *along) or (image is None and _is_file(value)):
            return None
        return super()._parts(value, path)

    def _leaf(self, value: Any, path: str) -> Leaf:
        image, masks, boxes, along = self.pictures
        if path == image or (image is None and path not in masks and (_is_file(value) or _is_pil(value))):
            self.pictures = self.pictures._replace(image=path)
            self._encoded(value, path, 0)
            self.fields.append(("uint8", (1, 1, 3)))
            return Leaf("field", 0, "uint8", (1, 1, 3), "picture", path)
        array, given = self._found(value, path, 0)
        if array is None or isinstance(array, bytes):
            self.tail.append(("uint8", 1))
            return Leaf("object", len(self.tail) - 1, "uint8", (0,), "object" if array is None else "bytes", path)
        dtype, shape = dtype_name(array), tuple(int(n) for n in array.shape)
        moved = path in (*masks, *boxes, *along)
        if path and self.target_key is not None and path == self._path("", self.target_key) and not moved:
            self.target = dtype, shape
            return Leaf("target", 0, dtype, shape, given, path)
        self.tail.append((dtype, len(shape)))
        return Leaf("tail", len(self.tail) - 1, dtype, shape, given, path)

    def _found(self, value: Any, path: str, i: int) -> tuple[Any, str]:
        """The same as :meth:`Structure._array`, but bytes of an encoded mask."""
        if path in self.pictures.masks:
            return _mask(value, path, i), "mask"
        if path in self.pictures.boxes:
            return _boxes(value, path, i), "boxes"
        if path in self.pictures.along and isinstance(value, (list, tuple)) and not value:
            return require_numpy("an empty list").zeros(0, dtype="int64"), "list"
        return self._array(value, path or "the sample", i)

    def _made_quick(self) -> tuple[Prepare | None, _native.Packing | None]:
        # The picture comes first.
        order = sorted(range(len(self.leaves)), key=lambda at: self.leaves[at].given != "picture")
        leaves = [self.leaves[at] for at in order]
        packed = [leaf._replace(place="object") if leaf.given == "picture" else leaf for leaf in leaves]

        def prepare(item: Any) -> list[Any]:
            values = list(self.values(item, 0))
            return [self._ready(values[at], leaf) for at, leaf in zip(order, leaves)]

        return prepare, packing([*range(len(leaves))], packed)

    def _ready(self, value: Any, leaf: Leaf) -> Any:
        if leaf.given == "picture":
            return self._encoded(value, leaf.path, 0)
        if leaf.given == "object":
            return self._pickled(value, leaf, 0)[1]
        if leaf.given in ("mask", "boxes", "bytes", "list", "image"):
            return self._found(value, leaf.path, 0)[0]
        return value

    def pack(self, item: Any, i: int) -> tuple[Any, Any]:
        picture: bytes = b""
        tail: list[Any] = []
        target: Any = b"\0"
        for leaf, value in zip(self.leaves, list(self.values(item, i)), strict=True):
            if leaf.given == "picture":
                picture = self._encoded(value, leaf.path, i)
                continue
            if leaf.given == "object":
                tail.append(self._pickled(value, leaf, i))
                continue
            array, _ = self._found(value, leaf.path, i)
            if array is None or isinstance(array, bytes) != (leaf.given == "bytes"):
                raise SampleError(
                    f"dataset item {i}: {leaf.path} is a {type(value).__name__}, item 0 had {leaf.given} there: every "
                    "item must be made alike"
                )
            if isinstance(array, bytes):
                tail.append(((len(array),), array))
            elif leaf.place == "tail":
                tail.append(self._lengths(array, leaf, i))
            elif (found := (dtype_name(array), tuple(array.shape))) != (leaf.dtype, leaf.shape):
                raise SampleError(self._differs(leaf, found, i))
            else:
                target = as_bytes(array)
        return b"".join(tailed([((len(picture),), picture), *tail])), target

    def _encoded(self, value: Any, path: str, i: int) -> bytes:
        """A picture as an encoded image: as it is, or as PNM."""
        raw = _file(value)
        if raw is not None:
            return raw
        name = f"dataset item {i}: {path or 'the sample'}"
        if _is_pil(value):
            assert self._image is not None
            pixels = self._image(value)
        else:
            if not (is_tensor(value) or is_array(value)):
                raise SampleError(
                    f"{name} is a {type(value).__name__}, and a picture is a PIL image, an array or an encoded "
                    "image's bytes"
                )
            pixels = value.detach().cpu().numpy() if is_tensor(value) else value
            if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] > 4:
                raise SampleError(
                    f"{name} has channels first, {tuple(pixels.shape)}: return it as image.permute(1, 2, 0)"
                )
            if pixels.ndim == 2:
                pixels = pixels[:, :, None]
            if str(pixels.dtype) != "uint8" or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
                raise SampleError(
                    f"{name} is {pixels.dtype} of {tuple(pixels.shape)}, and a picture is uint8 (height, width, 1 or "
                    "3 channels)"
                )
        height, width, channels = pixels.shape
        head = b"P%d\n%d %d\n255\n" % (6 if channels == 3 else 5, width, height)
        return bytes(head + pixels.tobytes())


def _is_pil(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _is_file(value: Any) -> bool:
    """True for an encoded image as Hugging Face's datasets have it."""
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def _file(value: Any) -> bytes | None:
    """The bytes of an encoded image, also as Hugging Face's datasets have it where it is not decoded."""
    if isinstance(value, Mapping) and _is_file(value):
        raw, place = value.get("bytes"), value.get("path")
        if raw is None and isinstance(place, (str, os.PathLike)):
            with open(place, "rb") as file:
                return file.read()
        value = raw
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else None


def _mask(value: Any, path: str, i: int) -> Any:
    """A mask as an array (height, width), or as the bytes of one that is encoded."""
    raw = _file(value)
    if raw is not None:
        return raw
    numpy = require_numpy("a mask")
    array = numpy.asarray(value.detach().cpu() if is_tensor(value) else value)
    if array.dtype == numpy.bool_:
        array = array.astype(numpy.uint8)
    elif array.dtype in (numpy.uint16, numpy.uint32):
        array = array.astype(numpy.int32 if array.dtype == numpy.uint16 else numpy.int64)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise SampleError(
            f"dataset item {i}: {path} is {array.dtype} of {tuple(array.shape)}, and a mask is whole numbers of "
            "(height, width)"
        )
    return array


def _boxes(value: Any, path: str, i: int) -> Any:
    """Boxes as float32 (n, 4)."""
    form = getattr(value, "format", None)
    if form is not None and getattr(form, "name", "XYXY") != "XYXY":
        raise SampleError(
            f"dataset item {i}: {path} are boxes {form.name}, and XYXY are needed: convert_bounding_box_format"
        )
    numpy = require_numpy("boxes")
    try:
        array = numpy.asarray(value.detach().cpu() if is_tensor(value) else value, dtype=numpy.float32)
    except (TypeError, ValueError) as cause:
        raise SampleError(f"dataset item {i}: {path} are no boxes of four numbers each: {cause}") from None
    if array.size == 0:
        array = array.reshape(0, 4)
    if array.ndim != 2 or array.shape[1] != 4:
        raise SampleError(f"dataset item {i}: {path} has shape {tuple(array.shape)}, and boxes are (n, 4)")
    return array

"""Items of a Python dataset as bytes of one fixed shape."""

from __future__ import annotations

from typing import Any

from ._errors import SampleError, SettingsError
from ._memory import DTYPES, as_bytes, dtype_name, is_tensor, require_numpy

Spec = tuple[str, tuple[int, ...]]


class Adaptor:
    """Calls a map-style dataset and turns its ``(x, y)`` items into contiguous bytes.

    The first item sets the dtype and shape of all; an item that differs is a bad sample with both shapes.
    """

    def __init__(self, dataset: Any, mode: str, resize: tuple[int, int] | None) -> None:
        self.dataset = dataset
        self.mode = mode
        self.resize = resize
        self.batched = callable(getattr(dataset, "__getitems__", None))
        data, target = self._parts(self._first(), 0)
        self.data_spec, self.target_spec = _spec(data, "x"), _spec(target, "y")

    def _first(self) -> Any:
        try:
            return self.dataset[0]
        except Exception as cause:
            raise SampleError(f"dataset item 0 raised {type(cause).__name__} while its shape was looked up") from cause

    def __call__(self, ids: list[int]) -> list[Any]:
        """For every id the pair of buffers, or the exception that reading it raised."""
        items = self._batch(ids) if self.batched else None
        if items is None:
            items = [self._one(i) for i in ids]
        return [self._bytes(item, i) for item, i in zip(items, ids, strict=True)]

    def _batch(self, ids: list[int]) -> list[Any] | None:
        """All items in one call, or None if that fails: item by item the bad one is found by name."""
        try:
            items = list(self.dataset.__getitems__(ids))
        except Exception:
            return None
        if len(items) != len(ids):
            short = SampleError(
                f"dataset.__getitems__ returned {len(items)} items for {len(ids)} indices: it must return one an index, in order"
            )
            return [short] * len(ids)
        return items

    def _one(self, i: int) -> Any:
        try:
            return self.dataset[i]
        except Exception as error:
            return error

    def _bytes(self, item: Any, i: int) -> Any:
        if isinstance(item, BaseException):
            return item
        try:
            data, target = self._parts(item, i)
            for name, value, wanted in (("x", data, self.data_spec), ("y", target, self.target_spec)):
                found = (dtype_name(value), tuple(value.shape))
                if found != wanted:
                    raise SampleError(
                        f"dataset item {i}: {name} is {_say(found)}, item 0 had {_say(wanted)}: every item must have the same dtype and "
                        f"shape; pad or crop in the dataset{', or pass resize=(height, width)' if len(wanted[1]) == 3 else ''}"
                    )
            return as_bytes(data), as_bytes(target)
        except Exception as error:
            return error

    def _parts(self, item: Any, i: int) -> tuple[Any, Any]:
        if isinstance(item, dict):
            raise SampleError(
                f"dataset item {i} is a dict with keys {sorted(map(str, item))[:8]}: return a pair (x, y), for example through a small "
                "wrapper dataset, or keep your DataLoader and stage it with lf.stage"
            )
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            what = f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, (tuple, list)) else "")
            raise SampleError(
                f"dataset item {i} is {what}: return a pair (x, y) of one tensor, array or image and one target; stack several inputs "
                "into one, or keep your DataLoader and stage it with lf.stage"
            )
        return self._array(item[0], "x", i), self._array(item[1], "y", i)

    def _array(self, value: Any, name: str, i: int) -> Any:
        """`value` as a CPU tensor or a native-endian array of a dtype that travels."""
        if is_tensor(value):
            import torch

            if value.device.type != "cpu" or value.layout is not torch.strided:
                raise SampleError(f"dataset item {i}: {name} is a {value.layout} tensor on {value.device}: return dense CPU tensors")
            result = value.detach()
        elif _is_image(value):
            result = _pixels(value, self.mode, self.resize)
        else:
            numpy = require_numpy("a dataset of arrays or numbers")
            try:
                result = numpy.asarray(value)
            except Exception as cause:
                raise SampleError(f"dataset item {i}: {name} ({type(value).__name__}) is ragged or no number: {cause}") from cause
            if type(value) is float:
                result = result.astype(numpy.float32)
            if not result.dtype.isnative:
                result = result.astype(result.dtype.newbyteorder("="))
        if dtype_name(result) not in DTYPES:
            raise SampleError(
                f"dataset item {i}: {name} ({type(value).__name__}) has dtype {dtype_name(result)}, which cannot travel in a batch: use "
                f"one of {', '.join(DTYPES)}, fixed in shape"
            )
        return result


def _is_image(value: Any) -> bool:
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _pixels(image: Any, mode: str, resize: tuple[int, int] | None) -> Any:
    """A PIL image as uint8 (height, width, channels)."""
    numpy = require_numpy("a dataset of images")
    if mode == "rgb" or (mode == "auto" and image.mode not in ("L", "RGB")):
        image = image.convert("RGB")
    elif mode == "gray":
        image = image.convert("L")
    if resize is not None:
        image = image.resize((resize[1], resize[0]))
    pixels = numpy.asarray(image, dtype=numpy.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _spec(value: Any, name: str) -> Spec:
    shape = tuple(int(n) for n in value.shape)
    if 0 in shape:
        raise SettingsError(f"dataset item 0: {name} of shape {shape} has no elements")
    return dtype_name(value), shape


def _say(spec: Spec) -> str:
    return f"{spec[0]} {spec[1]}"

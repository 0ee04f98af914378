"""A batch's images as one picture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .._base.checks import whole
from .._base.errors import SettingsError
from .._base.memory import require_numpy
from .._base.spelling import spelled
from .batch import Batch, arrays_in

if TYPE_CHECKING:
    from PIL.Image import Image

_GAP, _LINE = 2, 12


@spelled
def show(batch: Batch[Any, Any], *, columns: int | None = None, rows: int = 8) -> Image:
    """The images of a batch in a grid, with their class numbers, as a ``PIL.Image``: a notebook displays it,
    ``.save(path)`` writes it. Bytes are shown as they are. Floats are stretched so that the batch's least value is
    black and its largest white, which undoes any normalisation but for colour casts.

    Args:
        batch: any batch with images: uint8 or floats, channels first or last, 1 or 3 of them. Of several image fields
            the first is shown.
        columns: images in a row; None makes a square. rows: most rows.

    Raises:
        SettingsError: the batch has no images, or Pillow or NumPy is missing.
    """
    numpy = require_numpy("lf.show")
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise SettingsError("lf.show makes a picture with Pillow: pip install pillow") from None
    if not isinstance(batch, Batch):
        kind = type(batch).__name__
        raise SettingsError(f"lf.show needs a batch of a loader, not {kind}: lf.show(next(iter(loader)))")
    images = next((found for array in arrays_in(batch.data) if (found := _images(numpy, array)) is not None), None)
    if images is None or len(images) == 0:
        wanted = "lf.show needs arrays (B, H, W, C) or (B, C, H, W) with 1 or 3 channels"
        raise SettingsError(f"{batch!r} has no images: {wanted}")
    width = whole("columns", columns, 1) if columns is not None else math.ceil(math.sqrt(len(images)))
    images = images[: width * whole("rows", rows, 1)]
    labels = _labels(numpy, batch.target, len(images))
    high, wide = images.shape[1] + _GAP + (_LINE if labels else 0), images.shape[2] + _GAP
    grid = Image.new("RGB", (min(width, len(images)) * wide - _GAP, math.ceil(len(images) / width) * high - _GAP))
    pen = ImageDraw.Draw(grid)
    for place, pixels in enumerate(images):
        left, top = place % width * wide, place // width * high
        grid.paste(Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels), (left, top))
        if labels:
            pen.text((left, top + images.shape[1]), labels[place], fill="white")
    return grid


def _on_host(numpy: Any, array: Any) -> Any:
    """A tensor or array as NumPy's, bfloat16 too."""
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if array.is_floating_point() else array
    return numpy.asarray(array)


def _images(numpy: Any, array: Any) -> Any:
    """uint8 ``(B, H, W, C)`` of an array that may be images; None of others."""
    if len(array.shape) != 4:
        return None
    last, first = array.shape[3] in (1, 3), array.shape[1] in (1, 3)
    if not last and not first:
        return None
    values = _on_host(numpy, array)
    if first and not (last and values.dtype == numpy.uint8):
        values = values.transpose(0, 2, 3, 1)
    if values.dtype == numpy.uint8 or values.size == 0:
        return values.astype(numpy.uint8)
    least, most = values.min(), values.max()
    return ((values - least) * (255 / ((most - least) or 1))).round().astype(numpy.uint8)


def _labels(numpy: Any, target: Any, count: int) -> list[str]:
    """Class numbers, if targets are one integer a sample."""
    if target is None or not hasattr(target, "shape") or len(target.shape) != 1:
        return []
    values = _on_host(numpy, target)
    return [str(value) for value in values[:count]] if values.dtype.kind in "iu" else []

"""Images of any size that become samples of one size."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import _native
from .._base.checks import whole
from .._base.errors import SettingsError

Size = tuple[int, int]

#: Largest side.
_SIDE_MAX = 65_535

#: Pillow's number for bilinear, antialiased when it shrinks: what torchvision takes too.
_BILINEAR = 2


class Resize(NamedTuple):
    """How; see :func:`lossfeed.open`. Sizes are (height, width)."""

    to: Size
    crop: Size | None

    def of(self, image: Any) -> Any:
        """A PIL image of the size that is wanted."""
        height, width = self.to if self.crop is None else self.crop
        box = None
        if self.crop is not None:
            box = _native.crop_box((image.height, image.width), self.to, self.crop)
        return image.resize((width, height), _BILINEAR, box)


def size(name: str, value: Any) -> Size | None:
    """(height, width), of a pair or of one number for both."""
    if value is None:
        return None
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2:
        raise SettingsError(f"{name}={value!r} must be (height, width), or one int for both")
    return whole(name, pair[0], 1, _SIDE_MAX), whole(name, pair[1], 1, _SIDE_MAX)


def find(resize: Any, crop: Any) -> Resize | None:
    """What the keywords of :func:`lossfeed.open` ask for."""
    to, part = size("resize", resize), size("crop", crop)
    if to is None:
        if part is None:
            return None
        raise SettingsError(
            f"crop={crop!r} needs resize=: the size before the central crop. torchvision's "
            "Resize(256), CenterCrop(224) is resize=256, crop=224"
        )
    if part is not None and (part[0] > to[0] or part[1] > to[1]):
        raise SettingsError(
            f"crop={part} is larger than resize={to}, the size that images are scaled to cover: make it smaller, or "
            "resize larger"
        )
    return Resize(to, part)

"""What becomes of pixels on their way to the model."""

from __future__ import annotations

import json
import math
from typing import Any

from . import _native, _words
from ._errors import SettingsError
from ._keywords import choice, flag, real, whole
from ._memory import is_array, is_tensor


class ImageTransform:
    """Crop, flip and normalise images, after the cache: ``lf.Loader(data, transform=lf.ImageTransform("float32",
    mean=…, std=…))``.

    On a CUDA device samples travel as bytes, and one kernel on the copy's stream makes the batch; on the CPU the
    loader's threads make it on the way into the batch. Both give the same bits.

    Equal to torchvision's ``RandomCrop(crop, padding)``, ``RandomHorizontalFlip(flip)``, ``ToTensor()`` and
    ``Normalize(mean, std)`` up to float32 rounding. Draws are functions of the loader's seed, the epoch, the batch's
    number and the sample's id: any number of workers, any device and a resumed run draw the same, and a sample that
    comes twice in an epoch is drawn anew.

    Args:
        dtype: of ``batch.data``: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"uint8"``, as text or as torch's
            or NumPy's.
        mean, std: one number or one a channel, in units of 0 to 1 (ImageNet: ``mean=(0.485, 0.456, 0.406)``). None is
            0 and 1: values from 0 to 1. Not for ``uint8``, whose values stay.
        layout: ``"NCHW"``; ``"channels_last"``: the same shape over (height, width, channels) in memory, as
            ``torch.channels_last``; ``"NHWC"``: that as the shape too.
        crop: ``(height, width)`` or one number for both; None is the image's size.
        padding: pixels of 0 on every side before the crop; with ``crop=None`` images are shifted by at most this much.
        random_crop: False crops the centre.
        flip: chance of being mirrored left to right, 0 to 1.

    Raises:
        SettingsError: a value makes no sense. When the loader is made: it does not fit the dataset's images.
    """

    __slots__ = ("_layout", "_settings")

    def __init__(
        self,
        dtype: Any = "float32",
        *,
        mean: Any = None,
        std: Any = None,
        layout: _words.Layout = "NCHW",
        crop: int | tuple[int, int] | None = None,
        padding: int = 0,
        random_crop: bool = True,
        flip: float = 0.0,
    ) -> None:
        name = getattr(dtype, "__name__", None) if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
        self._layout = choice("layout", layout, "NCHW", "NHWC", "channels_last")
        if crop is not None:
            sides = crop if isinstance(crop, (tuple, list)) else (crop, crop)
            if len(sides) != 2:
                raise SettingsError(f"crop={crop!r} must be (height, width), or one number for both")
            crop = (whole("crop", sides[0], 1, 2**31), whole("crop", sides[1], 1, 2**31))
        self._settings: dict[str, Any] = {
            "dtype": _SHORT[choice("dtype", name, *_SHORT)],
            "channels_first": self._layout == "NCHW",
            "crop": crop,
            "padding": whole("padding", padding, 0, 2**31),
            "random_crop": flag("random_crop", random_crop),
            "flip": real("flip", flip, 0.0, 1.0),
            "mean": _numbers("mean", mean),
            "std": _numbers("std", std),
        }

    def __repr__(self) -> str:
        s = self._settings
        name = next(long for long, short in _SHORT.items() if short == s["dtype"])
        said = [repr(name), *(f"{key}={s[key]}" for key in ("mean", "std", "crop", "padding", "flip") if s[key])]
        said += ["random_crop=False"] if not s["random_crop"] else []
        return f"lossfeed.ImageTransform({', '.join([*said, f'layout={self._layout!r}'])})"

    def _fit(self, source: _native.Source) -> _native.ImageTransform:
        """Checked against a dataset."""
        return _native.ImageTransform(source, json.dumps(self._settings))


def transform(value: Any) -> ImageTransform:
    """An image transform; a callable is refused with where it belongs."""
    if isinstance(value, ImageTransform):
        return value
    raise SettingsError(
        f"transform={value!r} must be a lossfeed.ImageTransform: loader threads run no Python of yours; apply other "
        "transforms to batch.data in the loop"
    )


#: Names that users write, and the engine's.
_SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "uint8": "u8"}


def _numbers(name: str, value: Any) -> list[float]:
    """One number, or a sequence of them, as a list; None is none."""
    if value is None:
        return []
    if is_tensor(value) or is_array(value):
        value = value.tolist()
    try:
        numbers = [float(v) for v in (value if isinstance(value, (tuple, list)) else [value])]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)) or not numbers:
        raise SettingsError(f"{name}={value!r} must be a finite number, or one for each channel")
    return numbers

"""What becomes of pixels on their way to the model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .._base import literals
from .._base.checks import choice, flag, real, whole
from .._base.errors import SettingsError
from .._base.memory import is_array, is_tensor
from .._base.spelling import Spelled
from .._data.resize import find as find_resize, size
from . import beside

if TYPE_CHECKING:
    import numpy
    import torch


class ImageTransform(Spelled):
    """Crop, flip and normalise images, after the cache: ``Loader(data, transform=ImageTransform(mean=…, std=…))``.
    ``pybind/docs/batches.md`` says how exact each step is.

    ========================  =====================================================================================
    torchvision               here
    ========================  =====================================================================================
    ``RandomResizedCrop``     ``crop=224, scale=(0.08, 1.0)``; ``ratio`` has torchvision's default
    ``Resize, CenterCrop``    ``resize=256, crop=224, random_crop=False``
    ``Resize, RandomCrop``    ``resize=256, crop=224``
    ``RandomCrop``            ``crop=32, padding=4``: no resizing
    ``RandomHorizontalFlip``  ``flip=0.5``
    ``TrivialAugmentWide``    ``augment="trivial"``
    ``RandAugment``           ``augment="rand"``: two operations of magnitude 9 of 31
    ``ColorJitter``           ``brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1``
    ``RandomApply`` of it     ``jitter=0.8``
    ``RandomGrayscale``       ``grayscale=0.2``
    ``ToTensor, Normalize``   ``mean=…, std=…``
    ``MixUp(alpha=0.2)``      ``mixup=0.2``; of whole batches
    ``CutMix(alpha=1.0)``     ``cutmix=1.0``, likewise; both: ``RandomChoice`` of the two
    ``RandomErasing``         ``erase=0.25``: 2 to 33 % of the area, 0.3 to 3.3 times as tall as wide, value 0
    ========================  =====================================================================================

    Draws depend on the loader's seed, the epoch, the batch's number and the sample's id. On a CUDA device kernels make
    the batches, elsewhere loader threads; both give the same bits. With ``scale`` or ``resize`` images in files may have
    any size, and a cache must keep them encoded.

    Args:
        dtype: of ``batch.data``: ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"uint8"``, or torch's or NumPy's.
        mean, std: a number or one a channel, in units of 0 to 1. None: 0 and 1. Not for ``uint8``.
        layout: ``"NCHW"``, ``"NHWC"``, or ``"channels_last"``: the first's shape, the second's memory order.
        crop: ``(height, width)`` or one number; None: the image's size.
        padding: pixels of 0 on every side before the crop.
        random_crop: False crops the centre.
        scale: ``(least, most)`` of an image's area, above 0 and up to 1: a random part is resized to ``crop``.
        ratio: ``(least, most)`` width over height of that part; None: (3/4, 4/3).
        resize: ``(height, width)`` or one number, at least ``crop``: images are scaled to cover it before the crop.
        flip: chance of a mirror image, left to right.
        brightness, contrast, saturation: b draws a factor from max(0, 1 − b) to 1 + b, ``(least, most)`` from that.
        hue: h turns by −h to h of the circle; ``(least, most)`` likewise, −0.5 to 0.5.
        jitter: chance that these four happen.
        grayscale: chance that an image becomes grey, after them.
        augment: ``"trivial"``, ``"rand"``, or a dict: ``{"name": "rand", "ops": 2, "magnitude": 9, "bins": 31, "fill":
            0}``. ``bins``: number of strengths, 2 to 65536; ``magnitude``: the one of ``"rand"``, below ``bins``;
            ``ops``: operations in a row, 0 to 100; ``fill``: level outside the image, 0 to 255, or one a channel.
        image, masks, boxes: fields of dicts: the picture; masks that go its way, by the nearest pixel; boxes (left,
            top, right, bottom) in pixels, clipped. ``{"boxes": ("labels", "area")}`` says what has a value a box.
        retouch: what changes colours and augments: ``"auto"``: the CUDA device if it makes the images, else loader
            threads; ``"threads"``: always these.
        mixup, cutmix: alpha of mixup and of CutMix, 0 to 1000. 0: off.
        mix_chance: chance that a batch is mixed.
        switch: chance of CutMix where both are asked for.
        erase: chance that a rectangle becomes 0 after normalising.

    Colours and ``augment`` need 1 or 3 channels. Chances are 0 to 1.

    Raises:
        SettingsError: a value makes no sense; when the loader is made: it does not fit the dataset's images.
    """

    __slots__ = ("_augment", "_crop", "_jitter", "_layout", "_named", "_retouch", "_settings")

    def __init__(
        self,
        dtype: literals.PixelType | torch.dtype | numpy.dtype[Any] | type = "float32",
        *,
        mean: Any = None,
        std: Any = None,
        layout: literals.Layout = "NCHW",
        crop: int | tuple[int, int] | None = None,
        padding: int = 0,
        random_crop: bool = True,
        flip: float = 0.0,
        erase: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mix_chance: float = 1.0,
        switch: float = 0.5,
        scale: tuple[float, float] | None = None,
        ratio: tuple[float, float] | None = None,
        resize: int | tuple[int, int] | None = None,
        brightness: float | tuple[float, float] = 0.0,
        contrast: float | tuple[float, float] = 0.0,
        saturation: float | tuple[float, float] = 0.0,
        hue: float | tuple[float, float] = 0.0,
        jitter: float = 1.0,
        grayscale: float = 0.0,
        augment: literals.Augment | dict[str, Any] | None = None,
        retouch: literals.Retouch = "auto",
        image: str | None = None,
        masks: Sequence[str] = (),
        boxes: Sequence[str] | Mapping[str, Sequence[str]] = (),
    ) -> None:
        name = getattr(dtype, "__name__", None) if isinstance(dtype, type) else str(dtype).removeprefix("torch.")
        self._layout = choice("layout", layout, "NCHW", "NHWC", "channels_last")
        self._settings: dict[str, Any] = {
            "dtype": _SHORT[choice("dtype", name, *_SHORT)],
            "channels_first": self._layout == "NCHW",
            "crop": size("crop", crop),
            "padding": whole("padding", padding, 0, 2**31),
            "random_crop": flag("random_crop", random_crop),
            "flip": real("flip", flip, 0.0, 1.0),
            "erase": real("erase", erase, 0.0, 1.0),
            "mean": _numbers("mean", mean),
            "std": _numbers("std", std),
            "mix": _mix(mixup, cutmix, mix_chance, switch),
        }
        self._retouch = choice("retouch", retouch, "auto", "threads")
        self._named = beside.named(image, masks, boxes)
        _refuse_beside(self._named, augment, mixup, cutmix)
        _refuse_levels(self._settings["mean"], self._settings["std"])
        factors = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        #: The engine's settings of changes of colours; None without.
        self._jitter = _jitter({**{name: _factors(name, f) for name, f in factors.items()}, "hue": _turns(hue)}, jitter, grayscale)
        #: The engine's settings of a crop of images of any size; None without.
        self._crop = _resized_crop(self._settings, scale, ratio, resize)
        if self._crop is not None:
            # It has the size then, and what follows it neither crops nor pads.
            self._settings |= {"crop": None, "random_crop": False}
        #: The engine's settings of automatic augmentation; None without.
        self._augment = _augment(augment)
        if self._augment is not None:
            # It comes after the crop and the flip, which are left to it.
            nothing = {"crop": None, "padding": 0, "random_crop": False, "flip": 0.0}
            self._augment |= {name: self._settings[name] for name in nothing}
            self._settings |= nothing

    def __repr__(self) -> str:
        s = self._settings | (self._augment or {})
        name = next(long for long, short in _SHORT.items() if short == s["dtype"])
        said = [repr(name), *(f"{key}={s[key]}" for key in ("mean", "std", "crop", "padding", "flip", "erase") if s[key])]
        if self._crop is None:
            said += ["random_crop=False"] if not s["random_crop"] else []
        else:
            said += _said(self._crop)
        if s["mix"] is not None:
            said += [f"{'mix_chance' if key == 'chance' else key}={value}" for key, value in s["mix"].items()]
        if self._jitter is not None:
            names = {"chance": "jitter"}
            said += [f"{names.get(key, key)}={value}" for key, value in self._jitter.items() if value]
        if self._augment is not None:
            said += [f"augment={_asked(self._augment)}"]
        said += self._named.said()
        if self._retouch != "auto":
            said += [f"retouch={self._retouch!r}"]
        return f"lossfeed.ImageTransform({', '.join([*said, f'layout={self._layout!r}'])})"

    @property
    def _one_size(self) -> bool:
        """True if images of any size become one size: they are resized, or cut out as they are."""
        return self._crop is not None or self._cuts

    @property
    def _cuts(self) -> bool:
        """True if a crop without resizing can be made of encoded images as they are. Colours change before it, and
        padding stays black."""
        plain = self._augment or self._settings
        return self._crop is None and self._jitter is None and plain["crop"] is not None and not plain["padding"]

    @property
    def _alone(self) -> bool:
        """True if pixels of the picture alone change their place."""
        plain = self._augment or self._settings
        return not self._named.beside and (self._crop is not None or plain["crop"] is not None or plain["flip"] > 0)

    def _steps(self, source: _native.Source) -> Steps:
        """The engine's settings of the transform, the crop, the jitter and the augmentation."""
        settings, crop, augment = self._settings, self._crop, self._augment
        if source.images and self._cuts:
            plain, none = augment or settings, {"crop": None, "random_crop": False}
            crop = {"size": plain["crop"], "of": {"cut": {"random": plain["random_crop"]}}}
            settings, augment = settings | none, None if augment is None else augment | none
        return Steps(settings, crop, self._jitter, augment)

    def _fit(self, source: _native.Source) -> _native.ImageTransform:
        """Checked against a dataset."""
        shape = tuple(source.spec[1])
        if len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] > 16:
            raise SettingsError(
                f"transform: samples of shape {shape} have channels first, and an ImageTransform takes (height, width, channels): "
                "give each as image.permute(1, 2, 0), an array of all as x.transpose(0, 2, 3, 1)"
            )
        settings, *early = self._steps(source)
        crop, jitter, augment = (None if step is None else json.dumps(step) for step in early)
        return _native.ImageTransform(source, json.dumps(settings), crop, jitter, augment, self._retouch == "auto")


class Steps(NamedTuple):
    """The engine's settings of each step."""

    settings: dict[str, Any]
    crop: dict[str, Any] | None
    jitter: dict[str, Any] | None
    augment: dict[str, Any] | None


def _refuse_beside(named: beside.Named, augment: Any, mixup: Any, cutmix: Any) -> None:
    """Refuses what masks and boxes cannot follow."""
    if not named.beside:
        return
    what = "masks=" if named.masks else "boxes="
    if augment is not None:
        raise SettingsError(
            f"augment={augment!r} with {what}: its rotations and shears would move the picture alone: remove one; "
            "crops, flip, colours and erase go together with masks and boxes"
        )
    if mixup or cutmix:
        raise SettingsError(f"mixup= and cutmix= with {what}: they would mix the pictures alone: remove one")


def transform(value: Any) -> ImageTransform:
    """An image transform; what is none is refused."""
    if isinstance(value, ImageTransform):
        return value
    raise SettingsError(
        f"transform={value!r} must be a lossfeed.ImageTransform, or a function of batch.data (torchvision's v2 transforms "
        "are): make an object of a class first"
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
    except (TypeError, ValueError, OverflowError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)) or not numbers:
        raise SettingsError(f"{name}={value!r} must be a finite number, or one for each channel")
    return numbers


def _refuse_levels(mean: list[float], std: list[float]) -> None:
    """Refuses numbers in units of 0 to 255. No mean of values from 0 to 1 lies beyond 1, and no spread near 10."""
    for name, values, most in (("mean", mean, 1.0), ("std", std, 10.0)):
        for value in values:
            if abs(value) > most:
                raise SettingsError(
                    f"{name}={value:g}: mean and std are in units of 0 to 1, not of 0 to 255: write {value:g}/255 = "
                    f"{value / 255:.4g}"
                )


def _resized_crop(plain: dict[str, Any], scale: Any, ratio: Any, resize: Any) -> dict[str, Any] | None:
    """The crop of images of any size that the keywords ask for, beside the `plain` ones."""
    if scale is None and resize is None:
        if ratio is not None:
            raise SettingsError(f"ratio={ratio!r} is the shape of random parts: give their scale=(0.08, 1.0) too")
        return None
    asked = f"scale={scale!r}" if scale is not None else f"resize={resize!r}"
    if plain["crop"] is None:
        raise SettingsError(f"{asked} needs crop=, the size of the result, as in crop=224")
    if plain["padding"]:
        raise SettingsError(f"{asked} with padding={plain['padding']}: only a crop without resizing pads; leave one out")
    if scale is None:
        if ratio is not None:
            raise SettingsError(f"ratio={ratio!r} with resize={resize!r}, which keeps the aspect ratio: leave one out")
        found = find_resize(resize, plain["crop"])
        assert found is not None
        return {"size": plain["crop"], "of": {"covering": {"to": found.to, "random": plain["random_crop"]}}}
    if resize is not None:
        raise SettingsError(f"scale={scale!r} with resize={resize!r}: a part of any area is resized to crop; leave one out")
    if not plain["random_crop"]:
        raise SettingsError(
            f"scale={scale!r} with random_crop=False: parts are drawn at random; for evaluation use resize=256, "
            "crop=224, random_crop=False"
        )
    part = {"scale": _span("scale", scale, 1.0), "ratio": _span("ratio", (3 / 4, 4 / 3) if ratio is None else ratio, 1e3)}
    return {"size": plain["crop"], "of": {"part": part}}


def _jitter(changes: dict[str, Any], chance: Any, grayscale: Any) -> dict[str, Any] | None:
    """The engine's settings of changes of colours; None where there is none."""
    chance, grayscale = real("jitter", chance, 0.0, 1.0), real("grayscale", grayscale, 0.0, 1.0)
    if chance < 1 and not any(changes.values()):
        raise SettingsError(f"jitter={chance:g} is the probability of a colour change, and no change is given: add one, such as brightness=0.4")
    if not (chance and any(changes.values())) and not grayscale:
        return None
    return {**changes, "chance": chance, "grayscale": grayscale}


def _mix(mixup: Any, cutmix: Any, chance: Any, switch: Any) -> dict[str, float] | None:
    """The engine's settings of mixing; None where there is none."""
    mixup, cutmix = real("mixup", mixup, 0.0, 1000.0), real("cutmix", cutmix, 0.0, 1000.0)
    chance, switch = real("mix_chance", chance, 0.0, 1.0), real("switch", switch, 0.0, 1.0)
    if chance < 1 and not (mixup or cutmix):
        raise SettingsError(f"mix_chance={chance:g} is the probability of mixing, and no mixing is given: add mixup=0.2 or cutmix=1.0")
    if switch != 0.5 and not (mixup and cutmix):
        raise SettingsError(f"switch={switch:g} is the probability of CutMix, and needs both mixup= and cutmix=: give both")
    return {"mixup": mixup, "cutmix": cutmix, "chance": chance, "switch": switch} if chance and (mixup or cutmix) else None


#: Options of automatic augmentation, by its name.
_OPTIONS = {"rand": ("ops", "magnitude", "bins", "fill"), "trivial": ("bins", "fill")}


def _augment(value: Any) -> dict[str, Any] | None:
    """The engine's settings of automatic augmentation; None where there is none."""
    if value is None:
        return None
    options = dict(value) if isinstance(value, dict) else {"name": value}
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise SettingsError(
            f"augment={value!r} must be 'rand' or 'trivial', or a dict with such a name: {{'name': 'rand', 'magnitude': 9}}"
        )
    allowed = _OPTIONS[choice("augment", name, *_OPTIONS)]
    for option in options:
        if option not in allowed:
            raise SettingsError(f"augment={name!r} has no option {option!r}: use {', '.join(allowed[:-1])} or {allowed[-1]}")
    bins = whole("augment: bins", options.get("bins", 31), 2, 1 << 16)
    fill = options.get("fill", 0)
    # Nothing in it is refused as what it is: no level.
    levels = [whole("augment: fill", v, 0, 255) for v in (fill if isinstance(fill, (tuple, list)) and fill else [fill])]
    if name == "trivial":
        return {"of": "trivial", "bins": bins, "fill": levels}
    ops = whole("augment: ops", options.get("ops", 2), 0, 100)
    magnitude = whole("augment: magnitude", options.get("magnitude", 9), 0, bins - 1, f": it is one of bins={bins}")
    return {"of": {"rand": {"ops": ops, "magnitude": magnitude}}, "bins": bins, "fill": levels} if ops else None


def _asked(augment: dict[str, Any]) -> dict[str, Any]:
    """The keyword that asked for it."""
    rest = {"bins": augment["bins"], "fill": augment["fill"]}
    return {"name": "trivial", **rest} if augment["of"] == "trivial" else {"name": "rand", **augment["of"]["rand"], **rest}


def _factors(name: str, value: Any) -> tuple[float, float] | None:
    """What a factor is drawn between."""
    if isinstance(value, (tuple, list)):
        ends = _ends(name, value, 0.0, 1e6)
    else:
        by = real(name, value, 0.0, 1e6)
        ends = (max(0.0, 1.0 - by), 1.0 + by)
    return None if ends == (1.0, 1.0) else ends


def _turns(value: Any) -> tuple[float, float] | None:
    """What a turn of the hue is drawn between."""
    if isinstance(value, (tuple, list)):
        ends = _ends("hue", value, -0.5, 0.5)
    else:
        by = real("hue", value, 0.0, 0.5)
        ends = (-by, by)
    return None if ends == (0.0, 0.0) else ends


def _ends(name: str, value: Any, least: float, most: float) -> tuple[float, float]:
    """Two numbers within bounds, the least first."""
    if len(value) == 2:
        low, high = (real(name, end, least, most) for end in value)
        if low <= high:
            return low, high
    raise SettingsError(f"{name}={value!r} must be one number, or two, the least and the most, {least:g} to {most:g}")


def _span(name: str, value: Any, most: float) -> tuple[float, float]:
    """(least, most), both above 0."""
    pair = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2:
        raise SettingsError(f"{name}={value!r} must be two numbers, the least and the most")
    least, largest = (real(name, end, 0.0, most) for end in pair)
    if not 0.0 < least <= largest:
        raise SettingsError(f"{name}={value!r} must be two numbers above 0, the least first")
    return least, largest


def _said(crop: dict[str, Any]) -> list[str]:
    """The keywords that asked for it."""
    part, covering = crop["of"].get("part"), crop["of"].get("covering")
    said = [f"crop={crop['size']}"]
    if part is not None:
        return [*said, f"scale={part['scale']}", f"ratio={part['ratio']}"]
    return [*said, f"resize={covering['to']}", *([] if covering["random"] else ["random_crop=False"])]

"""torchvision's transforms as ``transform=``: called with one sample at a time, since a call draws once for all it gets."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Mapping
from functools import partial
from types import CellType, ModuleType
from typing import Any, Callable, Iterator

from .._base.errors import SettingsError, TrainingWarning
from .._base.memory import is_tensor
from .._base.signals import named
from .._data.packing import Leaf

#: Transforms of torchvision that draw nothing, and make of a batch of images what they make of each.
_STILL = frozenset(
    "CenterCrop ConvertImageDtype Grayscale Identity Normalize Pad RGB Resize ToDtype ToImage ToPureTensor".split()
)
#: Containers that call one step after the other.
_CHAINS = ("Compose", "Sequential")
_TORCHVISION = "torchvision.transforms"
#: Names of transforms that move pixels.
_MOVING = re.compile("Crop|Flip|Rotat|Affine|Perspective|Elastic|Zoom|Resize|Jitter$(?<!ColorJitter)")
#: What a sample has not.
_NOTHING = object()


def of_batches(transform: Any, framework: str) -> Callable[..., Any]:
    """What changes a batch's data: a function of the user's as it is, or a transform of torchvision as :class:`PerImage`."""
    steps = list(_steps(transform))
    names = [type(step).__name__ for step in steps]
    mixing = next((name for name in names if name in ("MixUp", "CutMix")), None)
    if mixing is not None:
        raise SettingsError(
            f"transform={mixing} mixes labels too, but a transform gets only batch.data: write images, labels = "
            "mix(*batch) "
            "in the loop, and loader.cross_entropy(model(images), batch, target=labels)"
        )
    if not _is_torchvision(transform):
        held = next(_held(transform), None)
        if held is not None:
            warnings.warn(
                f"transform={named(transform)} is called once a batch, and {held}, which it has, draws once per call, "
                "so all images of a batch change alike unless it loops over them. torchvision's own transforms, "
                "transform=v2.Compose([…]), are applied image by image",
                TrainingWarning,
                stacklevel=6,  # whoever makes the loader
            )
        return transform  # type: ignore[no-any-return]
    if framework != "torch":
        raise SettingsError(f"transform={names[0]} takes tensors, and framework={framework!r} makes arrays: use framework='torch'")
    if "ToTensor" in names and "ToPILImage" not in names:
        raise SettingsError(
            "transform=ToTensor takes PIL images, and images come as uint8 tensors (C, H, W): write "
            "v2.ToDtype(torch.float32, scale=True) in its place"
        )
    return PerImage(transform)


class PerImage:
    """A transform of torchvision for batches. Steps at its end that draw nothing get the batch: the result is the same."""

    def __init__(self, transform: Any) -> None:
        self.__name__ = type(transform).__name__
        chained = self.__name__ in _CHAINS and type(transform).__module__.startswith((_TORCHVISION, "torch.nn"))
        steps = list(_inside(transform)) if chained else [transform]
        drawing = len(steps)
        while drawing and _is_still(steps[drawing - 1]):
            drawing -= 1
        self._each, self._whole = steps[:drawing], steps[drawing:]
        #: True if pixels change their place.
        self.moves = any(_MOVING.search(type(step).__name__) for step in _steps(transform))

    def __call__(self, data: Any, tree: Any, rows: int) -> Any:
        """A batch's `data` after the transform: a tensor of images, or a tree of parts with `rows` rows each, made as `tree`
        is; None of what a ``collate_fn`` made."""
        if not is_tensor(data):
            samples = self._samples(data, tree, rows)
            return self._joined([_called(self._each + self._whole, sample) for sample in samples], samples, data)
        if data.ndim == 4 and data.shape[1] > 4 and data.shape[3] in (1, 3, 4):
            raise SettingsError(
                f"transform={self.__name__} takes images (C, H, W), and these samples are {tuple(data.shape[1:])}: make the "
                "dataset's channels first, x.transpose(0, 3, 1, 2) of an array, x.permute(0, 3, 1, 2) of a tensor"
            )
        samples = list(data)
        made = [_called(self._each, sample) for sample in samples] if self._each else samples
        if not all(is_tensor(image) and image.shape == made[0].shape for image in made):
            return self._joined([_called(self._whole, image) for image in made], samples, data)
        batch = _called(self._whole, self._joined(made, samples, data))
        # As stacked images are: without torchvision's subclass.
        return batch.as_subclass(type(data)) if is_tensor(batch) else batch

    def _samples(self, data: Any, tree: Any, rows: int) -> list[Any]:
        """A batch's samples. Their numbers are Python's: of a sample's tensors torchvision takes the first for the image."""
        if isinstance(data, Mapping) and not isinstance(tree, Leaf):
            of = tree if isinstance(tree, Mapping) else {}
            parts = {key: self._samples(value, of.get(key, _NOTHING), rows) for key, value in data.items()}
            return [{key: part[i] for key, part in parts.items()} for i in range(rows)]
        if isinstance(tree, (tuple, list)) and not isinstance(tree, Leaf):
            columns = [self._samples(value, part, rows) for value, part in zip(data, tree, strict=True)]
            return [_like(data, [column[i] for column in columns]) for i in range(rows)]
        if tree is None or not hasattr(data, "__len__") or len(data) != rows:
            raise SettingsError(
                f"transform={self.__name__} is applied to one sample at a time, and a batch of {rows} has a "
                f"{type(data).__name__} that is not one per sample: apply it in the dataset, or to each item in the "
                "collate_fn"
            )
        return data.tolist() if is_tensor(data) and data.ndim == 1 else list(data)

    def _joined(self, made: list[Any], given: list[Any], whole: Any) -> Any:
        """What was made of each sample, as a batch; `whole`, which they were `given` of, where nothing changed."""
        if all(map(operator.is_, made, given)):
            return whole
        first = made[0]
        if isinstance(first, Mapping):
            return {key: self._joined([m[key] for m in made], *_part(given, whole, key)) for key in first}
        if isinstance(first, (tuple, list)):
            return _like(first, [self._joined([m[k] for m in made], *_part(given, whole, k)) for k in range(len(first))])
        import torch

        if isinstance(first, (bool, int, float)):
            return torch.tensor(made)
        if not is_tensor(first):
            return None if first is None else made
        for i, image in enumerate(made):
            shape = tuple(image.shape) if is_tensor(image) else type(image).__name__
            if shape != tuple(first.shape):
                raise SettingsError(
                    f"transform={self.__name__} made {tuple(first.shape)} of image 0 of a batch and {shape} of image {i}: end it "
                    "with v2.Resize((height, width)) or v2.CenterCrop(size), a batch's images have one size"
                )
        return torch.stack(made)


def _called(steps: list[Any], value: Any) -> Any:
    for step in steps:
        value = step(value)
    return value


def _like(parts: Any, made: list[Any]) -> Any:
    """A tuple or list as `parts` is one."""
    return type(parts)(*made) if hasattr(parts, "_fields") else type(parts)(made)


def _part(given: list[Any], whole: Any, key: Any) -> tuple[list[Any], Any]:
    """A part of what the transform was given, where it had one of that name."""
    try:
        return [sample[key] for sample in given], whole[key]
    except (KeyError, IndexError, TypeError):
        return [_NOTHING] * len(given), None


def _inside(transform: Any) -> Iterator[Any]:
    """The transforms that a container has."""
    inside = getattr(transform, "transforms", None)
    if not isinstance(inside, (list, tuple)):
        inside = transform.children() if hasattr(type(transform), "named_children") else ()
    return iter(inside)


def _steps(transform: Any) -> Iterator[Any]:
    """A transform and all that are in it."""
    yield transform
    for step in _inside(transform):
        yield from _steps(step)


def _is_torchvision(transform: Any) -> bool:
    """Whether it is one of torchvision's, derived from one, or a Sequential with one, scripted or not."""
    kind = type(transform)
    if any(base.__module__.startswith(_TORCHVISION) for base in kind.__mro__):
        return True
    name = kind.__name__
    if kind.__module__.startswith("torch.jit"):
        name = getattr(transform, "original_name", "")
        if name and _TORCHVISION in str(transform._c._type()):
            return True
    return name == "Sequential" and any(map(_is_torchvision, _inside(transform)))


def _is_still(step: Any) -> bool:
    return type(step).__module__.startswith(_TORCHVISION) and type(step).__name__ in _STILL


def _held(function: Any) -> Iterator[str]:
    """Names of torchvision's drawing transforms that a user's function or object names or holds."""
    values: list[Any] = []
    for owner in (function, getattr(function, "__self__", None)):
        values += [*getattr(owner, "__dict__", {}).values(), *_inside(owner)]
    if isinstance(function, partial):
        values += [*function.args, *function.keywords.values()]
        function = function.func
    for part in (function, getattr(type(function), "__call__", None), getattr(function, "forward", None)):
        values += _used_by(part)
    for value in values:
        steps = (value,) if isinstance(value, type) else _steps(value) if _is_torchvision(value) else ()
        for step in steps:
            kind = step if isinstance(step, type) else type(step)
            if kind.__module__.startswith(_TORCHVISION) and kind.__name__ not in (*_STILL, *_CHAINS):
                yield kind.__name__


def _used_by(function: Any) -> list[Any]:
    """What a function finds under the names in its code."""
    code, of = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if code is None:
        return []
    values = [of[name] for name in code.co_names if name in of]
    # v2.RandomCrop(32)(images): a module, and a name in it.
    modules = [vars(value) for value in values if isinstance(value, ModuleType) and value.__name__.startswith(_TORCHVISION)]
    values += [module[name] for module in modules for name in code.co_names if name in module]
    values += [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    return values + [*(function.__defaults__ or ())]

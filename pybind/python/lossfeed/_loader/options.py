"""Everything that a loader was asked for, one field a keyword; three topics check themselves (:mod:`.topics`)."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping

from .._base import checks, literals
from .._batch.packed import Packed
from .._transform.image import ImageTransform
from .topics import Cache, Reading, Sampling, Topic


@dataclass(frozen=True, kw_only=True)
class Options:
    """The keywords of :class:`lossfeed.Loader`, as they were given."""

    data: Any = None
    dataset: Any = None
    batch_size: int = 1
    shuffle: bool | None = None
    batch_sampler: Iterable[Iterable[int]] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    generator: Any = None
    pin_memory_device: str = ""
    in_order: bool = True
    ids: Any = None
    weights: Any = None
    pad: float | literals.Join | Packed | Mapping[str, float | literals.Join | Packed] | None = None
    device: Any = "cpu"
    cache: Cache = Cache()
    sampling: Sampling = Sampling()
    reading: Reading = Reading()
    transform: ImageTransform | Callable[[Any], Any] | None = None
    seed: int | None = None
    rank: int | None = None
    world_size: int | None = None
    job: str | None = None
    stats: bool = True
    framework: literals.Framework = "auto"
    journal: str | os.PathLike[str] | None = None

    @property
    def source(self) -> Any:
        """The dataset, by either of its names."""
        return self.dataset if self.data is None else self.data

    def given(self) -> dict[str, Any]:
        """The flat keywords that make a loader with these options: those that are not as by default."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Topic):
                found |= value._given()
            elif checks.differs(value, field.default):
                found[field.name] = value
        return found

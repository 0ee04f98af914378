"""The words that keywords take, for signatures of your own: ``def train(sampler: lossfeed.typing.Sampler)``."""

from ._words import (
    Augment,
    CacheForm,
    CopyPath,
    Framework,
    Join,
    Layout,
    LossKind,
    Mode,
    OnError,
    PixelType,
    Policy,
    Ranks,
    Reduction,
    Sampler,
    Score,
    Sequence,
)

__all__ = [
    "Augment",
    "CacheForm",
    "CopyPath",
    "Framework",
    "Join",
    "Layout",
    "LossKind",
    "Mode",
    "OnError",
    "PixelType",
    "Policy",
    "Ranks",
    "Reduction",
    "Sampler",
    "Score",
    "Sequence",
]

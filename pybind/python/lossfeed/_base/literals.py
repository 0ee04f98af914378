"""The words that keywords take, so that a misspelt one does not type-check; ``lossfeed.typing`` shows them to users.
``tests/python/test_words.py`` holds them to what the engine knows."""

from __future__ import annotations

from typing import Literal

#: How one sample's positions make up its loss.
Sequence = Literal["mean", "max", "sum"]
Reduction = Literal["mean", "sum", "none"]
LossKind = Literal["bce_with_logits", "mse", "l1", "huber", "smooth_l1"]

Sampler = Literal[
    "uniform", "auto", "replay", "echo", "cost-aware", "importance", "pads", "iis", "infobatch", "selective", "curriculum",
    "ods", "shade-as-coded",
]
Policy = Literal["lru", "fifo", "minio", "shade", "importance", "clrfu", "icache", "lobster", "belady"]
Score = Literal["gradient_norm", "loss", "entropy", "batch_rank", "batch"]
CacheForm = Literal["auto", "encoded", "decoded"]
CopyPath = Literal["auto", "gathered", "batched", "mapped"]
CacheShare = Literal["node"]
OnError = Literal["raise", "skip", "substitute"]
Ranks = Literal["own", "exchange"]
Order = Literal["node"]
Framework = Literal["auto", "torch", "numpy"]
#: Beside any number.
Workers = Literal["auto"]

PixelType = Literal["float32", "float16", "bfloat16", "uint8"]
Augment = Literal["trivial", "rand"]
#: Who changes colours and augments.
Retouch = Literal["auto", "threads"]
Join = Literal["nested", "packed"]
#: Which row a packed sample gets, and what becomes of one that is longer than a row.
Place = Literal["best-fit", "in-order"]
Long = Literal["raise", "split", "truncate"]
Mode = Literal["auto", "rgb", "gray"]
Layout = Literal["NCHW", "NHWC", "channels_last"]

"""What the demonstration job can be asked for, checked before anything is opened."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .._base.errors import SettingsError
from .._loader.keywords import policy as known_policy
from .._native import default_policy, sampler_options, sampler_problem

_OPTIONS = dict(sampler_options())
# Name a user types → the policy that goes with it when none is named. ``shade`` is the ``pads`` sampler.
# ``auto`` takes none: it chooses its own.
SAMPLERS: dict[str, str | None] = {
    name: None if name == "auto" else default_policy("pads" if name == "shade" else name) for name in (*_OPTIONS, "shade")
}
AUGMENTATIONS = ("none", "crop", "crop-flip")
# Two controls of what scores are worth: echo reuses what is cached without any, and with scores=batch all samples of a
# batch have one.
DEFAULT_COMPARE = "uniform+minio,shade,cost-aware,echo,replay,replay:scores=batch"
_LOADER_KEYS: dict[str, type] = {"smoothing": float, "score": str, "scores": str}


class OptionError(ValueError):
    """An option has a value that cannot be honoured; the message says which, why, and what would do."""


@dataclass(frozen=True)
class Recipe:
    """One column of the comparison: a sampler, a cache policy, and their settings."""

    label: str
    sampler: str
    policy: str | None
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    loader_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Reads ``SAMPLER[+POLICY][:key=value…]``, for example ``shade:repeats=2`` or ``uniform+lru``.

        ``shade`` is the ``pads`` sampler with the ``shade`` policy, as in the paper.
        """
        label = text.strip()
        head, *settings = label.split(":")
        name, _, policy = head.partition("+")
        if name not in SAMPLERS:
            raise OptionError(f"--compare: no sampler is called {name!r}; there are {', '.join(SAMPLERS)}")
        try:
            chosen = known_policy(policy or SAMPLERS[name])
        except SettingsError as error:
            raise OptionError(f"--compare: {error}") from None
        sampler = "pads" if name == "shade" else name
        known = _OPTIONS[sampler]
        sampler_options: dict[str, Any] = {}
        loader_options: dict[str, Any] = {}
        for setting in settings:
            key, eq, value = setting.partition("=")
            if not eq or key not in (*known, *_LOADER_KEYS):
                allowed = ", ".join([*known, *_LOADER_KEYS])
                raise OptionError(f"--compare {label}: {setting!r} is not KEY=VALUE with one of the keys {allowed}")
            if key in known:
                sampler_options[key] = _option(label, sampler, key, value)
            else:
                loader_options[key] = _convert(f"--compare {label}: {key}", value, _LOADER_KEYS[key])
        if sampler_options.get("short"):
            raise OptionError(f"--compare {label}: short=1 ends epochs early, and runs take equal steps: remove it")
        return cls(label, sampler, chosen, sampler_options, loader_options)


@dataclass(frozen=True)
class Options:
    """Everything `lossfeed train` takes. ``None`` means "decided by the data set"; see :func:`settled`."""

    data: str | None = None
    compare: tuple[Recipe, ...] = ()
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    cache_fraction: float | None = 0.2
    cache_bytes: int | None = None
    seeds: int = 1
    seed: int = 0
    latency_s: float | None = None
    bandwidth_bytes_per_s: int | None = None
    chaos: int | None = None
    workers: int | None = None
    lr: float = 0.05
    width: int | None = None
    depth: int = 1
    wrong_labels: float = 0.0
    device: str | None = None
    resize: tuple[int, int] | None = None
    augment: str | None = None
    work_dir: Path = Path()
    json: bool = False
    quiet: bool = False
    threads: int | None = None
    journal: Path | None = None

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Options:
        """Checks and converts what the command line gathered. Missing and ``None`` entries take the default.

        Raises :class:`OptionError` for an unknown name or a value out of range.
        """
        left = {k: v for k, v in given.items() if v is not None}
        take = left.pop
        compare = take("compare", DEFAULT_COMPARE)
        if isinstance(compare, str):
            compare = compare.split(",")
        recipes = tuple(Recipe.parse(item) for item in compare if str(item).strip())
        if not recipes:
            raise OptionError("--compare names no sampler; try " + DEFAULT_COMPARE)
        twice = {r.label for r in recipes if [s.label for s in recipes].count(r.label) > 1}
        if twice:
            raise OptionError(f"--compare names {', '.join(sorted(twice))} more than once")
        fraction, size = parse_cache(take("cache", "20%"))
        resize = take("resize", None)
        options = cls(
            data=take("data", None) or None,
            compare=recipes,
            epochs=_at_least(1, "--epochs", take("epochs", None)),
            steps=_at_least(1, "--steps", take("steps", None)),
            batch_size=_at_least(2, "--batch-size", take("batch_size", None)),
            cache_fraction=fraction,
            cache_bytes=size,
            seeds=_at_least(1, "--seeds", take("seeds", 1)),
            seed=_at_least(0, "--seed", take("seed", 0)),
            latency_s=_optional(parse_duration, "--latency", take("latency", None)),
            bandwidth_bytes_per_s=_optional(parse_bandwidth, "--bandwidth", take("bandwidth", None)),
            chaos=_at_least(0, "--chaos", take("chaos", None)),
            workers=_at_least(0, "--workers", take("workers", None)),
            lr=_positive("--lr", take("lr", 0.05)),
            width=_at_least(1, "--width", take("width", None)),
            depth=_at_least(1, "--depth", take("depth", 1)),
            wrong_labels=_share("--wrong-labels", take("wrong_labels", 0.0)),
            device=take("device", None),
            resize=_optional(parse_size, "--resize", resize),
            augment=_optional(_augmentation, "--augment", take("augment", None)),
            work_dir=Path(take("work_dir", None) or default_work_dir()).expanduser(),
            json=bool(take("json", False)),
            quiet=bool(take("quiet", False)),
            threads=_at_least(1, "--threads", take("threads", None)),
            journal=None if (folder := take("journal", None)) is None else Path(folder).expanduser(),
        )
        if left:
            known = sorted(
                {f.name for f in fields(cls)} - {"cache_fraction", "cache_bytes", "latency_s", "bandwidth_bytes_per_s"}
                | {"cache", "latency", "bandwidth"}
            )
            raise OptionError(f"unknown option {sorted(left)[0]!r}; there are {', '.join(known)}")
        return options


def default_work_dir() -> Path:
    """Where the bundled data is kept: ``$XDG_CACHE_HOME/lossfeed``, else ``~/.cache/lossfeed``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lossfeed"


def parse_duration(name: str, value: Any) -> float:
    """Seconds from a number of seconds or a string such as ``20ms``, ``150us``, ``1.5s``."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*(us|ms|s)?\s*", value)
        if not match:
            raise OptionError(f"{name}: {value!r} is not a duration; write 20ms, 150us or 0.5s")
        value = _number(name, match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0}[match[2]]
    seconds = _number(name, value)
    if not 0 <= seconds <= 60:
        raise OptionError(f"{name}: {seconds:g} s is outside 0 … 60 s")
    return seconds


def parse_bytes(name: str, value: Any) -> int:
    """Bytes from a number or a string such as ``64MiB``, ``50MB`` or ``50MB/s``."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)(i?)(b?)(/s)?\s*", value, re.IGNORECASE)
        if not match:
            raise OptionError(f"{name}: {value!r} is not a number of bytes; write 64MiB, 50MB or 1000000")
        power = " kmgt".index(match[2].lower()) if match[2] else 0
        value = _number(name, match[1]) * (1024 if match[3] else 1000) ** power
    size = _number(name, value)
    if not 1 <= size < 2**63:
        raise OptionError(f"{name}: {size:g} bytes is not a positive 64-bit size")
    return int(size)


def parse_bandwidth(name: str, value: Any) -> int:
    """Bytes a second, as :func:`parse_bytes`; 0 is unlimited."""
    return 0 if str(value).strip() in ("0", "0.0") else parse_bytes(name, value)


def parse_cache(value: Any) -> tuple[float | None, int | None]:
    """``(fraction, None)`` or ``(None, bytes)`` from ``20%``, ``0.2`` or ``512MiB``; a number ≤ 1 is a fraction."""
    text = str(value).strip()
    if text.endswith("%"):
        fraction = _number("--cache", text[:-1]) / 100
    elif re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", text) and _number("--cache", text) <= 1:
        fraction = _number("--cache", text)
    elif text.startswith("-"):
        raise OptionError(f"--cache: {text} is negative; write a share of the data such as 20%, or a size such as 512MiB")
    else:
        return None, parse_bytes("--cache", text)
    if not 0 < fraction <= 1:
        raise OptionError(f"--cache: {text} of the data is outside 0 … 100 %; the cache must hold at least one sample")
    return fraction, None


def parse_size(name: str, value: Any) -> tuple[int, int]:
    """``(height, width)`` from ``224``, ``224x160`` or a pair."""
    parts = re.split("[xX]", str(value)) if not isinstance(value, (tuple, list)) else list(value)
    parts = parts * 2 if len(parts) == 1 else parts
    if len(parts) != 2:
        raise OptionError(f"{name}: {value!r} is not HEIGHTxWIDTH")
    height, width = (_at_least(1, name, p) for p in parts)
    return height, width


def _augmentation(name: str, value: str) -> str:
    if value not in AUGMENTATIONS:
        raise OptionError(f"{name}: {value!r} is none of {', '.join(AUGMENTATIONS)}")
    return value


def _share(name: str, value: Any) -> float:
    text = str(value).strip()
    share = _number(name, text[:-1]) / 100 if text.endswith("%") else _number(name, text)
    if not 0 <= share < 1:
        raise OptionError(f"{name}: {text} is no share of the samples from 0 to below 100 %")
    return share


def _optional(parse: Any, name: str, value: Any) -> Any:
    return None if value is None else parse(name, value)


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise OptionError(f"{name}: {value!r} is not a number") from None
    if not math.isfinite(number):
        raise OptionError(f"{name}: {value!r} is not a finite number")
    return number


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if number <= 0:
        raise OptionError(f"{name}: {number:g} must be above 0")
    return number


def _at_least(least: int, name: str, value: Any) -> Any:
    if value is None:
        return None
    number = _number(name, value)
    if number != int(number) or number < least:
        raise OptionError(f"{name}: {value} must be a whole number of at least {least}")
    return int(number)


def _convert(name: str, value: str, kind: type) -> Any:
    return _number(name, value) if kind is float else value


_BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _option(label: str, sampler: str, key: str, value: str) -> Any:
    """An option of a sampler, from its text: of what the text can mean, the first that the engine takes."""
    name = f"--compare {label}: {key}"
    meanings: list[Any] = [parse_bytes(name, value)] if key == "bytes" else []
    for read in (int, _number_of, lambda text: _BOOLS[text.lower()]):
        try:
            meanings.append(read(value))
        except (KeyError, ValueError):
            pass
    refusals = []
    for meaning in (*meanings, value):
        problem = sampler_problem(json.dumps({"name": sampler, key: meaning}))
        # A value out of range is refused by the loader, with the range.
        if problem is None or not problem[0]:
            return meaning
        refusals.append(problem[1].rpartition("expected ")[2])
    raise OptionError(f"{name}: {value!r} is not {_KINDS.get(refusals[0], refusals[0])}")


def _number_of(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


#: What the engine's names of types mean to whoever types an option.
_KINDS = {"u32": "a whole number", "u64": "a whole number", "f32": "a finite number", "f64": "a finite number", "a boolean": "1 or 0"}

"""Sizes as people write them."""

from __future__ import annotations

import re
from typing import Callable

from .errors import SettingsError

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 2**30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
}

_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*|%)\s*")

_HELP = "give bytes (2147483648), a size ('2GiB', '512MB'), or a share of the dataset ('20%', or 0.2)"


def shown(size: float) -> str:
    """A size for people: ``"512 bytes"``, ``"1.5 MiB"``."""
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1000:
            return f"{size:.3g} {unit}"
    return f"{size / 1024:.3g} TiB"


def parse_bytes(name: str, value: int | str) -> int:
    """`value` in bytes: an int, or text with a unit ("64MiB"; decimal units are powers of 1000)."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise SettingsError(f"{name}={value!r} is not a size: give bytes (1000000) or a size ('20MB', '1GiB')")
    number: float
    if isinstance(value, int):
        number, unit = value, ""
    else:
        match = _TEXT.fullmatch(value)
        if match is None or match[2].lower() not in _UNITS:
            raise SettingsError(f"{name}={value!r} is not a size: give bytes (1000000) or a size ('20MB', '1GiB')")
        number, unit = float(match[1]), match[2].lower()
    size = number * _UNITS[unit]
    if not 0 <= size < 2**63:
        raise SettingsError(f"{name}={value!r} is not a size: it must be 0 to 2^63 bytes")
    return int(size)


def parse_cache(value: int | float | str | None, dataset_bytes: Callable[[], int], name: str = "cache") -> int:
    """`cache=` in bytes, or what else is typed for it. `dataset_bytes()` is what the whole dataset would take; called only for shares."""
    if value is None:
        return 0
    if isinstance(value, str) and value.strip().endswith("%"):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise SettingsError(f"{name}={value!r} is no size: {_HELP}")
        return _share(value, float(match[1]) / 100.0, dataset_bytes, name)
    if isinstance(value, float):
        return _share(value, value, dataset_bytes, name)
    try:
        return parse_bytes(name, value)
    except SettingsError:
        raise SettingsError(f"{name}={value!r} is no size: {_HELP}") from None


def _share(value: float | str, share: float, dataset_bytes: Callable[[], int], name: str) -> int:
    if not 0.0 <= share <= 1.0:
        raise SettingsError(
            f"{name}={value!r} is not a share of the dataset: it must be 0 to 1 (0% and 100%), or {_HELP}"
        )
    return int(share * dataset_bytes())

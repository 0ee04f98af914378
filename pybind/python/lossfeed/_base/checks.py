"""Checks that keywords share: a flag, a number in range, one of a few words. Each names the keyword and the value."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from typing import Any, Iterable, TypeVar

from .errors import SettingsError
from .spelling import nearest

W = TypeVar("W", bound=str)

#: How alike a word must be that stands among few others: the others are named too.
WORD = 0.83
#: Times are at most this: thirty years, which no clock overflows at.
LONGEST_S = 1e9


def differs(value: Any, default: Any) -> bool:
    """True if a keyword's value is not its default."""
    return value is not default and not (type(value) is type(default) and value == default)


def renamed(old: str, value: Any, new: str, given: Any) -> Any:
    """The value of keyword `new`, for which `old` is the former name. It works, with a warning."""
    if value is None:
        return given
    if given is not None:
        raise SettingsError(f"{old}= is the former name of {new}=: give {new}= alone")
    former(f"{old}=", f"{new}=")
    return value


def former(old: str, new: str) -> None:
    """Warns the caller of lossfeed that a name was replaced."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lossfeed":
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{old} is now {new}: the former name works for now; write {new}", FutureWarning, stacklevel=level)


def flag(name: str, value: Any) -> bool:
    """A bool; nothing is taken for true by accident."""
    if value is True or value is False:
        return value
    raise SettingsError(f"{name}={value!r} must be True or False")


def whole(name: str, value: Any, least: int, most: int = 2**63 - 1, hint: str = "") -> int:
    """An int in range; bools and floats are refused."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise SettingsError(f"{name}={value!r} must be an int{hint}")
    if not least <= number <= most:
        bounds = f"at least {least}" if most == 2**63 - 1 and number < least else f"{least} to {most}"
        raise SettingsError(f"{name}={number} must be {bounds}{hint}")
    return number


def real(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """A finite float in range."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        # RuntimeError is what a tensor of several elements raises.
        number = math.nan
    if isinstance(value, (bool, str)) or not math.isfinite(number) or not least <= number <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise SettingsError(f"{name}={value!r} must be a finite number, {bounds}")
    return number


def seconds(name: str, value: Any) -> float:
    """A time in seconds. Text is refused, with its unit or without: what a number means is said in one place."""
    try:
        return real(name, value, 0.0, LONGEST_S)
    except SettingsError:
        raise SettingsError(f"{name}={value!r} must be a number of seconds, 0 to {LONGEST_S:g}") from None


def choice(name: str, value: Any, *allowed: W) -> W:
    """One of a few words."""
    if not isinstance(value, str) or value not in allowed:
        near = did_you_mean(value, allowed, WORD) if isinstance(value, str) else ""
        words = " or ".join(part for part in (", ".join(allowed[:-1]), allowed[-1]) if part)
        raise SettingsError(f"{name}={value!r} is unknown{near}: use {words}")
    return allowed[allowed.index(value)]


def did_you_mean(typed: Any, known: Iterable[str], least: float = 0.6) -> str:
    """ (did you mean 'kappa'?), if something known is near."""
    found = nearest(typed, known, least)
    return f" (did you mean {found!r}?)" if found else ""

"""Keywords that nothing takes: which one was meant, or whose it is."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import KeywordError

F = TypeVar("F", bound=Callable[..., Any])

#: How a keyword of one of them is given, where another was called. Those of the last four are the loader's.
_REMEDY = {
    "lf.open": "lf.Loader(lf.open(data, {}), …)",
    "lf.Loader": "lf.Loader(data, {})",
    "lf.ImageTransform": "lf.Loader(data, transform=lf.ImageTransform({}))",
    "lf.Packed": "lf.Loader(data, pad=lf.Packed({}))",
    "lf.stage": "lf.stage(batches, {})",
    "lf.show": "lf.show(batch, {})",
    "lf.Scores": "",
    "lf.Cache": "",
    "lf.Sampling": "",
    "lf.Reading": "",
}
#: What is called by these names. Classes that users make of ours are their own affair.
_CALLED: dict[str, Any] = {}


def nearest(typed: Any, known: Iterable[str], least: float = 0.6) -> str | None:
    """The one of `known` that `typed` is nearly, if any is: alike by `least` at least, up to 1."""
    found = difflib.get_close_matches(str(typed).lower(), list(known), 1, least)
    return found[0] if found else None


class Spelled:
    """What tells its caller of a keyword that it does not take. Type checkers know the keywords by ``__init__``."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __init_subclass__(cls, **keywords: Any) -> None:
            super().__init_subclass__(**keywords)
            if cls.__module__.startswith("lossfeed.") and f"lf.{cls.__name__}" in _REMEDY:
                _CALLED[f"lf.{cls.__name__}"] = cls

        def __new__(cls, *_: Any, **given: Any) -> Any:
            if _CALLED.get(called := f"lf.{cls.__name__}") is cls:
                _check(called, given)
            return super().__new__(cls)


def spelled(function: F) -> F:
    """The same for a function."""
    called = f"lf.{function.__name__}"
    _CALLED[called] = function

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        _check(called, given)
        return function(*args, **given)

    call.__kwdefaults__ = function.__kwdefaults__  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _keywords(called: str) -> tuple[str, ...]:
    made: Any = _CALLED.get(called)
    code = (vars(made)["__init__"] if isinstance(made, type) else made).__code__
    return tuple(name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self")


def _check(called: str, given: dict[str, Any]) -> None:
    known = _keywords(called)
    for keyword in given:
        if keyword in known:
            continue
        value = repr(given[keyword])
        shown = f"{keyword}={value if isinstance(given[keyword], (str, int, float)) and len(value) < 40 else '…'}"
        others = {name: _keywords(name) for name, remedy in _REMEDY.items() if name != called and remedy}
        whose = [name for name, keywords in others.items() if keyword in keywords][:2]
        if whose:
            write = " or ".join(_REMEDY[name].format(shown) for name in whose)
            raise KeywordError(f"{keyword}= is a keyword of {' and '.join(whose)}, not of {called}: write {write}")
        meant = {name: found for name, keywords in {called: known, **others}.items() if (found := nearest(keyword, keywords))}
        name, found = next(iter(meant.items()), (called, None))
        hint = f"did you mean {found!r}{'' if name == called else f' of {name}'}?" if found else f"see help({called})"
        raise KeywordError(f"{called} has no keyword {keyword!r}: {hint}")

"""Signatures as ``help()`` prints them: names and defaults, in lines that a terminal holds."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

_WIDTH = 96


class Readable(inspect.Signature):
    """A signature with all its types, printed without those of its parameters."""

    __slots__ = ()

    def __str__(self) -> str:
        plain = [one.replace(annotation=one.empty) for one in self.parameters.values()]
        lines = textwrap.wrap(
            str(inspect.Signature(plain)),
            _WIDTH,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        answer = self.return_annotation
        named = "" if answer in (self.empty, None, "None") else f" -> {getattr(answer, '__name__', answer)}"
        return "\n".join(lines) + named

    def format(self, **_: Any) -> str:
        """The same; ``help()`` calls it from Python 3.13 on."""
        return str(self)


def readable(public: Any) -> None:
    """Has ``help()`` print this function's signature so, or those of this class's functions and its bases'."""
    bases = public.__mro__ if isinstance(public, type) else ()
    classes = [one for one in bases if one.__module__.partition(".")[0] == "lossfeed"]
    functions = [value for one in classes for name, value in vars(one).items() if name == "__init__" or name[0] != "_"]
    for function in functions or [public]:
        if inspect.isfunction(function):
            function.__signature__ = Readable.from_callable(function)  # type: ignore[attr-defined]

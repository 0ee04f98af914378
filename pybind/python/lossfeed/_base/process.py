"""Which process made something: a fork copies the memory, but no threads, and no processes of a pool."""

from __future__ import annotations

import os
from typing import Any, Callable, NoReturn, SupportsIndex

from .errors import UsageError
from .spelling import Spelled


class Process:
    """The process that made this object."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_this(self) -> bool:
        """Whether it is the process that asks, and not a parent of it."""
        return self._pid == os.getpid()


class MadeAgain(Spelled):
    """What is pickled and copied as what it was made from: the other process makes it anew, with threads, memory and a
    position of its own. What it was given must pickle, and says so itself where it does not."""

    __slots__ = ()

    def _recipe(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What makes another like it, and of what.

        Raises:
            UsageError: nothing does.
        """
        raise NotImplementedError

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._recipe()


class OfThisProcess:
    """What lives in one process: it is not pickled, and not copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError(
            f"a {type(self).__name__} of lossfeed cannot be pickled or copied: it belongs to this process's threads "
            "and memory. Pickle the loader, which is made again in the other process; its state_dict() has the "
            "position"
        )

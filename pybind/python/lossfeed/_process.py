"""Which process made something: a fork copies the memory, but no threads, and no processes of a pool."""

from __future__ import annotations

import os
from typing import NoReturn, SupportsIndex

from ._errors import UsageError


class Process:
    """The process that made this object."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_this(self) -> bool:
        """Whether it is the process that asks, and not a parent of it."""
        return self._pid == os.getpid()


class OfThisProcess:
    """What lives in one process: it is not pickled, and not copied."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError(
            f"a lossfeed.{type(self).__name__} cannot be pickled or copied: it holds threads and memory of this process. "
            "Hand its path or dataset to the other process and call lf.open and lf.Loader there; to resume a run, save "
            "state_dict()"
        )

"""Which process made something: a fork copies the memory, but no threads, and no processes of a pool."""

from __future__ import annotations

import os


class Process:
    """The process that made this object."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_this(self) -> bool:
        """Whether it is the process that asks, and not a parent of it."""
        return self._pid == os.getpid()

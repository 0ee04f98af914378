"""The end of loaders: in time, or with a warning that names what hangs."""

from __future__ import annotations

import atexit
import time
import warnings
import weakref
from typing import Protocol

from .. import _native
from .._base.errors import ThreadWarning
from .._data import reader_threads

#: How long the interpreter's exit waits for reads under way, in seconds.
EXIT_S = 5.0


class Threaded(Protocol):
    """A loader, as far as its end is concerned."""

    def _close(self, seconds: float | None) -> list[str]:
        """Ends everything, waits so long, and returns who has not come."""


#: Loaders that may still have threads.
live: weakref.WeakSet[Threaded] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """Ends all loaders before the interpreter goes, and from here on no thread of theirs enters it."""
    until = time.monotonic() + EXIT_S

    def rest() -> float:
        return max(0.0, until - time.monotonic())

    try:
        # All are told before any is waited for. Loaders that were dropped, not closed, may still have threads in a
        # dataset's code.
        for loader in (loaders := list(live)):
            loader._close(0.0)
        calls = _native.leave(rest())
        left = [thread for loader in loaders for thread in loader._close(rest())]
    except KeyboardInterrupt:
        # Whoever presses Ctrl-C now does not want to wait for them.
        return
    if calls or left:
        warn_of(left + reader_threads.hanging(), "the interpreter exits without them")


def warn_of(hanging: list[str], outcome: str) -> None:
    """Names what hangs, and says what becomes of it."""
    words = "; ".join(hanging) or "a thread of a loader"
    warnings.warn(f"reads that hang: {words}; {outcome}", ThreadWarning, stacklevel=3)

"""Threads that call Python datasets for the loader's own threads.

They are Python's: each keeps its identity from call to call, so that a handle in a ``threading.local`` is opened once
a thread. They are
daemons: one that hangs in a dataset holds up no exit, and the interpreter ends it as it ends every daemon.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import weakref
from typing import Any, Callable, Protocol

from .. import _native
from .._base.process import Process


class Reader(Protocol):
    """Whoever reads a Python dataset's items."""

    dataset: Any
    #: Thread -> the item it is reading.
    reading: dict[int, int]


#: Everything that is asked for samples; for the words about what hangs.
_adaptors: weakref.WeakSet[Reader] = weakref.WeakSet()

os.register_at_fork(
    before=_native.fork_begins, after_in_parent=_native.fork_ends, after_in_child=_native.forked
)


class _Shared:
    """What a dataset's readers share. They do not know the pool, so that dropping it ends them."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.busy = 0


class Readers:
    """The readers of one dataset, started as they are needed: as many as calls were under way at one time."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._process = Process()
        self._shared = _Shared()
        # Not at exit: a call may still come then, and idle daemons are in nobody's way.
        weakref.finalize(self, _dismiss, self._shared).atexit = False

    def submit(self, fetch: Callable[[list[int]], list[Any]], call: _native.Call) -> None:
        """Has a reader call ``fetch(call.ids)`` and answer the call."""
        if not self._process.is_this():
            self._renew()
        shared = self._shared
        with shared.lock:
            shared.busy += 1
            missing = shared.busy > shared.threads
            shared.threads += missing
        if missing:
            try:
                threading.Thread(target=_serve, args=(shared,), name="lossfeed-reader", daemon=True).start()
            except BaseException:
                with shared.lock:
                    shared.busy -= 1
                    shared.threads -= 1
                raise
        shared.jobs.put((fetch, call))


def _dismiss(shared: _Shared) -> None:
    for _ in range(shared.threads):
        shared.jobs.put(None)


def _serve(shared: _Shared) -> None:
    while (job := shared.jobs.get()) is not None:
        fetch, call = job
        del job
        try:
            answer: Any = fetch(call.ids)
        except BaseException as error:
            answer = error
        # Before the answer: whoever gets it may call again at once, and this thread is free for that.
        with shared.lock:
            shared.busy -= 1
        call.answer(answer)
        del fetch, call, answer


def watch(adaptor: Reader) -> None:
    """From now on :func:`hanging` knows of its calls."""
    _adaptors.add(adaptor)


def hanging(adaptor: Reader | None = None) -> list[str]:
    """Which items are being read now, and where in whose code: of one dataset, or of all."""
    frames = sys._current_frames()
    found = []
    for one in [adaptor] if adaptor is not None else list(_adaptors):
        for thread, item in list(one.reading.items()):
            frame = frames.get(thread)
            place = ""
            if frame is not None:
                place = f" at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            found.append(f"{type(one.dataset).__name__} is in item {item}{place}")
    return found

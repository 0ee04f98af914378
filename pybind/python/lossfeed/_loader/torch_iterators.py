"""Private parts of torch's iterator over worker processes: its queues are asked and its workers ended here."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util  # noqa: F401  (it registers its end first)
import os
import queue
import threading
import time
import weakref
from typing import Any

from .._base.memory import require_torch

#: How long workers that are told to end may go on with the batch in hand, in seconds. Then they are killed.
LEAVE_S = 1.0

#: Those of torch's that have worker processes.
known: weakref.WeakSet[Any] = weakref.WeakSet()


# Registered after multiprocessing's own, so that it comes first: that one ends processes in a way that torch takes for
# a death, and waits for them as long as they like.
@atexit.register
def _at_exit() -> None:
    for made in list(known):
        end_workers(made, 0.0)


def _forked() -> None:
    # A child's copies have workers that are none of its own: their end would ask for them, and say so.
    for made in list(known):
        made._shutdown = True


os.register_at_fork(after_in_child=_forked)


def put_apart(queues: list[Any]) -> queue.SimpleQueue[tuple[Any, Any] | None]:
    """Makes a thread put into queues of multiprocessing. A signal's exception rises in the main thread alone; inside
    ``Queue.put`` it may leave a lock taken, and closing the queue would wait for that lock for ever. Returns
    the queue that ends the thread by None."""
    given: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()

    def run() -> None:
        while (ask := given.get()) is not None:
            with contextlib.suppress(ValueError):  # closed
                ask[0](ask[1])

    def putting(put: Any) -> Any:
        return lambda item: given.put((put, item))

    for one in queues:
        one.put = putting(one.put)
    threading.Thread(target=run, name="lossfeed-asks", daemon=True).start()
    return given


def end_workers(found: Any, patience: float) -> None:
    """Ends the worker processes of an iterator of torch's, which may be in the middle of an item: those still there
    after `patience` seconds are killed. torch alone would wait five seconds for each.

    Nothing that a killed process may hold is touched after that: torch's own way to end would wait for its locks."""
    workers = getattr(found, "_workers", None)
    if not workers or getattr(found, "_shutdown", False):
        return
    if patience > 0.0:
        found._workers_done_event.set()
        for each in found._index_queues:
            each.put(None)
        until = time.monotonic() + patience
        for worker in workers:
            worker.join(max(0.0, until - time.monotonic()))
    # It would take a worker that is killed now for one that has died.
    require_torch("worker processes").utils.data._utils.signal_handling._remove_worker_pids(id(found))
    for worker in workers:
        worker.kill()
    found._shutdown, found._worker_pids_set = True, False
    pinning = getattr(found, "_pin_memory_thread_done_event", None)
    if pinning is not None:
        pinning.set()
    for each in found._index_queues:
        each.cancel_join_thread()
        each.close()
    if (asks := getattr(found, "_lossfeed_asks", None)) is not None:
        asks.put(None)
    for worker in workers:
        worker.join(LEAVE_S)

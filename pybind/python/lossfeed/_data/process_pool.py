"""Worker processes behind a Python dataset: what the cache lacks is read by several interpreters at once.

They are started as torch's ``DataLoader`` starts its own, each with its copy of the dataset, before this process has
read an item: a handle that the dataset opens when it is first read is opened in each of them, and shared by none.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import pickle
import queue
import signal
import threading
import time
import traceback
import warnings
import weakref
from multiprocessing.connection import Connection, wait
from typing import Any, Callable, NamedTuple

from .. import _native
from .._base.errors import SourceError, UsageError
from .._base.memory import torch_loaded
from .._base.process import Process
from .._base.signals import called, kept_while
from . import generators, reader_threads
from .adaptor import RUN_S, Adaptor
from .pictured import Pictures
from .resize import Resize
from .structure import Structure

#: How often a process looks whether its parent is still there, in seconds.
_PARENT_S = 2.0
#: Most items that one process gets at a time. Few at first: a slow dataset is to be left between two of them.
_SHARE_MAX = 64


#: For the exit. Registered after multiprocessing's own, so that it comes first: that one waits for processes as long as
#: they like.
_all: weakref.WeakSet[Processes] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for pool in list(_all):
        _kill(pool._workers, pool._process)


class Start(NamedTuple):
    """How worker processes are started."""

    #: multiprocessing's name of a way, or a context of it; None is its default.
    context: Any = None
    #: The user's ``worker_init_fn``.
    init_fn: Callable[[int], Any] | None = None
    seed: int = 0


def structure_of(dataset: Any, how: tuple[Any, ...]) -> Structure | None:
    """What item 0 of a dataset is made of, found in a process of its own: a handle that a dataset opens when it is first
    read is then not shared with processes that are forked later, and no generator of this process moves. None where
    that cannot be done: torch has begun to use a GPU, which does not bear a fork.

    Raises:
        SourceError: the process died. Else what the dataset raised.
    """
    torch = torch_loaded()
    if torch is not None and torch.cuda.is_initialized():
        return None
    worker = _Worker(dataset, how, 0, 1, Start("fork"))
    try:
        hello = worker.answer(0)
    except _Died as died:
        raise SourceError(str(died)) from None
    finally:
        _kill([worker], Process())
        worker.close()
    if isinstance(hello, BaseException):
        raise hello from hello.__dict__.pop("_cause", None)
    found: Structure = hello
    return found


def _is_name(context: Any) -> bool:
    return context is None or isinstance(context, str)


class Processes:
    """Reads items in `count` processes. It stands in an :class:`Adaptor`'s place and answers as that does."""

    def __init__(
        self,
        dataset: Any,
        mode: str,
        resize: Resize | None,
        count: int,
        varying: bool = False,
        target: str | None = None,
        whole: bool = False,
        pictures: Pictures | None = None,
        start: Start = Start(),
    ) -> None:
        self.dataset = dataset
        #: As :attr:`Adaptor.seeded`.
        self.seeded: tuple[int, int] | None = None
        self.turns = _native.Turns([])
        self.readers = reader_threads.Readers()
        self.reading: dict[int, int] = {}
        self._process = Process()
        self._broken: str | None = None
        #: How many there are.
        self.count = count
        how = (mode, resize, True, varying, target, whole, pictures)
        self._workers = [_Worker(dataset, how, number, count, start) for number in range(count)]
        #: For whoever does not call :meth:`end`. It waits for nothing: a Ctrl-C that falls into a finalizer is lost.
        self._forgotten = weakref.finalize(self, _kill, self._workers, self._process, 0.0)
        self._forgotten.atexit = False
        _all.add(self)
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            try:
                hello = worker.answer(0)
            except _Died as died:
                _kill(self._workers, self._process)
                raise SourceError(str(died)) from None
            if isinstance(hello, BaseException):
                _kill(self._workers, self._process)
                raise hello from hello.__dict__.pop("_cause", None)
            self.structure: Structure = hello
            self._idle.put(worker)
        reader_threads.watch(self)

    def end(self) -> None:
        """Ends the processes. Nothing can be read any more."""
        _kill(self._workers, self._process)
        if self._process.is_this() and not self.reading and self._forgotten.detach():
            _all.discard(self)
            for worker in self._workers:
                worker.close()

    def __call__(self, ids: list[int]) -> list[Any]:
        """As :meth:`Adaptor.__call__`. Takes one process that is free and as many more as there are items for."""
        if not self._process.is_this():
            words = "this dataset's worker processes belong to the parent of this process: open it again in the child"
            return [_fatal(UsageError(words))]
        me = threading.get_ident()
        mine = [self._idle.get()]
        try:
            self.reading[me] = ids[0]
            while len(mine) < len(ids):
                try:
                    mine.append(self._idle.get_nowait())
                except queue.Empty:
                    break
            return self._read(ids, mine)
        except _Died as died:
            self._broken = self._broken or str(died)
            return [_fatal(SourceError(self._broken))]
        finally:
            self.reading.pop(me, None)
            for worker in mine:
                self._idle.put(worker)

    def _read(self, ids: list[int], mine: list[_Worker]) -> list[Any]:
        if self._broken is not None:
            raise _Died(self._broken)
        found: list[Any] = []
        share, until = 1, time.perf_counter() + RUN_S
        while len(found) < len(ids):
            rest = ids[len(found) :]
            parts = [rest[k * share : (k + 1) * share] for k in range(len(mine))]
            asked = [(worker, worker.ask(part, self.seeded)) for worker, part in zip(mine, parts, strict=True) if part]
            for worker, number in asked:
                found += worker.answer(number)
                if len(found[-1]) == 3 and found[-1][2]:
                    return found
            if time.perf_counter() > until:
                break
            share = min(2 * share, _SHARE_MAX)
        return found


class _Died(Exception):
    """A worker process is gone."""


class _Worker:
    """One process, and this end of its pipe."""

    def __init__(self, dataset: Any, how: tuple[Any, ...], number: int, count: int, start: Start) -> None:
        context = multiprocessing.get_context(start.context) if _is_name(start.context) else start.context
        self._connection, theirs = context.Pipe()
        self._asked = 0
        #: A thread of its own receives, in place of who waits: from when this is set on, once for all.
        self._apart = False
        self._received: queue.SimpleQueue[tuple[int | None, Any]] = queue.SimpleQueue()
        #: Held by that thread; one that is started beside it ends at once.
        self._receiver = threading.Lock()
        self._name = f"worker process {number} of {type(dataset).__name__}"
        self.process = context.Process(
            target=_work,
            args=(theirs, dataset, how, number, count, start, parent_of_workers(context)),
            name=f"lossfeed-{number}",
            daemon=True,
        )
        with kept_while(forking=context.get_start_method() == "fork"), warnings.catch_warnings():
            # Python warns of forks beside threads; what the child runs is the dataset alone.
            warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
            self.process.start()
        theirs.close()

    def ask(self, ids: list[int], seeded: tuple[int, int] | None) -> int:
        """Hands it items to read; returns the question's number."""
        self._asked += 1
        try:
            self._connection.send((self._asked, ids, seeded))
        except OSError:
            raise self._death() from None
        return self._asked

    def answer(self, number: int) -> Any:
        """Waits for an answer. Earlier ones that nobody waited for (after Ctrl-C) are thrown away."""
        if number > 0 and threading.current_thread() is threading.main_thread():
            self._apart = True
        # Ctrl-C may have come before the thread was started: the next question starts it.
        if self._apart and not self._receiver.locked():
            threading.Thread(target=self._receive_apart, name=f"{self.process.name}-answers", daemon=True).start()
        while True:
            of, answer = self._received.get() if self._apart else self._receive()
            if of is None:
                # For whoever asks next too.
                self._ended()
                raise self._death()
            if of == number:
                return answer

    def _receive(self) -> tuple[int | None, Any]:
        """An answer and its question's number; no number if the process is gone."""
        try:
            if self._connection in wait([self._connection, self.process.sentinel]):
                found: tuple[int, Any] = self._connection.recv()
                return found
        except (EOFError, OSError):
            pass
        return None, None

    def _receive_apart(self) -> None:
        """The life of a thread that receives: Ctrl-C interrupts the main thread alone, and in the middle of an answer
        its rest would be taken for the next one's beginning."""
        if self._receiver.acquire(blocking=False):
            found = self._receive()
            while found[0] is not None:
                self._received.put(found)
                found = self._receive()
            self._received.put(found)

    def close(self) -> None:
        """Gives its file descriptors back, once it has ended."""
        with contextlib.suppress(ValueError):  # it has not: the system is slow to end it
            self.process.close()
        if not self._apart:
            self._connection.close()

    def _ended(self) -> None:
        if self._apart:
            self._received.put((None, None))

    def _death(self) -> _Died:
        self.process.join(1.0)
        code = self.process.exitcode
        how = "closed its pipe" if code is None else f"ended with code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        return _Died(
            f"{self._name} (pid {self.process.pid}) {how}: if the system killed it for its memory, open the dataset "
            "with fewer processes; if the dataset's code ended it, mend that. Open the dataset again to go on"
        )


def _kill(workers: list[_Worker], made_by: Process, wait_s: float = 1.0) -> None:
    if not made_by.is_this():
        return
    with contextlib.suppress(ValueError):  # closed: they have ended, and all were waited for
        for worker in workers:
            worker.process.kill()
        for worker in workers if wait_s else ():
            worker.process.join(wait_s)


def _fatal(error: BaseException) -> tuple[str, BaseException, bool]:
    """Ends the pass as itself: no sample is to blame, so none may be skipped for it."""
    return str(error), error, True


# ---- in the worker process -------------------------------------------------------------------------------------------


def parent_of_workers(context: Any) -> int | None:
    """The parent that worker processes started here will have. None, if a fork server starts them: they see who it is.

    They are told, because a parent that is gone before they look would be taken for the one that they have then."""
    return None if context.get_start_method() == "forkserver" else os.getpid()


def _end_with(parent: int) -> None:
    """Ends this process soon after its parent, whatever it does then: it may wait for a full pipe, whose other end it has
    inherited itself, or for the dataset."""
    while os.getppid() == parent:
        time.sleep(_PARENT_S)
    os._exit(1)


def as_worker(parent: int | None) -> None:
    """What a worker process does first: it ends with its parent, and signals are the parent's business."""
    parent = os.getppid() if parent is None else parent
    threading.Thread(target=_end_with, args=(parent,), name="lossfeed-parent", daemon=True).start()
    # Ctrl-C reaches the whole group: the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _work(
    connection: Connection,
    dataset: Any,
    how: tuple[Any, ...],
    number: int,
    count: int,
    start: Start,
    parent: int | None,
) -> None:
    as_worker(parent)
    generators.seed_all(generators.mixed(start.seed, 0, number))
    torch = torch_loaded()
    if torch is not None:
        torch.set_num_threads(1)
    try:
        if torch is not None:
            info = dict(id=number, num_workers=count, seed=start.seed + number, dataset=dataset)
            torch.utils.data._utils.worker._worker_info = torch.utils.data._utils.worker.WorkerInfo(**info)
        if start.init_fn is not None:
            called("worker_init_fn", start.init_fn, number)
        adaptor = Adaptor(dataset, *how)
    except BaseException as error:
        connection.send((0, portable(error)))
        return
    connection.send((0, adaptor.structure))
    while True:
        try:
            question, ids, adaptor.seeded = connection.recv()
            connection.send((question, _answer(adaptor, ids)))
        except (EOFError, OSError):
            return


def _answer(adaptor: Adaptor, ids: list[int]) -> list[Any]:
    found: list[Any] = []
    while len(found) < len(ids):
        for item in adaptor(ids[len(found) :]):
            if len(item) == 2:
                found.append((bytes(item[0]), bytes(item[1])))
                continue
            words, error, fatal = item
            found.append((words, None if error is None else portable(error), fatal))
            if fatal:
                return found
    return found


def portable(error: BaseException) -> BaseException:
    """The exception as it arrives on the other side, with its traceback as a note; one that cannot travel is told in
    words."""
    trace = "".join(traceback.format_exception(error))
    try:
        travelled = pickle.loads(pickle.dumps(error))
        if type(travelled) is type(error):
            travelled.add_note(f"In a worker process:\n{trace}")
            travelled.__cause__ = travelled.__context__ = None
            pickle.loads(pickle.dumps(travelled))
            if error.__cause__ is not None:
                travelled.__dict__["_cause"] = portable(error.__cause__)
            return travelled
    except Exception:
        pass
    return RuntimeError(f"{type(error).__name__}, raised in a worker process:\n{trace}")

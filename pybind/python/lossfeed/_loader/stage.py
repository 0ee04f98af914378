"""Staging the batches of any iterable on a device, in the background."""

from __future__ import annotations

import copy
import queue
import threading
import weakref
from typing import Any, Callable, Generic, Iterable, Iterator, TypeVar

from .. import _native
from .._base.checks import whole
from .._base.errors import DeviceError, SettingsError, UsageError
from .._base.memory import is_array, is_tensor, require_torch
from .._base.process import OfThisProcess
from .._base.spelling import spelled
from .keywords import device as device_name

T = TypeVar("T")

#: How long a blocked side waits before it looks whether the other is still there.
_PATIENCE_S = 0.1


class _End:
    """The iterable is exhausted."""


class _Raised:
    def __init__(self, error: BaseException) -> None:
        self.error = error


@spelled
def stage(iterable: Iterable[T], device: Any = "cpu", depth: int = 3) -> Staged[T]:
    """Iterates `iterable` in a background thread and has its batches ready on `device`, up to `depth` ahead.

    Works with any iterable of batches, a torch ``DataLoader`` included, without a change to it::

        for x, y in lf.stage(dataloader, "cuda"):
            ...

    Tensors anywhere in nested tuples, named tuples, lists and dicts are moved; NumPy arrays become tensors on a CUDA
    device and stay arrays on the CPU; everything else is unchanged.

    Args:
        iterable: what to iterate; each ``iter()`` of the result iterates it again.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``. On a CUDA device host tensors are copied to page-locked memory
            first, then to the device on a separate stream; delivered tensors are ready on the current stream, and the
            CPU does not wait.
        depth: batches ahead, at least 1. At most this many batches, and one in preparation, are held.

    Returns:
        An iterable with the length of `iterable` where that has one. An exception in `iterable` is raised at its place,
        with its own traceback. Dropping an iterator, or ``close()``, stops its thread after the batch it is making.
    """
    name = device_name(device, False)
    whole("depth", depth, 1, 1024)
    if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
        raise SettingsError(f"{type(iterable).__name__} is not iterable: stage wants an iterable of batches")
    return Staged(iterable, name, depth)


class Staged(Generic[T]):
    """What :func:`lossfeed.stage` returns."""

    def __init__(self, iterable: Iterable[T], device: str, depth: int) -> None:
        self._iterable = iterable
        self._device = device
        self._depth = depth
        if device != "cpu":
            torch = require_torch(f"device={device!r}")
            if not torch.cuda.is_available():
                raise DeviceError(
                    f"device={device!r}, but this PyTorch ({torch.__version__}) finds no CUDA device: use device='cpu'"
                )

    def __len__(self) -> int:
        """The length of the iterable; TypeError if it has none."""
        return len(self._iterable)  # type: ignore[arg-type]

    def __iter__(self) -> StagedIterator[T]:
        return StagedIterator(self._iterable, self._device, self._depth)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the iterable, or to its sampler."""
        beside = (getattr(self._iterable, name, None) for name in ("sampler", "batch_sampler"))
        for target in (self._iterable, *beside):
            set_epoch = getattr(target, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
                return
        raise UsageError(f"{type(self._iterable).__name__} has no set_epoch, and neither has its sampler")

    def __repr__(self) -> str:
        return f"<lossfeed.stage {type(self._iterable).__name__} on {self._device}, {self._depth} ahead>"


class StagedIterator(OfThisProcess, Iterator[T]):
    """One background pass over an iterable."""

    def __init__(self, iterable: Iterable[T], device: str, depth: int) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(depth)
        self._stop = threading.Event()
        self._mover = Mover(device) if device != "cpu" else None
        self._over = False
        self._thread = threading.Thread(
            target=_run,
            args=(iterable, self._queue, self._stop, self._mover),
            name="lossfeed-stage",
            daemon=True,
        )
        # The thread knows the queue and the flag but not this object, so dropping this object ends the thread.
        self._finalizer = weakref.finalize(self, _shut, self._stop, self._queue)
        self._thread.start()

    def __iter__(self) -> StagedIterator[T]:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        if self._mover:
            self._mover.refuse_in_a_capture()
        while True:
            try:
                # A timed wait, so that Ctrl-C is answered.
                item = self._queue.get(timeout=_PATIENCE_S)
                break
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    item = _End
                    break
        if item is _End:
            self._finish()
            raise StopIteration
        if isinstance(item, _Raised):
            self._finish()
            raise item.error
        received: T = self._mover.receive(item) if self._mover else item
        return received

    def _finish(self) -> None:
        self._over = True
        self._stop.set()

    def close(self) -> None:
        """Stops the background thread and waits for the batch it is making. Calling it again does nothing."""
        self._over = True
        self._finalizer()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def until_ended(self) -> Callable[[], None]:
        """Waits for the background thread, and does not keep this object: dropping it ends the thread soon."""
        thread = self._thread
        return lambda: None if thread is threading.current_thread() else thread.join()


def _shut(stop: threading.Event, waiting: queue.Queue[Any]) -> None:
    stop.set()
    while True:
        try:
            waiting.get_nowait()
        except queue.Empty:
            return


def _run(iterable: Iterable[Any], out: queue.Queue[Any], stop: threading.Event, mover: Mover | None) -> None:
    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                out.put(item, timeout=_PATIENCE_S)
                return True
            except queue.Full:
                continue
        return False

    iterator = None
    try:
        if mover:
            mover.enter_thread()
        iterator = iter(iterable)
        for batch in iterator:
            if not put(mover.send(batch) if mover else batch):
                break
        else:
            put(_End)
    except BaseException as error:
        put(_Raised(error))
    finally:
        # A generator left in the middle cleans up here, in the thread that ran it.
        close = getattr(iterator, "close", None)
        if stop.is_set() and callable(close):
            close()


class Mover:
    """Moves batches to a CUDA device on a stream of its own."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device) if ":" in device else torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self._device)

    def enter_thread(self) -> None:
        """Background thread, first of all: its page-locking and its allocations must not end a capture of the
        consumer's."""
        if self._torch.version.cuda is not None:
            _native.relax_captures()

    def refuse_in_a_capture(self) -> None:
        """Consumer's thread: a graph cannot hold the wait for a copy that was queued outside of it."""
        if self._torch.cuda.is_current_stream_capturing():
            raise UsageError(
                "staged batches cannot be taken during a CUDA graph capture: take them outside of the capture"
            )

    def send(self, batch: Any) -> Any:
        """Background thread: queues the copies; returns the batch on the device and the event behind them."""
        torch = self._torch
        moved: list[Any] = []
        keep: list[Any] = []
        made_on = torch.cuda.current_stream(self._device)

        def one(value: Any) -> Any:
            tensor = torch.from_numpy(value) if is_array(value) else value
            if tensor.device.type == "cuda":
                # What made it may be under way. Only then: to wait always would queue copies behind the consumer's steps.
                self._stream.wait_stream(made_on)
            if tensor.device.type == "cpu":
                # torch's page-locked allocator knows of the copy and keeps the memory until it is done.
                tensor = tensor if tensor.is_pinned() else tensor.pin_memory()
                keep.append(tensor)
            there = tensor.to(self._device, non_blocking=True)
            moved.append(there)
            return there

        # The tensors are allocated on this stream: no work of the consumer's can be reading their memory.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            result = nested(batch, one, arrays=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        return result, event, moved, keep

    def receive(self, sent: Any) -> Any:
        """Consumer's thread: its current stream waits for the copies and becomes a user of the memory."""
        result, event, moved, _ = sent
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in moved:
            tensor.record_stream(stream)
        return result


def nested(value: Any, one: Callable[[Any], Any], arrays: bool) -> Any:
    """`value` with `one` applied to every tensor (and array) in its tuples, lists and dicts."""
    if is_tensor(value) or (arrays and is_array(value) and value.dtype.kind in "biuf"):
        return one(value)
    if isinstance(value, tuple):
        parts = [nested(v, one, arrays) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return type(value)(nested(v, one, arrays) for v in value)
    if isinstance(value, dict):
        moved = {k: nested(v, one, arrays) for k, v in value.items()}
        return moved if type(value) is dict else _like(value, moved)
    return value


def _like(value: dict[Any, Any], moved: dict[Any, Any]) -> Any:
    """A dict of the same class (an OrderedDict, a BatchEncoding) with the moved values."""
    result = copy.copy(value)
    result.update(moved)
    return result

"""Batches of a Python dataset's items, read as torch's ``DataLoader`` reads them: by its worker processes, or by the
calling thread.

The engine decides which ids make a batch, their weights, and where the run stands. The items and ``collate_fn`` are
left to torch's own loader, so that a batch is what torch makes of those ids. What a dataset or a ``collate_fn`` draws at
random depends on (seed, epoch, id) alone, or, with ``num_workers=0``, comes from the loop's generators as under torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import threading
import time
import warnings
from collections import deque
from typing import Any, Callable, Iterator, NamedTuple, NoReturn

from .. import _native
from .._base.errors import SampleError, SourceError, TimeoutError
from .._base.memory import require_torch, to_torch
from .._base.process import Process
from .._base.signals import called, kept_while, of_signal
from .._batch.views import Fields, of_batch
from .._data import generators
from .._data.process_pool import as_worker, parent_of_workers, portable
from .._data.structure import Structure
from . import torch_iterators


class Ask(NamedTuple):
    """One batch that is asked for."""

    ids: list[int]
    #: Of the epoch; None draws from the process's generators as they are.
    seed: int | None
    epoch: int
    number: int


class Made(NamedTuple):
    """A batch as ``collate_fn`` returned it."""

    number: int
    batch: Any
    #: Whether it is the two items themselves, which are no pair of data and target.
    items: bool


class Failed(NamedTuple):
    """Why there is no batch."""

    number: int
    #: The item that could not be read; None if the items could not be collated.
    id: int | None
    error: BaseException


class Items:
    """The dataset and ``collate_fn`` behind torch's loader, for which a whole batch is one item."""

    def __init__(self, dataset: Any, ids: list[int] | None, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.dataset = dataset
        #: The item of each id; None if ids are the dataset's own.
        self._ids = ids
        self._collate_fn = collate_fn
        self._drew = [False]

    def __len__(self) -> int:
        return len(self.dataset) if self._ids is None else len(self._ids)

    def __getitem__(self, ask: Ask) -> Made | Failed:
        """In a worker process: errors are made fit to travel, and what asks for the end (SystemExit) is told too."""
        try:
            made = self.read(ask)
        except BaseException as end:
            made = Failed(ask.number, None, end)
        return made._replace(error=portable(made.error)) if isinstance(made, Failed) else made

    def read(self, ask: Ask) -> Made | Failed:
        """The batch, or why there is none. What is no Exception (KeyboardInterrupt) passes."""
        items = self._items(ask)
        if isinstance(items, Failed):
            return items
        if ask.seed is not None:
            # No item's seed: what is drawn for a batch is not what was drawn for one of its items.
            generators.seed_all(generators.mixed(~ask.seed, ask.epoch, ask.number))
        given = list(items)
        collate = self._collate_fn
        try:
            default = require_torch("a batch").utils.data.default_collate
            batch = default(items) if collate is None else collate(items)
        except Exception as error:
            if of_signal(error):
                raise
            return Failed(ask.number, None, error if collate is not None else _why(ask.ids, given, error))
        two = type(batch) in (tuple, list) and len(batch) == 2 == len(given)
        return Made(ask.number, batch, two and all(map(operator.is_, batch, given)))

    def _items(self, ask: Ask) -> list[Any] | Failed:
        places = ask.ids if self._ids is None else [self._ids[id] for id in ask.ids]
        if _gives_together(self.dataset):
            return self._together(self.dataset.__getitems__, places, ask)
        found = []
        for id, place in zip(ask.ids, places, strict=True):
            if ask.seed is not None:
                generators.seed_all(generators.mixed(ask.seed, ask.epoch, id))
            try:
                found.append(self.dataset[place])
            except Exception as error:
                if of_signal(error):
                    raise
                return Failed(ask.number, id, error)
        return found

    def _together(self, together: Callable[[list[int]], Any], places: list[int], ask: Ask) -> list[Any] | Failed:
        by_id = dict(zip(ask.ids, places, strict=True))

        def read(ids: list[int]) -> list[Any]:
            return list(together([by_id[id] for id in ids]))

        try:
            if ask.seed is None:
                items = read(ask.ids)
            else:
                items = generators.together(ask.seed, ask.epoch, ask.ids, read, self._drew)
        except Exception as error:
            if of_signal(error):
                raise
            return self._blamed(read, ask, error)
        if len(items) == len(places):
            return items
        words = f"dataset.__getitems__ returned {len(items)} items for {len(places)} indices: it must return one an index"
        return Failed(ask.number, None, SampleError(words))

    def _blamed(self, read: Callable[[list[int]], list[Any]], ask: Ask, error: Exception) -> Failed:
        """The item for which ``__getitems__`` raised, found by asking for each alone."""
        for id in ask.ids:
            try:
                read([id])
            except Exception as own:
                return Failed(ask.number, id, own)
        made = SampleError(f"dataset.__getitems__ raised {type(error).__name__}: {error}")
        made.__cause__ = error
        return Failed(ask.number, None, made)


def _gives_together(dataset: Any) -> bool:
    """Whether a dataset has a ``__getitems__`` of its own: torch's ``Subset`` has one for whatever it is a part of."""
    subset = require_torch("a batch").utils.data.Subset
    while type(dataset) is subset:
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))


def _why(ids: list[int], items: list[Any], error: Exception) -> Exception:
    """Why torch's ``default_collate`` refused items, with the first that is made otherwise than the first of all."""
    words = f"{type(error).__name__}: {error}"
    empty = next((path for item in items for path in _nones(item)), None)
    try:
        structure = Structure(items[0])
        for id, item in zip(ids or range(len(items)), items, strict=True):
            structure.pack(item, id)
    except SampleError as found:
        words = str(found).replace("item 0", f"item {ids[0]}") if ids else str(found)
    except Exception:
        pass
    remedy = "give collate_fn=, or open it with lf.open(dataset, varying=True) and say how lengths are joined, pad=0"
    if "PIL." in words:
        remedy = "return tensors (torchvision's v2.ToImage()), or give collate_fn= or transform=lf.ImageTransform(…)"
    elif empty is not None and "NoneType" in words:
        words = f"{empty} is None, which torch's default_collate refuses"
        remedy = "return a text or a number in its place, or give collate_fn="
    more = "…" if len(ids) > 4 else ""
    made = SampleError(f"items {ids[:4]}{more} of the dataset cannot be collated: {words}; {remedy}")
    made.__cause__ = error
    return made


def _nones(item: Any, path: str = "item") -> Iterator[str]:
    """The places of None in an item."""
    if item is None:
        yield path
    parts = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, (tuple, list)) else ()
    for key, part in parts:
        yield from _nones(part, f"{path}[{key!r}]")


def collated(items: list[Any]) -> Any:
    """Torch's ``default_collate`` for the items of a cache; refusals name the place."""
    try:
        return require_torch("a batch").utils.data.default_collate(items)
    except Exception as error:
        if of_signal(error):
            raise
        why = _why([], items, error)
        raise SampleError(str(why).replace("items [] of the dataset", "a batch of the dataset's items")) from error


class _Start:
    """What a worker process does first."""

    def __init__(self, init_fn: Callable[[int], Any] | None) -> None:
        self._init_fn = init_fn
        #: As :func:`parent_of_workers` finds it when they are started.
        self.parent: int | None = None

    def __call__(self, number: int) -> None:
        as_worker(self.parent)
        info = require_torch("a worker").utils.data.get_worker_info()
        if info is not None:
            # What a worker_init_fn looks for there is its own dataset. The object refuses to be set.
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._init_fn is not None:
            called("worker_init_fn", self._init_fn, number)


class TorchReading:
    """How a loader has its batches read: for all of its passes."""

    def __init__(self, items: Items, workers: int | None, settings: dict[str, Any]) -> None:
        self.items = items
        #: Worker processes; 0 reads in the calling thread, with its generators. None: likewise, but seeded by (seed,
        #: epoch, id), where "auto" may start no process.
        self.workers = workers
        #: Keywords of torch's DataLoader.
        self._settings = settings
        self.timeout: float = settings["timeout"]
        self._process = Process()
        self._loader: Any = None
        self._plan: Any = None
        self._start = _Start(settings.get("worker_init_fn"))

    def begin(self, asks: Iterator[Ask], seed: int, batches: Batches) -> None:
        """Gives `batches` an iterator over those of `asks`, by torch's loader. It asks ahead."""
        torch = require_torch("worker processes")
        if self._loader is None:
            self._plan = _Plan()
            settings = self._settings | {"worker_init_fn": self._start, "collate_fn": operator.itemgetter(0)}
            with _without_advice():
                self._loader = torch.utils.data.DataLoader(
                    self.items,
                    batch_sampler=self._plan,
                    num_workers=self.workers,
                    generator=torch.Generator(),
                    **settings,
                )
        self._loader.generator.manual_seed(seed & (2**63 - 1))
        loader = self._loader

        def make() -> Any:
            # `batches` ends it if a signal interrupts this: torch's own __del__ waits, and a signal in it is lost.
            kind = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
            made = batches.inner = kind.__new__(kind)
            made.__init__(loader)
            return made

        # It asks for the first batches when it is made, and gets none: by then its queues are those of multiprocessing.
        self._plan.asks = iter(())
        context = loader.multiprocessing_context or multiprocessing
        self._start.parent = parent_of_workers(context)
        loader._get_iterator = make
        try:
            with kept_while(forking=context.get_start_method() == "fork"), _without_advice():
                batches.inner = made = iter(loader)
                if made not in torch_iterators.known:
                    torch_iterators.known.add(made)
                    made._lossfeed_asks = torch_iterators.put_apart(made._index_queues)
        finally:
            del loader._get_iterator
        self._plan.asks = asks
        for _ in range(loader.prefetch_factor * loader.num_workers):
            made._try_put_index()

    def lasting(self) -> Any:
        """The iterator whose workers outlive a pass, if there is one."""
        return getattr(self._loader, "_iterator", None)

    def end(self) -> None:
        """Ends worker processes that outlive a pass."""
        if self._process.is_this() and (found := self.lasting()) is not None:
            self._loader._iterator = None
            torch_iterators.end_workers(found, 0.0)

    def __del__(self) -> None:
        self.end()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """torch advises against more workers than processors, which is for whoever asks for them to know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        yield


class _Plan:
    """A batch sampler: each of its batches is one ask. It goes on where `asks` are exchanged after their end."""

    def __init__(self) -> None:
        self.asks: Iterator[Ask] = iter(())

    def __iter__(self) -> _Plan:
        return self

    def __next__(self) -> list[Ask]:
        return [next(self.asks)]


class Batches:
    """Reads the batches of one pass. What was taken from the engine is held by the pass until the loop has seen it, with
    what was read of it: an interrupted wait loses none, and goes on."""

    def __init__(self, reading: TorchReading, taking: _native.Pass) -> None:
        self._reading, self._pass = reading, taking
        #: Threads may share a pass. Reentrant: a signal's exception may fall between its taking and its block.
        self._lock = threading.RLock()
        #: torch's iterator; None where there is none yet, or an interrupted one was given up.
        self.inner: Any = None
        #: What it was asked for and has not given, by number; and what it is to be asked for before all others.
        self._asked: dict[int, _native.Taken] = {}
        self._next: deque[_native.Taken] = deque()

    def fields(self, taken: _native.Taken, seed: int) -> Fields:
        """A batch's fields, which are read now or were read ahead.

        Raises:
            SampleError: an item could not be read, or they cannot be collated. What ``collate_fn`` raised.
            SourceError: a worker process ended. TimeoutError: the batch is late, and may still come.
        """
        started = time.perf_counter()
        self._pass.asks()
        try:
            if taken.sent is None:
                self._read(taken, seed)
        finally:
            self._pass.answered(int((time.perf_counter() - started) * 1e6))
        made, ids, weight = taken.sent
        if isinstance(made, Failed):
            _raise(made, taken.ticket)
        return of_batch(made.batch, made.items, None, ids, weight)

    def _read(self, taken: _native.Taken, seed: int) -> None:
        if self._reading.workers:
            with self._lock:
                try:
                    self._read_by_workers(taken, seed)
                except RuntimeError as error:
                    # torch raises of a dead worker by a signal's handler, in the middle of whatever runs then.
                    if not str(error).startswith("DataLoader worker"):
                        raise
                    self._give_up()
                    raise _died(error) from error
            return
        ask, own = _ask(taken, None if self._reading.workers == 0 else seed)
        with contextlib.nullcontext() if ask.seed is None else generators.kept():
            taken.sent = self._reading.items.read(ask), *own

    def _read_by_workers(self, taken: _native.Taken, seed: int) -> None:
        try:
            if self.inner is None:
                self._asked.clear()
                self._next = deque([taken])
                epoch = taken.ticket.epoch
                self._reading.begin(self._asks(seed), generators.mixed(seed, epoch, taken.ticket.number), self)
            elif taken.ticket.number not in self._asked:
                self._next.append(taken)
            while taken.sent is None:
                made = next(self.inner)
                of = self._asked.pop(made.number)
                of.sent = made, *_own(of)
        except StopIteration:
            self._give_up()
            raise SourceError("worker processes ended before delivering their batches: please report this bug") from None
        except (RuntimeError, OSError, ValueError) as error:
            words = str(error)
            if words.startswith("DataLoader timed out"):
                raise TimeoutError(
                    f"no batch came within timeout={self._reading.timeout:g} s: the dataset is slower than that; raise "
                    "timeout, or num_workers"
                ) from None
            self._give_up()
            # Of a loader that another thread has closed that is the reason.
            self._pass.asks()
            if of_signal(error):
                raise
            raise _died(error) from error
        except BaseException:
            self._give_up()
            raise

    def _asks(self, seed: int) -> Iterator[Ask]:
        while True:
            found = self._next.popleft() if self._next else self._ahead()
            if found is None:
                return
            self._asked[found.ticket.number] = found
            yield _ask(found, seed)[0]

    def _ahead(self) -> _native.Taken | None:
        """The first batch ahead that was not asked for."""
        at = 0
        while (found := self._pass.look_ahead(at, wait=True)) is not None:
            if found.sent is None and found.ticket.number not in self._asked:
                return found
            at += 1
        return None

    def _give_up(self) -> None:
        inner, self.inner = self.inner, None
        self._reading.end()
        torch_iterators.end_workers(inner, 0.0)

    def end(self) -> None:
        """The pass is over. Workers that live on finish what they have in hand."""
        inner, self.inner = self.inner, None
        if inner is not None and inner is not self._reading.lasting():
            torch_iterators.end_workers(inner, torch_iterators.LEAVE_S)


def _died(error: Exception) -> SourceError:
    return SourceError(
        f"a worker process ended: {error}. If the system killed it for its memory, use a smaller num_workers; if the "
        "dataset's code ended it, mend that"
    )


def _own(taken: _native.Taken) -> tuple[Any, Any]:
    """Ids and weights of a batch, in memory of their own."""
    slot = taken.slot
    *_, ids, weight = slot.fields()
    return to_torch(bytearray(ids), "int64", (slot.rows,)), to_torch(bytearray(weight), "float32", (slot.rows,))


def _ask(taken: _native.Taken, seed: int | None) -> tuple[Ask, tuple[Any, Any]]:
    ticket, own = taken.ticket, _own(taken)
    return Ask(own[0].tolist(), seed, ticket.epoch, ticket.number), own


def _raise(failed: Failed, ticket: _native.Ticket) -> NoReturn:
    """Raises what the batch of a ticket failed for."""
    error, place = failed.error, f"batch {ticket.number} of epoch {ticket.epoch}"
    if failed.id is not None:
        raise SampleError(f"{place}: dataset item {failed.id} raised {type(error).__name__}: {error}") from error
    if isinstance(error, SampleError):
        raise SampleError(f"{place}: {error}") from error.__cause__
    if isinstance(error, StopIteration):
        # It would end the loop as if the epoch were over (PEP 479).
        raise RuntimeError(f"{place}: collate_fn or the dataset's __getitems__ raised StopIteration") from error
    # The user's collate_fn's own.
    raise error

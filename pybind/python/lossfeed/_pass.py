"""One pass over one epoch."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from . import _native
from ._account import Account
from ._batch import Batch
from ._device import Courier
from ._mixing import Mixer
from ._process import OfThisProcess
from ._ranks import Watch
from ._generic import D, Of, Y
from ._views import Fields, Views, collated, collated_rows, of_batch, transformed
from ._workers import Batches, Reading


@dataclass
class Line:
    """What passes need of their loader. It does not know the loader, which ends when its last user lets go."""

    account: Account
    views: Views
    #: Takes batches to a CUDA device; None leaves them in host memory.
    courier: Courier | None
    collate_fn: Callable[[list[Any]], Any] | None
    #: Seconds to wait for a batch; 0 is for ever.
    timeout_s: float
    seed: int
    world: Watch
    #: Batches an epoch.
    batches: int
    #: Whether batches get memory of their own where the consumer holds so many that slots run out.
    spares: bool = False
    #: Where batches go that are put together in host memory by the user's ``collate_fn``; None where they are.
    move_to: str | None = None
    #: The user's own change of ``batch.data``, where batches are handed out.
    transform: Callable[..., Any] | None = None
    #: Knows how batches are mixed; None where they are not.
    mixer: Mixer | None = None
    #: Who reads the items of a Python dataset, where batches are not the engine's.
    reading: Reading | None = None


class _Lost:
    """What went wrong with the batch after next: told when its turn comes."""

    def __init__(self, error: Exception, taken: int) -> None:
        self.error = error
        self.taken = taken


class Pass(OfThisProcess, Of[D, Y], Iterator[Batch[D, Y]]):
    """One pass over one epoch. Dropping it ends the pass; the loader's position stays where it ended.

    The epoch begins with its first batch: trainers make iterators only to see whether they can, and those must cost no
    epoch."""

    def __init__(self, line: Line, begin: Callable[[Pass[D, Y]], int]) -> None:
        self._line = line
        self._engine = line.account.engine()
        line.world.check()
        #: The loader's, which must not end before its pass.
        self._begin = begin
        #: Threads may share a pass.
        self._beginning = threading.Lock()
        #: The engine's number for it, which counts from 1; 0 until its first batch is asked for.
        self._iteration = 0
        self._batches = self._engine.batches_per_epoch()
        #: What is on its way to the device: (fields, ticket), or what went wrong with it.
        self._ahead: tuple[Any, Any] | _Lost | None = None
        #: Batches taken by the last call, which raised before it could return them.
        self._unseen = 0
        self._over = False
        #: The batches of worker processes; None before the first.
        self._read: Batches | None = None

    def __iter__(self) -> Pass[D, Y]:
        return self

    def begin(self) -> None:
        """Begins the epoch now, without a wait for its first batch: the workers run ahead. That batch does it else."""
        with self._beginning:
            if self._iteration == 0:
                self._iteration = self._begin(self)
                self._batches = self._engine.batches_per_epoch()

    def __next__(self) -> Batch[D, Y]:
        if self._over:
            raise StopIteration
        line = self._line
        line.account.engine()
        line.world.check()
        self._unseen = 0
        if self._iteration == 0:
            line.account.uses.look_around()
            self.begin()
        try:
            line.account.deliver()
            if line.reading is not None:
                found = self._next_of_items(line.reading)
            else:
                found = self._next_on_host() if line.courier is None else self._next_on_device(line.courier)
            if found is not None:
                # What the user's transform raises finds the batch unseen.
                self._unseen = int(self._read is None)
                batch = self._made(*found)
        except BaseException as error:
            # A batch that is late may still come, and Ctrl-C may be caught; any other error ends the pass.
            if self._unseen or not isinstance(error, (TimeoutError, KeyboardInterrupt)):
                self._end()
            raise
        if found is None:
            self._over = True
            line.account.uses.look_back(self._engine)
            raise StopIteration
        if line.account.graph is not None:
            line.account.graph.lend(batch)
        self._unseen = 0
        line.account.uses.look_along(self._engine)
        if self._read is not None:
            self._read.seen()
        return batch

    def _made(self, fields: Fields, ticket: _native.Ticket) -> Batch[Any, Any]:
        line = self._line
        if line.move_to is not None:
            fields = fields.to(line.move_to)
        if line.transform is not None:
            fields = transformed(fields, line.transform, None if line.collate_fn is not None else line.views.structure)
        batch: Batch[Any, Any] = fields.batch(ticket, line.account.uses)
        if line.mixer is not None:
            batch._mix = line.mixer.of(batch.target, batch._weight, line.seed, ticket)
        return batch

    def _next_on_host(self) -> Any:
        found = self._engine.next_batch(self._iteration, self._line.timeout_s)
        if found is None:
            return None
        # What the user's collate_fn raises finds the batch unseen.
        self._unseen = 1
        slot, ticket = found
        views, collate_fn = self._line.views, self._line.collate_fn
        fields = views.of(slot) if collate_fn is None else collated(views, slot, collate_fn)
        return (fields.apart() if self._line.spares and slot.is_scarce() else fields), ticket

    def _next_of_items(self, reading: Reading) -> Any:
        if self._read is None:
            self._read = Batches(reading, self._engine, self._iteration, self._line.seed)
        found = self._read.next()
        if found is None:
            # Every batch was seen: the engine ends the pass.
            self._engine.next_batch(self._iteration, 0.0)
            return None
        made, ids, weight, ticket = found
        return of_batch(made.batch, made.items, None, ids, weight), ticket

    def _next_on_device(self, courier: Courier) -> Any:
        """Hands out the batch sent last time and sends the one after it if it is ready, so that its copy runs while the
        consumer works. What goes wrong with that one is told when its turn comes.

        Without loader threads no batch is ever ready before it is asked for: see ``poll_batch``."""
        ahead = self._ahead
        if isinstance(ahead, _Lost):
            raise ahead.error
        if ahead is None:
            found = self._engine.next_batch(self._iteration, self._line.timeout_s)
            if found is None:
                return None
            self._unseen = 1
            ahead = self._ahead = self._send(courier, found)
            self._unseen = 0
        fields = courier.receive(ahead[0])
        self._ahead, self._unseen = None, 1
        taken = 0
        try:
            found = self._engine.poll_batch(self._iteration)
            if found is not None:
                taken = 1
                self._ahead = self._send(courier, found)
        except Exception as error:
            self._ahead = _Lost(error, taken)
        collate_fn = self._line.collate_fn
        return (fields if collate_fn is None else collated_rows(fields, collate_fn)), ahead[1]

    def _send(self, courier: Courier, found: tuple[_native.Slot, _native.Ticket]) -> tuple[Any, Any]:
        slot, ticket = found
        return courier.send(slot, self._line.seed, ticket), ticket

    @property
    def under_way(self) -> bool:
        """Whether it has begun, and not ended."""
        return self._iteration != 0 and not self._over

    def held(self) -> int:
        """Batches taken from the engine that the consumer has not seen."""
        ahead = self._ahead
        if self._read is not None:
            return len(self._read.held)
        return self._unseen + (0 if ahead is None else ahead.taken if isinstance(ahead, _Lost) else 1)

    def _end(self) -> None:
        """Ends the pass where the consumer stands in it."""
        if not self._over and self._iteration != 0:
            self._over = True
            self._engine.abandon(self._iteration, self.held())
            if self._read is not None:
                self._read.end()

    def __len__(self) -> int:
        """Batches an epoch."""
        return self._batches

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self._end()

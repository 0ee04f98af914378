"""One pass over one epoch."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from .. import _native
from .._base.errors import TimeoutError
from .._base.process import OfThisProcess
from .._base.ranges import ranged
from .._base.signals import of_signal
from .._batch.batch import Batch
from .._batch.courier import Courier
from .._batch.generic import D, Of, Y
from .._batch.views import Fields, Views, collated, collated_rows, transformed
from .._loss.scoring import Account
from .._transform.mixing import Mixer
from .ranks import Watch
from .torch_workers import Batches, TorchReading


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
    reading: TorchReading | None = None


class Pass(OfThisProcess, Of[D, Y], Iterator[Batch[D, Y]]):
    """One pass over one epoch. Dropping it ends the pass; the loader's position stays where it ended.

    The epoch begins with its first batch: trainers make iterators only to see whether they can, and those must cost no
    epoch."""

    def __init__(self, line: Line, begin: Callable[[Pass[D, Y]], None]) -> None:
        self._line = line
        self._engine = line.account.engine()
        line.world.check()
        #: The loader's, which must not end before its pass.
        self._begin = begin
        #: Threads may share a pass. Reentrant: a signal's exception may fall between its taking and its block.
        self._beginning = threading.RLock()
        #: Holds what was taken until it is handed out.
        self._native = _native.Pass(self._engine)
        self._batches = self._engine.batches_per_epoch()
        self._over = False
        #: The batches whose items are read elsewhere, if they are.
        self._read = None if line.reading is None else Batches(line.reading, self._native)

    def __iter__(self) -> Pass[D, Y]:
        return self

    def begin(self) -> None:
        """Begins the epoch now, without a wait for its first batch: the workers run ahead. That batch does it else."""
        with self._beginning:
            if not self._native.begun:
                self._begin(self)

    def start(self, ids: Any = None, ends: Any = None) -> None:
        """For :attr:`_begin`: starts the epoch, in an order of the user's if there is one."""
        self._native.begin(ids, ends)
        self._batches = self._engine.batches_per_epoch()

    @ranged("lossfeed.next")
    def __next__(self) -> Batch[D, Y]:
        if self._over:
            raise StopIteration
        line, passing = self._line, self._native
        line.account.engine()
        line.world.check()
        if not passing.begun:
            line.account.uses.look_around()
            self.begin()
        try:
            line.account.deliver()
            taken = passing.take(line.timeout_s)
            if taken is not None:
                if self._read is not None:
                    fields = self._read.fields(taken, line.seed)
                else:
                    fields = self._on_host(taken) if line.courier is None else self._on_device(line.courier, taken)
                batch = self._made(fields, taken.ticket)
                line.account.uses.look_along(self._engine)
                if line.account.graph is not None:
                    line.account.graph.lend(batch)
                # The one place where a batch becomes a seen one. Signals are looked for behind calls: none comes between
                # this store and the loop, and a batch that an earlier one keeps from it is handed out by the next call.
                passing.handed_out = taken
                return batch
        except BaseException as error:
            # A batch that is late may still come, and what a signal raised may be caught; any other error ends the pass.
            if not isinstance(error, (TimeoutError, KeyboardInterrupt)) and not of_signal(error):
                self._end()
            raise
        self._over = True
        line.account.uses.look_back(self._engine)
        raise StopIteration

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

    def _on_host(self, taken: _native.Taken) -> Fields:
        slot, views, collate_fn = taken.slot, self._line.views, self._line.collate_fn
        fields = views.of(slot) if collate_fn is None else collated(views, slot, collate_fn)
        return fields.apart() if self._line.spares and slot.is_scarce() else fields

    def _on_device(self, courier: Courier, taken: _native.Taken) -> Fields:
        """Hands out the batch sent last time and sends the one after it if it is ready, so that its copy runs while the
        consumer works. What goes wrong with that one is told when its turn comes.

        Without loader threads no batch is ever ready before it is asked for: see ``look_ahead``."""
        fields = courier.receive(self._sent(courier, taken))
        try:
            ahead = self._native.look_ahead()
            if ahead is not None:
                self._sent(courier, ahead)
        except Exception as error:
            if of_signal(error):
                raise
        collate_fn = self._line.collate_fn
        return fields if collate_fn is None else collated_rows(fields, collate_fn)

    def _sent(self, courier: Courier, taken: _native.Taken) -> Any:
        """What sending it has returned; sends it first, unless that was done."""
        if taken.sent is None:
            taken.sent = courier.send(taken.slot, self._line.seed, taken.ticket)
        return taken.sent

    @property
    def under_way(self) -> bool:
        """Whether it has begun, and not ended."""
        return self._native.begun and not self._over

    def _end(self) -> None:
        """Ends the pass where the consumer stands in it."""
        if not self._over:
            self._over = True
            self._native.abandon()
            if self._read is not None:
                self._read.end()

    def __len__(self) -> int:
        """Batches an epoch."""
        return self._batches

    def __del__(self) -> None:
        if getattr(self, "_native", None) is not None:
            self._end()

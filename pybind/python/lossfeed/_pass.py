"""One pass over one epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

from . import _native
from ._batch import Batch, collated
from ._errors import UsageError

if TYPE_CHECKING:
    from ._loader import Loader


class _Lost:
    """What went wrong with the batch after next: told when its turn comes."""

    def __init__(self, error: Exception, taken: int) -> None:
        self.error = error
        self.taken = taken


class Pass(Iterator[Batch]):
    """One pass over one epoch. Dropping it ends the pass; the loader's position stays where it ended."""

    def __init__(self, loader: Loader, engine: _native.Engine, iteration: int) -> None:
        self._loader = loader
        self._engine = engine
        self._iteration = iteration
        #: What is on its way to the device: (fields, ticket), or what went wrong with it.
        self._ahead: tuple[Any, Any] | _Lost | None = None
        #: Batches taken by the last call, which raised before it could return them.
        self._unseen = 0
        self._over = False

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Batch:
        if self._over:
            raise StopIteration
        loader = self._loader
        if loader._engine is None:
            raise UsageError("this loader is closed: make a new one")
        loader._check_world()
        self._unseen = 0
        try:
            found = self._next_on_device() if loader._courier is not None else self._next_on_host()
        except BaseException as error:
            # A batch that is late may still come, and Ctrl-C may be caught; any other error ends the pass.
            if self._unseen or not isinstance(error, (TimeoutError, KeyboardInterrupt)):
                self._end()
            raise
        if found is None:
            self._over = True
            loader._uses.look_back(loader)
            raise StopIteration
        self._unseen = 1
        fields, ticket = found
        if loader._collate_fn is not None:
            fields = collated(fields, loader._collate_fn)
        data, target, ids, weight = fields
        batch = Batch(data, target, ids, weight, ticket, loader._uses)
        if loader._framework == "torch":
            loader._graph.lend(batch)
        self._unseen = 0
        return batch

    def _next_on_host(self) -> Any:
        if self._loader._mail is not None:
            self._loader._mail.deliver()
        found = self._engine.next_batch(self._iteration, self._loader._timeout_s)
        if found is None:
            return None
        slot, ticket = found
        return self._loader._views.of(slot), ticket

    def _next_on_device(self) -> Any:
        """Hands out the batch sent last time and sends the one after it if it is ready, so that its copy runs while the
        consumer works. What goes wrong with that one is told when its turn comes."""
        loader = self._loader
        if loader._mail is not None:
            loader._mail.deliver()
        ahead = self._ahead
        if isinstance(ahead, _Lost):
            raise ahead.error
        if ahead is None:
            found = self._engine.next_batch(self._iteration, loader._timeout_s)
            if found is None:
                return None
            self._unseen = 1
            ahead = self._ahead = self._send(found)
            self._unseen = 0
        fields = loader._courier.receive(ahead[0])
        self._ahead, self._unseen = None, 1
        taken = 0
        try:
            found = self._engine.poll_batch(self._iteration)
            if found is not None:
                taken = 1
                self._ahead = self._send(found)
        except Exception as error:
            self._ahead = _Lost(error, taken)
        return fields, ahead[1]

    def _send(self, found: tuple[_native.Slot, _native.Ticket]) -> tuple[Any, Any]:
        slot, ticket = found
        return self._loader._courier.send(slot, self._loader._settings["seed"], ticket), ticket

    def _held(self) -> int:
        """Batches taken from the engine that the consumer has not seen."""
        ahead = self._ahead
        return self._unseen + (0 if ahead is None else ahead.taken if isinstance(ahead, _Lost) else 1)

    def _end(self) -> None:
        """Ends the pass where the consumer stands in it."""
        if not self._over:
            self._over = True
            self._engine.abandon(self._iteration, self._held())

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self._loader)

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None:
            self._end()

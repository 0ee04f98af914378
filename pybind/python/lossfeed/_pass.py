"""One pass over one epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

from . import _native
from ._batch import Batch, collated
from ._errors import UsageError

if TYPE_CHECKING:
    from ._loader import Loader


class Pass(Iterator[Batch]):
    """One pass over one epoch. Dropping it ends the pass."""

    def __init__(self, loader: Loader, engine: _native.Engine, iteration: int) -> None:
        self._loader = loader
        self._engine = engine
        self._iteration = iteration
        self._ahead: Any = None
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
        try:
            found = self._next_on_device() if loader._courier is not None else self._next_on_host()
        except BaseException as error:
            # A batch that is late may still come, and Ctrl-C may be caught; any other error ends the pass.
            self._over = not isinstance(error, (TimeoutError, KeyboardInterrupt))
            raise
        if found is None:
            self._over = True
            loader._uses.look_back(loader)
            raise StopIteration
        fields, ticket = found
        if loader._collate_fn is not None:
            fields = collated(fields, loader._collate_fn)
        data, target, ids, weight = fields
        batch = Batch(data, target, ids, weight, ticket, loader._uses)
        if loader._framework == "torch":
            loader._graph.lend(batch)
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
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, BaseException):
            raise ahead
        if ahead is None:
            found = self._engine.next_batch(self._iteration, loader._timeout_s)
            if found is None:
                return None
            ahead = self._send(found)
        fields = loader._courier.receive(ahead[0])
        try:
            found = self._engine.poll_batch(self._iteration)
            if found is not None:
                self._ahead = self._send(found)
        except Exception as error:
            self._ahead = error
        return fields, ahead[1]

    def _send(self, found: tuple[_native.Slot, _native.Ticket]) -> Any:
        slot, ticket = found
        return self._loader._courier.send(slot, self._loader._settings["seed"], ticket), ticket

    def _held(self) -> int:
        """Batches taken from the engine that the consumer has not seen."""
        return 1 if isinstance(self._ahead, tuple) and not self._over else 0

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self._loader)

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None and not self._over:
            engine.abandon(self._iteration)

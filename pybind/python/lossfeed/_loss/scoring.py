"""Where a loader's scores are credited: its engine, and what each way home keeps from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _native
from .._base.errors import UsageError

if TYPE_CHECKING:
    from .._batch.usage import Uses


class Account:
    """A loader's account of scores. The hooks know the loader by it alone, so they do not keep the loader alive."""

    def __init__(self, engine: _native.Engine, batch_size: int, uses: Uses) -> None:
        self._engine: _native.Engine | None = engine
        #: Most rows of a batch.
        self.batch_size = batch_size
        self.uses = uses
        #: By the device's number: where its kernels mail scores to. :func:`lossfeed._torch.cuda.mailbox` makes them.
        self.mailboxes: dict[int, _native.Mailbox] = {}
        #: Scores on their way by copies of torch's (:class:`lossfeed._torch.mail.Mail`), where a device lacks our kernels.
        self.mail: Any = None
        #: What calls on a CUDA device have decided already (:class:`lossfeed._torch.plans.Plans`).
        self.plans: Any = None
        #: What a compiled step sees of this account (:class:`lossfeed._torch.graph.Graph`), in a process with torch.
        self.graph: Any = None

    def engine(self) -> _native.Engine:
        """The engine.

        Raises:
            UsageError: the loader is closed.
        """
        if self._engine is None:
            raise UsageError("this loader is closed: make a new one")
        return self._engine

    def deliver(self, wait: bool = False) -> None:
        """Takes up the scores that have come from devices without our kernels; all that are on their way if `wait`. And
        says whether weights were read."""
        if self.mail is not None:
            self.mail.deliver(wait)
        if self._engine is not None and self.uses.weight_read:
            self._engine.weights_are_read()

    @property
    def dropped_total(self) -> int:
        """Scores that found no room in the mail of devices without our kernels."""
        return 0 if self.mail is None else self.mail.dropped_total

    def close(self) -> None:
        """Takes no more scores."""
        self._engine = self.plans = None
        for mailbox in self.mailboxes.values():
            mailbox.close()
        self.mailboxes = {}

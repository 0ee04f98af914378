"""The seed of a run that was given none: it follows ``torch.manual_seed``."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._base.memory import require_torch


class Seeds:
    """Draws from torch's generator what torch's DataLoader draws for an epoch: one number for its workers, and one for the
    order where ``shuffle=True`` makes it. Random numbers of the training loop are then the same with either.

    The first number is the run's seed, unless it has one. The others steer nothing: an epoch's order is a matter of
    (seed, epoch), so that ``set_epoch`` brings the same order again and a state need not hold it."""

    def __init__(self, generator: Any, shuffles: bool) -> None:
        self._generator = generator
        #: Whether torch would draw for the order. It shuffles by a generator that it was given.
        self._shuffles = shuffles and generator is None

    def draw(self) -> int:
        """The next number, as torch's DataLoader draws it."""
        torch = require_torch("a seed of torch's generator")
        generator = self._generator
        device = "cpu" if generator is None else generator.device
        return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator).item())

    def settle(self, engine: _native.Engine) -> None:
        """Gives the engine its seed, if that is still open."""
        if engine.seed() is None:
            engine.settle_seed(self.draw())

    def begin(self, engine: _native.Engine) -> None:
        """An epoch begins."""
        drawn = self.draw()
        if self._shuffles:
            self.draw()
        if engine.seed() is None:
            engine.settle_seed(drawn)

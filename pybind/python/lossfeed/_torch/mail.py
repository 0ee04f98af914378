"""Scores on their way home by copies of torch's own, from devices that our kernels do not know."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch

from .. import _native
from .._base.errors import UsageError
from .._base.memory import span
from .._loss.scoring import Account


class Mail:
    """Scores that are copied to page-locked memory, and taken up when their event has passed. Nothing waits. Bounded:
    what finds no room is dropped and counted."""

    def __init__(self, account: Account, capacity: int = 64) -> None:
        # Not the account: that one has the mail, and a circle would keep both until a collection.
        self._engine = account.engine()
        self._capacity = capacity
        self._waiting: deque[tuple[Any, Any, Any, _native.Ticket, bool]] = deque()
        self.dropped_total = 0
        self._delivers = threading.Lock()

    def post(self, ticket: _native.Ticket, floats: Any, counts: Any, norms: bool) -> None:
        """Queues the copy of float32 ``(k, B)`` scores (loss, grad_norm if `norms`, maybe entropy) and int32 counts."""
        if torch.cuda.is_current_stream_capturing():
            raise UsageError(
                "scores computed by torch's operators cannot be captured in a CUDA graph: score outside of the capture"
            )
        self.deliver()
        if len(self._waiting) >= self._capacity:
            self.dropped_total += floats.shape[1]
            return
        home = torch.empty(floats.shape, dtype=torch.float32, pin_memory=True)
        home_counts = torch.empty(counts.shape, dtype=torch.int32, pin_memory=True)
        with torch.cuda.device(floats.device):
            home.copy_(floats, non_blocking=True)
            home_counts.copy_(counts, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting.append((event, home, home_counts, ticket, norms))

    def deliver(self, wait: bool = False) -> None:
        """Takes up what has arrived; all of it if `wait`."""
        # One thread at a time: a loop's own and one that stages ahead may both come, and each has to take what it asked
        # about.
        with self._delivers:
            while self._waiting and (wait or self._waiting[0][0].query()):
                event, floats, counts, ticket, norms = self._waiting.popleft()
                if wait:
                    event.synchronize()
                loss, *others = map(span, floats)
                grad_norm = others.pop(0) if norms else None
                entropy = others[0] if others else None
                self._engine.apply_scores(ticket, loss, grad_norm, entropy, span(counts))

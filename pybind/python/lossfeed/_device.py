"""Batches on their way to a CUDA device."""

from __future__ import annotations

from collections import deque
from typing import Any

from . import _native
from ._batch import Views
from ._errors import DeviceError
from ._memory import require_torch, to_torch


class Courier:
    """Copies whole batch slots to one device on a stream of its own.

    One copy a batch, out of page-locked memory. The copy waits for what the consumer's stream has queued so far, since
    the allocator may hand out memory that this work still reads; the consumer's stream waits for the copy; the CPU
    waits for neither. A slot is let go of when the event behind its copy has passed.
    """

    def __init__(self, device: str, views: Views) -> None:
        torch = require_torch(f"device={device!r}")
        if not torch.cuda.is_available():
            raise DeviceError(
                f"device={device!r}, but this PyTorch ({torch.__version__}) sees no CUDA device: use device='cpu', or look at `lossfeed doctor`"
            )
        self._torch = torch
        # "cuda" is torch's current device, which a rank may have chosen, and not the driver's first.
        self._device = torch.device(device) if ":" in device else torch.device("cuda", torch.cuda.current_device())
        self.name = str(self._device)
        self._stream = torch.cuda.Stream(self._device)
        self._views = views
        self._underway: deque[tuple[Any, _native.Slot]] = deque()

    def send(self, slot: _native.Slot) -> tuple[Any, Any, Any]:
        """Queues the copy; what it returns is for :meth:`receive`."""
        torch = self._torch
        self.reap()
        buffer = slot.block()
        host = to_torch(buffer, "uint8", (len(buffer),))
        with torch.cuda.device(self._device):
            block = torch.empty(len(buffer), dtype=torch.uint8, device=self._device)
            consumer = torch.cuda.current_stream()
            self._stream.wait_stream(consumer)
            with torch.cuda.stream(self._stream):
                slot.copying()
                block.copy_(host, non_blocking=True)
                event = torch.cuda.Event()
                event.record(self._stream)
        # Should the block die before anyone waits for the event, its memory must not be reused under the copy.
        block.record_stream(self._stream)
        self._underway.append((event, slot))
        return block, event, (consumer, slot.ranges(), slot.rows)

    def receive(self, sent: tuple[Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        """The fields of a sent batch; the current stream waits for its copy."""
        torch = self._torch
        block, event, (allocated_on, ranges, rows) = sent
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        if stream != allocated_on:
            block.record_stream(stream)
        kinds = self._views.kinds(rows)
        fields = (
            block[start:end].view(getattr(torch, dtype)).view(shape)
            for (start, end), (dtype, shape) in zip(ranges, kinds, strict=True)
        )
        return tuple(fields)  # type: ignore[return-value]

    def reap(self) -> None:
        """Lets go of the slots whose copies have ended."""
        while self._underway and self._underway[0][0].query():
            self._underway.popleft()

    def close(self) -> None:
        """Waits for the copies under way: their slots are about to be unmapped."""
        while self._underway:
            self._underway.popleft()[0].synchronize()


class Mail:
    """Scores on their way home from a device, without a wait: copied to page-locked memory and taken up when their event
    has passed. Bounded; what finds no room is dropped and counted."""

    def __init__(self, engine: _native.Engine, capacity: int = 64) -> None:
        self._engine = engine
        self._capacity = capacity
        self._waiting: deque[tuple[Any, Any, Any, _native.Ticket]] = deque()
        self.dropped_total = 0

    def post(self, ticket: _native.Ticket, floats: Any, counts: Any) -> None:
        """Queues the copy of float32 ``(k, B)`` scores (loss, and maybe grad_norm and entropy) and int32 counts."""
        import torch

        self.deliver()
        if len(self._waiting) >= self._capacity:
            self.dropped_total += 1
            return
        home = torch.empty(floats.shape, dtype=torch.float32, pin_memory=True)
        home_counts = torch.empty(counts.shape, dtype=torch.int32, pin_memory=True)
        with torch.cuda.device(floats.device):
            home.copy_(floats, non_blocking=True)
            home_counts.copy_(counts, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting.append((event, home, home_counts, ticket))

    def deliver(self, wait: bool = False) -> None:
        """Takes up what has arrived; all of it if `wait`."""
        from ._memory import span

        while self._waiting and (wait or self._waiting[0][0].query()):
            event, floats, counts, ticket = self._waiting.popleft()
            if wait:
                event.synchronize()
            both = len(floats) == 3
            grad_norm, entropy = (span(floats[1]), span(floats[2])) if both else (None, None)
            self._engine.apply_scores(ticket, span(floats[0]), grad_norm, entropy, span(counts))

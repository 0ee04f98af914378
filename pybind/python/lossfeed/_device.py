"""Batches on their way to a CUDA device."""

from __future__ import annotations

from collections import deque
from typing import Any

from . import _native
from ._batch import Views
from ._errors import DeviceError
from ._memory import require_torch, to_torch


class Courier:
    """Copies whole batch slots to one device on a stream of its own, and makes images of them there.

    One copy a batch, out of page-locked memory. The copy waits for what the consumer's stream has queued so far, since
    the allocator may hand out memory that this work still reads; the consumer's stream waits for the copy (and the images);
    the CPU waits for neither. A slot is let go of when the event behind its copy has passed.
    """

    def __init__(self, device: str, views: Views, transform: _native.ImageTransform | None = None) -> None:
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
        self._kernels = None
        #: The transform, where the device's kernels cannot be had (which they say in a warning): the loader's threads do it then.
        self.left_to_the_host = transform
        if transform is not None:
            from ._cuda import kernels

            self._kernels = kernels(self._device)
        self._transform = transform if self._kernels is not None else None
        if self._transform is not None:
            self.left_to_the_host = None

    def send(self, slot: _native.Slot, seed: int, ticket: _native.Ticket) -> tuple[Any, Any, Any]:
        """Queues the copy; what it returns is for :meth:`receive`."""
        torch = self._torch
        while self._underway and self._underway[0][0].query():
            self._underway.popleft()
        buffer = slot.block()
        host = to_torch(buffer, "uint8", (len(buffer),))
        ranges = slot.ranges()
        with torch.cuda.device(self._device):
            consumer = torch.cuda.current_stream()
            # What is handed out comes from the consumer's stream, and what only the images are made from, from ours.
            first = 0 if self._transform is None else ranges[1][0]
            block = torch.empty(len(buffer) - first, dtype=torch.uint8, device=self._device)
            made = None
            if self._transform is not None:
                dtype, shape = self._views.kinds(slot.rows)[0]
                made = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
            self._stream.wait_stream(consumer)
            with torch.cuda.stream(self._stream):
                block.copy_(host[first:], non_blocking=True)
                if made is None:
                    ready = copied = torch.cuda.Event()
                    copied.record(self._stream)
                else:
                    pixels = host[: ranges[0][1]].to(self._device, non_blocking=True)
                    copied, ready = torch.cuda.Event(), torch.cuda.Event()
                    copied.record(self._stream)
                    key = _native.ImageTransform.key(seed, ticket.epoch, ticket.number)
                    ids = block.data_ptr() + ranges[2][0] - first
                    self._kernels.images(
                        self._stream.cuda_stream, self._transform, key, slot.rows, pixels.data_ptr(), ids, made.data_ptr()
                    )
                    ready.record(self._stream)
        # Should they die before anyone waits for the event, their memory must not be reused under the copy.
        for tensor in (block, made):
            if tensor is not None:
                tensor.record_stream(self._stream)
        self._underway.append((copied, slot))
        return (block, made), ready, (consumer, [(start - first, end - first) for start, end in ranges], slot.rows)

    def receive(self, sent: tuple[Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        """The fields of a sent batch; the current stream waits for its copy."""
        torch = self._torch
        (block, made), event, (allocated_on, ranges, rows) = sent
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        if stream != allocated_on:
            block.record_stream(stream)
            if made is not None:
                made.record_stream(stream)
        fields = [
            block[start:end].view(getattr(torch, dtype)).view(shape)
            for (start, end), (dtype, shape) in zip(ranges, self._views.kinds(rows), strict=True)
            if start >= 0
        ]
        data, target, ids, weight = fields if made is None else (made, *fields)
        return self._views.shown(data), target, ids, weight

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

"""Batches on their way to a CUDA device."""

from __future__ import annotations

from collections import deque
from typing import Any

from . import _native
from ._batch import Views
from ._errors import DeviceError, UsageError
from ._memory import require_torch


class Courier:
    """Sends whole batch slots to one device on a stream of its own, and makes images of them there.

    One call a batch: the engine copies out of page-locked memory, after what the consumer's stream has queued so far, since
    the allocator may hand out memory that this work still reads. The consumer's stream waits for the copy (and the images);
    the CPU waits for neither. A thread of the engine lets go of a slot when its copy has ended.
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
        self._views = views
        self._transform = transform
        #: Whether the loader's threads must transform: the device's kernels cannot be had (a warning has said why).
        self.host_transforms = False
        if transform is not None:
            from ._cuda import kernels

            if kernels(self._device) is None:
                self.host_transforms, self._transform = True, None

    def start(self, engine: _native.Engine) -> None:
        """Takes up work for an engine on this device."""
        self._native = engine.courier()
        self._stream = self._torch.cuda.ExternalStream(self._native.stream, device=self._device)

    def send(self, slot: _native.Slot, seed: int, ticket: _native.Ticket) -> tuple[Any, Any, Any]:
        """Queues the copy; what it returns is for :meth:`receive`."""
        torch = self._torch
        ranges = slot.ranges()
        with torch.cuda.device(self._device):
            consumer = torch.cuda.current_stream()
            if self._transform is None:
                block, made = self._lent(torch.uint8, slot.total_bytes), None
                sent = self._native.send(slot, block.data_ptr(), consumer.cuda_stream)
            else:
                first = ranges[1][0]
                dtype, shape = self._views.kinds(slot.rows)[0]
                block, made = self._lent(torch.uint8, slot.total_bytes - first), self._lent(getattr(torch, dtype), shape)
                with torch.cuda.stream(self._stream):
                    # Ours alone: given back at once, and handed out again in the order of our stream.
                    pixels = torch.empty(ranges[0][1], dtype=torch.uint8, device=self._device)
                key = _native.ImageTransform.key(seed, ticket.epoch, ticket.number)
                sent = self._native.send_images(
                    slot, self._transform, key, block.data_ptr(), pixels.data_ptr(), made.data_ptr(), consumer.cuda_stream
                )
                ranges = [(start - first, end - first) for start, end in ranges[1:]]
        return (block, made), sent, (consumer, ranges, slot.rows)

    def _lent(self, dtype: Any, shape: Any) -> Any:
        """Memory of the consumer's stream that is written on ours: should it die before anyone waits, it must not be used again
        under the copy."""
        tensor = self._torch.empty(shape, dtype=dtype, device=self._device)
        tensor.record_stream(self._stream)
        return tensor

    def receive(self, sent: tuple[Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        """The fields of a sent batch; the current stream waits for its copy."""
        torch = self._torch
        (block, made), end, (allocated_on, ranges, rows) = sent
        stream = torch.cuda.current_stream(self._device)
        end.wait_on(stream.cuda_stream)
        if stream != allocated_on:
            block.record_stream(stream)
            if made is not None:
                made.record_stream(stream)
        kinds = self._views.kinds(rows)[0 if made is None else 1 :]
        fields = [
            block[start:end].view(getattr(torch, dtype)).view(shape)
            for (start, end), (dtype, shape) in zip(ranges, kinds, strict=True)
        ]
        data, target, ids, weight = fields if made is None else (made, *fields)
        return self._views.shown(data), target, ids, weight


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

        if torch.cuda.is_current_stream_capturing():
            raise UsageError("scores that torch's operators compute cannot be part of a captured graph: score outside of the capture")
        self.deliver()
        if len(self._waiting) >= self._capacity:
            self.dropped_total += floats.shape[-1]  # samples, as all counters of scores
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

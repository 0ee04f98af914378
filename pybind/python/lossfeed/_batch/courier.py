"""Batches on their way to a CUDA device."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._base.errors import DeviceError
from .._base.memory import is_tensor, require_torch
from .._base.torch_imports import torch_half
from .batch import moved
from .documents import Documents
from .views import Fields, Views


class Courier:
    """Sends whole batch slots to one device on a stream of its own, and makes images of them there, retouched before
    and mixed after if asked.

    One call a batch: the engine copies out of page-locked memory, after what the consumer's stream has queued so far,
    since the allocator may hand out memory that this work still reads. The consumer's stream waits for the copy (and
    the images); the CPU waits for neither. A thread of the engine lets go of a slot when its copy has ended.
    """

    def __init__(self, device: str, views: Views, transform: _native.ImageTransform | None = None, rank: int = 0) -> None:
        torch = require_torch(f"device={device!r}")
        if not torch.cuda.is_available():
            raise DeviceError(
                f"device={device!r}, but this PyTorch ({torch.__version__}) finds no CUDA device: use device='cpu', "
                "or run `lossfeed doctor`"
            )
        self._torch = torch
        # "cuda" is torch's current device, which a rank may have chosen, and not the driver's first.
        self._device = torch.device(device) if ":" in device else torch.device("cuda", torch.cuda.current_device())
        self.name: str = str(self._device)
        self._views = views
        self._transform, self._rank = transform, rank
        #: Whether the loader's threads must transform: the device's kernels cannot be had (a warning has said why).
        self.host_transforms: bool = False
        if transform is not None:
            if torch_half("a device").cuda.kernels(self._device) is None:
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
                first = ranges[1][0]  # images are one field
                dtype, shape = self._views.kinds(slot.rows)[0]
                block = self._lent(torch.uint8, slot.total_bytes - first)
                made = self._lent(getattr(torch, dtype), shape)
                with torch.cuda.stream(self._stream):
                    # Ours alone: given back at once, and handed out again in the order of our stream.
                    size = self._transform.pixels_bytes(slot.rows)
                    pixels = torch.empty(size, dtype=torch.uint8, device=self._device)
                key = _native.ImageTransform.key(seed, ticket.epoch, ticket.number)
                there = block.data_ptr(), pixels.data_ptr(), made.data_ptr()
                sent = self._native.send_images(slot, self._transform, key, self._rank, *there, consumer.cuda_stream)
                ranges = [(start - first, end - first) for start, end in ranges[1:]]
        return (block, made), sent, (consumer, ranges, slot.rows, self._views.tail(slot))

    def _lent(self, dtype: Any, shape: Any) -> Any:
        """Memory of the consumer's stream that is written on ours: should it die before anyone waits, it must not be
        used again under the copy."""
        tensor = self._torch.empty(shape, dtype=dtype, device=self._device)
        tensor.record_stream(self._stream)
        return tensor

    def receive(self, sent: tuple[Any, Any, Any]) -> Fields:
        """The fields of a sent batch; the current stream waits for its copy."""
        torch = self._torch
        (block, made), end, (allocated_on, ranges, rows, tail) = sent
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
        there = [_brought(part, self._device) for part in tail]
        return self._views.built(fields if made is None else [made, *fields], there)


def _brought(part: Any, device: Any) -> Any:
    """What was joined in host memory, on the device: by a copy that is waited for, as its memory is not page-locked."""
    if isinstance(part, Documents):
        return moved(part, device)
    return part.to(device) if is_tensor(part) else part

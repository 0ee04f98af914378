"""The GPU's own time, by CUDA events on the current stream; never a synchronisation.

Two events a step: one after a batch has come, one when the next is asked for. The time between the second and the next
first is the GPU's idle time for data: short where the queue of launched work covers the wait.
"""

import sys

#: A copy in so many steps is timed.
_EVERY = 8
#: Steps whose events are not read yet; more are dropped unread.
_OPEN = 64


class Clock:
    """Events of one rank. Off until the program uses CUDA."""

    def __init__(self, rank):
        self._slots, self._numbers = rank.slots, rank.numbers
        self.on, self.name, self.uuid = False, "cpu", None
        self._waiting, self._copies = [], []
        self._began = self._asked = None
        self._wait = 0.0
        self._step = 0

    def look(self):
        """Starts if the program uses CUDA by now."""
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if self.on or cuda is None or not cuda.is_initialized():
            return
        properties = cuda.get_device_properties(cuda.current_device())
        self.name = properties.name
        uuid = str(getattr(properties, "uuid", "") or "")
        self.uuid = uuid if not uuid or uuid.startswith("GPU-") else f"GPU-{uuid}"
        self._torch, self.on = torch, True
        self._change_copies(torch)

    def _event(self):
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def asked(self):
        """The loop asks for a batch."""
        self._asked = self._event()

    def answered(self, wait):
        """It has it, having waited so long."""
        now = self._event()
        if self._began is not None and self._asked is not None:
            if len(self._waiting) < _OPEN:
                self._waiting.append((self._began, self._asked, now, wait))
        self._began, self._asked = now, None
        self._step += 1
        self._read()

    def cut(self):
        """A pass ends or begins: the time up to the next batch is no step's."""
        self._began = self._asked = None

    def _read(self):
        at, n = self._slots.at, self._numbers
        while self._waiting and self._waiting[0][2].query():
            began, asked, ended, wait = self._waiting.pop(0)
            n[at["gpu_span"]] += began.elapsed_time(asked) / 1e3
            n[at["gpu_gap"]] += min(wait, asked.elapsed_time(ended) / 1e3)
            n[at["gpu_steps"]] += 1
        while self._copies and self._copies[0][1].query():
            began, ended, pinned = self._copies.pop(0)
            seconds = _EVERY * began.elapsed_time(ended) / 1e3
            n[at["copies"]] += seconds
            n[at["pageable"]] += 0.0 if pinned else seconds

    def _change_copies(self, torch):
        """Times `Tensor.to` and `Tensor.cuda` from host to device, in one of some steps."""
        compiling = torch.compiler.is_compiling

        def timed(original):
            def copy(tensor, *args, **keywords):
                if compiling() or self._step % _EVERY or tensor.device.type != "cpu":
                    return original(tensor, *args, **keywords)
                began = self._event()
                moved = original(tensor, *args, **keywords)
                if getattr(moved, "is_cuda", False) and len(self._copies) < _OPEN:
                    self._copies.append((began, self._event(), tensor.is_pinned()))
                return moved

            copy.__name__, copy.__doc__ = original.__name__, original.__doc__
            return copy

        for name in ("to", "cuda"):
            setattr(torch.Tensor, name, timed(getattr(torch.Tensor, name)))

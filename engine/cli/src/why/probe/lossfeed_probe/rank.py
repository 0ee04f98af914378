"""The numbers of one training process, a rank, and the clock of its loop.

A batch taken in the main thread is a step: the time inside the loader is the wait, the time up to the next call is
busy. Time between two passes belongs to neither.
"""

import os
import sys
import threading
import time

from . import gpu, slots

clock = time.perf_counter
processor_clock = time.process_time
NAMES = (
    "batches", "samples", "passes", "steps", "wait", "wait_first", "busy", "own_processor", "sync", "copies",
    "pageable", "gpu_span", "gpu_gap", "gpu_steps", "workers", "persistent", "pinned", "processors", "torch",
    "wait_longs", "wait_long", "busy_longs", "busy_long", "busy_long_processor", "readers",
    # The loop's processor time inside the loader, without first batches; tensors in a batch; a stream is read.
    "wait_processor", "pieces", "stream",
    # The run's first step, in which torch loads code, and its processor time: in no other number.
    "busy_first", "busy_first_processor",
    # Those of our own loader, from its engine.
    "stats", "engine_wait", "wait_source", "wait_decode", "wait_slot", "wait_copy", "wait_decide", "wait_handover",
    "filled", "work", "processor", "cache_capacity", "cache_used", "requests", "hits", "fetched", "fetched_bytes",
    "distinct", "dataset", "scores", "scores_late", "scores_dropped", "store_p50", "store_p99",
)  # fmt: skip
PLACE = {name: place for place, name in enumerate(NAMES)}
(BATCHES, SAMPLES, PASSES, STEPS, WAIT, FIRST, BUSY, OWN, SYNC) = range(9)
WAIT_LONGS, BUSY_LONGS, BUSY_FIRST = PLACE["wait_longs"], PLACE["busy_longs"], PLACE["busy_first"]
WAIT_PROCESSOR = PLACE["wait_processor"]
#: Waits and steps as long as this (seconds) are counted apart: few of them are pauses, and no pace.
LONG = 1.0


class Source:
    """A loader: how often it was asked, and what is set."""

    def __init__(self, name, **settings):
        self.name, self.settings, self.batches = name, settings, 0


class Rank:
    """This process's loop. All of it runs in the main thread."""

    def __init__(self):
        self.slots = slots.Slots("rank", NAMES)
        self.numbers = self.slots.numbers
        self.slots.set(processors=processors())
        #: End of the last wait; 0: outside of a pass.
        self.last = 0.0
        self.last_processor = 0.0
        #: The pass that gave the last batch, and the busy time of a pass whose loop another one interrupts.
        self.of, self.held = None, None
        #: Batches that this pass gave.
        self.given = 0
        #: True inside a loader: a loader that reads another is one wait.
        self.inside = False
        self.best = None
        self.gpu = gpu.Clock(self)

    def asked(self, of):
        """The loop of a pass asks for a batch; returns the time."""
        try:
            return self._asked(of)
        except Exception as error:
            give_up(error)
            return clock()

    def answered(self, of, asked, source, samples, first):
        """It has one. `first`: seconds that the pass took to start, if this is its first batch; else None."""
        try:
            self._answered(of, asked, source, samples, first)
        except Exception as error:
            give_up(error)

    def _asked(self, of):
        self.inside = True
        now, used, n = clock(), processor_clock(), self.numbers
        if self.last:
            busy, own = now - self.last, used - self.last_processor
            if self.held is not None and self.held[0] is of:
                busy, own = busy + self.held[1], own + self.held[2]
                self.held = None
            self._was_busy(busy, own)
            if self.gpu.on:
                self.gpu.asked()
        self.last_processor = used
        return now

    def _was_busy(self, busy, own):
        n = self.numbers
        if n[BATCHES] == 1:
            n[BUSY_FIRST], n[BUSY_FIRST + 1] = busy, own
            return
        n[BUSY] += busy
        n[OWN] += own
        if busy > LONG:
            n[BUSY_LONGS] += 1
            n[BUSY_LONGS + 1] += busy
            n[BUSY_LONGS + 2] += own

    def _answered(self, of, asked, source, samples, first):
        now, n = clock(), self.numbers
        self.inside = False
        wait, used = now - asked, processor_clock()
        if first is not None:
            wait += first
            n[FIRST] += wait
            n[PASSES] += 1
            self.given = 0
        else:
            n[WAIT_PROCESSOR] += used - self.last_processor
            if wait > LONG:
                n[WAIT_LONGS] += 1
                n[WAIT_LONGS + 1] += wait
        n[WAIT] += wait
        n[BATCHES] += 1
        n[SAMPLES] += samples
        self.given += 1
        source.batches += 1
        if source is not self.best and (self.best is None or source.batches > self.best.batches):
            self.settle(source)
        if self.gpu.on:
            self.gpu.answered(wait)
        elif n[BATCHES] in (2, 8, 19):
            self.gpu.look()
            self.describe()
        self.of, self.last_processor = of, used
        self.last = clock()

    def begins(self):
        """A pass begins. If the last one goes on later, what its loop did so far was a step's; if not, it was left. One
        that gave a single batch was a step of a loop that starts a pass for each."""
        if self.last:
            busy, own = clock() - self.last, processor_clock() - self.last_processor
            if self.given == 1:
                self._was_busy(busy, own)
            else:
                self.held = self.of, busy, own
            self.over()

    def over(self):
        """The pass has no more batches, or ended with an error."""
        self.inside = False
        self.last = 0.0
        self.gpu.cut()

    def settle(self, source):
        """The loader that gave the most batches so far: its settings are those that count."""
        self.best = source
        self.slots.set(**source.settings)
        self.describe()

    def describe(self):
        """Writes who this is."""
        rank, world = 0, 1
        distributed = sys.modules.get("torch.distributed")
        try:
            rank, world = int(os.environ.get("RANK", 0) or 0), int(os.environ.get("WORLD_SIZE", 1) or 1)
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                rank, world = distributed.get_rank(), distributed.get_world_size()
        except Exception:
            pass
        source = self.best.name if self.best else ""
        slots.describe("rank", pid=os.getpid(), rank=rank, world_size=world, script=sys.argv[0] if sys.argv else "",
                       source=source, device=self.gpu.name, gpu_uuid=self.gpu.uuid)  # fmt: skip


def processors():
    """Processors for this rank: those that it may run on, by its affinity and its group's quota, shared with the other
    ranks of the machine where the launcher has not bound each to its own."""
    own = os.sched_getaffinity(0)
    count = float(len(own))
    try:
        group = _text("/proc/self/cgroup").rpartition("0::")[2].strip()
        while True:
            quota, period = (_text(f"/sys/fs/cgroup{group}/cpu.max") or "max 1").split()
            if quota != "max":
                count = min(count, float(quota) / float(period))
            if group in ("", "/"):
                break
            group = os.path.dirname(group)
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1) or 1)
        if ranks > 1 and os.sched_getaffinity(os.getppid()) == own:
            count /= ranks
    except (OSError, ValueError):
        pass
    return max(1.0, count)


def _text(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


_MAIN = threading.main_thread().ident
_rank = None
_off = False


def here():
    """The rank of this process, where its main thread asks; None elsewhere, inside a loader, and if it cannot write."""
    global _rank, _off
    if _off or threading.get_ident() != _MAIN:
        return None
    if _rank is None:
        try:
            _rank = Rank()
        except Exception as error:
            give_up(error)
            return None
    return None if _rank.inside else _rank


def give_up(error):
    """Measures no more in this process, whose program comes first."""
    global _rank, _off
    _rank, _off = None, True
    sys.stderr.write(f"lossfeed why: nothing more is measured: {error!r}\n")


def known():
    """The rank, if it has one already and its main thread asks."""
    return _rank if threading.get_ident() == _MAIN else None


def _forked():
    global _rank, _MAIN, _off
    # The parent's numbers are its own. A worker process of a loader is no rank.
    _rank, _MAIN, _off = None, threading.get_ident(), False


os.register_at_fork(after_in_child=_forked)

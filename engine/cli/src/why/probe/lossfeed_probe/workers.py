"""The making of batches, in worker processes or in the loop itself: how long it takes, how much of that is computing,
and whether the interpreter or compiled code computes.

A fetch's processor time tells waiting from computing, and the kernel's run-queue delay tells both from a machine whose
processors are taken. What computes is sampled, about twenty times a second and only where fetches compute: if the
interpreter's lock had to be waited for, Python ran; if not, compiled code. The frame that ran is seen when the lock has
come, so a sample shortens the interval after which Python must give it: code that releases it by itself every
millisecond is else asked in vain until a longer call, which is the one that would be seen.
"""

import os
import random
import sys
import threading
import time

from . import slots

_clock, _processor = time.perf_counter, time.thread_time
NAMES = ("parent", "batches", "wall", "processor", "delay", "longest", "python", "compiled", "spent")
(PARENT, BATCHES, WALL, PROCESSOR, DELAY, LONGEST, PYTHON, COMPILED, SPENT) = range(len(NAMES))
#: Seconds between two samples, the most that is added to them by chance, and the number of samples.
_PERIOD, _SPREAD, _SAMPLES = 0.04, 0.02, 1200
#: Seconds after which Python gives the interpreter's lock to a sample.
_SOON = 2e-4
#: A lock that came later (seconds) was held. Timers alone are late by a tenth of a millisecond.
_HELD = 0.15e-3
#: Sampling starts after so many fetches, if they compute for so long.
_WARM, _LEAST = 3, 0.5e-3
#: Packages whose Python functions only lead to compiled code.
_LEADS = (
    "PIL", "gzip", "torch", "torchvision", "torchaudio", "torchcodec", "numpy", "cv2", "av", "decord", "imageio",
    "skimage", "scipy", "albumentations", "kornia", "pyarrow", "pandas", "h5py", "zarr", "soundfile", "librosa",
    "tifffile", "lzma", "bz2", "zstandard", "turbojpeg", "simplejpeg",
)  # fmt: skip


class Maker:
    """This process's numbers."""

    def __init__(self, kind):
        parent = _parent(kind == "pool")
        #: True in the loop's own process: its fetches are its waits.
        self.inline = parent == os.getpid()
        self.numbers = slots.Slots("inline" if self.inline else kind, NAMES).numbers
        self.numbers[PARENT] = parent
        self._began = time.process_time()
        self.fetching = 0
        #: True if the last fetch took its time: of short ones no delay is read, which would be a large part of them.
        self.long = True
        self._sampler = None
        self._delay = Delay()

    def delay(self):
        """Seconds that this thread has waited for a processor since it began."""
        if self._delay.thread != threading.get_ident():
            self._delay = Delay()
        return self._delay.read()

    def fetched(self, wall, processor, delay):
        """One batch is made."""
        n = self.numbers
        n[BATCHES] += 1
        n[WALL] += wall
        n[PROCESSOR] += processor
        n[DELAY] += delay
        if not self.inline:
            # What it takes to hand batches over is in it, but for the last one.
            n[SPENT] = time.process_time() - self._began
        self.long = wall >= _LEAST
        if wall > n[LONGEST]:
            n[LONGEST] = wall
        if self._sampler is None and n[BATCHES] >= _WARM and n[PROCESSOR] > _LEAST * n[BATCHES]:
            about = (threading.get_ident(),)
            self._sampler = threading.Thread(target=self._sample, args=about, daemon=True, name="lossfeed-why")
            self._sampler.start()

    def _sample(self, thread):
        global _usual
        n = self.numbers
        task = f"/proc/self/task/{_native_id(thread)}/stat"
        own = Delay()
        draw = random.Random(0).random
        for _ in range(_SAMPLES):
            time.sleep(_PERIOD)
            _usual = usual = sys.getswitchinterval()
            sys.setswitchinterval(min(usual, _SOON))
            soon = sys.getswitchinterval()
            before, wait = own.read(), _SPREAD * draw()
            began = _clock()
            time.sleep(wait)
            late = _clock() - began - wait - (own.read() - before)
            if sys.getswitchinterval() == soon:
                sys.setswitchinterval(usual)
            _usual = None
            if not self.fetching:
                continue
            held = late >= _HELD
            try:
                if not held and not _runs(task):
                    continue
                frame = sys._current_frames().get(thread)
            except OSError:
                return
            n[PYTHON if held and not _leads(frame) else COMPILED] += 1


class Delay:
    """Run-queue delay of one thread, the one that makes this; 0 where the kernel does not say."""

    def __init__(self):
        self.thread = threading.get_ident()
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self):
        """Seconds since the thread began."""
        try:
            return 0.0 if self._fd < 0 else int(os.pread(self._fd, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def __del__(self):
        if self._fd >= 0:
            os.close(self._fd)


def _native_id(thread):
    for one in threading.enumerate():
        if one.ident == thread:
            return one.native_id
    return os.getpid()


def _runs(task):
    """True if a thread computes, or waits for a processor."""
    with open(task, "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"R"


def _leads(frame):
    """True if the innermost Python function belongs to a package of compiled code."""
    if frame is None:
        return False
    name = frame.f_globals.get("__name__") or ""
    return name.partition(".")[0] in _LEADS


def _parent(worker):
    """The process whose loop is fed: the parent of a worker, or this one."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    parent = multiprocessing.parent_process() if multiprocessing else None
    return parent.pid if parent is not None and (worker or _is_worker()) else os.getpid()


def _is_worker():
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


_maker = None
_off = False
#: The program's own switch interval, while a sample's holds.
_usual = None


def _here(kind):
    global _maker, _off
    if _maker is None and not _off:
        try:
            _maker = Maker(kind)
        except Exception:
            _off = True
    return _maker


def _forked():
    global _maker, _off, _usual
    _maker, _off = None, False
    if _usual is not None:
        # The thread that would set it back is the parent's.
        sys.setswitchinterval(_usual)
        _usual = None


os.register_at_fork(after_in_child=_forked)


def change_fetchers(module):
    """For `torch.utils.data._utils.fetch`."""
    for kind in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        kind.fetch = _timed(kind.fetch, "fetch")


def change_items(module):
    """For `lossfeed._loader.torch_workers`: the loop may read a dataset itself, without torch's loader."""
    module.Items.read = _timed(module.Items.read, "fetch")


def change_pool(module):
    """For `lossfeed._data.process_pool`: its processes read items for the cache, not whole batches."""
    module._answer = _timed(module._answer, "pool")


def _timed(fetch, kind):
    def timed(*args):
        maker = _here(kind)
        if maker is None or maker.fetching:
            return fetch(*args)
        maker.fetching = 1
        queued = maker.delay() if maker.long else None
        computed, began = _processor(), _clock()
        try:
            data = fetch(*args)
        finally:
            maker.fetching = 0
        wall, computed = _clock() - began, _processor() - computed
        maker.fetched(wall, computed, 0.0 if queued is None else maker.delay() - queued)
        return data

    timed.__doc__ = fetch.__doc__
    return timed

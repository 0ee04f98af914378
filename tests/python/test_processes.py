"""Worker processes behind a Python dataset: the same rows, the dataset's own exceptions, and an end that is never
late."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf


class Rows(torch.utils.data.Dataset):
    """Through the usual lazily opened handle, at the offset that it shares with nobody."""

    def __init__(self, path, rows):
        np.repeat(np.arange(rows, dtype=np.int64), 8).tofile(path)
        self.path, self.rows, self.handle, self.readers = path, rows, None, set()

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        if self.handle is None:
            self.handle = open(self.path, "rb", buffering=0)
        self.handle.seek(i * 64)
        return np.frombuffer(self.handle.read(64), np.int64).copy(), os.getpid()


class Fails(torch.utils.data.Dataset):
    def __init__(self, error, at=7):
        self.error, self.at = error, at

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == self.at:
            raise self.error
        return np.float32(i), i


def gone(pid):
    until = time.monotonic() + 20
    while time.monotonic() < until:
        multiprocessing.active_children()  # reaps those that have ended
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("cache", [None, "50%"])
def test_every_row_is_right_and_no_item_is_read_here(tmp_path, workers, cache):
    dataset = Rows(tmp_path / "rows", 600)
    data = lf.open(dataset, processes=3)
    loader = lf.Loader(data, 60, num_workers=workers, cache=cache, stats=False)
    readers, seen = set(), []
    for _ in range(2):
        for batch in loader:
            assert (batch.data == batch.ids[:, None]).all()
            readers |= set(batch.target.tolist())
            seen += batch.ids.tolist()
    assert sorted(seen) == sorted(2 * list(range(600)))
    assert os.getpid() not in readers and 1 <= len(readers) <= 3 and dataset.handle is None
    loader.close()
    del loader, data
    import gc

    gc.collect()
    # What the engine's threads let go of last is let go of at the next call from Python.
    lf.open((np.zeros(1), np.zeros(1)))
    assert all(gone(pid) for pid in readers), "they end with the data"


def test_the_datasets_own_exception_comes_over_with_its_traceback():
    with pytest.raises(lf.SampleError, match="item 7.*no such picture") as raised:
        list(lf.Loader(lf.open(Fails(KeyError("no such picture")), processes=2), 4, num_workers=2))
    cause = raised.value
    while cause.__cause__ is not None:
        cause = cause.__cause__
    assert type(cause) is KeyError and cause.args == ("no such picture",) and "__getitem__" in cause.__notes__[0]
    loader = lf.Loader(lf.open(Fails(ValueError("bad")), processes=2), 4, on_error="skip", num_workers=2)
    assert sorted(np.concatenate(epoch_ids(loader)).tolist()) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]


class Stubborn(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_exception_that_cannot_travel_is_told_in_words():
    with pytest.raises(lf.SampleError, match="item 7 raised: Stubborn: 1 and 2") as raised:
        list(lf.Loader(lf.open(Fails(Stubborn(1, 2)), processes=1), 4, num_workers=1))
    assert "Stubborn, raised in a worker process" in str(raised.value.__cause__)


@pytest.mark.parametrize("error", [KeyboardInterrupt("me"), SystemExit(3)])
def test_what_asks_for_the_end_passes_through_from_there_too(error):
    loader = lf.Loader(lf.open(Fails(error), processes=2), 4, on_error="skip", num_workers=2)
    with pytest.raises(type(error)) as raised:
        list(loader)
    assert raised.value.args == error.args and loader.bad_samples() == []


def test_a_first_item_that_raises_and_bad_keywords_are_told_when_it_is_opened(numbers, tmp_path):
    with pytest.raises(lf.SampleError, match="item 0 raised ZeroDivisionError"):
        lf.open(Fails(ZeroDivisionError(), at=0), processes=2)
    for data in (numbers, str(tmp_path)):
        with pytest.raises(lf.SettingsError, match="processes=2 is for Python datasets"):
            lf.open(data, processes=2)
    with pytest.raises(lf.SettingsError, match="each process has its own copy"):
        lf.open(Fails(None, None), processes=2, thread_safe=True)
    for wrong in (-1, 1.5, True):
        with pytest.raises(lf.SettingsError, match="processes="):
            lf.open(Fails(None, None), processes=wrong)


class Killed(Fails):
    def __getitem__(self, i):
        if i == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.float32(i), i


@pytest.mark.parametrize("workers", [0, 2])
def test_a_process_that_is_killed_is_an_error_with_a_name_and_no_bad_sample(workers):
    data = lf.open(Killed(None), processes=2)
    for _ in range(2):
        loader = lf.Loader(data, 4, num_workers=workers, on_error="skip", stats=False)
        with pytest.raises(lf.SourceError, match=r"worker process \d of Killed \(pid \d+\) was killed by SIGKILL.*fewer processes"):
            list(loader)
        assert loader.bad_samples() == []
    assert sorted(np.concatenate(epoch_ids(lf.Loader(lf.open(Killed(None, at=None), processes=2), 4))).tolist()) == list(range(12))


class Interrupts(Fails):
    def __getitem__(self, i):
        if i == self.at and not os.path.exists(self.error):
            open(self.error, "w").close()
            os.kill(os.getppid(), signal.SIGINT)
        return np.float32(i), i


def test_answers_that_nobody_waited_for_are_not_taken_for_others(tmp_path):
    data = lf.open(Interrupts(tmp_path / "done"), processes=2)
    loader = lf.Loader(data, 4, num_workers=0, stats=False)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    for _ in range(2):
        seen = [(x, i) for batch in loader for x, i in zip(batch.data.tolist(), batch.ids.tolist(), strict=True)]
        assert sorted(seen) == [(float(i), i) for i in range(12)]


def test_random_draws_are_found_through_them_too():
    class Draws(Fails):
        def __getitem__(self, i):
            return np.float32(random.random()), i

    with pytest.raises(lf.SettingsError, match="changes each time it is read, and the cache would freeze its first version"):
        lf.Loader(lf.open(Draws(None), processes=1), 4, cache="100%")


SCRIPT = """
import os, signal, sys, time, numpy as np, lossfeed as lf
from lossfeed._loader import closing as _closing
_closing.EXIT_S = 0.3
here = os.getpid()
class Stuck:
    def __len__(self): return 8
    def __getitem__(self, i):
        if i > 0:
            # One write: two processes may come here at once.
            os.write(1, f"{{os.getpid()}}\\n".encode())
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        return np.float32(i), i
if __name__ == "__main__":
    data = lf.open(Stuck(), processes=2)
    loader = lf.Loader(data, 4, num_workers=1)
    it = iter(loader)
    it.begin()
    {end}
"""


@pytest.mark.parametrize(
    "end,code",
    [("next(it)", -signal.SIGINT), ("time.sleep(0.2); sys.exit(7)", 7)],
    ids=["Ctrl-C", "exit"],
)
def test_a_process_that_hangs_holds_up_no_exit_and_is_not_left_over(tmp_path, end, code):
    (tmp_path / "program.py").write_text(textwrap.dedent(SCRIPT).format(end=end))
    running = subprocess.Popen([sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stuck = int(running.stdout.readline())
    if code == -signal.SIGINT:
        running.send_signal(signal.SIGINT)
    # The output ends when nobody holds it open, so neither process is left over.
    rest, errors = running.communicate(timeout=240)
    assert running.returncode == code, errors
    assert all(map(gone, [stuck, *map(int, rest.split())]))


def test_a_process_whose_parent_was_killed_ends_by_itself():
    script = """
    import os, signal, numpy as np, lossfeed as lf
    class Set:
        def __len__(self): return 8
        def __getitem__(self, i): return np.float32(i), os.getpid()
    data = lf.open(Set(), processes=2)
    pids = {pid for batch in lf.Loader(data, 1, num_workers=2) for pid in batch.target.tolist()}
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == -signal.SIGKILL
    pids, deadline = [int(pid) for pid in done.stdout.split()], time.monotonic() + 120
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pids and all(map(gone, pids))


def test_a_process_that_waits_for_a_full_pipe_or_its_dataset_ends_with_its_parent_too():
    script = """
    import os, signal, sys, threading, time, numpy as np, lossfeed as lf
    class Large:
        def __len__(self): return 8
        def __getitem__(self, i):
            if i > 0:
                os.write(1, f"{os.getpid()}\\n".encode())
                if os.getpid() % 2:
                    time.sleep(1000)
            return np.zeros(1 << 22, np.uint8), i
    data = lf.open(Large(), processes=2)
    for worker in data._adaptors[0]._workers:
        worker.ask([1], None)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    # The output ends when nobody holds it open, so no process is left over.
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.returncode == -signal.SIGKILL and len(done.stdout.split()) >= 2


class Wide:
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return np.full(1 << 18, i, np.float32), i


def test_ctrl_c_in_the_middle_of_an_answer_leaves_the_next_one_whole():
    data = lf.open(Wide(), processes=1)
    loader = lf.Loader(data, 4, num_workers=0, stats=False)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for k in range(25):
            signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.002 * k)
            try:
                for batch in loader:
                    assert (batch.data[:, 0] == batch.ids).all() and (batch.data[:, -1] == batch.ids).all()
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    seen = [i for batch in loader for i in batch.ids.tolist() if bool((batch.data[:, 0] == batch.ids).all())]
    seen += [i for batch in loader for i in batch.ids.tolist()]
    assert set(seen) == set(range(24))


def test_ctrl_c_before_the_thread_that_receives_has_started_leaves_the_next_answer(monkeypatch):
    start, interrupted = threading.Thread.start, []

    def stopped(thread):
        if thread.name.endswith("-answers") and len(interrupted) < 2:
            interrupted.append(thread)
            if len(interrupted) == 2:  # the second one had just been started
                start(thread)
            raise KeyboardInterrupt
        start(thread)

    data = lf.open(Wide(), processes=1)
    monkeypatch.setattr(threading.Thread, "start", stopped)
    loader = lf.Loader(data, 4, num_workers=0, stats=False)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(iter(loader))
    assert len(interrupted) == 2
    for batch in loader:
        assert (batch.data[:, 0] == batch.ids).all() and (batch.data[:, -1] == batch.ids).all()


class Vanishes:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        os._exit(3)


def test_a_process_that_ends_before_its_first_word_is_an_error_of_ours():
    with pytest.raises(lf.SourceError, match=r"worker process 0 of Vanishes \(pid \d+\) ended with code 3"):
        lf.open(Vanishes(), processes=2)

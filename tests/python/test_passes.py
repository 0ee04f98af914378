"""What a pass does ahead of its consumer, and what is left of it when it ends."""

import contextlib
import re
import time
from pathlib import Path

import numpy as np
import pytest

import lossfeed as lf


class Counting:
    """A dataset that knows which items were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 32

    def __getitem__(self, i):
        self.read.append(i)
        return np.full(3, i, np.float32), 0


def test_without_loader_threads_no_batch_is_prepared_before_it_is_asked_for():
    """Asking whether one is ready is what a CUDA pass does behind each batch it hands out."""
    data = Counting()
    with lf.Loader(data, 8, num_workers=0, framework="numpy", stats=False, shuffle=False) as loader:
        passing = iter(loader)
        passing.begin()
        data.read.clear()
        assert passing._native.look_ahead() is None and data.read == []
        assert next(passing).ids.tolist() == list(range(8)) == data.read
        assert passing._native.look_ahead() is None and len(data.read) == 8, "the next batch was decided before its time"
        assert [batch.number for batch in passing] == [1, 2, 3]
        assert passing._native.look_ahead() is None


def test_with_loader_threads_a_ready_batch_is_there_when_asked_for():
    with lf.Loader(Counting(), 8, num_workers=1, framework="numpy", stats=False) as loader:
        passing = iter(loader)
        passing.begin()
        deadline = time.monotonic() + 60
        while (found := passing._native.look_ahead()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert found.ticket.number == 0


def loader_threads():
    """The threads of this process that fill batches, by number; Python does not know of them."""
    found = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it ends in the meantime
            if re.fullmatch(r"lossfeed-\d+", path.read_text().strip()):
                found.add(path.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed by Linux")
def test_a_pass_that_ran_out_of_slots_leaves_no_thread_waiting_for_one():
    """A thread that waits for a slot looks every 50 ms whether it should go on, for as long as the pass is under
    way."""
    data = np.zeros((64, 3), np.float32), np.zeros(64, np.int64)
    keywords = {"num_workers": 2, "framework": "numpy", "stats": False}
    others = loader_threads()  # of loaders that other tests have left
    with lf.Loader(data, 4, max_slots=7, timeout=0.2, **keywords) as loader:
        passing, held, seen_at_work = iter(loader), [], False
        with pytest.raises(lf.Error, match="batch slot"):
            for _ in range(16):
                held.append(next(passing))
                seen_at_work |= bool(loader_threads() - others)
        assert seen_at_work, "the threads that are counted must be seen while they work"
        assert next(passing, None) is None
        deadline = time.monotonic() + 60
        while loader_threads() - others and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not loader_threads() - others
        # The position is kept: another pass brings the rest, once there is room.
        state, seen = loader.state_dict(), len(held)
        held.clear()
    with lf.Loader(data, 4, **keywords) as again:
        again.load_state_dict(state)
        assert len(list(again)) == 16 - seen

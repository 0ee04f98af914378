"""Python datasets and threads: one call at a time unless the dataset bears more, and the same threads from call to
call."""

import os
import threading
import time

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf


class Entries:
    """Counts who is inside at a time."""

    def __init__(self):
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def __enter__(self):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        # The interpreter lock is let go of here: whoever may come in comes in.
        time.sleep(0.001)

    def __exit__(self, *_):
        with self.lock:
            self.inside -= 1


class Watched(torch.utils.data.Dataset):
    def __init__(self, n=96):
        self.n, self.entries = n, Entries()

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        with self.entries:
            return np.float32(i), i


class Batched(Watched):
    def __getitems__(self, ids):
        with self.entries:
            return [(np.float32(i), i) for i in ids]


class Social(Watched):
    """A reader that is inside waits until another one is."""

    def __getitem__(self, i):
        with self.entries:
            deadline = time.monotonic() + 60
            while threading.current_thread().name == "lossfeed-reader" and self.entries.most < 2 and time.monotonic() < deadline:
                time.sleep(0.001)
            return np.float32(i), i


class Marked(Social):
    thread_safe = True


def most_at_once(data, watched, loaders=1, **keywords):
    """The most threads that were inside of `watched` while `loaders` loaders ran over `data`, each in a thread of its
    own."""

    def run():
        assert sorted(np.concatenate(epoch_ids(lf.Loader(data, 4, stats=False, **keywords))).tolist()) == list(range(length))

    length = len(data)
    threads = [threading.Thread(target=run) for _ in range(loaders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return watched.entries.most


@pytest.mark.parametrize("kind", [Watched, Batched])
def test_loaders_with_a_cache_over_one_dataset_and_over_parts_of_it_take_turns(kind):
    dataset = kind()
    assert most_at_once(dataset, dataset, loaders=3, num_workers=0, cache="1KiB") == 1
    data = lf.open(dataset)
    assert most_at_once(data, dataset, loaders=3, num_workers=0, cache="1KiB") == 1
    halves = [torch.utils.data.Subset(dataset, range(0, 48)), torch.utils.data.ConcatDataset([torch.utils.data.Subset(dataset, range(48, 96))])]
    loaders = [lf.Loader(half, 4, num_workers=0, cache="1KiB", stats=False) for half in halves]
    threads = [threading.Thread(target=epoch_ids, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dataset.entries.most == 1


def test_a_thread_safe_dataset_is_called_by_several():
    marked, said = Marked(), Social()
    assert most_at_once(marked, marked, num_workers=4) > 1
    assert most_at_once(lf.open(said, thread_safe=True), said, num_workers=4) > 1
    assert most_at_once(torch.utils.data.Subset(wrapped := Marked(), range(96)), wrapped, num_workers=4) > 1


def test_an_open_that_says_no_counts_for_more_than_the_datasets_mark():
    refused = Watched()
    refused.thread_safe = True
    assert most_at_once(lf.open(refused, thread_safe=False), refused, num_workers=4) == 1


def test_what_is_not_a_python_dataset_refuses_the_word(numbers, tmp_path):
    for data in (numbers, str(tmp_path)):
        with pytest.raises(lf.SettingsError, match="thread_safe=True is for Python datasets"):
            lf.open(data, thread_safe=True)
    with pytest.raises(lf.SettingsError, match="thread_safe='yes' must be True or False"):
        lf.open(Watched(), thread_safe="yes")


class Handle(torch.utils.data.Dataset):
    """The usual lazily opened handle: seek, then read."""

    def __init__(self, path, rows):
        self.path, self.rows, self.handle = path, rows, None

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        if self.handle is None:
            self.handle = open(self.path, "rb", buffering=0)
        self.handle.seek(i * 64)
        time.sleep(0)
        return np.frombuffer(self.handle.read(64), np.int64).copy(), i


def test_a_lazily_opened_handle_gives_every_row_right(tmp_path):
    rows = 2000
    np.repeat(np.arange(rows, dtype=np.int64), 8).tofile(tmp_path / "rows")
    loader = lf.Loader(Handle(tmp_path / "rows", rows), 50, num_workers=4, stats=False)
    for batch in loader:
        assert (batch.data == batch.ids[:, None]).all() and (batch.target == batch.ids).all()


def test_a_handle_a_thread_is_opened_once_a_thread():
    class Local(Watched):
        thread_safe = True

        def __init__(self):
            super().__init__(200)
            self.local, self.opened = threading.local(), []

        def __getitem__(self, i):
            if not hasattr(self.local, "handle"):
                self.local.handle = object()
                self.opened.append(threading.get_ident())
            return super().__getitem__(i)

    dataset = Local()
    loader = lf.Loader(dataset, 4, num_workers=3, stats=False)
    for _ in range(3):
        epoch_ids(loader)
    # The three loader threads' readers, and this thread, which has looked at item 0.
    assert len(dataset.opened) == len(set(dataset.opened)) <= 4


def test_a_daemon_that_loads_by_itself_has_the_dataset_called_by_a_reader():
    """The interpreter ends daemons where they are: none of ours may be under the dataset's code then."""
    where = []

    class Where(Watched):
        def __getitem__(self, i):
            where.append(threading.current_thread().name)
            return np.float32(i), i

    data = lf.open(Where(8))
    for daemon in (True, False):
        loader = lf.Loader(data, 4, num_workers=0, cache="1KiB", stats=False)
        where.clear()
        thread = threading.Thread(target=epoch_ids, args=(loader,), daemon=daemon, name="consumer")
        thread.start()
        thread.join()
        assert set(where) == {"lossfeed-reader" if daemon else "consumer"}


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "lossfeed-reader"]


def test_readers_end_with_their_dataset():
    before = set(readers())
    loader = lf.Loader(lf.open(Watched(), thread_safe=True), 4, num_workers=1, stats=False)
    epoch_ids(loader)
    (mine,) = set(readers()) - before
    loader.close()
    del loader
    mine.join(60)
    assert not mine.is_alive()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_reads_the_same_dataset_with_readers_of_its_own():
    dataset = Watched(8)
    data = lf.open(dataset)
    loader = lf.Loader(data, 2, num_workers=2, stats=False)
    running = iter(loader)
    next(running)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for again in (data, dataset):
                assert sorted(np.concatenate(epoch_ids(lf.Loader(again, 2, num_workers=2, stats=False))).tolist()) == list(range(8))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert sum(len(batch) for batch in running) == 6

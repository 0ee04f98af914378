"""Passes that end early, wait, fork, or are interrupted; and how much memory all that takes."""

import gc
import os
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


def test_a_second_iterator_ends_the_first_with_a_clear_error(numbers):
    loader = lf.Loader(numbers, 8)
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(first).number == 1, "a pass begins with its first batch"
    assert next(second).epoch == 1
    with pytest.raises(lf.UsageError, match="one pass at a time"):
        next(first)
    assert len(list(second)) == 7


@pytest.mark.parametrize("sampler", ["uniform", "importance", "replay"])
def test_an_iterator_that_nobody_asks_for_a_batch_costs_no_epoch_and_no_position(numbers, sampler):
    """Lightning makes one of every loader it is given, only to see whether it can, and before it brings a state."""

    def make():
        return lf.Loader(numbers, 8, sampler=sampler, seed=3, num_workers=0, cache="50%")

    plain, asked = make(), make()
    for loader in (plain, asked):
        ids = []
        for _ in range(2):
            if loader is asked:
                iter(loader), iter(loader)
            ids += [(batch.epoch, batch.number, batch.ids.tolist()) for batch in loader]
        it = iter(loader)
        ids += [next(it).ids.tolist() for _ in range(3)]
        loader.seen = ids
    assert asked.seen == plain.seen and asked.epoch == 2
    iter(asked)
    resumed = make()
    iter(resumed)
    resumed.load_state_dict(asked.state_dict())
    iter(resumed)
    assert [(batch.epoch, batch.number) for batch in resumed] == [(2, k) for k in range(3, 8)]


def test_threads_that_share_an_iterator_begin_one_epoch(numbers):
    for _ in range(20):
        loader, start = lf.Loader(numbers, 4, num_workers=1, stats=False), threading.Barrier(4)
        shared, seen = iter(loader), []

        def take():
            start.wait()
            seen.extend(ids for batch in shared for ids in batch.ids.tolist())

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(seen) == list(range(64)) and loader.epoch == 1


def test_dropping_an_iterator_in_mid_epoch_stops_its_work_and_the_next_epoch_is_whole(numbers):
    before = worker_threads()
    loader = lf.Loader(numbers, 4, num_workers=2, stats=False)
    for _ in range(20):
        for batch in loader:
            break
        del batch
    assert sorted(np.concatenate(epoch_ids(loader)).tolist()) == list(range(64))
    deadline = time.monotonic() + 20
    while worker_threads() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert worker_threads() <= before, "workers of dropped passes end"


def worker_threads():
    return sum(name.startswith("lossfeed-") for name in thread_names())


def thread_names():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as f:
                names.append(f.read().strip())
        except FileNotFoundError:
            pass
    return names


def test_an_exhausted_iterator_stays_exhausted(numbers):
    it = iter(lf.Loader(numbers, 32))
    assert len(list(it)) == 2 and list(it) == []


def test_a_closed_loader_says_so_and_closing_twice_is_fine(numbers):
    with lf.Loader(numbers, 8) as loader:
        it = iter(loader)
        batch = next(it)
    loader.close()
    for call in (lambda: iter(loader), lambda: next(it), loader.stats, loader.importance, lambda: loader.set_epoch(1), lambda: loader.score_losses(torch.ones(8), batch)):
        with pytest.raises(lf.UsageError, match="closed"):
            call()
    assert "closed" in repr(loader)
    assert loader.state_dict() == loader.state_dict(), "where the run stood when it was closed"


def test_loaders_are_freed_with_their_last_reference(numbers):
    import weakref

    before = worker_threads()
    loader = lf.Loader(numbers, 8, num_workers=2, stats=False)
    it = iter(loader)
    next(it)
    gone = weakref.ref(loader)
    del loader, it
    gc.collect()
    assert gone() is None
    deadline = time.monotonic() + 20
    while worker_threads() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert worker_threads() <= before


class Slow(torch.utils.data.Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 8

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return np.float32(i), i


def test_a_batch_that_is_late_is_a_timeout_and_may_still_come():
    loader = lf.Loader(Slow(0.6), 1, timeout=0.1, num_workers=1)
    it = iter(loader)
    with pytest.raises(lf.TimeoutError, match="timeout=0.1"):
        next(it)
    batch, deadline = None, time.monotonic() + 30
    while batch is None and time.monotonic() < deadline:
        try:
            batch = next(it)
        except TimeoutError:
            pass
    assert batch is not None and len(batch) == 1


def test_ctrl_c_ends_a_wait_and_the_process():
    script = textwrap.dedent(
        """
        import time, numpy as np, lossfeed as lf
        class Stuck:
            thread_safe = True
            def __len__(self): return 4
            def __getitem__(self, i):
                import threading
                if threading.current_thread() is not threading.main_thread(): time.sleep(2)
                return np.float32(i), i
        loader = lf.Loader(Stuck(), 2, num_workers=1)
        print("waiting", flush=True)
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out == "interrupted\n" and process.returncode == 0


@pytest.mark.parametrize("dropped", [False, True])
def test_exit_in_mid_epoch_with_a_python_dataset_neither_hangs_nor_crashes(dropped):
    script = textwrap.dedent(
        f"""
        import time, numpy as np, lossfeed as lf
        class Set:
            def __len__(self): return 5000
            def __getitem__(self, i):
                time.sleep(0.01)
                return np.zeros(64, np.float32), i
        loader = lf.Loader(Set(), 8, num_workers=3)
        it = iter(loader)
        kept = [next(it) for _ in range(3)]
        if {dropped}:
            del loader, it
        """
    )
    process = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert process.returncode == 0 and process.stderr == ""


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_is_refused_and_leaves_the_parent_alone(numbers):
    loader = lf.Loader(numbers, 8, num_workers=2)
    it = iter(loader)
    batch = next(it)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = []
        for call in (lambda: next(it), loader.stats, loader.importance, lambda: loader.score_losses(torch.ones(8), batch), lambda: next(iter(loader))):
            try:
                call()
                answer.append("no error")
            except lf.UsageError as error:
                answer.append("refused" if "fork" in str(error) else str(error))
            except BaseException as error:  # noqa: BLE001
                answer.append(repr(error))
        loader.close()
        del it, batch, loader
        gc.collect()
        os.write(write, "|".join(answer).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "|".join(["refused"] * 5)
    assert status == 0
    assert sum(len(b) for b in it) == 56 and len(batch) == 8


def test_the_cache_never_exceeds_its_limit_by_its_own_count(numbers):
    n = 300
    x = np.random.default_rng(0).integers(0, 255, (n, 40, 40, 3), dtype=np.uint8)
    y = np.zeros(n, dtype=np.int64)
    for policy in ("lru", "fifo", "minio", "shade", "importance"):
        limit = 500_000
        loader = lf.Loader((x, y), 16, shuffle=True, cache=limit, policy=policy, num_workers=3, seed=1)
        for _ in range(3):
            for batch in loader:
                loader.score_losses(torch.rand(len(batch)), batch)
                stats = loader.stats()
                assert stats["cache_bytes"] <= limit and stats["arena_used_bytes"] <= limit, policy
        assert stats["residents"] > 80 and stats["hits_total"] > 0, policy
        assert stats["hits_total"] + stats["misses_total"] == stats["requests_total"] == 3 * n
        loader.close()


def test_the_process_grows_by_the_cache_and_not_beyond_it():
    script = textwrap.dedent(
        """
        import os, numpy as np, torch, lossfeed as lf

        def rss():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        n, side, mib = 4000, 16384, 2**20
        class Rows:                       # 4000 × 16 KiB = 62.5 MiB, made on demand
            def __len__(self): return n
            def __getitems__(self, ids): return [(np.full(side, i % 251, np.uint8), i % 5) for i in ids]
            def __getitem__(self, i): return self.__getitems__([i])[0]
        limit = 16 * mib
        loader = lf.Loader(Rows(), 32, cache=limit, policy="lru", num_workers=2, seed=0, max_slots=10)
        warm = iter(loader); next(warm); del warm
        before, peak = rss(), 0
        for epoch in range(2):
            for k, batch in enumerate(loader):
                assert (batch.data[:, 0] == batch.ids % 251).all()
                if k % 10 == 0: peak = max(peak, rss())
        stats = loader.stats()
        assert stats["arena_used_bytes"] <= limit, stats
        slots = 10 * 33 * side
        grown = peak - before
        # The cache, the slots, and 24 MiB for the allocators and the interpreter: together well below the dataset.
        assert grown <= limit + slots + 24 * mib, (grown / mib, limit / mib, slots / mib)
        assert stats["residents"] * side > 0.9 * limit, stats["residents"]
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)

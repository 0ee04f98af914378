"""Threads and loaders by the hundred, closing from elsewhere: no hang, no leak, every batch goes to one taker."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import checks, endings, truth
from .case import Attack, Case
from .checks import Row
from .truth import Items

N = 240


def numbers(case: Case) -> tuple[Any, list[int]]:
    """A dataset in memory, as arrays or items, and its checksums."""
    x, y = truth.samples(N, case.rng.randrange(2**32))
    sums = [truth.checksum(a, b) for a, b in zip(x, y, strict=True)]
    return (x, y) if case.rng.random() < 0.5 else Items(x, y), sums


def made(case: Case, data: Any, **settings: Any) -> Any:
    """A loader in a setting drawn at random."""
    import lossfeed as lf

    drawn = {
        "batch_size": 8,
        "num_workers": case.rng.randrange(4),
        "cache": case.rng.choice((None, "30%", 1.0)),
        "seed": case.rng.randrange(2**32),
        "sampler": case.rng.choice(("uniform", "cost-aware")),
        "stats": case.rng.random() < 0.2,
    }
    return lf.Loader(data, framework="numpy", **(drawn | settings))


def together(work: list[Callable[[], None]]) -> list[BaseException]:
    """Runs all at once, each in a thread; what they raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(one: Callable[[], None]) -> None:
        start.wait()
        try:
            one()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def one_iterator(case: Case) -> None:
    """Several threads share one pass: every batch goes to exactly one of them."""
    for _ in range(case.size(10, 3)):
        data, sums = numbers(case)
        with made(case, data, sampler="uniform") as loader:
            log: list[Row] = []
            shared = iter(loader)

            def take(shared: Any = shared, log: list[Row] = log) -> None:
                while (batch := next(shared, None)) is not None:
                    log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))

            raised = together([take] * case.rng.randrange(2, 6))
            log.sort()
            case.check(not raised, f"threads that share a pass: {raised[:1]}")
            case.none_of(
                checks.right_bytes(log, sums)
                + checks.each_id_once([log], N, 1)
                + checks.each_position_once(log, 1, len(loader))
            )


def one_loader(case: Case) -> None:
    """Several threads start passes of one loader: one pass at a time, the others are told so."""
    import lossfeed as lf

    for _ in range(case.size(10, 3)):
        data, sums = numbers(case)
        with made(case, data) as loader:
            logs: list[list[Row]] = []

            def passes(loader: Any = loader, logs: list[list[Row]] = logs) -> None:
                for _ in range(3):
                    logs.append([])
                    mine = logs[-1]
                    for batch in loader:
                        mine.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))

            raised = together([passes] * case.rng.randrange(2, 5))
            odd = [error for error in raised if not isinstance(error, lf.UsageError)]
            case.check(not odd, f"threads that each start passes: {odd[:1]}")
            for log in list(logs):
                # Whoever comes to the end has a whole pass; the rest were told.
                case.none_of(checks.right_bytes(log, sums))
            whole = sum(len(log) == len(loader) for log in logs)
            case.check(whole + len(raised) >= 1 and len(loader) > 0, "no pass came to an end and nobody was told why")


def many(case: Case) -> None:
    """200 loaders at once, each in mid-epoch, in turn."""
    data, sums = numbers(case)
    loaders = [
        made(case, data, num_workers=case.rng.randrange(2), sampler="uniform") for _ in range(case.size(200, 60))
    ]
    passes = [iter(loader) for loader in loaders]
    logs: list[list[Row]] = [[] for _ in loaders]
    left = list(range(len(loaders)))
    while left:
        k = case.rng.choice(left)
        batch = next(passes[k], None)
        if batch is None:
            left.remove(k)
            continue
        logs[k].append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
    for log in logs:
        case.none_of(
            checks.right_bytes(log, sums) + checks.each_id_once([log], N, 1), f"{len(loaders)} loaders at once"
        )
    for loader in loaders:
        loader.close()


def counted() -> dict[str, int]:
    """Threads, open files and resident KiB of this process."""
    # A listing of /proc/self/task misses threads while others end.
    with open("/proc/self/status") as status:
        threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return {"threads": threads, "files": len(os.listdir("/proc/self/fd")), "KiB": resident}


def settled(threads: int) -> dict[str, int]:
    """What is there once threads and processes that are ending have ended, so that no more than `threads` are left."""
    until = time.monotonic() + 60
    # multiprocessing keeps the files of ended processes until it looks at its children.
    while (multiprocessing.active_children() or counted()["threads"] > threads) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    return counted()


def dropped(case: Case) -> None:
    """1,000 loaders dropped in mid-epoch, in every way: no thread, no file, no memory stays."""
    data, _ = numbers(case)
    alone = counted()["threads"]

    def drop(k: int) -> None:
        loader = made(case, data)
        running = iter(loader)
        kept = [next(running) for _ in range(k % 4)]
        if k % 3 == 0:
            del loader, running, kept
        elif k % 3 == 1:
            loader.close()
        else:
            # A cycle that only the collector finds.
            loader.itself, kept = loader, None

    rounds = case.size(1000, 120)
    for k in range(rounds // 4):
        drop(k)
    gc.collect()
    before = settled(alone)
    for k in range(rounds):
        drop(k)
    gc.collect()
    after = settled(before["threads"])
    case.tries += rounds - 1
    case.none_of(checks.no_growth(before, after, {"KiB": 16 << 10}), f"{rounds} loaders dropped in mid-epoch")


def close_elsewhere(case: Case) -> None:
    """Closed by another thread in mid-pass: an error, never what looks like the end of the epoch."""
    import lossfeed as lf

    class Slowed(Items):
        def __getitem__(self, i: int) -> Any:
            time.sleep(0.0005)
            return super().__getitem__(i)

    for _ in range(case.size(30, 8)):
        x, y = truth.samples(N, 1)
        loader = made(case, Slowed(x, y), num_workers=case.rng.randrange(3), sampler="uniform")
        closing = threading.Timer(case.rng.uniform(0, 0.05), loader.close)
        count, raised = 0, None
        closing.start()
        try:
            for batch in loader:
                count += len(batch)
        except lf.Error as error:
            raised = error
        closing.join()
        ended = raised is None and count < N
        case.check(
            not ended, f"a pass of a loader that was closed elsewhere ended as if whole after {count} of {N} samples"
        )
        case.check(
            raised is None or isinstance(raised, lf.UsageError), f"closed elsewhere: {type(raised).__name__}: {raised}"
        )


def forks(case: Case) -> None:
    """Forked children use the parent's loader, are refused, and leave by every door; the parent goes on."""
    data, sums = numbers(case)
    with made(case, data, num_workers=2, sampler="uniform") as loader:
        log: list[Row] = []
        forked = 0
        for epoch in range(2):
            loader.set_epoch(epoch)
            for batch in loader:
                log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
                if case.rng.random() < case.size(90, 15) / 100 and forked < case.size(50, 6):
                    forked += 1
                    case.none_of(endings.forked(loader, batch))
        case.count("forks", forked)
        case.none_of(checks.right_bytes(log, sums) + checks.each_id_once([log], N, 2), "the parent of forked children")


def batches_outlive(case: Case) -> None:
    """Batches that are held while their loader is closed and dropped keep their bytes."""
    for _ in range(case.size(10, 4)):
        data, sums = numbers(case)
        loader = made(case, data, sampler="uniform")
        kept = [batch for batch, _ in zip(loader, range(10), strict=False)]
        fields = [(np.asarray(batch.ids), batch.data, batch.target) for batch in kept]
        if case.rng.random() < 0.5:
            loader.close()
        del loader, kept
        gc.collect()
        for ids, x, y in fields:
            right = all(truth.checksum(a, b) == sums[i] for i, a, b in zip(ids, x, y, strict=True))
            case.check(right, "a batch that outlived its loader changed its bytes")


ATTACK = Attack(
    "processes",
    {
        "one-iterator": one_iterator,
        "one-loader": one_loader,
        "many": many,
        "dropped": dropped,
        "close-elsewhere": close_elsewhere,
        "batches-outlive": batches_outlive,
        "forks": forks,
        "fork-in-a-read": endings.fork_in_a_read,
        "exits": endings.exits,
        "interrupts": endings.interrupts,
    },
    share=3.0,
    deadline_s=600.0,
)

"""What surrounds a training: children of forks, signals that fall into ``next()``, functions of the user's that raise, open
files, a clock that is set back and a disk that is nearly full."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import checks, endings, truth
from .case import Attack, Case
from .truth import Items

N = 120
BATCH = 8


def forks(case: Case) -> None:
    """Children of ``os.fork`` and of multiprocessing make loaders of their own, 4, 8 and 16 threads on both sides."""
    import lossfeed as lf

    tier = {"disk": str(case.place / "tier"), "disk_bytes": "64MiB", "latency": 0.0001}
    made = {
        kind: truth.build(kind, N, case.rng.randrange(2**32), case.place / f"data-{kind}") for kind in ("tar", "arrays", "items")
    }
    started = multiprocessing.get_context("fork")

    def child(kind: str, workers: int) -> None:
        """Ends this process: 0 if it delivered every sample with its own bytes."""
        code = 1
        with contextlib.suppress(BaseException):
            own = truth.opened(kind, made[kind].where, **(tier if kind == "tar" else {}))
            with lf.Loader(own, BATCH, num_workers=workers, framework="numpy") as loader:
                right = [checks.right_bytes([row(batch)], made[kind].sums) == [] for batch in loader]
            code = 0 if all(right) and len(right) == N // BATCH else 2
        os._exit(code)

    for parents in (4, 8, 16):
        data = truth.opened("tar", made["tar"].where, **tier)
        parent = lf.Loader(data, BATCH, num_workers=parents, cache="30%", framework="numpy")
        passing = iter(parent)
        next(passing)
        time.sleep(0.2)  # now its threads wait
        for k in range(case.size(67, 2)):
            kind, workers = case.rng.choice(("tar", "tar", "arrays", "items")), case.rng.choice((4, 8, 16))
            if k % 2:
                process = started.Process(target=child, args=(kind, workers))
                process.start()
                process.join(endings.GONE_S)
                status = process.exitcode
                process.kill()
            else:
                forked = os.fork()
                if forked == 0:
                    child(kind, workers)
                status = endings.reaped(forked)
            about = f"a child with {workers} threads over {kind} beside {parents}"
            case.check(status == 0, f"{about}: {status} (None: it hangs, 2: wrong bytes)")
        parent.close()


def row(batch: Any) -> checks.Row:
    """A batch as it is logged."""
    return checks.Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch))


class Raised(Exception):
    """The exception of a handler."""


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """SIGALRM raises, in whatever the main thread does."""

    def handler(*_: object) -> None:
        raise Raised

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Slow(Items):
    """Items that take their time."""

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.0005)
        return super().__getitem__(i)


def signals(case: Case) -> None:
    """A handler that raises at a random moment of ``next()``: a state and the iterator go on behind what came.
    ``tests/python/test_signals.py`` has them at instructions of ours."""
    import lossfeed as lf

    warnings.simplefilter("ignore", lf.TrainingWarning)
    x, y = truth.samples(N, case.rng.randrange(2**32))
    tar = truth.build("tar", N, case.rng.randrange(2**32), case.place / "data").where
    sources: dict[str, tuple[Any, dict[str, Any]]] = {
        "arrays": ((x, y), {"num_workers": 2}),
        "items here": (Slow(x, y), {"num_workers": 0}),
        "items by processes": (Slow(x, y), {"num_workers": 2, "framework": "torch"}),
        "items in threads": (lf.open(Slow(x, y), thread_safe=True), {"num_workers": 2}),
        "shards": (lf.open(tar), {"num_workers": 2}),
        "a store": (lf.open(tar, latency=0.001), {"num_workers": 2}),
        "a store here": (lf.open(tar, latency=0.001), {"num_workers": 0, "read_ahead": 0}),
    }
    for name, (data, keywords) in sources.items():
        lost = 0
        for _ in range(case.size(300, 6)):
            settings = {"batch_size": BATCH, "seed": 1, "shuffle": True, "stats": False, "framework": "numpy"} | keywords
            seen: list[Any] = []
            loader = lf.Loader(data, **settings)
            passing = iter(loader)
            with alarms():
                try:
                    signal.setitimer(signal.ITIMER_REAL, case.rng.uniform(1e-4, 0.15 if "processes" in name else 0.03))
                    for batch in passing:
                        seen.append(batch)  # before Python looks for signals again
                    time.sleep(1)
                except Raised:
                    pass
            ids = [i for batch in seen for i in batch.ids.tolist()]
            if len(ids) < N:
                with lf.Loader(data, **settings | {"num_workers": 0}) as rest:
                    rest.load_state_dict(loader.state_dict())
                    ids += [i for batch in rest for i in batch.ids.tolist()]
            loader.close()
            lost += sorted(ids) != list(range(N))
            case.tries += 1
        case.none_of([f"{lost} passes over {name} lost samples or had some twice"] if lost else [])


def together(items: list[Any]) -> tuple[Any, Any]:
    """A collate_fn."""
    import torch

    return torch.stack([torch.as_tensor(x) for x, _ in items]), torch.tensor([int(y) for _, y in items])


def at(number: int, error: BaseException, function: Callable[[Any], Any] = lambda given: given) -> Callable[..., Any]:
    """A function whose call of that number raises."""
    calls = iter(range(N))

    def called(*given: Any) -> Any:
        if next(calls) == number:
            raise error
        return function(*given)

    return called


class Raising(Items):
    """One item raises."""

    item, error = 0, Exception()

    def __getitem__(self, i: int) -> Any:
        if i == self.item:
            raise self.error
        return super().__getitem__(i)


ERRORS = (StopIteration(), StopIteration(1), IndexError(), KeyError(1), ValueError("\udcff"), OSError(5, "io"), GeneratorExit(), Raised())


def callbacks(case: Case) -> None:
    """Functions of the user's raise anything: a loop that ends without an error has delivered the epoch."""
    import lossfeed as lf

    x, y = truth.samples(N, 1)
    for _ in range(case.size(200, 40)):
        error, number = case.rng.choice(ERRORS), case.rng.randrange(N // BATCH)
        raising = Raising(x, y)
        raising.item, raising.error = case.rng.randrange(N), error
        name, keywords = case.rng.choice((
            ("__getitem__", {"data": raising, "num_workers": 0}),
            ("__getitem__ in threads", {"data": lf.open(raising, thread_safe=True) if raising.item else (x, y), "num_workers": 2}),
            ("collate_fn", {"data": Items(x, y), "num_workers": 0, "collate_fn": at(number, error, together)}),
            ("collate_fn of arrays", {"data": (x, y), "collate_fn": at(number, error, together)}),
            ("transform", {"data": (x, y), "transform": at(number, error)}),
        ))  # fmt: skip
        got, raised = 0, None
        skips = case.rng.random() < 0.5
        try:
            with lf.Loader(batch_size=BATCH, stats=False, on_error="skip" if skips else "raise", **keywords) as loader:
                for batch in loader:
                    got += len(batch.ids)
                got += len(loader.bad_samples()) if skips else 0
        except BaseException as e:  # noqa: BLE001
            raised = e
        about = f"{name} raised {error!r}"
        case.check(not isinstance(raised, StopIteration), f"{about}: it leaves as StopIteration")
        case.check(raised is not None or got == N, f"{about}: an epoch of {got} of {N} samples ended without an error")


def big(place: Path, count: int) -> str:
    """A shard of samples of a megabyte."""
    noise = np.random.default_rng(0).bytes(1 << 20)
    truth.write_tar(place, [(f"{k:04}.bin", noise) for k in range(count)])
    return str(place)


def open_files(case: Case) -> None:
    """Datasets over full disk tiers have few files open, however many datasets and segments there are."""
    import lossfeed as lf

    tar = big(case.place / "big.tar", 60)
    tiers = [str(case.place / f"tier-{k}") for k in range(case.size(8, 2))]
    before = len(os.listdir("/proc/self/fd"))
    opened = [
        lf.open(tar, fields={"x": "bin"}, disk=tier, disk_bytes="64MiB", latency=0.0001, index_cache=case.place / "index")
        for tier in tiers
        for _ in range(3)
    ]
    for data in opened:
        for _ in range(2):
            for k in range(len(data)):
                data[k]
    files = len(os.listdir("/proc/self/fd")) - before
    case.count("most files open", files)
    # The process keeps 64 segments open; each dataset has its folder, what it writes, and the shard.
    case.check(files < 64 + 6 * len(opened), f"{files} files are open for {len(opened)} datasets over {len(tiers)} disk tiers")


#: Time since 1970 as programs see it, moved by what stands in a file.
CLOCK = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *t) {
    int status = syscall(SYS_clock_gettime, clock, t);
    const char *name = getenv("MOVED_CLOCK");
    FILE *file = clock == CLOCK_REALTIME && name ? fopen(name, "r") : NULL;
    long moved = 0;
    if (file) { if (fscanf(file, "%ld", &moved) == 1) t->tv_sec += moved; fclose(file); }
    return status;
}
"""
UNDER_A_CLOCK = """
import fcntl, os, sys, time
import lossfeed as lf
tar, tier, moved = sys.argv[1:4]
data = lf.open(tar, fields={"x": "bin"}, disk=tier, disk_bytes="64MiB", latency=0.0001)
def written(first):
    with lf.Loader(data.subset(range(first, first + 10)), 5, num_workers=1, framework="numpy", cache=0, stats=False) as loader:
        for batch in loader: pass
        time.sleep(2)
        return loader.stats()["disk_written_total"]
with open(tier + "/lock", "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    full = tier + "/18ebcb399caf6d4c.open"
    with open(full, "wb") as other: other.truncate(64 << 20)
    before = written(0)  # there is no room, and none can be made: the tier pauses
    open(moved, "w").write(sys.argv[4])
    os.remove(full)
time.sleep(11)
print(before, written(20))
"""


def clock(case: Case) -> None:
    """A clock that is set, by a day to and fro, keeps no tier from writing."""
    source, shim, moved = case.place / "clock.c", case.place / "clock.so", case.place / "moved"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    tar = big(case.place / "big.tar", 60)
    for days in (-1, 1) if not case.short else (-1,):
        moved.write_text("0")
        env = os.environ | {"LD_PRELOAD": str(shim), "MOVED_CLOCK": str(moved)}
        argv = [sys.executable, "-c", UNDER_A_CLOCK, tar, str(case.place / f"tier-{days}"), str(moved), str(86400 * days)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200)
        numbers = [int(float(word)) for word in done.stdout.split()]
        fine = len(numbers) == 2 and numbers[0] == 0 and numbers[1] > 0
        case.check(fine, f"the clock set by {days} days: written before and after {numbers}: {done.stderr[-800:]}")


FREE_SPACE = """
import os, shutil, sys, time
import lossfeed as lf
tar, place = sys.argv[1:3]
with open(place + "/others", "wb") as others: others.write(bytes(30 << 20))
data = lf.open(tar, fields={"x": "bin"}, disk=place + "/tier", disk_bytes="64MiB", latency=0.0001)
loader = lf.Loader(data, 5, num_workers=1, framework="numpy", cache=0, read_ahead=0, stats=False)
for batch in loader: pass
time.sleep(0.5)
full = loader.stats()["disk_written_total"]
free = shutil.disk_usage(place).free
os.remove(place + "/others")
time.sleep(11)
for batch in loader: pass
time.sleep(0.5)
print(int(full), free, int(loader.stats()["disk_written_total"]))
"""


def free_space(case: Case) -> None:
    """On a disk that others fill the tier leaves a twentieth free, and writes again when there is room."""
    place = case.place / "small"
    place.mkdir()
    # Mounted where no other process sees it.
    alone = 'unshare --mount sh -c \'mount -t tmpfs -o size=60m,mode=0700 none "$2" || exit 77; exec "$0" -c "$3" "$1" "$2"\' "$@"'
    argv = ["sh", "-c", alone, "sh", sys.executable, big(case.place / "big.tar", 45), str(place), FREE_SPACE]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
    if done.returncode == 77 or "unshare" in done.stderr:
        case.tries += 1
        case.count("without rights to mount")
        return
    numbers = [int(word) for word in done.stdout.split()]
    fine = len(numbers) == 3 and 0 < numbers[0] < 45 and numbers[1] >= 3 << 20 and numbers[2] > numbers[0]
    case.check(fine, f"written, free and written with room {numbers}: {done.stderr[-800:]}")


TOGETHER = """
import sys
sys.path.insert(0, sys.argv[1])
from chaos import truth
import lossfeed as lf
where, tier, n, seed = *sys.argv[2:4], int(sys.argv[4]), int(sys.argv[5])
pixels, _ = truth.samples(n, 1)
data = lf.open(where, disk=tier, disk_bytes="64MiB", latency=0.005)
print("open", flush=True)
sys.stdin.readline()
wrong, ids = 0, []
with lf.Loader(data, 8, seed=seed, shuffle=True, num_workers=2, cache=0, framework="numpy", stats=False) as loader:
    for batch in loader:
        for i, x in zip(batch.ids.tolist(), batch.data):
            number = int(data.name(i).rpartition("/")[2].partition(".")[0])
            wrong += (x.ravel() != pixels[number].ravel()).any()
            ids.append(i)
        print("batch", flush=True)
    print(wrong, sorted(ids) == list(range(n)), int(loader.stats()["store_requests_total"]), flush=True)
"""


def together(case: Case) -> None:
    """Processes over one disk tier begin together, and one may be killed or stopped: the others deliver everything, and
    what no process was reading at its end is read once."""
    count = 600
    where = truth.build("folder", count, 1, case.place / "data").where
    for k in range(case.size(12, 3)):
        processes, end = case.rng.choice((2, 3, 4)), (None, signal.SIGKILL, signal.SIGSTOP)[k % 3]
        argv = [sys.executable, "-c", TOGETHER, str(Path(__file__).parents[1]), where, str(case.place / f"tier-{k}"), str(count)]
        begun = [
            subprocess.Popen(
                [*argv, str(case.rng.randrange(3))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(processes + (end is not None))
        ]  # fmt: skip
        try:
            ready = all(process.stdout.readline() == "open\n" for process in begun if process.stdout)
            case.check(ready, "a process did not open the dataset")
            for process in begun:
                if process.stdin:
                    process.stdin.write("\n")
                    process.stdin.flush()
            if end is not None and begun[0].stdout:
                begun[0].stdout.readline()
                begun[0].send_signal(end)
            said = [process.communicate(timeout=100)[0].split("\n")[-2].split() for process in begun[end is not None :]]
        finally:
            for process in begun:
                process.kill()
                process.wait()
        case.check(all(words[:2] == ["0", "True"] for words in said), f"beside one that got {end}: {said}")
        requests = sum(int(words[2]) for words in said)
        case.count("objects read", requests)
        case.count("objects", count)
        # A process that ended had read what the others did not read again.
        case.check(requests <= (1.02 if end is None else 1.4) * count, f"{requests} objects of {count} were read ({end})")


ATTACK = Attack(
    "surroundings",
    {
        "forks": forks,
        "together": together,
        "signals": signals,
        "callbacks": callbacks,
        "open-files": open_files,
        "clock": clock,
        "free-space": free_space,
    },
    share=3.0,
    deadline_s=900.0,
)

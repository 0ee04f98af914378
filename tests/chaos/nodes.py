"""Trainings over the cache that a machine shares, whose owner is killed or stopped, beside a job that is killed: the
right bytes, every epoch whole, and no thread that waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from . import checks, truth
from .case import Attack, Case
from .checks import Row
from .training import loss

EPOCHS, BATCH = 3, 6
#: Reads the dataset again and again until it is killed. Arguments: the dataset, the cache's size, the seed.
BESIDE = """
import sys, lossfeed as lf
where, size, seed = sys.argv[1:]
data = lf.open(where, latency=0.002)
cache = lf.Cache(size, share="node")
with lf.Loader(data, 4, shuffle=True, seed=int(seed), cache=cache, framework="numpy", stats=False) as loader:
    while True:
        for batch in loader:
            pass
"""


class Machine:
    """The owner of this case, and a job beside it."""

    def __init__(self, case: Case, where: str, size: str) -> None:
        self.case, self.words = case, (where, size)
        self.beside: subprocess.Popen[bytes] | None = None
        self.stopped: int | None = None

    def owner(self) -> int | None:
        argv = [sys.executable, "-m", "lossfeed", "node", "ls", "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout)["pid"] if done.returncode == 0 else None

    def send(self, number: int) -> int | None:
        pid = self.stopped or self.owner()
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return None
            self.case.count(signal.Signals(number).name)
        return pid

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.stopped = None

    def stop(self) -> None:
        self.stopped = self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        if self.stopped is not None:
            self.send(signal.SIGCONT)
            self.stopped = None

    def start_beside(self) -> None:
        self.kill_beside()
        argv = [sys.executable, "-c", BESIDE, *self.words, str(self.case.rng.randrange(2**32))]
        self.beside = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_beside(self) -> None:
        if self.beside is not None:
            self.beside.kill()
            self.beside.wait()
            self.beside = None
            self.case.count("jobs killed")


Done = Callable[[Machine], None]
NOTHING: Done = lambda machine: None  # noqa: E731
DISTURBED: dict[str, tuple[Done, Done]] = {
    "killed": (Machine.kill, NOTHING),
    "stopped": (Machine.stop, Machine.go_on),
    "beside": (Machine.start_beside, Machine.kill_beside),
}


def train(case: Case, loader: Any, data: truth.Truth, machine: Machine, names: tuple[str, ...], about: str) -> None:
    """Some epochs, with disturbances of these names at batches drawn at random."""
    steps = EPOCHS * -(-len(data) // BATCH)
    begin, ends = {}, {}
    last = 0
    while (at := last + case.rng.randrange(1, 6)) < steps - 1:
        last = at + case.rng.randrange(1, 6)
        begin[at], ends[min(last, steps - 1)] = DISTURBED[case.rng.choice(names)]
    log: list[Row] = []
    for epoch in range(EPOCHS):
        for batch in loader:
            step = epoch * len(loader) + batch.number
            for act in (begin.get(step), ends.get(step)):
                if act is not None:
                    act(machine)
                    case.count("disturbances")
            log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
            loader.score_losses(loss(batch.ids, batch.epoch) * batch.weight, batch)
    case.none_of(checks.right_bytes(log, data.sums), about)
    delivered = sum(len(row.ids) for row in log)
    case.check(delivered == EPOCHS * len(data), f"{about}: {delivered} samples of {EPOCHS} epochs of {len(data)}")
    if loader.stats()["node_hits_total"] > 0:
        case.count("hit")
    case.check(not loader.bad_samples(), f"{about}: the cache was taken for bad data: {loader.bad_samples()[:2]}")


def training(case: Case, names: tuple[str, ...]) -> None:
    """Some trainings on a machine of their own."""
    import lossfeed as lf

    data = truth.build("tar", case.size(60, 36), case.rng.randrange(2**32), case.place / "data")
    before = os.environ.get("LOSSFEED_RUNTIME_DIR")
    for trial in range(case.size(4, 1)):
        os.environ["LOSSFEED_RUNTIME_DIR"] = str(case.place / f"machine-{trial}")
        size = case.rng.choice(("1MiB", "8KiB"))
        settings: dict[str, Any] = {
            "num_workers": case.rng.randrange(3),
            "sampler": case.rng.choice(("uniform", "importance")),
            "seed": case.rng.randrange(2**32),
        }
        if case.rng.random() < 0.5:
            settings["read_ahead"] = 0
        about = f"trial {trial}: {', '.join(names)}; {size}, {settings}"
        machine = Machine(case, data.where, size)
        try:
            opened = lf.open(data.where, latency=0.002)
            cache = lf.Cache(size, share="node")
            with lf.Loader(opened, BATCH, cache=cache, framework="numpy", stats=False, **settings) as loader:
                train(case, loader, data, machine, names, about)
            case.count("trained")
        finally:
            machine.go_on()
            machine.kill_beside()
            machine.kill()
            os.environ.pop("LOSSFEED_RUNTIME_DIR", None)
            if before is not None:
                os.environ["LOSSFEED_RUNTIME_DIR"] = before


ATTACK = Attack(
    "node",
    {
        "gone": lambda case: training(case, ("killed", "stopped")),
        "beside": lambda case: training(case, ("beside", "killed")),
        "all": lambda case: training(case, tuple(DISTURBED)),
    },
    share=2.0,
    deadline_s=600.0,
)

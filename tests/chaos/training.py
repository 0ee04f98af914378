"""A training without a model: a loader, a loss made of ids, a log of what came, and a state beside it.

Run as a program it is one life of that training: it goes on from the state it finds and is killed, or stopped, by
whoever started it. It writes one byte for the first batch, so that a kill can be timed from there.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from chaos import truth
from chaos.checks import Row


@dataclass(frozen=True)
class Plan:
    """All that makes one training what it is."""

    kind: str
    where: str
    loader: dict[str, Any]
    epochs: int
    #: Batches from one saved state to the next.
    every: int
    #: How a life ends: killed from outside, or "terminate", "interrupt", "exception", "break".
    stop: str = "kill"
    #: For "exception" and "break": after how many batches.
    stop_after: int = 0
    #: Go on in the same process and loader after a stop.
    same_process: bool = False
    index_cache: str | None = None
    #: The folder of a disk tier.
    disk: str | None = None
    step_s: float = 0.0

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))


@dataclass
class Memory:
    """What outlives a process."""

    state: dict[str, Any] | None = None
    log: list[Row] = field(default_factory=list)
    #: The batch that came last in this life.
    last: Any = None


class Stop(Exception):
    """Raised in the loop by a training that is to end by an exception."""


def loss(ids: np.ndarray, epoch: int) -> np.ndarray:
    """A loss that costs nothing, differs between samples by a factor of 50, and changes with the epoch."""
    return (0.1 + (ids * 2654435761 + epoch * 97) % 1009 / 200).astype(np.float32)


def make(plan: Plan) -> Any:
    """The loader of `plan`."""
    import lossfeed as lf

    options: dict[str, Any] = {"index_cache": plan.index_cache} if plan.index_cache is not None else {}
    if plan.disk is not None:
        options |= {"disk": plan.disk, "disk_bytes": "64MiB", "latency": 0.0001}
    return lf.Loader(truth.opened(plan.kind, plan.where, **options), framework="numpy", **plan.loader)


def steps(loader: Any, plan: Plan, memory: Memory) -> Iterator[Row]:
    """Trains to the end of the last epoch; a step a time, logged and scored."""
    for epoch in range(loader.epoch, plan.epochs):
        for batch in loader:
            memory.last = batch  # before Python looks for signals again
            yield trained(loader, batch, memory)


def trained(loader: Any, batch: Any, memory: Memory) -> Row:
    """One step: the batch is logged and scored, however often this is called."""
    row = Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch))
    if memory.log[-1:] != [row]:
        memory.log.append(row)
    loader.score_losses(loss(batch.ids, batch.epoch), batch)
    return row


def undisturbed(plan: Plan) -> list[Row]:
    """The log of a run that nobody disturbs, and that nobody was before."""
    memory = Memory()
    alone = {name: value for name, value in plan.loader.items() if not name.startswith("score_file")}
    with make(replace(plan, loader=alone, disk=None)) as loader:
        for _ in steps(loader, plan, memory):
            pass
    return memory.log


def load(where: Path) -> Memory:
    """What the last life left, or nothing."""
    try:
        with open(where / "state", "rb") as file:
            state, log = pickle.load(file)
            return Memory(state, [Row(*row) for row in log])
    except FileNotFoundError:
        return Memory()


def save(where: Path, loader: Any, memory: Memory) -> None:
    """State and log together, whole or not at all."""
    memory.state = loader.state_dict()
    new = where / "state.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        # Plain tuples: in this process the classes are those of the program, in the parent those of the package.
        pickle.dump((memory.state, [tuple(row) for row in memory.log]), file)
    os.replace(new, where / "state")


def settled(memory: Memory, loader: Any) -> int:
    """The epoch that the saved state is in the middle of, or -1: in it the order is settled."""
    last = memory.log[-1] if memory.log else None
    return last.epoch if last is not None and last.number + 1 < len(loader) else -1


def live(plan: Plan, where: Path, tell: Callable[[bytes], object] = lambda _: None) -> bool:
    """One life; whether the training is over."""
    memory = load(where)
    asked: list[int] = []
    if plan.stop == "terminate":
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    import lossfeed as lf

    # A file of scores that a kill has torn would be told by a warning.
    warnings.simplefilter("error", lf.ResumeWarning)
    loader = make(plan)
    if memory.state is not None:
        loader.load_state_dict(memory.state)
    tail = os.open(where / "tail", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    saved = settled(memory, loader)
    since = 0
    try:
        for row in steps(loader, plan, memory):
            # Whatever comes again after a kill must be the same where the order was settled.
            os.write(tail, (json.dumps([*row, row.epoch == saved]) + "\n").encode())
            tell(b"b" if since == 0 else b"")
            time.sleep(plan.step_s)
            since += 1
            if since == plan.stop_after:
                if plan.stop == "break":
                    break
                raise Stop
            if asked:
                break
            if len(memory.log) % plan.every == 0:
                save(where, loader, memory)
                saved = settled(memory, loader)
        else:
            save(where, loader, memory)
            return True
    except Stop:
        pass
    except KeyboardInterrupt:
        # It may have come in the middle of a step.
        if memory.last is not None:
            trained(loader, memory.last, memory)
    save(where, loader, memory)
    return False


def main() -> None:
    where = Path(sys.argv[1])
    plan = Plan(**json.loads((where / "plan.json").read_text()))
    over = live(plan, where, lambda told: os.write(1, told) if told else None)
    while plan.same_process and not over:
        over = live(plan, where)
    print("e" if over else "s", end="", flush=True)


if __name__ == "__main__":
    main()

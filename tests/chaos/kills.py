"""Training that is killed, or stopped, and goes on: nothing lost, nothing twice, the right bytes."""

from __future__ import annotations

import itertools
import json
import random
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from . import checks, training, truth
from .case import Attack, Case, Refuted
from .checks import Row
from .training import Memory, Plan

#: Seconds in which a life must come to its first batch, or to its end once it is left alone: it needs less than one.
LIFE_S = 120.0
#: After so many kills of one training it is left alone.
KILLS_MAX = 60

SAMPLERS = ("uniform", "importance", "cost-aware")


def planned(rng: random.Random, place: Path, stop: str, shortest: int) -> tuple[Plan, truth.Truth]:
    """A training drawn at random, and its dataset written. A life that stops itself has `shortest` batches at least."""
    n = rng.randrange(90, 260)
    data = truth.build(rng.choice(truth.KINDS), n, rng.randrange(2**32), place / "data")
    sampler = rng.choice(SAMPLERS)
    loader = {
        "batch_size": rng.choice((4, 7, 8)),
        "drop_last": rng.random() < 0.3,
        "num_workers": rng.randrange(3),
        "sampler": sampler,
        "cache": rng.choice((None, "30%", "60%", 1.0)),
        "cache_form": rng.choice(("encoded", "decoded")),
        "policy": rng.choice((None, "lru", "minio")),
        "seed": rng.randrange(2**32),
        "stats": rng.random() < 0.3,
        "world_size": rng.choice((1, 1, 2)),
        "rank": 0,
    }
    if rng.random() < 0.5:
        loader |= {"score_file": str(place / "scores-{rank}"), "score_file_every": rng.choice((0.01, 0.1))}
    plan = Plan(
        kind=data.kind,
        where=data.where,
        loader=loader,
        epochs=rng.randrange(2, 5),
        every=rng.randrange(1, 7),
        stop=stop,
        stop_after=shortest + rng.randrange(40) if stop in ("exception", "break") else 0,
        same_process=stop in ("exception", "break") and rng.random() < 0.5,
        index_cache=str(place / "index") if data.kind == "tar" and rng.random() < 0.7 else None,
        disk=str(place / "tier") if data.kind in ("tar", "folder") and rng.random() < 0.5 else None,
        step_s=0.001,
    )
    return plan, data


def life(case: Case, where: Path, number: int | None, early: bool) -> bool:
    """One process; whether it ended the training. `number` is the signal to send, None leaves it alone."""
    command = [sys.executable, "-X", "faulthandler", str(Path(training.__file__)), str(where)]
    with open(where / "stderr", "wb") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert child.stdout is not None
        told = b""
        if number is not None:
            # Now and then before the first batch: in imports, opening, reading the state.
            if early:
                select.select([child.stdout], [], [], case.rng.uniform(0.0, 0.4))
            else:
                told = first_byte(child)
                if told == b"b":
                    select.select([], [], [], case.rng.uniform(0.0, 0.05))
            child.send_signal(number)
            case.count(f"signal {signal.Signals(number).name}")
        try:
            told += child.communicate(timeout=LIFE_S)[0]
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)
            child.wait()
            raise Refuted(f"a life did not end within {LIFE_S:.0f} s: {tail(where)}") from None
    finally:
        child.kill()
        child.wait()
    expected = (0, -signal.SIGKILL) if number == signal.SIGKILL else (0,)
    interrupted = number == signal.SIGINT and b"KeyboardInterrupt" in (where / "stderr").read_bytes()
    early_term = number == signal.SIGTERM and child.returncode == -signal.SIGTERM
    # It had said its last, and Python had taken its handler away.
    late = number == signal.SIGINT and child.returncode == -signal.SIGINT and told[-1:] in (b"e", b"s")
    if child.returncode not in expected and not interrupted and not early_term and not late:
        raise Refuted(f"a life ended with status {child.returncode}: {tail(where)}")
    return told.endswith(b"e")


def first_byte(child: subprocess.Popen[bytes]) -> bytes:
    """What the child writes at its first batch or at its end."""
    assert child.stdout is not None
    if not select.select([child.stdout], [], [], LIFE_S)[0]:
        child.send_signal(signal.SIGABRT)
        child.wait()
        raise Refuted(f"no batch within {LIFE_S:.0f} s")
    return child.stdout.read(1) or b""


def tail(where: Path) -> str:
    """The last that a life said."""
    return (where / "stderr").read_text(errors="replace")[-1500:]


def redelivered(where: Path) -> list[Row]:
    """What all lives delivered where the order was settled."""
    rows = []
    for line in (where / "tail").read_text().splitlines():
        try:
            epoch, number, ids, sums, fixed = json.loads(line)
        except ValueError:
            continue  # cut by a kill
        if fixed:
            rows.append(Row(epoch, number, tuple(ids), tuple(sums)))
    return rows


def judge(case: Case, plan: Plan, data: truth.Truth, memories: list[Memory], wheres: list[Path]) -> None:
    """All that must be true of a training's logs, one a rank."""
    about = f"{plan.stop}, {plan.kind}, {plan.loader}"
    logs = [memory.log for memory in memories]
    twins = [
        training.undisturbed(replace(plan, loader=plan.loader | {"rank": r}, step_s=0.0)) for r in range(len(logs))
    ]
    case.none_of(checks.right_bytes(itertools.chain(*twins), data.sums), f"undisturbed, {about}")
    batches = len(twins[0]) // plan.epochs
    for memory, twin, where in zip(memories, twins, wheres, strict=True):
        log = memory.log
        case.none_of(checks.right_bytes(log, data.sums), about)
        case.none_of(checks.each_position_once(log, plan.epochs, batches), about)
        case.none_of(checks.same_batches(redelivered(where), log, "the life before"), about)
        # The others' order depends on what the cache held, which a kill takes away. A life that finds a file of scores
        # and no state begins with what a life before it has learned.
        settled = plan.loader["sampler"] == "importance" and "score_file" not in plan.loader
        if plan.loader["sampler"] == "uniform" or settled:
            case.none_of(checks.same_batches(log, twin), about)
    if plan.loader["sampler"] == "uniform":
        drawn = len(memories) * batches * plan.loader["batch_size"] if plan.loader["drop_last"] else None
        case.none_of(checks.each_id_once(logs, len(data), plan.epochs, drawn), about)


def trained(case: Case, stop: str, number: int | None, most: int) -> int:
    """One training with its kills; how many there were."""
    place = case.place / f"training-{case.notes.get('trainings', 0):.0f}"
    case.count("trainings")
    plan, data = planned(case.rng, place, stop, case.size(1, 30))
    kills, memories, wheres = 0, [], []
    for rank in range(plan.loader["world_size"]):
        where = place / f"rank-{rank}"
        where.mkdir()
        mine = replace(plan, loader=plan.loader | {"rank": rank})
        (where / "plan.json").write_text(mine.to_json())
        for lives in itertools.count(1):
            send = number if kills < most * (rank + 1) / plan.loader["world_size"] else None
            early = stop == "kill" and case.rng.random() < 0.12
            if life(case, where, send, early):
                break
            kills += 1
            if lives > 500:
                raise Refuted(f"a training makes no progress: {lives} lives, {len(training.load(where).log)} batches")
        memories.append(training.load(where))
        wheres.append(where)
    judge(case, plan, data, memories, wheres)
    return kills


def repeated(stop: str, number: int | None, full: int, short: int) -> object:
    """The trait that stops trainings until it has stopped enough."""

    def trait(case: Case) -> None:
        wanted, done = case.size(full, short), 0
        while done < wanted:
            stopped = trained(case, stop, number, min(KILLS_MAX, wanted - done))
            done += max(1, stopped)
            case.count("kills" if stop == "kill" else "stops", stopped)

    return trait


ATTACK = Attack(
    "kills",
    {
        "kill": repeated("kill", signal.SIGKILL, 40, 6),
        "terminate": repeated("terminate", signal.SIGTERM, 8, 2),
        "interrupt": repeated("interrupt", signal.SIGINT, 8, 2),
        "exception": repeated("exception", None, 8, 2),
        "break": repeated("break", None, 8, 2),
    },
    share=8.0,
    deadline_s=900.0,
)

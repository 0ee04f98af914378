"""Cases in processes of their own, two at a time, until the time is over; a table and a record at the end."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import record, registry
from .case import Attack, seed_of
from .worker import parse

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: Seconds for a worker's start, beside its first case, and for its exit.
START_S = 60.0
EXIT_S = 60.0

_print_lock = threading.Lock()


@dataclass
class Tally:
    """What one attack did so far."""

    attack: Attack
    rounds: int = 0
    cases: int = 0
    tries: int = 0
    failed: int = 0
    seconds: float = 0.0
    failures: list[dict[str, str]] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, end: dict) -> None:
        """Counts a case that ended."""
        self.cases += 1
        self.tries += end["tries"]
        self.seconds += end["seconds"]
        for key, value in end["notes"].items():
            self.notes[key] = self.notes.get(key, 0) + value
        self.failed += end["failed"]
        for message in end["failures"]:
            self.failures.append({"case": name, "message": message, "repeat": command(name, end.get("short", False))})
        if end["failures"]:
            tell(name, end["failures"], end["failed"], end.get("short", False))


def command(name: str, short: bool) -> str:
    """What repeats the case of that name, and nothing else."""
    return f".venv/bin/python tests/chaos --case {name}{' --short' if short else ''}"


def tell(name: str, failures: list[str], failed: int, short: bool) -> None:
    """Prints a failed case at once: a campaign may be stopped before its end."""
    with _print_lock:
        print(f"\nFAILED {name}  (seed {name.rpartition(':')[2]})\n  repeat: {command(name, short)}", flush=True)
        for message in failures:
            print("  - " + message.replace("\n", "\n    "), flush=True)
        if failed > len(failures):
            print(f"  … and {failed - len(failures)} more", flush=True)


def run_round(attack: Attack, traits: list[str], seed: int, short: bool, tally: Tally, lock: threading.Lock) -> None:
    """All `traits` with one seed. After a crash or a hang the rest goes on in a fresh process."""
    left = list(traits)
    while left:
        left = left[run_process(attack, left, seed, short, tally, lock) :]


def run_process(attack: Attack, traits: list[str], seed: int, short: bool, tally: Tally, lock: threading.Lock) -> int:
    """Runs traits in one process until it ends or has to be ended; how many are done with."""
    base = f"{attack.name}/{','.join(traits)}:{seed}"
    argv = [sys.executable, "-X", "faulthandler", str(HERE), "--worker", "--case", base] + (
        ["--short"] if short else []
    )
    done, places = 0, []
    with tempfile.TemporaryFile() as errors:
        # A backtrace takes so long that a panic would be told after its case has ended.
        env = os.environ | {"RUST_BACKTRACE": "0"}
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, env=env, start_new_session=True
        )
        assert process.stdout is not None
        lines = Lines(process.stdout.fileno())
        stuck, began, read = False, time.monotonic(), 0
        while (line := lines.next(attack.deadline_s if places else START_S + attack.deadline_s)) is not None:
            if not line:
                stuck = True
                break
            found = json.loads(line)
            if "begin" in found:
                places.append(found["place"])
                began = time.monotonic()
                continue
            if panics := panicked(errors, read):
                found["failed"], found["failures"] = (
                    found["failed"] + 1,
                    [*found["failures"], f"a thread panicked (of this case or the one before):\n{panics}"],
                )
            read = os.fstat(errors.fileno()).st_size
            with lock:
                tally.add(f"{attack.name}/{found['end']}:{seed}", found | {"short": short})
            done += 1
        if not stuck:
            try:
                process.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                stuck = True
        if stuck:
            # The fault handler writes where every thread stands.
            process.send_signal(signal.SIGABRT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        end_session(process)
        if done == len(traits):
            end = (
                None if process.returncode in (0, 1) else f"ended with status {process.returncode} after its last case"
            )
            end = f"did not exit within {EXIT_S:.0f} s after its last case" if stuck else end
        elif stuck:
            end = f"stuck: nothing within {attack.deadline_s:.0f} s"
        else:
            end = f"crashed with status {process.returncode}"
        if end is not None:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - 6000))
            tail = errors.read().decode(errors="replace")
            name = f"{attack.name}/{traits[min(done, len(traits) - 1)]}:{seed}"
            seconds = round(time.monotonic() - began, 2)
            failure = {
                "tries": 1,
                "failed": 1,
                "failures": [f"{end}\n{tail}"],
                "notes": {},
                "seconds": seconds,
                "short": short,
            }
            with lock:
                tally.add(name, failure)
            done += 1
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    return done


def panicked(errors: Any, start: int) -> str:
    """The first panic that was written to `errors` after `start`: none is right, caught or not."""
    text = os.pread(errors.fileno(), 1 << 20, start).decode(errors="replace")
    at = text.find("panicked at")
    return text[max(0, text.rfind("\n", 0, at)) : at + 400].strip() if at >= 0 else ""


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and what it started: they are the session that was made for them."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Lines:
    """Lines of a pipe, each waited for no longer than a deadline."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.held = b""

    def next(self, deadline_s: float) -> str | None:
        """A line, "" if none came in time, None at the end."""
        until = time.monotonic() + deadline_s
        while b"\n" not in self.held:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return ""
            more = os.read(self.fd, 65536)
            if not more:
                return None
            self.held += more
        line, _, self.held = self.held.partition(b"\n")
        return line.decode()


def repeat(name: str, short: bool) -> int:
    """Runs the case of that name."""
    attack_name, traits, seed = parse(name)
    tally = Tally(registry.attack(attack_name))
    run_round(tally.attack, traits, seed, short, tally, threading.Lock())
    print(record.table([tally]))
    return 1 if tally.failed else 0


def short(only: list[str], seed: int, jobs: int, out: Path | None) -> int:
    """The fixed part: every trait of every attack once, with one seed, a small amount of each."""
    tallies = [Tally(attack) for attack in registry.chosen(only)]
    lock, started = threading.Lock(), time.time()
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(run_round, t.attack, list(t.attack.traits), seed, True, t, lock) for t in tallies]:
            done.result()
    print(record.table(tallies))
    if out is not None:
        record.write(out, tallies, seed, 0.0, jobs, started, False)
    return 1 if any(t.failed for t in tallies) else 0


def campaign(only: list[str], seed: int | None, minutes: float, jobs: int, out: Path) -> int:
    """Rounds of all attacks, the one furthest behind its share next, until the time is over."""
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    names = only or [name for name in registry.NAMES if name not in registry.LONG or minutes >= 10]
    tallies = [Tally(attack) for attack in registry.chosen(names)]
    lock = threading.Lock()
    started, until = time.time(), time.monotonic() + 60.0 * minutes
    again = f"make chaos SEED={seed} MINUTES={minutes:g}" + (f" ONLY={','.join(only)}" if only else "")
    print(f"chaos: seed {seed}, {minutes:g} minutes, {jobs} processes at a time; again: {again}", flush=True)
    print(f"attacks: {', '.join(names)}", flush=True)
    interrupted = False
    with ThreadPoolExecutor(jobs) as pool:
        under_way: dict[Future[None], tuple[Tally, float]] = {}
        try:
            while time.monotonic() < until or under_way:
                while len(under_way) < jobs and time.monotonic() < until:
                    now = time.monotonic()
                    spent = {
                        id(t): t.seconds + sum(now - since for mine, since in under_way.values() if mine is t)
                        for t in tallies
                    }
                    tally = min(tallies, key=lambda t: (t.rounds > 0, spent[id(t)] / t.attack.share))
                    number, tally.rounds = tally.rounds, tally.rounds + 1
                    args = (
                        tally.attack,
                        list(tally.attack.traits),
                        seed_of(seed, tally.attack.name, number),
                        False,
                        tally,
                        lock,
                    )
                    under_way[pool.submit(run_round, *args)] = tally, now
                for finished in wait(under_way, timeout=1.0, return_when=FIRST_COMPLETED).done:
                    under_way.pop(finished)
                    finished.result()
        except KeyboardInterrupt:
            interrupted = True
            print("\ninterrupted: the cases under way are left to end; what is counted so far follows", flush=True)
    print(record.table(tallies))
    path = record.write(out, tallies, seed, minutes, jobs, started, interrupted)
    print(f"record: {path}")
    failed = sum(t.failed for t in tallies)
    print(
        "no failures" if not failed else f"{failed} FAILURES; the commands that repeat them are above and in the record"
    )
    return 1 if failed else 0

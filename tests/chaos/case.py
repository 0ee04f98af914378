"""What a case is: one trait of one attack, with one seed. The same three always do the same."""

from __future__ import annotations

import hashlib
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

#: Failures of one case that are told one by one; the rest is counted.
TOLD = 5


class Refuted(AssertionError):
    """What an attack raises when the loader did what it must not do."""


@dataclass
class Case:
    """One case while it runs: where its chance comes from, where its files go, what it found."""

    attack: str
    trait: str
    seed: int
    place: Path
    short: bool = False
    tries: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.attack}/{self.trait}:{self.seed}")

    @property
    def name(self) -> str:
        """What repeats it: ``attack/trait:seed``."""
        return f"{self.attack}/{self.trait}:{self.seed}"

    def size(self, full: int, short: int) -> int:
        """How much of something to do: the fixed part of ``make test`` does less of it."""
        return short if self.short else full

    def count(self, name: str, by: float = 1) -> None:
        """Adds to a note, which the table's JSON keeps."""
        self.notes[name] = self.notes.get(name, 0) + by

    def fail(self, message: str) -> None:
        """Notes a failure and goes on."""
        self.failed += 1
        if len(self.failures) < TOLD:
            self.failures.append(message)

    def check(self, holds: object, message: str) -> bool:
        """One try, failed with `message` unless `holds`."""
        self.tries += 1
        if not holds:
            self.fail(message)
        return bool(holds)

    def none_of(self, problems: list[str], about: str = "") -> None:
        """One try, failed if there are `problems`; all of them are one failure."""
        self.check(not problems, f"{about}{': ' if about else ''}{'; '.join(problems[:TOLD])}" if problems else "")


#: What a trait of an attack is: it does its work and notes what it finds.
Trait = Callable[[Case], None]


@dataclass(frozen=True)
class Attack:
    """Traits that belong together, and how much of a campaign is theirs."""

    name: str
    traits: dict[str, Trait]
    #: Share of the campaign's time, relative to the others.
    share: float
    #: Seconds after which a trait counts as stuck: at least ten times what it needs on a slow machine.
    deadline_s: float = 300.0


def seed_of(campaign: int, attack: str, number: int) -> int:
    """The seed of the number-th round of an attack: far from all others, and the same on every machine."""
    digest = hashlib.sha256(f"{campaign} {attack} {number}".encode()).digest()
    return int.from_bytes(digest[:4], "little")


def run(attack: Attack, case: Case) -> Case:
    """Runs one case; whatever it raises is a failure of it."""
    try:
        attack.traits[case.trait](case)
    except Refuted as refuted:
        case.tries += 1
        case.fail(str(refuted))
    except BaseException:  # noqa: BLE001 - SystemExit or KeyboardInterrupt that leaks out of an attack is a finding, too
        case.tries += 1
        case.fail("raised " + traceback.format_exc(limit=-6))
    return case

"""What a run leaves, replaced whole after every check: gpu.json (checks, figures), state.json (what the next run goes on
from) and gpu.tar.gz (logs and results, at most 16 MiB); and the table it prints last."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import plan
from figures import line

SCHEMA_VERSION = 3
ARCHIVE_BYTES = 16 << 20
#: A log longer than this keeps its beginning and its end.
LOG_BYTES = 1 << 20
#: Where a GPU is far away, the last 12,000 characters may be all that comes back.
TABLE_CHARACTERS = 9_000
RECORDS = Path(__file__).resolve().parents[1] / "record"


@dataclass
class Outcome:
    """How a check went."""

    name: str
    status: str  # ok, failed, killed, skipped, not reached
    summary: str = ""
    seconds: float = 0.0
    truth: bool = False
    exit_code: int | None = None
    #: Runs again what was wrong; empty: the whole check.
    again: list[str] = field(default_factory=list)


def slug(card: str) -> str:
    """A card's folder under benches/record."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def newest(card: str, *more: Path) -> dict[str, Any]:
    """The newest state of this card, of those in the tree and `more`; empty without one."""
    found = []
    for file in [*RECORDS.glob("*/**/state.json"), *more]:
        try:
            state = json.loads(file.read_text())
            if state["card"] == card:
                found.append((state["ended"], str(file), state))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {**max(found)[2], "file": max(found)[1]} if found else {}


def read_figures(file: Path) -> list[dict[str, Any]]:
    """The last line of each (check, name). One that a kill cut short is left out, and what follows on its line is
    not."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for text in file.read_text(errors="replace").splitlines() if file.exists() else []:
        try:
            figure = json.loads(text[max(0, text.rfind('{"check"')) :])
            found[figure["check"], figure["name"]] = figure
        except (ValueError, KeyError, TypeError):
            continue
    return list(found.values())


class Record:
    """The files of one run."""

    def __init__(self, out: Path, results: Path, about: dict[str, Any]) -> None:
        self.out, self.results, self.about = out, results, about
        self.figures_file = results / "figures.jsonl"
        self.outcomes: list[Outcome] = []
        #: The state of the run that this one goes on from.
        self.before: dict[str, Any] = {}
        self.data: dict[str, Any] = {"figures": []}

    def goes_on_from(self, before: dict[str, Any]) -> None:
        """Takes over what that run has left."""
        self.before, self.about["before"] = before, before.get("file")

    def passed(self) -> bool:
        """Whether everything that is true or false was found true."""
        fine = {"ok", "skipped"} if self.about["dry_run"] else {"ok"}
        return all(o.status in fine for o in self.outcomes if o.truth)

    def state(self) -> dict[str, Any]:
        """What is done and what is not, this run's word before an earlier one's."""
        aids = {check.name for check in plan.ALL.values() if check.aid}
        now = {o.name: o for o in self.outcomes if o.name not in aids}
        # An attempt that found no time says nothing of the attempt before.
        told = {name for name, o in now.items() if o.status not in ("not reached", "skipped")}
        before = {key: [e for e in self.before.get(key, []) if e["check"] not in told] for key in ("done", "failed", "not_reached")}
        kept = {e["check"] for key in ("done", "failed") for e in before[key]}
        not_reached = [{"check": o.name, "why": o.summary} for o in now.values() if o.status in ("not reached", "skipped") and o.name not in kept]
        new = {e["check"] for e in not_reached}
        return {
            "card": self.about["card"],
            "list": self.about["list"],
            "commit": self.about["commit"],
            "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            "done": before["done"] + [{"check": o.name} for o in now.values() if o.status == "ok"],
            "failed": before["failed"] + [{"check": o.name, "how": o.status, "again": o.again} for o in now.values() if o.status in ("failed", "killed")],
            "not_reached": [e for e in before["not_reached"] if e["check"] not in new | told] + not_reached,
        }

    def write(self) -> None:
        """Every file, each whole or not at all."""
        figures = read_figures(self.figures_file)
        self.data = {
            "schema_version": SCHEMA_VERSION,
            **self.about,
            "passed": self.passed(),
            "seconds": round(time.time() - self.about["started"], 1),
            "checks": [asdict(o) for o in self.outcomes],
            "figures": figures,
        }
        for name, value in (("gpu.json", self.data), ("state.json", self.state())):
            text = json.dumps(value, indent=1, default=str) + "\n"
            for folder in (self.results, self.out):
                replace(folder / name, lambda to, text=text: to.write_text(text))
        replace(self.out / "gpu.tar.gz", self.pack)

    def pack(self, to: Path) -> None:
        """The results in one archive. Files that would make it too large stay behind, the largest first; what the run
        itself wrote stays in."""
        own = {"gpu.json", "state.json", "figures.jsonl"}
        files = sorted((f for f in self.results.rglob("*") if f.is_file()), key=lambda f: (f.name not in own, f.suffix != ".json", f.stat().st_size))
        while True:
            with tarfile.open(to, "w:gz", compresslevel=3) as archive:
                for file in files:
                    archive.add(file, f"gpu/{file.relative_to(self.results)}")
            if to.stat().st_size <= ARCHIVE_BYTES or len(files) <= len(own):
                return
            files.pop()

    def table(self) -> str:
        """Checks, then figures with a limit: those missed, those not measured, those met, as far as they fit."""
        lines = [f"{o.name:<14} {o.status:<12} {o.seconds:>4.0f} s  {o.summary[:110]}" for o in self.outcomes]
        judged = [f for f in self.data["figures"] if f.get("limit") is not None]
        word = {False: "missed", None: "not measured", True: "met"}
        judged.sort(key=lambda f: list(word).index(f.get("met")))
        room = TABLE_CHARACTERS - sum(map(len, lines))
        for number, figure in enumerate(judged):
            told = f"{figure['check']}: {line(figure)}"
            if (room := room - len(told) - 1) < 0:
                lines.append(f"… and {len(judged) - number} more in gpu.json")
                break
            lines.append(told)
        counts = ", ".join(f"{sum(f.get('met') is met for f in judged)} {text}" for met, text in word.items())
        return "\n".join([*lines, f"{len(judged)} figures with a limit: {counts}; {len(self.data['figures']) - len(judged)} others"])

    def remains(self) -> str:
        """What the next run has to do, and how it is started."""
        state = self.state()
        parts = [f"{key.replace('_', ' ')}: {', '.join(e['check'] for e in state[key])}" for key in ("failed", "not_reached") if state[key]]
        if self.about["list"] == "first":
            parts.append("the list `rest`")
        if not parts:
            return "REMAINS: nothing"
        how = "" if self.about["dry_run"] else f". Keep state.json below benches/record/{slug(state['card']) or 'CARD'}/, then .ci/gpu rest"
        return f"REMAINS: {'; '.join(parts)}{how}"


def shorten(log: Path) -> None:
    """Keeps the beginning and the end."""
    text = log.read_bytes()
    if len(text) > LOG_BYTES:
        half = LOG_BYTES // 2
        log.write_bytes(text[:half] + f"\n… {len(text) - 2 * half} bytes left out …\n".encode() + text[-half:])


def replace(path: Path, make: Callable[[Path], Any]) -> None:
    """Makes a file beside the path and puts it there."""
    draft = path.with_name(path.name + ".new")
    make(draft)
    os.replace(draft, path)


def clear(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

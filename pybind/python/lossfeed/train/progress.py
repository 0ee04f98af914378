"""What the user sees while it runs: a bar on a terminal, plain lines elsewhere, NDJSON for programs."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from typing import Any, TextIO

from . import table
from .run import EpochResult, Progress, RunResult


class Reporter:
    """Says nothing until the end (``--quiet``); the others add to it."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def note(self, text: str) -> None:
        """Something was decided for the user."""

    def job(self, description: dict[str, Any], recipes: Sequence[str], seeds: Sequence[int]) -> None:
        """The comparison begins."""

    def progress(self, now: Progress) -> None:
        """A few times a second inside an epoch."""

    def epoch(self, recipe: str, seed: int, epochs: int, result: EpochResult) -> None:
        """An epoch has ended and was evaluated."""

    def run(self, result: RunResult) -> None:
        """A run has ended."""

    def interrupted(self) -> None:
        """An error is about to be told: leave the cursor on a line of its own."""

    def finish(self, runs: Sequence[RunResult], planned: int) -> None:
        """The end, or an interruption after ``len(runs)`` of ``planned`` runs."""
        text = table.render(runs, shutil.get_terminal_size((120, 24)).columns)
        if text:
            self._line("\n" + text)
        if len(runs) < planned:
            self._line(f"stopped after {len(runs)} of {planned} runs")

    def _line(self, text: str) -> None:
        print(text, file=self.out, flush=True)


class PlainReporter(Reporter):
    """A line an epoch."""

    def note(self, text: str) -> None:
        self._line(text)

    def job(self, description: dict[str, Any], recipes: Sequence[str], seeds: Sequence[int]) -> None:
        d = description
        store = f"store latency {1e3 * d['latency_s']:g} ms" if d["latency_s"] else "local store"
        if d["bandwidth_bytes_per_s"]:
            store += f", {d['bandwidth_bytes_per_s'] / 1e6:g} MB/s"
        if d["chaos"] is not None:
            store += f" that fails on purpose (--chaos {d['chaos']})"
        cache = f"{100 * d['cache']:g} % of the data" if isinstance(d["cache"], float) else f"{d['cache']:,} bytes"
        size = "×".join(map(str, d["shape"]))
        wrong = f" · {100 * d['wrong_labels']:g} % of labels wrong" if d["wrong_labels"] else ""
        augmented = {"none": "not augmented", "crop": "shifted", "crop-flip": "shifted and mirrored"}[d["augment"]]
        self._line(
            table.wrapped(
                f"{d['data']}: {d['train_samples']:,} training and {d['held_out_samples']:,} held-out images of {size}, "
                f"{d['classes']} classes · {augmented}{wrong} · {store} · cache {cache}\n"
                f"{len(recipes)} × {len(seeds)} runs of {d['steps']:,} steps of {d['batch_size']} ({d['epochs']} epochs) "
                f"on {d['device']}: {', '.join(recipes)}",
                shutil.get_terminal_size((120, 24)).columns,
            )
        )

    def epoch(self, recipe: str, seed: int, epochs: int, result: EpochResult) -> None:
        self._line(f"{_who(recipe, seed, result.epoch, epochs)}  {'  '.join(_epoch_parts(result).values())}")


class TerminalReporter(PlainReporter):
    """A bar an epoch, redrawn in place; the finished bar stays."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._open = False

    def progress(self, now: Progress) -> None:
        share = now.step / max(now.steps, 1)
        parts = _parts(now.accuracy, now.coverage, now.coverage_ever, now.hit_ratio, now.stall_share, now.samples_per_s)
        self._draw(_who(now.recipe, now.seed, now.epoch, now.epochs), share, parts)

    def epoch(self, recipe: str, seed: int, epochs: int, result: EpochResult) -> None:
        self._draw(_who(recipe, seed, result.epoch, epochs), 1.0, _epoch_parts(result))
        self._end_bar()

    def interrupted(self) -> None:
        self._end_bar()

    def _draw(self, head: str, share: float, parts: dict[str, str]) -> None:
        # One column stays free: some terminals wrap when the last one is written, and the bar would crawl down.
        columns = shutil.get_terminal_size().columns - 1
        # A narrow window leaves out whole numbers. The hit ratio goes before its company: it never stands alone.
        for name in ("ess", "hit", "seen", "rate"):
            if len(head) + 2 + len("  ".join(parts.values())) > columns:
                parts.pop(name, None)
        text = "  ".join(parts.values())
        room = max(0, min(24, columns - len(head) - len(text) - 4))
        bar = f"▕{_bar(share, room)}▏" if room >= 4 else " "
        self.out.write("\r\x1b[2K" + f"{head} {bar} {text}"[:columns])
        self.out.flush()
        self._open = True

    def _end_bar(self) -> None:
        if self._open:
            self.out.write("\n")
            self.out.flush()
            self._open = False

    def _line(self, text: str) -> None:
        self._end_bar()
        super()._line(text)


class JsonReporter(Reporter):
    """One JSON object a line: events ``note``, ``job``, ``epoch``, ``run``, ``table``. Shares are in 0 … 1 except in
    columns that end in ``_percent``; numbers that do not exist are ``null``."""

    def note(self, text: str) -> None:
        self._event("note", text=text)

    def job(self, description: dict[str, Any], recipes: Sequence[str], seeds: Sequence[int]) -> None:
        self._event("job", **description, recipes=list(recipes), seeds=list(seeds))

    def epoch(self, recipe: str, seed: int, epochs: int, result: EpochResult) -> None:
        self._event("epoch", recipe=recipe, seed=seed, epochs=epochs, **vars(result))

    def run(self, result: RunResult) -> None:
        fields = result.as_dict()
        del fields["epochs"]
        self._event("run", **fields)

    def finish(self, runs: Sequence[RunResult], planned: int) -> None:
        self._event("table", rows=table.rows(runs), runs=len(runs), planned=planned)

    def _event(self, event: str, **fields: Any) -> None:
        self._line(json.dumps({"event": event, **_finite(fields)}))


def choose(out: TextIO, as_json: bool, quiet: bool) -> Reporter:
    """The reporter that suits where the output goes."""
    if as_json:
        return JsonReporter(out)
    if quiet:
        return Reporter(out)
    return TerminalReporter(out) if out.isatty() else PlainReporter(out)


def _who(recipe: str, seed: int, epoch: int, epochs: int) -> str:
    return f"{recipe} seed {seed} epoch {epoch + 1:>{len(str(epochs))}}/{epochs}"


def _parts(accuracy: float, seen: float, ever: float, hit: float, stall: float, rate: float) -> dict[str, str]:
    return {
        "acc": f"acc {_percent(accuracy)}",
        "seen": f"seen {_percent(seen)} (ever {_percent(ever)})",
        "hit": f"hit {_percent(hit)}",
        "stall": f"stall {_percent(stall)}",
        "rate": f"{rate:,.0f}/s",
    }


def _epoch_parts(e: EpochResult) -> dict[str, str]:
    per_second = e.samples / max(e.seconds, 1e-9)
    parts = _parts(e.accuracy, e.coverage, e.coverage_ever, e.hit_ratio, e.stall_share, per_second)
    rate = parts.pop("rate")
    return {**parts, "ess": f"ess {_percent(e.ess)}", "rate": rate}


def _percent(share: float) -> str:
    return "  –  " if math.isnan(share) else f"{100 * share:4.1f}%"


def _bar(share: float, room: int) -> str:
    eighths = round(share * room * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(room)[:room]


def _finite(value: Any) -> Any:
    """JSON has no NaN: what does not exist is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value

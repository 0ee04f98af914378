"""The side-by-side table. Pure: results in, text or plain values out."""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .run import RunResult


@dataclass(frozen=True)
class Measure:
    """One line of the table: its name for programs, its words for people, where it comes from."""

    name: str
    words: str
    value: Callable[[RunResult], float]
    digits: int


def _percent(field: str) -> Callable[[RunResult], float]:
    return lambda run: 100 * getattr(run, field)


# Settings that make a recipe a control, and what it controls.
_CONTROLS = {
    "echo": "echo is the control without scores: what replay has over it is what scores are worth here.",
    "scores=batch": "scores=batch is the control without samples' scores: all samples of a batch have one.",
}
# A hit ratio means nothing by itself: what it cost in accuracy and coverage stands right above it.
MEASURES = (
    Measure("accuracy_percent", "held-out accuracy, %", _percent("accuracy"), 1),
    Measure("seconds", "seconds", lambda run: run.seconds, 1),
    Measure("fetched_samples", "fetched from the source", lambda run: run.fetched_samples, 0),
    Measure("fetched_mb", "fetched, MB", lambda run: run.fetched_bytes / 1e6, 2),
    Measure("seen_epoch_percent", "distinct seen an epoch, %", _percent("coverage"), 1),
    Measure("seen_ever_percent", "distinct seen ever, %", _percent("coverage_ever"), 1),
    Measure("hit_percent", "hit ratio, %", _percent("hit_ratio"), 1),
    Measure("stall_percent", "waiting for data, %", _percent("stall_share"), 1),
    Measure("ess_percent", "ESS of the weights, %", _percent("ess"), 1),
    Measure("samples_per_s", "samples/s", lambda run: run.samples_per_s, 0),
)


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; the latter is ``None`` for a single value (unknown is not zero)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


# Student's t at 97.5 % for 1 to 30 degrees of freedom; with more the last one is a little too wide.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
      2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


def interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean of ``values``; ``None`` for a single one."""
    if len(values) < 2:
        return None
    return _T[min(len(values) - 1, len(_T)) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def rows(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """One row a recipe, in order of first appearance: mean and sd over its seeds for every measure.

    ``accuracy_difference`` compares in pairs with the first recipe, over the seeds both have finished, in points;
    ``interval95`` is half of its mean's 95 % interval. ``times_faster`` is the first recipe's mean time over its own.
    """
    recipes = list(dict.fromkeys(run.recipe for run in runs))
    first = {run.seed: run.accuracy for run in runs if run.recipe == recipes[0]} if recipes else {}
    table: list[dict[str, Any]] = []
    for recipe in recipes:
        mine = [run for run in runs if run.recipe == recipe]
        row: dict[str, Any] = {"recipe": recipe, "seeds": [run.seed for run in mine], "steps": mine[0].steps}
        for measure in MEASURES:
            mean, sd = mean_sd([measure.value(run) for run in mine])
            row[measure.name] = {"mean": mean, "sd": sd}
        pairs = [100 * (run.accuracy - first[run.seed]) for run in mine if run.seed in first]
        if recipe != recipes[0] and pairs:
            mean, sd = mean_sd(pairs)
            row["accuracy_difference"] = {"mean": mean, "sd": sd, "interval95": interval(pairs)}
        if table and row["seconds"]["mean"] > 0:
            row["times_faster"] = table[0]["seconds"]["mean"] / row["seconds"]["mean"]
        table.append(row)
    return table


def render(runs: Sequence[RunResult], columns: int = 120) -> str:
    """The table as aligned text, recipes side by side, in as many blocks as ``columns`` characters ask for.

    Empty if nothing has finished.
    """
    if not runs:
        return ""
    table = rows(runs)
    first = table[0]["recipe"]
    words = [m.words for m in MEASURES]
    alone = len(table) == 1
    beside = [[f"  against {first}"], [f"  × faster than {first}"]]
    labels = ["", words[0], *([] if alone else beside[0]), words[1], *([] if alone else beside[1]), *words[2:]]
    width = max(map(len, labels))
    cells = [_recipe_cells(row, alone) for row in table]
    cell_widths = [max(map(len, cell)) + 2 for cell in cells]
    blocks: list[list[int]] = [[]]
    for i, cell_width in enumerate(cell_widths):
        if blocks[-1] and width + sum(cell_widths[j] for j in blocks[-1]) + cell_width > columns:
            blocks.append([])
        blocks[-1].append(i)
    lines: list[str] = []
    for block in blocks:
        for n, label in enumerate(labels):
            lines.append((label.ljust(width) + "".join(cells[i][n].rjust(cell_widths[i]) for i in block)).rstrip())
            if n == 0:
                lines.append("─" * (width + sum(cell_widths[i] for i in block)))
        lines.append("")
    counts = sorted({len(row["seeds"]) for row in table})
    many = f"mean ± sd over {' to '.join(map(str, counts))} seeds"
    seeds = "one seed, so no spread (--seeds 3 trains with three)" if counts == [1] else many
    if not alone and counts != [1]:
        seeds += "; against: mean of the pairs' differences ± half of its 95 % interval"
    settings = [set(re.split("[+:]", row["recipe"])) for row in table]
    controls = [text for word, text in _CONTROLS.items() if any(word in of for of in settings)]
    steps = " or ".join(f"{n:,}" for n in sorted({row["steps"] for row in table}))
    notes = [
        f"{seeds}; {steps} steps each. distinct seen: different samples trained on ÷ samples in the set.",
        "ESS: effective sample size, 100 % when all weights are equal.",
        *controls,
    ]
    return "\n".join([*lines, wrapped("\n".join(notes), columns)])


def wrapped(text: str, columns: int) -> str:
    """``text`` as lines of at most ``columns``, broken between words."""
    lines = (textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False) for line in text.splitlines())
    return "\n".join("\n".join(part) for part in lines)


def _recipe_cells(row: dict[str, Any], alone: bool) -> list[str]:
    values = [_cell(row[m.name], m.digits) for m in MEASURES]
    found = row.get("accuracy_difference")
    difference = _cell({"mean": found["mean"], "sd": found["interval95"]}, 1, "+") if found else ""
    faster = f"{row['times_faster']:.2f}" if "times_faster" in row else ""
    if alone:
        return [row["recipe"], *values]
    return [row["recipe"], values[0], difference, values[1], faster, *values[2:]]


def _cell(value: dict[str, Any], digits: int, sign: str = "") -> str:
    mean, sd = value["mean"], value["sd"]
    # Rounded first, plus zero: a difference of -0.04 is not "-0.0".
    text = f"{round(mean, digits) + 0.0:{sign},.{digits}f}"
    return text if sd is None else f"{text} ± {sd:,.{digits}f}"

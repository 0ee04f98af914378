"""An epoch's report, as people read it."""

from __future__ import annotations

import json
from typing import Any


def readable(report: str) -> dict[str, Any]:
    """The engine's report (JSON), with ranges as text and pairs as dicts."""
    found = json.loads(report)
    found["uses"] = {_range(least, most): samples for least, most, samples in found["uses"]}
    found["most_used"] = {sample: times for sample, times in found["most_used"]}
    ages = found["score_ages"]
    found["score_ages"] = {f"{least}+" if below is None else f"{least}-{below}": n for least, below, n in ages}
    found["classes"] = {label: (rows, weight) for label, rows, weight in found["classes"]}
    return found


def _range(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least}-{most}"

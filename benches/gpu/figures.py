"""Figures: what a check measured, beside its limit and what the model of ``kernels/README.md`` predicts.

Each is one line of JSON, appended to the file that ``LOSSFEED_GPU_FIGURES`` names as soon as it is known, so that a
program that is killed leaves what it had. ``LOSSFEED_GPU_CHECK`` names the check; without it the program's section does.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

FILE, CHECK = "LOSSFEED_GPU_FIGURES", "LOSSFEED_GPU_CHECK"
#: This program's.
TOLD: list[dict[str, Any]] = []


def figure(
    check: str,
    name: str,
    value: Any,
    unit: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
    n: int | None = None,
    spread: float | None = None,
    predicted: float | None = None,
) -> dict[str, Any]:
    """Appends one figure and prints it. `value` is asked to be at least `least` or at most `most`; anything but a finite
    number means that nothing was measured. `n` is the number of repeats, `spread` the distance between their quartiles
    as a share of `value`."""
    measured = float(value) if isinstance(value, (bool, int, float)) and math.isfinite(value) else None
    limit = most if least is None else least
    met = None
    if measured is not None and limit is not None:
        met = measured >= limit if least is not None else measured <= limit
    found = {
        "check": os.environ.get(CHECK) or check,
        "name": name,
        "value": measured,
        "unit": unit,
        "limit": limit,
        "at_least": least is not None,
        "met": met,
        "n": n,
        "spread": spread,
        "predicted": predicted,
    }
    TOLD.append(found)
    print(f"  {line(found)}", flush=True)
    if path := os.environ.get(FILE):
        try:
            with open(path, "ab", buffering=0) as file:
                file.write(json.dumps(found, allow_nan=False).encode() + b"\n")
        except (OSError, ValueError) as error:
            print(f"  the figure could not be appended to {path}: {error}")
    return found


def line(found: dict[str, Any]) -> str:
    """A figure in words."""

    def text(value: float | None) -> str:
        return "not measured" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"

    words = f"{found['name']}: {text(found['value'])} {found['unit']}".rstrip()
    if found["limit"] is not None:
        words += f", {'≥' if found['at_least'] else '≤'} {text(found['limit'])}: {'not judged' if found['met'] is None else 'met' if found['met'] else 'MISSED'}"
    return words + (f", predicted {text(found['predicted'])}" if found["predicted"] is not None else "")


def known(name: str) -> float | None:
    """A figure that this program, or one before it, has measured."""
    path, found = Path(os.environ.get(FILE, "")), list(TOLD)
    for text in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):  # a line cut short by a kill
            found.append(json.loads(text))
    return next((one["value"] for one in reversed(found) if one["name"] == name), None)


# ---- the model: µs of one kernel where bandwidth is the limit ------------------------------------------------------------

#: The launch, the first wait for memory and the last block's end.
LAUNCH_US = 2.5
#: Threads that a multiprocessor holds of the forward kernel.
RESIDENT = 768


def forward_us(rows: int, classes: int, element_bytes: int, gb_per_s: float, multiprocessors: int) -> float:
    """The forward kernel of long rows, on a GPU that reads so fast."""
    threads = 32 if classes * element_bytes <= 32 << 10 else 256
    waves = rows * threads / (RESIDENT * multiprocessors)
    return LAUNCH_US + rows * classes * element_bytes / gb_per_s / 1e3 * (1 + (0.2 / waves if waves > 1 else 0))


def ranks_us(rows: int) -> float:
    """What ranks take after the kernel, from 513 rows on."""
    return 3.0 if rows <= 2048 else 5.0 + max(0, rows - 4096) / 12_288


def backward_us(rows: int, classes: int, element_bytes: int, copy_gb_per_s: float) -> float:
    """The backward kernel of long rows: one read, one write."""
    return LAUNCH_US + 2 * rows * classes * element_bytes / copy_gb_per_s / 1e3


#: Predicted ratios to our time for loss and gradient: eager torch moves 8 to 10 times the logits, Liger 3.3 times (as
#: one kernel), QuACK 3 times, we 3.2 times.
PEERS = {"eager": 3.0, "liger": 1.05, "quack": 1.0}
#: µs of GPU time at 256 x 10: the kernel; with tickets and ranks; with a claim, columns and a system-wide fence.
SCORE_STAGES_US = {"loss alone": 3.3, "with ranks": 4.7, "with ranks and mail": 8.2}
#: µs on the host: recorded on the driver double, and the driver's 2.5 for a launch.
HOST_US = {"loader.score": 7.2, "loader.cross_entropy": 20.4}

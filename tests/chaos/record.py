"""What a campaign found, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any


def table(tallies: list[Any]) -> str:
    """One line an attack: tries, failures, seconds, and what it counted besides."""
    rows = [("attack", "cases", "tries", "failures", "seconds", "")]
    for t in tallies:
        notes = ", ".join(f"{value:,.0f} {name}" for name, value in sorted(t.notes.items()))
        rows.append((t.attack.name, f"{t.cases:,}", f"{t.tries:,}", f"{t.failed:,}", f"{t.seconds:,.0f}", notes))
    widths = [max(len(row[k]) for row in rows) for k in range(5)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [row[k].rjust(widths[k]) for k in range(1, 5)]
        lines.append("  ".join([*cells, row[5]]).rstrip())
    return "\n".join(["", *lines, ""])


def machine() -> str:
    """Processor and number of cores."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as info:
            name = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def commit() -> str:
    """The commit, with a mark if files differ from it."""
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return said.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def write(
    out: Path, tallies: list[Any], seed: int, minutes: float, jobs: int, started: float, interrupted: bool
) -> Path:
    """Writes the record: into the folder `out`, or to it where it ends in .json."""
    import lossfeed

    when = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(started))
    path = out if out.suffix == ".json" else out / f"{when}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "date": when,
        "machine": machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "lossfeed": lossfeed.__version__,
        "commit": commit(),
        "seed": seed,
        "minutes": minutes,
        "jobs": jobs,
        "interrupted": interrupted,
        "wall_seconds": round(time.time() - started, 1),
        "attacks": {
            t.attack.name: {
                "rounds": t.rounds,
                "cases": t.cases,
                "tries": t.tries,
                "failures": t.failed,
                "seconds": round(t.seconds, 1),
                "notes": t.notes,
                "failed": t.failures,
            }
            for t in tallies
        },
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path

"""Runs each case under `lossfeed why`, changes its one line, runs it again, and writes ../waits.md.

    python pybind/docs/cases/take.py        # two minutes on an idle machine

Numbers are of the machine that ran it; the page says which.
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Case(NamedTuple):
    """A script, the line that is changed, and what to say of it."""

    script: str
    title: str
    was: str
    now: str
    words: str


CASES = [
    Case(
        "one_reader.py",
        "One process reads, and each answer takes long",
        "DataLoader(Pictures(), batch_size=16, shuffle=True, num_workers=0)",
        "DataLoader(Pictures(), batch_size=16, shuffle=True, num_workers=4)",
        "An ordinary torch script, not changed for the first run. The time is the source's and not a processor's, so\n"
        "more readers overlap it. Four, one fewer than proposed, were enough.",
    ),
    Case(
        "slow_store.py",
        "A store that is slower than the training",
        "shuffle=True,",
        'cache="1MiB", sampler="auto",',
        "More readers cannot help: the link is full. A cache for a quarter of the samples does, if the run trains on\n"
        "what is in it again: `auto` chooses `replay`, which fetches a quarter of every batch. `echo` reads as few bytes\n"
        "without scores; both train on repeats, so compare accuracy ([samplers](samplers.md)).",
    ),
    Case(
        "large_pictures.py",
        "Pictures larger than the model wants",
        'lf.open(made("large"))',
        'lf.open(made("large"), resize=64)',
        "Everything is in the cache, but as JPEG: each hit is decoded at 512 × 512 and reduced to 64 × 64. Reduced\n"
        "when it is opened, a picture is decoded once and kept as pixels.",
    ),
]


def changed(case: Case) -> str:
    """The script with its one line changed."""
    text = (HERE / case.script).read_text()
    assert text.count(case.was) == 1, case.script
    return text.replace(case.was, case.now)


def line(text: str, part: str) -> str:
    """The line of a script that has `part`."""
    (found,) = [line.strip() for line in text.splitlines() if part in line]
    return found


def why(script: Path) -> str:
    """The report of `lossfeed why` on a run."""
    command = [sys.executable, "-m", "lossfeed", "why", "--", sys.executable, script]
    paths = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    said = (ran.stderr + ran.stdout).split("lossfeed why:", 1)[1]
    return "lossfeed why:" + re.sub(r" +$", "", said, flags=re.MULTILINE).rstrip()


def section(case: Case) -> str:
    text, after = (HERE / case.script).read_text(), changed(case)
    about = text.split('"""')[1]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, case.script)
        other.write_text(after)
        before_says, after_says = why(HERE / case.script), why(other)
    return (
        f"## {case.title}\n\n[`{case.script}`](cases/{case.script}): {about}\n\n"
        f"```text\n{before_says}\n```\n\n{case.words}\n\n"
        f"```diff\n- {line(text, case.was)}\n+ {line(after, case.now)}\n```\n\n```text\n{after_says}\n```\n"
    )


def main() -> None:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {date.today()}"
    head = (
        "# My GPU waits\n\n"
        "Put `lossfeed why --` before the command that trains. It changes nothing, works with any torch\n"
        "`DataLoader`, and says at the end what the steps waited for, and one line to write. [What each verdict\n"
        "means](why.md). Three cases: the run as it was, one change, and the run after it.\n\n"
        f"*{machine}, with others at work; `cases/take.py` runs them again.*\n"
        "No GPU was there: the training computes on the processors that also read. The cases show how to read the report, and\n"
        "not what a run gains: their stores and models were chosen so that waits dominate.\n"
    )
    (HERE.parent / "waits.md").write_text("\n".join([head, *map(section, CASES)]))


if __name__ == "__main__":
    main()

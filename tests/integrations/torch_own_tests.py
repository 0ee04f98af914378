"""torch's own tests of its DataLoader, and torchdata's of its StatefulDataLoader, with our loader in their place::

    python tests/integrations/torch_own_tests.py test_dataloader.py test_state_dict.py test_sampler.py

The files are theirs and are not in this repository: give the paths of copies (or folders that hold them), here or in
LOSSFEED_TORCH_TESTS, with colons between them. torchdata's are run where it is installed. Each test runs in a process
of its own, for a minute at most. What is expected of it stands in ``torch_own_tests.toml`` beside this file, which says
why; anything else is told and the run fails. ``--table`` prints what is expected as Markdown, ``-k WORD`` runs the tests
whose names have it, ``-v`` tells how each ended.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import select
import signal
import sys
import time
import tomllib
import unittest
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, NamedTuple

EXPECTED = Path(__file__).with_suffix(".toml")
SECONDS = 60
#: In the order of the table. Of these, tests are run.
RUN = {
    "passed": "as they are",
    "passed on what torch would give": "where a batch is read as torch would give it: `[batch.data, batch.target]`, or "
    "`batch.data` of samples that are no pairs",
    "refused": "with an error that says why",
    "differs": "by design: what they demand is otherwise here",
    "skipped": "by the file itself, where there is no GPU",
}
#: And of these not.
NOT_RUN = {
    "not run since": "which that run refused, and today's loader does not",
    "not applicable": "of what this loader does not have, or of no loader at all",
}


HEAD = """# torch's own tests, with our loader in the place of theirs

`python tests/integrations/torch_own_tests.py --table` prints this page. Its counts are of tests, as `torch_own_tests.toml`
expects them to end; the runner fails where one ends otherwise. Last run on 2026-11-23 with torch 2.15.0 and torchdata
0.11.0, on the CPU, from an excerpt of the files by hand: the tests to be run with what they need. Of those that the first
loader refuses it had no more than that; what is not applicable, and most of what wants a GPU, was judged by reading.
torchdata's own `test_dataloader.py` is torch's, with its class in it and tests of an `enumerate()` that ours does not have.
"""


class Expected(NamedTuple):
    """What is expected of a test; `says` is what the error of a refusal or difference has in it."""

    outcome: str
    reason: str
    says: str


class Ended(NamedTuple):
    """How a test ended: an outcome that is run or "failed", and the error's type and words."""

    outcome: str
    error: str


# ---- what is expected ----------------------------------------------------------------------------------------------


def expected(path: Path = EXPECTED) -> tuple[dict[str, str], dict[str, dict[str, Expected]]]:
    """Where the files are from, and what is expected of their tests: file → name → what."""
    read = tomllib.loads(path.read_text())
    found: dict[str, dict[str, Expected]] = {name: {} for name in read["from"]}
    for group in read["group"]:
        if group["outcome"] not in {**RUN, **NOT_RUN}:
            raise SystemExit(f"{path.name}: outcome {group['outcome']!r} is none of {', '.join({**RUN, **NOT_RUN})}")
        what = Expected(group["outcome"], group.get("reason", ""), group.get("says", ""))
        named = ((of, test) for classes, tests in group["tests"].items() for of in classes.split() for test in tests)
        for name in map(".".join, named):
            if name in found[group["file"]]:
                raise SystemExit(f"{path.name}: {name} stands there twice")
            found[group["file"]][name] = what
    return read["from"], found


def table() -> str:
    """What is expected, as Markdown."""
    sources, files = expected()
    counts = {name: Counter(what.outcome for what in tests.values()) for name, tests in files.items()}
    lines = [HEAD, "| | " + " | ".join(f"`{name}`" for name in files) + " |", "| --- |" + " --- |" * len(files)]
    for outcome, meaning in {**RUN, **NOT_RUN}.items():
        lines.append(f"| **{outcome}**, {meaning} | " + " | ".join(str(counts[name][outcome]) for name in files) + " |")
    lines += ["", *(f"- `{name}`: {source}" for name, source in sources.items()), ""]
    for outcome in ("refused", "differs", "skipped", *NOT_RUN):
        lines += [f"## {outcome.capitalize()}", "", "| tests | why |", "| --- | --- |"]
        reasons: dict[str, list[str]] = {}
        for tests in files.values():
            for name, what in tests.items():
                if what.outcome == outcome:
                    reasons.setdefault(what.reason, []).append(name)
        lines += [f"| {_named(names)} | {reason} |" for reason, names in reasons.items()] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _named(names: list[str]) -> str:
    """Names without their classes, each once, and how many tests they are."""
    short = list(dict.fromkeys(name.partition(".")[2].removeprefix("test_") for name in names))
    return f"{len(names)}: {', '.join(short)}"


# ---- one test ------------------------------------------------------------------------------------------------------


def replace(unpacked: bool) -> Any:
    """Puts our loader in the place of theirs, and returns it: it counts those that are made."""
    import torch.utils.data

    import lossfeed
    from lossfeed._batch.batch import Whole

    class Loader(lossfeed.Loader):
        made = 0

        def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **keywords: Any) -> None:
            # torchdata's: how often its workers report where they are. Ours always know.
            Loader.made += 1
            super().__init__(*args, **keywords)

        def __iter__(self) -> Iterator[Any]:
            return map(as_torch, super().__iter__()) if unpacked else super().__iter__()

    def as_torch(batch: Any) -> Any:
        return batch.data if isinstance(batch, Whole) else [batch.data, batch.target]

    torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = Loader
    with contextlib.suppress(ImportError):
        importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader = Loader
    return Loader


class First(unittest.TestResult):
    """Keeps the first thing that went wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.why_skipped = ""

    def addError(self, test: Any, error: Any) -> None:
        self.error = self.error or error[1]

    addFailure = addError

    def addSubTest(self, test: Any, part: Any, error: Any) -> None:
        self.error = self.error or (error and error[1])

    def addSkip(self, test: Any, reason: str) -> None:
        self.why_skipped = reason


def run_one(path: Path, name: str, unpacked: bool) -> Ended:
    """Runs one test in this process, which is of no use afterwards."""
    import lossfeed

    loader = replace(unpacked)
    of, _, method = name.partition(".")
    result = First()
    warnings.simplefilter("ignore")
    getattr(load(path), of)(method).run(result)
    if result.error is not None:
        said = f"{type(result.error).__name__}: {result.error}"
        return Ended("refused" if isinstance(result.error, lossfeed.Error) else "failed", said)
    if result.why_skipped:
        return Ended("skipped", result.why_skipped)
    if loader.made == 0 and "typing" not in name:
        return Ended("failed", "it passed, and made no loader: it is not applicable")
    return Ended("passed on what torch would give" if unpacked else "passed", "")


def load(path: Path) -> Any:
    """The test file as a module, by its own name, under which it may import itself."""
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


def names_of(path: Path) -> list[str]:
    """All tests of a file, in its order."""
    module = load(path)
    cases = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, unittest.TestCase)]
    listed = ((case, unittest.defaultTestLoader.getTestCaseNames(case)) for case in cases if case.__module__ == path.stem)
    return [f"{case.__name__}.{test}" for case, tests in listed for test in tests]


# ---- each in its own process ---------------------------------------------------------------------------------------


def apart(work: Any) -> Any:
    """What ``work()`` returns, of JSON's kinds, in a forked process that ends then; or :class:`Ended` where it does not
    come in time, or ends without a word. Here torch is imported and has not computed yet, so that forking is cheap and
    safe."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(quiet, stream)
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(Ended("failed", f"{type(error).__name__}: {error}"))
        os.write(theirs, answer.encode())
        os._exit(0)
    os.close(theirs)
    said, until = b"", time.monotonic() + SECONDS
    while True:
        if not select.select([ours], [], [], max(0.0, until - time.monotonic()))[0]:
            said = json.dumps(Ended("failed", f"no end within {SECONDS} s")).encode()
            break
        part = os.read(ours, 1 << 16)
        if not part:
            break
        said += part
    os.close(ours)
    # With all it has started.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(said or json.dumps(Ended("failed", "the process ended without a word")))


def run(path: Path, name: str) -> Ended:
    """How a test ends: with batches as they are, else with what torch would give."""
    ended = Ended(*apart(lambda: run_one(path, name, False)))
    return ended if ended.outcome != "failed" else Ended(*apart(lambda: run_one(path, name, True)))


def wrong(what: Expected | None, ended: Ended) -> str | None:
    """Why this is not what was expected."""
    if what is None:
        return f"unknown to {EXPECTED.name}; it ended {ended.outcome}: {ended.error}"
    if ended.outcome != ("failed" if what.outcome == "differs" else what.outcome):
        return f"{what.outcome} was expected, and it {ended.outcome}: {ended.error}"
    if what.outcome in ("refused", "differs") and not re.search(what.says or r"\A\Z", ended.error, re.DOTALL):
        return f"{what.outcome} as expected, and not with {what.says!r}: {ended.error}"
    return None


def files(given: list[str]) -> dict[str, Path]:
    """The test files that are at hand, by name."""
    places = given or [place for place in os.environ.get("LOSSFEED_TORCH_TESTS", "").split(os.pathsep) if place]
    within = [place / name for place in map(Path, places) for name in (expected()[0] if place.is_dir() else [""])]
    return {path.name: path.resolve() for path in within if path.exists()}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("files", nargs="*")
    asked.add_argument("-k", default="", metavar="WORD")
    asked.add_argument("-v", action="store_true")
    asked.add_argument("--table", action="store_true")
    options = asked.parse_args()
    if options.table:
        return print(table(), end="") or 0
    at_hand = files(options.files)
    if not at_hand:
        return print("no test file is at hand, nothing was run: give paths, or set LOSSFEED_TORCH_TESTS") or 0
    import torch.testing._internal.common_utils  # noqa: F401  # once, before the forks

    _, known = expected()
    problems, counted = 0, Counter()
    for file, path in at_hand.items():
        listed = apart(lambda: names_of(path))
        if "failed" in listed:
            print(f"{file}: not run: {listed[1]}")
            problems += "No module named 'torchdata'" not in listed[1]
            continue
        for name in listed:
            what = known.get(file, {}).get(name)
            if options.k not in name or (what is not None and what.outcome in NOT_RUN):
                continue
            ended = run(path, name)
            problem = wrong(what, ended)
            counted[what.outcome if what and not problem else "unexpected"] += 1
            problems += problem is not None
            if problem or options.v:
                print(f"{file}: {name}: {problem or ended.outcome + ' ' + ended.error[:200]}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counted.items()) or "nothing was run")
    return problems > 0


if __name__ == "__main__":
    sys.exit(main())

"""The project's own tests on this machine's GPU, each in a process of its own: what one does to the device is not met
by the next.

Sections: ``machine`` (doctor, smi, nvidia-smi), ``kernels`` (the Rust test program of the bundle), ``python`` (the tests
that ask torch for a GPU), ``memcheck`` and ``racecheck`` (some of the kernels' tests under compute-sanitizer), ``sweep``
(launch shapes and variants, told as figures). Status 1 if anything is wrong. A test that time does not reach is named,
and fails the section unless it is a sanitizer's.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The kernels' test program, unpacked.
KERNELS = os.environ.get("LOSSFEED_GPU_KERNELS", "")
JOBS = 6
SWEEP = "gpu_sweep"
#: Parts of the names of the tests that run under each tool: few, as it slows them down some fifty times.
UNDER = {
    "memcheck": ("gradient_of_the_definition", "ranks_bit", "mails", "one_number", "gathers", "makes_images"),
    "racecheck": ("ranks_bit", "mails", "one_number", "gradient_of_the_definition", "retouches"),
}
FINDING = re.compile(r"^========= (Invalid|Error: |Warning: |Race|Misaligned|Out-of)", re.M)


@dataclass
class Ran:
    """A command that ended, or was killed (status None)."""

    name: str
    status: int | None
    said: str
    seconds: float

    def ends(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return "no time left"
        return "ok" if self.status == 0 else signal.Signals(-self.status).name if self.status < 0 else f"status {self.status}"


class Runner:
    """Runs commands side by side until its time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.ends: float = time.monotonic() + options.until
        self.quick: bool = options.quick
        self.tests: list[str] = options.test
        self.scratch = Path(tempfile.mkdtemp(prefix="lossfeed-tests-"))

    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    def run(self, name: str, command: list[str], more: dict[str, str] | None = None) -> Ran:
        """One command, in the process group of this program."""
        begun = time.monotonic()
        log = self.scratch / re.sub(r"\W", "_", name)
        with log.open("wb") as to:
            try:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **(more or {})})
            except OSError as error:
                return Ran(name, 127, str(error), 0.0)
            try:
                status: int | None = child.wait(max(0.1, self.left()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                status = None
        return Ran(name, status, log.read_text(errors="replace"), time.monotonic() - begun)

    def all(self, commands: Iterable[tuple[str, list[str]]], jobs: int, more: dict[str, str] | None = None) -> list[Ran]:
        """Every command, `jobs` at a time; told as they end, with the output of those that fail."""

        def one(named: tuple[str, list[str]]) -> Ran:
            ran = self.run(*named, more) if self.left() > 0.5 else Ran(named[0], None, "", 0.0)
            shown = "" if ran.status == 0 else "\n" + "\n".join(ran.said.splitlines()[-60:])
            print(f"{ran.name}: {ran.ends()} ({ran.seconds:.1f} s){shown}", flush=True)
            return ran

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(one, commands))


def summary(what: str, ran: list[Ran], wrong: list[Ran], again: str) -> int:
    """The last lines of a section; its exit status."""
    if wrong and len(wrong) < len(ran):
        print("AGAIN: " + " ".join(again.split() + [f"--test {r.name}" for r in wrong]))
    names = ", ".join(f"{r.name.split('::')[-1]} ({r.ends()})" for r in wrong[:6])
    print(f"{len(ran) - len(wrong)} of {len(ran)} {what} ended well{'; not: ' if wrong else ''}{names}")
    return 1 if wrong or not ran else 0


def listed(runner: Runner) -> list[str]:
    """The tests of the program that want a GPU."""
    said = runner.run("list", [KERNELS, "gpu", "--list"]).said
    return [line.removesuffix(": test") for line in said.splitlines() if line.endswith(": test")]


def machine(runner: Runner) -> int:
    """What this machine is, and that lossfeed finds its GPU."""
    lossfeed = [sys.executable, "-m", "lossfeed"]
    commands = [("doctor", [*lossfeed, "doctor"]), ("smi", [*lossfeed, "smi", "--json" if runner.quick else "--require-gpu"])]
    if tool := shutil.which("nvidia-smi"):
        commands.append(("nvidia-smi", [tool, "-q", "-d", "CLOCK,POWER,MEMORY,PERFORMANCE,ECC"]))
    ran = runner.all(commands, len(commands))
    print("\n".join(f"── {r.name}\n{r.said}" for r in ran))
    return summary("commands", ran, [r for r in ran if r.status and r.name != "nvidia-smi"], "--only machine")


def kernels(runner: Runner) -> int:
    """Every test of the program, or those named."""
    tests = runner.tests or [test for test in listed(runner) if SWEEP not in test]
    ran = runner.all([(test, [KERNELS, "--exact", test]) for test in tests], JOBS)
    return summary("tests", ran, [r for r in ran if r.status != 0], "--only kernels")


def python(runner: Runner) -> int:
    """In workers if pytest-xdist is there. What fails is run a second time, alone, to tell a crowded GPU from a wrong
    answer: it has failed all the same."""
    pytest = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"]
    # What wants a GPU asks torch for one. The tests on the driver double do not, and they need a compiler.
    files = [str(f) for f in sorted((ROOT / "tests" / "python").glob("test_*.py")) if "cuda.is_available" in f.read_text()]
    chosen = runner.tests or ["-k", "cuda or gpu", *files]
    if runner.quick:
        said = runner.run("collected", [*pytest, "-q", "--collect-only", *chosen])
        print(said.said)
        return said.status or 0
    workers = ["-n", str(JOBS), "--max-worker-restart", "20"] if has("xdist") and not runner.tests else []
    timeout = ["--timeout", "60"] if has("pytest_timeout") else []
    first = runner.run("together", [*pytest, *workers, *timeout, *chosen])
    print(first.said)
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", first.said, re.M)))
    for test in failed[:5] if runner.left() > 5 else []:
        print(f"── alone: {runner.run('alone', [*pytest, test]).said[-4000:]}")
    if failed:
        print("AGAIN: --only python " + " ".join(f"--test {test}" for test in failed))
    counts = re.findall(r"^=+ (.*\d+ (?:passed|failed).*?) =+$", first.said, re.M)
    print(f"{counts[-1] if counts else 'no summary'} ({first.ends()}){'; failed: ' if failed else ''}{', '.join(t.split('::')[-1] for t in failed[:6])}")
    return 0 if first.status == 0 else 1


def under(tool: str, runner: Runner) -> int:
    """Tests under a tool of compute-sanitizer. One that time does not let end has found what the tool had printed."""
    sanitizer = find_tool("compute-sanitizer")
    tests = runner.tests or [t for t in listed(runner) if any(part in t for part in UNDER[tool])]
    commands = [(t, [str(sanitizer), "--tool", tool, "--error-exitcode", "99", KERNELS, "--exact", t]) for t in tests]
    ran = runner.all(commands, 3, {"PROPTEST_CASES": "8", "LOSSFEED_QUICK": "1"})
    wrong = [r for r in ran if r.status or FINDING.search(r.said)]
    late = [r.name.split("::")[-1] for r in ran if r.status is None]
    print(f"no time for {', '.join(late)}" if late else "every test ended")
    return summary(f"tests under {tool}", ran, wrong or (ran if len(late) == len(ran) else []), f"--only {tool}")


def sweep(runner: Runner) -> int:
    """Figures of launch shapes and variants, which the test appends by itself."""
    tests = [t for t in listed(runner) if SWEEP in t]
    if not tests:
        print(f"the test program has no {SWEEP}")
        return 1
    ran = runner.run(SWEEP, [KERNELS, "--exact", tests[0], "--nocapture"])
    print(ran.said)
    return ran.status or 0


def has(module: str) -> bool:
    """Whether this Python can import it."""
    return importlib.util.find_spec(module) is not None


def find_tool(name: str) -> str | None:
    """A CUDA tool."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin:/opt/cuda/bin")


SECTIONS: dict[str, Callable[[Runner], int]] = {
    "machine": machine,
    "kernels": kernels,
    "python": python,
    "memcheck": lambda runner: under("memcheck", runner),
    "racecheck": lambda runner: under("racecheck", runner),
    "sweep": sweep,
}


def main() -> int:
    """0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", required=True, choices=SECTIONS, help="the section; may be repeated")
    parser.add_argument("--test", action="append", default=[], help="only this test of the section; may be repeated")
    parser.add_argument("--until", type=float, default=600.0, metavar="SECONDS", help="end within so many")
    parser.add_argument("--quick", action="store_true", help="without a GPU: lists tests, runs none")
    for unused in ("--device", "--out"):
        parser.add_argument(unused, help=argparse.SUPPRESS)
    options = parser.parse_args()
    runner = Runner(options)
    try:
        return max([SECTIONS[name](runner) for name in options.only])
    finally:
        shutil.rmtree(runner.scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

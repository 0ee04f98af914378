"""Runs what a GPU machine can decide, part by part: each within eight minutes (sanitizer and staging together), all
within twenty-five.

    correct    what is true: `doctor`, `smi`, the kernels' test programs, the Python tests, `compare` with torch in float64
    timing     what it costs: `timing` (kernels, losses, hook, graphs) and `dram` (bytes moved, by ncu)
    sanitizer  the kernels' tests under compute-sanitizer's `memcheck` and `racecheck`
    staging    host to device: rates, overlap, slowdown, copy paths
    train      ResNet-18 on CIFAR-10, uniform and cost-aware, several seeds

Parts run in this order whatever the order of the arguments; without any, all of them. What is true may fail this, what
it costs may not. After every check, gpu.json (checks, verdicts) and gpu.tar.gz (logs and results, at most 16 MiB) are
written anew: a run that is cut short leaves what it had. A check that finds no time left is recorded as that.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUNDLE = ROOT / ".gpu-bundle"
SCHEMA_VERSION = 2
#: Longest time of each part. Below eight minutes by what installing the wheels takes.
PARTS_S = {"correct": 450.0, "timing": 450.0, "sanitizer": 155.0, "staging": 290.0, "train": 430.0}
ALL_S = 1440.0
ARCHIVE_BYTES = 16 << 20
#: A log longer than this keeps its beginning and its end: the archive has to stay small whatever a program prints.
LOG_BYTES = 1 << 20
TELLING = re.compile(
    r"^test result:|\d+ (passed|failed)|no tests ran|deselected|ERROR SUMMARY|RACECHECK SUMMARY|all correct| WRONG on |^\d+ of \d+ |verdicts met"
)
FINDING = re.compile(r"^========= (Invalid|Error: |Warning: |Race|Misaligned|Out-of)", re.M)


@dataclass
class Outcome:
    """How a check went, as gpu.json has it."""

    name: str
    status: str  # ok, failed, skipped, out of time, not run
    summary: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    decides: bool = True


@dataclass(frozen=True)
class Check:
    """Commands that run one after the other, all of them, whatever becomes of one."""

    name: str
    limit_s: float
    commands: list[list[str]] = field(default_factory=list)
    decides: bool = True  # a failure of this is one of the whole
    why_not: str = ""  # why it cannot run here
    #: What a run that was stopped for its time is worth, by its log.
    if_stopped: Callable[[str], str] | None = None


class Suite:
    """One run: where results go, and what is known so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.dry: bool = options.dry_run
        self.out = Path(os.environ.get("OUT") or ROOT / "dist" / "gpu").resolve()
        # Not below $OUT, unless that is where everything goes: a lent machine brings few files back.
        self.results = Path(tempfile.mkdtemp()) if self.dry else ROOT / "dist" / "gpu" / "results"
        # A dry run shall find mistakes, not a busy machine: its limits only end what would never end.
        self.patience = 8 if self.dry else 1
        self.started = time.monotonic()
        self.outcomes: list[Outcome] = []
        shutil.rmtree(self.results, ignore_errors=True)
        self.results.mkdir(parents=True)
        self.out.mkdir(parents=True, exist_ok=True)

    # ---- the checks --------------------------------------------------------------------------------------------------

    def checks(self, part: str, left_s: float) -> list[Check]:
        """The checks of a part, for which so much time is left."""
        made = {"correct": self.correct, "timing": self.timing, "sanitizer": self.sanitizer, "staging": self.staging}
        return self.train(left_s) if part == "train" else made[part]()

    def program(self, name: str, *more: str) -> list[str]:
        """One of the programs beside this file."""
        device = ["--device", "cpu", "--quick"] if self.dry else ["--device", "cuda"]
        return [sys.executable, str(HERE / f"{name}.py"), *device, "--out", str(self.results), *more]

    def correct(self) -> list[Check]:
        lossfeed = [sys.executable, "-m", "lossfeed"]
        checks = [
            Check("doctor", 60, [[*lossfeed, "doctor"]]),
            Check("smi", 60, [[*lossfeed, "smi", "--json" if self.dry else "--require-gpu"]]),
        ]
        checks += [self.each_test(path) for path in sorted((BUNDLE / "bin").glob("*"))]
        if not (BUNDLE / "bin").is_dir():
            checks.append(Check("kernels", 0, why_not="there is no .gpu-bundle"))
        compare = self.program("correct", *(["--only", "edges"] if self.dry else []))
        return [*checks, self.python_tests(), Check("compare", 150, [compare])]

    def each_test(self, program: Path) -> Check:
        """A process for each of its tests: what one does to the device is not met by the next."""
        listed = subprocess.run([program, "gpu", "--list"], capture_output=True, text=True, check=False)
        tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
        if self.dry or not tests:
            return Check(program.name, 60, [[str(program), "gpu", "--list"]])
        return Check(program.name, 180, [[str(program), "--exact", test] for test in tests])

    def python_tests(self) -> Check:
        """In processes, so that one that aborts takes no other's results with it: workers if pytest-xdist is there,
        else one for each file."""
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cuda or gpu"]
        # As with the programs: what wants a GPU asks for one. The tests on the driver double do not, and they need a
        # compiler.
        files = [str(f) for f in sorted((ROOT / "tests" / "python").glob("test_*.py")) if "cuda.is_available" in f.read_text()]
        if self.dry:
            return Check("python", 120, [[*pytest, "--collect-only", *files]])
        if has("xdist"):
            timeout = ["--timeout", "90"] if has("pytest_timeout") else []
            return Check("python", 200, [[*pytest, "-n", "3", "--max-worker-restart", "20", *timeout, *files]])
        return Check("python", 200, [[*pytest, file] for file in files])

    def timing(self) -> list[Check]:
        checks = [Check("timing", 330, [self.program("timing")], decides=False)]
        ncu = None if self.dry else find_tool("ncu")
        why_not = "" if self.dry or ncu else "no ncu on PATH or in /usr/local/cuda/bin"
        return [*checks, Check("dram", 130, [self.program("dram", *(["--ncu", ncu] if ncu else []))], decides=False, why_not=why_not)]

    def sanitizer(self) -> list[Check]:
        tool, program = find_tool("compute-sanitizer"), BUNDLE / "bin" / "kernels"
        why_not = "" if tool and program.exists() and not self.dry else "needs a GPU, compute-sanitizer and the bundle's kernels"
        checks = []
        for name in ("memcheck", "racecheck"):
            # One thread: the tool serialises kernels, tests that wait for each other gain nothing.
            command = [str(tool), "--tool", name, "--error-exitcode", "99", str(program), "gpu", "--test-threads", "1"]
            checks.append(Check(f"sanitizer-{name}", 75, [command], why_not=why_not, if_stopped=judge_sanitizer))
        return checks

    def staging(self) -> list[Check]:
        return [Check("staging", 285, [self.program("staging")], decides=False)]

    def train(self, left_s: float) -> list[Check]:
        # A seed begun is a seed ended: the last one and the start need time too.
        within = 10 if self.dry else max(30, left_s - 80)
        return [Check("train", 420, [self.program("training", "--within", f"{within:.0f}")], decides=False)]

    # ---- running them ------------------------------------------------------------------------------------------------

    def run(self, check: Check, deadline: float) -> None:
        """Runs a check into its log and records it."""
        print(f"── {check.name}", flush=True)
        left = deadline - time.monotonic()
        if check.why_not:
            outcome = Outcome(check.name, "skipped", check.why_not)
        elif left < 5:
            outcome = Outcome(check.name, "not run", "no time was left for it")
        else:
            outcome = self.ran(check, min(check.limit_s * self.patience, left))
        outcome.decides = check.decides
        self.outcomes.append(outcome)
        print(f"   {outcome.status} ({outcome.seconds:.0f} s) {outcome.summary}", flush=True)
        self.write()

    def ran(self, check: Check, limit_s: float) -> Outcome:
        """How the commands went."""
        log, started = self.results / f"{check.name}.log", time.monotonic()
        codes: list[int] = []
        stopped = False
        for command in check.commands:
            left = limit_s - (time.monotonic() - started)
            code = run_into(log, command, left) if left > 0 else None
            if code is None:
                stopped = True
                break
            codes.append(code)
        text = log.read_text(errors="replace")
        shorten(log)
        seconds = round(time.monotonic() - started, 1)
        summary = telling(text)
        if len(check.commands) > 1:
            wrong = [command[-1] for command, code in zip(check.commands, codes, strict=False) if code]
            summary = f"{codes.count(0)} of {len(check.commands)} ended well{'; not: ' if wrong else ''}{', '.join(wrong)}"
        if stopped:
            summary = f"stopped after {seconds:.0f} s; {summary}"
            status = check.if_stopped(text) if check.if_stopped else "out of time"
        else:
            status = "failed" if any(codes) else "ok"
        return Outcome(check.name, status, summary[:300], next((c for c in codes if c), 0), seconds)

    def write(self) -> None:
        """gpu.json and the archive, each whole or not at all."""
        bad = {"failed", "out of time", "not run"}
        data = {
            "schema_version": SCHEMA_VERSION,
            "device": device_name(),
            "dry_run": self.dry,
            "passed": not any(o.status in bad and o.decides for o in self.outcomes),
            "complete": not any(o.status in ("out of time", "not run") for o in self.outcomes),
            "seconds": round(time.monotonic() - self.started, 1),
            "checks": [asdict(o) for o in self.outcomes],
            "verdicts": self.verdicts(),
        }
        self.data = data
        (self.results / "gpu.json").write_text(json.dumps(data, indent=1) + "\n")
        replace(self.out / "gpu.json", lambda to: shutil.copyfile(self.results / "gpu.json", to))
        replace(self.out / "gpu.tar.gz", self.pack)

    def verdicts(self) -> list[dict[str, Any]]:
        """What every program has judged so far."""
        found = []
        for file in sorted(self.results.glob("*.json")):
            if file.name != "gpu.json":
                found += [{"program": file.stem, **verdict} for verdict in json.loads(file.read_text()).get("verdicts", [])]
        return found

    def pack(self, to: Path) -> None:
        """The results in one archive. Logs that would make it too large stay behind, the largest first; gpu.json stays
        in."""
        files = sorted(self.results.iterdir(), key=lambda file: (file.suffix != ".json", file.stat().st_size))
        while True:
            with tarfile.open(to, "w:gz") as archive:
                for file in files:
                    archive.add(file, f"gpu/{file.name}")
            if to.stat().st_size <= ARCHIVE_BYTES or len(files) <= 1:
                return
            files.pop()


def has(module: str) -> bool:
    """Whether this Python can import it."""
    return importlib.util.find_spec(module) is not None


def find_tool(name: str) -> str | None:
    """A CUDA tool."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin:/opt/cuda/bin")


def run_into(log: Path, command: list[str], limit_s: float) -> int | None:
    """The exit status, with all output added to the log; None if it had to be stopped, with all that it started."""
    with log.open("ab") as to:
        to.write(f"$ {' '.join(command)}\n".encode())
        to.flush()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True)
        try:
            return child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                # Only what this has started: the child leads a group of its own.
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def telling(text: str) -> str:
    """The last line that says how it went, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if TELLING.search(line)), lines[-1] if lines else "").strip("= ")


def judge_sanitizer(text: str) -> str:
    """Out of time is no finding, unless one was printed before."""
    return "failed" if FINDING.search(text) else "ok"


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


@functools.cache
def device_name() -> str:
    """The GPU and its driver; empty without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    asked = subprocess.run([tool, "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return asked.stdout.splitlines()[0] if asked.returncode == 0 and asked.stdout else ""


def main() -> int:
    """0 if everything that decides went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="correct, timing, sanitizer, staging, train; none: all")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU: tries the programs, measures nothing")
    parser.add_argument("--within", type=float, metavar="SECONDS", help=f"end within so many (default: {PARTS_S}, {ALL_S:.0f} in all)")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS_S]:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(PARTS_S)}")
    suite = Suite(options)
    wanted = [name for name in PARTS_S if name in (options.parts or PARTS_S)]
    end = suite.started + (options.within or min(ALL_S, sum(PARTS_S[name] for name in wanted)) * suite.patience)
    try:
        for name in wanted:
            part_ends = min(end, time.monotonic() + PARTS_S[name] * suite.patience)
            for check in suite.checks(name, part_ends - time.monotonic()):
                suite.run(check, part_ends)
    finally:
        if suite.dry:
            shutil.rmtree(suite.results)
    met = [verdict["met"] for verdict in suite.data["verdicts"]]
    print(f"\n{suite.data['device'] or 'no GPU'}: {met.count(True)} of {len(met)} verdicts met, {met.count(None)} not measured")
    print(f"{'ALL CORRECT' if suite.data['passed'] else 'FAILED'}{'' if suite.data['complete'] else ', not complete'} in {suite.data['seconds']:.0f} s")
    print(f"results: {suite.out}/gpu.json, gpu.tar.gz")
    return 0 if suite.data["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())

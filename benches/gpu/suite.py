"""Runs what a GPU can decide, in order of value, until a deadline: `.ci/gpu first` (480 s), `.ci/gpu rest` (200 s).

`plan.py` has the checks and their budgets. A check starts only if its budget fits before the deadline, runs in a
process group of its own and is killed at its budget; whatever becomes of it, the next one has its turn. `rest` reads
the newest state.json of this card below benches/record (or of the run before, on the same machine): what failed comes
first, then what was not reached, then its own list. Names of checks after the list run these alone.

After every check `records.py` replaces gpu.json, state.json and gpu.tar.gz under $OUT (else dist/gpu). The last line
printed says what remains. Exit status: 0 if all that is true or false was checked and found true; costs never change
it.
"""

from __future__ import annotations

import argparse
import contextlib
import lzma
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import plan
from own_tests import find_tool, has
from plan import Check, Step
from records import Outcome, Record, clear, newest, read_figures, shorten

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUNDLE = ROOT / ".gpu-bundle"
#: Between asking a process for its stack and ending it.
GRACE_S = 1.0
TELLING = re.compile(r"^test result:|\d+ (passed|failed)|ended well|all correct| WRONG on |ERROR SUMMARY|^\S*Error: ")


class Suite:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.dry: bool = options.dry_run
        self.names: list[str] = options.checks
        # A dry run finds mistakes: its limits only end what would never end.
        self.patience = 4 if self.dry else 1
        begun = time.monotonic() - max(0.0, time.time() - options.started)
        self.deadline = begun + (options.within or (900 if self.dry else plan.DEADLINES_S[options.list]))
        self.scratch = Path(tempfile.mkdtemp(prefix="lossfeed-gpu-"))
        # Not below $OUT: only few files may come back from a machine far away.
        self.results = self.scratch / "results" if self.dry else ROOT / "dist" / "gpu" / "results"
        self.earlier = self.scratch / "state.json"
        if (kept := self.results / "state.json").exists():
            shutil.copyfile(kept, self.earlier)
        clear(self.results)
        out = Path(os.environ.get("OUT") or ROOT / "dist" / ("gpu-dry" if self.dry else "gpu")).resolve()
        out.mkdir(parents=True, exist_ok=True)
        commit = BUNDLE / "commit"
        about = {
            "list": options.list,
            "dry_run": self.dry,
            "card": "dry run" if self.dry else "",
            "driver": "",
            "commit": commit.read_text().strip() if commit.exists() else "",
            "started": options.started,
            "before": None,
            "notes": [],
        }
        self.record = Record(out, self.results, about)
        self.kernels: Path | None = None
        #: Builds the driver double of a dry run; its folder, or None.
        self.double: Future[Path | None] | None = None
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.lock = threading.Lock()
        self.environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "LOSSFEED_GPU_FIGURES": str(self.record.figures_file),
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"),
            "TRITON_CACHE_DIR": str(self.scratch / "triton"),
        }
        if not self.dry:
            # A test that finds no GPU must fail here and not pass by saying why it was left out.
            self.environment["LOSSFEED_REQUIRE_GPU"] = "1"

    # ---- before the checks -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything the checks need; what cannot be had is noted, and they go on without it."""
        needed = {"card": self.know, "wheels": self.unpack_wheels, "kernels": self.unpack_kernels}
        if not self.dry:
            needed = {"keeper": self.keep, **needed}
        with ThreadPoolExecutor(len(needed)) as pool:
            list(pool.map(self.attempt, needed, needed.values()))
        if self.dry:
            self.double = ThreadPoolExecutor(1).submit(self.build_double)
        if self.record.about["list"] == "rest":
            self.record.goes_on_from(newest(self.record.about["card"], self.earlier))

    def know(self) -> None:
        """The GPU's name and its driver."""
        if not self.dry:
            self.record.about |= device()

    def attempt(self, what: str, body: Callable[[], object]) -> None:
        """`body`, or a note of why not."""
        try:
            body()
        except Exception as error:
            self.note(f"{what}: {type(error).__name__}: {error}")

    def note(self, text: str) -> None:
        """Something that is missing."""
        self.record.about["notes"].append(text)
        print(f"note: {text}", flush=True)

    def unpack_wheels(self) -> None:
        """The bundle's wheels, in front of what this Python has. They are pure Python, and ours is built for it."""
        site = self.scratch / "site"
        if self.dry and has("lossfeed"):
            return
        wheels = [*sorted(BUNDLE.glob("wheels/*.whl")), *sorted(BUNDLE.glob("peers/*.whl"))]
        if not any(wheel.name.startswith("lossfeed-") for wheel in wheels):
            self.note(f"{BUNDLE.name} holds no wheel of lossfeed: make gpu-bundle on a machine with cargo. Goes on with what this Python has")
        for wheel in wheels:
            self.attempt(wheel.name, lambda wheel=wheel: zipfile.ZipFile(wheel).extractall(site))
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))

    def unpack_kernels(self) -> None:
        """The kernels' test program."""
        packed, program = BUNDLE / "bin" / "kernels.xz", self.scratch / "kernels"
        if not packed.exists():
            self.note(f"{BUNDLE.name} holds no test program of the kernels: make gpu-bundle on a machine with cargo")
            return
        with lzma.open(packed) as text, program.open("wb") as to:
            shutil.copyfileobj(text, to)
        program.chmod(0o755)
        self.kernels = program
        self.environment["LOSSFEED_GPU_KERNELS"] = str(program)

    def build_double(self) -> Path | None:
        """The driver double's folder, for LD_LIBRARY_PATH; None where it cannot be built."""
        folder = self.scratch / "double"
        folder.mkdir()
        options = ["-std=c++17", "-O1", "-Wno-unknown-pragmas", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
        files = ["-I", str(ROOT / "kernels/cuda"), str(ROOT / "tests/driver/double.cpp"), "-o", str(folder / "libcuda.so")]
        try:
            subprocess.run([os.environ.get("CXX", "c++"), *options, "-Wl,-soname,libcuda.so", *files], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.note(f"no driver double, everything runs on the CPU: {error}")
            return None
        # By this name torch would find it too, and take it for a driver.
        (folder / "keeper").mkdir()
        (folder / "keeper" / "libcuda.so.1").symlink_to("../libcuda.so")
        self.attempt("keeper", lambda: self.keep(folder / "keeper"))
        return folder

    def keep(self, double: Path | None = None) -> None:
        """A process that holds the GPU's context until this one ends."""
        command, environment = [sys.executable, str(HERE / "keeper.py")], self.on(double)
        with (self.results / "keeper.log").open("wb") as log:
            self.keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment, process_group=0)
        self.children[self.keeper.pid] = self.keeper

    def on(self, double: Path | None) -> dict[str, str]:
        """The environment of a program, with the double in the driver's place."""
        if double is None:
            return self.environment
        return {**self.environment, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(double), os.environ.get("LD_LIBRARY_PATH")]))}

    # ---- the list ----------------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """What is to be run, in order."""
        steps = list(plan.FIRST) if self.record.about["list"] == "first" else self.going_on()
        if self.names:
            known = {check.name: check for step in steps for check in step}
            steps = [(known.get(name, plan.ALL[name]),) for name in self.names]
        # A dry run measures nothing: two at a time, whatever they are, those that wait for the double last.
        return [tuple(sorted((c for step in steps for c in step), key=lambda c: c.double))] if self.dry else steps

    def going_on(self) -> list[Step]:
        """The list `rest`, after what the run before has left."""
        before = self.record.before
        failed = {e["check"]: e for e in before.get("failed", [])}
        left = [e["check"] for e in before.get("not_reached", [])]
        done = {e["check"] for e in before.get("done", [])} | {*failed, *left}
        again: list[Step] = []
        for name in [*failed, *left]:
            if (check := plan.ALL.get(name)) is None or check == plan.SMOKE:
                continue
            narrowed = failed.get(name, {}).get("again") or []
            again.append((replace(check, only=(), arguments=tuple(narrowed)) if narrowed else check,))
        own = [step for step in plan.REST[1:] if step[0].name not in done]
        return [plan.REST[0], *again, *own]

    def missing(self, check: Check) -> str:
        """Why a check cannot run here."""
        if "gpu" in check.needs and self.dry:
            return "needs a GPU"
        if "kernels" in check.needs and self.kernels is None:
            return "there is no test program of the kernels"
        tools = [name for name in ("ncu", "compute-sanitizer") if name in check.needs and not self.dry and find_tool(name) is None]
        return f"no {tools[0]} on PATH or in /usr/local/cuda/bin" if tools else ""

    def command(self, check: Check, budget_s: float, double: Path | None) -> list[str]:
        """The check's program, told what to do and when to end."""
        device = ["--device", "cpu" if self.dry and not double else "cuda", *(["--quick"] if self.dry else [])]
        ncu = find_tool("ncu") if "ncu" in check.needs and not self.dry else None
        only = [part for name in check.only for part in ("--only", name)]
        more = [*only, *check.arguments, *(["--ncu", ncu] if ncu else []), "--until", f"{budget_s - 2 * GRACE_S:.0f}"]
        played = [str(ROOT / "tests" / "python" / "program_on_the_double.py")] if double else []
        return [sys.executable, *played, str(HERE / f"{check.program}.py"), *device, "--out", str(self.results), *more]

    # ---- running it --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Every step; the checks of one side by side."""
        for step in self.steps():
            fits = []
            for check in step:
                left = self.deadline - plan.END_S - time.monotonic()
                if why := self.missing(check):
                    self.add(Outcome(check.name, "skipped", why, truth=check.truth))
                elif left < check.budget_s:
                    self.add(Outcome(check.name, "not reached", f"{max(0.0, left):.0f} s were left of {check.budget_s}", truth=check.truth))
                else:
                    fits.append(check)
            if fits:
                print(f"── {', '.join(f'{check.name} (≤ {check.budget_s} s)' for check in fits)}", flush=True)
                with ThreadPoolExecutor(2 if self.dry else len(fits)) as pool:
                    try:
                        list(pool.map(self.run_one, fits))
                    except KeyboardInterrupt:
                        pool.shutdown(wait=False, cancel_futures=True)
                        for pid in list(self.children):
                            end(pid, signal.SIGKILL)
                        raise

    def run_one(self, check: Check) -> None:
        """Runs a check and records it, whatever happens."""
        try:
            outcome = self.ran(check)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome(check.name, "failed", f"was not started: {type(error).__name__}: {error}", truth=check.truth)
        self.add(outcome)

    def ran(self, check: Check) -> Outcome:
        """How the check's program went, its output in a log."""
        log, begun = self.results / f"{check.name}.log", time.monotonic()
        budget_s = check.budget_s * self.patience
        double = self.double.result() if check.double and self.double else None
        command, environment = self.command(check, budget_s, double), {**self.on(double), "LOSSFEED_GPU_CHECK": check.name}
        with log.open("wb") as to:
            to.write(f"$ {' '.join(command)}\n".encode())
            to.flush()
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, process_group=0)
        self.children[child.pid] = child
        try:
            in_time = ended(child.pid, budget_s - GRACE_S)
            if not in_time:
                # Python writes its stack to the log.
                end(child.pid, signal.SIGABRT)
                ended(child.pid, GRACE_S)
        finally:
            code = self.reap(child)
        text = log.read_text(errors="replace")
        shorten(log)
        seconds = round(time.monotonic() - begun, 1)
        again = re.findall(r"^AGAIN: (.+)$", text, re.M)
        outcome = Outcome(check.name, "ok", telling(text), seconds, check.truth, code, again[-1].split() if again else [])
        figures = [f for f in read_figures(self.record.figures_file) if f["check"] == check.name]
        if figures:
            outcome.summary = f"{len(figures)} figures, {sum(f['limit'] is not None and f['met'] is False for f in figures)} limits missed"
        if not in_time:
            outcome.status, outcome.summary = "killed", f"at its budget; {outcome.summary}"
        elif code:
            outcome.status = "failed"
            outcome.summary = f"{f'by {signal.Signals(-code).name}' if code < 0 else f'status {code}'}; {outcome.summary}"
        return outcome

    def reap(self, child: subprocess.Popen[bytes]) -> int:
        """Ends what is left of the child's group, and its exit status. The group is ended while the child still has its
        number, or another might have got it."""
        end(child.pid, signal.SIGKILL)
        code = child.wait()
        self.children.pop(child.pid, None)
        return code

    def add(self, outcome: Outcome) -> None:
        """Records and says how a check went."""
        with self.lock:
            self.record.outcomes.append(outcome)
            print(f"   {outcome.name}: {outcome.status} ({outcome.seconds:.0f} s) {outcome.summary[:200]}", flush=True)
            self.attempt("the record", self.record.write)

    def close(self) -> None:
        """Ends what still runs, forgets what was unpacked."""
        for child in list(self.children.values()):
            self.reap(child)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def conclude(self) -> int:
        """Prints the table and what remains; the exit status."""
        order = [check.name for step in self.steps() for check in step]
        self.record.outcomes.sort(key=lambda outcome: order.index(outcome.name))
        self.attempt("the record", self.record.write)
        passed = self.record.passed()
        wrong = [o.name for o in self.record.outcomes if o.truth and o.status in ("failed", "killed")]
        print(f"\n{self.record.table()}\n")
        verdict = f"WRONG: {', '.join(wrong)}" if wrong else "ALL CORRECT" if passed else "NOT ALL CHECKED"
        about = self.record.about
        if self.dry:
            print("A dry run: its figures mean nothing.")
        print(f"{verdict} in {time.time() - about['started']:.0f} s on {about['card'] or 'an unknown GPU'}; {self.record.out}/gpu.json, state.json, gpu.tar.gz")
        print(self.record.remains(), flush=True)
        return 0 if passed else 1


def ended(pid: int, within_s: float) -> bool:
    """Whether a child ends within so long. It is not reaped: its number stays its own."""
    until = time.monotonic() + within_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            return False
        time.sleep(0.05)
    return True


def end(group: int, how: signal.Signals) -> None:
    """A signal for every process of a group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, how)


def telling(text: str) -> str:
    """The last line that says how it went, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("AGAIN: ", "$ "))]
    return next((line for line in reversed(lines) if TELLING.search(line)), lines[-1] if lines else "")[:300]


def device() -> dict[str, str]:
    """The GPU and its driver."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return dict(zip(("card", "driver"), done.stdout.splitlines()[0].split(", "), strict=False))


def stop(number: int, _frame: Any) -> None:
    """What a signal to end does."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def main() -> int:
    """0 if everything that is true or false was found true."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", nargs="?", choices=plan.LISTS, default="first", help="which list of checks")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"only these: {', '.join(plan.ALL)}")
    parser.add_argument("--dry-run", action="store_true", help="the same list with tiny shapes, without a GPU: tries the programs, measures nothing")
    parser.add_argument("--within", type=float, metavar="SECONDS", help=f"end within so many (default: {plan.DEADLINES_S})")
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [name for name in options.checks if name not in plan.ALL]:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(plan.ALL)}")
    signal.signal(signal.SIGTERM, stop)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    suite = Suite(options)
    try:
        suite.start()
        suite.run()
    except KeyboardInterrupt as why:
        suite.note(f"ended by {why or 'SIGINT'}")
    finally:
        status = suite.conclude()
        suite.close()
    return status


if __name__ == "__main__":
    sys.exit(main())

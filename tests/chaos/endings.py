"""Ends of processes: forked children, exits in every state, Ctrl-C at random moments."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from .case import Case

#: Seconds in which a process must be gone once it was told to go: it needs less than one.
GONE_S = 40.0


def reaped(child: int) -> int | None:
    """The status that a forked child ended with, or None if it does not end."""
    until = time.monotonic() + GONE_S
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def forked(loader: Any, batch: Any) -> list[str]:
    """Forks; the child tries what it must not. Problems, in words."""
    import lossfeed as lf

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # Only what a forked child of a program with threads may do, and then the shortest way out.
        answer = b"?"
        try:
            for call in (
                loader.stats,
                loader.importance,
                loader.state_dict,
                lambda: next(iter(loader)),
            ):
                try:
                    call()
                    answer += b"|no error"
                except lf.UsageError:
                    pass
            loader.close()
            with lf.Loader(loader.data, 8, num_workers=0, framework="numpy", stats=False) as own:
                answer += b"" if len(next(iter(own)).ids) == 8 else b"|a short batch"
            answer += b"."
        except BaseException as error:  # noqa: BLE001
            answer += b"|" + repr(error).encode()
        os.write(write, answer)
        os._exit(0)
    os.close(write)
    status = reaped(child)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    if status is None:
        return [f"a forked child did not end (it said {answer!r})"]
    return [] if status == 0 and answer == b"?." else [f"a forked child ended with status {status} and said {answer!r}"]


HEAD = """
import atexit, os, signal, sys, threading, time, warnings
import numpy as np, lossfeed as lf
warnings.simplefilter("ignore", lf.TrainingWarning)  # that Slow is slow
class Slow:
    def __init__(self, seconds): self.seconds = seconds
    def __len__(self): return 4000
    def __getitem__(self, i):
        if self.seconds and threading.current_thread() is not threading.main_thread(): time.sleep(self.seconds)
        return np.full(32, i % 251, np.uint8), i
arrays = np.arange(40000, dtype=np.float32).reshape(4000, 10), np.arange(4000)
def make(data, workers, **more):
    return lf.Loader(data, 8, num_workers=workers, framework="numpy", cache="20%", shuffle=True, **more)
"""


class Script:
    """A script in a process of its own. It writes to files: a pipe would stay open in a child of it that is stuck."""

    def __init__(self, case: Case, body: str, name: str) -> None:
        path = Path(case.place) / f"{name}.py"
        path.write_text(HEAD + textwrap.dedent(body))
        self.out, self.errors = path.with_suffix(".out"), path.with_suffix(".err")
        argv = [sys.executable, "-X", "faulthandler", str(path)]
        with open(self.out, "wb") as out, open(self.errors, "wb") as errors:
            self.child = subprocess.Popen(argv, stdout=out, stderr=errors, start_new_session=True)

    def said(self) -> bool:
        """Waits for its first words; whether they came."""
        until = time.monotonic() + GONE_S
        while time.monotonic() < until and self.child.poll() is None and not self.out.stat().st_size:
            time.sleep(0.002)
        return self.out.stat().st_size > 0

    def lost_in_python(self) -> bool:
        """Whether the interrupt fell into a finalizer of Python's own, which prints it and goes on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(5)
        told = self.errors.read_text(errors="replace")
        return self.child.poll() is None and "Exception ignored in" in told and "/lossfeed/" not in told

    def ended(self) -> tuple[int | None, str, str]:
        """(status, output, errors); the status is None if it did not end. Nothing of it is left."""
        status: int | None = None
        try:
            status = self.child.wait(GONE_S)
        except subprocess.TimeoutExpired:
            # The fault handler writes where every thread of it, and of its children, stands.
            self._signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(10)
        self._signal(signal.SIGKILL)
        self.child.wait()
        return status, self.out.read_text(errors="replace"), self.errors.read_text(errors="replace")

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, number)


#: What a script does in mid-epoch -> the status it must end with, and whether it may write to stderr.
EXITS: dict[str, tuple[str, int, bool]] = {
    "falls-off-the-end": ("", 0, False),
    "sys-exit": ("sys.exit(3)", 3, False),
    "os-exit": ("os._exit(4)", 4, False),
    "raises": ("raise RuntimeError('on purpose')", 1, True),
    "exit-in-a-thread": ("t = threading.Thread(target=sys.exit); t.start(); t.join()", 0, False),
    "raises-at-exit": ("atexit.register(lambda: 1 / 0)", 0, True),
    "iterates-at-exit": ("atexit.register(lambda: [next(it) for _ in range(3)])", 0, True),
    "makes-a-loader-at-exit": ("atexit.register(lambda: next(iter(make(arrays, 2))))", 0, True),
    "closes-at-exit": ("atexit.register(loader.close)", 0, False),
    "drops-then-ends": ("del loader, it", 0, False),
    "keeps-batches": ("kept = [next(it) for _ in range(5)]; sys.kept = kept", 0, False),
    "in-a-cycle": ("loader.me = loader; loader.it = it; del loader, it", 0, False),
    "thread-iterates-on": (
        """
        def on():
            try:
                for batch in it: pass
            except lf.Error: pass
        threading.Thread(target=on).start()
        """,
        0,
        False,
    ),
    "daemon-iterates-on": (
        "threading.Thread(target=lambda: [b for b in it], daemon=True).start(); time.sleep(0.05)",
        0,
        True,
    ),
    "signal-default": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM, False),
    "forked-child-exits": (
        """
        child = os.fork()
        if child == 0: sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """,
        0,
        True,  # newer Pythons warn of forks beside threads
    ),
    "execs": ("os.execv(sys.executable, [sys.executable, '-c', 'pass'])", 0, False),
    "bad-del": (
        """
        class Odd:
            def __init__(self, it): self.it = it
            def __del__(self): next(self.it)
        odd = Odd(it)
        """,
        0,
        True,
    ),
}


def exits(case: Case) -> None:
    """A script ends in every way, in mid-epoch: with its own status, soon, and without a crash."""
    names = sorted(EXITS)
    for name in case.rng.sample(names, 9) if case.short else names:
        body, wanted, may_complain = EXITS[name]
        data, workers, batches = (
            case.rng.choice(("arrays", "Slow(0)", "Slow(0.004)")),
            case.rng.randrange(4),
            case.rng.randrange(4),
        )
        start = f"loader = make({data}, {workers}); it = iter(loader)\nfor _ in range({batches}): batch = next(it)\n"
        status, _, errors = Script(case, start + textwrap.dedent(body), "ends").ended()
        about = f"{name} with {data}, {workers} workers, {batches} batches"
        case.check(status == wanted, f"{about}: {_status(status)}, {wanted} was to come: {errors[-800:]}")
        clean = "panicked" not in errors and "Fatal Python error" not in errors and (may_complain or not errors)
        case.check(clean or status != wanted, f"{about}: wrote {errors[-800:]!r}")


def fork_in_a_read(case: Case) -> None:
    """Forked while loader threads are inside a dataset: the child leaves by the ordinary door, soon."""
    for _ in range(case.size(5, 2)):
        body = f"""
        loader = make(Slow(0.05), {case.rng.randrange(1, 4)}); it = iter(loader); next(it)
        time.sleep({case.rng.uniform(0, 0.05):.4f})
        child = os.fork()
        if child == 0: sys.exit(5)
        until = time.monotonic() + {GONE_S / 4}
        while time.monotonic() < until:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid: break
            time.sleep(0.01)
        else:
            os.kill(child, signal.SIGABRT); os.waitpid(child, 0)
            print("stuck", flush=True); os._exit(1)
        print(os.waitstatus_to_exitcode(status), flush=True)
        """
        status, out, errors = Script(case, body, "forks").ended()
        case.check(out == "5\n", f"a child forked in a read: said {out!r}, {_status(status)}: {errors[-800:]}")


def interrupts(case: Case) -> None:
    """Ctrl-C at random moments of making, iterating, scoring and closing: the process ends as Python's do, soon."""
    for trial in range(case.size(12, 3)):
        data, workers = case.rng.choice(("arrays", "Slow(0)", "Slow(0.01)")), case.rng.randrange(4)
        body = f"""
        print("on", flush=True)
        while True:
            with make({data}, {workers}, sampler="cost-aware") as loader:
                for k, batch in enumerate(loader):
                    loader.score_losses(np.ones(len(batch), np.float32), batch)
                    if k == 30: break
                loader.state_dict()
        """
        script = Script(case, body, f"interrupted-{trial}")
        script.said()
        time.sleep(case.rng.uniform(0, 0.3))
        script.child.send_signal(signal.SIGINT)
        if script.lost_in_python():
            script.child.send_signal(signal.SIGINT)
        status, _, errors = script.ended()
        about = f"Ctrl-C with {data}, {workers} workers"
        case.check(status is not None, f"{about}: did not end within {GONE_S:.0f} s: {errors[-1500:]}")
        fine = status in (1, 130, -signal.SIGINT) and "KeyboardInterrupt" in errors and "panicked" not in errors
        case.check(fine or status is None, f"{about}: {_status(status)}: {errors[-800:]}")


def _status(status: int | None) -> str:
    return "it did not end" if status is None else f"it ended with status {status}"

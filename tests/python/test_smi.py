"""`lossfeed smi` beside a run, in a pipe and on a terminal."""

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pyte
import pytest

import lossfeed as lf

SMI = [sys.executable, "-m", "lossfeed", "smi"]


def smi(*options, **keywords):
    return subprocess.run([*SMI, *options], capture_output=True, text=True, timeout=60, **keywords)


@pytest.fixture
def run(numbers, tmp_path, monkeypatch):
    """A loader that has delivered an epoch of 64 samples and written its page."""
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "pages"))
    with lf.Loader(numbers, batch_size=4, cache="1MiB", job="digits, a try") as loader:
        for _ in loader:
            pass
        until = time.monotonic() + 30
        while '"samples_total":64' not in smi("--json").stdout:
            assert time.monotonic() < until, "the page is written once a second"
        yield loader


def test_a_run_is_seen_in_every_form(run):
    assert f"Engine {os.getpid()}: digits, a try (rank 0 of 1, " in smi("-L").stdout
    asked = smi("--query-engine=pid,job,samples_total,hit_ratio,gpu_uuid", "--format=csv")
    head, row = csv.reader(io.StringIO(asked.stdout), skipinitialspace=True)
    assert head == ["pid", "job", "samples_total [samples]", "hit_ratio [ratio]", "gpu_uuid"]
    assert row == [str(os.getpid()), "digits, a try", "64 samples", "0.0", "[N/A]"]
    bare = smi("--query-engine=samples_total", "--format=csv,noheader,nounits", "--job", "digits, a try")
    assert bare.stdout == "64\n"
    full = dict(line.split(":", 1) for line in smi("-q").stdout.splitlines() if line.startswith("    "))
    assert {name.strip(): value.strip() for name, value in full.items()}["samples_total"] == "64 samples"
    engine = json.loads(smi("--json").stdout)["engines"][0]
    assert engine["verdict"] == "incomplete" and engine["counters"]["batches_total"] == 16
    table = smi(env={**os.environ, "COLUMNS": "100"}).stdout
    assert "│ verdict  incomplete: 16 steps were measured" in table and max(map(len, table.splitlines())) == 100


def test_a_line_a_second_says_what_happened_since_the_one_before(run):
    lines = smi("dmon", "-d", "0.1", "-c", "3").stdout.splitlines()
    assert [line[:1] for line in lines] == ["#", "#", " ", " ", " "]
    assert lines[0].split()[1:5] == ["time", "pid", "rank", "sample/s"]
    assert all(line.endswith(" digits, a try") for line in lines[2:])


def test_without_an_engine_each_form_says_so_and_ends_well(tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "none"))
    for options in (["-L"], ["-q"], ["--query-engine=pid"]):
        asked = smi(*options)
        said = "lossfeed: no engine runs; start one with `lossfeed why -- COMMAND`\n"
        assert (asked.returncode, asked.stderr) == (0, said)
    assert "no engine runs; start one with `lossfeed why -- COMMAND`" in smi().stdout
    assert smi("--job", "other").returncode == 6
    dmon = smi("dmon", "-c", "1")
    assert dmon.returncode == 0 and dmon.stdout.count("\n") == 2 and "waits for one" in dmon.stderr


def test_the_demonstration_needs_nothing_and_prints_once_into_a_pipe(tmp_path):
    nothing = {"PATH": "/usr/bin:/bin", "COLUMNS": "80", "LOSSFEED_RUNTIME_DIR": str(tmp_path)}
    shown = smi("--demo", env={**nothing, **python_paths()})
    assert shown.returncode == 0 and shown.stderr == ""
    assert shown.stdout.count("lossfeed " + lf.__version__) == 1 and "held and idle" in shown.stdout
    assert len(json.loads(smi("--demo", "--json").stdout)["engines"]) == 6


def python_paths():
    return {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}


def test_every_field_is_explained_with_its_unit():
    text = smi("--help-query-engine", env={**os.environ, "COLUMNS": "80"}).stdout
    assert "\nwait_us_total [microseconds]\n    Time the training waited for batches" in text
    assert max(map(len, text.splitlines())) <= 80
    for name in json.loads(smi("--demo", "--json").stdout)["engines"][0]["counters"]:
        assert f"\n{name}" in text


class Terminal:
    """A program on a terminal of 100 columns."""

    def __init__(self, *command, rows=50, columns=100, **keywords):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        ends = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave, **keywords}
        self.program = subprocess.Popen(command, start_new_session=True, **ends)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.kill()
        self.program.wait()
        os.close(self.master)
        os.close(self.slave)

    def until(self, words):
        """Reads what is written until `words` stand on the screen."""
        end = time.monotonic() + 60
        while words not in "\n".join(self.screen.display):
            assert time.monotonic() < end, "\n".join(self.screen.display)
            if select.select([self.master], [], [], 1)[0]:
                self.stream.feed(os.read(self.master, 65536))

    def to_its_end(self):
        """Everything the program writes. It is read as it comes: a terminal holds a few thousand characters."""
        written, end = b"", time.monotonic() + 60
        while (running := self.program.poll() is None) or select.select([self.master], [], [], 0)[0]:
            assert time.monotonic() < end, written
            if select.select([self.master], [], [], 0.05 if running else 0)[0]:
                written += os.read(self.master, 65536)
        return written.decode(errors="replace")

    def type(self, keys):
        os.write(self.master, keys.encode())

    def restored(self):
        """The program has ended: the terminal is as it was."""
        self.last = self.to_its_end()
        assert termios.tcgetattr(self.slave) == self.before
        return self.program.returncode


def test_keys_filter_sort_pause_export_and_explain(tmp_path):
    with Terminal(*SMI, "--demo", cwd=tmp_path) as terminal:
        terminal.until("1-5 pages")
        terminal.type("?")
        terminal.until("Columns of JOBS")
        terminal.type("4")
        terminal.until("4 of 4 ranks are here")
        terminal.type("1/clip\r")
        terminal.until("/clip ")
        terminal.type("s")
        terminal.until("by wait%")
        terminal.type("p")
        terminal.until("paused")
        terminal.type("e")
        terminal.until("wrote lossfeed-smi-")
        terminal.type("q")
        assert terminal.restored() == 0
    (exported,) = tmp_path.glob("lossfeed-smi-*.csv")
    rows = list(csv.DictReader(exported.open(), skipinitialspace=True))
    assert [row["job"] for row in rows] == ["clip-b16"] * 4 and float(rows[0]["hit_ratio [ratio]"]) > 0.9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_after_a_signal_the_terminal_is_as_it_was(number):
    with Terminal(*SMI, "--demo") as terminal:
        terminal.until("1-5 pages")
        assert termios.tcgetattr(terminal.slave) != terminal.before
        os.kill(terminal.program.pid, number)
        assert terminal.restored() == 0
        assert "\x1b[?1049l" in terminal.last, "the screen from before is back"


def test_a_reader_that_goes_away_ends_it_quietly_and_leaves_the_terminal_alone():
    read, write = os.pipe()
    with Terminal(*SMI, "--demo", "-l", "0.1", stdout=write) as terminal:
        os.close(write)
        assert os.read(read, 100)
        os.close(read)
        assert terminal.restored() == 0
        assert not terminal.last, "nothing was written to the terminal"


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", ["doctor", "--help", "smi --help", "smi --help-query-engine", "forms --help"])
def test_no_word_is_broken_at_the_edge_of_a_narrow_terminal(command, columns):
    def words(columns):
        with Terminal(sys.executable, "-m", "lossfeed", *command.split(), rows=400, columns=columns) as terminal:
            text = terminal.to_its_end()
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        lines = text.splitlines()
        # A path may be longer than a line.
        wide = [line for line in lines if len(line) > columns and len(re.findall(r"\S{3,}", line)) > 1]
        assert not wide
        return text.split()

    assert [w for w in words(columns) if w[0].isalpha()] == [w for w in words(200) if w[0].isalpha()]

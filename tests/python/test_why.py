"""``lossfeed why``: ordinary programs, run unchanged; what it says of each; their exit codes, signals and crashes.

Bottlenecks are planted by sleeping, far above what a busy machine adds. ``benches/scenarios/why/accept.py`` has the
whole list, with real decoding and computing.
"""

import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ROOT / "benches" / "scenarios" / "why" / "planted.py"
HEAD = """
import os, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Slow(Dataset):
    def __init__(self, count=480, ms=2.0):
        self.count, self.ms = count, ms
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        time.sleep(self.ms / 1000)
        return torch.full((8,), float(i)), i % 4

def train(loader, step_ms=5):
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(step_ms / 1000)
"""


def start(*command, report=None, **more):
    """A program under `lossfeed why`."""
    options = [] if report is None else ["--json", str(report)]
    why = [sys.executable, "-m", "lossfeed", "why", *options, "--", *map(str, command)]
    return subprocess.Popen(why, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def run(tmp_path, script, *arguments, python=(sys.executable,), **more):
    """Runs a script; what `why` did and reported."""
    file, report = tmp_path / "script.py", tmp_path / "report.json"
    file.write_text(HEAD + textwrap.dedent(script))
    started = start(*python, file, *arguments, report=report, **more)
    out, err = started.communicate(timeout=100)
    return started.returncode, out, err, json.loads(report.read_text())


def test_a_plain_script_gets_a_verdict_its_cause_and_a_line_to_write(tmp_path):
    code, out, err, report = run(tmp_path, "train(DataLoader(Slow(), 16)); print('trained')")
    assert (code, out) == (0, "trained\n")
    assert (report["verdict"], report["cause"], report["exit_code"]) == ("input-bound", "source", 0)
    assert report["schema_version"] == 1 and report["evidence"]["wait_ratio"] > 0.5
    assert re.fullmatch(r"DataLoader\(…, num_workers=\d+\)", report["next"])
    assert "lossfeed why: input-bound (source)" in err and report["next"] in err
    rank = report["ranks"][0]
    assert (rank["steps"], rank["optimizer_steps"], rank["samples"], rank["dataset"]) == (30, 30, 480, "Slow")
    assert rank["wait_seconds"] > 0.03 and rank["first_batch_seconds"] > 0.03
    assert [then["basis"] for then in report["what_if"]] == ["modelled", "measured"]
    assert report["what_if"][0]["setting"] == "num_workers"


@pytest.mark.parametrize(
    "loader",
    [
        "DataLoader(Slow(ms=5), 16, num_workers=2)",
        "DataLoader(Slow(ms=5), 16, num_workers=2, persistent_workers=True, shuffle=True)",
        "DataLoader(Slow(ms=5), 16, num_workers=2, multiprocessing_context='spawn')",
        "DataLoader(Slow(ms=5), batch_sampler=[range(k, k + 16) for k in range(0, 480, 16)], num_workers=1)",
    ],
    ids=["fork", "persistent", "spawn", "batch sampler"],
)
def test_the_waits_of_worker_processes_are_found(tmp_path, loader):
    _, _, err, report = run(tmp_path, f"if __name__ == '__main__': train({loader})")
    assert (report["verdict"], report["cause"]) == ("input-bound", "source"), err
    assert report["ranks"][0]["samples"] == 480


def test_streams_and_loops_without_an_optimizer_are_measured_batch_by_batch(tmp_path):
    script = """
    class Stream(IterableDataset):
        def __iter__(self):
            for i in range(400):
                time.sleep(0.003)
                yield {"x": torch.ones(4), "name": str(i)}
    for batch in DataLoader(Stream(), 10):
        time.sleep(0.002)
    """
    _, _, err, report = run(tmp_path, script)
    assert (report["verdict"], report["cause"]) == ("input-bound", "source"), err
    assert (report["ranks"][0]["steps"], report["ranks"][0]["optimizer_steps"]) == (40, 0)


def test_our_loader_is_measured_with_its_engines_causes(tmp_path):
    script = """
    import lossfeed as lf
    with lf.Loader(lf.open(Slow()), 16, device="cpu", cache="20%") as loader:
        for batch in loader:
            time.sleep(0.002)
    """
    _, _, err, report = run(tmp_path, script)
    assert (report["verdict"], report["cause"]) == ("input-bound", "source"), err
    assert report["ranks"][0]["loader"] == "lossfeed"
    pool = r"Loader\(…, num_workers=(\d+)\), or lf.open\(…, processes=\1\) if that names them"
    assert re.fullmatch(pool, report["next"]), "processes read for the cache"


@pytest.mark.parametrize("workers", [0, 2], ids=["the loop reads", "worker processes read"])
def test_our_loader_over_a_python_dataset_is_told_of_its_own_keyword(tmp_path, workers):
    script = f"""
    import lossfeed as lf
    with lf.Loader(Slow(ms=8), 16, device="cpu", num_workers={workers}) as loader:
        for batch in loader:
            time.sleep(0.002)
    """
    _, _, err, report = run(tmp_path, script)
    assert (report["verdict"], report["cause"]) == ("input-bound", "source"), err
    found = re.fullmatch(r"Loader\(…, num_workers=(\d+)\)", report["next"])
    assert found and int(found[1]) > workers, err


#: Loops that people write, how their verdict is titled, and a part of the line to write.
LOOPS = {
    "a slow validation loader beside workers": (
        """
        val = DataLoader(Slow(160, 8), 16)
        for _ in range(4):
            train(DataLoader(Slow(320, 0), 16, num_workers=2), 10)
            for x, y in val:
                x.sum()
        """,
        "input-bound (source)", "DataLoader(…, num_workers=",
    ),
    "a pass for every batch": (
        """
        loader = DataLoader(Slow(3200, 4), 16, shuffle=True)
        for _ in range(40):
            next(iter(loader))
            time.sleep(0.005)
        """,
        "input-bound (pass-start)", "batches = iter(loader) once",
    ),
    "a stream": (
        """
        class Stream(IterableDataset):
            def __iter__(self):
                for i in range(480):
                    time.sleep(0.004)
                    yield torch.ones(8), i % 4
        train(DataLoader(Stream(), 16))
        """,
        "input-bound (source)", "torch.utils.data.get_worker_info()",
    ),
    "loaders side by side": (
        """
        for (x, y), _ in zip(DataLoader(Slow(480, 8), 16), DataLoader(Slow(480, 0), 16)):
            time.sleep(0.005)
        """,
        "input-bound (source)", "DataLoader(…, num_workers=",
    ),
    "passes that are left early, with pauses between": (
        """
        loader = DataLoader(Slow(3200, 0), 16)
        for _ in range(5):
            for k, (x, y) in enumerate(loader):
                time.sleep(0.02)
                if k == 4:
                    break
            time.sleep(1.5)
        """,
        None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_that_people_write_are_judged(tmp_path, loop):
    script, title, line = LOOPS[loop]
    _, _, err, report = run(tmp_path, script)
    cause = "" if report["cause"] is None else f" ({report['cause']})"
    assert title in (None, report["verdict"] + cause), err
    assert line is None or line in report["next"], err
    assert report["ranks"][0]["rest_seconds"] < 0.2, f"a pause is no step's\n{err}"


def test_the_rank_that_holds_the_others_up_is_named(tmp_path):
    script = """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(Slow(ms=4 if dist.get_rank() == 1 else 0.0), 16):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.005)
    dist.destroy_process_group()
    """
    python = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")
    code, _, err, report = run(tmp_path, script, python=python)
    assert (code, report["verdict"], report["rank"], report["cause"]) == (0, "rank-behind", 1, "source"), err
    assert sorted(rank["rank"] for rank in report["ranks"]) == [0, 1]


def test_nothing_is_proposed_where_nothing_is_wrong(tmp_path):
    script = "train(DataLoader(TensorDataset(torch.rand(480, 8), torch.arange(480) % 4), 16), step_ms=30)"
    _, _, err, report = run(tmp_path, script)
    assert (report["verdict"] in ("ok", "compute-bound"), report["next"], report["what_if"]) == (True, None, []), err
    assert "next" not in err and " if " not in err


def test_few_steps_and_no_loop_are_said_to_be_that(tmp_path):
    _, _, err, report = run(tmp_path, "train(DataLoader(Slow(count=64), 16))")
    assert report["verdict"] == "incomplete" and "4 steps" in report["why"], err
    code, out, err, report = run(tmp_path, "print(sys.argv[1:])", "-x", "--json", "a b")
    assert (code, out) == (0, "['-x', '--json', 'a b']\n")
    assert report["verdict"] == "incomplete" and "no process took a batch" in err


ENDINGS = [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("1 / 0", 1), ("os._exit(3)", 3)]


@pytest.mark.parametrize("ending, code", ENDINGS)
def test_the_exit_code_is_the_programs_and_a_crash_has_a_report(tmp_path, ending, code):
    found, _, err, report = run(tmp_path, f"train(DataLoader(Slow(), 16)); {ending}")
    assert (found, report["exit_code"]) == (code, code)
    assert (report["verdict"], report["cause"]) == ("input-bound", "source"), err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("group", [False, True], ids=["to why", "to the group"])
def test_signals_end_both_and_leave_a_report_and_no_folder(tmp_path, sent, group):
    file, report = tmp_path / "script.py", tmp_path / "report.json"
    file.write_text(HEAD + "print('runs', flush=True); train(DataLoader(Slow(count=100_000), 16, num_workers=1))")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    started = start(sys.executable, file, report=report, start_new_session=True, env=environment)
    try:
        assert started.stdout.readline() == "runs\n"
        time.sleep(3)
        began = time.monotonic()
        os.killpg(started.pid, sent) if group else started.send_signal(sent)
        started.communicate(timeout=30)
        assert time.monotonic() - began < 10, "seconds on an idle machine: less than two"
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode in {signal.SIGINT: (130, 1), signal.SIGTERM: (143,)}[sent]
    assert json.loads(report.read_text())["exit_code"] == started.returncode
    assert not list(tmp_path.glob("lossfeed-why-*"))


def test_a_program_that_handles_a_signal_goes_on_to_its_own_end(tmp_path):
    script = """
    import signal
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    os.kill(os.getppid(), signal.SIGUSR1)
    until = time.monotonic() + 20
    while not seen and time.monotonic() < until:
        time.sleep(0.01)
    sys.exit(len(seen) + 4)
    """
    code, _, err, _ = run(tmp_path, script)
    assert code == 5, err


@pytest.mark.parametrize("batch", ["Odd()", "[Odd()]"])
def test_a_program_that_cannot_be_measured_runs_as_without_it(tmp_path, batch):
    """A rank that is no number, and batches whose shape is none."""
    script = f"""
    import torch
    class Odd: shape = 3
    batches = torch.utils.data.DataLoader(range(8), 2, collate_fn=lambda _: {batch})
    sys.exit(60 + sum(1 for _ in batches))
    """
    code, _, err, _ = run(tmp_path, script, env={**os.environ, "RANK": "node-3"})
    assert code == 64 and "Traceback" not in err, err


def test_what_a_program_ignores_it_ignores_under_why_too(tmp_path):
    """Signals are ignored under `nohup`, and ends of children by some parents."""
    script = """
    import signal
    sys.exit(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN and 9)
    """
    def as_nohup():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    code, _, err, _ = run(tmp_path, script, preexec_fn=as_nohup)
    assert code == 9, err


def test_a_terminals_ctrl_c_reaches_the_program_once(tmp_path):
    file = tmp_path / "counts.py"
    file.write_text(
        "import signal, sys, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('runs', flush=True)\n"
        "until = time.monotonic() + 30\n"
        "while not seen and time.monotonic() < until: time.sleep(0.01)\n"
        "time.sleep(1)\n"
        "sys.exit(40 + len(seen))\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "lossfeed", "why", "--", sys.executable, str(file)])
    seen = b""
    while b"runs" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    try:
        while os.read(terminal, 1000):
            pass
    except OSError:
        pass  # the other end is closed
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 41


def test_the_folder_is_its_users_alone_and_the_users_sitecustomize_still_runs(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.own_site = True\n")
    script = """
    folder = os.environ["LOSSFEED_WHY"]
    print(oct(os.stat(folder).st_mode & 0o777), own_site, any("lossfeed-why" in path for path in sys.path))
    import sitecustomize
    print(sitecustomize.__file__)
    """
    _, out, err, _ = run(tmp_path, script, env=os.environ | {"PYTHONPATH": f"{own}:{os.environ.get('PYTHONPATH', '')}"})
    assert out.split() == ["0o700", "True", "False", str(own / "sitecustomize.py")], err


def test_torch_is_imported_by_the_program_alone(tmp_path):
    file = tmp_path / "plain.py"
    file.write_text("import sys; print('torch' in sys.modules, 'lossfeed' in sys.modules)")
    started = start(sys.executable, file)
    out, _ = started.communicate(timeout=60)
    assert out == "False False\n"


def test_a_command_that_cannot_be_run_has_the_shells_code(tmp_path):
    missing = start(tmp_path / "no such program")
    _, err = missing.communicate(timeout=60)
    assert missing.returncode == 127 and "no such program" in err
    file = tmp_path / "data.txt"
    file.write_text("")
    file.chmod(stat.S_IRUSR)
    refused = start(file)
    refused.communicate(timeout=60)
    assert refused.returncode == 126


def test_a_live_run_is_a_job_for_smi_and_check(tmp_path):
    pages = tmp_path / "pages"
    environment = os.environ | {"LOSSFEED_RUNTIME_DIR": str(pages)}
    file = tmp_path / "resnet.py"
    file.write_text(HEAD + "train(DataLoader(Slow(count=100_000), 16))")
    started = start(sys.executable, file, env=environment, start_new_session=True)
    lossfeed = [sys.executable, "-m", "lossfeed"]

    def ask(*words):
        return subprocess.run([*lossfeed, *words], capture_output=True, text=True, timeout=60, env=environment)

    try:
        until = time.monotonic() + 60
        early = ("check", "resnet", "--max-stall", "5%", "--for", "2s")
        while ask(*early).returncode in (3, 6) and time.monotonic() < until:
            time.sleep(0.3)
        exceeded = ask("check", "resnet", "--max-stall", "5%", "--min-rate", "1", "--for", "2s")
        assert exceeded.returncode == 1 and "over 5.0%" in exceeded.stdout, exceeded
        assert ask("check", "resnet", "--min-rate", "1", "--for", "2s").returncode == 0
        assert ask("check", "resnet", "--min-rate", "1", "--for", "90s").returncode == 3
        assert ask("check", "other", "--min-rate", "1").returncode == 6
        assert ask("check", "resnet").returncode == 2
        shown = json.loads(ask("smi", "--json").stdout)["engines"]
        rows = [(row["job"], row["sampler"], row["alive"], row["source"]) for row in shown]
        assert rows == [("resnet", "why", True, "Slow")]
        counters = shown[0]["counters"]
        assert counters["torch_loaders"] == 1 and counters["wait_source_us_total"] > 0.6 * counters["wait_us_total"]
        assert shown[0]["pid"] != started.pid
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.communicate(timeout=30)
    assert json.loads(ask("smi", "--json").stdout)["engines"] == [], "its page went with it"


def test_the_page_has_a_row_for_each_verdict_and_a_command_that_parses():
    page = (ROOT / "pybind" / "docs" / "why.md").read_text()
    rules = (ROOT / "engine" / "stats" / "src" / "verdict" / "rules.rs").read_text()
    for word in re.findall(r'=> "([a-z-]+)"', rules):
        assert f"| `{word}` |" in page, word
    shown = re.search(r"^lossfeed (check .*)$", page, re.MULTILINE)
    asked = [sys.executable, "-m", "lossfeed", *shown[1].split(), "--help"]
    helped = subprocess.run(asked, capture_output=True, timeout=60)
    assert helped.returncode == 0, shown[0]


PLANTED_BY_SLEEPING = ["source, no workers", "source, two workers", "pass start", "paused", "tiny model"]


@pytest.mark.parametrize("case", PLANTED_BY_SLEEPING)
def test_planted_bottlenecks_are_found_and_healthy_runs_left_alone(case, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(PLANTED.parent))
    import planted

    report = tmp_path / "report.json"
    started = start(sys.executable, PLANTED, case, report=report)
    _, err = started.communicate(timeout=100)
    found = json.loads(report.read_text())
    expected = planted.CASES[case]
    assert found["verdict"] in expected.verdicts and found["cause"] in expected.causes, err

"""What runs the checks of ``benches/gpu``: the list and its budgets, what is killed, what is written when, what the next
run goes on from, and a dry run of both lists."""

import json
import lzma
import os
import random
import re
import subprocess
import sys
import tarfile
import time
import types
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches" / "gpu"))
import own_tests
import plan
import records
import suite as suites
from plan import Check
from suite import Suite


@pytest.fixture
def frame(tmp_path, monkeypatch):
    """A machine for runs of made-up checks: ``programs`` maps a name to the Python text of its program."""
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(suites, "HERE", tmp_path / "here")
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "BUNDLE", tmp_path / "bundle")
    monkeypatch.setattr(records, "RECORDS", tmp_path / "record")
    monkeypatch.setattr(suites, "device", lambda: {"card": "Toy 80GB", "driver": "1.2"})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "keeper.py").write_text("import sys; sys.stdin.read()")

    class Frame:
        out, here, results, folder = tmp_path / "out", tmp_path / "here", tmp_path / "dist" / "gpu" / "results", tmp_path

        def run(self, first=(), rest=((plan.SMOKE,),), argument="first", within=None, checks=(), started=None, **programs):
            """Runs a list of made-up checks; its exit status."""
            for name, text in programs.items():
                (self.here / f"{name}.py").write_text(text)
            lists = {"first": tuple(first), "rest": tuple(rest)}
            everything = {c.name: c for steps in lists.values() for step in steps for c in step}
            for name, value in {"FIRST": lists["first"], "REST": lists["rest"], "ALL": everything}.items():
                monkeypatch.setattr(plan, name, value)
            options = types.SimpleNamespace(list=argument, checks=list(checks), dry_run=False, within=within, started=started or time.time())
            self.suite = Suite(options)
            try:
                self.suite.start()
                self.suite.run()
            finally:
                self.status = self.suite.conclude()
                self.suite.close()
            return self.status

        def json(self, name="gpu"):
            return json.loads((self.out / f"{name}.json").read_text())

        def checks(self):
            return {check["name"]: check["status"] for check in self.json()["checks"]}

    return Frame()


def alone(*checks):
    """Each a step of its own."""
    return tuple((check,) for check in checks)


SAYS = "print('1 passed')"
HANGS = """import signal, subprocess, time
deaf = lambda: signal.signal(signal.SIGABRT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], preexec_fn=deaf)
print(child.pid, flush=True)
time.sleep(600)
"""
FIGURE = """
import json, os
with open(os.environ["LOSSFEED_GPU_FIGURES"], "a") as to:
    told = {"check": os.environ["LOSSFEED_GPU_CHECK"], "unit": "us", "at_least": False, "n": 9, "spread": 0.1}
    for name, value, limit, predicted in (("good", 5, 6, 4.5), ("bad", 7, 6, None), ("mere", 7, None, None), ("none", None, 6, None)):
        met = None if value is None or limit is None else value <= limit
        to.write(json.dumps({**told, "name": name, "value": value, "limit": limit, "predicted": predicted, "met": met}) + "\\n")
    to.write('{"check": "cut sho')
"""


# ---- the list -------------------------------------------------------------------------------------------------------


def test_budgets_add_up_to_the_deadlines():
    def of(steps):
        return sum(plan.budget_s(step) for step in steps)

    assert plan.DEADLINES_S == {"first": 480, "rest": 200}
    assert plan.START_S + of(plan.FIRST) + plan.END_S == 480
    assert plan.START_S + plan.AGAIN_S + of(plan.REST) + plan.END_S == 200


def test_truth_comes_first_then_the_mission_and_costs_are_taken_alone():
    names = [[check.name for check in step] for step in plan.FIRST]
    assert names[0] == ["machine"] and names[1] == ["smoke"] and names[3] == ["mission"]
    assert all(check.truth or check.aid for step in plan.FIRST[:3] for check in step)
    assert all(len(step) == 1 for step in (*plan.FIRST[3:], *plan.REST))
    assert len(plan.ALL) == len({c for steps in plan.LISTS.values() for step in steps for c in step}), "two checks of one name"


# ---- running it -----------------------------------------------------------------------------------------------------


def test_after_every_check_there_are_json_state_and_an_archive_of_all_so_far(frame):
    look = "import json, os, pathlib\nf = pathlib.Path(os.environ['OUT'])\nprint(sorted(p.name for p in f.iterdir()), [c['name'] for c in json.loads((f / 'gpu.json').read_text())['checks']], 'ended well')"
    assert frame.run(alone(Check("one", 9, "says", truth=True), Check("two", 9, "look")), says=SAYS, look=look) == 0
    one, two = frame.json()["checks"]
    assert (one["status"], one["summary"]) == ("ok", "1 passed")
    assert two["summary"] == "['gpu.json', 'gpu.tar.gz', 'state.json'] ['one'] ended well"
    with tarfile.open(frame.out / "gpu.tar.gz") as archive:
        assert {"gpu/gpu.json", "gpu/state.json", "gpu/one.log", "gpu/two.log", "gpu/keeper.log"} == set(archive.getnames())
    assert sorted(file.name for file in frame.out.iterdir()) == ["gpu.json", "gpu.tar.gz", "state.json"]


def test_a_check_that_hangs_is_killed_at_its_budget_with_all_it_started_and_the_next_has_its_turn(frame):
    begun = time.monotonic()
    assert frame.run(alone(Check("stuck", 3, "hangs", truth=True), Check("next", 9, "says")), hangs=HANGS, says=SAYS) == 1
    assert time.monotonic() - begun < 30
    assert frame.checks() == {"stuck": "killed", "next": "ok"}
    log = (frame.results / "stuck.log").read_text()
    assert "hangs.py" in log and "line 5" in log, "it says where it hung"
    pid = re.search(r"^\d+$", log, re.M)[0]
    assert not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    assert frame.json("state")["failed"] == [{"check": "stuck", "how": "killed", "again": []}]


def test_one_that_dies_by_a_signal_or_cannot_start_is_recorded_and_the_run_goes_on(frame):
    checks = Check("dead", 9, "dead", truth=True), Check("gone", 9, "gone", truth=True), Check("next", 9, "says", truth=True)
    assert frame.run(alone(*checks), dead="import os; print('so far', flush=True); os.kill(os.getpid(), 11)", says=SAYS) == 1
    dead, gone, _ = frame.json()["checks"]
    assert dead["status"] == "failed" and "SIGSEGV" in dead["summary"] and dead["exit_code"] == -11
    assert gone["status"] == "failed" and frame.checks()["next"] == "ok"


def test_costs_never_change_the_exit_status_and_truth_does(frame, capsys):
    assert frame.run(alone(Check("cost", 9, "cost"), Check("true", 9, "says", truth=True)), cost="raise SystemExit(3)", says=SAYS) == 0
    assert "ALL CORRECT" in capsys.readouterr().out
    assert frame.run(alone(Check("true", 9, "cost", truth=True))) == 1
    assert "WRONG: true" in capsys.readouterr().out
    assert frame.run(alone(Check("true", 9, "says", truth=True, needs=("kernels",)))) == 1
    assert "NOT ALL CHECKED" in capsys.readouterr().out


def test_checks_of_truth_run_side_by_side(frame):
    meet = "import pathlib, sys, time\nme, other = sys.argv[sys.argv.index('--only') + 1], sys.argv[sys.argv.index('--only') + 2:][1]\n"
    meet += "folder = pathlib.Path(sys.argv[sys.argv.index('--out') + 1])\n(folder / me).touch()\n"
    meet += "while not (folder / other).exists(): time.sleep(0.01)\nprint('1 passed')"
    pair = Check("a", 20, "meet", ("a", "b"), truth=True), Check("b", 20, "meet", ("b", "a"), truth=True)
    assert frame.run((pair,), meet=meet) == 0, frame.checks()


def test_the_deadline_cuts_the_list_in_order_of_value(frame, capsys):
    checks = Check("one", 9, "says"), Check("two", 60, "says"), Check("three", 9, "says"), Check("four", 60, "says")
    # 60 s of 100 have gone by before this program began; ten are kept for the end.
    frame.run(alone(*checks), within=100, started=time.time() - 60, says=SAYS)
    assert frame.checks() == {"one": "ok", "two": "not reached", "three": "ok", "four": "not reached"}
    assert [e["check"] for e in frame.json("state")["not_reached"]] == ["two", "four"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("REMAINS: not reached: two, four; ") and "benches/record/toy-80gb/" in last


def test_a_signal_ends_the_run_with_what_it_had(frame):
    import threading

    def interrupt():
        while not (frame.results / "stuck.log").exists() or b"\n" not in (frame.results / "stuck.log").read_bytes().partition(b"\n")[2]:
            time.sleep(0.05)
        os.kill(os.getpid(), 2)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        frame.run(alone(Check("says", 9, "says"), Check("stuck", 400, "hangs")), says=SAYS, hangs=HANGS)
    assert frame.checks() == {"says": "ok", "stuck": "failed"} and not frame.suite.children


# ---- what is missing ------------------------------------------------------------------------------------------------


def test_a_missing_bundle_is_noted_and_what_needs_it_is_skipped(frame, monkeypatch):
    monkeypatch.setattr(suites, "find_tool", lambda name: None)
    (frame.here / "keeper.py").unlink()
    checks = Check("kernels", 9, "says", needs=("kernels",)), Check("ncu", 9, "says", needs=("ncu",)), Check("mission", 9, "says")
    frame.run(alone(*checks), says=SAYS)
    assert frame.checks() == {"kernels": "skipped", "ncu": "skipped", "mission": "ok"}
    assert sum("make gpu-bundle" in note for note in frame.json()["notes"]) == 2
    assert "no ncu on PATH" in frame.json()["checks"][1]["summary"]


def test_the_bundle_is_unpacked_whatever_bits_were_lost(frame):
    (frame.folder / "bundle" / "bin").mkdir(parents=True)
    (frame.folder / "bundle" / "wheels").mkdir()
    packed = frame.folder / "bundle" / "bin" / "kernels.xz"
    packed.write_bytes(lzma.compress(b"#!/bin/sh\necho it runs\n"))
    packed.chmod(0o400)
    with zipfile.ZipFile(frame.folder / "bundle" / "wheels" / "lossfeed-0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("of_the_bundle.py", "said = 'imported'")
    (frame.folder / "bundle" / "wheels" / "broken-0-py3-none-any.whl").write_text("no archive")
    runs = "import os, subprocess, of_the_bundle\nprint(of_the_bundle.said, subprocess.check_output([os.environ['LOSSFEED_GPU_KERNELS']], text=True).strip(), 'ended well')"
    assert frame.run(alone(Check("kernels", 9, "runs", truth=True, needs=("kernels",))), runs=runs) == 0
    assert frame.json()["checks"][0]["summary"] == "imported it runs ended well"
    assert [note.split(":")[0] for note in frame.json()["notes"]] == ["broken-0-py3-none-any.whl"]


def test_no_file_that_cannot_be_written_ends_the_run(frame, monkeypatch, capsys):
    monkeypatch.setattr(records.tarfile, "open", lambda *a, **k: (_ for _ in ()).throw(OSError("no space left")))
    assert frame.run(alone(Check("one", 9, "says", truth=True), Check("two", 9, "says", truth=True)), says=SAYS) == 0
    assert frame.checks() == {"one": "ok", "two": "ok"} and "no space left" in capsys.readouterr().out


# ---- figures and the archive ----------------------------------------------------------------------------------------


def test_figures_are_in_the_record_and_in_the_table_with_what_was_predicted(frame, capsys):
    assert frame.run(alone(Check("small", 9, "figure"), Check("killed", 3, "hangs")), figure=FIGURE, hangs=FIGURE + HANGS) == 0
    figures = {(f["check"], f["name"]): f["met"] for f in frame.json()["figures"]}
    assert figures == {(c, n): m for c in ("small", "killed") for n, m in (("good", True), ("bad", False), ("mere", None), ("none", None))}
    table = capsys.readouterr().out
    assert "6 figures with a limit: 2 missed, 2 not measured, 2 met; 2 others" in table
    assert table.index("\nsmall: bad: 7 us, ≤ 6: MISSED") < table.index("\nkilled: none: ") < table.index("\nsmall: good: 5 us, ≤ 6: met, predicted 4.5")


def test_the_table_fits_into_a_reply_and_remains_comes_last(frame, capsys):
    many = FIGURE.replace("for name, value, limit, predicted in (", "for name, value, limit, predicted in (*((f'{k} ' + 'x' * 60, 7, 6, 1) for k in range(900)), ")
    frame.run(alone(Check("many", 9, "many")), many=many)
    said = capsys.readouterr().out
    assert len(said[said.index("\nmany ") :]) < 12_000 and "more in gpu.json" in said
    assert said.splitlines()[-1].startswith("REMAINS: ") and len(frame.json()["figures"]) == 904


def test_the_archive_keeps_its_limit_and_the_results(frame, monkeypatch):
    noise = "import random\nprint(''.join(random.Random(0).choices('abcdefghijklmnopqrstuvwxyz', k=3 << 20)))"
    keeps = "import pathlib, sys\n(pathlib.Path(sys.argv[sys.argv.index('--out') + 1]) / 'timing.json').write_text('{}')"
    assert records.ARCHIVE_BYTES == 16 << 20
    monkeypatch.setattr(records, "ARCHIVE_BYTES", 1 << 18)
    frame.run(alone(Check("long", 30, "noise"), Check("short", 9, "keeps")), noise=noise, keeps=keeps)
    assert (frame.results / "long.log").stat().st_size < records.LOG_BYTES + 100
    assert (frame.out / "gpu.tar.gz").stat().st_size <= 1 << 18
    with tarfile.open(frame.out / "gpu.tar.gz") as archive:
        assert set(archive.getnames()) == {f"gpu/{name}" for name in ("gpu.json", "state.json", "timing.json", "short.log", "keeper.log")}


# ---- going on -------------------------------------------------------------------------------------------------------

COUNTS = "import os, sys\nwith open(os.environ['OUT'] + '/../ran', 'a') as to: to.write(os.environ['LOSSFEED_GPU_CHECK'] + ' ' + ' '.join(sys.argv[5:-2]) + '\\n')\n"
OWN = alone(plan.SMOKE, Check("racecheck", 9, "fine", truth=True), Check("loaders", 9, "fine"))


def test_rest_runs_what_failed_then_what_was_not_reached_then_its_own_list(frame):
    ran = frame.folder / "ran"
    wrong = COUNTS + "print('AGAIN: --only python --test b')\nraise SystemExit(1)"
    listed = alone(Check("fine", 9, "fine"), Check("late", 900, "fine"), Check("wrong", 9, "wrong", ("python",), truth=True), Check("cost", 9, "wrong", ("a",)))
    assert frame.run(listed, OWN, fine=COUNTS, wrong=wrong, correct=COUNTS) == 1
    # What came back is kept in the tree; the machine is another one.
    kept = frame.folder / "record" / "toy-80gb" / "2026-11-26-first"
    kept.mkdir(parents=True)
    (frame.out / "state.json").rename(kept / "state.json")
    (kept.parent / "older").mkdir()
    (kept.parent / "older" / "state.json").write_text(json.dumps({"card": "Toy 80GB", "ended": "2025", "failed": [{"check": "cost", "again": []}]}))
    (kept.parent / "other").mkdir()
    (kept.parent / "other" / "state.json").write_text(json.dumps({"card": "Another", "ended": "2027", "failed": []}))
    suites.clear(frame.results)
    ran.unlink()
    listed = alone(*(Check(c.name, 9, c.program, c.only, truth=c.truth) for step in listed for c in step))
    assert frame.run(listed, OWN, "rest", wrong=COUNTS) == 0
    assert [line.strip() for line in ran.read_text().splitlines()] == ["smoke --only smoke", "wrong --only python --test b", "cost --only python --test b", "late", "racecheck", "loaders"]
    assert frame.json()["before"] == str(kept / "state.json")
    state = frame.json("state")
    assert state["failed"] == state["not_reached"] == []
    assert {e["check"] for e in state["done"]} == {"fine", "smoke", "wrong", "cost", "late", "racecheck", "loaders"}
    assert frame.suite.record.remains() == "REMAINS: nothing"
    # Once more, on the same machine: nothing but a sign of life is left.
    ran.unlink()
    assert frame.run(listed, OWN, "rest") == 0
    assert ran.read_text().split() == ["smoke", "--only", "smoke"]


def test_rest_without_a_record_has_its_own_list_and_names_choose_from_it(frame):
    ran = frame.folder / "ran"
    frame.run(alone(Check("never", 9, "fine")), OWN, "rest", fine=COUNTS, correct=COUNTS)
    assert [line.split()[0] for line in ran.read_text().splitlines()] == ["smoke", "racecheck", "loaders"]
    ran.unlink()
    frame.run(alone(Check("never", 9, "fine")), OWN, "rest", checks=["loaders", "never"])
    assert [line.split()[0] for line in ran.read_text().splitlines()] == ["loaders", "never"]
    state = frame.json("state")
    assert {e["check"] for e in state["done"]} == {"smoke", "racecheck", "loaders", "never"}, "what was done before stays done"


def test_a_state_that_says_nothing_is_passed_over(frame):
    for number, text in enumerate(["", "[]", "{}", '{"card": "Toy 80GB"}', "\0"]):
        (frame.folder / "record" / "toy" / str(number)).mkdir(parents=True)
        (frame.folder / "record" / "toy" / str(number) / "state.json").write_text(text)
    assert records.newest("Toy 80GB") == {}


# ---- the project's own tests on a GPU -------------------------------------------------------------------------------

KERNELS = """#!/bin/sh
case "$*" in
  *--list*) printf 'gpu::good: test\\ngpu::bad: test\\ngpu::slow: test\\nsweep::gpu_sweep_of_shapes: test\\n2 tests\\n';;
  *gpu_sweep*) echo 'swept';;
  *bad*) echo '========= Invalid __global__ read of size 4'; kill -ABRT $$;;
  *slow*) sleep 600;;
  *) echo 'test result: ok';;
esac
"""


def own(tmp_path, *arguments, **environment):
    program = tmp_path / "kernels"
    program.write_text(KERNELS)
    program.chmod(0o755)
    command = [sys.executable, own_tests.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "LOSSFEED_GPU_KERNELS": str(program), **environment})


def test_each_test_of_the_kernels_has_a_process_and_those_that_fail_are_named(tmp_path):
    done = own(tmp_path, "--only", "kernels", "--until", "4")
    assert done.returncode == 1 and "1 of 3 tests ended well; not: bad (SIGABRT), slow (no time left)" in done.stdout
    assert "AGAIN: --only kernels --test gpu::bad --test gpu::slow" in done.stdout and "sweep" not in done.stdout
    done = own(tmp_path, "--only", "kernels", "--test", "gpu::good")
    assert done.returncode == 0 and "1 of 1 tests ended well" in done.stdout


@pytest.mark.parametrize(("tests", "status", "said"), [("bad", 1, "not: bad"), ("good", 0, "every test ended"), ("slow", 1, "0 of 1"), ("good slow", 0, "no time for slow")])
def test_a_sanitizer_that_is_stopped_has_found_what_it_had_printed(tmp_path, tests, status, said):
    (tmp_path / "compute-sanitizer").write_text('#!/bin/sh\nwhile [ "$1" != --error-exitcode ]; do shift; done\nshift; shift\nexec "$@"\n')
    (tmp_path / "compute-sanitizer").chmod(0o755)
    named = [part for test in tests.split() for part in ("--test", f"gpu::{test}")]
    done = own(tmp_path, "--only", "memcheck", "--until", "3", *named, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == status and said in done.stdout, done.stdout + done.stderr


def test_the_sweep_is_run_by_its_own_check_alone(tmp_path):
    done = own(tmp_path, "--only", "sweep")
    assert done.returncode == 0 and "swept" in done.stdout


def test_python_tests_that_want_a_gpu_do_not_pass_without_one():
    hidden = {"LOSSFEED_REQUIRE_GPU": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, own_tests.__file__, "--only", "python", "--test", str(ROOT / "tests" / "python" / "test_cuda.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **hidden})
    assert done.returncode != 0 and "torch finds no GPU" in done.stdout + done.stderr


def test_the_tests_that_sanitizers_run_are_there():
    text = (ROOT / "tests" / "kernels" / "gpu.rs").read_text()
    for parts in own_tests.UNDER.values():
        assert all(re.search(rf"fn \w*{part}\w*\(", text) for part in parts), parts


# ---- what travels, and both lists as they are -----------------------------------------------------------------------


def test_what_travels_is_what_git_sees_and_the_bundle(tmp_path, monkeypatch, capsys):
    import travels

    for name, size in {".gitignore": 12, "tracked": 100, "new": 30, "ignored": 5000, ".gpu-bundle/wheels/one.whl": 7, ".gpu-bundle/commit": 1}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\n" * size)
    (tmp_path / ".gitignore").write_text("ignored\n/.gpu-bundle\n")
    for arguments in (["init", "-q"], ["add", "tracked"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    (tmp_path / "link").symlink_to("nowhere")
    assert travels.sizes(tmp_path) == {"tree": 21 + 100 + 30 + 7, ".gpu-bundle/commit": 1, ".gpu-bundle/wheels": 7}
    assert travels.LIMIT_BYTES == 62 << 20 and travels.main(tmp_path) == 0
    monkeypatch.setattr(travels, "LIMIT_BYTES", 166)
    assert travels.main(tmp_path) == 1 and "leave LOSSFEED_CIFAR out" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["first", "rest"])
def test_a_dry_run_tries_every_check_of_the_list(tmp_path, name):
    command = ["bash", str(ROOT / ".ci" / "gpu"), "--dry-run", name]
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert "\nALL CORRECT in" in done.stdout and done.stdout.splitlines()[-1].startswith("REMAINS: ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gpu.json", "gpu.tar.gz", "state.json"]
    found = json.loads((tmp_path / "gpu.json").read_text())
    expected = {c.name: "skipped" if {"gpu", "kernels"} & set(c.needs) else "ok" for step in plan.LISTS[name] for c in step}
    if (ROOT / ".gpu-bundle" / "bin" / "kernels.xz").exists() and "kernels" in expected:
        expected["kernels"] = "ok"
    assert {c["name"]: c["status"] for c in found["checks"]} == expected
    with tarfile.open(tmp_path / "gpu.tar.gz") as archive:
        assert {f"gpu/{check}.log" for check, status in expected.items() if status == "ok"} <= set(archive.getnames())
        if not any("no driver double" in note for note in found["notes"]):
            kept = archive.extractfile("gpu/keeper.log").read().decode()
            assert json.loads(kept.splitlines()[-1])["compute_capability_major"] == 9, kept
            for check in (c for c in expected if plan.ALL[c].double):
                assert b"program_on_the_double.py" in archive.extractfile(f"gpu/{check}.log").read(), check
    told = {figure["check"] for figure in found["figures"]}
    assert told >= {c for c, s in expected.items() if s == "ok" and not plan.ALL[c].truth}, "a check of cost without a figure"

"""What runs the programs of ``benches/gpu``: limits, what is written when, what comes back."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benches" / "gpu"))
import dram
import suite as suites
from suite import Check, Suite


@pytest.fixture
def suite(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setattr(suites.tempfile, "mkdtemp", lambda: str(tmp_path / "results"))
    made = Suite(argparse.Namespace(dry_run=True))
    made.patience = 1
    return made


def says(text, code=0):
    return [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]


def known(suite):
    return json.loads((suite.out / "gpu.json").read_text())


def soon():
    return time.monotonic() + 60


def test_after_every_check_there_is_json_and_an_archive_of_all_so_far(suite):
    for number, name in enumerate(["one", "two"], 1):
        suite.run(Check(name, 30, [says(f"{number} passed")]), soon())
        assert [check["summary"] for check in known(suite)["checks"]] == ["1 passed", "2 passed"][:number]
        with tarfile.open(suite.out / "gpu.tar.gz") as archive:
            assert set(archive.getnames()) == {"gpu/gpu.json", "gpu/one.log", "gpu/two.log"} - ({"gpu/two.log"} if number == 1 else set())
    assert known(suite)["passed"] and known(suite)["complete"]
    assert sorted(file.name for file in suite.out.iterdir()) == ["gpu.json", "gpu.tar.gz"]


def test_what_decides_may_fail_it_and_what_measures_may_not(suite):
    suite.run(Check("timing", 30, [says("no figures", 3)], decides=False), soon())
    assert known(suite)["passed"] and known(suite)["checks"][0]["exit_code"] == 3
    suite.run(Check("kernels", 30, [says("one"), [*says("two", 101), "a_test"], says("three")]), soon())
    check = known(suite)["checks"][1]
    assert not known(suite)["passed"] and check["status"] == "failed"
    assert check["summary"] == "2 of 3 ended well; not: a_test", "one that fails keeps none from running"


def test_a_check_that_does_not_end_is_stopped_with_all_it_started_and_the_next_has_its_turn(suite, tmp_path):
    shell = ["bash", "-c", f"sleep 600 & echo $! >{tmp_path / 'pid'}; wait"]
    suite.run(Check("stuck", 1, [shell, says("never")]), soon())
    assert known(suite)["checks"][0]["status"] == "out of time" and not known(suite)["complete"]
    pid = (tmp_path / "pid").read_text().strip()
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
            break
        time.sleep(0.01)
    else:
        raise AssertionError("what the check started still runs")
    suite.run(Check("next", 30, [says("1 passed")]), soon())
    suite.run(Check("late", 30, [says("1 passed")]), time.monotonic())
    assert [check["status"] for check in known(suite)["checks"]] == ["out of time", "ok", "not run"]


@pytest.mark.parametrize(("said", "status"), [("========= Invalid __global__ read of size 4", "failed"), ("1 test ran", "ok")])
def test_a_sanitizer_that_is_stopped_has_found_what_it_had_printed(suite, said, status):
    command = ["bash", "-c", f"echo '{said}'; sleep 600"]
    suite.run(Check("sanitizer-memcheck", 1, [command], if_stopped=suites.judge_sanitizer), soon())
    assert known(suite)["checks"][0]["status"] == status


def test_the_archive_keeps_its_limit_and_the_results(suite, monkeypatch):
    import random

    noise = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=3 << 20))
    (suite.results / "timing.json").write_text(json.dumps({"verdicts": [{"what": "w", "asked": "a", "measured": 1, "met": True}]}))
    (suite.results / "noise.txt").write_text(noise)
    suite.run(Check("long", 30, [[sys.executable, "-c", f"print(open({str(suite.results / 'noise.txt')!r}).read())"]]), soon())
    assert (suite.results / "long.log").stat().st_size < suites.LOG_BYTES + 100
    monkeypatch.setattr(suites, "ARCHIVE_BYTES", 1 << 18)
    suite.run(Check("short", 30, [says("1 passed")]), soon())
    assert (suite.out / "gpu.tar.gz").stat().st_size <= 1 << 18
    with tarfile.open(suite.out / "gpu.tar.gz") as archive:
        assert set(archive.getnames()) == {"gpu/gpu.json", "gpu/timing.json", "gpu/short.log"}
    assert known(suite)["verdicts"] == [{"program": "timing", "what": "w", "asked": "a", "measured": 1, "met": True}]


def test_parts_keep_within_eight_minutes_and_all_within_twenty_five():
    assert all(longest <= 450 for longest in suites.PARTS_S.values()) and suites.ALL_S <= 1440
    assert suites.PARTS_S["sanitizer"] + suites.PARTS_S["staging"] <= 450


def test_python_tests_that_want_a_gpu_do_not_pass_without_one():
    here = Path(__file__).resolve().parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", str(here / "test_cuda.py")]
    hidden = {**os.environ, "LOSSFEED_REQUIRE_GPU": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=hidden)
    assert done.returncode != 0 and "torch finds no GPU" in done.stdout + done.stderr


def test_packed_shards_are_unpacked_as_the_shards_they_were(tmp_path, monkeypatch):
    import gzip

    # By its place: the campaign of attacks has a module of that name too.
    found = importlib.util.spec_from_file_location("gpu_training", Path(suites.__file__).with_name("training.py"))
    training = importlib.util.module_from_spec(found)
    found.loader.exec_module(training)
    monkeypatch.delenv("LOSSFEED_CIFAR", raising=False)
    monkeypatch.setattr(training, "BUNDLED", tmp_path / "cifar")
    assert training.folder(None, tmp_path) is None and training.folder("given", tmp_path) == "given"
    (tmp_path / "cifar").mkdir()
    (tmp_path / "there").mkdir()
    for name in ("train-00.tar", "test-00.tar"):
        (tmp_path / "cifar" / f"{name}.gz").write_bytes(gzip.compress(name.encode()))
    assert training.folder(None, tmp_path / "there") == str(tmp_path / "there")
    assert {file.name: file.read_text() for file in (tmp_path / "there").iterdir()} == {n: n for n in ("train-00.tar", "test-00.tar")}


#: As ncu 2025.3 prints it, shortened.
NCU = """==PROF== Connected to process 7
==PROF== Profiling "lossfeed_score_block_bf16": 0%....50%....100% - 1 pass
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","python3","127.0.0.1","lossfeed_score_block_bf16(ScoreArguments)","1","7","(512, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Mbyte","262.25"
"0","7","python3","127.0.0.1","lossfeed_score_block_bf16(ScoreArguments)","1","7","(512, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","1,024"
"0","7","python3","127.0.0.1","lossfeed_score_block_bf16(ScoreArguments)","1","7","(512, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","us","61.5"
"1","7","python3","127.0.0.1","lossfeed_backward_bf16(GradientArguments)","1","7","(256, 1, 1)","(4096, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Gbyte","0.5"
"""


def test_ncus_table_is_read_kernel_by_kernel_in_bytes_and_nanoseconds():
    first, second = dram.kernels(NCU)
    assert first == {"kernel": "lossfeed_score_block_bf16", "read_bytes": 262.25e6, "written_bytes": 1024.0, "ns": 61500.0}
    assert second == {"kernel": "lossfeed_backward_bf16", "read_bytes": 0.5e9}
    with pytest.raises(ValueError, match="no table.*LibraryNotLoaded"):
        dram.kernels("==ERROR== Failed to initialize the profiler: LibraryNotLoaded")
    with pytest.raises(ValueError, match="'furlong'"):
        dram.kernels(NCU.replace('"Gbyte"', '"furlong"'))

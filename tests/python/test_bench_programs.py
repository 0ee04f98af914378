"""The programs of ``benches/gpu`` run: here with tiny shapes on the CPU, so that a GPU machine meets none of their mistakes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "benches" / "gpu"


def run(program, out):
    command = [sys.executable, str(PROGRAMS / program), "--device", "cpu", "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout, json.loads((out / program).with_suffix(".json").read_text())


def errors(value, path=""):
    """Where an ``error`` stands in nested results."""
    if isinstance(value, dict):
        found = [f"{path}: {value['error']}"] if "error" in value else []
        return found + [e for k, v in value.items() for e in errors(v, f"{path}/{k}")]
    if isinstance(value, list):
        return [e for k, v in enumerate(value) for e in errors(v, f"{path}/{k}")]
    return []


def test_correctness_compares_everything_and_finds_nothing(tmp_path):
    said, found = run("correct.py", tmp_path)
    assert found["passed"] and "all correct" in said
    assert errors(found["sections"]) == []
    for name in ("scores", "gradients", "repeat", "edges"):
        assert found["sections"][name]["compared"] > 5 and found["sections"][name]["wrong"] == 0


def test_correctness_finds_what_is_wrong(tmp_path, monkeypatch):
    # The same program over a package whose loss is off by a thousandth.
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import lossfeed as lf\n"
        "right = lf.sample_scores\n"
        "lf.sample_scores = lambda *a, **k: (s := right(*a, **k))._replace(loss=s.loss * 1.001)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    command = [sys.executable, str(PROGRAMS / "correct.py"), "--device", "cpu", "--quick", "--only", "scores", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "WRONG 9x10 float16 contiguous loss" in done.stdout, done.stdout + done.stderr


def test_timing_has_a_figure_or_a_reason_for_everything(tmp_path):
    said, found = run("timing.py", tmp_path)
    sections = found["sections"]
    assert set(sections) == {"bandwidth", "forward", "backward", "small", "memory", "host", "step", "graph"}
    gpu_only = [e for e in errors(sections) if not e.endswith("compared on a GPU only")]
    assert gpu_only == []
    assert sections["bandwidth"]["read_gb_per_s"] > 0
    assert sections["step"]["scores_total"] == 64, "two scored variants, four batches of eight each"
    assert {"skipped"} == set(sections["graph"])
    assert len(found["verdicts"]) >= 8 and "these figures mean nothing" in said


def test_staging_has_a_figure_for_everything(tmp_path):
    said, found = run("staging.py", tmp_path)
    sections = found["sections"]
    assert errors(sections) == []
    assert set(sections) == {"copy", "overlap", "paths", "images", "loaders"}
    assert sections["copy"]["best_gb_per_s"] > 0 and len(sections["copy"]["loader"]) == 1
    assert sections["overlap"][0]["overlap_fraction"] > 0
    assert sections["paths"][0]["chosen"] == "gathered" and sections["paths"][0]["paths"]["auto"]["batch_us"] > 0
    assert sections["images"][0]["equals_the_cpu"] is True
    assert [row["loader"] for row in sections["loaders"]] == ["lossfeed", "DataLoader, 0 workers", "lf.stage(DataLoader, 0 workers)"]
    assert len(found["verdicts"]) == 4 and "these figures mean nothing" in said


@pytest.mark.skipif(sys.platform != "linux" or shutil.which(os.environ.get("CXX", "c++")) is None, reason="no driver double without a C++ compiler")
def test_the_hooks_host_time_is_taken_on_the_double(tmp_path):
    program = PROGRAMS.parent / "scenarios" / "hook_host.py"
    command = [sys.executable, str(program), "--blocks", "1", "--label", "try", "--record", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (record,) = tmp_path.glob("*/*.json")
    runs = {run["call"]: run for run in json.loads(record.read_text())["runs"]}
    assert {"F.cross_entropy", "loader.score", "loader.cross_entropy", "lf.cross_entropy step"} <= set(runs)
    assert all(run["host_us"] > 0 for run in runs.values())

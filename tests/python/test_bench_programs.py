"""The programs of ``benches/gpu`` run: here with tiny shapes on the CPU, so that a GPU machine meets none of their
mistakes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "benches" / "gpu"


def run(program, out, *more):
    command = [sys.executable, str(PROGRAMS / program), "--device", "cpu", "--quick", "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (file,) = out.glob(f"{program.removesuffix('.py')}*.json")
    return done.stdout, json.loads(file.read_text())


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
    for name in ("smoke", "scores", "gradients", "repeat", "edges", "images", "mail"):
        assert found["sections"][name]["compared"] > 2 and found["sections"][name]["wrong"] == 0


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
    assert done.stdout.endswith("AGAIN: --only scores\n")


def figures(found):
    """Name to limit, whether at least so much is asked, and prediction."""
    return {f["name"]: (f["limit"], f["at_least"], f["predicted"]) for f in found["figures"]}


def test_timing_has_a_figure_or_a_reason_for_everything(tmp_path):
    said, found = run("timing.py", tmp_path)
    sections, asked = found["sections"], figures(found)
    assert set(sections) == {"bandwidth", "forward", "backward", "small", "graph", "host", "step"}
    assert errors(sections) == [] and found["not_reached"] == []
    assert set(found["left_out"]) == {"compiled", "liger", "quack"}
    assert sections["step"]["scores_total"] == 64, "two scored variants, four batches of eight each"
    assert [row["dtype"] for row in sections["forward"]] == ["bfloat16", "float32"]
    assert asked["forward 4x8192 bfloat16, kernel alone"][:2] == (0.93, True)
    assert asked["loss and gradient 4x8192 bfloat16, eager over ours"] == (3.0, True, 3.0)
    assert asked["score 4x10, with ranks and mail"] == (8.0, False, 8.2)
    assert {f"score 4x10, {stage}" for stage in ("loss alone", "with ranks")} < set(asked)
    assert asked["loader.score, host"][:2] == (10, False) and asked["loader.cross_entropy, host"][:2] == (20, False)
    assert asked["ResNet-18 step, + loader.score, slower by"][:2] == (0.005, False)
    assert "these figures mean nothing" in said


def test_staging_has_a_figure_for_everything(tmp_path):
    _, found = run("staging.py", tmp_path)
    sections, asked = found["sections"], figures(found)
    assert errors(sections) == []
    assert set(sections) == {"copy", "overlap", "paths", "pictures", "loaders"}
    kinds = ("torch's pinned memory", "memory as the cache's", "the same, private")
    assert {f"{kind}, one copy of 1 MiB" for kind in kinds} < set(sections["copy"]["gb_per_s"])
    assert asked["batches of 0.0 MiB over the best single copy"] == (0.97, True, 0.98)
    assert asked["overlap at compute/copy 1"][:2] == (0.98, True) and asked["compute slowed down at compute/copy 1"][:2] == (0.03, False)
    assert sections["paths"][0]["chosen"] == "gathered" and sections["paths"][0]["paths"]["auto"]["batch_us"] > 0
    assert [row["loader"] for row in sections["loaders"]] == ["lossfeed", "DataLoader, 0 workers", "lf.stage(DataLoader, 0 workers)"]


def test_the_mission_runs_from_the_hook_to_the_cache_and_is_compared(tmp_path):
    _, found = run("mission.py", tmp_path)
    assert errors(found) == [] and [row["source"] for row in found["sections"]["mission"]] == ["resident", "lossfeed", "DataLoader, 0 workers"]
    asked, values = figures(found), {f["name"]: f["value"] for f in found["figures"]}
    assert asked["stall"][:2] == (0.01, False) and asked["overlap of copies with the training's kernels"][:2] == (0.98, True)
    assert values["scores that came home"] == 1.0 and 0.3 < values["hits"] < 1
    assert values["step"] > 0 and values["stall behind the best tuned DataLoader"] > 0


def test_training_runs_every_recipe_on_every_seed(tmp_path):
    _, found = run("training.py", tmp_path, "--first-seed", "3")
    assert errors(found) == []
    recipes = "uniform+minio", "cost-aware", "cost-aware:scores=batch"
    assert [(row["recipe"], row["seed"]) for row in found["sections"]["train"]] == [(recipe, 3) for recipe in recipes]
    assert all(0 < row["accuracy"] < 1 and row["samples"] == 48 for row in found["sections"]["train"])
    assert figures(found)["accuracy, cost-aware minus uniform"][:2] == (-0.005, True)


def test_bytes_are_counted_by_ncu_alone(tmp_path):
    _, found = run("dram.py", tmp_path)
    assert errors(found) == [] and figures(found)["bytes of loss and gradient 8x100 bfloat16"][:2] == (3.1, False)


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

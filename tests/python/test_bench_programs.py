"""The programs of ``benches/gpu`` run: here with tiny shapes on the CPU, so that a GPU machine meets none of their
mistakes."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "benches" / "gpu"


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
    for name in ("scores", "gradients", "repeat", "edges", "images"):
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


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """A dry run of everything: what was said, the files it left, gpu.json, and the archive's members by name."""
    out = tmp_path_factory.mktemp("gpu")
    command = [str(ROOT / ".ci" / "gpu"), "--dry-run"]
    environment = {**os.environ, "OUT": str(out), "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    with tarfile.open(out / "gpu.tar.gz") as archive:
        members = {Path(m.name).name: archive.extractfile(m).read().decode() for m in archive}
    return done.stdout, sorted(file.name for file in out.iterdir()), json.loads((out / "gpu.json").read_text()), members


def test_a_dry_run_tries_every_program_and_leaves_two_files(dry):
    said, files, found, members = dry
    assert files == ["gpu.json", "gpu.tar.gz"] and "ALL CORRECT in" in said
    assert found["passed"] and found["complete"] and found["dry_run"]
    checks = {check["name"]: check for check in found["checks"]}
    ran = ["doctor", "smi", "python", "compare", "timing", "dram", "staging", "train"]
    assert {checks[name]["status"] for name in ran} == {"ok"}
    assert {checks[f"sanitizer-{tool}"]["status"] for tool in ("memcheck", "racecheck")} == {"skipped"}
    # What is true comes before what it costs.
    assert [name for name in checks if name in ran] == ran
    assert set(members) >= {"gpu.json", *(f"{name}.log" for name in ran), "correct.json", "timing.json", "dram.json", "staging.json", "training.json"}
    assert {"timing", "dram", "staging", "training"} >= {verdict["program"] for verdict in found["verdicts"]} >= {"timing", "staging", "training"}


def test_timing_has_a_figure_or_a_reason_for_everything(dry):
    found = json.loads(dry[3]["timing.json"])
    sections = found["sections"]
    assert set(sections) == {"bandwidth", "forward", "backward", "small", "memory", "host", "step", "graph"}
    gpu_only = [e for e in errors(sections) if not e.endswith("compared on a GPU only")]
    assert gpu_only == []
    assert sections["bandwidth"]["read_gb_per_s"] > 0
    assert sections["step"]["scores_total"] == 64, "two scored variants, four batches of eight each"
    assert {"skipped"} == set(sections["graph"])
    tables = [[(row["shape"], row["dtype"]) for row in sections[name]] for name in ("forward", "backward")]
    assert tables[0] == tables[1] == [(shape, dtype) for shape in ("4x10", "4x8192") for dtype in ("bfloat16", "float32")]
    asked = {verdict["what"]: verdict["asked"] for verdict in found["verdicts"]}
    assert asked["forward 4x8192 bfloat16, kernel alone"] == "≥ 0.95 of read bandwidth"
    assert asked["loss and gradient 4x8192 bfloat16 against eager"] == "≥ 3.5 times faster"
    assert asked["loss and gradient 4x8192 bfloat16 against liger"] == "≥ 1.7 times faster"
    assert asked["loader.score, host"] == "≤ 10 µs"
    assert "these figures mean nothing" in dry[3]["timing.log"]
    goals = {(256, 10), (256, 1000), (1024, 1000), (16384, 8192), (4096, 32000), (4096, 128256), (8192, 151936)}
    assert {tuple(shape) for shape in found["shapes"]} == goals, "what a run that is not dry has in every table"


def test_staging_has_a_figure_for_everything(dry):
    found = json.loads(dry[3]["staging.json"])
    sections = found["sections"]
    assert errors(sections) == []
    assert set(sections) == {"copy", "overlap", "paths", "images", "retouch", "loaders"}
    assert sections["copy"]["best_gb_per_s"] > 0 and len(sections["copy"]["loader"]) == 1
    assert sections["overlap"][0]["overlap_fraction"] > 0
    assert sections["paths"][0]["chosen"] == "gathered" and sections["paths"][0]["paths"]["auto"]["batch_us"] > 0
    assert sections["images"][0]["equals_the_cpu"] is True
    assert [row["loader"] for row in sections["loaders"]] == ["lossfeed", "DataLoader, 0 workers", "lf.stage(DataLoader, 0 workers)"]
    assert len(found["verdicts"]) == 4


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


def test_training_runs_every_recipe_on_every_seed(dry):
    found = json.loads(dry[3]["training.json"])
    assert errors(found["sections"]) == []
    assert [(row["recipe"], row["seed"]) for row in found["sections"]["runs"]] == [("uniform+minio", 0), ("cost-aware", 0)]
    assert all(0 < row["accuracy"] < 1 and row["samples"] == 48 for row in found["sections"]["runs"])
    seeds = next(verdict for verdict in found["verdicts"] if verdict["what"] == "training, seeds of every recipe")
    assert seeds["measured"] == 1 and not seeds["met"]

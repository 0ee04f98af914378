"""A recorded run: its journal, replayed by the command line, makes the run's hits again."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys

import lossfeed as lf
import numpy as np
import pytest


Image = pytest.importorskip("PIL.Image")

SAMPLES = 90


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A class folder of PNGs, each of another size in bytes."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for k in range(SAMPLES):
        (folder / f"class{k % 3}").mkdir(exist_ok=True)
        noisy = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        noisy[: k % 16] = 0
        Image.fromarray(noisy).save(folder / f"class{k % 3}" / f"{k:03}.png")
    return folder


def replay(path, *options):
    argv = [sys.executable, "-m", "lossfeed", "replay", "--trace", str(path), "--json", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("policy", ["importance", "lru", "minio", "s3fifo"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_journal_gives_the_runs_hits_again_whatever_the_sizes_and_the_threads(pictures, tmp_path, policy, workers):
    path = tmp_path / "run.csv.gz"
    loader = lf.Loader(
        str(pictures),
        8,
        shuffle=True,
        cache="20%",
        policy=policy,
        num_workers=workers,
        seed=1,
        journal=path,
        framework="numpy",
        stats=False,
    )
    for _ in range(3):
        for batch in loader:
            loader.score_losses(np.asarray(batch.target, dtype=np.float32) + 0.5, batch)
    counted = loader.stats()
    loader.close()
    assert counted["journal_lost_total"] == 0
    run = replay(path, "--policy", "fifo", "--capacity", "4KiB")["run"]
    assert (run["hits"], run["misses"]) == (counted["hits_total"], counted["misses_total"])
    assert (run["replayed_hits"], run["replayed_misses"], run["differing"]) == (run["hits"], run["misses"], 0)
    assert run["complete"] and run["policy"] == policy and run["hits"] > 0
    with gzip.open(path, "rt") as text:
        about = json.loads(next(text).removeprefix("# "))
        rows = list(csv.DictReader(text))
    assert about["samples"] == SAMPLES and about["settings"]["batch_size"] == 8
    learned = [row for row in rows if row["event"] == "learn"]
    assert len(learned) == counted["scores_total"] and {float(row["loss"]) for row in learned} == {0.5, 1.5, 2.5}
    assert len({row["bytes"] for row in rows if row["event"] == "decide"}) > 1, "sizes vary"


def test_a_file_that_is_there_and_one_file_for_many_ranks_are_refused(pictures, tmp_path):
    taken = tmp_path / "taken.csv"
    taken.write_text("mine")
    with pytest.raises(lf.SettingsError, match="there already"):
        lf.Loader(str(pictures), 8, journal=taken)
    assert taken.read_text() == "mine"
    with pytest.raises(lf.SettingsError, match="rank"):
        lf.Loader(str(pictures), 8, journal=tmp_path / "run.csv", rank=0, world_size=2)
    with pytest.raises(lf.SettingsError, match="no path"):
        lf.Loader(str(pictures), 8, journal=3.5)
    lf.Loader(str(pictures), 8, journal=tmp_path / "run-{rank}.csv", rank=1, world_size=2).close()
    assert (tmp_path / "run-1.csv").exists()


def test_train_records_every_run(tmp_path):
    argv = [sys.executable, "-m", "lossfeed", "train", "--steps", "4", "--seeds", "1", "--quiet", "--latency", "0"]
    argv += ["--bandwidth", "1GB", "--compare", "uniform+lru,cost-aware", "--record", str(tmp_path / "runs"), "--work-dir", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    journals = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(journals) == 2 and all(name.endswith("-seed0.csv.gz") for name in journals), journals
    for name in journals:
        assert replay(tmp_path / "runs" / name)["run"]["differing"] == 0


@pytest.mark.parametrize("augmented", [True, False])
def test_what_auto_chose_and_what_it_came_to_at_the_borders_of_epochs_is_in_the_journal(pictures, tmp_path, augmented):
    path = tmp_path / "run.csv.gz"
    auto = {"name": "auto", "augmented": augmented, "stall": 0.02}
    loader = lf.Loader(
        str(pictures), 8, sampler=auto, cache="20%", num_workers=0, seed=1, journal=path, framework="numpy", stats=False
    )
    paces = []
    for _ in range(3):
        for k, batch in enumerate(loader):
            if k == 0:
                paces.append(loader.stats()["fetches_ppm"] / 1e6)
            loader.score_losses(np.asarray(batch.target, dtype=np.float32) + 0.5, batch)
            _ = batch.weight
    loader.close()
    with gzip.open(path, "rt") as text:
        about = json.loads(next(text).removeprefix("# "))
        rows = list(csv.DictReader(text))
    name, option = ("replay", "fresh") if augmented else ("cost-aware", "fetches")
    assert about["lossfeed-journal"] == 3 and about["settings"]["sampler"]["name"] == name
    told = [row for row in rows if row["event"] in ("sampler", "weights", "begin")]
    told = [row for k, row in enumerate(told) if row["event"] != "begin" or told[k - 1]["event"] != "begin"]
    assert [row["event"] for row in told] == ["sampler", "begin", "weights", "sampler", "begin", "sampler", "begin"]
    assert [row["epoch"] for row in told if row["event"] == "begin"] == ["0", "1", "2"]
    assert [row["verdict"] for row in told if row["event"] == "weights"] == ["used"]
    for row, pace in zip([row["verdict"] for row in told if row["event"] == "sampler"], paces, strict=True):
        spelled = dict(part.split("=") for part in row.split(":")[1:])
        assert row.split(":")[0] == name and float(spelled[option]) == pytest.approx(pace, abs=1e-6)
    # What the journal says is what the command line takes.
    sampler = [row["verdict"] for row in told if row["event"] == "sampler"][-1]
    assert replay(path, "--sampler", sampler)["results"][0]["sampler"] == sampler
    run = replay(path, "--policy", "fifo", "--capacity", "4KiB")["run"]
    assert run["differing"] == 0 and run["complete"]

"""Small members of shards come while the dataset is opened: their first fetch needs no request, by any job."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image

import lossfeed as lf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FaultStore  # noqa: E402

SAMPLES = 2000
#: Arguments: URL, folder of the index, seed. It makes its loader, waits for a line on its input, and tells its epochs.
JOB = """
import hashlib, sys, numpy as np, lossfeed as lf
url, index, seed = sys.argv[1:]
data = lf.open(url, index_cache=index)
cache = lf.Cache("64MiB", share="node")
with lf.Loader(data, 50, shuffle=True, seed=int(seed), num_workers=2, cache=cache, framework="numpy") as loader:
    print("open", flush=True)
    sys.stdin.readline()
    for epoch in range(2):
        rows = {int(i): x.tobytes() for batch in loader for i, x in zip(batch.ids, batch.data)}
        print(len(rows), hashlib.sha256(b"".join(rows[i] for i in sorted(rows))).hexdigest(), flush=True)
"""


def shard(pixels):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for i, picture in enumerate(pixels):
            body = io.BytesIO()
            Image.fromarray(picture).save(body, "PNG", compress_level=0)
            info = tarfile.TarInfo(f"c{i % 2}/{i:05}.png")
            info.size = len(body.getvalue())
            archive.addfile(info, io.BytesIO(body.getvalue()))
    return out.getvalue()


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(5).integers(0, 255, (SAMPLES, 25, 25, 3), dtype=np.uint8)


@pytest.fixture
def store(pixels):
    with FaultStore({"train.tar": shard(pixels)}, tags=False) as store:
        yield store


def epochs(data, number=2, **keywords):
    with lf.Loader(data, 50, shuffle=True, seed=1, framework="numpy", stats=False, **keywords) as loader:
        rows = [(batch.ids.copy(), batch.weight.copy(), batch.data.copy()) for _ in range(number) for batch in loader]
        return rows, loader.stats()


def same(some, others):
    return len(some) == len(others) and all(np.array_equal(*pair) for a, b in zip(some, others) for pair in zip(a, b))


@pytest.mark.parametrize("workers", [0, 2])
def test_opening_and_the_epochs_read_the_shard_once(store, workers):
    whole = len(store.object("train.tar")[0])
    alone = lf.open(store.url + "/train.tar", coalesce=False)
    expected, before = epochs(alone, cache="64MiB", num_workers=0)
    assert store.sent["train.tar"] > 1.7 * whole and before["store_requests_total"] >= SAMPLES
    store.requests.clear()
    store.sent.clear()
    data = lf.open(store.url + "/train.tar")
    walk = store.requests["train.tar"]
    got, stats = epochs(data, cache="64MiB", num_workers=workers)
    assert same(got, expected)
    assert store.sent["train.tar"] <= 1.02 * whole
    assert stats["store_requests_total"] == store.requests["train.tar"] - walk <= walk + 5
    assert stats["fetched_samples_total"] == SAMPLES and stats["hits_total"] == before["hits_total"]


def test_a_run_that_may_keep_nothing_keeps_nothing_of_the_opening(store):
    data = lf.open(store.url + "/train.tar")
    _, stats = epochs(data, 1, num_workers=0, cache=None)
    assert stats["store_requests_total"] > 10 and stats["fetched_samples_total"] == SAMPLES
    whole = len(store.object("train.tar")[0])
    assert store.sent["train.tar"] > 1.7 * whole


def test_samples_that_are_kept_are_held_to_their_checksums(store):
    data = lf.open(store.url + "/train.tar", checksums=True)
    walk = store.requests["train.tar"]
    got, _ = epochs(data, 1, cache="64MiB", num_workers=2)
    assert sorted(np.concatenate([ids for ids, _, _ in got])) == list(range(SAMPLES))
    assert store.requests["train.tar"] - walk < 20


@pytest.mark.parametrize("jobs", [1, 2])
def test_jobs_that_share_a_node_cache_read_the_shard_once_in_all(store, pixels, tmp_path, monkeypatch, jobs):
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "run"))
    words = [sys.executable, "-c", JOB, store.url + "/train.tar", str(tmp_path / "index")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begun = [subprocess.Popen([*words, str(seed)], **pipes) for seed in range(jobs)]
    try:
        for job in begun:
            assert job.stdout.readline() == "open\n"
        for job in begun:
            job.stdin.write("\n")
            job.stdin.flush()
        seen = {line for job in begun for line in job.communicate(timeout=100)[0].splitlines()}
    finally:
        command = [sys.executable, "-m", "lossfeed", "node", "ls", "--json"]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode == 0:
            os.kill(json.loads(found.stdout)["pid"], signal.SIGKILL)
    assert [job.returncode for job in begun] == [0] * jobs
    # All epochs of all jobs have the same samples.
    assert len(seen) == 1 and seen.pop().startswith(f"{SAMPLES} ")
    whole = len(store.object("train.tar")[0])
    assert store.sent["train.tar"] <= 1.02 * whole

"""Processes that begin together over one disk tier read each object of a store once, though one of them may end."""

import io
import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FaultStore  # noqa: E402

SHAPE = (6, 5, 3)
SAMPLES = 400
#: Arguments: URL and options, the tier's folder or "", the seed. It begins at a line on its input, and tells its steps.
TRAINING = """
import json, sys, numpy as np, lossfeed as lf
url, options, tier, seed = sys.argv[1:]
disk = {"disk": tier, "disk_bytes": "64MiB"} if tier else {}
data = lf.open(url + "/data", store_options=json.loads(options), latency=0.005, **disk)
print("open", flush=True)
sys.stdin.readline()
right = 0
settings = {"num_workers": 2, "cache": 0, "framework": "numpy", "stats": False}
with lf.Loader(data, 10, shuffle=True, seed=int(seed), **settings) as loader:
    for batch in loader:
        for i, x in zip(batch.ids.tolist(), batch.data):
            number = int(data.name(i).rpartition("/")[2].partition(".")[0])
            right += (x == np.random.default_rng(number).integers(0, 255, x.shape, dtype=np.uint8)).all()
        print("batch", flush=True)
    damaged = loader.stats()["disk_damaged_total"]
print(right, int(damaged), flush=True)
"""


def png(number):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, SHAPE, dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def store():
    with FaultStore({f"data/c{i % 2}/{i:03}.png": png(i) for i in range(SAMPLES)}) as store:
        yield store


def trainings(store, tier, seeds):
    """Processes that have opened the dataset and wait."""
    argv = [sys.executable, "-c", TRAINING, store.s3_url, json.dumps(store.store_options), str(tier or "")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begun = [subprocess.Popen([*argv, str(seed)], **pipes) for seed in seeds]
    for process in begun:
        assert process.stdout.readline() == "open\n"
    store.requests.clear()
    return begun


def go(processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def ended(process):
    """Right samples, and damaged records."""
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return tuple(int(number) for number in out.split("\n")[-2].split())


def objects_read(store):
    return sum(count for key, count in store.requests.items() if key.endswith(".png"))


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2), (1, 2, 3, 4)], ids=str)
def test_processes_that_begin_together_read_each_object_once(store, tmp_path, seeds):
    begun = trainings(store, tmp_path / "tier", seeds)
    go(begun)
    assert [ended(process) for process in begun] == [(SAMPLES, 0)] * len(seeds)
    # Alone each would read all. A busy machine answers some claims too late.
    assert objects_read(store) <= 1.2 * SAMPLES


def test_without_a_tier_each_reads_all_of_them(store):
    begun = trainings(store, None, (1, 2))
    go(begun)
    assert [ended(process) for process in begun] == [(SAMPLES, 0)] * 2
    # And some for an epoch that does not come.
    assert objects_read(store) >= 2 * SAMPLES


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_ends_in_the_middle_costs_the_others_no_sample(store, tmp_path, ends):
    one, *others = trainings(store, tmp_path / "tier", (1, 1, 2))
    try:
        go([one])
        assert one.stdout.readline() == "batch\n"
        one.send_signal(ends)
        go(others)
        assert [ended(process) for process in others] == [(SAMPLES, 0)] * 2
        # Alone each would read all: 1200. A busy machine answers some claims too late.
        assert objects_read(store) < 2 * SAMPLES
    finally:
        one.kill()
        one.wait()
        one.stdin.close()
        one.stdout.close()

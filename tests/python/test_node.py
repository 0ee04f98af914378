"""One cache for all loaders of a machine: each object of a store is read once, also when a process is killed."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
from PIL import Image

import lossfeed as lf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FaultStore  # noqa: E402

SAMPLES = 400
SHAPE = (6, 5, 3)
#: Arguments: URL and options, seed, rank, world size, epochs. It begins at a line on its input, and tells its steps.
TRAINING = """
import json, sys, numpy as np, lossfeed as lf
url, options, size, seed, rank, world, epochs, sampler = sys.argv[1:]
data = lf.open(url + "/data", store_options=json.loads(options), latency=0.005, hedge=False)
settings = {"num_workers": 2, "framework": "numpy", "job": f"job{seed}", "rank": int(rank), "world_size": int(world)}
cache = lf.Cache(size, share="node")
right = 0
with lf.Loader(data, 10, sampler=sampler, seed=int(seed), cache=cache, **settings) as loader:
    print("open", flush=True)
    sys.stdin.readline()
    for epoch in range(int(epochs)):
        loader.set_epoch(epoch)
        for batch in loader:
            for i, x in zip(batch.ids.tolist(), batch.data):
                number = int(data.name(i).rpartition("/")[2].partition(".")[0])
                right += int((x == np.random.default_rng(number).integers(0, 255, x.shape, dtype=np.uint8)).all())
            if sampler != "uniform":
                loader.score_losses(batch.ids % 7 + 1.0, batch)
            print("batch", flush=True)
    stats = loader.stats()
print(right, json.dumps({name: value for name, value in stats.items() if name.startswith("node_")}), flush=True)
"""


def png(number):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, SHAPE, dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def store():
    with FaultStore({f"data/c{i % 2}/{i:03}.png": png(i) for i in range(SAMPLES)}) as store:
        yield store


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A machine of its own: its owner ends with it."""
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "run"))
    yield tmp_path / "run"
    if (pid := owner()) is not None:
        os.kill(pid, signal.SIGKILL)


def node(*words):
    argv = [sys.executable, "-m", "lossfeed", "node", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def listed():
    done = node("ls", "--json")
    return json.loads(done.stdout) if done.returncode == 0 else None


def owner():
    found = listed()
    return None if found is None else found["pid"]


def trainings(store, runs, size="64MiB"):
    """Processes that have made their loaders and wait; `runs`: (seed, rank, world size, epochs[, sampler]) each."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begun = []
    for seed, rank, world, epochs, *sampler in runs:
        run = [size, seed, rank, world, epochs, *(sampler or ["uniform"])]
        words = [store.s3_url, json.dumps(store.store_options), *run]
        begun.append(subprocess.Popen([sys.executable, "-c", TRAINING, *map(str, words)], **pipes))
    for process in begun:
        assert process.stdout.readline() == "open\n"
    store.requests.clear()
    return begun


def go(processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def ended(process):
    """Right samples, and the node cache's numbers."""
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    right, stats = out.split("\n")[-2].split(" ", 1)
    return int(right), json.loads(stats)


def objects_read(store):
    return sum(count for key, count in store.requests.items() if key.endswith(".png"))


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_jobs_that_begin_together_read_each_object_once(store, jobs):
    begun = trainings(store, [(seed, 0, 1, 2) for seed in range(jobs)])
    go(begun)
    found = [ended(process) for process in begun]
    assert [right for right, _ in found] == [2 * SAMPLES] * jobs
    assert objects_read(store) == SAMPLES, [stats for _, stats in found]
    assert all(stats["node_failed_total"] == stats["node_opened_total"] == 0 for _, stats in found)


def test_ranks_of_a_job_read_each_object_once(store):
    begun = trainings(store, [(1, rank, 2, 2) for rank in range(2)])
    go(begun)
    assert sum(ended(process)[0] for process in begun) == 2 * SAMPLES
    assert objects_read(store) == SAMPLES


def test_a_trainer_that_starts_again_reads_nothing(store):
    begun = trainings(store, [(1, 0, 1, 1)])
    go(begun)
    ended(begun[0])
    assert objects_read(store) == SAMPLES
    again = trainings(store, [(2, 0, 1, 1)])
    go(again)
    right, stats = ended(again[0])
    # One sample is read when the dataset is opened.
    assert (right, objects_read(store)) == (SAMPLES, 0)
    assert stats["node_hits_total"] >= SAMPLES


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_job_that_ends_in_the_middle_costs_the_others_no_sample(store, ends):
    one, *others = trainings(store, [(1, 0, 1, 1), (1, 0, 1, 1), (2, 0, 1, 1)])
    try:
        go([one])
        assert one.stdout.readline() == "batch\n"
        one.send_signal(ends)
        go(others)
        assert [ended(process)[0] for process in others] == [SAMPLES] * 2
        # What the one was fetching is fetched once more.
        assert objects_read(store) <= SAMPLES + 128
    finally:
        one.kill()
        one.wait()
        one.stdin.close()
        one.stdout.close()


def test_a_killed_owner_is_replaced_and_its_samples_are_taken_over(store):
    # An owner that starts later than the store would answer is not waited for, which happens on a busy machine.
    for _ in range(6):
        first, second = trainings(store, [(1, 0, 1, 1), (2, 0, 1, 2)])
        go([first])
        ended(first)
        killed = owner()
        os.kill(killed, signal.SIGKILL)
        store.requests.clear()
        go([second])
        right, stats = ended(second)
        assert right == 2 * SAMPLES
        if stats["node_failed_total"] == 0:
            break
    assert objects_read(store) <= SAMPLES // 100, stats
    found = listed()
    assert found["pid"] != killed and found["samples"] + found["adoptable"] >= 0.99 * SAMPLES
    assert stats["node_opened_total"] == 0


def test_owners_killed_again_and_again_bring_no_wrong_sample_and_no_end(store):
    begun = trainings(store, [(1, 0, 1, 6), (2, 0, 1, 6)])
    go(begun)
    kills = 0
    while any(process.poll() is None for process in begun) and kills < 20:
        if (pid := owner()) is not None:
            os.kill(pid, signal.SIGKILL)
            kills += 1
        time.sleep(0.2)
        if kills >= 3:
            break
    assert [ended(process)[0] for process in begun] == [6 * SAMPLES] * 2
    assert kills > 0


def test_what_is_drawn_most_stays(store):
    begun = trainings(store, [(1, 0, 1, 3, "importance")], size="32KiB")
    go(begun)
    ended(begun[0])
    found = listed()
    assert found["evicted"] > 0 and found["bytes"] <= 32 << 10


def test_a_dataset_is_dropped_or_pinned_and_a_job_limited(store):
    begun = trainings(store, [(1, 0, 1, 1)])
    go(begun)
    ended(begun[0])
    (job,) = listed()["jobs"]
    assert (job["job"], job["samples"], job["clients"]) == ("job1", SAMPLES, 0)
    shown = node("ls").stdout
    assert "job1" in shown and job["dataset"] in shown
    assert node("limit", "job1", "10KiB").returncode == 0
    assert listed()["jobs"][0]["bytes"] <= 10 << 10
    assert node("pin", job["dataset"]).returncode == 0
    assert listed()["jobs"][0]["pinned"] and "(pinned)" in node("ls").stdout
    assert node("pin", job["dataset"], "--off").returncode == 0
    assert not listed()["jobs"][0]["pinned"]
    wrong = node("drop", "nothing")
    assert wrong.returncode == 6 and job["dataset"] in wrong.stderr
    assert node("drop", job["dataset"]).returncode == 0
    assert listed()["samples"] == 0


def test_without_a_node_cache_the_command_says_how_one_starts():
    done = node("ls")
    assert done.returncode == 6 and 'share="node"' in done.stderr


def test_wrong_settings_are_refused_by_name(store, tmp_path):
    data = lf.open(store.s3_url + "/data", store_options=store.store_options)
    for cache, says in [
        ({"size": "1MiB", "share": "rack"}, "share='rack'"),
        ({"size": 0, "share": "node"}, "size=0"),
        ({"size": "1MiB", "share": "node", "policy": "lru"}, "policy='lru'"),
    ]:
        with pytest.raises(lf.SettingsError, match=says):
            lf.Cache(**cache)
    with pytest.raises(lf.SettingsError, match="cannot be kept in the node cache"):
        lf.Loader(np.zeros((4, 3)), 2, cache=lf.Cache("1MiB", share="node"))
    (tmp_path / "run").mkdir(mode=0o777)
    os.chmod(tmp_path / "run", 0o777)
    with pytest.raises(lf.SettingsError, match="chmod go-w"):
        lf.Loader(data, 2, cache=lf.Cache("1MiB", share="node"))


def test_pixels_are_kept_once_for_all_where_they_are_asked_for(store):
    def open_data(**options):
        return lf.open(store.s3_url + "/data", store_options=store.store_options, **options)

    def epoch(data, cache):
        store.requests.clear()
        with lf.Loader(data, 10, cache=cache, framework="numpy") as loader:
            pixels = np.concatenate([batch.data.copy() for batch in loader])
        return pixels, objects_read(store)

    small = {"resize": (3, 2)}
    expected = {bool(resize): epoch(open_data(**resize), None)[0] for resize in ({}, small)}
    ways = [({}, "encoded", 1), ({}, "decoded", 1), ({}, "auto", 0), (small, "auto", 1), (small, "decoded", 0)]
    for resize, form, reads in ways:
        # Opening looks at an image or two.
        pixels, objects = epoch(open_data(**resize), lf.Cache("1MiB", form=form, share="node"))
        assert (pixels == expected[bool(resize)]).all(), (resize, form)
        assert (objects >= SAMPLES) if reads else (objects < 5), (resize, form, objects)
    # A sample's tag is 64 bytes, and places begin at multiples of as many.
    encoded = sum(-(-len(png(i)) // 64) * 64 + 64 for i in range(SAMPLES))
    assert listed()["bytes"] == encoded + SAMPLES * (128 + 64) + SAMPLES * (64 + 64)


def test_pictures_with_texts_are_kept_as_the_source_has_them(tmp_path):
    with tarfile.open(tmp_path / "pairs.tar", "w") as shard:
        for i in range(20):
            for ending, body in [("png", png(i)), ("txt", f"text {i}".encode())]:
                member = tarfile.TarInfo(f"{i:02}.{ending}")
                member.size = len(body)
                shard.addfile(member, io.BytesIO(body))
    data = lf.open(str(tmp_path / "pairs.tar"), fields=("png", "txt"), resize=(3, 2), latency=0.001)
    assert data._cache_form("auto") == "decoded", "alone they are kept as pixels"
    for _ in range(2):
        with lf.Loader(data, 5, cache=lf.Cache("1MiB", share="node"), framework="numpy") as loader:
            texts = [text for batch in loader for text in batch.target]
            assert len(texts) == 20
            hits = loader.stats()["node_hits_total"]
    assert hits == 20
    with pytest.raises(lf.SettingsError, match="have more than an image: remove form="):
        lf.Loader(data, 5, cache=lf.Cache("1MiB", form="decoded", share="node"))


def test_an_owner_that_cannot_start_costs_a_warning(store, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    data = lf.open(store.s3_url + "/data", store_options=store.store_options)
    with lf.Loader(data, 10, cache=lf.Cache("1MiB", share="node"), framework="numpy") as loader:
        assert sum(len(batch.ids) for batch in loader) == SAMPLES
    assert any("no owner" in record.getMessage() for record in caplog.records)


def loader(store, size, seed, **given):
    data = lf.open(store.s3_url + "/data", store_options=store.store_options, hedge=False)
    settings = {"num_workers": 1, "framework": "numpy", "job": f"job{seed}", "read_ahead": 4096, "seed": seed}
    return lf.Loader(data, 10, cache=lf.Cache(size, share="node"), **settings, **given)


def epochs_beside(one, other, epochs):
    """Two loaders' epochs, batch by batch: the ids of each."""
    seen = [[], []]
    for _ in range(epochs):
        for ids in seen:
            ids.append([])
        for batches in zip(one, other):
            for ids, batch in zip(seen, batches):
                ids[-1].extend(batch.ids.tolist())
    return seen


def test_jobs_that_leave_their_order_to_the_owner_fetch_for_each_other(store):
    """Two jobs over a cache of a third: each epoch has every sample once, and what one job fetches serves both."""
    read = {}
    for given in ({"shuffle": True}, {"order": "node"}):
        with loader(store, "32KiB", 1, **given) as one, loader(store, "32KiB", 2, **given) as other:
            store.requests.clear()
            seen = epochs_beside(one, other, 3)
        for epochs in seen:
            assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)
            assert epochs[0] != epochs[1] != epochs[2]
        read[next(iter(given))] = objects_read(store)
        os.kill(owner(), signal.SIGKILL)
    # Without a common order each job misses what the cache does not hold; with one, half of it.
    assert read["order"] < 0.65 * read["shuffle"], read


def test_an_order_of_the_owner_goes_on_where_its_state_left_it_and_with_another_owner(store):
    with loader(store, "64MiB", 1, order="node") as first:
        with pytest.raises(lf.UsageError, match="the node cache gives an epoch's order when it begins"):
            list(first.sampler)
        passing = iter(first)
        seen = [next(passing).ids.tolist() for _ in range(7)]
        planned = list(first.sampler)
        state = first.state_dict()
    os.kill(owner(), signal.SIGKILL)
    with loader(store, "64MiB", 1, order="node") as again:
        again.load_state_dict(state)
        seen += [batch.ids.tolist() for batch in again]
        assert sum(seen, []) == planned and sorted(planned) == list(range(SAMPLES))
        os.kill(owner(), signal.SIGKILL)
        assert sorted(sum((batch.ids.tolist() for batch in again), [])) == list(range(SAMPLES))


def test_an_order_of_the_owner_is_for_one_rank(store):
    with pytest.raises(lf.SettingsError, match="with 2 ranks, which share one order anyway: leave order= out"):
        loader(store, "64MiB", 1, order="node", rank=0, world_size=2)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor is never shared")
def test_a_rank_that_waits_uses_processors_that_no_other_rank_wants(tmp_path, monkeypatch):
    """Its part of the processors is one; the other ranks are not there, so they want none."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(len(os.sched_getaffinity(0))))
    (tmp_path / "data" / "one").mkdir(parents=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 48, 3), dtype=np.uint8)).resize((384, 384))
    for k in range(64):
        picture.save(tmp_path / "data" / "one" / f"{k}.jpg")
    data = lf.open(tmp_path / "data", resize=(16, 16))
    with lf.Loader(data, 8, cache=lf.Cache("64MiB", share="node"), framework="numpy") as loader:
        assert sum(len(batch.ids) for batch in loader) == 64
        assert loader.stats()["workers"] == 1
        begun = time.monotonic()
        # From one there is only up.
        while not loader.stats()["workers_changes_total"]:
            assert sum(len(batch.ids) for batch in loader) == 64
            assert time.monotonic() - begun < 300

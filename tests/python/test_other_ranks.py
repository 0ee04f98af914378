"""Runs that go on with another number of ranks, and that are killed: nothing lost, nothing twice, the right bytes."""

import contextlib
import json
import pickle
import random
import select
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

import killed_training
import numpy as np
import pytest
from PIL import Image

import lossfeed as lf
from lossfeed.lightning import Batches

N = 70


@pytest.fixture
def data():
    return np.arange(N, dtype=np.float32), np.arange(N) % 3


def ranks(data, count, batch_size=4, **settings):
    settings = {"seed": 3, "num_workers": 0, "stats": False, **settings}
    return [lf.Loader(data, batch_size, rank=r, world_size=count, **settings) for r in range(count)]


def steps(loaders, most=None):
    """Steps of all ranks together: ids, and the numbers of the batches."""
    ids, numbers = [], []
    passes = [iter(loader) for loader in loaders]
    while most is None or len(numbers) < most:
        batches = [next(one, None) for one in passes]
        if batches[0] is None:
            assert batches == [None] * len(loaders), "ranks step alike"
            break
        for loader, batch in zip(loaders, batches):
            ids += batch.ids.tolist()
            loader.score_losses(1.0 + batch.ids.float() % 7, batch)
        numbers.append({batch.number for batch in batches})
    assert all(len(of) == 1 for of in numbers)
    return ids, [number for of in numbers for number in of]


@pytest.mark.parametrize("order", [{"shuffle": True}, {}, {"sampler": "uniform", "cache": "40%"}], ids=str)
@pytest.mark.parametrize("path", [(2, 3, 1), (1, 2), (4, 1), (3, 2, 4, 1, 2), (2, 2)], ids=str)
def test_rank_0s_state_is_enough_where_orders_follow_from_the_seed(data, path, order):
    seen, state = [], None
    for count in path:
        loaders = ranks(data, count, **order)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        ids, numbers = steps(loaders, 1 if len(path) > 3 else 2)
        seen += ids
        state = pickle.loads(pickle.dumps(loaders[0].state_dict()))
    loaders = ranks(data, count, **order)
    for loader in loaders:
        loader.load_state_dict(state)
    ids, last = steps(loaders)
    assert sorted(seen + ids) == list(range(N))
    assert numbers[-1] + 1 == last[0] and last[-1] + 1 == len(loaders[0]), "batches keep counting"
    fresh = ranks(data, count, **order)
    for loader in fresh:
        loader.set_epoch(1)
    assert steps(loaders)[0] == steps(fresh)[0], "the next epoch is an ordinary one"


@pytest.mark.parametrize("sampler", ["importance", "cost-aware", {"name": "pads", "repeats": 2}, "ods"], ids=str)
def test_the_states_of_all_ranks_are_enough_for_orders_by_score(data, sampler):
    settings = {"sampler": sampler, "cache": "40%"}
    before = ranks(data, 3, **settings)
    steps(before)
    planned = [id for loader in before for id in loader.sampler]
    seen, _ = steps(before, 3)
    states = {"ranks": [loader.state_dict() for loader in reversed(before)]}
    after = ranks(data, 2, 6, **settings)
    for loader in after:
        loader.load_state_dict(states)
    known = after[0].importance()
    for loader in before:
        believed = loader.importance()
        assert (known == believed)[~believed.isnan()].all()
    rest, _ = steps(after)
    assert Counter(seen + rest) == Counter(planned)
    assert [loader.epoch for loader in after] == [2, 2]
    with pytest.raises(lf.SettingsError, match=r"of rank 0 of 3.*Load the states of all 3 ranks.*set_epoch\(2\)"):
        after[0].load_state_dict(before[0].state_dict())
    with pytest.raises(lf.SettingsError, match=r"2 states given, of ranks \[0, 1\] of 3"):
        after[0].load_state_dict({"ranks": [loader.state_dict() for loader in before[:2]]})


def test_torchs_distributed_samplers_are_dealt_anew_too(data):
    torch = pytest.importorskip("torch")

    def made(count):
        given = [torch.utils.data.DistributedSampler(range(N), count, r, seed=4) for r in range(count)]
        loaders = [lf.Loader(data, 4, sampler=s, rank=r, world_size=count, num_workers=0) for r, s in enumerate(given)]
        return given, loaders

    given, before = made(2)
    seen = steps(before, 3)[0]
    after = made(5)[1]
    states = {"ranks": [loader.state_dict() for loader in before]}
    for loader in after:
        loader.load_state_dict(states)
    assert Counter(seen + steps(after)[0]) == Counter(id for sampler in given for id in sampler)
    batches = [[0, 1], [2]]
    two = [lf.Loader(data, batch_sampler=batches, rank=r, world_size=2, num_workers=0) for r in range(2)]
    for loader in two:
        next(iter(loader))
    with pytest.raises(lf.SettingsError, match="and 1 ranks cannot share those batches"):
        lf.Loader(data, batch_sampler=batches, num_workers=0, seed=0).load_state_dict(
            {"ranks": [loader.state_dict() for loader in two]}
        )


def test_what_is_not_delivered_is_said(data):
    before = ranks(data, 2)
    steps(before, 8)  # 6 of 70 are left
    few = ranks(data, 8)[5]
    with pytest.warns(lf.ResumeWarning, match="6 samples of epoch 0 are left, and 8 ranks .*: 6 of them are skipped"):
        few.load_state_dict(before[0].state_dict())
    assert few.epoch == 1
    echo = {"sampler": {"name": "echo", "lag": 16}, "cache": "30%"}
    before = ranks(data, 2, **echo)
    steps(before, 3)
    alone = ranks(data, 1, **echo)[0]
    with pytest.warns(lf.ResumeWarning, match='sampler="echo" depends on the caches of 2 ranks.*epoch 1 comes next'):
        alone.load_state_dict({"ranks": [loader.state_dict() for loader in before]})
    assert len(steps([alone])[0]) == N


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("taken", [0, 2])
def test_a_buffer_that_was_chosen_and_draws_by_score_goes_to_other_ranks(data, count, taken):
    chosen = {"sampler": {"name": "auto", "augmented": True}, "cache": "15%"}
    loaders = ranks(data, 2, **chosen)
    for _ in range(3):
        for loader in loaders:
            for batch in loader:
                assert batch.weight is not None
                loader.score_losses(1.0 + batch.ids.float() % 7, batch)
    if taken:
        steps(loaders, taken)
    states = [loader.state_dict() for loader in loaders]
    others = ranks(data, count, **chosen)
    with pytest.warns(UserWarning, match="depends on the caches of") if taken else contextlib.nullcontext():
        for loader in others:
            loader.load_state_dict({"ranks": states})
    saved = [loader.state_dict() for loader in others]
    again = ranks(data, count, **chosen)
    for loader, state in zip(again, saved):
        loader.load_state_dict(state)
    assert others[0].epoch == 3 + (taken > 0)
    for _ in range(2):
        ids, numbers = steps(others)
        assert (ids, numbers) == steps(again)
        assert len(set(ids)) > N // 4


@pytest.mark.parametrize("augmented", [True, False])
@pytest.mark.parametrize("path", [(4, 3), (3, 2), (2, 1)], ids=str)
def test_a_budget_goes_to_other_ranks(data, augmented, path):
    """Each rank's part of the rows follows from the size of its share, so it is no reason to refuse a state."""
    budget = {"name": "auto", "augmented": augmented, "bytes": N * 12 * 30, "epochs": 90}
    loaders = ranks(data, path[0], sampler=budget, cache=200)
    for _ in range(2):
        steps(loaders)
    states = [loader.state_dict() for loader in loaders]
    others = ranks(data, path[1], sampler=budget, cache=200)
    for loader in others:
        loader.load_state_dict({"ranks": states})
    assert {loader.epoch for loader in others} == {2}
    steps(others)


def test_together_goes_to_any_number_of_ranks(data):
    before = ranks(data, 2, shuffle=True)
    seen = steps(before, 3)[0]
    after = Batches(ranks(data, 1, 8, shuffle=True)[0])
    after.load_state_dict({"ranks": [loader.state_dict() for loader in before]})
    assert sorted(seen + [id for batch in after for id in batch.ids.tolist()]) == list(range(N))
    for wrong in ({"ranks": 3}, {"ranks": [3]}, {"ranks": [{}]}, [], None):
        with pytest.raises(lf.SettingsError, match="pass the result of state_dict"):
            after.load_state_dict(wrong)
    with pytest.raises(lf.SettingsError, match="pass the result of state_dict"):
        after.load_state_dict({"ranks": []})


def test_a_loader_begins_with_the_beliefs_of_its_file_and_says_what_is_wrong_with_it(data, tmp_path):
    path = tmp_path / "scores"

    def made(**settings):
        return lf.Loader(data, 7, **{"shuffle": True, "seed": 1, "num_workers": 0, "score_file": path, **settings})

    with made() as loader:
        for batch in loader:
            loader.score_losses(batch.ids.float(), batch)
        believed = loader.importance()
    assert path.stat().st_mode & 0o777 == 0o600
    with made() as again:
        assert (again.importance() == believed).all() and again.epoch == 0
        assert again.stats()["score_file_failed_total"] == 0
        fresh = lf.Loader(data, 7, shuffle=True, seed=1, num_workers=0).state_dict()
        again.load_state_dict(fresh)
        assert again.importance().isnan().all(), "a state counts more"
        with pytest.raises(lf.UsageError, match="score_file=.*cannot be pickled"):
            pickle.dumps(again)
    whole = path.read_bytes()
    other = data[0] + 1, data[1]
    with pytest.raises(lf.SettingsError, match="belongs to another dataset, of 70 samples"):
        lf.Loader(other, 7, score_file=path)
    path.write_bytes(whole[:-3])
    with pytest.warns(lf.ResumeWarning, match="it is cut off.*the scores in it are not used") as said:
        assert made().importance().isnan().all()
    assert said[0].filename == __file__


def write_pictures(root, count):
    """PNGs of noise in three classes, and the checksum of each by its number."""
    sums = []
    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 256, (6, 5, 3), dtype=np.uint8)
        path = root / f"{i * 3 // count}" / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        sums.append(zlib.crc32(pixels.tobytes()))
    return sums


@pytest.mark.parametrize("seed", [11, 12])
def test_training_that_is_killed_goes_on_with_what_was_left_on_any_number_of_ranks(tmp_path, seed):
    rng = random.Random(seed)
    count = 90
    sums = write_pictures(tmp_path / "data", count)
    program = str(Path(killed_training.__file__))
    kills = 0
    for _ in range(40):
        life = rng.randrange(1, 4), rng.randrange(1, 5), rng.random() < 0.5
        command = [sys.executable, program, str(tmp_path), json.dumps(life)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        killed = kills < 6
        if killed:
            # Of any moment: now and then in imports and opening, mostly among the batches.
            select.select([child.stdout], [], [], rng.uniform(0.0, 0.5) if rng.random() < 0.2 else 120.0)
            time.sleep(rng.uniform(0.0, 0.15))
            child.send_signal(signal.SIGKILL)
            kills += 1
        out, err = child.communicate(timeout=240)
        assert child.returncode in ((0, -signal.SIGKILL) if killed else (0,)), err.decode()[-3000:]
        if out.endswith(b"e"):
            break
    else:
        raise AssertionError("no life came to its end")
    _, log = killed_training.saved(tmp_path)
    for epoch in range(killed_training.EPOCHS):
        rows = [row for row in log if row[0] == epoch]
        times = Counter(id for row in rows for id in row[2])
        assert max(times.values()) == 1, f"epoch {epoch}: {times.most_common(3)}"
        # Two ranks may leave one sample, three two, where they come to an epoch's very end.
        missing = count - len(times)
        assert missing < rows[-1][1], f"epoch {epoch}: {missing} are missing"
        assert all(sums[id] == total for row in rows for id, total in zip(row[2], row[3])), "a wrong byte"
    # The disk tier is warm, and the file of scores whole.
    data = lf.open(tmp_path / "data", latency=0.0002, disk=tmp_path / "tier", disk_bytes="64MiB")
    with lf.Loader(data, 9, num_workers=0, score_file=tmp_path / "scores-{rank}") as loader:
        assert not loader.importance().isnan().all()
        for batch in loader:
            assert [zlib.crc32(row.numpy().tobytes()) for row in batch.data] == [sums[id] for id in batch.ids.tolist()]
        numbers = loader.stats()
    assert numbers["disk_hits_total"] > count // 2 and numbers["disk_damaged_total"] == 0, numbers

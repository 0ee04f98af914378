"""Ranks that exchange what they learn: one order together, and what goes wrong goes wrong on all of them."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import lossfeed as lf

SAMPLES = 96

RANK = """
import sys, numpy as np, torch.distributed as dist, lossfeed as lf
from datetime import timedelta
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=120))
ids = np.arange(96)
data = (ids.astype(np.float32), ids)

def loader(**settings):
    usual = {"sampler": "importance", "ranks": "exchange", "num_workers": 0, "seed": 5}
    usual |= {"score": "loss", "smoothing": 0.0}
    return lf.Loader(data, 8, **{**usual, **settings})

def losses(ids, epoch):
    return ((ids * 37) % 11 + epoch + 1).astype(np.float32)

def epoch(loader, number, most=None):
    loader.set_epoch(number)
    rows = []
    for batch in loader:
        of = np.asarray(batch.ids)
        rows += list(zip(of.tolist(), np.asarray(batch.weight).tolist()))
        loader.score_losses(losses(of, number), batch)
        if len(rows) == most:
            break
    return rows

def beliefs(loader):
    return np.asarray(loader.importance()).tolist()
"""


def run_two(tmp_path, body):
    """Two processes that run `body` as ranks 0 and 1; what they print. One that waits for the other in vain fails."""
    code = RANK + textwrap.dedent(body) + "\ndist.destroy_process_group()\n"
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    return [[eval(line) for line in lines.splitlines()] for lines in said]


def alone(epochs):
    """What one rank draws that exchanges with nobody, and what it believes at the end."""
    ids = np.arange(SAMPLES)
    options = {"sampler": "importance", "num_workers": 0, "seed": 5, "score": "loss", "smoothing": 0.0}
    loader = lf.Loader((ids.astype(np.float32), ids), 16, ranks="exchange", rank=0, world_size=1, **options)
    drawn = []
    for epoch in range(epochs):
        drawn.append([])
        for batch in loader:
            of = np.asarray(batch.ids)
            drawn[-1] += list(zip(of.tolist(), np.asarray(batch.weight).tolist(), strict=True))
            loader.score_losses(((of * 37) % 11 + epoch + 1).astype(np.float32), batch)
    loader.exchange()
    return drawn, np.asarray(loader.importance()).tolist()


def test_two_ranks_draw_the_order_that_one_would_and_take_its_rows_in_turn(tmp_path):
    first, second = run_two(
        tmp_path,
        """
        shared = loader()
        for number in range(4):
            print(epoch(shared, number))
        before = beliefs(shared)
        shared.exchange()
        print(beliefs(shared))
        assert before != beliefs(shared), "the other rank's scores"
        """,
    )
    expected, believed = alone(4)
    for number in range(4):
        together = [row for pair in zip(first[number], second[number], strict=True) for row in pair]
        assert together == expected[number], f"epoch {number}"
    assert first[4] == second[4] == believed
    delivered = [{row[0] for epoch in rank[:4] for row in epoch} for rank in (first, second)]
    assert len(delivered[0] & delivered[1]) > SAMPLES // 2, "samples belong to no rank"


def test_resumed_ranks_go_on_as_if_nothing_had_been(tmp_path):
    first, second = run_two(
        tmp_path,
        """
        whole, halved = loader(), loader()
        expected = [epoch(whole, number) for number in range(4)]
        seen = [epoch(halved, 0), epoch(halved, 1, 24)]
        resumed = loader()
        resumed.load_state_dict(halved.state_dict())
        seen[1] += epoch(resumed, 1)
        seen += [epoch(resumed, 2), epoch(resumed, 3)]
        print(seen == expected)
        """,
    )
    assert first == second == [True]


def test_ranks_that_disagree_are_refused_on_both_with_what_differs_and_nobody_hangs(tmp_path):
    first, second = run_two(
        tmp_path,
        """
        def refused(loader):
            try:
                next(iter(loader))
            except lf.Error as error:
                print((type(error).__name__, str(error)))
                return
            print("not refused")
        refused(loader(seed=5 + rank))
        refused(loader(sampler="importance" if rank == 0 else "iis"))
        fewer = ids[: 96 - 8 * rank]
        refused(lf.Loader((fewer.astype(np.float32), fewer), 8, sampler="importance", ranks="exchange"))
        later = loader()
        later.set_epoch(3 * rank)
        refused(later)
        closed = loader()
        if rank == 1:
            closed.close()
            try:
                closed.exchange()
            except lf.UsageError as error:
                print((type(error).__name__, str(error)))
        else:
            refused(closed)
        refused(loader(rank=0, world_size=2) if rank else loader())
        """,
    )
    assert [kind for kind, _ in first] == ["SettingsError"] * 4 + ["UsageError", "SettingsError"]
    assert [kind for kind, _ in second][:4] == ["SettingsError"] * 4
    told = [text for _, text in first]
    expected = (
        "seed is 5 on rank 0 and 6 on rank 1",
        "sampler.name is",
        "samples is 96 on rank 0 and 88",
        "epoch is 0 on rank 0 and 3",
        "process 1: this loader is closed",
        "have ranks [0, 0]",
    )
    assert all(part in text for part, text in zip(expected, told, strict=True)), told
    assert [text for _, text in second][:4] == told[:4], "both are told the same"


def test_without_a_process_group_two_ranks_are_refused_and_one_is_not(numbers):
    with pytest.raises(lf.UsageError, match="init_process_group"):
        next(iter(lf.Loader(numbers, 8, sampler="importance", ranks="exchange", rank=0, world_size=2)))
    assert len(list(lf.Loader(numbers, 8, sampler="importance", ranks="exchange", rank=0, world_size=1))) == 8
    with pytest.raises(lf.UsageError, match="exchange"):
        lf.Loader(numbers, 8).exchange()


def test_every_sampler_draws_over_the_whole_dataset_in_equal_steps(tmp_path):
    """Each rank has room for a quarter of the samples. Bounds that only a wrong weight or share can leave: weights of
    an epoch are 1/(N q) over systematic draws, so their mean is near 1."""
    body = """
    epochs = 7
    pixels = lf.ImageTransform(flip=0.5)
    pictures = np.repeat(ids.astype(np.uint8), 12).reshape(96, 2, 2, 3), ids
    def rows_of(sampler, **more):
        made = loader(sampler=sampler, cache=0.25, **more)
        return made, [epoch(made, number) for number in range(epochs)]
    replay = {"name": "replay", "lag": 3}
    for sampler in ("uniform", "ods", "cost-aware", "pads", {"name": "pads", "corrected": True}, "importance", replay,
                    {"name": "echo", "lag": 3}):
        made, rows = rows_of(sampler)
        print([sampler, rows, made.stats()["hits_total"]])
    def chosen(epochs, **more):
        made = lf.Loader(pictures, 8, ranks="exchange", num_workers=0, seed=5, cache=0.25, sampler="auto", **more)
        weighted = []
        for number in range(epochs):
            made.set_epoch(number)
            weights = []
            for batch in made:
                # Rank 1's loop looks at weights from epoch 2 on, rank 0's from epoch 4 on.
                if number >= 4 - 2 * rank:
                    weights += np.asarray(batch.weight).tolist()
                made.score_losses(losses(np.asarray(batch.target), number), batch)
            weighted.append(len(set(weights)) > 1)
        return weighted
    print([chosen(6), chosen(14, transform=pixels)])
    """
    one, other = run_two(tmp_path, body)
    hits = {}
    for (sampler, rows, hit), (_, other_rows, other_hit) in zip(one[:-1], other[:-1], strict=True):
        name = sampler if isinstance(sampler, str) else sampler["name"]
        hits[str(sampler)] = hit + other_hit
        for number, (mine, others) in enumerate(zip(rows, other_rows, strict=True)):
            assert len(mine) == len(others) == SAMPLES // 2, (sampler, number)
            drawn = sorted(id for id, _ in mine + others)
            mean = sum(weight for _, weight in mine + others) / SAMPLES
            if name in ("uniform", "ods") or number == 0 and name not in ("replay", "echo"):
                assert drawn == list(range(SAMPLES)), (sampler, number)
            if name != "pads" or sampler != "pads":
                assert abs(mean - 1) < 0.35, (sampler, number, mean)
            if name in ("replay", "echo"):
                # Two buffers of 24: used again, so an epoch has less than everything once both are full.
                assert number == 0 or len(set(drawn)) < SAMPLES, (sampler, number)
        met = {id for epoch in rows for id, _ in epoch}, {id for epoch in other_rows for id, _ in epoch}
        assert len(met[0] | met[1]) == SAMPLES and len(met[0] & met[1]) > SAMPLES // 4, (sampler, "no owned shares")
    # Half of all samples are in one of the two caches, and draws go where they are: at least 40 of 48 in 6 epochs.
    assert hits["uniform"] >= 6 * 40 and hits["ods"] >= 6 * 40 and hits["cost-aware"] > hits["uniform"], hits
    # Rank 0's weights are read from epoch 4 on: both draw by weight from epoch 5 on, and neither does before. What is
    # drawn again (the transform draws by chance) has weights 64 batches later.
    for mine, others in zip(one[-1], other[-1], strict=True):
        assert mine[:5] == others[:5] == [False] * 5 and mine[-1] and others[-1], (mine, others)


def test_another_word_is_refused(numbers):
    with pytest.raises(lf.SettingsError, match="ranks='all' is unknown: use own or exchange"):
        lf.Loader(numbers, 8, ranks="all")


def test_short_epochs_are_trimmed_to_equal_steps_of_all_ranks(tmp_path):
    body = """
    short = loader(sampler={"name": "selective", "stale": 100, "short": True})
    for number in range(4):
        rows = epoch(short, number)
        print([number, short.stats()["batches_per_epoch"], [id for id, _ in rows]])
    """
    one, other = run_two(tmp_path, body)
    for (number, steps, ids), (_, other_steps, other_ids) in zip(one, other, strict=True):
        assert steps == other_steps and len(ids) == len(other_ids)
        assert not set(ids) & set(other_ids) and len({*ids, *other_ids}) == 2 * len(ids)
        assert len(ids) == 48 if number == 0 else 2 < len(ids) < 40

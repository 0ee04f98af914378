"""lf.Loader: who is delivered, how often, with what weight, and where scores go."""

import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
from conftest import epoch_ids, logits_with_loss

import lossfeed as lf


# ---- what a batch is -------------------------------------------------------------------------------------------------


def test_a_batch_carries_its_samples_targets_ids_and_weights(numbers):
    x, y = numbers
    loader = lf.Loader((x, y), batch_size=10, seed=3)
    seen = 0
    for number, batch in enumerate(loader):
        assert (batch.number, batch.epoch) == (number, 0)
        assert batch.data.dtype == torch.float32 and batch.target.dtype == torch.int64
        assert batch.ids.dtype == torch.int64 and batch.weight.dtype == torch.float32
        assert batch.data.shape == (len(batch), 3) and batch.weight.shape == (len(batch),)
        np.testing.assert_array_equal(batch.data.numpy(), x[batch.ids.numpy()])
        np.testing.assert_array_equal(batch.target.numpy(), y[batch.ids.numpy()])
        a, b = batch
        assert a is batch.data and b is batch.target and batch.pin_memory() is batch
        seen += len(batch)
    assert seen == len(x) and len(loader) == number + 1 == 7


def test_numpy_users_get_arrays_and_torch_is_never_imported(tmp_path):
    script = textwrap.dedent(
        """
        import sys, numpy as np, lossfeed as lf
        x, y = np.arange(12, dtype=np.uint16), np.zeros(12, np.int64)
        try:
            lf.Loader((x, y))
            raise SystemExit("uint16 cannot travel")
        except lf.SettingsError as e:
            assert "uint16" in str(e)
        with lf.Loader((x.astype(np.int32), y), batch_size=4, seed=1) as loader:
            for batch in loader:
                assert type(batch.data) is np.ndarray and batch.data.dtype == np.int32
                loader.score(np.zeros((4, 3), np.float32), batch)
            assert type(loader.importance()) is np.ndarray and not np.isnan(loader.importance()).any()
        assert "torch" not in sys.modules
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_importing_lossfeed_imports_neither_torch_nor_numpy():
    script = "import sys, lossfeed; assert not {'torch', 'numpy', 'PIL'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_every_dtype_travels_unchanged(dtype):
    kind = getattr(torch, dtype)
    x = (torch.randn(9, 2, 3) * 5).to(kind)
    y = torch.arange(9).to(torch.int32).reshape(9, 1)
    for batch in lf.Loader((x, y), batch_size=4):
        assert batch.data.dtype == kind and batch.target.dtype == torch.int32
        assert torch.equal(batch.data, x[batch.ids]) and torch.equal(batch.target, y[batch.ids])


def test_views_share_the_slot_stay_valid_while_held_and_give_it_back(numbers):
    loader = lf.Loader(numbers, batch_size=4, num_workers=1, prefetch_factor=1, max_slots=12)
    it = iter(loader)
    batch = next(it)
    addresses = [t.untyped_storage().data_ptr() for t in (batch.data, batch.target, batch.ids, batch.weight)]
    assert sorted(addresses) == addresses and addresses[-1] - addresses[0] < 4096, "one slot, no copies"
    kept, ids = batch.data[1:, :1], batch.ids.clone()
    expected = kept.clone()
    del batch
    gc.collect()
    lent = loader.stats()["slots_lent"]
    for other in it:
        other.data.fill_(-1.0)
    del other
    gc.collect()
    assert lent >= 1 and torch.equal(kept, expected), "a view of a view keeps the slot from being reused"
    assert torch.equal(kept[:, 0], ids[1:].float())
    thread = threading.Thread(target=lambda held: held.clear(), args=([kept],))
    del kept
    thread.start()
    thread.join()
    for _ in range(3):
        assert len(epoch_ids(loader)) == 16, "every slot came back: the pool is large enough again"


def test_holding_every_slot_is_a_named_error_and_letting_go_heals_it(numbers):
    loader = lf.Loader(numbers, batch_size=4, num_workers=1, prefetch_factor=1, max_slots=5)
    held = []
    with pytest.raises(lf.MemoryLimitError, match="max_slots"):
        for batch in loader:
            held.append(batch)
    assert len(held) >= 3
    held.clear()
    del batch
    assert sum(len(ids) for ids in epoch_ids(loader)) == 64


def test_batches_outlive_their_loader(numbers):
    loader = lf.Loader(numbers, batch_size=8)
    batch = next(iter(loader))
    expected = numbers[0][batch.ids.numpy()]
    loader.close()
    del loader
    gc.collect()
    np.testing.assert_array_equal(batch.data.numpy(), expected)


# ---- exactly once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_uniform_delivers_every_id_exactly_once_an_epoch(ranks, workers, drop_last):
    n, batch_size = 53, 4
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, dtype=np.int64)
    for epoch in range(2):
        per_rank = []
        for rank in range(ranks):
            loader = lf.Loader((x, y), batch_size, num_workers=workers, drop_last=drop_last, seed=5, rank=rank, world_size=ranks)
            loader.set_epoch(epoch)
            per_rank.append(epoch_ids(loader))
            assert len(per_rank[-1]) == len(loader)
            loader.close()
        assert len({len(batches) for batches in per_rank}) == 1, "every rank has equally many batches"
        ids = np.concatenate([i for batches in per_rank for i in batches])
        assert len(set(ids.tolist())) == len(ids)
        if drop_last:
            assert len(ids) == n // (ranks * batch_size) * ranks * batch_size
        else:
            assert sorted(ids.tolist()) == list(range(n))


@pytest.mark.parametrize("sampler", ["uniform", "cost-aware", "importance", "pads"])
def test_one_seed_gives_one_order_whatever_the_number_of_workers(numbers, sampler):
    def orders(workers):
        with lf.Loader(numbers, 8, sampler=sampler, num_workers=workers, seed=11, cache="30%") as loader:
            return [np.concatenate(epoch_ids(loader)).tolist() for _ in range(2)]

    assert orders(0) == orders(1) == orders(3)


def test_epochs_differ_advance_by_themselves_and_can_be_chosen(numbers):
    loader = lf.Loader(numbers, 16, seed=1)
    first, second = (np.concatenate(epoch_ids(loader)).tolist() for _ in range(2))
    assert first != second and loader.epoch == 2
    loader.set_epoch(0)
    assert np.concatenate(epoch_ids(loader)).tolist() == first
    assert loader.epoch == 1


def test_shuffle_false_walks_the_ids_in_order(numbers):
    loader = lf.Loader(numbers, 16, shuffle=False)
    assert np.concatenate(epoch_ids(loader)).tolist() == list(range(64))


# ---- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", ["uniform", "cost-aware", "importance", {"name": "pads", "repeats": 2}])
def test_resuming_at_every_step_delivers_exactly_the_rest(sampler, workers):
    n = 30
    data = (np.arange(n, dtype=np.float32), np.zeros(n, dtype=np.int64))

    def make():
        return lf.Loader(data, 4, sampler=sampler, num_workers=workers, seed=2, cache="40%")

    def train(loader, epochs, stop=None):
        """Runs `epochs` epochs, scoring; returns the ids in order and the state after batch `stop`."""
        ids = []
        for _ in range(epochs):
            for batch in loader:
                loader.score_losses(1.0 + batch.ids.float() % 7, batch)
                ids.append(batch.ids.tolist())
                if stop is not None and len(ids) == stop:
                    return ids, loader.state_dict()
        return ids, loader.state_dict()

    probe = make()
    steps = 2 * len(probe)
    for stop in range(1, steps + 1):
        loader = make()
        before, state = train(loader, 2, stop)
        # The rest of the epoch, from the very same loader: what an uninterrupted run would have delivered.
        resumed = make()
        resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
        np.testing.assert_array_equal(resumed.importance().numpy(), loader.importance().numpy())
        in_epoch = stop % len(probe)
        if in_epoch == 0:
            assert resumed.epoch == stop // len(probe)
            continue
        rest = [ids.tolist() for ids in epoch_ids(resumed)]
        assert len(rest) == len(probe) - in_epoch
        epoch = before[stop - in_epoch :] + rest
        assert sum(map(len, epoch)) == n
        if sampler == "uniform" or stop <= len(probe):
            assert sorted(i for batch in epoch for i in batch) == list(range(n)), "no sample lost or doubled"
        untouched = make()
        again, _ = train(untouched, 2)
        start = stop - in_epoch
        if workers == 0:
            assert [b for b in again[start : start + len(probe)]] == epoch, "the resumed epoch is the uninterrupted one"
        for l in (loader, resumed, untouched):
            l.close()


def test_a_state_survives_torch_save_with_weights_only(numbers, tmp_path):
    loader = lf.Loader(numbers, 8)
    it = iter(loader)
    first = [next(it).ids.tolist() for _ in range(3)]
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    resumed = lf.Loader(numbers, 8)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    rest = [ids.tolist() for ids in epoch_ids(resumed)]
    assert sorted(sum(first + rest, [])) == list(range(64))


def test_a_state_of_another_run_is_refused_with_the_difference(numbers):
    state = lf.Loader(numbers, 8).state_dict()
    with pytest.raises(lf.SettingsError, match="batch_size 8, this loader has 16"):
        lf.Loader(numbers, 16).load_state_dict(state)
    with pytest.raises(lf.SettingsError, match="no loader state"):
        lf.Loader(numbers, 8).load_state_dict({"epoch": 1})
    with pytest.raises(lf.Error):
        lf.Loader(numbers, 8).load_state_dict({"version": 1, "engine": b"noise"})
    with pytest.raises(lf.SettingsError, match="version"):
        lf.Loader(numbers, 8).load_state_dict({"version": 99, "engine": state["engine"]})


# ---- scores ----------------------------------------------------------------------------------------------------------


def spearman(a, b):
    ranks = [np.argsort(np.argsort(v)) for v in (a, b)]
    return np.corrcoef(*ranks)[0, 1]


@pytest.mark.parametrize("sampler,policy", [("uniform", "minio"), ("cost-aware", None), ("importance", None), ("pads", "shade")])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_planted_difficulty_comes_back_by_id_and_permuted_ids_do_not_pass(sampler, policy, workers):
    n, ranks, classes = 400, 2, 4
    rng = np.random.default_rng(0)
    difficulty = rng.permutation(np.linspace(0.05, 3.0, n))
    x, y = np.arange(n, dtype=np.float32)[:, None], rng.integers(classes, size=n)

    def recovered(permute):
        found = np.full(n, np.nan)
        for rank in range(ranks):
            loader = lf.Loader(
                (x, y), 20, sampler=sampler, policy=policy, num_workers=workers, cache="20%", seed=9, rank=rank, world_size=ranks, score="loss"
            )
            for _ in range(3):
                for batch in loader:
                    ids = batch.ids.numpy()
                    np.testing.assert_array_equal(batch.data.numpy()[:, 0], ids)
                    # The run that must fail credits each row's difficulty to another sample of the batch.
                    planted = difficulty[np.roll(ids, 1)] if permute else difficulty[ids]
                    loader.cross_entropy(logits_with_loss(planted, classes, batch.target.numpy()), batch)
            importance = loader.importance().numpy()
            seen = ~np.isnan(importance)
            found[seen] = importance[seen]
            loader.close()
        seen = ~np.isnan(found)
        assert seen.mean() > 0.9
        return spearman(found[seen], difficulty[seen])

    assert recovered(permute=False) >= 0.95
    assert recovered(permute=True) < 0.95


def test_the_three_ways_in_agree(numbers):
    logits_of = lambda batch: torch.sin(batch.data.repeat(1, 2)[:, :4] + batch.target[:, None])  # noqa: E731
    results = []
    for way in ("score", "cross_entropy", "losses"):
        loader = lf.Loader(numbers, 8, seed=4, score="loss")
        for batch in loader:
            logits = logits_of(batch)
            if way == "score":
                loader.score(logits, batch)
            elif way == "cross_entropy":
                loader.cross_entropy(logits, batch)
            else:
                loader.score_losses(torch.nn.functional.cross_entropy(logits, batch.target, reduction="none"), batch)
        results.append(loader.importance().numpy())
    np.testing.assert_allclose(results[0], results[1])
    np.testing.assert_allclose(results[0], results[2], rtol=1e-5, atol=1e-6)


def test_logits_over_positions_score_a_sample_by_the_mean_over_those_that_count():
    n, classes, length = 12, 5, 6
    x = torch.randn(n, classes, length)
    y = torch.randint(classes, (n, length))
    y[:, 4:] = -100
    y[3] = -100
    losses = torch.nn.functional.cross_entropy(x, y, reduction="none")[:, :4].mean(1)
    for kind in ("cross_entropy", "score", "numpy"):
        loader = lf.Loader((x, y), 4, score="loss")
        for batch in loader:
            if kind == "cross_entropy":
                loader.cross_entropy(batch.data, batch)
            elif kind == "score":
                loader.score(batch.data, batch)
            else:
                loader.score(batch.data.numpy(), batch)
        importance = loader.importance()
        assert torch.isnan(importance[3]), "a sample without a position that counts has no score"
        keep = torch.arange(n) != 3
        torch.testing.assert_close(importance[keep], losses[keep])
        assert loader.stats()["scores_unranked_total"] == 1


def test_a_batch_is_scored_once_and_repeats_are_counted(numbers):
    loader = lf.Loader(numbers, 16, score="loss")
    batch = next(iter(loader))
    loader.score_losses(torch.ones(16), batch)
    before = loader.importance()
    loss = loader.cross_entropy(torch.randn(16, 4), batch)
    loader.score(torch.randn(16, 4), batch)
    assert torch.isfinite(loss)
    assert torch.equal(before.nan_to_num(-1), loader.importance().nan_to_num(-1))
    stats = loader.stats()
    assert stats["scores_repeated_total"] == 2 and stats["scores_total"] == 16


def test_losses_that_are_no_numbers_are_no_scores(numbers):
    loader = lf.Loader(numbers, 8, score="loss")
    batch = next(iter(loader))
    losses = torch.arange(8.0)
    losses[2], losses[5] = float("nan"), float("inf")
    loader.score_losses(losses, batch)
    importance = loader.importance()[batch.ids]
    assert torch.isnan(importance).tolist() == [False, False, True, False, False, True, False, False]
    assert loader.stats()["scores_unranked_total"] == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_logits_of_any_float_type_score(numbers, dtype):
    loader = lf.Loader(numbers, 8, score="loss")
    batch = next(iter(loader))
    logits = torch.randn(8, 4).to(dtype)
    loss = loader.cross_entropy(logits, batch)
    assert loss.dtype == dtype
    expected = torch.nn.functional.cross_entropy(logits.float(), batch.target, reduction="none")
    torch.testing.assert_close(loader.importance()[batch.ids], expected, rtol=1e-4, atol=1e-4)


# ---- the weighted loss -----------------------------------------------------------------------------------------------


def reference_loss(logits, target, w, weight, ignore_index, reduction, smoothing):
    rows = torch.nn.functional.cross_entropy(
        logits, target, weight=weight, ignore_index=ignore_index, reduction="none", label_smoothing=smoothing
    )
    valid = target != ignore_index
    share = valid.to(rows.dtype) if weight is None else torch.where(valid, weight[target.clamp(min=0)], 0.0)
    w = w.reshape(-1, *[1] * (rows.dim() - 1))
    if reduction == "none":
        return rows * w
    return (rows * w).sum() / (share.sum() if reduction == "mean" else 1.0)


@pytest.mark.parametrize("shape", [(8, 4), (8, 4, 3)], ids=str)
def test_the_loaders_cross_entropy_weighs_rows_and_averages_over_those_that_count(shape):
    x = torch.randn(64, *shape[1:])
    y = torch.randint(4, (64, *shape[2:]))
    y.view(-1)[::5] = 1
    for reduction, smoothing, weighted, ignore in itertools.product(["mean", "sum", "none"], [0.0, 0.1], [False, True], [-100, 1]):
        loader = lf.Loader((x, y), 8, num_workers=0)
        batch = next(iter(loader))
        batch.weight.copy_(torch.linspace(0.5, 2.0, 8))
        logits = torch.randn(shape, requires_grad=True)
        weight = torch.rand(4) + 0.5 if weighted else None
        keywords = dict(weight=weight, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing)
        found = loader.cross_entropy(logits, batch, **keywords)
        wanted = reference_loss(logits, batch.target, batch.weight, weight, ignore, reduction, smoothing)
        torch.testing.assert_close(found, wanted)
        seed = torch.ones_like(found)
        torch.testing.assert_close(
            torch.autograd.grad(found, logits, seed)[0], torch.autograd.grad(wanted, logits, seed)[0], rtol=1e-4, atol=1e-6
        )
        plain = loader.cross_entropy(logits, batch, weighted=False, **keywords)
        torch.testing.assert_close(plain, torch.nn.functional.cross_entropy(logits, batch.target, **keywords))


def test_probability_targets_and_other_targets_than_the_batchs_work(numbers):
    loader = lf.Loader(numbers, 8, score="loss")
    it = iter(loader)
    batch, logits = next(it), torch.randn(8, 4)
    soft = torch.rand(8, 4).softmax(1)
    found = loader.cross_entropy(logits, batch, target=soft)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, soft))
    expected = torch.nn.functional.cross_entropy(logits, soft, reduction="none")
    torch.testing.assert_close(loader.importance()[batch.ids], expected)
    batch = next(it)
    other = (batch.target + 1) % 4
    loader.cross_entropy(logits, batch, target=other)
    expected = torch.nn.functional.cross_entropy(logits, other, reduction="none")
    torch.testing.assert_close(loader.importance()[batch.ids], expected)


@pytest.mark.parametrize("sampler", ["uniform", {"name": "uniform", "replacement": True}, "importance", "cost-aware", {"name": "pads", "corrected": True, "repeats": 1.5}], ids=str)
def test_weighted_means_are_unbiased_for_every_sampler_that_says_so(sampler):
    n, epochs = 200, 60
    rng = np.random.default_rng(3)
    value = rng.normal(2.0, 1.0, n)
    difficulty = np.exp(rng.normal(0.0, 1.0, n)) + 0.5 * value
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, dtype=np.int64)
    loader = lf.Loader((x, y), 20, sampler=sampler, cache="20%", seed=21, num_workers=1, score="loss")
    means, skewed = [], []
    for epoch in range(epochs):
        weighted, plain, count = 0.0, 0.0, 0
        for batch in loader:
            ids, w = batch.ids.numpy(), batch.weight.numpy().astype(np.float64)
            weighted += (w * value[ids]).sum()
            plain += value[ids].sum()
            count += len(ids)
            loader.score_losses(torch.from_numpy(np.abs(difficulty[ids])), batch)
        if epoch > 0:
            means.append(weighted / count)
            skewed.append(plain / count)
    means, skewed = np.array(means), np.array(skewed)
    error = means.std(ddof=1) / np.sqrt(len(means)) + 1e-6
    assert abs(means.mean() - value.mean()) < 4 * error, (means.mean(), value.mean(), error)
    if sampler in ("importance", "cost-aware"):
        bias = skewed.std(ddof=1) / np.sqrt(len(skewed)) + 1e-6
        assert abs(skewed.mean() - value.mean()) > 4 * bias, "without weights it would be biased, so the weights did the work"


# ---- iterators -------------------------------------------------------------------------------------------------------


def test_a_second_iterator_ends_the_first_with_a_clear_error(numbers):
    loader = lf.Loader(numbers, 8)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(lf.UsageError, match="one pass at a time"):
        next(first)
    assert len(list(second)) == 8


def test_dropping_an_iterator_in_mid_epoch_stops_its_work_and_the_next_epoch_is_whole(numbers):
    before = worker_threads()
    loader = lf.Loader(numbers, 4, num_workers=2, stats=False)
    for _ in range(20):
        for batch in loader:
            break
        del batch
    assert sorted(np.concatenate(epoch_ids(loader)).tolist()) == list(range(64))
    deadline = time.monotonic() + 20
    while worker_threads() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert worker_threads() <= before, "workers of dropped passes end"


def worker_threads():
    return sum(name.startswith("lossfeed-") for name in thread_names())


def thread_names():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as f:
                names.append(f.read().strip())
        except FileNotFoundError:
            pass
    return names


def test_an_exhausted_iterator_stays_exhausted(numbers):
    it = iter(lf.Loader(numbers, 32))
    assert len(list(it)) == 2 and list(it) == []


def test_a_closed_loader_says_so_and_closing_twice_is_fine(numbers):
    with lf.Loader(numbers, 8) as loader:
        it = iter(loader)
        batch = next(it)
    loader.close()
    for call in (lambda: iter(loader), lambda: next(it), loader.stats, loader.importance, loader.state_dict, lambda: loader.set_epoch(1), lambda: loader.score_losses(torch.ones(8), batch)):
        with pytest.raises(lf.UsageError, match="closed"):
            call()
    assert "closed" in repr(loader)


def test_loaders_are_freed_with_their_last_reference(numbers):
    import weakref

    before = worker_threads()
    loader = lf.Loader(numbers, 8, num_workers=2, stats=False)
    it = iter(loader)
    next(it)
    gone = weakref.ref(loader)
    del loader, it
    gc.collect()
    assert gone() is None
    deadline = time.monotonic() + 20
    while worker_threads() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert worker_threads() <= before


class Slow(torch.utils.data.Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i > 0 or threading.current_thread() is not threading.main_thread():
            time.sleep(self.seconds)
        return np.float32(i), i


def test_a_batch_that_is_late_is_a_timeout_and_may_still_come():
    loader = lf.Loader(Slow(0.6), 1, timeout=0.1, num_workers=1)
    it = iter(loader)
    with pytest.raises(lf.TimeoutError, match="timeout=0.1"):
        next(it)
    batch, deadline = None, time.monotonic() + 30
    while batch is None and time.monotonic() < deadline:
        try:
            batch = next(it)
        except TimeoutError:
            pass
    assert batch is not None and len(batch) == 1


def test_ctrl_c_ends_a_wait_and_the_process():
    script = textwrap.dedent(
        """
        import time, numpy as np, lossfeed as lf
        class Stuck:
            def __len__(self): return 4
            def __getitem__(self, i):
                import threading
                if threading.current_thread() is not threading.main_thread(): time.sleep(2)
                return np.float32(i), i
        loader = lf.Loader(Stuck(), 2, num_workers=1)
        print("waiting", flush=True)
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out == "interrupted\n" and process.returncode == 0


@pytest.mark.parametrize("dropped", [False, True])
def test_exit_in_mid_epoch_with_a_python_dataset_neither_hangs_nor_crashes(dropped):
    script = textwrap.dedent(
        f"""
        import time, numpy as np, lossfeed as lf
        class Set:
            def __len__(self): return 5000
            def __getitem__(self, i):
                time.sleep(0.01)
                return np.zeros(64, np.float32), i
        loader = lf.Loader(Set(), 8, num_workers=3)
        it = iter(loader)
        kept = [next(it) for _ in range(3)]
        if {dropped}:
            del loader, it
        """
    )
    process = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert process.returncode == 0 and process.stderr == ""


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_is_refused_and_leaves_the_parent_alone(numbers):
    loader = lf.Loader(numbers, 8, num_workers=2)
    it = iter(loader)
    batch = next(it)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = []
        for call in (lambda: next(it), loader.stats, loader.importance, lambda: loader.score_losses(torch.ones(8), batch), lambda: iter(loader)):
            try:
                call()
                answer.append("no error")
            except lf.UsageError as error:
                answer.append("refused" if "fork" in str(error) else str(error))
            except BaseException as error:  # noqa: BLE001
                answer.append(repr(error))
        loader.close()
        del it, batch, loader
        gc.collect()
        os.write(write, "|".join(answer).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "|".join(["refused"] * 5)
    assert status == 0
    assert sum(len(b) for b in it) == 56 and len(batch) == 8


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_the_cache_never_exceeds_its_limit_by_its_own_count(numbers):
    n = 300
    x = np.random.default_rng(0).integers(0, 255, (n, 40, 40, 3), dtype=np.uint8)
    y = np.zeros(n, dtype=np.int64)
    for policy in ("lru", "fifo", "minio", "shade", "importance"):
        limit = 500_000
        loader = lf.Loader((x, y), 16, cache=limit, policy=policy, num_workers=3, seed=1)
        for _ in range(3):
            for batch in loader:
                loader.score_losses(torch.rand(len(batch)), batch)
                stats = loader.stats()
                assert stats["cache_bytes"] <= limit and stats["arena_used_bytes"] <= limit, policy
        assert stats["residents"] > 80 and stats["hits_total"] > 0, policy
        assert stats["hits_total"] + stats["misses_total"] == stats["requests_total"] == 3 * n
        loader.close()


def test_the_process_grows_by_the_cache_and_not_beyond_it():
    script = textwrap.dedent(
        """
        import os, numpy as np, torch, lossfeed as lf

        def rss():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        n, side, mib = 4000, 16384, 2**20
        class Rows:                       # 4000 × 16 KiB = 62.5 MiB, made on demand
            def __len__(self): return n
            def __getitems__(self, ids): return [(np.full(side, i % 251, np.uint8), i % 5) for i in ids]
            def __getitem__(self, i): return self.__getitems__([i])[0]
        limit = 16 * mib
        loader = lf.Loader(Rows(), 32, cache=limit, policy="lru", num_workers=2, seed=0, max_slots=10)
        warm = iter(loader); next(warm); del warm
        before, peak = rss(), 0
        for epoch in range(2):
            for k, batch in enumerate(loader):
                assert (batch.data[:, 0] == batch.ids % 251).all()
                if k % 10 == 0: peak = max(peak, rss())
        stats = loader.stats()
        assert stats["arena_used_bytes"] <= limit, stats
        slots = 10 * 33 * side
        grown = peak - before
        # The cache, the slots, and 24 MiB for the allocators and the interpreter: together well below the dataset.
        assert grown <= limit + slots + 24 * mib, (grown / mib, limit / mib, slots / mib)
        assert stats["residents"] * side > 0.9 * limit, stats["residents"]
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


# ---- stats -----------------------------------------------------------------------------------------------------------


def test_stats_is_one_flat_dict_of_numbers_with_coverage_beside_the_hit_ratio(numbers):
    loader = lf.Loader(numbers, 8, cache="50%", policy="minio", seed=1, num_workers=1)
    for _ in range(2):
        epoch_ids(loader)
    stats = loader.stats()
    assert all(isinstance(k, str) and isinstance(v, float) for k, v in stats.items())
    assert stats["hit_ratio"] == pytest.approx(32 / 128) and stats["coverage_epoch"] == 1.0
    assert stats["samples_total"] == 128 and stats["batches_total"] == 16


def test_repr_tells_what_it_is(numbers):
    loader = lf.Loader(numbers, 8, cache="50%", sampler="cost-aware")
    assert "64 samples in 8 batches of 8" in repr(loader) and "cost-aware" in repr(loader) and "importance" in repr(loader)
    assert "samples of float32 (3,)" in repr(loader.data)
    assert "Batch 0 of epoch 0" in repr(next(iter(loader)))

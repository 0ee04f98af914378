"""state_dict and load_state_dict: a resumed run delivers exactly what was left."""

import pickle
import signal
import threading
import time

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf


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
    with pytest.raises(lf.SettingsError, match=r"batch_size 8 \(this loader: 16\)"):
        lf.Loader(numbers, 16).load_state_dict(state)
    with pytest.raises(lf.SettingsError, match=r"sampler.in_order true \(this loader: false\)"):
        lf.Loader(numbers, 8, shuffle=True).load_state_dict(state)
    with pytest.raises(lf.SettingsError, match="dataset "):
        lf.Loader((numbers[0] + 1, numbers[1]), 8).load_state_dict(state)
    with pytest.raises(lf.SettingsError, match="pass the result of state_dict"):
        lf.Loader(numbers, 8).load_state_dict({"epoch": 1})
    with pytest.raises(lf.Error):
        lf.Loader(numbers, 8).load_state_dict({"version": 1, "engine": b"noise"})
    with pytest.raises(lf.SettingsError, match="version"):
        lf.Loader(numbers, 8).load_state_dict({"version": 99, "engine": state["engine"]})


def ends_with_break(loader):
    seen = []
    for batch in loader:
        seen += batch.ids.tolist()
        if len(seen) >= 24:
            break
    return seen, loader.state_dict()


def ends_with_an_exception(loader):
    seen = []
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            seen += batch.ids.tolist()
            if len(seen) >= 24:
                raise ZeroDivisionError
    return seen, loader.state_dict()


def ends_with_ctrl_c(loader):
    seen = []
    with pytest.raises(KeyboardInterrupt):
        for batch in loader:
            seen += batch.ids.tolist()
            if len(seen) >= 24:
                signal.raise_signal(signal.SIGINT)
    return seen, loader.state_dict()


def ends_with_close(loader):
    seen, _ = ends_with_break(loader)
    loader.close()
    return seen, loader.state_dict()


def ends_inside_the_with_statement(loader):
    with loader:
        seen, _ = ends_with_break(loader)
    return seen, loader.state_dict()


def ends_with_a_collate_fn_that_raises(loader):
    calls = []

    def collate(rows):
        calls.append(rows)
        if len(calls) == 4:
            raise ZeroDivisionError
        return torch.utils.data.default_collate(rows)

    loader._line.collate_fn, seen = collate, []
    with pytest.raises(ZeroDivisionError):
        for batch in loader:
            seen += batch.ids.tolist()
    return seen, loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", ["uniform", "cost-aware"])
@pytest.mark.parametrize(
    "ends",
    [
        ends_with_break,
        ends_with_an_exception,
        ends_with_ctrl_c,
        ends_with_close,
        ends_inside_the_with_statement,
        ends_with_a_collate_fn_that_raises,
    ],
)
def test_the_rest_of_an_epoch_that_ended_early_is_not_lost(numbers, ends, sampler, workers):
    def make():
        return lf.Loader(numbers, 8, sampler=sampler, num_workers=workers, seed=3)

    seen, state = ends(make())
    assert len(seen) == 24
    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.epoch == 0
    rest = np.concatenate(epoch_ids(resumed)).tolist()
    assert sorted(seen + rest) == list(range(64))


def test_a_position_stays_until_another_pass_begins(numbers):
    loader = lf.Loader(numbers, 8)
    for _ in loader:
        break
    position = loader.state_dict()
    assert loader.state_dict() == position
    assert loader.epoch == 1, "the epoch that starts next"
    again = iter(loader)
    next(again)
    assert loader.state_dict() != position
    resumed = lf.Loader(numbers, 8)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 1


@pytest.mark.parametrize("thread_safe,workers", [(True, 1), (False, 1), (False, "auto")])
def test_closing_from_another_thread_in_mid_pass_is_an_error_and_no_end(thread_safe, workers):
    started = threading.Event()

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 256

        def __getitem__(self, i):
            time.sleep(0.01)
            return torch.zeros(3), 0

    dataset = Slow()
    dataset.thread_safe = thread_safe
    loader = lf.Loader(dataset, 4, num_workers=workers)
    closing = threading.Thread(target=lambda: (started.wait(), loader.close()))
    closing.start()
    with pytest.raises(lf.UsageError, match="closed"):
        for _ in loader:
            started.set()
    closing.join()


class OfAnySize:
    """Samples whose sizes are known only once they have been read."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return {"x": np.arange(1 + (index * 7) % 5, dtype=np.int32) + index, "y": index}


def buffered(sampler, data=None, **settings):
    settings = {"cache": "40%", "num_workers": 0, "seed": 1, "stats": False, **settings}
    return lf.Loader((np.arange(60, dtype=np.float32), np.zeros(60)) if data is None else data, 4, sampler=sampler, **settings)


def orders(loader, epochs, under_way=()):
    """Ids and weights of what is left of a pass, and of whole epochs; every batch is scored."""
    batches = []
    for one in [under_way, *[loader] * epochs]:
        for batch in one:
            batches.append((batch.ids.tolist(), batch.weight.tolist()))
            loader.score_losses(1.0 + torch.as_tensor(batch.ids).float() % 7, batch)
    return batches


@pytest.mark.parametrize("taken", [0, 5])
@pytest.mark.parametrize("sampler", ["echo", "replay"])
def test_a_buffer_goes_on_where_sizes_are_known_only_once_samples_were_read(sampler, taken):
    def make():
        data = lf.open(OfAnySize(), varying=True)
        return buffered({"name": sampler, "lag": 8}, data, cache=2000, pad={"x": 0})

    loader = make()
    orders(loader, 3)
    under_way = iter(loader if taken else ())
    for _ in range(taken):
        loader.score_losses(torch.ones(4), next(under_way))
    state = loader.state_dict()
    assert loader.stats()["residents"] > 10
    resumed = make()
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert resumed.stats()["residents"] == loader.stats()["residents"]
    assert orders(resumed, 3 + (taken > 0)) == orders(loader, 3, under_way)


@pytest.mark.parametrize("sampler", ["echo", "replay", {"name": "auto", "augmented": True}], ids=str)
def test_the_last_of_several_states_counts(sampler):
    loader = buffered(sampler)
    first = loader.state_dict()
    orders(loader, 2)
    second = loader.state_dict()
    for states in ([second, second], [second, first], [first, second]):
        several, one = buffered(sampler), buffered(sampler)
        for state in states:
            several.load_state_dict(state)
        one.load_state_dict(states[-1])
        assert orders(several, 3) == orders(one, 3)


@pytest.mark.parametrize("augmented", [True, False])
def test_weights_that_were_read_count_at_once(augmented):
    """Else a run that is stopped in each of its first epochs would never come to use them."""
    loader = buffered({"name": "auto", "augmented": augmented})
    orders(loader, 1)
    resumed = buffered({"name": "auto", "augmented": augmented})
    resumed.load_state_dict(loader.state_dict())
    # A buffer's scores count 64 batches later.
    batches = orders(resumed, 8)
    assert any(weight != 1 for _, weights in batches for weight in weights)
    if augmented:  # what is resident is part of the state there
        assert batches == orders(loader, 8)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_batch_that_nobody_saw_comes_again_though_a_bad_one_behind_it_was_passed_over(workers):
    class Bad:
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index // 4 in (2, 3, 6):
                raise ValueError("torn")
            return np.full(2, index, np.float32), 0

    class Stop(Exception):
        pass

    stops = [True]

    def transform(data):
        if stops[0] and data[0, 0] == 4:
            # Those behind this one are found to be bad meanwhile.
            deadline = time.monotonic() + 10
            while workers and loader.stats()["bad_samples_total"] < 8 and time.monotonic() < deadline:
                time.sleep(0.01)
            raise Stop
        return data

    def make():
        return lf.Loader(Bad(), 4, num_workers=workers, on_error="skip", transform=transform, stats=False)

    loader = make()
    seen = []
    with pytest.raises(Stop):
        seen.extend(batch.ids.tolist() for batch in loader)
    state = loader.state_dict()
    stops[0] = False
    resumed = make()
    resumed.load_state_dict(state)
    rest = [batch.ids.tolist() for batch in resumed]
    assert seen + rest == [[4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3] for n in range(10) if n not in (2, 3, 6)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", ["uniform", "echo", "replay", {"name": "auto", "augmented": True}], ids=str)
def test_another_batch_takes_the_place_of_one_in_which_nothing_is_good(sampler, workers):
    """The last batch of an epoch has one sample, so one bad one may be all of it."""

    class Bad:
        def __init__(self, bad):
            self.bad = bad

        def __len__(self):
            return 9

        def __getitem__(self, index):
            if index in self.bad:
                raise ValueError("torn")
            return np.full(2, index, np.float32), 0

    for bad, batch_size in [*(({index}, 4) for index in range(1, 9)), ({1}, 1), ({2, 3, 4}, 2)]:
        loader = lf.Loader(
            Bad(bad), batch_size, sampler=sampler, cache=200, on_error="substitute", num_workers=workers, seed=1, stats=False
        )
        for _ in range(12):
            batches = list(loader)
            assert len(batches) == -(-9 // batch_size)
            for batch in batches:
                assert not bad & set(batch.ids.tolist()) and len(batch.ids) > 0
                assert batch.data[:, 0].tolist() == batch.ids.tolist()
                loader.score_losses(torch.ones(len(batch.ids)), batch)
        loader.close()


@pytest.mark.parametrize("sampler", ["echo", "replay", {"name": "replay", "lag": 8}], ids=str)
@pytest.mark.parametrize(("samples", "batch_size", "bad"), [(33, 4, {32}), (33, 4, range(28, 33)), (30, 1, {3, 11, 12})])
def test_a_resumed_run_has_what_stands_in_for_bad_batches(samples, batch_size, bad, sampler):
    class Bad:
        def __len__(self):
            return samples

        def __getitem__(self, index):
            if index in bad:
                raise ValueError("torn")
            return np.full(2, index, np.float32), 0

    data = lf.open(Bad())  # once: of a plain dataset each loader would start a process to look at it

    def make():
        return lf.Loader(
            data, batch_size, sampler=sampler, cache=800, on_error="substitute", num_workers=0, seed=3, stats=False
        )

    loader, seen, states = make(), [], []
    for _ in range(3):
        for batch in loader:
            seen.append((batch.ids.tolist(), batch.weight.tolist()))
            loader.score_losses(1.0 + batch.ids.float() % 7, batch)
            states.append(loader.state_dict())
    assert not {index for ids, _ in seen for index in ids} & set(bad)
    for stop in range(1, len(states)):
        resumed, rest = make(), []
        resumed.load_state_dict(states[stop - 1])
        while len(rest) < len(seen) - stop:
            for batch in resumed:
                rest.append((batch.ids.tolist(), batch.weight.tolist()))
                resumed.score_losses(1.0 + batch.ids.float() % 7, batch)
        assert rest == seen[stop:], stop


@pytest.mark.parametrize("sampler", ["echo", "replay"])
def test_a_state_is_written_behind_more_bad_batches_than_scores_lag(sampler):
    class Bad:
        def __len__(self):
            return 60

        def __getitem__(self, index):
            if index > 0:
                raise ValueError("torn")
            return np.full(2, index, np.float32), 0

    class Stop(Exception):
        pass

    def transform(data):
        deadline = time.monotonic() + 10
        while loader.stats()["bad_samples_total"] < 59 and time.monotonic() < deadline:
            time.sleep(0.01)
        raise Stop

    sampler = {"name": sampler, "lag": 8}
    settings = {"sampler": sampler, "cache": 10000, "on_error": "skip", "num_workers": 1, "seed": 1, "stats": False}
    loader = lf.Loader(Bad(), 1, transform=transform, **settings)
    with pytest.raises(Stop):
        list(loader)
    state = loader.state_dict()
    resumed = lf.Loader(Bad(), 1, **settings)
    resumed.load_state_dict(state)
    assert [ids.tolist() for ids in epoch_ids(resumed)] == [[0]], "the one good batch, which nobody saw, is not lost"


@pytest.mark.parametrize("sampler", ["echo", "replay"])
def test_a_buffer_that_was_made_smaller_is_resumed_as_large_as_it_was(sampler):
    loader = buffered(sampler, cache="60%")
    orders(loader, 2)
    loader.resize_cache("30%")
    orders(loader, 2)
    state = loader.state_dict()
    resumed = buffered(sampler, cache="60%")
    for other in (resumed, buffered(sampler, cache="30%")):
        before = other.state_dict()
        with pytest.raises(lf.SettingsError, match="cache_bytes"):
            other.load_state_dict(state)
        assert other.state_dict() == before
    resumed.resize_cache("30%")
    resumed.load_state_dict(state)
    assert orders(resumed, 3) == orders(loader, 3)

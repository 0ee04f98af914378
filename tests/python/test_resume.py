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
    with pytest.raises(lf.SettingsError, match="no loader state"):
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


def test_closing_from_another_thread_in_mid_pass_is_an_error_and_no_end(numbers):
    started = threading.Event()

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            started.set()
            time.sleep(0.002)
            return torch.zeros(3), 0

    loader = lf.Loader(Slow(), 4, num_workers=1)
    closing = threading.Thread(target=lambda: (started.wait(), loader.close()))
    closing.start()
    with pytest.raises(lf.UsageError, match="closed"):
        for _ in loader:
            pass
    closing.join()

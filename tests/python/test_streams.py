"""Loaders of streams: an ``IterableDataset`` is read as torch's DataLoader reads it, and what needs ids is refused."""

import copy
import inspect
import itertools
import multiprocessing
import pickle
import random
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

import lossfeed as lf
from lossfeed._loader import stage, streams

pytestmark = pytest.mark.filterwarnings("ignore:.* is a stream:lossfeed.TrainingWarning")


class Shared(IterableDataset):
    """Pairs, shared out among workers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, 23, step):
            yield torch.full((3,), float(i)), i


class Whole(Shared):
    """Every worker reads all of it; its items are dicts, and its length is known."""

    def __iter__(self):
        for i in range(10):
            yield {"x": np.full(2, i), "text": f"number {i}", "n": i}

    def __len__(self):
        return 10


class Drawn(IterableDataset):
    """What it gives depends on the generators of the process that reads it."""

    def __iter__(self):
        info = get_worker_info()
        for _ in range(6):
            yield torch.rand(()), 0 if info is None else info.id, random.random() if info else 0.0


class Counted(IterableDataset):
    """Says where it is, and may begin there."""

    def __init__(self):
        self.at, self.epoch = 0, 0

    def __iter__(self):
        while self.at < 12:
            self.at += 1
            yield 100 * self.epoch + self.at - 1
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def set_epoch(self, epoch):
        self.epoch = epoch


def plain(batches):
    """Batches as nests of lists."""
    return [batch.tolist() if torch.is_tensor(batch) else plain(batch) if isinstance(batch, (list, tuple)) else
            dict(zip(batch, plain(list(batch.values())))) if isinstance(batch, dict) else batch for batch in batches]  # fmt: skip


def halves(items):
    return [x / 2 for x, _ in items], [y for _, y in items]


def own_seed(worker):
    random.seed(1000 + worker)


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True, "shuffle": False},
        {"batch_size": None},
        {"batch_size": 4, "collate_fn": halves},
        {"batch_size": 4, "num_workers": 2},
        {"batch_size": 4, "num_workers": 2, "drop_last": True, "prefetch_factor": 3, "timeout": 60.0},
        {"batch_size": 4, "num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"},
        {"batch_size": None, "num_workers": 2, "worker_init_fn": own_seed},
    ],
)
def test_batches_are_torchs_epoch_after_epoch(keywords):
    for stream in (Shared(), ChainDataset([Shared(), Shared()])):
        if isinstance(stream, ChainDataset) and keywords.get("num_workers"):
            continue
        ours, theirs = lf.Loader(stream, **keywords), DataLoader(stream, **keywords)
        assert isinstance(ours, lf.Loader) and ours.dataset is stream
        for _ in range(2):
            assert plain(ours) == plain(theirs)
        ours.close()


def test_every_attribute_is_torchs():
    keywords = {"batch_size": 3, "num_workers": 2, "timeout": 5.0, "prefetch_factor": 4, "drop_last": True, "in_order": False}
    ours, theirs = lf.Loader(Whole(), **keywords), DataLoader(Whole(), **keywords)
    for name in (*keywords, "pin_memory", "persistent_workers", "worker_init_fn", "generator", "collate_fn", "multiprocessing_context"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert type(ours.sampler) is type(theirs.sampler) and type(ours.batch_sampler) is type(theirs.batch_sampler)
    with pytest.raises(lf.SettingsError, match="batch_size cannot change"):
        ours.batch_size = 4
    assert lf.Loader(Whole()).num_workers == lf.Loader(Whole(), num_workers=None).num_workers == 0


def test_its_length_is_the_streams():
    assert len(lf.Loader(Whole(), 4)) == 3 and len(lf.Loader(Whole(), 4, drop_last=True)) == 2
    with pytest.raises(TypeError):
        len(lf.Loader(Shared(), 4))


def test_dicts_come_as_torch_collates_them_and_in_a_loop_pairs_unpack():
    assert plain(lf.Loader(Whole(), 4)) == plain(DataLoader(Whole(), 4))
    for x, y in lf.Loader(Shared(), 4):
        assert torch.equal(x[:, 0].long(), y)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_stream_draws_is_what_it_draws_under_torch(workers):
    """Also beside a loop that draws, as dropout does."""

    def run(make, **keywords):
        torch.manual_seed(5)
        loader, found = make(Drawn(), 2, num_workers=workers, **keywords), []
        for _ in range(2):
            for batch in loader:
                found.append((plain(batch), torch.rand(()).item()))
        return found

    expected = run(DataLoader)
    assert run(lf.Loader) == expected
    generator = [torch.Generator().manual_seed(9) for _ in range(2)]
    seeded = run(DataLoader, generator=generator[0])
    assert run(lf.Loader, generator=generator[1]) == run(lf.Loader, seed=9) == seeded
    assert seeded != expected


def test_it_is_told_once_what_is_left_out():
    with pytest.warns(lf.TrainingWarning, match="Shared is a stream.*without cache, shuffling, scores.*get_worker_info") as told:
        loader = lf.Loader(Shared(), 4)
    assert len(told) == 1 and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


#: Keywords that a loader of a stream takes.
TAKEN = {"data", "dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn", "seed", "device"}
TAKEN |= {"multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order", "framework", "stats"}


def test_every_keyword_that_cannot_apply_is_refused_by_its_name():
    # Each with a value that is right elsewhere: wrong ones are refused before.
    right = {
        "shuffle": True, "cache": "1MiB", "cache_form": "decoded", "copy_path": "gathered", "policy": "lru", "sampler": "uniform",
        "score": "loss", "smoothing": 0.1, "ranks": "exchange", "score_file_every": 9.0, "on_error": "skip", "max_slots": 9,
        "read_ahead": "1MiB", "order": "node", "frozen_augmentation": True, "scores": "batch",
    }  # fmt: skip
    # Two hold keywords of the others, and one is another's former name.
    held = {"sampling", "reading", "record"}
    for name in inspect.signature(lf.Loader).parameters.keys() - TAKEN - held:
        given = {name: right.get(name, "something")} | ({"score_file": "f"} if name == "score_file_every" else {})
        said = {"score_file_every": "score_file", "scores": "score"}.get(name, name)
        with pytest.raises(lf.SettingsError, match=f"^{said}=.* is refused: Shared is a stream"):
            lf.Loader(Shared(), 4, **given)
    with pytest.raises(lf.SettingsError, match="^policy='lru' is refused: Shared is a stream"):
        lf.Loader(Shared(), 4, cache=lf.Cache(policy="lru"), reading=lf.Reading(0))
    for wrong, said in (
        ({"num_workers": -1}, "num_workers=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": None, "drop_last": True}, "drop_last"),
        ({"multiprocessing_context": "spawn"}, "num_workers"),
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"framework": "numpy"}, "framework='numpy'"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"timeout": 3}, "timeout=3 with num_workers=0"),
        ({"pin_memory_device": "cuda"}, "pin_memory_device='cuda'"),
        ({"seed": 1, "generator": torch.Generator()}, "leave one out"),
        ({"dataset": Shared()}, "give the dataset once"),
    ):
        with pytest.raises(lf.SettingsError, match=said):
            lf.Loader(Shared(), **{"batch_size": 4, **wrong})
    with pytest.raises(lf.SettingsError, match=r"Shared is a stream, whose samples have no ids.*lf.Loader\(stream"):
        lf.open(Shared())


def test_everything_that_needs_ids_is_refused_by_its_name():
    loader = lf.Loader(Shared(), 4)
    has = {"close", "load_state_dict", "set_epoch", "state_dict", "summary"} | {name for name in dir(DataLoader([1])) if hasattr(lf.Loader, name)}
    for name in {name for name in dir(lf.Loader) if not name.startswith("_")} - has:
        with pytest.raises((lf.UsageError, AttributeError), match=f"{name}: this loader is of a stream"):
            getattr(loader, name)()
    assert not hasattr(loader, "copy_path") and "of a stream, Shared: batches of 4" in repr(loader)


def test_a_state_is_the_streams_own():
    for taken in (0, 1, 3):
        stream = Counted()
        loader = lf.Loader(stream, 4)
        passing = iter(loader)
        for _ in range(taken):
            next(passing)
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        again = lf.Loader(Counted(), 4)
        again.load_state_dict(state)
        assert plain(again) == plain(passing)
        again.set_epoch(2)
        assert plain(again)[0] == [200, 201, 202, 203], "and then begins again"
    for loader, why in (
        (lf.Loader(Shared(), 4), "Shared has no state_dict"),
        (lf.Loader(Counted(), 4, num_workers=2), "num_workers=2 worker processes each read a copy of Counted"),
    ):
        state = loader.state_dict()
        assert state == {"stream": None}, "which trainers put into their checkpoints"
        with pytest.warns(lf.ResumeWarning, match=f"the stream begins anew: {why}") as told:
            loader.load_state_dict(state)
        assert told[0].filename == __file__
    with pytest.raises(lf.SettingsError, match="the state is not of a stream"):
        lf.Loader(Counted(), 4).load_state_dict(lf.Loader([1, 2, 3], 1).state_dict())
    lf.Loader(Shared(), 4).set_epoch(3)


def test_it_is_pickled_copied_and_closed():
    before = set(multiprocessing.active_children())
    for made in (pickle.loads(pickle.dumps(lf.Loader(Shared(), 4))), copy.deepcopy(lf.Loader(dataset=Shared(), batch_size=4))):
        assert type(made.dataset) is Shared and plain(made) == plain(DataLoader(Shared(), 4))
    with lf.Loader(Shared(), 4, num_workers=2, persistent_workers=True) as loader:
        assert len(plain(loader)) == 6 and multiprocessing.active_children()
    until = time.monotonic() + 20
    while set(multiprocessing.active_children()) - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not set(multiprocessing.active_children()) - before, "its workers end with it"
    with pytest.raises(lf.UsageError, match="closed"):
        iter(loader)
    assert "closed" in repr(loader)
    loader.close()


class Mine(lf.Loader):
    def halves(self):
        return [x / 2 for x, _ in self]


def test_a_loader_of_the_users_own_class_reads_streams_too():
    loader = Mine(Shared(), 23)
    assert isinstance(loader, Mine) and loader.halves()[0][4, 0] == 2
    assert len(Mine([(torch.zeros(2), 1)], 1).halves()) == 1, "and datasets as ever"


def test_what_a_stream_raises_comes_as_it_does_from_torch():
    class Broken(IterableDataset):
        def __iter__(self):
            yield 1
            raise LookupError("no more")

    passing = iter(lf.Loader(Broken(), 1))
    assert next(passing).item() == 1
    with pytest.raises(LookupError, match="no more"):
        next(passing)


class Moved:
    """Stands for a device: batches go there and come back, from whichever thread."""

    def __init__(self, device):
        self.sent = 0

    def enter_thread(self):
        pass

    def refuse_in_a_capture(self):
        pass

    def send(self, batch):
        self.sent += 1
        return batch, threading.current_thread().name

    def receive(self, sent):
        return [*sent[0], sent[1]]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_staged_by_a_thread_unless_this_process_reads_the_stream(monkeypatch, workers):
    if not torch.cuda.is_available():
        with pytest.raises(lf.DeviceError, match="device='cpu'"):
            lf.Loader(Shared(), 4, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in (stage, streams):
        monkeypatch.setattr(module, "Mover", Moved)
    loader = lf.Loader(Shared(), 4, num_workers=workers, device="cuda", persistent_workers=bool(workers))
    by = "lossfeed-stage" if workers else threading.current_thread().name
    for stop in (2, 99, 99):
        taken = list(itertools.islice(loader, stop))
        assert plain(taken) == [[*batch, by] for batch in plain(DataLoader(Shared(), 4))[:stop]]
    loader.close()


def test_a_pass_that_was_dropped_takes_no_batch_of_the_next_from_the_same_workers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for module in (stage, streams):
        monkeypatch.setattr(module, "Mover", Moved)
    threads, taken = [], _BaseDataLoaderIter.__next__

    def late(self):
        """The first thread is about to take a batch for longer than any other."""
        one = threading.current_thread()
        threads.extend([one] if one not in threads else [])
        time.sleep(0.3 if one is threads[0] else 0.1)
        return taken(self)

    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", late)
    with lf.Loader(Shared(), 4, num_workers=1, device="cuda", persistent_workers=True) as loader:
        next(iter(loader))
        passed = [batch[:2] for batch in plain(loader)]
    monkeypatch.undo()
    assert passed == plain(DataLoader(Shared(), 4)) and len(threads) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_on_the_device(workers):
    for _ in range(2):
        for ours, theirs in zip(lf.Loader(Shared(), 4, num_workers=workers, device="cuda"), DataLoader(Shared(), 4, num_workers=workers), strict=True):
            assert ours[0].device.type == "cuda" and plain(ours) == plain(theirs)

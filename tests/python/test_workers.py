"""A Python dataset behind a loader: samples, losses and random generators beside torch's DataLoader."""

import collections
import dataclasses
import gc
import hashlib
import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, get_worker_info

import lossfeed as lf
from lossfeed._batch.usage import Reads, Uses
from lossfeed._data.random_items import _alike

N = 24


class Tagged(torch.Tensor):
    """A subclass that remembers what it is, as torchvision's images and masks do."""


@dataclasses.dataclass
class Found:
    boxes: torch.Tensor
    name: str


class Own:
    def __init__(self, i):
        self.i = i

    def __eq__(self, other):
        return type(other) is Own and other.i == self.i


Point = collections.namedtuple("Point", "x y")

KINDS = {
    "pair": lambda i: (torch.full((2,), i), i),
    "pair of arrays": lambda i: (np.full((2,), i), np.full((1,), i)),
    "subclass": lambda i: (torch.full((2, 2), i).as_subclass(Tagged), i),
    "subclasses in a dict": lambda i: {"image": torch.full((3,), float(i)).as_subclass(Tagged), "mask": torch.tensor([i]).as_subclass(Tagged)},
    "named tuple": lambda i: Point(torch.tensor(i), np.full(2, i)),
    "dataclass": lambda i: Found(torch.full((i % 3, 4), i), f"n{i}"),
    "own class": lambda i: (Own(i), {"nested": [Own(i), (i, None)]}),
    "floats": lambda i: (i / 7, [i / 3, i / 9]),
    "tuple of numbers": lambda i: ((i, i + 1), [i, i + 1]),
    "numpy scalar": lambda i: (np.float32(i / 7), np.int8(i)),
    "arrays": lambda i: (np.full((2,), i / 3), i),
    "ordered": lambda i: collections.OrderedDict(a=i, b=str(i)),
    "large": lambda i: (2**70 + i, i),
    "of many shapes": lambda i: (torch.ones(1 + i % 4), i),
    "gradient": lambda i: (torch.full((2,), float(i)), None),
}


class Made(Dataset):
    def __init__(self, make, n=N):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


def equal(a, b):
    """Equal in type and value."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            equal(a[key], b[key])
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            equal(x, y)
    elif dataclasses.is_dataclass(a):
        equal(vars(a), vars(b))
    else:
        assert a == b


# ---- what collate_fn gets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [None, "1MiB"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_collate_fn_gets_items_equal_in_type_and_value(make, workers, cache):
    loader = lf.Loader(Made(make), 4, num_workers=workers, cache=cache, collate_fn=lambda items: {"items": list(items)})
    for _ in range(3):
        for batch in loader:
            for i, item in zip(batch.ids.tolist(), batch["items"], strict=True):
                equal(item, make(i))
    if cache:
        assert loader.stats()["hits_total"] > 0


@pytest.mark.parametrize("kind", [Made, list])
def test_in_the_calling_thread_collate_fn_gets_the_very_objects(kind):
    objects = [(Own(i), i) for i in range(N)]
    data = objects if kind is list else Made(lambda i: objects[i])
    for batch in lf.Loader(data, 4, num_workers=0, collate_fn=lambda items: {"items": items}):
        assert all(item is objects[i] for i, item in zip(batch.ids.tolist(), batch["items"], strict=True))


REFUSED = {
    "none": lambda i: (None, i),
    "an object": lambda i: Own(i),
    "shapes": lambda i: (torch.ones(1 + i % 3), i),
    "lists": lambda i: ([0] * (1 + i % 3), i),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_torchs_default_collate_refuses_is_refused_and_says_what_to_write(make, workers):
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        list(DataLoader(Made(make), 4))
    with pytest.raises(lf.SampleError, match=r"batch 0 of epoch 0: items \[0, 1, 2, 3\] of the dataset cannot be collated: .*give collate_fn="):
        list(lf.Loader(Made(make), 4, num_workers=workers))


@pytest.mark.parametrize("cache", [None, "1MB"])
def test_a_none_among_items_is_refused_with_its_place(cache):
    def make(i):
        return {"x": torch.ones(2), "meta": {"patient": "p" if i % 2 else None, "file": f"{i}"}}

    says = r"item\['meta'\]\['patient'\] is None, which torch's default_collate refuses; return a text"
    with pytest.raises(lf.SampleError, match=says):
        list(lf.Loader(Made(make), 4, num_workers=0, cache=cache))


# ---- random numbers --------------------------------------------------------------------------------------------------


class Draws(Dataset):
    """Draws from all three generators."""

    def __len__(self):
        return 48

    def __getitem__(self, i):
        return torch.cat([torch.rand(2), torch.tensor([random.random(), np.random.rand(), float(i)])]), i


class DrawsTogether(Draws):
    def __getitems__(self, ids):
        return [self[i] for i in ids]


def generators():
    state = torch.get_rng_state().numpy().tobytes() + np.random.get_state()[1].tobytes() + repr(random.getstate()).encode()
    return hashlib.sha256(state).hexdigest()


def seed_everything():
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)


def trained(kind, data, epochs=2, **keywords):
    """Losses, samples, and the loop's own random numbers of a small training with dropout."""
    seed_everything()
    loader = kind(data, batch_size=8, **keywords)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    losses, samples, loop = [], {}, []
    for epoch in range(epochs):
        for x, y in loader:
            loss = (model(x) - y[:, None]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            loop.append((torch.rand(1).item(), random.random(), np.random.rand()))
            samples |= {(epoch, i): row.tolist() for i, row in zip(y.tolist(), x, strict=True)}
    return losses, samples, loop, generators()


@pytest.mark.parametrize("kind", [Draws, DrawsTogether])
def test_num_workers_0_gives_torchs_samples_losses_and_generators(kind):
    def sampled(make, data, **keywords):
        return trained(make, data, sampler=RandomSampler(data), num_workers=0, **keywords)

    data = kind()
    theirs = sampled(DataLoader, data)
    assert sampled(lf.Loader, data) == theirs
    assert trained(lf.Loader, data, num_workers=0) == trained(DataLoader, data, num_workers=0)

    def collate(items):
        return torch.stack([x + torch.rand(1) for x, _ in items]), torch.tensor([y for _, y in items])

    assert sampled(lf.Loader, data, collate_fn=collate) == sampled(DataLoader, data, collate_fn=collate)


def test_num_workers_0_reads_nothing_ahead():
    read = []
    data = Made(lambda i: (read.append(i), i)[1])
    batches = iter(lf.Loader(data, 4, num_workers=0))
    for k in range(1, 4):
        next(batches)
        assert read == list(range(4 * k))


@pytest.mark.parametrize("kind", [Draws, DrawsTogether])
@pytest.mark.parametrize("keywords", [{}, {"cache": 200, "frozen_augmentation": True}, {"collate_fn": torch.utils.data.default_collate}])
def test_samples_depend_on_seed_epoch_and_id_alone_and_the_loop_draws_as_under_torch(kind, keywords):
    found = [trained(lf.Loader, kind(), shuffle=True, num_workers=workers, **keywords) for workers in (1, 2, 8, "auto", 2)]
    assert all(other == found[0] for other in found[1:])
    theirs = trained(DataLoader, kind(), shuffle=True, num_workers=2)
    assert found[0][2:] == theirs[2:], "the loop's own numbers"
    first, second = ({i: x for (epoch, i), x in found[0][1].items() if epoch == e} for e in (0, 1))
    kept = sum(first[i] == second[i] for i in first)
    assert kept > 0 if "cache" in keywords else kept == 0, "every epoch draws anew, but for what a cache keeps"
    assert len({tuple(x[:4]) for x in first.values()}) == len(first), "and every sample its own"


def test_another_seed_draws_other_samples_and_a_resumed_run_the_same():
    def epochs(seed, broken=False):
        loader, found = lf.Loader(Draws(), 8, shuffle=True, num_workers=2, seed=seed), []
        for number, (x, _) in enumerate(loader):
            found.append(x)
            if broken and number == 2:
                break
        if broken:
            again = lf.Loader(Draws(), 8, shuffle=True, num_workers=1, seed=seed)
            again.load_state_dict(loader.state_dict())
            found += [x for x, _ in again]
        return torch.cat(found)

    assert torch.equal(epochs(1), epochs(1, broken=True)) and not torch.equal(epochs(1).sum(0), epochs(2).sum(0))


def test_pytorchs_recipe_for_reproducible_workers_works():
    def seed_worker(number):
        worker_seed = torch.initial_seed() % 2**32
        np.random.seed(worker_seed)
        random.seed(worker_seed)

    def run():
        g = torch.Generator()
        g.manual_seed(0)
        loader = lf.Loader(Draws(), batch_size=8, num_workers=2, worker_init_fn=seed_worker, generator=g, shuffle=True)
        return torch.cat([x for x, _ in loader])

    assert torch.equal(run(), run())
    arrays = torch.utils.data.TensorDataset(torch.arange(8.0))
    assert len(list(lf.Loader(arrays, 4, num_workers=2, worker_init_fn=seed_worker, generator=torch.Generator()))) == 2


# ---- worker processes ------------------------------------------------------------------------------------------------


class Where(Dataset):
    def __init__(self):
        self.opened = None

    def __len__(self):
        return 32

    def __getitem__(self, i):
        info = get_worker_info()
        mine = info is not None and info.dataset is self
        return i, os.getpid(), -1 if info is None else info.id, info.num_workers if info else 0, int(self.opened or -1), mine


def opens(number):
    get_worker_info().dataset.opened = 100 + number


@pytest.mark.parametrize("cache", [None, "1MiB"])
@pytest.mark.parametrize("context", [None, "spawn", multiprocessing.get_context("forkserver")])
def test_worker_processes_are_started_as_torch_starts_its_own(context, cache):
    loader = lf.Loader(Where(), 2, num_workers=3, worker_init_fn=opens, multiprocessing_context=context, cache=cache, frozen_augmentation=True)
    assert loader.num_workers == 3 and loader.worker_init_fn is opens
    rows = [row for batch in loader for row in zip(*(column.tolist() for column in batch), strict=True)]
    assert sorted(row[0] for row in rows) == list(range(32))
    assert os.getpid() not in {row[1] for row in rows} and {row[2] for row in rows} <= {0, 1, 2}
    assert all(row[3] == 3 and row[4] == 100 + row[2] and row[5] for row in rows)


def test_persistent_workers_live_from_epoch_to_epoch_and_others_do_not():
    def pids(loader):
        return {int(pid) for batch in loader for pid in batch[1]}

    lasting = lf.Loader(Where(), 2, num_workers=2, persistent_workers=True)
    first = pids(lasting)
    assert pids(lasting) | first == first
    for batch in lasting:
        break
    assert pids(lasting) | first == first, "also after a pass that was left"
    lasting.close()
    fresh = lf.Loader(Where(), 2, num_workers=2)
    assert not pids(fresh) & pids(fresh)
    deadline = time.monotonic() + 30
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in first) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(os.path.exists(f"/proc/{pid}/exe") for pid in first)


def test_workers_of_a_second_loader_say_nothing_of_the_first_ones(capfd):
    first = lf.Loader(Where(), 2, num_workers=2, persistent_workers=True)
    next(iter(first))
    second = lf.Loader(Made(lambda i: (gc.collect(), i)[1]), 4, num_workers=2)
    assert [int(i) for batch in second for i in batch] == list(range(N))
    del first
    second.close()
    assert "Exception ignored" not in capfd.readouterr().err


def test_auto_says_at_info_what_it_does_for_each_kind(caplog):
    caplog.set_level("INFO", "lossfeed")
    for data, says in [
        (Made(lambda i: i), "worker processes read the items of Made"),
        ((np.zeros((8, 2)), np.zeros(8)), "loader threads to begin with read"),
        ([(np.zeros(2), 1)] * 8, "loader threads to begin with read"),
    ]:
        caplog.clear()
        lf.Loader(data, 4)
        assert says in caplog.text and "num_workers='auto'" in caplog.text
        caplog.clear()
        lf.Loader(data, 4, num_workers=1)
        assert "num_workers" not in caplog.text


def test_data_in_memory_starts_no_process(monkeypatch):
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", lambda self: pytest.fail("a process was started"))
    x = torch.arange(64.0)
    arrays = torch.utils.data.TensorDataset(x, x)
    for data in (arrays, (x, x), [(v, 1) for v in x], torch.utils.data.Subset(arrays, range(64)), torch.utils.data.ConcatDataset([arrays])):
        assert sum(len(batch) for batch in lf.Loader(data, 8)) == 64


def test_a_dataset_that_was_opened_is_read_in_processes_too_and_not_touched_here():
    class Handle(Where):
        def __getitem__(self, i):
            self.opened = self.opened or os.getpid()
            return i, int(self.opened == os.getpid())

    dataset = Handle()
    data = lf.open(dataset)
    assert dataset.opened is None and data.spec == (("int64", ()), ("int64", ())) or data.spec
    for data in (data, lf.open(dataset).subset(range(8)), lf.concat([lf.open(dataset), lf.open(dataset)])):
        for x, own in lf.Loader(data, 4, num_workers=2):
            assert own.all()
        assert dataset.opened is None


@pytest.mark.parametrize("workers", [0, 2])
def test_what_an_item_raises_names_it_and_keeps_its_cause(workers):
    class Gone(Exception):
        pass

    def make(i):
        if i == 13:
            raise KeyError("no such file")
        return i

    class Together(Made):
        def __getitems__(self, ids):
            return [self[i] for i in ids]

    for data in (Made(make), Together(make), torch.utils.data.Subset(Made(make), range(N))):
        with pytest.raises(lf.SampleError, match="item 13 raised KeyError") as raised:
            list(lf.Loader(data, 4, num_workers=workers))
        assert isinstance(raised.value.__cause__, KeyError)

    def collate(items):
        raise ValueError("cannot be put together")

    with pytest.raises(ValueError, match="cannot be put together"):
        list(lf.Loader(Made(lambda i: i), 4, num_workers=workers, collate_fn=collate))


def test_a_worker_that_dies_is_named():
    def make(i):
        if i == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    with pytest.raises(lf.SourceError, match="a worker process ended: "):
        list(lf.Loader(Made(make), 4, num_workers=2))


def test_ctrl_c_ends_a_wait_for_workers_and_no_batch_is_lost():
    def make(i):
        time.sleep(0.05)
        return i

    loader = lf.Loader(Made(make, 64), 4, num_workers=2)
    seen, passes = [], iter(loader)
    while len(seen) < 64:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            for batch in passes:
                seen += batch.ids.tolist()
            timer.cancel()
        except KeyboardInterrupt:
            pass
        timer.join()
        again = lf.Loader(Made(make, 64), 4, num_workers=2)
        again.load_state_dict(loader.state_dict())
        if len(seen) < 64:
            assert next(iter(again)).ids.tolist()[0] == len(seen), "a state is where the loop stands"
        again.close()
    assert seen == list(range(64)), "and the same iterator goes on"


def test_a_batch_that_is_late_may_still_come_from_workers():
    def make(i):
        time.sleep(1.0 if i == 8 else 0.0)
        return i

    passes, seen, late = iter(lf.Loader(Made(make), 8, num_workers=1, timeout=0.3)), [], 0
    while len(seen) < N:
        try:
            seen += next(passes).ids.tolist()
        except lf.TimeoutError as error:
            assert "timeout=" in str(error)
            late += 1
    assert late > 0 and seen == list(range(N))


# ---- a training that starves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers,says", [(0, "num_workers=4"), (2, "num_workers=4 reads more"), (1, "num_workers=2")])
def test_a_training_that_starves_is_told_once_within_twenty_batches(workers, says):
    def make(i):
        time.sleep(0.06)
        return i

    loader = lf.Loader(Made(make, 400), 2, num_workers=workers)
    told = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, _ in enumerate(loader):
            told += [number for w in caught[len(told) :] if issubclass(w.category, lf.TrainingWarning)]
            if number > 25:
                break
    assert len(told) == 1 and told[0] <= 20
    assert "items of Made" in str(caught[-1].message) and says in str(caught[-1].message)


def test_a_training_is_told_by_the_share_and_the_seconds_of_its_waits():
    def told(source_s, waited_s, busy_s, processes):
        uses = Uses("uniform", "uniform", False, Reads("Made", processes))
        stats = {"wait_source_us_total": source_s * 1e6, "wait_us_total": waited_s * 1e6, "busy_us_total": busy_s * 1e6}
        return uses._waits_for(stats)

    assert told(0.9, 0.9, 0.1, 0) is None, "less than a second"
    assert told(1.9, 1.9, 8.1, 0) is None, "less than a fifth"
    assert "waited for 50% of the last 4.0 s for items of Made" in told(2.0, 2.0, 2.0, 0)
    assert "num_workers=4 reads them in 4 processes" in told(2.0, 2.0, 2.0, 0)
    assert "3 worker processes read: num_workers=6" in told(2.0, 2.0, 2.0, 3)


def test_equal_items_whose_pickles_differ_are_no_random_draws():
    shared, texts = "ab" * 3, ["ab" * 3, "".join(["ab"] * 3)]
    first = Found(torch.ones(2, 4), [shared, shared])
    again = Found(torch.ones(2, 4), [texts[0], texts[1]])
    assert pickle.dumps(first) != pickle.dumps(again) and _alike(first, again)
    assert not _alike(first, Found(torch.zeros(2, 4), [shared, shared]))

"""Orders of the user's own: torch's samplers and batch samplers, and whatever else gives ids. Their order is the plan."""

import itertools
import os
import pickle

import numpy as np
import pytest
import torch
from conftest import epoch_ids
from test_ranks import run_two
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import lossfeed as lf

N = 64


def generator(seed=5):
    return torch.Generator().manual_seed(seed)


class Sized:
    """A sampler of nobody's class, with another order every epoch."""

    def __init__(self, length=None):
        self.passes = 0
        if length is not None:
            type(self).__len__ = lambda self: length

    def __iter__(self):
        self.passes += 1
        return iter([(7 * i + self.passes) % N for i in range(30)])


class Endless:
    def __iter__(self):
        return itertools.cycle(range(N))


class EndlessOfLength(Endless):
    def __len__(self):
        return 20


class Buckets:
    """A batch sampler with batches of several sizes, and no batch_size."""

    def __iter__(self):
        return iter([[3], [9, 9, 1], list(range(20, 32)), [0, 63]])

    def __len__(self):
        return 4


SAMPLERS = {
    "sequential": lambda: SequentialSampler(range(N)),
    "random": lambda: RandomSampler(range(N), generator=generator()),
    "random, seeded by torch": lambda: RandomSampler(range(N)),
    "random with replacement, more than there are": lambda: RandomSampler(range(N), True, 150, generator=generator()),
    "subset": lambda: SubsetRandomSampler([4, 8, 15, 16, 23, 42], generator=generator()),
    "subset of a tensor": lambda: SubsetRandomSampler(torch.arange(0, 64, 3), generator=generator()),
    "weighted": lambda: WeightedRandomSampler(torch.arange(N).double(), 40, generator=generator()),
    "weighted, seeded by torch": lambda: WeightedRandomSampler([1.0] * N, 40, replacement=False),
    "distributed": lambda: DistributedSampler(range(N), num_replicas=3, rank=1, seed=2),
    "list": lambda: [5, 5, 60, 0],
    "range": lambda: range(63, -1, -2),
    "array": lambda: np.array([1, 2, 3], dtype=np.int32),
    "tensor": lambda: torch.tensor([1, 2, 3]),
    "numpy ints": lambda: list(np.random.default_rng(1).integers(0, N, 25)),
    "an object without a length": Sized,
}
BATCH_SAMPLERS = {
    "torch's": lambda: BatchSampler(RandomSampler(range(N), generator=generator()), 10, drop_last=False),
    "torch's, short one dropped": lambda: BatchSampler(RandomSampler(range(N), generator=generator()), 10, drop_last=True),
    "lists": lambda: [[3, 4], [5], [60, 61, 62, 63, 60]],
    "tensors": lambda: list(torch.arange(N).split(9)),
}


@pytest.fixture
def dataset(numbers):
    return TensorDataset(*map(torch.from_numpy, numbers))


def theirs(dataset, **keywords):
    """Ids by batch, as torch's own loader gives them."""
    return [x[:, 0].long().tolist() for x, _ in DataLoader(dataset, **keywords)]


def ours(loader):
    batches = []
    for batch in loader:
        assert batch.data[:, 0].long().tolist() == batch.ids.tolist() and (batch.weight == 1).all()
        batches.append(batch.ids.tolist())
    return batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_samplers_order_is_the_plan_epoch_after_epoch(dataset, kind, drop_last, workers):
    keywords = {"batch_size": 8, "drop_last": drop_last}
    torch.manual_seed(11)
    there = SAMPLERS[kind]()
    expected = [theirs(dataset, sampler=there, **keywords) for _ in range(3)]
    torch.manual_seed(11)
    here = SAMPLERS[kind]()
    with lf.Loader(dataset, sampler=here, num_workers=workers, cache="40%", **keywords) as loader:
        assert [ours(loader) for _ in range(3)] == expected, "from torch's generator too, in the same places"
        assert loader.sampler is here
        if hasattr(here, "__len__"):
            assert len(loader) == len(DataLoader(dataset, sampler=there, **keywords)) == len(expected[0])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", BATCH_SAMPLERS)
def test_a_batch_samplers_batches_are_the_plan(dataset, kind, workers):
    there, here = BATCH_SAMPLERS[kind](), BATCH_SAMPLERS[kind]()
    expected = [theirs(dataset, batch_sampler=there) for _ in range(3)]
    with lf.Loader(dataset, batch_sampler=here, num_workers=workers, cache="40%") as loader:
        assert len(loader) == len(expected[0])
        assert [ours(loader) for _ in range(3)] == expected
        assert (loader.batch_sampler, loader.batch_size, loader.drop_last) == (here, None, False)


def test_random_numbers_of_the_loop_are_those_beside_torchs_loader(dataset):
    """Dropout and the like draw the same, epoch after epoch."""

    def drawn(make):
        torch.manual_seed(3)
        loader, seen = make(), []
        for _ in range(3):
            for _ in loader:
                seen.append(torch.rand(()).item())
        return seen

    for keywords in ({}, {"sampler": WeightedRandomSampler([1.0] * N, 40)}, {"sampler": RandomSampler(range(N))}):
        assert drawn(lambda: DataLoader(dataset, 8, **keywords)) == drawn(lambda: lf.Loader(dataset, 8, num_workers=0, **keywords))


def test_set_epoch_reaches_the_sampler_and_that_of_a_batch_sampler(dataset):
    def expected(epoch):
        sampler = DistributedSampler(range(N), num_replicas=2, rank=0)
        sampler.set_epoch(epoch)
        return list(sampler)

    for wrap in (lambda s: {"sampler": s, "batch_size": 8}, lambda s: {"batch_sampler": BatchSampler(s, 8, False)}):
        loader = lf.Loader(dataset, num_workers=0, **wrap(DistributedSampler(range(N), num_replicas=2, rank=0)))
        for epoch in (0, 3, 1):
            loader.set_epoch(epoch)
            assert sum(ours(loader), []) == expected(epoch)


def test_ranks_get_what_their_own_samplers_give(dataset):
    seen = []
    for rank in range(3):
        sampler = DistributedSampler(range(N), num_replicas=3, rank=rank, shuffle=True)
        loader = lf.Loader(dataset, 8, sampler=sampler, rank=rank, world_size=3)
        mine = ours(loader)
        assert sum(mine, []) == list(sampler) and len(mine) == len(loader) == 3
        seen += sum(mine, [])
    assert set(seen) == set(range(N)) and len(seen) == 66, "as torch pads them"
    # Where shares would be refused: more ranks than samples, steps of one.
    assert ours(lf.Loader(dataset, 1, sampler=[3, 4], rank=99, world_size=100)) == [[3], [4]]


def test_two_processes_with_torchs_distributed_sampler(tmp_path):
    said = run_two(
        tmp_path,
        """
        from torch.utils.data import DistributedSampler
        before = lf.Loader((x, y), 8, sampler=list(range(rank, 64, 2)))
        group()
        loader = lf.Loader((x, y), 8, sampler=DistributedSampler(x, seed=3), cache="30%", num_workers=1)
        for epoch in range(2):
            loader.set_epoch(epoch)
            print([i for batch in loader for i in batch.ids.tolist()])
        print([i for batch in before for i in batch.ids.tolist()])
        """,
    )
    first, second = ([eval(line) for line in lines.splitlines()] for lines in said)
    assert [sorted(a + b) for a, b in zip(first, second, strict=True)] == [list(range(64))] * 3
    assert first[0] != first[1] and first[2] == list(range(0, 64, 2)), "a group that comes later has nothing to say"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "keywords",
    [
        {"sampler": "random, seeded by torch", "batch_size": 8},
        {"sampler": "random with replacement, more than there are", "batch_size": 7, "drop_last": True},
        {"sampler": "an object without a length", "batch_size": 4},
        {"batch_sampler": "torch's"},
        {"batch_sampler": "lists"},
    ],
    ids=str,
)
def test_resuming_at_every_step_delivers_exactly_the_rest(dataset, keywords, workers):
    def make():
        made = dict(keywords)
        for name, kinds in (("sampler", SAMPLERS), ("batch_sampler", BATCH_SAMPLERS)):
            if name in made:
                made[name] = kinds[made[name]]()
        return lf.Loader(dataset, num_workers=workers, cache="30%", **made)

    steps = len(ours(make()))
    for stop in range(1, steps + 1):
        loader = make()
        it = iter(loader)
        before = [next(it).ids.tolist() for _ in range(stop)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        rest = [batch.ids.tolist() for batch in it]
        # Another process: its sampler draws something else, and would have to be in mid-epoch.
        torch.manual_seed(1000 + stop)
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        if stop == steps:
            assert resumed.epoch == 1 and rest == []
            continue
        assert ours(resumed) == rest, "the epoch goes on"
        assert resumed.epoch == 1 and len(ours(resumed)) == steps, "and the next one is the sampler's"
        assert len(before) + len(rest) == steps


def test_a_state_of_another_kind_of_order_is_refused(dataset):
    state = lf.Loader(dataset, 8, sampler=[1, 2, 3], seed=0).state_dict()
    for keywords in ({"batch_sampler": [[1], [2]], "batch_size": 8}, {"shuffle": True, "batch_size": 8}):
        with pytest.raises(lf.SettingsError, match="another run"):
            lf.Loader(dataset, seed=0, **keywords).load_state_dict(state)


def test_scores_and_substituting_policies_go_by_the_ids(dataset):
    sampler = [63, 0, 0, 5, 5, 5, 1, 2] * 8
    loader = lf.Loader(dataset, 4, sampler=sampler, num_workers=0, cache="25%", policy="importance", score="loss")
    for batch in loader:
        loader.score_losses(batch.ids.float() + 1, batch)
    beliefs = loader.importance()
    assert sorted(torch.nonzero(~beliefs.isnan()).flatten().tolist()) == sorted(set(sampler))
    assert all(beliefs[i] == i + 1 for i in set(sampler))
    icache = lf.Loader(dataset, 4, sampler=RandomSampler(range(N), generator=generator()), cache="25%", policy="icache")
    for _ in range(3):
        assert sorted(i for ids in epoch_ids(icache) for i in ids.tolist()) == list(range(N))


def test_a_recorded_run_in_an_order_of_its_own(dataset, tmp_path):
    loader = lf.Loader(dataset, sampler=None, batch_sampler=[[1, 2, 3], [4], [1, 2]], cache="50%", journal=tmp_path / "run.csv")
    for _ in range(2):
        assert ours(loader) == [[1, 2, 3], [4], [1, 2]]
    loader.close()
    assert (tmp_path / "run.csv").stat().st_size > 100


def test_batches_of_any_size_up_to_what_memory_was_made_for(dataset):
    with pytest.raises(lf.SettingsError, match="batch_sampler=Buckets has no batch_size.*pass batch_size="):
        lf.Loader(dataset, batch_sampler=Buckets())
    assert ours(lf.Loader(dataset, batch_sampler=Buckets(), batch_size=12)) == list(Buckets())
    loader = lf.Loader(dataset, batch_sampler=Buckets(), batch_size=11)
    with pytest.raises(lf.SettingsError, match="batch 2 of the batch sampler's epoch has 12 samples, and memory was made for 11: pass batch_size=12"):
        next(iter(loader))


def test_an_epoch_without_ids_has_no_batch(dataset):
    for keywords in ({"sampler": []}, {"batch_sampler": []}, {"sampler": [1, 2], "batch_size": 3, "drop_last": True}):
        for workers in (0, 1):
            loader = lf.Loader(dataset, num_workers=workers, **keywords)
            assert [ours(loader) for _ in range(2)] == [[], []] and loader.epoch == 2
            assert lf.Loader(dataset, **keywords).load_state_dict(loader.state_dict()) is None


def test_a_length_is_as_much_as_is_taken_and_an_endless_sampler_without_one_is_named(dataset):
    assert [len(ids) for ids in ours(lf.Loader(dataset, 8, sampler=EndlessOfLength()))] == [8, 8, 4]
    loader = lf.Loader(dataset, 8, sampler=Endless())
    assert "batches of 8" in repr(loader)
    with pytest.raises(TypeError, match="has no len"):
        len(loader)
    with pytest.raises(lf.SettingsError, match="sampler=Endless has no length and gave more than 1048576"):
        next(iter(loader))


@pytest.mark.parametrize(
    "keywords,says",
    [
        ({"sampler": [0, 64]}, "draw 1 of the sampler's epoch is id 64: this dataset's ids are 0 to 63"),
        ({"sampler": [0, -1]}, "draw 1 of the sampler's epoch is id -1"),
        ({"sampler": [2**70]}, "draw 0 of sampler=list=1180591620717411303424 must be"),
        ({"sampler": [0, 1.5]}, "draw 1 of sampler=list=1.5 must be an int"),
        ({"sampler": [0, True]}, "draw 1 of sampler=list=True must be an int"),
        ({"sampler": torch.ones(64, dtype=torch.bool)}, "draw 0 of sampler=Tensor=True must be an int"),
        ({"sampler": ["a"]}, "must be an int"),
        ({"sampler": [[0, 1], [2]]}, "a sampler of batches is a batch_sampler="),
        ({"sampler": iter([1, 2])}, "list_iterator is refused: an iterator gives its ids only once"),
        ({"sampler": (i for i in range(3))}, "generator is refused"),
        ({"sampler": 3}, "sampler=3 is refused"),
        ({"sampler": [1], "shuffle": True}, "exclude each other, as in torch"),
        ({"batch_sampler": [0, 1]}, "batch_size"),
        ({"batch_sampler": [0, 1], "batch_size": 2}, "batch 0 of batch_sampler=list is 0, not a list of ids"),
        ({"batch_sampler": [[0], []]}, "batch 1 of the batch sampler's epoch has no sample"),
        ({"batch_sampler": [[0], [1, "b"]]}, "place 1 of batch 1 of batch_sampler=list='b' must be an int"),
        ({"batch_sampler": [[0, 99]]}, "draw 1 of the sampler's epoch is id 99"),
        ({"batch_sampler": [[0]], "sampler": [0]}, "sampler= and batch_sampler= exclude"),
        ({"batch_sampler": [[0]], "shuffle": True}, "shuffle= and batch_sampler= exclude"),
        ({"batch_sampler": [[0]], "drop_last": True}, "drop_last= and batch_sampler= exclude"),
        ({"batch_sampler": "auto"}, "batch_sampler='auto' is refused"),
        ({"sampler": [0], "ranks": "exchange"}, "needs one order for all ranks, but sampler= gives each rank its own"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_what_is_no_order_is_refused(dataset, keywords, says):
    with pytest.raises(lf.SettingsError, match=says):
        next(iter(lf.Loader(dataset, **keywords)))


def test_a_samplers_own_error_is_not_hidden(dataset):
    class Broken:
        def __iter__(self):
            yield 0
            raise ZeroDivisionError

    loader = lf.Loader(dataset, sampler=Broken())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))


WEIGHTS = np.arange(N, dtype=np.float64)


@pytest.mark.parametrize("weights", [WEIGHTS, torch.from_numpy(WEIGHTS).float(), WEIGHTS.tolist(), range(N)], ids=type)
def test_weights_draw_in_proportion_with_replacement(dataset, weights):
    loader = lf.Loader(dataset, 8, weights=weights, seed=1, num_workers=0, cache="30%")
    assert len(loader) == 8 and len(DataLoader(dataset, 8, sampler=WeightedRandomSampler(WEIGHTS, N))) == 8
    epochs = [sum(ours(loader), []) for _ in range(200)]
    assert epochs[0] != epochs[1] and all(len(ids) == N for ids in epochs)
    counts = np.bincount(np.concatenate(epochs), minlength=N)
    mean = len(epochs) * N * WEIGHTS / WEIGHTS.sum()
    assert counts[0] == 0 and (np.abs(counts - mean) <= 5 * np.sqrt(mean)).all()
    again = lf.Loader(dataset, 8, weights=weights, seed=1)
    again.set_epoch(7)
    assert sum(ours(again), []) == epochs[7], "by seed and epoch"


def test_weights_with_ranks_and_resumed(dataset):
    shares = [lf.Loader(dataset, 4, weights=WEIGHTS, seed=2, rank=r, world_size=3) for r in range(3)]
    orders = [sum(ours(loader), []) for loader in shares]
    assert [len(ids) for ids in orders] == [22] * 3 and orders[0] != orders[1] != orders[2]
    loader = lf.Loader(dataset, 8, weights=WEIGHTS, drop_last=True)
    it = iter(loader)
    next(it)
    state = loader.state_dict()
    resumed = lf.Loader(dataset, 8, weights=WEIGHTS, drop_last=True)
    resumed.load_state_dict(state)
    assert ours(resumed) == [batch.ids.tolist() for batch in it] and ours(resumed) == ours(loader)


@pytest.mark.parametrize(
    "keywords,says",
    [
        ({"weights": [1.0]}, "weights= has 1 numbers for 64 samples"),
        ({"weights": ["a"] * N}, "must be numbers"),
        ({"weights": 3}, "must be numbers"),
        ({"weights": [1.0] * 63 + [-2.0]}, "id 63 has weight -2"),
        ({"weights": [float("nan")] * N}, "id 0 has weight NaN"),
        ({"weights": [0] * N}, "the sum of all 64 is 0"),
        ({"weights": WEIGHTS, "sampler": "uniform"}, "sampler= and weights= exclude"),
        ({"weights": WEIGHTS, "batch_sampler": [[1]]}, "batch_sampler= and weights= exclude"),
        ({"weights": WEIGHTS, "shuffle": False}, "shuffle=False and weights="),
    ],
    ids=str,
)
def test_weights_that_are_none_are_refused(dataset, keywords, says):
    with pytest.raises(lf.SettingsError, match=says):
        next(iter(lf.Loader(dataset, **keywords)))


def test_a_forked_child_and_a_closed_loader_are_refused_and_do_not_hang(dataset):
    loader = lf.Loader(dataset, 8, sampler=SequentialSampler(range(N)), num_workers=1)
    passing = iter(loader)
    next(passing)
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: next(iter(loader)), loader.state_dict, lambda: loader.set_epoch(1)):
            try:
                call()
            except lf.UsageError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    loader.close()
    with pytest.raises(lf.UsageError, match="closed"):
        next(iter(loader))


SHORT = [{"name": "iis", "warm_up": 1, "reuse": 100}, {"name": "infobatch"}, {"name": "selective", "stale": 100}]


def short_loader(sampler, **settings):
    ids = np.arange(400)
    usual = {"num_workers": 0, "seed": 3, "score": "loss", "framework": "numpy", "stats": False}
    return lf.Loader((ids.astype(np.float32), ids), 16, sampler={**sampler, "short": True}, **{**usual, **settings})


def scored(loader, epoch, most=None):
    """The ids of each batch of an epoch; a sample's loss is its id."""
    loader.set_epoch(epoch)
    batches = []
    for batch in loader:
        batches.append(np.asarray(batch.ids).tolist())
        loader.score_losses(np.asarray(batch.ids).astype(np.float32) + 1, batch)
        if len(batches) == most:
            break
    return batches


@pytest.mark.parametrize("sampler", SHORT, ids=lambda sampler: sampler["name"])
def test_a_short_epoch_ends_early_and_goes_on_from_its_state(sampler):
    loader = short_loader(sampler)
    assert len(loader) == 25 and sum(map(len, scored(loader, 0))) == 400
    whole = scored(loader, 1)
    ids = sum(whole, [])
    assert 60 < len(ids) < 340 and len(set(ids)) == len(ids)
    assert loader.stats()["batches_per_epoch"] == len(whole) == -(-len(ids) // 16)
    assert all(len(batch) == 16 for batch in whole[:-1])
    first, second = short_loader(sampler), short_loader(sampler)
    scored(first, 0)
    begun = scored(first, 1, most=3)
    second.load_state_dict(first.state_dict())
    rest = [np.asarray(batch.ids).tolist() for batch in second]
    assert begun + rest == whole
    dropped = short_loader(sampler, drop_last=True)
    scored(dropped, 0)
    assert scored(dropped, 1) == [batch for batch in whole if len(batch) == 16]


def test_short_epochs_of_several_ranks_need_one_order():
    with pytest.raises(ValueError, match='give ranks="exchange", or leave short out'):
        short_loader(SHORT[0], rank=0, world_size=2)


def test_a_short_epoch_under_way_is_no_other_ranks():
    loader = short_loader(SHORT[2], ranks="exchange", rank=0, world_size=1)
    scored(loader, 0)
    scored(loader, 1, most=2)
    other = short_loader(SHORT[2], ranks="exchange", rank=1, world_size=2)
    with pytest.raises(ValueError, match="with short epochs only that rank can continue it: save states between epochs"):
        other.load_state_dict(loader.state_dict())

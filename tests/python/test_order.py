"""``loader.sampler`` and ``loader.batch_sampler``: what code that inspects a DataLoader finds there."""

import copy

import numpy as np
import pytest
import torch

import lossfeed as lf


def ids(loader):
    return [batch.ids.tolist() for batch in loader]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"shuffle": True},
        {"sampler": "uniform", "seed": 5},
        {"sampler": {"name": "uniform", "fixed_shares": True}},
        {"sampler": "importance"},
        {"sampler": "cost-aware", "cache": "50%"},
        {"sampler": "auto", "cache": "50%"},
        {"sampler": "ods", "cache": "50%"},
        {"weights": np.arange(64) + 1},
    ],
    ids=str,
)
def test_it_gives_the_epochs_ids_and_nothing_advances(numbers, keywords, ranks, drop_last):
    def made():
        return lf.Loader(numbers, 10, drop_last=drop_last, num_workers=0, rank=ranks - 1, world_size=ranks, **keywords)

    plain, looked_at = made(), made()
    for epoch in range(3):
        torch.manual_seed(3)
        delivered = ids(plain)
        torch.manual_seed(3)
        order, batches = list(looked_at.sampler), list(looked_at.batch_sampler)
        assert batches == delivered == list(looked_at.batch_sampler)
        assert len(order) == len(looked_at.sampler) >= len(sum(batches, []))
        assert order[: len(sum(batches, []))] == sum(batches, [])
        assert len(looked_at.batch_sampler) == len(batches) == len(looked_at)
        passing = iter(looked_at)
        first = next(passing).ids.tolist()
        assert list(looked_at.batch_sampler) == batches, "the epoch under way"
        assert [first, *ids(passing)] == delivered
        assert looked_at.epoch == plain.epoch == epoch + 1


def test_it_is_like_torchs_and_equal_to_what_was_asked_for(numbers):
    loader = lf.Loader(numbers, 10, shuffle=True, seed=1)
    assert loader.sampler == "uniform" and loader.sampler == loader.sampler and loader.sampler != lf.Loader(numbers).sampler
    assert loader.batch_sampler == loader.batch_sampler != lf.Loader(numbers).batch_sampler
    assert len({loader.sampler, "uniform"}) == 1 and len({loader.batch_sampler, loader.batch_sampler}) == 1
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (10, False)
    assert loader.batch_sampler.sampler == loader.sampler
    assert repr(loader.sampler) == "<lossfeed sampler 'uniform': 64 ids an epoch>"
    assert repr(loader.batch_sampler) == "<lossfeed batches of 10: 7 an epoch>"
    in_order = lf.Loader(numbers)
    assert "'uniform', in order: 64 ids" in repr(in_order.sampler) and list(in_order.sampler) == list(range(64))
    echo = lf.Loader(numbers, sampler={"name": "echo", "lag": 99}, cache="50%").sampler
    assert echo == {"name": "echo", "lag": 99} and echo == "echo" and echo != "uniform" and echo != {"name": "echo"}
    assert lf.Loader(numbers, weights=range(1, 65)).sampler == "weights"
    first = list(loader.sampler)
    loader.sampler.set_epoch(4)
    assert loader.epoch == 4 and list(loader.sampler) != first
    assert sum(ids(loader), []) != first
    loader.batch_sampler.sampler.set_epoch(0)
    assert sum(ids(loader), []) == first


def test_samplers_of_ones_own_are_what_was_given(numbers):
    torch_data = torch.utils.data
    given = torch_data.RandomSampler(range(64), generator=torch.Generator().manual_seed(1))
    loader = lf.Loader(numbers, 10, sampler=given, drop_last=True)
    assert loader.sampler is given and loader.batch_sampler.sampler is given
    before = torch.get_rng_state()
    shown = list(loader.batch_sampler)  # asks the sampler for an epoch, as torch's batch sampler does
    assert torch.equal(before, torch.get_rng_state()), "and nobody else"
    given.generator.manual_seed(1)
    passing = iter(loader)
    first = next(passing).ids.tolist()
    assert list(loader.batch_sampler) == [first, *ids(passing)] == shown, "an epoch under way is not asked for again"
    batches = torch_data.BatchSampler(given, 7, False)
    loader = lf.Loader(numbers, batch_sampler=batches)
    assert loader.batch_sampler is batches and loader.sampler is given and loader.batch_size is None
    lists = lf.Loader(numbers, batch_sampler=[[1, 2], [3]])
    assert lists.sampler is None and lists.batch_sampler == [[1, 2], [3]]


def test_a_seed_that_is_open_is_settled_by_looking_and_the_epoch_is_as_shown(numbers):
    torch.manual_seed(3)
    loader = lf.Loader(numbers, 10, shuffle=True)
    assert list(loader.batch_sampler) == ids(loader)
    in_order = lf.Loader(numbers, 10)
    before = torch.get_rng_state()
    assert list(in_order.sampler) == list(range(64))
    assert torch.equal(before, torch.get_rng_state()), "what walks in order draws nothing"


def test_what_was_left_of_an_epoch_is_of_its_whole_order(numbers):
    for keywords in ({"sampler": "importance", "seed": 0}, {"weights": range(1, 65)}, {"batch_sampler": [[5, 1], [2], [9, 9]]}):
        loader = lf.Loader(numbers, 10, num_workers=0, **keywords)
        passing = iter(loader)
        first = next(passing).ids.tolist()
        resumed = lf.Loader(numbers, 10, num_workers=0, **keywords)
        resumed.load_state_dict(loader.state_dict())
        assert list(resumed.batch_sampler) == [first, *ids(passing)] == [first, *ids(resumed)]


def test_an_order_that_nobody_knows_yet_is_refused(numbers):
    for name in ("echo", "replay"):
        loader = lf.Loader(numbers, 8, sampler=name, cache="50%")
        assert len(loader.sampler) == 64
        with pytest.raises(lf.UsageError, match="decides each batch by the cache"):
            iter(loader.sampler)
        with pytest.raises(lf.UsageError, match="decides each batch by the cache"):
            iter(loader.batch_sampler)
    loader.close()
    assert len(loader.sampler) == 64 and loader.num_workers >= 1 and loader.collate_fn is not None
    with pytest.raises(lf.UsageError, match="closed"):
        iter(loader.sampler)


def test_copies_are_made_of_what_was_asked_for_and_not_of_what_the_attributes_show(numbers):
    loader = lf.Loader(numbers, 10, shuffle=True, seed=2)
    assert loader.sampler is not None and loader.collate_fn is not None and loader.num_workers >= 1
    again = copy.deepcopy(loader)
    assert again._asked.given().keys() == {"data", "batch_size", "shuffle", "seed"}
    assert ids(again) == ids(loader)


def test_arrays_have_no_collate_fn_of_torchs(numbers):
    assert lf.Loader(numbers, framework="numpy").collate_fn is None
    mine = list
    assert lf.Loader(numbers, framework="numpy", collate_fn=mine).collate_fn is mine


def test_ids_are_a_subset(numbers):
    chosen = torch.tensor([7, 3, 60])
    loader = lf.Loader(numbers, 2, ids=chosen)
    assert len(loader.data) == 3 == len(loader.sampler) and loader.dataset is numbers
    assert torch.cat([batch.data[:, 0] for batch in loader]).tolist() == [7, 3, 60]
    assert ids(loader) == [[0, 1], [2]], "they count from 0 anew, in this order"
    data = lf.open(numbers)
    same = lf.Loader(data.subset(chosen), 2, shuffle=True, seed=1)
    assert ids(same) == ids(lf.Loader(data, 2, ids=chosen.tolist(), shuffle=True, seed=1))
    weighted = lf.Loader(numbers, 3, ids=np.array([4, 5]), weights=[0, 1])
    assert next(iter(weighted)).data[:, 0].tolist() == [5, 5]
    assert ids(copy.deepcopy(loader)) == ids(loader)

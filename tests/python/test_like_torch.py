"""What code written for torch's DataLoader finds on the loader, its batches and its loss."""

import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree

import lossfeed as lf


@pytest.fixture
def batch(numbers):
    loader = lf.Loader(numbers, 8, shuffle=False, num_workers=0)
    return loader, next(iter(loader))


def test_every_attribute_of_torchs_loader_is_there_and_says_what_was_asked_for(numbers):
    x, y = (torch.from_numpy(part) for part in numbers)
    given = torch.utils.data.TensorDataset(x, y)
    collate = torch.utils.data.default_collate
    keywords = dict(batch_size=8, drop_last=True, num_workers=1, collate_fn=collate, timeout=5.0, prefetch_factor=3, persistent_workers=True)
    theirs, ours = torch.utils.data.DataLoader(given, **keywords), lf.Loader(given, **keywords)
    assert ours.dataset is theirs.dataset is given
    for name in (*keywords, "generator", "pin_memory", "worker_init_fn", "multiprocessing_context", "in_order"):
        assert getattr(ours, name) == getattr(theirs, name), name
    public = {name for name in vars(theirs) if not name.startswith("_")} - {"batch_sampler", "sampler", "pin_memory_device"}
    assert all(hasattr(ours, name) for name in public), public
    assert (ours.sampler, ours.batch_sampler) == ("uniform", None)
    assert lf.Loader(dataset=numbers, sampler={"name": "echo"}, cache="50%").sampler == {"name": "echo"}


def test_what_was_asked_for_cannot_be_changed_afterwards(numbers):
    with pytest.raises(AttributeError):
        lf.Loader(numbers).batch_size = 4


def test_a_batch_larger_than_the_dataset_is_one_short_batch(numbers):
    loader = lf.Loader(numbers, 1000)
    assert len(loader) == 1 and [len(b) for b in loader] == [64]


def test_fields_come_by_position_and_by_name(batch):
    _, b = batch
    assert b[0] is b.data and b[1] is b.target and b[-1] is b.target and b[:] == (b.data, b.target)
    assert b["data"] is b.data and b["target"] is b.target and b["ids"] is b.ids and b["weight"] is b.weight
    assert dict(b) == {"data": b.data, "target": b.target}
    assert (lambda data, target: (data, target))(**b) == (b.data, b.target)
    with pytest.raises(KeyError, match="use data, target, ids or weight"):
        b["image"]
    with pytest.raises(IndexError):
        b[2]


def test_names_do_not_count_as_reading_weights(numbers):
    loader = lf.Loader(numbers, 8, sampler="importance", num_workers=0)
    with pytest.warns(lf.TrainingWarning, match="left the weights unread"):
        for _ in range(3):
            for b in loader:
                dict(b)
                loader.score_losses(b.ids.float(), b)


def test_to_moves_the_batch_and_leaves_it_scorable(batch):
    loader, b = batch
    assert b.to("cpu") is b and b.to(torch.device("cpu"), non_blocking=True) is b
    assert b.to("meta").data.device.type == b.target.device.type == b.weight.device.type == "meta"
    assert b.ids.tolist() == list(range(8))
    loader.score_losses(torch.ones(8), b)
    nested = lf.Batch([b.data, {"a": b.data, "n": 3}], (b.target,), b.ids, b._weight, b._ticket, b._uses).to("meta")
    assert nested.data[1]["a"].device.type == "meta" and nested.data[1]["n"] == 3 and type(nested.target) is tuple


def test_a_numpy_batch_goes_nowhere(numbers):
    b = next(iter(lf.Loader(numbers, 8, framework="numpy")))
    with pytest.raises(lf.SettingsError, match="framework='torch'"):
        b.to("cpu")


def test_a_pickled_batch_is_a_copy_that_nobody_can_score(batch):
    loader, b = batch
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(b))
        for name in ("data", "target", "ids", "weight"):
            torch.testing.assert_close(getattr(copy, name), getattr(b, name))
        assert (len(copy), copy.epoch, copy.number) == (8, 0, 0) and repr(copy) == repr(b)
        b.data.add_(1)
        assert not torch.equal(copy.data, b.data)
        with pytest.raises(lf.UsageError, match="was pickled"):
            loader.score_losses(torch.ones(8), copy)
        with pytest.raises(lf.UsageError, match="was pickled"):
            loader.cross_entropy(torch.zeros(8, 4, requires_grad=True), copy)
        b = copy
    ids, data = batch[1].ids.tolist(), batch[1].data.clone()
    with pytest.raises(lf.UsageError, match="was pickled"):
        batch[1].copy_(copy)
    assert batch[1].ids.tolist() == ids and torch.equal(batch[1].data, data), "nothing was taken over"
    with pytest.raises(lf.UsageError, match="takes over no other"):
        copy.copy_(batch[1])
    assert len(pickle.dumps(batch[1])) < 4000, "its rows, not the memory they lie in"


def test_pytrees_know_a_batch(batch):
    loader, b = batch
    doubled = _pytree.tree_map(lambda t: t * 2, b)
    assert type(doubled) is lf.Batch and torch.equal(doubled.data, b.data * 2) and len(doubled) == 8
    loader.score_losses(torch.ones(8), doubled)
    other = next(iter(lf.Loader(loader.dataset, 8, num_workers=0, seed=4, shuffle=True)))
    both = _pytree.tree_map(lambda a, b: a + b, b, other)
    assert torch.equal(both.data, b.data + other.data)


def test_the_losss_arguments_stand_where_torchs_do():
    z, y = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, -1])
    weight = torch.rand(5)
    for args in ((weight, None, -1), (None, None, -1, None, "sum"), (weight, None, -1, None, "none", 0.1)):
        torch.testing.assert_close(lf.cross_entropy(z, y, *args), F.cross_entropy(z, y, *args))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in ((None, False, -1), (None, None, -1, False), (None, True, -1, True)):
            torch.testing.assert_close(lf.cross_entropy(z, y, *args), F.cross_entropy(z, y, *args))
    with pytest.warns(UserWarning, match="reduction='sum'"):
        lf.cross_entropy(z, y, None, False, -1)

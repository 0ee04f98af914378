"""What code written for torch's DataLoader finds on the loader, its batches and its loss."""

import importlib.util
import pickle
import re
import warnings
from collections import Counter, namedtuple
from pathlib import Path

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
    for name in (*keywords, *ALIKE):
        assert getattr(ours, name) == getattr(theirs, name), name
    public = {name for name in dir(theirs) if not name.startswith("_")} - {"check_worker_number_rationality"}
    assert all(hasattr(ours, name) for name in public), public
    # Nothing asked for: torch's loader has no workers then, and ours finds how many it needs.
    theirs, ours = torch.utils.data.DataLoader(given), lf.Loader(given, num_workers=0)
    assert all(getattr(ours, name) == getattr(theirs, name) for name in (*keywords, *ALIKE))
    threads = lf.Loader(given)
    assert type(threads.num_workers) is int and threads.num_workers >= 1 and threads.prefetch_factor == 2


ALIKE = "generator", "pin_memory", "pin_memory_device", "worker_init_fn", "multiprocessing_context", "in_order"


def test_what_was_asked_for_cannot_be_changed_afterwards(numbers):
    loader = lf.Loader(numbers)
    theirs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(3)))
    for name in ("batch_size", "sampler", "batch_sampler", "drop_last", "dataset"):
        for made in (loader, theirs):
            with pytest.raises(ValueError):
                setattr(made, name, {})
    with pytest.raises(lf.SettingsError, match="collate_fn cannot change .* make another"):
        loader.collate_fn = list
    assert loader.batch_size == 1 and loader.collate_fn is torch.utils.data.default_collate
    loader.note = "a script's own"


def test_a_loader_can_be_named_with_what_its_batches_are():
    def of(loader: lf.Loader[list[torch.Tensor]]) -> None: ...

    assert of.__annotations__


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, lambda items: {"x": torch.stack([x for x, _ in items]), "first": items[0]}])
def test_any_number_of_batches_can_be_kept(workers, collate):
    """Torch's loader makes memory for each; ours has batch slots, and copies where too many of them are held."""
    data = torch.arange(600.0).reshape(300, 2), torch.arange(300)
    loader = lf.Loader(torch.utils.data.TensorDataset(*data), 2, num_workers=workers, collate_fn=collate)
    for _ in range(2):
        held = list(loader)
        lent = loader.stats()["slots_lent"]
        assert len(held) == 150 and lent == 64, "the rest lies in memory of its own"
        for number, batch in enumerate(held):
            loader.score_losses(torch.full((2,), float(number)), batch)
            if collate is not None:
                assert torch.equal(batch["first"][0], data[0][2 * number])
        x = torch.cat([batch.data if collate is None else batch["x"] for batch in held])
        assert torch.equal(x, data[0]) and torch.equal(torch.cat([batch.ids for batch in held]), data[1])
        assert loader.importance()[-1] > 0, "and is scored as any batch"
        del held, batch
        assert loader.stats()["slots_lent"] == 0


def test_text_and_lengths_that_differ_can_be_kept_too():
    items = [{"text": f"number {i}", "tokens": torch.arange(i % 5), "label": i} for i in range(100)]
    held = list(lf.Loader(lf.open(items, varying=True), pad=0, num_workers=0))
    assert [b["text"] for b in held] == [[item["text"]] for item in items]
    assert all(torch.equal(b["tokens"][0], item["tokens"]) for b, item in zip(held, items, strict=True))
    assert held[99].target is held[99]["label"], "the target is still a part of the data"


def test_a_list_of_tensors_is_a_dataset_of_them():
    items = [torch.full((4,), float(i)) for i in range(5)]
    theirs = list(torch.utils.data.DataLoader(items, 2))
    assert [b.data.tolist() for b in lf.Loader(items, 2)] == [b.tolist() for b in theirs]
    ragged = [torch.arange(i + 1) for i in range(5)]
    assert [list(map(len, b.data)) for b in lf.Loader(ragged, 3, collate_fn=list)] == [[1, 2, 3], [4, 5]]


def test_items_that_a_collate_fn_leaves_alone_are_no_pair_where_they_are_two(numbers):
    for collate in (list, tuple, lambda items: items):
        for batch in lf.Loader([{"n": i} for i in range(5)], 3, collate_fn=collate):
            assert type(batch.data) in (list, tuple) and [item["n"] for item in batch.data] == batch.ids.tolist()
        for batch in lf.Loader(numbers, 2, collate_fn=collate):
            assert [float(x[0]) for x, _ in batch.data] == batch.ids.tolist()
    made = next(iter(lf.Loader(numbers, 2, collate_fn=torch.utils.data.default_collate)))
    assert made.data.shape == (2, 3) and made.target.tolist() == [0, 1], "which are a pair"
    for batch in lf.Loader(numbers, 1, collate_fn=lambda items: (items[0], "why")):
        assert batch.target == "why" and float(batch.data[0][0]) == int(batch.ids), "a pair, of a batch of one"


Point = namedtuple("Point", "x y")
Sample = namedtuple("Sample", "image point label")


def test_fields_of_named_tuples_have_their_names():
    items = [Sample(torch.full((3,), float(i)), Point(i, -i), i % 2) for i in range(4)]
    theirs = next(iter(torch.utils.data.DataLoader(items, 4)))
    ours = next(iter(lf.Loader(items, 4)))
    assert type(ours.data) is Sample and type(ours.point) is Point
    assert torch.equal(ours.image, theirs.image) and torch.equal(ours.label, theirs.label)
    assert torch.equal(ours.point.x, theirs.point.x) and torch.equal(ours.point.y, theirs.point.y)
    assert ours.target is ours.label and len(pickle.loads(pickle.dumps(ours)).point) == 2
    with pytest.raises(AttributeError, match="no attribute 'mask'"):
        ours.mask


def test_what_is_no_dataset_says_what_to_give():
    with pytest.raises(lf.SettingsError, match="derive a stream from torch's IterableDataset, for lf.Loader; lf.stage takes"):
        lf.Loader(iter([1, 2]), 4)
    numbers = torch.utils.data.TensorDataset(torch.arange(4))
    for splits in ({"train": numbers, "test": numbers}, {"train": lf.open((np.zeros(4), np.zeros(4)))}):
        with pytest.raises(lf.SettingsError, match="dict has 'train'.*: choose a split, splits.'train'"):
            lf.Loader(splits, 4)


def test_what_cannot_be_asked_for_is_a_value_error_as_in_torch(numbers):
    x, y = map(torch.from_numpy, numbers)
    given = torch.utils.data.TensorDataset(x, y)
    one = torch.utils.data.SequentialSampler(given)
    many = torch.utils.data.BatchSampler(one, 3, False)
    for wrong in (
        {"num_workers": -1},
        {"timeout": -1},
        {"batch_size": None, "drop_last": True},
        {"num_workers": 0, "multiprocessing_context": "spawn"},
        {"num_workers": 1, "multiprocessing_context": "bad"},
        {"batch_size": 11, "sampler": one, "shuffle": True},
        {"batch_sampler": many, "sampler": one, "shuffle": True},
        {"batch_sampler": many, "shuffle": True},
        {"batch_sampler": many, "drop_last": True},
        {"batch_sampler": many, "drop_last": 3},
    ):
        for make in (torch.utils.data.DataLoader, lf.Loader):
            with pytest.raises(ValueError):
                make(given, **wrong)


def test_a_batch_larger_than_the_dataset_is_one_short_batch_on_every_rank(numbers):
    loader = lf.Loader(numbers, 1000)
    assert len(loader) == 1 and [len(b) for b in loader] == [64] and loader.batch_size == 1000
    for ranks in (2, 3, 5, 64):
        loaders = [lf.Loader(numbers, 1000, rank=rank, world_size=ranks, num_workers=0) for rank in range(ranks)]
        seen = [[b.ids.tolist() for b in loader] for loader in loaders]
        assert all(len(batches) == 1 == len(loader) for batches, loader in zip(seen, loaders))
        assert sorted(sum((batches[0] for batches in seen), [])) == list(range(64))


def test_drop_last_that_would_leave_no_batch_is_refused_and_one_of_a_sampler_of_ones_own_is_empty(numbers):
    """torch's loader has no batch then, and its loop trains nothing without a word."""
    given = torch.utils.data.TensorDataset(*map(torch.from_numpy, numbers))
    assert len(torch.utils.data.DataLoader(given, 1000, drop_last=True)) == 0
    for ranks in (1, 2):
        with pytest.raises(lf.SettingsError, match="leaves no batch.* lower batch_size or set drop_last to false"):
            lf.Loader(numbers, 1000, drop_last=True, rank=0, world_size=ranks)
    loader = lf.Loader(numbers, 1000, sampler=range(64), drop_last=True)
    assert len(loader) == 0 and list(loader) == []


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
    with pytest.raises(lf.UsageError, match="copy_ does not work on a pickled batch"):
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


def test_the_page_about_torchs_own_tests_says_what_is_expected_of_them():
    folder = Path(__file__).parents[1] / "integrations"
    spec = importlib.util.spec_from_file_location("torch_own_tests", folder / "torch_own_tests.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    assert (folder / "torch_own_tests.md").read_text() == runner.table(), "run it with --table and commit the page"
    ours = [Counter(what.outcome for what in tests.values()) for tests in runner.expected()[1].values()]
    for of in (ours[0], ours[1] + ours[2]):
        as_torch = of["passed on what torch would give"]
        others = of["refused"], of["differs"], of["skipped"] + of["not applicable"], of["not run since"]
        counts = re.findall(r"\d+", f"{of.total()} {of['passed'] + as_torch} {as_torch} {others}")
        page = (folder.parents[1] / "pybind" / "docs" / "migrate.md").read_text()
        assert re.search(r"\b" + r"\b[^0-9]*\b".join(counts) + r"\b", page), counts


class OneArray(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return torch.full((3,), float(i))


def test_a_batch_of_samples_that_are_one_array_reads_like_torchs_tensor():
    theirs = next(iter(torch.utils.data.DataLoader(OneArray(), 4)))
    ours = next(iter(lf.Loader(OneArray(), 4)))
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    for of in (
        lambda b: b[0], lambda b: b[1:], lambda b: b[torch.tensor([True, False, True, False])], lambda b: b[:, 1],
        model, lambda b: b / 255, lambda b: 2 - b, lambda b: -b, lambda b: b @ torch.ones(3), lambda b: b > 1.5,
        lambda b: b.mean(), lambda b: b.view(2, 6), lambda b: torch.cat([b, b]), lambda b: torch.stack(list(b)),
        lambda b: torch.nn.functional.mse_loss(b, torch.zeros(4, 3)), lambda b: torch.ones(4, 3) * b, lambda b: b.size(0),
        lambda b: len(b), lambda b: np.asarray(b), lambda b: np.asarray(b, np.float64), lambda b: b.to("cpu") * 1,
        lambda b: b.shape, lambda b: [row.sum() for row in b], lambda b: torch.tensor(2.0) in b,
    ):  # fmt: skip
        a, b = of(theirs), of(ours)
        assert type(a) is type(b) or isinstance(a, tuple)
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b)
        else:
            assert np.array_equal(a, b)
    assert ours["data"] is ours.data and ours.ids.tolist() == [0, 1, 2, 3]
    assert "4 samples" in repr(ours) and not hasattr(ours, "no_such_thing")
    again = pickle.loads(pickle.dumps(ours))
    assert torch.equal(again[0], theirs[0]) and torch.equal(model(again), model(theirs))


def test_so_does_one_of_numpys():
    batch = next(iter(lf.Loader(list(np.arange(12.0).reshape(4, 3)), 4, framework="numpy")))
    assert (batch[1] == [3, 4, 5]).all() and (batch * 2).sum() == 132 and batch.mean() == 5.5 and len(list(batch)) == 4

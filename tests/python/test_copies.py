"""Loaders, datasets, transforms and scores in another process, or copied: each is made anew from what it was made of."""

import copy
import io
import multiprocessing
import pickle
import queue

import numpy as np
import pytest
import torch
from conftest import epoch_ids
from PIL import Image

import lossfeed as lf


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.full((2,), float(i * i)), i % 3


def pairs(rows):
    return torch.stack([x for x, _ in rows]) + 1, torch.tensor([int(y) for _, y in rows])


def through_pickle(one):
    return pickle.loads(pickle.dumps(one))


WAYS = [through_pickle, copy.copy, copy.deepcopy]


@pytest.fixture
def folder(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for i in range(6):
            Image.fromarray(np.full((8, 8, 3), 20 * i + ord(label), np.uint8)).save(tmp_path / label / f"{i}.png")
    return tmp_path


def told(loader):
    """What two loaders that are alike have alike."""
    return [(b.ids.tolist(), b.data.tolist(), b.target.tolist()) for b in loader]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_delivers_what_the_original_does(way, folder, numbers):
    transform = lf.ImageTransform(crop=6, flip=0.5, brightness=0.4, augment="rand")
    for data, keywords in (
        (numbers, {}),
        (Squares(), {"collate_fn": pairs}),
        (str(folder), {"transform": transform}),
        (lf.open(folder, resize=4, mode="gray"), {"cache": "50%", "policy": "lru"}),
        (lf.open(numbers).subset([3, 5, 7, 11, 2]), {}),
        (lf.open(numbers).split(0.5, seed=3)[1], {"sampler": {"name": "importance"}}),
        (lf.open(numbers) + lf.open(numbers), {"weights": [1.0] * 128}),
    ):
        loader = lf.Loader(data, 4, seed=5, shuffle=True, num_workers=0, **keywords) if "sampler" not in keywords else lf.Loader(
            data, 4, seed=5, num_workers=0, **keywords)  # fmt: skip
        other = way(loader)
        assert told(other) == told(loader) and other is not loader and other._engine is not loader._engine
        assert repr(other) == repr(loader) and other.batch_size == 4 and other.num_workers == 0


@pytest.mark.parametrize("way", WAYS)
def test_datasets_are_opened_again_with_their_keywords(way, folder, numbers):
    for data in (
        lf.open(folder, resize=4, mode="gray"),
        lf.open(folder, resize=6, crop=4, latency=0.001, connections=3),
        lf.open(numbers),
        lf.open(numbers).subset(np.array([9, 1, 4])),
        *lf.open(numbers).split(0.25, seed=8),
        lf.concat([lf.open(numbers).subset([1, 2]), lf.open(numbers)]),
        lf.open([{"a": i, "b": "t" * i} for i in range(4)], target="a"),
    ):
        other = way(data)
        assert repr(other) == repr(data) and len(other) == len(data) and other.spec == data.spec
        assert str(other[0]) == str(data[0]) and str(other[-1]) == str(data[-1])


def test_a_copy_begins_anew_and_takes_its_state_along_by_state_dict(numbers):
    loader = lf.Loader(numbers, 8, sampler="importance", score="loss", seed=0, num_workers=0)
    for batch in loader:
        loader.score_losses(batch.ids.float() + 1, batch)
    for _ in zip(range(3), loader, strict=False):
        pass
    state, other = loader.state_dict(), through_pickle(loader)
    assert other.epoch == 0 and torch.isnan(other.importance()).all()
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert torch.equal(other.importance(), loader.importance())
    left = epoch_ids(other)
    loader.load_state_dict(state)
    assert [i.tolist() for i in left] == [i.tolist() for i in epoch_ids(loader)] and len(left) == 5


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_had_again_says_why(way, numbers, tmp_path):
    loader = lf.Loader(numbers, 8)
    batches = iter(loader)
    way(loader)
    next(batches)
    with pytest.raises(lf.UsageError, match=r"in the middle of an epoch.*save state_dict\(\) and load it"):
        way(loader)
    for one in (batches, iter(lf.stage([1]))):
        with pytest.raises(lf.UsageError, match="Pickle the loader, which is made again in the other process"):
            way(one)
    list(batches)
    assert len(way(loader)) == 8, "between epochs"
    with pytest.raises(lf.UsageError, match="journal=.*the file belongs to one run"):
        way(lf.Loader(numbers, 8, journal=tmp_path / "run.csv"))
    scores = lf.Scores(64, 8, seed=0, sampler="importance")
    assert list(way(scores)) == list(scores)
    with pytest.raises(lf.UsageError, match="8 batches were drawn and have not come back"):
        way(scores)


def test_what_in_a_dataset_does_not_pickle_is_named_by_pickle():
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError), match="<lambda>"):
        pickle.dumps(lf.Loader(Squares(), 4, collate_fn=lambda rows: pairs(rows)))
    held = io.StringIO()
    data = Squares()
    data.file = held
    assert copy.copy(lf.Loader(data, 4)).dataset.file is held, "a shallow copy pickles nothing of it"


def _epoch(loader, data, out):
    import lossfeed

    batches = [(b.ids.tolist(), b.data.sum().item()) for b in loader]
    out.put((batches, len(data), isinstance(loader, lossfeed.Loader)))


@pytest.mark.parametrize("context", [multiprocessing, torch.multiprocessing], ids=["multiprocessing", "torch"])
def test_a_spawned_process_gets_a_loader(context, folder, numbers):
    spawn = context.get_context("spawn")
    tensors = tuple(map(torch.from_numpy, numbers))
    for data, keywords in ((Squares(), {"collate_fn": pairs}), (tensors, {}), (folder, {"transform": lf.ImageTransform(flip=0.5)})):
        loader = lf.Loader(data, 4, shuffle=True, seed=1, **keywords)
        out = spawn.Queue()
        child = spawn.Process(target=_epoch, args=(loader, loader.data, out))
        child.start()
        try:
            while True:
                try:
                    batches, count, same = out.get(timeout=0.2)
                    break
                except queue.Empty:
                    assert child.is_alive() or child.exitcode == 0, f"the child ended with {child.exitcode}"
        finally:
            child.join()
        assert same and count == len(loader.data)
        assert batches == [(b.ids.tolist(), b.data.sum().item()) for b in loader]


def test_torchs_own_loader_reads_our_data_in_spawned_workers(numbers):
    data = lf.open(numbers)
    theirs = torch.utils.data.DataLoader(data, 16, num_workers=2, multiprocessing_context="spawn")
    assert torch.equal(torch.cat([torch.as_tensor(y) for _, y in theirs]), torch.from_numpy(numbers[1]))

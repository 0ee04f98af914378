"""Parts of a dataset: single samples, subsets, splits."""

import numpy as np
import pytest
import torch
from conftest import epoch_ids
from PIL import Image

import lossfeed as lf


@pytest.fixture
def data(numbers):
    return lf.open(numbers)


def test_a_sample_is_what_a_batch_has_of_it(data, numbers):
    x, y = data[7]
    assert isinstance(x, torch.Tensor) and x.tolist() == numbers[0][7].tolist() and int(y) == numbers[1][7]
    assert torch.equal(data[-1][0], data[63][0]) and torch.equal(data[np.int64(3)][0], data[3][0])
    for id in (64, -65):
        with pytest.raises(IndexError, match=f"sample {id} of 64"):
            data[id]
    assert len(list(data)) == 64


def test_images_are_decoded_and_errors_name_the_sample(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        for k in range(3):
            Image.fromarray(np.full((4, 6, 3), 40 * k, np.uint8)).save(tmp_path / label / f"{k}.png")
    data = lf.open(tmp_path)
    x, y = data[4]
    assert x.shape == (4, 6, 3) and x.unique().tolist() == [40] and int(y) == 1
    (tmp_path / "b" / "1.png").unlink()
    with pytest.raises(lf.SourceError, match=r"sample 4 \(.*1\.png"):
        data[4]


def test_torchs_own_loader_reads_it(data, numbers):
    batches = list(torch.utils.data.DataLoader(data, batch_size=16))
    assert torch.equal(torch.cat([x for x, _ in batches]), torch.from_numpy(numbers[0]))


@pytest.mark.parametrize("ids", [[9, 2, 40], np.array([9, 2, 40]), torch.tensor([9, 2, 40]), (9, 2, 40), range(9, 41, 15)], ids=type)
def test_a_subset_has_the_samples_that_were_named_in_their_order(data, numbers, ids):
    part = data.subset(ids)
    named = [int(i) for i in ids]
    batch = next(iter(lf.Loader(part, 3, shuffle=False)))
    assert batch.ids.tolist() == [0, 1, 2] and batch.data.tolist() == numbers[0][named].tolist()
    assert batch.target.tolist() == numbers[1][named].tolist()
    assert "of the 64 samples" in repr(part) and part.name(0) == data.name(named[0])


def test_a_subset_of_a_python_dataset_of_images_and_of_a_subset(tmp_path):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return np.float32(i), i

    part = lf.open(Pairs()).subset(range(5, 15)).subset([9, 0])
    assert next(iter(lf.Loader(part, 2, shuffle=False))).data.tolist() == [14.0, 5.0]


def test_a_subset_is_scored_cached_and_resumed_by_its_own_ids(data):
    part = data.subset(range(1, 64, 2))

    def loader():
        return lf.Loader(part, 8, sampler="importance", cache="50%", num_workers=0, seed=1)

    first = loader()
    for batch in first:
        first.score_losses(batch.data[:, 0], batch)
    state = first.state_dict()
    again = loader()
    again.load_state_dict(state)
    assert [i.tolist() for i in epoch_ids(again)] == [i.tolist() for i in epoch_ids(first)]
    with pytest.raises(lf.SettingsError, match="another run"):
        lf.Loader(data.subset(range(0, 64, 2)), 8, sampler="importance", cache="50%", seed=1).load_state_dict(state)


@pytest.mark.parametrize("part,sizes", [(0.75, (48, 16)), (10, (10, 54)), (0.999, (64, 0))])
def test_a_split_has_every_sample_once(data, part, sizes):
    if 0 in sizes:
        with pytest.raises(lf.SettingsError, match="at least one in each part"):
            data.split(part)
        return
    parts = data.split(part, seed=3)
    assert tuple(map(len, parts)) == sizes
    rows = [x[0].item() for of in parts for x, _ in of]
    assert sorted(rows) == list(range(64)) and rows != sorted(rows)
    assert [len(p) for p in data.split(part, seed=3)] == list(sizes)
    assert [data.split(part, seed=s)[0].name(5) for s in (3, 3)] == [parts[0].name(5)] * 2
    assert any(data.split(part, seed=s)[0].name(5) != parts[0].name(5) for s in range(9))


@pytest.mark.parametrize(
    "call,says",
    [
        (lambda d: d.subset([]), "no samples"),
        (lambda d: d.subset([64]), "id=64 must be 0 to 63"),
        (lambda d: d.subset([1.5]), "id=1.5 must be an int"),
        (lambda d: d.subset([3, 4, 3]), "id 3 comes twice"),
        (lambda d: d.split(1.5), "part=1.5"),
        (lambda d: d.split(65), "part=65 must be 1 to 64"),
        (lambda d: d.split("half"), "part='half' must be an int or a share"),
        (lambda d: d.split(0.5, seed=-1), "seed=-1"),
    ],
)
def test_what_is_no_part_is_refused(data, call, says):
    with pytest.raises(lf.SettingsError, match=says):
        call(data)

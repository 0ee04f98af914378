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


def test_slices_and_lists_of_ids_are_subsets(numbers):
    data = lf.open(numbers)
    for chosen in (slice(3), slice(10, 2, -3), slice(-4, None), slice(None, None, 9), [5, -1, 0], np.array([7, 3]), torch.tensor([2, -64]), range(3)):
        part, expected = data[chosen], torch.from_numpy(numbers[0][chosen].copy())
        assert isinstance(part, lf.Data) and torch.equal(torch.stack([x for x, _ in part]), expected)
        assert torch.equal(torch.cat([batch.data for batch in lf.Loader(part, 4)]), expected)
    for wrong in ("x", 1.5, (1, 2), True, [True, False], [1.0], None):
        with pytest.raises(lf.SettingsError, match="give an int, a slice or a list of ints"):
            data[wrong]
    for wrong, said in ((slice(5, 5), "a subset of no samples"), ([1, 1], "comes twice")):
        with pytest.raises(lf.SettingsError, match=said):
            data[wrong]
    with pytest.raises(IndexError, match="sample 64 of 64"):
        data[[0, 64]]


def test_datasets_of_torchs_are_put_together_with_ours_as_they_say(numbers):
    data, theirs = lf.open(numbers), torch.utils.data.TensorDataset(*map(torch.from_numpy, numbers))
    for made in (lambda: data + theirs, lambda: lf.concat([data, theirs])):
        with pytest.raises(lf.SettingsError, match=r"part 1 is of type TensorDataset: open it first, lf.concat\(\[lf.open"):
            made()
    with pytest.raises(TypeError):
        data + 3
    both = torch.from_numpy(np.concatenate([numbers[0], numbers[0]]))
    for whole in (data + lf.open(theirs), theirs + data, torch.utils.data.ConcatDataset([data, theirs])):
        assert torch.equal(torch.cat([batch.data for batch in lf.Loader(whole, 50)]), both)


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


def test_datasets_follow_each_other_as_one(data, numbers, tmp_path):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return numbers[0][i] + 100, numbers[1][i]

    both = data.subset([9, 2]) + lf.open(Pairs()) + data
    assert len(both) == 71 and both.name(1) == data.name(2) and "2 of the 64" in repr(both)
    wanted = np.concatenate([numbers[0][[9, 2]], numbers[0][:5] + 100, numbers[0]])
    for workers in (0, 2):
        for cache in (None, "50%"):
            loader = lf.Loader(both, 8, shuffle=True, num_workers=workers, cache=cache)
            for _ in range(2):
                seen = []
                for batch in loader:
                    assert np.array_equal(batch.data.numpy(), wanted[batch.ids.numpy()])
                    seen += batch.ids.tolist()
                assert sorted(seen) == list(range(71))
    state = loader.state_dict()
    lf.Loader(lf.concat([data.subset([9, 2]), lf.open(Pairs()), data]), 8, shuffle=True).load_state_dict(state)
    with pytest.raises(lf.SettingsError, match="dataset"):
        lf.Loader(lf.concat([data, data.subset([9, 2]), lf.open(Pairs())]), 8, shuffle=True).load_state_dict(state)


def test_folders_follow_each_other_and_classes_must_be_the_same(tmp_path):
    def folder(name, labels, side=4):
        for label in labels:
            (tmp_path / name / label).mkdir(parents=True)
            Image.fromarray(np.full((side, side, 3), len(name), np.uint8)).save(tmp_path / name / label / "0.png")
        return lf.open(tmp_path / name)

    one, three = folder("a", "xy"), folder("bbb", "xy")
    both = one + three
    assert both.classes == ["x", "y"] and both.labels.tolist() == [0, 1, 0, 1]
    assert [int(x.flatten()[0]) for x, _ in both] == [1, 1, 3, 3]
    assert both.cache_bytes("decoded") == one.cache_bytes("decoded") + three.cache_bytes("decoded")
    with pytest.raises(lf.SettingsError, match=r'part 1 has the classes \["x", "z"\] and part 0 \["x", "y"\]'):
        one + folder("c", "xz")
    with pytest.raises(lf.SettingsError, match=r"images of part 1 .*\[5, 5, 3\].*\[4, 4, 3\].*same resize="):
        one + folder("dd", "xy", side=5)


def test_what_cannot_follow_is_refused(data, numbers):
    for call, says in (
        (lambda: data + lf.open((numbers[0][:, :2], numbers[1])), r"part 1 holds float32 \[2\] with targets int64 \[\] and part 0 float32 \[3\]"),
        (lambda: lf.concat([]), "nothing to concatenate"),
        (lambda: lf.concat([data, numbers]), "part 1 is of type tuple: open it first"),
    ):
        with pytest.raises(lf.SettingsError, match=says):
            call()
    with pytest.raises(TypeError):
        data + 3


def test_a_dataset_behind_another_that_draws_at_random_is_found_before_a_cache_freezes_it(numbers):
    class Random(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return np.random.rand(3).astype(np.float32), i

    both = lf.open(numbers) + lf.open(Random())
    with pytest.raises(lf.SettingsError, match="of this Random changes each time"):
        lf.Loader(both, 8, cache="50%")

"""``transform=`` as a function of a batch's data: called for each batch as it is handed out, and what it returns is
``batch.data``. torchvision's own transforms are in ``tests/integrations``, and a stand-in for them is here."""

import copy
import threading

import numpy as np
import pytest
import torch
from PIL import Image

import lossfeed as lf


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Class folders of 12 pictures, 6 wide and 4 high; picture i is (i, 2i, 3i)."""
    root = tmp_path_factory.mktemp("pictures")
    for i in range(12):
        (root / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (6, 4), (i, 2 * i, 3 * i)).save(root / "ab"[i % 2] / f"{i:02}.png")
    return str(root)


class Pil(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return Image.new("RGB", (6, 4), (i, 2 * i, 3 * i)), i


class Dicts(Pil):
    def __getitem__(self, i):
        return {"image": Image.new("L", (6, 4), i), "grid": np.full((2, 3, 1), i, np.uint8), "label": i}


def halved(data):
    return data / 2


def noisy(data):
    return data + torch.rand(())


@pytest.mark.parametrize("workers", [0, 2])
def test_it_gets_each_batchs_data_once_in_the_thread_that_takes_them(numbers, workers):
    got, threads = [], set()

    def change(data):
        got.append(data.clone())
        threads.add(threading.get_ident())
        return data.reshape(len(data), 3, 1) * 2

    loader = lf.Loader(numbers, 10, shuffle=True, seed=1, num_workers=workers, transform=change, sampler="importance")
    seen = []
    for batch in loader:
        assert torch.equal(batch.data, got[-1].reshape(-1, 3, 1) * 2)
        assert torch.equal(got[-1][:, 0].long(), batch.ids) and torch.equal(batch.target, batch.ids % 4)
        x, y = batch
        assert x is batch.data and y is batch.target
        loader.score_losses(batch.ids.float(), batch)
        seen.append(batch.ids)
    assert len(got) == 7 and threads == {threading.get_ident()}
    assert torch.equal(loader.importance(), torch.arange(64.0)), "and is scored as any batch"


def test_pictures_come_channels_first_and_arrays_as_they_are(pictures):
    shapes = []

    def look(data):
        shapes.append((tuple(data.shape), data.dtype))
        return data.float().mean((2, 3))

    for data in (pictures, Pil()):
        for batch in lf.Loader(data, 12, transform=look):
            order = [int(lf.open(data).name(i)[-6:-4]) if data is pictures else i for i in range(12)]
            assert batch.data.tolist() == [[i, 2 * i, 3 * i] for i in order]
    arrays = np.zeros((12, 4, 6, 3), np.uint8), np.arange(12)
    next(iter(lf.Loader(arrays, 12, transform=look)))
    assert shapes == [((12, 3, 4, 6), torch.uint8)] * 2 + [((12, 4, 6, 3), torch.uint8)]
    assert next(iter(lf.Loader(pictures, 12))).data.shape == (12, 4, 6, 3), "without a transform they are as they were"
    batch = next(iter(lf.Loader(pictures, 12, framework="numpy", transform=lambda data: data.mean((2, 3)))))
    assert isinstance(batch.data, np.ndarray) and batch.data.shape == (12, 3)


def test_samples_that_are_no_pairs_are_changed_as_a_whole():
    def change(data):
        assert data["image"].shape == (4, 1, 4, 6), "a picture"
        assert data["grid"].shape == (4, 2, 3, 1), "an array"
        return {**data, "label": data["label"] + 100, "mean": data["image"].float().mean((1, 2, 3))}

    batch = next(iter(lf.Loader(Dicts(), 4, transform=change)))
    assert batch["mean"].tolist() == [0, 1, 2, 3] and batch.target.tolist() == [100, 101, 102, 103]
    assert batch.target is batch["label"] and set(batch.keys()) == {"image", "grid", "label", "mean"}
    # What is left of a target that the transform takes out is the one that was.
    left_out = next(iter(lf.Loader(Dicts(), 4, transform=lambda data: {"image": data["image"]})))
    assert left_out.target.tolist() == [0, 1, 2, 3]
    triples = [(torch.tensor(float(i)), torch.tensor(2.0 * i), i) for i in range(6)]
    batch = next(iter(lf.Loader(triples, 3, transform=lambda data: (data[0], data[1], -data[2]))))
    assert batch.target.tolist() == [0, -1, -2] and batch[2] is batch.target
    alone = next(iter(lf.Loader([torch.full((2,), float(i)) for i in range(4)], 4, transform=halved)))
    assert torch.equal(alone[3], torch.tensor([1.5, 1.5])), "one array reads like its tensor"
    views = next(iter(lf.Loader([torch.full((2,), float(i)) for i in range(4)], 4, transform=lambda x: (x, -x))))
    assert [part.shape for part in views] == [(4, 2), (4, 2)]


def test_it_comes_behind_a_collate_fn(numbers):
    def collate(rows):
        return {"x": torch.stack([x for x, _ in rows]), "label": torch.tensor([int(y) for _, y in rows])}

    loader = lf.Loader(numbers, 8, collate_fn=collate, transform=lambda data: {"x": data["x"].sum(1), "label": data["label"] + 1})
    for batch in loader:
        torch.testing.assert_close(batch["x"], 3 * batch.ids + 0.75)
        assert torch.equal(batch.target, batch.ids % 4 + 1)


def test_a_transform_that_fails_leaves_the_batch_to_come(numbers):
    def change(data):
        if data[0, 0] == 16 and not fixed:
            raise LookupError("not this one")
        return data

    fixed = False
    loader = lf.Loader(numbers, 8, transform=change)
    passing = iter(loader)
    assert [next(passing).ids[0].item() for _ in range(2)] == [0, 8]
    with pytest.raises(LookupError, match="not this one"):
        next(passing)
    state, fixed = loader.state_dict(), True
    loader.load_state_dict(state)
    assert [batch.ids[0].item() for batch in loader] == [16, 24, 32, 40, 48, 56]


def test_auto_takes_it_to_draw_unless_it_is_told(numbers):
    def chosen(**sampler):
        return lf.Loader(numbers, 8, sampler={"name": "auto", **sampler}, cache="30%", transform=halved)._engine.describe()[3]

    assert chosen() == "replay" and chosen(augmented=False) == "cost-aware"
    assert lf.Loader(numbers, 8, sampler="auto", cache="30%")._engine.describe()[3] == "cost-aware"


def test_it_draws_from_torchs_generator_and_a_resumed_run_draws_anew(numbers):
    def run(seed, state=None):
        torch.manual_seed(seed)
        loader = lf.Loader(numbers, 8, shuffle=True, seed=1, transform=noisy)
        if state is not None:
            loader.load_state_dict(state)
        passing = iter(loader)
        found = [(batch.ids.tolist(), batch.data.clone()) for _, batch in zip(range(3), passing)]
        return found, loader.state_dict()

    (first, state), (same, _), (other, _) = run(3), run(3), run(4)
    assert all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(first, same))
    assert [a[0] for a in other] == [a[0] for a in first] and not torch.equal(other[0][1], first[0][1])
    rest, _ = run(3, state)
    again, _ = run(4, state)
    assert [a[0] for a in rest] == [a[0] for a in again] and not torch.equal(rest[0][1], again[0][1])


def test_it_is_copied_with_the_loader(numbers):
    assert torch.equal(next(iter(copy.deepcopy(lf.Loader(numbers, 8, transform=halved)))).data[2], torch.tensor([1, 1.25, 1.125]))


def test_kept_batches_are_changed_copies(numbers):
    """A function that works in place changes a batch, and neither the dataset nor what is cached."""
    loader = lf.Loader(numbers, 1, cache=1.0, transform=lambda data: data.mul_(-1))
    for _ in range(3):
        held = list(loader)
        assert len(held) == 64 and all(batch.data[0, 0] == -float(batch.ids) for batch in held)
        del held
    assert numbers[0][5, 0] == 5


class Flip(torch.nn.Module):
    """Turns what it gets over, or not, by one draw a call: as torchvision's do, whose it is by its module."""

    __module__ = "torchvision.transforms.v2._geometry"

    def forward(self, value):
        if torch.rand(()) < 0.5:
            return value
        return {**value, "image": value["image"].flip(-1)} if isinstance(value, dict) else value.flip(-1)


def test_transforms_of_torchvision_draw_for_each_sample(pictures):
    images = torch.arange(96, dtype=torch.uint8).reshape(1, 2, 6, 8).expand(32, 2, 6, 8).clone()
    for transform in (Flip(), torch.nn.Sequential(Flip(), Flip())):
        torch.manual_seed(0)
        expected = torch.stack([transform(image) for image in images])
        loader = lf.Loader(torch.utils.data.TensorDataset(images, torch.arange(32)), 32, seed=0, transform=transform)
        torch.manual_seed(0)
        assert torch.equal(next(iter(loader)).data, expected) and not torch.equal(expected, images)
    batch = next(iter(lf.Loader([{"label": i, "image": image} for i, image in enumerate(images)], 32, transform=Flip())))
    assert batch["label"].tolist() == [*range(32)]
    assert 0 < sum(torch.equal(a, b) for a, b in zip(batch["image"], images)) < 32
    with pytest.warns(lf.TrainingWarning, match="Flip, which it has, draws once per call"):
        lf.Loader(pictures, 4, transform=lambda data, flip=Flip(): flip(data))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("collate", [None, lambda items: {"x": torch.stack([i["grid"] for i in items]).float()}])
def test_on_a_device_it_comes_behind_the_copy(collate):
    def change(data):
        field = data["x" if collate else "grid"]
        assert field.device.type == "cuda"
        return {**data, "twice": field.float() * 2}

    for epoch in range(2):
        for batch in lf.Loader(Dicts(), 5, transform=change, device="cuda", collate_fn=collate):
            assert batch["twice"].device.type == "cuda"
            assert (batch["twice"].flatten(1)[:, 0].cpu() == 2 * batch.ids.cpu()).all()

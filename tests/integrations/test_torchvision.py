"""torchvision's transforms: as ``transform=``, each image by itself, and in the loop where they want labels too."""

import functools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms as v1
from PIL import Image
from torchvision.transforms import v2

import lossfeed as lf


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Class folders of 24 pictures of noise, 20 wide and 16 high."""
    root, draw = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i in range(24):
        (root / "abc"[i % 3]).mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (16, 20, 3), np.uint8)).save(root / "abc"[i % 3] / f"{i:02}.png")
    return str(root)


RECIPE = v2.Compose(
    [
        v2.RandomResizedCrop(12, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v2.TrivialAugmentWide(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        v2.RandomErasing(0.5),
    ]
)


@pytest.mark.parametrize("workers", [0, 2])
def test_v2_transforms_are_applied_to_batches_where_they_stand(folder, workers):
    plain = lf.Loader(folder, 8, shuffle=True, seed=1, num_workers=workers)
    loader = lf.Loader(folder, 8, shuffle=True, seed=1, num_workers=workers, transform=RECIPE, cache=1.0)
    for _ in range(2):
        for ours, pixels in zip(loader, plain, strict=True):
            assert ours.data.shape == (8, 3, 12, 12) and ours.data.dtype == torch.float32
            assert torch.equal(ours.target, pixels.target) and torch.equal(ours.ids, pixels.ids)


@pytest.fixture(scope="module")
def alike():
    """16 images (3, 16, 20) that are all the same, and no image but itself: what differs was drawn."""
    image = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 16, 20), np.uint8))
    return torch.utils.data.TensorDataset(image.expand(16, 3, 16, 20).clone(), torch.arange(16))


class Own(v2.Transform):
    def make_params(self, flat_inputs):
        return {"up": int(torch.randint(0, 100, ()))}

    def transform(self, inpt, params):
        return inpt.int() + params["up"]


FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,), (0.25,))]
#: Transforms that draw for each call.
DRAWING = {
    "flip": v2.RandomHorizontalFlip(),
    "v1 flip": v1.RandomHorizontalFlip(),
    "crop": v2.RandomCrop(12, padding=2),
    "v1 resized crop": v1.RandomResizedCrop(9, antialias=True),
    "recipe": RECIPE,
    "v1 recipe": v1.Compose([v1.RandomResizedCrop(9), v1.ColorJitter(0.4), v1.ConvertImageDtype(torch.float32), v1.Normalize((0.5,), (0.2,))]),
    "by PIL": v1.Compose([v1.ToPILImage(), v1.RandomRotation(30), v1.RandomCrop(9), v1.ToTensor()]),
    "nested": v2.Compose([v2.Compose([v2.RandomVerticalFlip(), *FLOAT]), v2.CenterCrop(8)]),
    "still ones first": v2.Compose([v2.ToImage(), v2.Resize(12), v2.RandomHorizontalFlip()]),
    "apply": v2.RandomApply([v2.Grayscale(3)], 0.5),
    "choice": v2.RandomChoice([v2.RandomHorizontalFlip(1), v2.RandomVerticalFlip(1)]),
    "order": v2.RandomOrder([v2.RandomHorizontalFlip(), v2.ColorJitter(0.5)]),
    "v1 choice": v1.RandomChoice([v1.RandomHorizontalFlip(1), v1.RandomVerticalFlip(1)]),
    "augmix": v2.AugMix(),
    "v1 augment": v1.RandAugment(),
    "erasing": v2.RandomErasing(0.5),
    "blur": v2.GaussianBlur(3),
    "sequential": torch.nn.Sequential(v2.RandomHorizontalFlip(), v2.RandomPosterize(3), *FLOAT),
    "scripted": torch.jit.script(torch.nn.Sequential(v1.RandomHorizontalFlip(), v1.RandomCrop(9))),
    "one scripted": torch.jit.script(v1.RandomHorizontalFlip()),
    "own": Own(),
    "function": v2.Lambda(lambda image: image + torch.randint(0, 9, ())),
    "sizes made one": v2.Compose([v2.RandomResize(10, 20), v2.CenterCrop(8), *FLOAT]),
    "crops": v1.Compose([v1.RandomHorizontalFlip(), v1.TenCrop(8), v1.Lambda(torch.stack)]),
}


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_image_of_a_batch_is_drawn_for_by_itself(alike, name, workers):
    transform, images = DRAWING[name], alike.tensors[0]
    loader = lf.Loader(alike, 8, num_workers=workers, transform=transform)
    passing = iter(loader)
    next(passing)
    torch.manual_seed(3), random.seed(3)
    ours = next(passing)
    torch.manual_seed(3), random.seed(3)
    theirs = torch.stack([transform(image) for image in images[8:]])
    assert torch.equal(ours.data, theirs) and ours.ids.tolist() == [*range(8, 16)]
    assert type(ours.data) is torch.Tensor
    assert any(not torch.equal(image, ours.data[0]) for image in ours.data), "they are not drawn alike"


#: Transforms that draw nothing.
STILL = [
    v2.CenterCrop(9), v2.CenterCrop(40), v2.Pad(3, padding_mode="reflect"), v2.Resize(11), v2.Resize((30, 17)), v2.ToImage(),
    v2.Resize((64, 48), interpolation=v2.InterpolationMode.BICUBIC), v2.Resize(9, antialias=False), v2.Grayscale(3), v2.RGB(),
    v2.Identity(), v2.ToDtype(torch.float32, scale=True), v2.ConvertImageDtype(torch.float32), v2.ToPureTensor(),
    v2.Compose(FLOAT), v2.Compose([v2.ToImage(), v2.Resize(12), v2.CenterCrop(10), *FLOAT]),
    v1.Compose([v1.Resize(12), v1.CenterCrop(10), v1.ConvertImageDtype(torch.float32), v1.Normalize((0.5,), (0.2,))]),
    v1.Pad(2), v1.Grayscale(3), torch.nn.Sequential(v1.CenterCrop(9), v1.ConvertImageDtype(torch.float32)),
]  # fmt: skip


@pytest.mark.parametrize("transform", STILL, ids=lambda transform: str(transform).replace("\n", " "))
def test_what_draws_nothing_gives_of_a_batch_what_it_gives_of_each_image(folder, transform):
    pixels = [batch.data.permute(0, 3, 1, 2).clone() for batch in lf.Loader(folder, 7)]
    for batch, images in zip(lf.Loader(folder, 7, transform=transform), pixels, strict=True):
        assert torch.equal(batch.data, torch.stack([transform(image) for image in images])) and type(batch.data) is torch.Tensor


def test_still_steps_at_the_end_are_called_once_a_batch(folder, monkeypatch):
    calls = []
    monkeypatch.setattr(v2.Normalize, "forward", lambda self, images: calls.append(images.shape) or images)
    list(lf.Loader(folder, 8, transform=v2.Compose([v2.RandomHorizontalFlip(), *FLOAT])))
    assert calls == [(8, 3, 16, 20)] * 3


def test_dicts_go_through_whole(folder):
    items = [{"image": Image.new("RGB", (20, 16), (i, i, i)), "label": i, "name": f"picture {i}"} for i in range(6)]
    transform = v2.Compose([v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True)])
    batch = next(iter(lf.Loader(items, 6, transform=transform)))
    assert batch["image"].shape == (6, 3, 8, 8) and torch.allclose(batch["image"][:, 0, 0, 0], torch.arange(6) / 255)
    assert batch.target is batch["label"] and batch["name"] == [f"picture {i}" for i in range(6)]


def test_samples_that_are_no_pairs_are_transformed_one_by_one_and_their_labels_are_no_images():
    """torchvision takes the first tensor of a sample for its image: a batch's labels would be one."""
    image = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
    flip, as_is = v2.Compose([v2.RandomHorizontalFlip(), FLOAT[0]]), FLOAT[0](image)
    for items in ([{"label": i, "image": image} for i in range(16)], [(i, image, f"picture {i}") for i in range(16)]):
        batch = next(iter(lf.Loader(items, 16, transform=flip)))
        label, images = (batch["label"], batch["image"]) if isinstance(items[0], dict) else batch.data[:2]
        assert label.tolist() == [*range(16)] and label.dtype == torch.int64
        straight = [torch.equal(made, as_is) for made in images]
        assert any(straight) and not all(straight)
        assert all(torch.equal(made, as_is if kept else as_is.flip(-1)) for made, kept in zip(images, straight))
    assert batch.data[2] == [f"picture {i}" for i in range(16)]

    def collate(items):
        return {"image": torch.stack([x for x, _ in items]), "ids": torch.tensor([y for _, y in items])}

    alike = torch.utils.data.TensorDataset(image.expand(16, 3, 4, 4).clone(), torch.arange(16))
    batch = next(iter(lf.Loader(alike, 16, collate_fn=collate, transform=flip)))
    assert batch["ids"].tolist() == [*range(16)] and 0 < sum(torch.equal(made, as_is) for made in batch["image"]) < 16
    with pytest.raises(lf.SettingsError, match="batch of 16 has a list that is none a sample: .* in the collate_fn"):
        next(iter(lf.Loader(alike, 16, collate_fn=lambda items: [x for x, _ in items], transform=flip)))


def test_what_cannot_be_applied_to_images_says_what_to_write(alike, folder):
    turned = v2.Compose([v2.RandomRotation((45, 90), expand=True), v2.RandomHorizontalFlip()])
    with pytest.raises(lf.SettingsError, match=r"transform=Compose made \(3, .*\) of image 0 of a batch and \(3, .*end it with v2.Resize"):
        list(lf.Loader(alike, 16, transform=turned))
    assert next(iter(lf.Loader(alike, 16, transform=v2.Compose([turned, v2.CenterCrop(8)])))).data.shape == (16, 3, 8, 8)
    for to_tensor in (v1.ToTensor(), v1.Compose([v1.RandomHorizontalFlip(), v1.ToTensor()])):
        with pytest.raises(lf.SettingsError, match=r"v2.ToDtype\(torch.float32, scale=True\) in its place"):
            lf.Loader(folder, 8, transform=to_tensor)
    with pytest.raises(lf.SettingsError, match="framework='torch'"):
        lf.Loader(folder, 8, transform=v2.RandomHorizontalFlip(), framework="numpy")
    rows = np.zeros((16, 32, 32, 3), np.uint8), np.arange(16)
    with pytest.raises(lf.SettingsError, match=r"these samples are \(32, 32, 3\).*x.transpose\(0, 3, 1, 2\)"):
        next(iter(lf.Loader(rows, 16, transform=v2.RandomHorizontalFlip())))


FLIP = v2.RandomHorizontalFlip()


class Holds(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = v2.Compose([v2.RandomCrop(4)])

    def forward(self, images):
        return self.steps(images)


class Calls:
    def __call__(self, images):
        return v2.RandomGrayscale()(images)


class Compose(v2.Compose):
    """The user's own container, which does more than to call its steps."""

    def forward(self, image):
        return super().forward(image) + 1


def test_a_function_that_draws_once_a_batch_by_torchvision_is_told_so(folder):
    inner = v2.ColorJitter(0.1)
    for function, name in (
        (lambda images: FLIP(images), "RandomHorizontalFlip"),
        (lambda images: v2.RandomVerticalFlip()(images), "RandomVerticalFlip"),
        (lambda images: inner(images), "ColorJitter"),
        (Holds(), "RandomCrop"),
        (Holds().forward, "RandomCrop"),
        (functools.partial(lambda images, step: step(images), step=v2.RandomErasing()), "RandomErasing"),
        (Calls(), "RandomGrayscale"),
    ):
        with pytest.warns(lf.TrainingWarning, match=f"and {name}, which it has, draws once a call") as told:
            lf.Loader(folder, 8, transform=function)
        assert told[0].filename == __file__
    for quiet in (lambda images: v2.functional.hflip(images), lambda images: v2.Resize(4)(images), torch.nn.Sequential(torch.nn.Flatten())):
        lf.Loader(folder, 8, transform=quiet)


def test_a_container_of_the_users_own_is_called_whole(folder):
    plain, ours = (next(iter(lf.Loader(folder, 8, transform=kind([v2.CenterCrop(4)])))) for kind in (v2.Compose, Compose))
    assert torch.equal(ours.data, plain.data + 1)


@pytest.mark.parametrize("mix", [v2.MixUp(num_classes=3), v2.CutMix(num_classes=3)])
def test_mixup_and_cutmix_take_a_batch(folder, mix):
    to_float = v2.ToDtype(torch.float32, scale=True)
    loader = lf.Loader(folder, 8, sampler="importance", seed=0, transform=to_float, num_workers=0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 20, 3))
    for epoch in range(2):
        for batch in loader:
            images, labels = mix(*batch)
            assert images.shape == batch.data.shape and labels.shape == (8, 3)
            torch.testing.assert_close(labels.sum(1), torch.ones(8))
            logits = model(images)
            loss = loader.cross_entropy(logits, batch, target=labels)
            each = F.cross_entropy(logits, labels, reduction="none")
            torch.testing.assert_close(loss, (each * batch.weight).mean())
    assert loader.stats()["scores_total"] == 48 and loader.epoch_report()["weight_max"] > 1
    for transform in (mix, v2.Compose([to_float, mix]), v2.Compose([to_float, v2.RandomChoice([v2.Identity(), mix])])):
        with pytest.raises(lf.SettingsError, match=f"transform={type(mix).__name__} mixes labels too"):
            lf.Loader(folder, 8, transform=transform)

"""torchvision's v2 transforms on batches: as ``transform=``, and in the loop where they want labels too."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
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


def test_a_transform_makes_of_a_batch_what_it_makes_in_the_loop(folder):
    plain = lf.Loader(folder, 8, seed=1, shuffle=True)
    pixels = [batch.data.permute(0, 3, 1, 2).clone() for batch in plain]
    passing = iter(lf.Loader(folder, 8, seed=1, shuffle=True, transform=RECIPE))
    first = next(passing)  # an epoch draws its seed when it begins
    assert not torch.equal(first.data, RECIPE(pixels[0])), "it draws"
    for number in (1, 2):
        torch.manual_seed(number)
        ours = next(passing).data
        torch.manual_seed(number)
        assert torch.equal(ours, RECIPE(pixels[number]))


def test_dicts_go_through_whole(folder):
    items = [{"image": Image.new("RGB", (20, 16), (i, i, i)), "label": i, "name": f"picture {i}"} for i in range(6)]
    transform = v2.Compose([v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True)])
    batch = next(iter(lf.Loader(items, 6, transform=transform)))
    assert batch["image"].shape == (6, 3, 8, 8) and torch.allclose(batch["image"][:, 0, 0, 0], torch.arange(6) / 255)
    assert batch.target is batch["label"] and batch["name"] == [f"picture {i}" for i in range(6)]


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
    for transform in (mix, v2.Compose([to_float, mix])):
        with pytest.raises(lf.SettingsError, match=f"transform={type(mix).__name__} mixes labels too"):
            lf.Loader(folder, 8, transform=transform)

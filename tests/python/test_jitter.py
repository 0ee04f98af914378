"""Colours that change in every delivery: against torchvision's formulas in float64, and torchvision where it is."""

import numpy as np
import pytest
import torch
from test_crops import Words, epochs, mix, smooth

import lossfeed as lf

N, SIDE = 24, 20
ALL = {"brightness": 0.4, "contrast": (0.5, 1.6), "saturation": 0.7, "hue": 0.2, "jitter": 0.8, "grayscale": 0.2}
RANGES = {"brightness": (0.6, 1.4), "contrast": (0.5, 1.6), "saturation": (0.3, 1.7), "hue": (-0.2, 0.2)}
#: A sum of products in float32 may fall below a whole level that is met in float64; what follows passes the level on,
#: times its factor.
LEVELS = 6


@pytest.fixture(scope="module")
def pictures():
    return np.stack([smooth((SIDE, SIDE), i) for i in range(N)])


def grey(x):
    return np.floor(x @ np.array([0.2989, 0.587, 0.114]))


def changed(x, name, factor):
    """torchvision's ``v2.functional.adjust_…`` of a uint8 picture."""
    x = x.astype(np.float64)
    if name == "hue":
        return turned(x / 255, factor)
    other = {"brightness": 0.0, "contrast": grey(x).mean(), "saturation": grey(x)[..., None]}[name]
    return np.clip(x * factor + other * (1 - factor), 0, 255).astype(np.uint8)


def turned(x, turn):
    high, low = x.max(-1), x.min(-1)
    span = np.where(high == low, 1, high - low)
    r, g, b = np.moveaxis((high[..., None] - x) / span[..., None], -1, 0)
    by_red, by_green = high == x[..., 0], high == x[..., 1]
    sixth = np.where(by_red, b - g, np.where(by_green, 2 + r - b, 4 + g - r))
    hue = (sixth / 6 + 1 + turn) % 1
    saturation = (high - low) / np.where(high == 0, 1, high)
    # One formula for all sectors: each primary is at its highest within a sixth of its own hue.
    k = np.stack([(n + hue * 6) % 6 for n in (5, 3, 1)], -1)
    made = high[..., None] * (1 - saturation[..., None] * np.clip(np.minimum(k, 4 - k), 0, 1))
    return (made * 255.999).astype(np.uint8)


def drawn(key, i, ranges=RANGES, chance=0.8, grayscale=0.2):
    """What is drawn for a picture: [(name, factor)] in their order, and whether it becomes grey."""
    words = Words(mix(key ^ 0x6A697474657221), i)
    happens, becomes_grey = words.unit() < chance, words.unit() < grayscale
    order = list(ranges)
    for left in (3, 2, 1):
        other = words.below(left + 1)
        order[left], order[other] = order[other], order[left]
    factors = {name: words.uniform(*ends) for name, ends in ranges.items()}
    return [(name, factors[name]) for name in order] if happens else [], becomes_grey


def expected(x, key, i, change=changed):
    changes, becomes_grey = drawn(key, i)
    for name, factor in changes:
        x = change(x, name, factor)
    return np.repeat(grey(x.astype(np.float64)).astype(np.uint8)[..., None], 3, -1) if becomes_grey else x


def check(made, wanted):
    off = np.abs(made.astype(int) - wanted.astype(int))
    assert off.max() <= LEVELS and (off <= 1).mean() > 0.99, (off.max(), (off > 1).sum())


def test_colours_change_as_torchvisions_formulas_say(pictures):
    transform = lf.ImageTransform("uint8", layout="NHWC", **ALL)
    made = epochs((pictures, np.arange(N)), transform, 3)
    assert len(made) == 3 * N
    untouched = 0
    for (epoch, number, i), x in made.items():
        key = lf._native.ImageTransform.key(11, epoch, number)
        check(x, expected(pictures[i], key, i))
        untouched += np.array_equal(x, pictures[i])
    # A chance of 0.16, of 72.
    assert 1 <= untouched <= 30


def test_torchvision_itself_agrees(pictures):
    functional = pytest.importorskip("torchvision.transforms.v2.functional")

    def change(x, name, factor):
        adjust = getattr(functional, f"adjust_{name}")
        return adjust(torch.from_numpy(x).permute(2, 0, 1), factor).permute(1, 2, 0).numpy()

    for (epoch, number, i), x in epochs((pictures, np.arange(N)), lf.ImageTransform("uint8", layout="NHWC", **ALL), 6).items():
        check(x, expected(pictures[i], lf._native.ImageTransform.key(11, epoch, number), i, change))


@pytest.mark.parametrize("asked", [{}, {"crop": 12}, {"crop": 16, "scale": (0.3, 1.0)}, {"crop": 12, "padding": 3}])
def test_the_rest_of_the_transform_follows(pictures, asked):
    """Changed first and transformed then, whatever makes the picture small, in any element type and layout."""
    colours = {"brightness": (0.5, 0.5), "flip": 0.5, **asked}
    halved = (pictures.astype(np.float32) * np.float32(0.5)).astype(np.uint8)
    kinds = [{"dtype": "float32", "mean": 0.4, "std": 0.3}, {"dtype": "float16", "layout": "NHWC"}, {"dtype": "uint8"}]
    for kind in kinds:
        made = epochs((pictures, np.arange(N)), lf.ImageTransform(**kind, **colours), 2)
        # Resampled first: halves of what is resampled differ from what is resampled of halves.
        if "scale" in asked:
            whole = epochs((pictures, np.arange(N)), lf.ImageTransform("uint8", layout="NHWC", flip=0.5, **asked), 2)
            mine = epochs((pictures, np.arange(N)), lf.ImageTransform("uint8", layout="NHWC", **colours), 2)
            assert all(np.array_equal(mine[at], (whole[at] * np.float32(0.5)).astype(np.uint8)) for at in whole)
        else:
            of_halves = epochs((halved, np.arange(N)), lf.ImageTransform(**kind, flip=0.5, **asked), 2)
            assert all(np.array_equal(made[at], of_halves[at]) for at in made)


@pytest.mark.parametrize("cached", [{}, {"cache": "50%"}, {"cache": "100%", "cache_form": "decoded"}, {"num_workers": 2}])
def test_one_seed_gives_one_picture_wherever_it_is_made(pictures, tmp_path, cached):
    Image = pytest.importorskip("PIL.Image")
    (tmp_path / "all").mkdir()
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / "all" / f"{i:02}.png")
    transform = lf.ImageTransform("float32", crop=16, flip=0.5, **ALL)
    of_arrays = epochs((pictures, np.zeros(N, np.int64)), transform)
    of_files = epochs(lf.open(str(tmp_path)), transform, **cached)
    assert all(np.array_equal(of_arrays[at], of_files[at]) for at in of_arrays)
    other = epochs((pictures, np.zeros(N, np.int64)), transform, seed=12)
    assert any(not np.array_equal(of_arrays[at], other[at]) for at in other)


def test_one_channel_has_brightness_and_contrast_only(pictures):
    lone = np.ascontiguousarray(pictures[..., :1])
    made = epochs((lone, np.arange(N)), lf.ImageTransform("uint8", layout="NHWC", saturation=0.9, hue=0.5, grayscale=1.0), 1)
    assert all(np.array_equal(x, lone[i]) for (_, _, i), x in made.items())
    made = epochs((lone, np.arange(N)), lf.ImageTransform("uint8", layout="NHWC", contrast=(0, 0)), 1)
    assert all((x == int(lone[i].mean())).all() for (_, _, i), x in made.items())


def test_auto_takes_it_for_augmentation(pictures):
    def chosen(**asked):
        transform = lf.ImageTransform(**asked)
        return lf.Loader((pictures, np.arange(N)), 4, cache="50%", sampler="auto", transform=transform)._account.engine().describe()[3]

    assert chosen(hue=0.1) == chosen(grayscale=0.1) == "replay" and chosen() == "cost-aware"


def test_its_words_come_back():
    said = repr(lf.ImageTransform("uint8", brightness=0.25, hue=(0.0, 0.5), jitter=0.5, grayscale=0.125))
    assert "brightness=(0.75, 1.25), hue=(0.0, 0.5), jitter=0.5, grayscale=0.125" in said
    assert "jitter" not in repr(lf.ImageTransform("uint8")) and lf.ImageTransform(brightness=0, hue=0)._jitter is None


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"brightness": -0.1}, "brightness=-0.1 must be a finite number"),
        ({"contrast": (1.5, 0.5)}, "contrast=(1.5, 0.5) must be one number, or two, the least and the most"),
        ({"contrast": (0.5,)}, "contrast=(0.5,) must be one number, or two"),
        ({"saturation": "much"}, "saturation='much' must be a finite number"),
        ({"saturation": float("nan")}, "saturation=nan must be a finite number"),
        ({"hue": 0.6}, "hue=0.6 must be a finite number, 0 to 0.5"),
        ({"hue": (-0.6, 0.1)}, "hue=-0.6 must be a finite number, -0.5 to 0.5"),
        ({"hue": 0.1, "jitter": 1.5}, "jitter=1.5 must be a finite number, 0 to 1"),
        ({"jitter": 0.8}, "jitter=0.8 is the probability of a colour change, and no change is given"),
        ({"grayscale": True}, "grayscale=True must be a finite number"),
    ],
)
def test_what_makes_no_sense_is_refused(asked, words):
    with pytest.raises(lf.SettingsError) as refused:
        lf.ImageTransform(**asked)
    assert words in str(refused.value)


def test_what_has_no_colours_is_refused():
    data = np.zeros((4, 8, 8, 4), np.uint8), np.arange(4)
    with pytest.raises(lf.SettingsError, match="images of 4 channels have no colours to change, only those of 1 or 3"):
        lf.Loader(data, 2, transform=lf.ImageTransform(brightness=0.4))
    with pytest.raises(lf.SettingsError, match="transform= needs uint8 images of shape"):
        lf.Loader((np.zeros((4, 8), np.float32), np.arange(4)), 2, transform=lf.ImageTransform(brightness=0.4))

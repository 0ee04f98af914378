"""Images of any size that become one size, when a dataset is opened and anew in every delivery: against Pillow and
torchvision, and against arithmetic of their own for what chance decides."""

import io
import math

import numpy as np
import pytest
import torch

import lossfeed as lf

Image = pytest.importorskip("PIL.Image")

SIZES = [(37, 53), (61, 40), (24, 24), (90, 31), (20, 77), (45, 45), (33, 34), (64, 64)]
N = 24
#: Pillow rounds to whole levels after each of two passes, across and then down; here they come in the other order. Each
#: is within 1 level of the exact mean, so both are within 2 of each other.
LEVELS = 2
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def smooth(size, seed):
    """A picture with edges and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    waves = [np.sin(x / (2 + c) + seed) * np.cos(y / (3 + c)) for c in range(3)]
    return np.clip(127 + 100 * np.stack(waves, -1) + rng.integers(-40, 40, (*size, 3)), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def pictures():
    return [Image.fromarray(smooth(SIZES[i % len(SIZES)], i)) for i in range(N)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pictures):
    place = tmp_path_factory.mktemp("pictures")
    (place / "all").mkdir()
    for i, picture in enumerate(pictures):
        picture.save(place / "all" / f"{i:03}.png")
    return str(place)


def far(made, expected):
    """The largest difference in levels."""
    made, expected = np.asarray(made), np.asarray(expected)
    assert made.shape == expected.shape
    return int(np.abs(made.astype(int) - expected.astype(int)).max())


def covered(picture, resize, crop):
    """Of one number each torchvision's ``Resize(resize)`` and ``CenterCrop(crop)``, by Pillow."""
    (down, across), (height, width) = [n if isinstance(n, tuple) else (n, n) for n in (resize, crop)]
    w, h = picture.size
    h, w = (int(across * h / w), across) if h * across >= w * down else (down, int(down * w / h))
    top, left = round((h - height) / 2.0), round((w - width) / 2.0)
    return picture.resize((w, h), Image.BILINEAR).crop((left, top, left + width, top + height))


def epochs(data, transform, count=2, **keywords):
    """(epoch, batch number, id) -> the delivered data."""
    keywords = {"batch_size": 5, "num_workers": 0, "stats": False, "framework": "numpy", "seed": 11, **keywords}
    with lf.Loader(data, transform=transform, **keywords) as loader:
        return {
            (epoch, number, int(i)): made.copy()
            for epoch in range(count)
            for number, batch in enumerate(loader)
            for made, i in zip(batch.data, batch.ids, strict=True)
        }


# ---- what is drawn ---------------------------------------------------------------------------------------------------

WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


class Words:
    """The loader's words for chance."""

    def __init__(self, key, i):
        self.state = (mix(key ^ mix((i + GOLDEN) & WORD)) + GOLDEN) & WORD

    def word(self):
        self.state = (self.state + GOLDEN) & WORD
        return mix(self.state)

    def unit(self):
        return (self.word() >> 11) / 2**53

    def uniform(self, low, high):
        return low + (high - low) * self.unit()

    def below(self, n):
        return self.word() * n >> 64


def drawn_part(picture, key, i, scale=SCALE, ratio=RATIO):
    """torchvision's ``RandomResizedCrop.get_params`` with the loader's words for chance: (left, top, right, bottom)."""
    words = Words(key, i)
    width, height = picture.size
    for _ in range(10):
        area = width * height * words.uniform(*scale)
        aspect = math.exp(words.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = words.below(height - h + 1), words.below(width - w + 1)
            return left, top, left + w, top + h
    w, h = width, height
    if width / height < ratio[0]:
        h = round(w / ratio[0])
    elif width / height > ratio[1]:
        w = round(h * ratio[1])
    return (width - w) // 2, (height - h) // 2, (width - w) // 2 + w, (height - h) // 2 + h


@pytest.mark.parametrize("crop", [16, (40, 9)])
def test_random_parts_are_torchvisions_resized_as_pillow_does(folder, pictures, crop):
    transform = lf.ImageTransform("uint8", layout="NHWC", crop=crop, scale=SCALE)
    height, width = crop if isinstance(crop, tuple) else (crop, crop)
    boxes = set()
    for (epoch, number, i), made in epochs(lf.open(folder), transform).items():
        box = drawn_part(pictures[i], lf._native.ImageTransform.key(11, epoch, number), i)
        boxes.add(box)
        assert far(made, pictures[i].crop(box).resize((width, height), Image.BILINEAR)) <= LEVELS, (i, box)
    assert len(boxes) > 40, "drawn anew in each epoch"


def test_wide_and_narrow_parts_and_those_that_never_fit(folder, pictures):
    for scale, ratio in (((0.5, 1.0), (3.0, 4.0)), ((1.0, 1.0), (0.2, 0.3)), ((0.01, 0.02), (1.0, 1.0))):
        transform = lf.ImageTransform("uint8", layout="NHWC", crop=12, scale=scale, ratio=ratio)
        for (epoch, number, i), made in epochs(lf.open(folder), transform, count=1).items():
            box = drawn_part(pictures[i], lf._native.ImageTransform.key(11, epoch, number), i, scale, ratio)
            assert far(made, pictures[i].crop(box).resize((12, 12), Image.BILINEAR)) <= LEVELS, (i, box)


def test_torchvision_itself_agrees(pictures, folder):
    transforms = pytest.importorskip("torchvision.transforms")
    theirs = transforms.Compose([transforms.Resize(28), transforms.CenterCrop(24)])
    here = epochs(lf.open(folder), lf.ImageTransform("uint8", layout="NHWC", resize=28, crop=24, random_crop=False), 1)
    assert all(far(made, theirs(pictures[i])) <= LEVELS for (_, _, i), made in here.items())
    transform = lf.ImageTransform("uint8", layout="NHWC", crop=24, scale=SCALE)
    for (epoch, number, i), made in epochs(lf.open(folder), transform, 1).items():
        left, top, right, bottom = drawn_part(pictures[i], lf._native.ImageTransform.key(11, epoch, number), i)
        cut = transforms.functional.resized_crop(pictures[i], top, left, bottom - top, right - left, [24, 24])
        assert far(made, cut) <= LEVELS


# ---- the middle, when opened and in the loader -----------------------------------------------------------------------


def erased_part(height, width, key, i, chance):
    """torchvision's ``RandomErasing.get_params`` likewise: (top, left, height, width), or None."""
    words = Words(mix(key ^ 0x657261736521), i)
    if words.unit() >= chance:
        return None
    for _ in range(10):
        area = height * width * words.uniform(0.02, 0.33)
        aspect = math.exp(words.uniform(math.log(0.3), math.log(3.3)))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < height and w < width:
            return words.below(height - h + 1), words.below(width - w + 1), h, w
    return None


@pytest.mark.parametrize("asked", [{}, {"crop": 20, "scale": SCALE}])
def test_what_is_erased_is_0_and_the_rest_as_without(asked):
    x = np.random.default_rng(0).integers(1, 256, (N, 20, 20, 3), dtype=np.uint8)
    data, normal = (x, np.arange(N)), {"mean": 2 / 255 / 3, "std": 0.5, "flip": 0.5}
    plain = epochs(data, lf.ImageTransform("float32", **normal, **asked), 6)
    erased = epochs(data, lf.ImageTransform("float32", **normal, erase=0.5, **asked), 6)
    count = 0
    for (epoch, number, i), made in erased.items():
        expected = plain[epoch, number, i].copy()
        part = erased_part(20, 20, lf._native.ImageTransform.key(11, epoch, number), i, 0.5)
        if part is not None:
            top, left, h, w = part
            assert (expected[:, top : top + h, left : left + w] != 0).all()
            expected[:, top : top + h, left : left + w] = 0
            count += 1
        assert np.array_equal(made, expected)
    # Of 144: five standard deviations are 30.
    assert 42 < count < 102
    again = epochs(data, lf.ImageTransform("float32", **normal, erase=0.5, **asked), 6, num_workers=2, cache=0.5)
    assert all(np.array_equal(erased[at], again[at]) for at in erased)


@pytest.mark.parametrize("resize, crop", [(28, 24), (24, 24), (100, 31), (21, 20), ((20, 40), (20, 40)), ((31, 14), (30, 9))])
def test_the_middle_is_resize_and_centre_crop_wherever_it_is_taken(folder, pictures, resize, crop):
    opened = lf.open(folder, resize=resize, crop=crop)
    assert opened.spec == ("uint8", (*(crop if isinstance(crop, tuple) else (crop, crop)), 3))
    from_pictures = lf.open([(picture, i) for i, picture in enumerate(pictures)], resize=resize, crop=crop)
    transform = lf.ImageTransform("uint8", layout="NHWC", resize=resize, crop=crop, random_crop=False)
    in_the_loader = epochs(lf.open(folder), transform, 1)
    assert len(in_the_loader) == N
    for (_, _, i), made in in_the_loader.items():
        expected = covered(pictures[i], resize, crop)
        assert far(made, expected) <= LEVELS, i
        assert np.array_equal(made, np.asarray(opened[i][0])), "one picture, whoever takes it"
        assert far(from_pictures[i][0], expected) <= LEVELS, i


def test_a_resized_image_is_cropped_at_random_places(folder, pictures):
    transform = lf.ImageTransform("uint8", layout="NHWC", resize=30, crop=24)
    places = set()
    for (_, _, i), made in epochs(lf.open(folder), transform).items():
        w, h = pictures[i].size
        h, w = (int(30 * h / w), 30) if w <= h else (30, int(30 * w / h))
        whole = np.asarray(pictures[i].resize((w, h), Image.BILINEAR))
        windows = {(top, left): whole[top : top + 24, left : left + 24] for top in range(h - 23) for left in range(w - 23)}
        place = min(windows, key=lambda at: far(made, windows[at]))
        assert far(made, windows[place]) <= LEVELS
        places.add(place)
    assert len(places) > 15


# ---- the rest of the loader ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keywords",
    [{"num_workers": 3}, {"cache": 1.0}, {"cache": 0.5, "num_workers": 2, "policy": "lru"}, {"prefetch_factor": 4, "num_workers": 1}],
)
@pytest.mark.parametrize("asked", [{"scale": SCALE}, {"resize": 30}])
def test_one_seed_is_one_set_of_crops_whatever_workers_and_cache_do(folder, keywords, asked):
    transform = lf.ImageTransform("float16", mean=0.5, std=0.25, crop=20, flip=0.5, **asked)
    first = epochs(lf.open(folder), transform, shuffle=True)
    again = epochs(lf.open(folder), transform, shuffle=True, **keywords)
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[at], again[at]) for at in first)
    other = epochs(lf.open(folder), transform, shuffle=False, seed=12)
    same = epochs(lf.open(folder), transform, shuffle=False)
    assert sum(np.array_equal(same[at], other[at]) for at in same) < 5, "few places and two sides: some agree"


def test_the_transform_after_a_crop_is_the_transform(folder):
    crops = epochs(lf.open(folder), lf.ImageTransform("uint8", layout="NHWC", crop=18, scale=SCALE), 1)
    made = epochs(lf.open(folder), lf.ImageTransform("float32", mean=(0.1, 0.2, 0.3), std=0.5, crop=18, scale=SCALE, flip=1.0), 1)
    for at, crop in crops.items():
        expected = (crop[:, ::-1].transpose(2, 0, 1) / 255 - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.5
        np.testing.assert_allclose(made[at], expected, atol=1e-5)


def test_a_resumed_run_crops_what_the_first_would_have(folder):
    transform = lf.ImageTransform(crop=20, scale=SCALE, flip=0.5)
    keywords = {"batch_size": 4, "num_workers": 2, "seed": 9, "transform": transform, "stats": False, "framework": "torch"}
    with lf.Loader(lf.open(folder), **keywords) as loader:
        loader.set_epoch(3)
        passing = iter(loader)
        for _ in range(2):
            next(passing)
        state = loader.state_dict()
        rest = [b.data.clone() for b in passing]
    with lf.Loader(lf.open(folder), **keywords) as loader:
        loader.load_state_dict(state)
        assert len(rest) == 4 and all(torch.equal(a, b.data) for a, b in zip(rest, loader, strict=True))


def test_rows_of_one_size_are_cropped_in_every_form_alike():
    """Arrays, a Python dataset, and files of one size kept in either form."""
    x = np.stack([smooth((30, 40), i) for i in range(10)])
    transform = lf.ImageTransform("uint8", layout="NHWC", crop=16, scale=SCALE, flip=0.5)
    expected = epochs((x, np.arange(10)), transform)
    for keywords in ({"cache": 1.0}, {"cache": 0.5, "num_workers": 2}):
        again = epochs((x, np.arange(10)), transform, **keywords)
        assert all(np.array_equal(expected[at], again[at]) for at in expected)
    as_dataset = epochs([(Image.fromarray(p), i) for i, p in enumerate(x)], transform, cache=1.0)
    assert all(np.array_equal(expected[at], as_dataset[at]) for at in expected)


def test_the_cache_keeps_what_came_before_chance_in_either_form(tmp_path):
    x = [smooth((30, 40), i) for i in range(10)]
    (tmp_path / "all").mkdir()
    for i, p in enumerate(x):
        Image.fromarray(p).save(tmp_path / "all" / f"{i}.png")
    transform = lf.ImageTransform("uint8", layout="NHWC", crop=16, scale=SCALE)
    data = lf.open(str(tmp_path))
    expected = epochs(data, transform, 3)
    for form in ("encoded", "decoded"):
        again = epochs(data, transform, 3, cache=1.0, cache_form=form)
        assert all(np.array_equal(expected[at], again[at]) for at in expected), form
    # What was resized when it was opened is cropped from that, cached or not.
    small = lf.open(str(tmp_path), resize=24, crop=20)
    from_small = epochs(small, transform, 2)
    for (epoch, number, i), made in from_small.items():
        picture = Image.fromarray(np.asarray(small[i][0]))
        box = drawn_part(picture, lf._native.ImageTransform.key(11, epoch, number), i)
        assert far(made, picture.crop(box).resize((16, 16), Image.BILINEAR)) <= LEVELS
    decoded = epochs(small, transform, 2, cache=1.0, cache_form="decoded")
    assert all(np.array_equal(from_small[at], decoded[at]) for at in from_small)


def test_images_of_several_sizes_are_refused_with_both_remedies_where_they_must_be_alike(folder):
    transform = lf.ImageTransform(crop=16, scale=SCALE)
    for keywords in ({}, {"transform": transform, "cache": 1.0, "cache_form": "decoded"}):
        loader = lf.Loader(lf.open(folder), 4, num_workers=0, stats=False, **keywords)
        says = r"61 × 40 .* 37 × 53: .*scale=.*cache_form=\"encoded\".*resize=\(37, 53\)"
        with pytest.raises(lf.SampleError, match=says):
            list(loader)


def test_gray_pictures_and_jpegs(tmp_path):
    (tmp_path / "all").mkdir()
    for i in range(6):
        smooth_gray = Image.fromarray(smooth((40 + 9 * i, 70), i)).convert("L")
        smooth_gray.save(tmp_path / "all" / f"{i}.jpg", quality=95)
    transform = lf.ImageTransform("uint8", layout="NHWC", crop=(9, 14), scale=(0.3, 1.0))
    for (epoch, number, i), made in epochs(lf.open(str(tmp_path)), transform).items():
        picture = Image.open(tmp_path / "all" / f"{i}.jpg")
        box = drawn_part(picture, lf._native.ImageTransform.key(11, epoch, number), i, (0.3, 1.0))
        expected = np.asarray(picture.crop(box).resize((14, 9), Image.BILINEAR))[:, :, None]
        assert far(made, expected) <= LEVELS


def test_the_sampler_is_told_that_deliveries_differ(folder):
    def chosen(**asked):
        transform = lf.ImageTransform(crop=16, **asked)
        with lf.Loader(lf.open(folder), 4, cache=0.5, sampler="auto", transform=transform, stats=False, framework="numpy") as loader:
            return loader._settings["sampler"]["augmented"]

    assert chosen(scale=SCALE) and chosen(resize=20) and not chosen(resize=20, random_crop=False)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"scale": SCALE}, r"scale=\(0.08, 1.0\) needs crop="),
        ({"resize": 256}, "resize=256 needs crop="),
        ({"crop": 224, "ratio": RATIO}, "give their scale="),
        ({"crop": 224, "scale": SCALE, "resize": 256}, "leave one out"),
        ({"crop": 224, "resize": 256, "ratio": RATIO}, "keeps the aspect ratio"),
        ({"crop": 224, "scale": SCALE, "padding": 4}, "with padding=4"),
        ({"crop": 224, "scale": SCALE, "random_crop": False}, "for evaluation use resize=256"),
        ({"crop": 224, "resize": 200}, r"crop=\(224, 224\) is larger than resize=\(200, 200\)"),
        ({"crop": 224, "resize": (256, 200)}, "is larger than"),
        ({"crop": 224, "resize": (1, 2, 3)}, "must be .height, width., or one int"),
        ({"crop": 224, "scale": 0.5}, "scale=0.5 must be two numbers, the least and the most"),
        ({"crop": 224, "scale": (0.0, 1.0)}, "must be two numbers above 0, the least first"),
        ({"crop": 224, "scale": (0.5, 0.2)}, "must be two numbers above 0, the least first"),
        ({"crop": 224, "scale": (0.5, 1.2)}, "scale=1.2 must be a finite number, 0 to 1"),
        ({"crop": 224, "scale": SCALE, "ratio": (2.0, 1.0)}, "ratio=.2.0, 1.0. must be two numbers above 0"),
        ({"crop": 224, "scale": SCALE, "ratio": (1.0, math.inf)}, "ratio=inf must be a finite number"),
        ({"erase": 1.5}, "erase=1.5 must be a finite number, 0 to 1"),
        ({"mean": 123.675}, "mean=123.675: mean and std are in units of 0 to 1, not of 0 to 255: write 123.675/255 = 0.485"),
        ({"mean": (0.5, 0.5, 127.5)}, "write 127.5/255 = 0.5"),
        ({"std": 58.395}, "write 58.395/255 = 0.229"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_numbers(keywords, message):
    with pytest.raises(lf.SettingsError, match=message):
        lf.ImageTransform(**keywords)


def test_what_does_not_fit_the_data_is_refused(folder):
    y = np.arange(8)
    scaled = lf.ImageTransform(crop=4, scale=SCALE)
    with pytest.raises(lf.SettingsError, match="images of 4 channels cannot be resized, only those of 1 or 3"):
        lf.Loader((np.zeros((8, 9, 9, 4), np.uint8), y), 4, transform=scaled)
    with pytest.raises(lf.SettingsError, match=r"this dataset's samples are float32 of shape \[9\]"):
        lf.Loader((np.zeros((8, 9), np.float32), y), 4, transform=scaled)
    with pytest.raises(lf.SettingsError, match="mean has 2 values for 3 channels"):
        lf.Loader(lf.open(folder), 4, transform=lf.ImageTransform(crop=4, scale=SCALE, mean=(0.1, 0.2)))
    with pytest.raises(lf.SettingsError, match=r"crop=224 needs resize=.*resize=256, crop=224"):
        lf.open(folder, crop=224)
    with pytest.raises(lf.SettingsError, match=r"crop=\(9, 9\) is larger than resize=\(8, 8\)"):
        lf.open(folder, resize=8, crop=9)
    with pytest.raises(lf.SettingsError, match="mode, resize and crop are for images"):
        lf.open((np.zeros((8, 9), np.float32), y), resize=8, crop=8)
    said = repr(lf.ImageTransform(crop=224, scale=SCALE, flip=0.5))
    assert said == f"lossfeed.ImageTransform('float32', flip=0.5, crop=(224, 224), scale={SCALE}, ratio={RATIO}, layout='NCHW')"
    said = repr(lf.ImageTransform(crop=224, resize=256, random_crop=False))
    assert said == "lossfeed.ImageTransform('float32', crop=(224, 224), resize=(256, 256), random_crop=False, layout='NCHW')"


def test_worker_processes_resize_too(pictures):
    plain = lf.open([(p, i) for i, p in enumerate(pictures)], resize=28, crop=24)
    spread = lf.open([(p, i) for i, p in enumerate(pictures)], resize=28, crop=24, processes=1)
    assert all(np.array_equal(plain[i][0], spread[i][0]) for i in range(N))


def test_a_truncated_file_is_a_bad_sample_by_name(tmp_path, pictures):
    (tmp_path / "all").mkdir()
    for i, picture in enumerate(pictures[:6]):
        encoded = io.BytesIO()
        picture.save(encoded, "PNG")
        data = encoded.getvalue()
        (tmp_path / "all" / f"{i}.png").write_bytes(data if i != 4 else data[: len(data) // 2])
    transform = lf.ImageTransform("uint8", crop=16, scale=SCALE)
    with lf.Loader(lf.open(str(tmp_path)), 6, transform=transform, on_error="skip", num_workers=0, stats=False) as loader:
        (batch,) = loader
        assert sorted(np.asarray(batch.ids).tolist()) == [0, 1, 2, 3, 5]
        assert [bad["id"] for bad in loader.bad_samples()] == [4]

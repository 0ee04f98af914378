"""RandAugment and TrivialAugment Wide in every delivery: against plain formulas, and torchvision where it is."""

import math

import numpy as np
import pytest
import torch
from test_crops import Words, epochs, mix, smooth
from test_jitter import changed

import lossfeed as lf

N, SIDE = 28, 20
FILL = (10, 128, 250)
#: Ranges of RandAugment and of TrivialAugment Wide: shear, degrees, factor, bits.
RANGES = {"rand": (0.3, 30, 0.9, 4), "trivial": (0.99, 135, 0.99, 6)}
COLORS = {6: "brightness", 7: "saturation", 8: "contrast"}
#: float32 may fall below a whole level that is met in float64, by one operation.
LEVELS = 1


@pytest.fixture(scope="module")
def pictures():
    return np.stack([smooth((SIDE, SIDE), i) for i in range(N)])


def drawn(key, i, name, size, bins=31, ops=1, magnitude=None):
    """[(number of the operation, strength)] of a picture."""
    words = Words(mix(key ^ 0x61_7567_6D65_6E74), i)
    return [operation(words.below(14), words.below(bins), words.word() >> 63, name, size, bins, magnitude) for _ in range(ops)]


def operation(number, bin, negative, name, size, bins, magnitude):
    shear, degrees, factor, bits = RANGES[name]
    bin = bin if magnitude is None else magnitude
    share, sign = bin / (bins - 1), -1 if negative else 1
    if number in (3, 4):
        side = size[4 - number]
        far = 32 * bin // (bins - 1) if name == "trivial" else 150 * side * bin // (331 * (bins - 1))
        return number, sign * far
    strength = {1: shear, 2: shear, 5: degrees, 6: factor, 7: factor, 8: factor, 9: factor}.get(number)
    if strength is not None:
        return number, (number >= 6) + sign * (strength * bin / (bins - 1))
    return number, {10: round(8 - bits * bin / (bins - 1)), 11: 255 * (1 - share)}.get(number)


def moved(x, fill, from_y, from_x):
    """Each pixel from the nearest one of where it comes from; and where that is a matter of rounding."""
    height, width, _ = x.shape
    near = [np.floor(at + 0.5).astype(int) for at in (from_y, from_x)]
    unsure = np.logical_or(*(np.abs(at - np.floor(at) - 0.5) < 1e-4 for at in (from_y, from_x)))
    inside = (near[0] >= 0) & (near[0] < height) & (near[1] >= 0) & (near[1] < width)
    made = x[np.clip(near[0], 0, height - 1), np.clip(near[1], 0, width - 1)]
    return np.where(inside[..., None], made, np.array(fill, np.uint8)), unsure


def geometry(x, number, strength, fill):
    height, width, _ = x.shape
    y, at = np.mgrid[:height, :width].astype(np.float64)
    if number == 1:
        return moved(x, fill, y, at + strength * (y + 0.5))
    if number == 2:
        return moved(x, fill, y + strength * (at + 0.5), at)
    if number == 3:
        return moved(x, fill, y, at - strength)
    if number == 4:
        return moved(x, fill, y - strength, at)
    sin, cos = math.sin(math.radians(strength)), math.cos(math.radians(strength))
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    y, at = y - middle_y, at - middle_x
    return moved(x, fill, sin * at + cos * y + middle_y, cos * at - sin * y + middle_x)


def sharpened(x, factor):
    made, v = x.astype(np.float64), x.astype(np.float64)
    if min(x.shape[:2]) > 2:
        around = sum(v[1 + i : v.shape[0] - 1 + i, 1 + j : v.shape[1] - 1 + j] for i in (-1, 0, 1) for j in (-1, 0, 1))
        blurred = np.round((around + 4 * v[1:-1, 1:-1]) / 13)
        made[1:-1, 1:-1] = blurred + (v[1:-1, 1:-1] - blurred) * factor
    return np.clip(made + 1e-9, 0, 255).astype(np.uint8)


def equalized(level):
    """Pillow's, of one channel."""
    counts = np.bincount(level.ravel(), minlength=256)
    step = (counts.sum() - counts[level.max()]) // 255
    if step == 0:
        return level
    return np.minimum((np.cumsum(counts) - counts + step // 2) // step, 255).astype(np.uint8)[level]


def stretched(level):
    low, high = int(level.min()), int(level.max())
    return level if low == high else ((level.astype(np.float64) - low) / (high - low) * 255).astype(np.uint8)


def plain(x, number, strength, fill):
    """The operation on a picture; and where it is a matter of rounding."""
    sure = np.zeros(x.shape[:2], bool)
    if number == 0:
        return x, sure
    if number <= 5:
        return geometry(x, number, strength, fill)
    if number in COLORS:
        return (x if x.shape[2] == 1 and number == 7 else colored(x, COLORS[number], strength)), sure
    if number == 9:
        return sharpened(x, strength), sure
    if number == 10:
        return x >> (8 - strength) << (8 - strength), sure
    if number == 11:
        return np.where(x >= strength - 1e-6, 255 - x, x), sure
    by_channel = stretched if number == 12 else equalized
    return np.stack([by_channel(x[..., c]) for c in range(x.shape[2])], -1), sure


def colored(x, name, factor):
    if x.shape[2] == 3:
        return changed(x, name, factor)
    v = x.astype(np.float64)
    return np.clip(v * factor + (v.mean() if name == "contrast" else 0.0) * (1 - factor), 0, 255).astype(np.uint8)


def check(made, wanted, unsure, what):
    off = np.abs(made.astype(int) - wanted.astype(int)).max(-1)
    assert off[~unsure].max(initial=0) <= LEVELS, (what, off.max(), (off > LEVELS).sum())


def nasty(channels):
    """Pictures of every odd shape: chance, one level, and none."""
    rng = np.random.default_rng(3)
    for size in ((1, 1), (1, 9), (9, 1), (2, 2), (3, 3), (7, 12), (40, 33)):
        noise = rng.integers(0, 256, (6, *size, channels), dtype=np.uint8)
        levels = [np.full((6, *size, channels), level, np.uint8) for level in (0, 255)]
        faint = rng.integers(100, 104, (6, *size, channels), dtype=np.uint8)
        yield np.concatenate([noise, faint, *levels])


@pytest.mark.parametrize("channels", [1, 3])
def test_one_operation_is_what_plain_formulas_say(pictures, channels):
    """Of every picture, in every epoch another one."""
    seen = set()
    fill = FILL[:channels]
    for data in [np.ascontiguousarray(pictures[..., :channels]), *nasty(channels)]:
        size = data.shape[1:3]
        asked = {"trivial": {"bins": 31}, "rand": {"ops": 1, "magnitude": 21}}
        for name, options in asked.items():
            augment = {"name": name, "fill": list(fill), **options}
            transform = lf.ImageTransform("uint8", layout="NHWC", augment=augment)
            for (epoch, number, i), made in epochs((data, np.arange(len(data))), transform, 8).items():
                key = lf._native.ImageTransform.key(11, epoch, number)
                [what] = drawn(key, i, name, size, magnitude=options.get("magnitude"))
                check(made, *plain(data[i], *what, fill), (what, size))
                seen.add((name, what[0]))
    assert len(seen) == 28


def test_operations_follow_each_other_in_what_was_drawn(pictures):
    """Those without rounding, to the bit, after the crop, its padding and the flip."""
    augment = {"name": "rand", "ops": 3, "magnitude": 4, "bins": 9, "fill": 7}
    asked = {"dtype": "uint8", "layout": "NHWC", "crop": 18, "padding": 3, "flip": 0.5}
    data, exact = (pictures, np.arange(N)), {0, 1, 2, 3, 4, 10, 11, 13}
    before, compared = epochs(data, lf.ImageTransform(**asked), 12), 0
    for (epoch, number, i), made in epochs(data, lf.ImageTransform(**asked, augment=augment), 12).items():
        x = before[epoch, number, i]
        what = drawn(lf._native.ImageTransform.key(11, epoch, number), i, "rand", (18, 18), 9, 3, 4)
        unsure = np.zeros((18, 18), bool)
        for one in what:
            x, more = plain(x, *one, (7, 7, 7))
            unsure |= more
        if exact.issuperset(n for n, _ in what) and not unsure.any():
            assert np.array_equal(made, x), what
            compared += 1
    assert compared > 30


@pytest.fixture(scope="module")
def v2():
    return pytest.importorskip("torchvision.transforms.v2")


def theirs(v2, x, number, strength, fill):
    """The operation by torchvision."""
    functional, x = v2.functional, torch.from_numpy(x).permute(2, 0, 1)
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    fill = [float(level) for level in fill]
    if number in (1, 2):
        degrees = math.degrees(math.atan(strength))
        still["shear"][number - 1] = degrees
        x = functional.affine(x, **still, fill=fill, center=[0, 0])
    elif number in (3, 4):
        still["translate"][number - 3] = strength
        x = functional.affine(x, **still, fill=fill)
    else:
        x = {
            0: lambda: x,
            5: lambda: functional.rotate(x, strength, fill=fill),
            6: lambda: functional.adjust_brightness(x, strength),
            7: lambda: functional.adjust_saturation(x, strength),
            8: lambda: functional.adjust_contrast(x, strength),
            9: lambda: functional.adjust_sharpness(x, strength),
            10: lambda: functional.posterize(x, strength),
            11: lambda: functional.solarize(x, strength),
            12: lambda: functional.autocontrast(x),
            13: lambda: functional.equalize(x),
        }[number]()
    return x.permute(1, 2, 0).numpy()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["trivial", "rand"])
def test_torchvision_itself_agrees(v2, pictures, name, channels):
    fill, counts = FILL[:channels], np.zeros((14, 3), int)
    large = np.stack([smooth((224, 160), i) for i in range(12)])
    for data in [np.ascontiguousarray(d[..., :channels]) for d in (pictures, large)] + list(nasty(channels)):
        magnitude = None if name == "trivial" else 21
        options = {} if magnitude is None else {"ops": 1, "magnitude": magnitude}
        transform = lf.ImageTransform("uint8", layout="NHWC", augment={"name": name, "fill": list(fill), **options})
        for (epoch, batch, i), made in epochs((data, np.arange(len(data))), transform, 12).items():
            key = lf._native.ImageTransform.key(11, epoch, batch)
            [(number, strength)] = drawn(key, i, name, data.shape[1:3], magnitude=magnitude)
            _, unsure = plain(data[i], number, strength, fill)
            wanted = theirs(v2, data[i], number, strength, fill)
            check(made, wanted, unsure, (number, strength, data.shape))
            off = np.abs(made.astype(int) - wanted.astype(int)).max(-1)
            counts[number] += [off.size, (off > 0).sum(), unsure.sum()]
    print(f"\n{name}, {channels} channels: (number, pixels, of them not the same, matter of rounding)")
    print("\n".join(f"{number:3} {count}" for number, count in enumerate(counts)))
    assert (counts[:, 0] > 0).all()


@pytest.mark.parametrize("bins", [2, 5, 11, 31, 64])
def test_strengths_are_those_of_torchvision(v2, bins):
    names = "Identity ShearX ShearY TranslateX TranslateY Rotate Brightness Color Contrast Sharpness Posterize Solarize AutoContrast Equalize"
    for name, transform in (("rand", v2.RandAugment), ("trivial", v2.TrivialAugmentWide)):
        space = transform._AUGMENTATION_SPACE
        assert list(space) == names.split(), "the same operations"
        for number, (of, signed) in enumerate(space.values()):
            values = of(bins, 48, 210)
            assert (values is None) == (operation(number, 1, 0, name, (48, 210), bins, None)[1] is None)
            for bin in range(bins if values is not None else 0):
                plus, minus = (operation(number, bin, sign, name, (48, 210), bins, None)[1] for sign in (0, 1))
                base = 1.0 if 6 <= number <= 9 else 0.0
                value = float(values[bin]) * (255 if number == 11 else 1)
                # A translation of all but 16 pixels is one by 15 there.
                near = (int(value - 1e-4), int(value + 1e-4)) if number in (3, 4) else (value,)
                assert min(abs(plus - base - v) for v in near) <= 1e-6 * max(1.0, value), (name, number, bin)
                assert minus - base == pytest.approx(base - plus if signed else plus - base)


@pytest.mark.parametrize("asked", [{}, {"crop": 12}, {"crop": 16, "scale": (0.3, 1.0)}, {"crop": 12, "padding": 3}, {"resize": 18, "crop": 12}])
@pytest.mark.parametrize("hue", [0.0, 0.2])
def test_the_rest_of_the_transform_comes_before_and_after(pictures, asked, hue):
    """As if bytes that were cropped, mirrored and coloured had been saved, and were augmented; then normalised."""
    data = pictures, np.arange(N)
    early, late = {"flip": 0.5, "hue": hue, **asked}, {"mean": 0.4, "std": (0.3, 0.2, 0.1)}
    before = epochs(data, lf.ImageTransform("uint8", layout="NHWC", **early), 1)
    order = [i for _, _, i in before]
    saved = np.stack([before[0, 0 + n // 5, i] for n, i in enumerate(order)])[np.argsort(order)], np.arange(N)
    augment = {"name": "rand", "ops": 2, "magnitude": 17, "fill": 99}
    for kind in ({"dtype": "float32", **late}, {"dtype": "float16", "layout": "NHWC", **late}, {"dtype": "uint8", "erase": 0.5}):
        of_saved = epochs(saved, lf.ImageTransform(**kind, augment=augment), 1)
        made = epochs(data, lf.ImageTransform(**kind, **early, augment=augment), 1)
        assert made.keys() == of_saved.keys() and all(np.array_equal(made[at], of_saved[at]) for at in made)


@pytest.mark.parametrize("cached", [{}, {"cache": "50%"}, {"cache": "100%", "cache_form": "decoded"}, {"num_workers": 2}, {"num_workers": 5}])
@pytest.mark.parametrize("augment", ["trivial", "rand"])
def test_one_seed_gives_one_picture_wherever_it_is_made(pictures, tmp_path, cached, augment):
    Image = pytest.importorskip("PIL.Image")
    (tmp_path / "all").mkdir()
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / "all" / f"{i:02}.png")
    transform = lf.ImageTransform("float32", crop=16, padding=1, flip=0.5, brightness=0.4, augment=augment)
    of_arrays = epochs((pictures, np.zeros(N, np.int64)), transform)
    of_files = epochs(lf.open(str(tmp_path)), transform, **cached)
    assert all(np.array_equal(of_arrays[at], of_files[at]) for at in of_arrays)
    other = epochs((pictures, np.zeros(N, np.int64)), transform, seed=12)
    assert any(not np.array_equal(of_arrays[at], other[at]) for at in other)


def test_who_retouches_is_a_matter_of_the_device_alone(pictures):
    data, asked = (pictures, np.arange(N)), {"crop": 16, "flip": 0.5, "hue": 0.2, "augment": "rand"}
    here, said = (lf.ImageTransform("uint8", **asked, **more) for more in ({}, {"retouch": "threads"}))
    assert "retouch='threads'" in repr(said) and "retouch" not in repr(here)
    one, other = epochs(data, here, 1), epochs(data, said, 1)
    assert all(np.array_equal(one[at], other[at]) for at in one)


def test_a_resumed_run_augments_as_the_first_would_have(pictures):
    transform = lf.ImageTransform("uint8", augment="trivial", flip=0.5, crop=16)
    keywords = {"transform": transform, "num_workers": 0, "seed": 3, "shuffle": True, "stats": False, "framework": "numpy"}
    with lf.Loader((pictures, np.arange(N)), 4, **keywords) as loader:
        list(loader)
        passing = iter(loader)
        for _ in range(3):
            next(passing)
        state = loader.state_dict()
        rest = [(batch.ids.copy(), batch.data.copy()) for batch in passing]
    with lf.Loader((pictures, np.arange(N)), 4, **keywords) as loader:
        loader.load_state_dict(state)
        again = [(batch.ids.copy(), batch.data.copy()) for batch in loader]
    assert len(rest) == len(again) == 4
    assert all(np.array_equal(a, b) for one, other in zip(rest, again, strict=True) for a, b in zip(one, other, strict=True))


def test_auto_takes_it_for_augmentation(pictures):
    def chosen(**asked):
        transform = lf.ImageTransform(**asked)
        return lf.Loader((pictures, np.arange(N)), 4, cache="50%", sampler="auto", transform=transform)._account.engine().describe()[3]

    none = {"name": "rand", "ops": 0}
    assert chosen(augment="rand") == chosen(augment="trivial") == "replay" and chosen(augment=none) == "cost-aware"


def test_its_words_come_back():
    said = repr(lf.ImageTransform("uint8", crop=9, padding=2, flip=0.25, augment={"name": "rand", "fill": (1, 2, 3)}))
    assert "crop=(9, 9), padding=2, flip=0.25, augment={'name': 'rand', 'ops': 2, 'magnitude': 9, 'bins': 31, 'fill': [1, 2, 3]}" in said
    assert "augment={'name': 'trivial', 'bins': 31, 'fill': [0]}" in repr(lf.ImageTransform(augment="trivial"))
    assert "augment" not in repr(lf.ImageTransform(augment={"name": "rand", "ops": 0}))


@pytest.mark.parametrize(
    "asked, words",
    [
        ("auto", "augment='auto' is unknown: use rand or trivial"),
        (3, "augment=3 must be 'rand' or 'trivial', or a dict with such a name"),
        ({"ops": 2}, "augment={'ops': 2} must be 'rand' or 'trivial', or a dict"),
        ({"name": "trivial", "ops": 2}, "augment='trivial' has no option 'ops': use bins or fill"),
        ({"name": "rand", "num_ops": 2}, "augment='rand' has no option 'num_ops': use ops, magnitude, bins or fill"),
        ({"name": "rand", "ops": -1}, "augment: ops=-1 must be 0 to 100"),
        ({"name": "rand", "ops": 2.0}, "augment: ops=2.0 must be an int"),
        ({"name": "rand", "magnitude": 31}, "augment: magnitude=31 must be 0 to 30: it is one of bins=31"),
        ({"name": "rand", "bins": 5}, "augment: magnitude=9 must be 0 to 4: it is one of bins=5"),
        ({"name": "trivial", "bins": 1}, "augment: bins=1 must be 2 to 65536"),
        ({"name": "trivial", "fill": 256}, "augment: fill=256 must be 0 to 255"),
        ({"name": "trivial", "fill": "black"}, "augment: fill='black' must be an int"),
        ({"name": "trivial", "fill": []}, "augment: fill=[] must be an int"),
        ({"name": "trivial", "fill": (0.5, 0.5, 0.5)}, "augment: fill=0.5 must be an int"),
    ],
)
def test_what_makes_no_sense_is_refused(asked, words):
    with pytest.raises(lf.SettingsError) as refused:
        lf.ImageTransform(augment=asked)
    assert words in str(refused.value)


@pytest.mark.parametrize("channels", [2, 4])
def test_what_has_no_colours_is_refused(channels):
    data = np.zeros((4, 8, 8, channels), np.uint8), np.arange(4)
    with pytest.raises(lf.SettingsError, match=f"images of {channels} channels cannot be augmented, only those of 1 or 3: leave"):
        lf.Loader(data, 2, transform=lf.ImageTransform(augment="rand"))


def test_what_does_not_fit_the_images_is_refused():
    data = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
    with pytest.raises(lf.SettingsError, match="fill has 2 values for 3 channels: give one, or one a channel"):
        lf.Loader(data, 2, transform=lf.ImageTransform(augment={"name": "rand", "fill": (1, 2)}))
    with pytest.raises(lf.SettingsError, match=r"crop=\(12, 12\) does not fit 10 x 10 pixels"):
        lf.Loader(data, 2, transform=lf.ImageTransform(augment="rand", crop=12, padding=1))
    with pytest.raises(lf.SettingsError, match="transform= needs uint8 images of shape"):
        lf.Loader((np.zeros((4, 8), np.float32), np.arange(4)), 2, transform=lf.ImageTransform(augment="rand"))

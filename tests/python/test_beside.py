"""Samples of a picture with masks and boxes: all go one way, held beside torchvision's v2 on the same parameters."""

import io
import json
import tarfile
import warnings

import numpy as np
import pytest
import torch
from test_crops import GOLDEN, LEVELS, SCALE, WORD, Words, drawn_part, far, mix, smooth

import lossfeed as lf

Image = pytest.importorskip("PIL.Image")
tv_tensors = pytest.importorskip("torchvision.tv_tensors")
v2 = pytest.importorskip("torchvision.transforms.v2")
F = v2.functional

N = 48
SEED = 11
OUT = (24, 31)


def encoded(array, mode=None, **options):
    file = io.BytesIO()
    image = Image.fromarray(array)
    if mode == "P":
        image = image.convert("P") if array.ndim == 3 else Image.fromarray(array, "P")
        image.putpalette([(7 * k) % 256 for k in range(768)])
    image.save(file, "png", **options)
    return file.getvalue()


def tar(place, files):
    with tarfile.open(place, "w") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(place)


class Sample:
    """A picture with a mask and up to four boxes."""

    def __init__(self, i, size=None):
        rng = np.random.default_rng(1000 + i)
        self.size = size or (int(rng.integers(32, 150)), int(rng.integers(32, 150)))
        height, width = self.size
        self.picture = smooth(self.size, i)
        self.mask = rng.integers(0, 200, self.size).astype(np.uint8)
        count = i % 5
        corners = np.sort(rng.uniform(0, 1, (count, 2, 2)), axis=1)
        self.boxes = (corners * [width, height]).reshape(count, 4).astype(np.float32)
        self.labels = np.arange(count, dtype=np.int64) + 10 * i

    def files(self, name, mode=None):
        return [
            (f"{name}.png", encoded(self.picture)),
            (f"{name}.mask.png", encoded(self.mask, mode)),
            (f"{name}.boxes.json", json.dumps(self.boxes.tolist()).encode()),
            (f"{name}.labels.json", json.dumps(self.labels.tolist()).encode()),
        ]


#: Fields, as a transform names them.
NAMED = {"image": "image", "masks": ("mask",), "boxes": ("boxes",)}
FIELDS = {"image": "png", "mask": "mask.png", "boxes": "boxes.json", "labels": "labels.json"}


@pytest.fixture(scope="module")
def samples():
    return [Sample(i) for i in range(N)]


@pytest.fixture(scope="module")
def shard(tmp_path_factory, samples):
    files = [file for i, sample in enumerate(samples) for file in sample.files(f"{i:03}", "P" if i % 2 else None)]
    return tar(tmp_path_factory.mktemp("beside") / "s.tar", files)


class Dicts(torch.utils.data.Dataset):
    """The same from Python."""

    def __init__(self, samples, as_):
        self.samples, self.as_ = samples, as_

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        s = self.samples[i]
        if self.as_ == "pil":
            image, mask = Image.fromarray(s.picture), Image.fromarray(s.mask)
            return {"image": image, "mask": mask, "boxes": s.boxes, "labels": s.labels}
        if self.as_ == "bytes":
            image, mask = ({"bytes": encoded(a), "path": None} for a in (s.picture, s.mask))
            return {"image": image, "mask": mask, "boxes": s.boxes.tolist(), "labels": s.labels.tolist()}
        parts = {"boxes": torch.tensor(s.boxes), "labels": torch.tensor(s.labels), "mask": torch.tensor(s.mask)}
        return {"image": torch.tensor(s.picture), **parts}


def first_word(key, i):
    return mix(key ^ mix((i + GOLDEN) & WORD))


def flipped(key, i, chance):
    return (first_word(key, i) >> 32) < int(chance * 2**32)


def place(size, crop, padding, key, i):
    """Top and left of a random crop without resizing, in the padded image."""
    second = mix((first_word(key, i) + GOLDEN) & WORD)
    down, across = (s + 2 * padding - c + 1 for s, c in zip(size, crop))
    return ((second & 0xFFFFFFFF) * down) >> 32, ((second >> 32) * across) >> 32


def covered(size, cover):
    height, width = size
    return (height * cover // width, cover) if height >= width else (cover, width * cover // height)


def part(thing, size, key, i):
    left, top, right, bottom = drawn_part(type("P", (), {"size": size[::-1]}), key, i)
    return F.resized_crop(thing, top, left, bottom - top, right - left, OUT)


def covering(thing, size, key, i):
    scaled = covered(size, 40)
    words = Words(key, i)
    top, left = (words.below(s - c + 1) for s, c in zip(scaled, OUT))
    return F.crop(F.resize(thing, list(scaled)), top, left, *OUT)


def centre(thing, size, key, i):
    return F.center_crop(F.resize(thing, list(covered(size, 40))), list(OUT))


def cut(thing, size, key, i):
    return F.crop(thing, *place(size, OUT, 0, key, i), *OUT)


WAYS = {
    "part": ({"scale": SCALE}, part),
    "covering": ({"resize": 40}, covering),
    "centre": ({"resize": 40, "random_crop": False}, centre),
    "cut": ({}, cut),
}


def delivered(data, transform, epochs=2, **keywords):
    pad = {"boxes": -1, "labels": -1}
    keywords = {"batch_size": 7, "num_workers": 2, "stats": False, "seed": SEED, "pad": pad, **keywords}
    with lf.Loader(data, transform=transform, **keywords) as loader:
        for epoch in range(epochs):
            for number, batch in enumerate(loader):
                for row, i in enumerate(batch.ids.tolist()):
                    yield lf._native.ImageTransform.key(SEED, epoch, number), i, {key: batch[key][row] for key in batch}


def held(samples, got, way):
    """Compares deliveries with torchvision's."""
    count = dropped = 0
    for key, i, row in got:
        sample, count = samples[i], count + 1
        mask = tv_tensors.Mask(torch.tensor(sample.mask)[None])
        boxes = tv_tensors.BoundingBoxes(torch.tensor(sample.boxes), format="XYXY", canvas_size=sample.size)
        picture = tv_tensors.Image(torch.tensor(sample.picture).permute(2, 0, 1))
        mask, boxes, picture = (way(thing, sample.size, key, i) for thing in (mask, boxes, picture))
        if flipped(key, i, 0.5):
            mask, boxes, picture = (F.horizontal_flip(thing) for thing in (mask, boxes, picture))
        assert row["mask"].dtype == torch.uint8
        assert torch.equal(row["mask"], mask[0].as_subclass(torch.Tensor)), i
        assert far(row["image"], picture.as_subclass(torch.Tensor)) <= LEVELS, i
        # Resizing after its clamp may round a corner out of the picture, which Sanitize would drop.
        boxes = F.clamp_bounding_boxes(boxes)
        clean = v2.SanitizeBoundingBoxes()({"boxes": boxes, "labels": torch.tensor(sample.labels)})
        left = len(clean["boxes"])
        dropped += len(sample.boxes) - left
        assert (row["boxes"][left:] == -1).all() and (row["labels"][left:] == -1).all()
        assert torch.allclose(row["boxes"][:left], clean["boxes"].as_subclass(torch.Tensor), atol=1e-4, rtol=0), i
        assert torch.equal(row["labels"][:left], clean["labels"]), i
    assert count == 2 * N
    return dropped


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("cache", [None, "40MB"])
def test_a_shards_masks_and_boxes_are_torchvisions(samples, shard, name, cache):
    keywords, way = WAYS[name]
    transform = lf.ImageTransform("uint8", crop=OUT, flip=0.5, **NAMED, **keywords)
    dropped = held(samples, delivered(lf.open(shard, fields=FIELDS), transform, cache=cache), way)
    assert dropped > 0 or name != "part", "boxes vanish, and their labels with them"


@pytest.mark.parametrize("as_", ["pil", "bytes", "tensors"])
@pytest.mark.parametrize("workers", [0, 2])
def test_so_are_those_of_a_python_dataset(samples, as_, workers):
    transform = lf.ImageTransform("uint8", crop=OUT, scale=SCALE, flip=0.5, **NAMED)
    got = delivered(Dicts(samples, as_), transform, num_workers=workers, cache="40MB")
    assert held(samples, got, part) > 0


def test_padding_shifts_masks_as_it_does_their_pictures():
    samples = [Sample(i, (40, 50)) for i in range(N)]
    crop, padding = (42, 45), 6

    def padded(thing, size, key, i):
        thing = F.pad(thing, [padding] * 4)
        return F.crop(thing, *place(size, crop, padding, key, i), *crop)

    transform = lf.ImageTransform(
        "uint8", crop=crop, padding=padding, flip=0.5, image="image", masks="mask", boxes={"boxes": ("labels",)}
    )
    held(samples, delivered(Dicts(samples, "pil"), transform), padded)
    # Kept decoded, the pictures' sizes are the dataset's.
    held(samples, delivered(Dicts(samples, "pil"), transform, cache="40MB", cache_form="decoded"), padded)


def test_erasing_and_colours_change_the_picture_alone(samples, shard):
    plain = {"crop": OUT, "scale": SCALE, "image": "image", "masks": ("mask",), "boxes": ("boxes",)}
    data = lf.open(shard, fields=FIELDS)
    one, other = (
        list(delivered(data, lf.ImageTransform("uint8", **plain, **more), 1))
        for more in ({}, {"erase": 1.0, "brightness": 0.9})
    )
    for (_, i, a), (_, j, b) in zip(one, other, strict=True):
        assert i == j and torch.equal(a["mask"], b["mask"]) and not torch.equal(a["image"], b["image"])


def test_a_pair_of_a_picture_and_its_mask(samples):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            return Image.fromarray(samples[i].picture), Image.fromarray(samples[i].mask.astype(np.int32))

    transform = lf.ImageTransform("uint8", crop=8, masks=("y",))
    with lf.Loader(Pairs(), 6, transform=transform, num_workers=0, seed=SEED) as loader:
        for number, batch in enumerate(loader):
            images, masks = batch
            assert masks.shape == (6, 8, 8) and masks.dtype == torch.int32 and batch.target is masks
            for row, i in enumerate(batch.ids.tolist()):
                top, left = place(samples[i].size, (8, 8), 0, lf._native.ImageTransform.key(SEED, 0, number), i)
                assert np.array_equal(masks[row], samples[i].mask[top : top + 8, left : left + 8])
                assert np.array_equal(images[row].permute(1, 2, 0), samples[i].picture[top : top + 8, left : left + 8])


def test_pictures_of_many_sizes_in_pairs_need_no_further_word(samples):
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            return Image.fromarray(samples[i].picture), i

    transform = lf.ImageTransform("uint8", crop=16, scale=SCALE, layout="NHWC")
    with lf.Loader(Pairs(), 6, transform=transform, num_workers=0, seed=SEED, cache="10MB") as loader:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                for row, i in enumerate(batch.ids.tolist()):
                    picture = Image.fromarray(samples[i].picture)
                    box = drawn_part(picture, lf._native.ImageTransform.key(SEED, epoch, number), i)
                    assert far(batch.data[row], picture.crop(box).resize((16, 16), Image.BILINEAR)) <= LEVELS
                assert batch.target.tolist() == batch.ids.tolist()


def test_masks_of_shards_are_what_numpy_reads_of_their_pngs(tmp_path):
    rng = np.random.default_rng(3)
    size = (13, 21)
    kinds = {
        "L": (Image.fromarray(rng.integers(0, 255, size).astype(np.uint8)), {}),
        "bit": (Image.fromarray(rng.integers(0, 2, size).astype(bool)), {}),
        "palette": (Image.fromarray(rng.integers(0, 200, size).astype(np.uint8), "P"), {}),
        "two bits": (Image.fromarray(rng.integers(0, 4, size).astype(np.uint8), "P"), {"bits": 2}),
        "four bits": (Image.fromarray(rng.integers(0, 16, size).astype(np.uint8), "P"), {"bits": 4}),
        "sixteen": (Image.fromarray(rng.integers(0, 60_000, size).astype(np.uint16)), {}),
    }
    picture = encoded(smooth(size, 1))
    for name, (mask, options) in kinds.items():
        if mask.mode == "P":
            mask.putpalette([(5 * k) % 256 for k in range(768)])
        file = io.BytesIO()
        mask.save(file, "png", **options)
        shard = tar(tmp_path / "one.tar", [("a.png", picture), ("a.mask.png", file.getvalue())])
        data = lf.open(shard, fields={"image": "png", "mask": "mask.png"})
        with lf.Loader(data, 1, transform=lf.ImageTransform("uint8", masks=("mask",)), num_workers=0) as loader:
            (batch,) = loader
        wanted = np.asarray(Image.open(io.BytesIO(file.getvalue())))
        assert np.array_equal(batch["mask"][0], wanted), name
        assert batch["mask"].dtype == (torch.int32 if name == "sixteen" else torch.uint8)


def test_arrays_in_npy_are_masks_boxes_and_labels_too(tmp_path, samples):
    def npy(array):
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    files = []
    for i, s in enumerate(samples):
        parts = {"mask.npy": s.mask.astype(np.int64), "boxes.npy": s.boxes, "labels.npy": s.labels}
        files += [(f"{i:03}.png", encoded(s.picture)), *((f"{i:03}.{name}", npy(a)) for name, a in parts.items())]
    fields = {"image": "png", **{name: f"{name}.npy" for name in ("mask", "boxes", "labels")}}
    data = lf.open(tar(tmp_path / "n.tar", files), fields=fields)
    transform = lf.ImageTransform("uint8", crop=OUT, scale=SCALE, flip=0.5, masks=("mask",), boxes=("boxes",))
    got = ((key, i, row | {"mask": row["mask"].to(torch.uint8)}) for key, i, row in delivered(data, transform))
    assert held(samples, got, part) > 0


REFUSED = [
    (dict(image="picture"), "image='picture' is not this dataset's picture, which is 'image'"),
    (dict(masks=("msk",)), "masks='msk' is no field of this dataset: its fields are 'image', 'mask'"),
    (dict(masks=("image",)), "masks='image' is the picture of this dataset"),
    (dict(masks=("boxes",)), "masks='boxes' is json in this dataset, and must be an array, a PNG, an npy file"),
    (dict(boxes=("mask",)), "boxes='mask' is bytes in this dataset, and must be an array, an npy file"),
    (dict(masks=("mask", "mask")), "'mask' is named twice"),
    (dict(masks=7), "masks=7: give names of fields"),
    (dict(masks=("mask",), augment="rand"), "augment='rand' with masks=: its rotations"),
    (dict(boxes=("boxes",), mixup=0.2), "mixup= and cutmix= with boxes=: they would mix the pictures alone"),
]


@pytest.mark.parametrize("keywords, words", REFUSED)
def test_what_cannot_go_together_is_refused_by_name(shard, keywords, words):
    with pytest.raises(lf.SettingsError) as refused:
        transform = lf.ImageTransform("uint8", crop=8, scale=SCALE, **keywords)
        lf.Loader(lf.open(shard, fields=FIELDS), 4, transform=transform)
    assert words in str(refused.value)


def test_boxes_whose_values_are_not_named_are_asked_for(samples):
    class More(Dicts):
        def __getitem__(self, i):
            item = super().__getitem__(i)
            del item["mask"]
            return item | {"area": torch.zeros(len(self.samples[i].boxes))}

    data = More(samples, "tensors")
    says = r"boxes=\('boxes',\): 'area' may have a value a box.*boxes=\{'boxes': \('labels', 'area'\)\}"
    with pytest.raises(lf.SettingsError, match=says):
        lf.Loader(data, 4, transform=lf.ImageTransform(crop=8, scale=SCALE, image="image", boxes=("boxes",)))
    named = lf.ImageTransform(crop=8, scale=SCALE, image="image", boxes={"boxes": ("labels", "area")})
    with lf.Loader(data, N, transform=named, pad="nested", num_workers=0) as loader:
        (batch,) = loader
    lengths = [[len(part) for part in batch[name].unbind()] for name in ("boxes", "labels", "area")]
    assert lengths[0] == lengths[1] == lengths[2] and sum(lengths[0]) < sum(len(s.boxes) for s in samples)


@pytest.mark.parametrize("first", [0, 1])
def test_json_numbers_beside_boxes_are_real_unless_they_are_labels(tmp_path, samples, first):
    files = []
    for at, (count, area) in enumerate(((first, b"[1]" if first else b"[]"), (1, b"[0.75]"))):
        some = samples[count].files(str(at))
        files += [*some[:1], *some[2:], (f"{at}.area.json", area)]
    fields = {"image": "png", **{name: f"{name}.json" for name in ("boxes", "labels", "area")}}
    data = lf.open(tar(tmp_path / "real.tar", files), fields=fields)
    with pytest.raises(lf.SettingsError, match="'area' may have a value a box"):
        lf.Loader(data, 2, transform=lf.ImageTransform(crop=32, boxes=("boxes",)))
    transform = lf.ImageTransform(crop=32, resize=32, random_crop=False, boxes={"boxes": ("labels", "area")})
    with lf.Loader(data, 2, transform=transform, pad="nested", num_workers=0, shuffle=False) as loader:
        (batch,) = loader
    areas, labels = ([part.tolist() for part in batch[name].unbind()] for name in ("area", "labels"))
    assert areas == [[1.0] * first, [0.75]] and batch["area"].dtype == torch.float64
    assert labels == [[10] * first, [10]] and batch["labels"].dtype == torch.int64


def test_boxes_that_differ_in_number_name_the_ways_to_join_them(shard):
    transform = lf.ImageTransform(crop=8, scale=SCALE, boxes=("boxes",))
    with lf.Loader(lf.open(shard, fields=FIELDS), 24, transform=transform, num_workers=0) as loader:
        with pytest.raises(lf.SampleError, match=r"pad=\{'boxes': 0\}.*pad='nested'.*collate_fn="):
            next(iter(loader))


def test_a_bad_mask_or_box_is_a_bad_sample_with_its_name(tmp_path, samples):
    good = samples[3].files("0")
    small = encoded(samples[3].mask[1:])
    jpeg = io.BytesIO()
    Image.fromarray(samples[3].mask).save(jpeg, "jpeg")
    for at, data, words in (
        (1, small, "mask is a mask of uint8 and shape"),
        (1, encoded(samples[3].picture), "the mask is Rgb"),
        (1, small[:40], "the PNG of 40 bytes is corrupt"),
        (1, jpeg.getvalue(), "a mask must be a PNG of one channel or an array"),
        (2, b"[[5, 5, 2, 9], [0, 0, 1, 1], [0, 0, 1, 1]]", "is no box (left, top, right, bottom) in pixels"),
        (2, b"[[0, 0, 1]]", "it is no list of numbers as the first sample has one"),
        (3, b"[1]", "labels is of int64 and shape [1] beside 3 boxes"),
    ):
        bad = [(name.replace("0.", "1.", 1), value) for name, value in good]
        bad[at] = (bad[at][0], data)
        data = lf.open(tar(tmp_path / "bad.tar", good + bad), fields=FIELDS)
        transform = lf.ImageTransform(crop=8, scale=SCALE, masks=("mask",), boxes=("boxes",))
        with lf.Loader(data, 1, transform=transform, num_workers=0, shuffle=False) as loader:
            with pytest.raises(lf.SampleError, match="sample 1") as found:
                list(loader)
            assert words in str(found.value), words
        with lf.Loader(data, 1, transform=transform, num_workers=0, on_error="skip", shuffle=False) as loader:
            assert [int(i) for batch in loader for i in batch.ids] == [0]


class Pairs:
    """Pictures with masks, channels last or first, as a pair or a dict."""

    def __init__(self, keys, first):
        self.keys, self.first = keys, first

    def __len__(self):
        return 8

    def __getitem__(self, i):
        picture = torch.full((3, 20, 24) if self.first else (20, 24, 3), i, dtype=torch.uint8)
        parts = picture, torch.full((20, 24), i)
        return dict(zip(self.keys, parts)) if self.keys else parts


@pytest.mark.parametrize("cache", [None, "1MB"])
@pytest.mark.parametrize("keys", [None, ("image", "mask")])
def test_a_mask_that_the_transform_would_leave_behind_is_told(shard, keys, cache):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    picture, mask = keys or ("x", "y")
    told = f"crops or turns '{picture}' alone, and '{mask}' stays as it is.*masks=\\('{mask}',\\)"
    with pytest.warns(lf.TrainingWarning, match=told):
        lf.Loader(Pairs(keys, True), 4, cache=cache, transform=v2.Compose([v2.RandomCrop(8)]))
    pixels = lf.ImageTransform(crop=8, image=picture)
    with pytest.warns(lf.TrainingWarning, match=told):
        lf.Loader(Pairs(keys, False), 4, cache=cache, transform=pixels)
    fields = {"image": "jpg;png", "mask": "mask.png"}
    with pytest.warns(lf.TrainingWarning, match="'image' alone, and 'mask' stays"):
        lf.Loader(lf.open(shard, fields=fields), 4, cache=cache, transform=lf.ImageTransform(crop=8, flip=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", lf.TrainingWarning)
        lf.Loader(Pairs(keys, True), 4, cache=cache, transform=v2.ColorJitter(0.4))
        lf.Loader(Pairs(keys, False), 4, cache=cache, transform=lf.ImageTransform(mean=0.5, std=0.5, image=picture))
        masks = {"masks": (mask,), "crop": 8}
        lf.Loader(Pairs(keys, False), 4, cache=cache, transform=lf.ImageTransform(image=picture, **masks))


def test_the_repr_says_what_was_named():
    transform = lf.ImageTransform(crop=8, image="image", masks=("mask",), boxes=("boxes",))
    assert "image='image', masks=('mask',), boxes=('boxes',)" in repr(transform)
    assert "boxes={'boxes': ('labels',)}" in repr(lf.ImageTransform(crop=8, boxes={"boxes": ["labels"]}))


@pytest.mark.parametrize("decode", [True, False])
def test_rows_of_hugging_face(samples, decode):
    datasets = pytest.importorskip("datasets")
    columns = {
        "image": [Image.fromarray(s.picture) for s in samples],
        "mask": [Image.fromarray(s.mask) for s in samples],
        "objects": [{"boxes": s.boxes.tolist(), "labels": s.labels.tolist()} for s in samples],
        "label": list(range(N)),
    }
    picture = datasets.Image(decode=decode)
    features = datasets.Features(
        {
            "image": picture,
            "mask": picture,
            "objects": {"boxes": [[datasets.Value("float32")]], "labels": [datasets.Value("int64")]},
            "label": datasets.Value("int64"),
        }
    )
    rows = datasets.Dataset.from_dict(columns, features=features)
    transform = lf.ImageTransform(
        "uint8", crop=OUT, scale=SCALE, flip=0.5, image="image", masks=("mask",), boxes=("objects.boxes",)
    )
    pad = {"objects.boxes": -1, "objects.labels": -1}
    got = []
    keywords = {"num_workers": 2, "cache": "40MB", "seed": SEED, "stats": False}
    with lf.Loader(rows, 7, transform=transform, pad=pad, **keywords) as loader:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                key = lf._native.ImageTransform.key(SEED, epoch, number)
                assert batch.target.tolist() == batch["label"].tolist() == batch.ids.tolist()
                for row, i in enumerate(batch.ids.tolist()):
                    objects = {name: part[row] for name, part in batch["objects"].items()}
                    got.append((key, i, {"image": batch["image"][row], "mask": batch["mask"][row], **objects}))
    assert held(samples, got, part) > 0


def test_a_picture_in_a_dict_of_hugging_face_needs_no_name(samples):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(s.picture) for s in samples], "label": list(range(N))},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    with lf.Loader(rows, 8, transform=lf.ImageTransform(crop=16, scale=SCALE), num_workers=0, cache="10MB") as loader:
        for _ in range(2):
            for batch in loader:
                assert batch["image"].shape == (8, 3, 16, 16) and batch.target.tolist() == batch.ids.tolist()

"""lf.open: every kind of data, and every kind of bad data with its name, numbers and remedy."""

import io
import pathlib
import re
import tarfile
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import lossfeed as lf


def image(i, size=(6, 5), mode="RGB"):
    pixels = np.random.default_rng(i).integers(0, 255, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(i, form="PNG", **keywords):
    out = io.BytesIO()
    image(i, **keywords).save(out, form, quality=95)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Twelve 6 × 5 PNGs in three classes."""
    root = tmp_path / "folder"
    for i in range(12):
        place = root / f"class{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i:02}.png").write_bytes(encoded(i))
    return root


@pytest.fixture
def shards(tmp_path):
    """Two webdataset shards of six samples."""
    for shard in range(2):
        with tarfile.open(tmp_path / f"part-{shard}.tar", "w") as tar:
            for i in range(shard * 6, shard * 6 + 6):
                for name, content in ((f"{i:03}.png", encoded(i)), (f"{i:03}.cls", str(i % 4).encode())):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return tmp_path


def all_rows(data, batch_size=4, **keywords):
    rows = {}
    for batch in lf.Loader(data, batch_size, **keywords):
        for i, x, y in zip(batch.ids.tolist(), batch.data.numpy(), batch.target.tolist()):
            rows[i] = (x.copy(), y)
    return rows


@pytest.fixture
def splits(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / split / "cat" / "0.jpg")
    return tmp_path


def test_a_folder_of_splits_is_asked_about_and_one_of_classes_is_not(splits, tmp_path_factory):
    with pytest.raises(lf.SettingsError, match="which.* holds 'train', 'val', which look like.*open one.*train'"):
        lf.open(splits)
    other = tmp_path_factory.mktemp("classes")
    for name in ("train", "bus"):  # of vehicles
        (other / name).mkdir()
        Image.new("RGB", (8, 6)).save(other / name / "0.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lf.open(splits / "train").classes == ["cat"] and lf.open(other).classes == ["bus", "train"]


def test_lists_of_image_files_say_what_to_open_and_lists_of_text_are_text(splits):
    file = splits / "train" / "cat" / "0.jpg"
    for names in ([file] * 3, [str(file)] * 2, [(str(file), 1)], ((file, 0), (file, 1))):
        if isinstance(names[0], tuple):
            assert lf.open(names).labels.tolist() == [label for _, label in names]
            continue
        with pytest.raises(lf.SettingsError, match=r"item 0 is .*, a file name: write lf.open\(paths, labels\), or"):
            lf.open(names)
    assert len(lf.open(["no such file.jpg", "text"])) == 2


def test_an_image_transform_says_what_samples_it_is_for():
    pixels = lf.ImageTransform("float32", mean=0.5, std=0.5)
    first = np.zeros((4, 3, 24, 32), np.uint8)
    for data in ((first, np.arange(4)), [(torch.from_numpy(x), 1) for x in first]):
        with pytest.raises(lf.SettingsError, match=r"shape \(3, 24, 32\) have channels first.*image.permute\(1, 2, 0\)"):
            lf.Loader(data, 2, transform=pixels)
    picture = Image.new("RGB", (8, 6))
    with pytest.raises(lf.SettingsError, match=r"name the picture's field, lf.ImageTransform\(…, image='left'\)"):
        lf.Loader([{"left": picture, "right": picture, "label": 1}], 1, transform=pixels)
    with pytest.raises(lf.SettingsError, match=r"name the picture's field.*, or give a function of batch.data"):
        lf.Loader([{"n": 1, "label": 1}], 1, transform=pixels)
    with lf.Loader([{"picture": picture, "label": 1}], 1, transform=pixels, num_workers=0) as loader:
        (batch,) = loader
    assert batch["picture"].shape == (1, 3, 6, 8) and batch.target.tolist() == [1]


def test_a_class_folder_gives_its_pixels_and_labels(folder):
    data = lf.open(folder)
    assert len(data) == 12 and data.classes == ["class0", "class1", "class2"] and data.spec == ("uint8", (6, 5, 3))
    assert data.target_spec == ("int64", ()) and data.labels.tolist() == [i // 4 for i in range(12)]
    rows = all_rows(data, cache="100%")
    assert sorted(rows) == list(range(12))
    for i, (pixels, label) in rows.items():
        number = int(data.name(i).rsplit("/", 1)[-1][:2])
        assert label == number % 3 == data.labels[i]
        np.testing.assert_array_equal(pixels, np.asarray(image(number)))


def test_tar_shards_give_the_same_through_braces_stars_and_one_by_one(shards):
    for path in (f"{shards}/part-{{0..1}}.tar", f"{shards}/part-*.tar"):
        rows = all_rows(path, num_workers=2)
        assert sorted(rows) == list(range(12))
        for i, (pixels, label) in rows.items():
            np.testing.assert_array_equal(pixels, np.asarray(image(i)))
            assert label == i % 4
    assert len(lf.open(shards / "part-1.tar")) == 6


def test_modes_and_sizes_are_honoured(folder):
    assert lf.open(folder, mode="gray").spec == ("uint8", (6, 5, 1))
    assert lf.open(folder, resize=(8, 9)).spec == ("uint8", (8, 9, 3))
    batch = next(iter(lf.Loader(lf.open(folder, resize=4, mode="gray"), 3)))
    assert batch.data.shape == (3, 4, 4, 1)


def test_a_throttled_source_delivers_the_same(folder):
    slow = lf.open(folder, latency=0.005, bandwidth="10MB", connections=4)
    for i, (pixels, label) in all_rows(slow, num_workers=2).items():
        assert label == lf.open(folder).labels[i] and pixels.shape == (6, 5, 3)


def test_encoded_and_decoded_caches_deliver_the_same_and_are_sized_by_their_form(folder):
    data = lf.open(folder)
    assert data.cache_bytes("decoded") == 12 * 128  # 90 bytes of pixels and 8 of target, in granules of 64
    assert data.cache_bytes("encoded") != data.cache_bytes("decoded")
    for form in ("encoded", "decoded"):
        loader = lf.Loader(data, 5, cache="100%", cache_form=form, policy="minio", num_workers=1)
        for _ in range(2):
            for batch in loader:
                for i, x in zip(batch.ids.tolist(), batch.data.numpy()):
                    np.testing.assert_array_equal(x, np.asarray(image(int(data.name(i).rsplit("/", 1)[-1][:2]))))
        assert loader.stats()["hits_total"] == 12 and loader.stats()["residents"] == 12


# ---- Python datasets -------------------------------------------------------------------------------------------------


class Items(torch.utils.data.Dataset):
    def __init__(self, make, n=10):
        self.make, self.n, self.calls = make, n, 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.calls += 1
        return self.make(i)


@pytest.mark.parametrize(
    "make,data,target",
    [
        (lambda i: (torch.full((2, 3), float(i)), i), ("float32", (2, 3)), ("int64", ())),
        (lambda i: (np.full((4,), i, np.int16), np.float64(i)), ("int16", (4,)), ("float64", ())),
        (lambda i: (torch.full((2,), i).half(), torch.tensor([i, i])), ("float16", (2,)), ("int64", (2,))),
        (lambda i: (float(i), i % 2 == 0), ("float64", ()), ("bool", ())),
        (lambda i: ([i, i], i), ("int64", (2,)), ("int64", ())),
        (lambda i: (Image.new("RGB", (5, 4), (i, 0, 0)), i), ("uint8", (4, 5, 3)), ("int64", ())),
        (lambda i: (Image.new("L", (5, 4), i), i), ("uint8", (4, 5, 1)), ("int64", ())),
        (lambda i: (torch.arange(12.0).reshape(3, 4).t() + i, i), ("float32", (4, 3)), ("int64", ())),
    ],
)
def test_items_of_a_dataset_arrive_in_their_dtype_and_shape(make, data, target):
    opened = lf.open(Items(make))
    assert opened.spec == data and opened.target_spec == target
    for batch in lf.Loader(opened, 4, num_workers=2, framework="numpy"):
        for k, i in enumerate(batch.ids.tolist()):
            x, y = make(i)
            x = np.array(x).reshape(data[1]) if not isinstance(x, torch.Tensor) else x
            assert np.array_equal(batch.data[k], np.asarray(x, batch.data.dtype))
            assert np.array_equal(batch.target[k], np.asarray(y, batch.target.dtype))


def test_a_list_of_pairs_is_a_dataset():
    assert sorted(all_rows([(np.float32(i), i) for i in range(7)])) == list(range(7))


def test_getitems_is_used_where_there_is_one():
    class Batched(Items):
        batches = 0

        def __getitems__(self, ids):
            Batched.batches += 1
            return [self.make(i) for i in ids]

    dataset = Batched(lambda i: (np.float32(i), i))
    assert [int(y) for batch in lf.Loader(dataset, 4, num_workers=0) for y in batch.target] == list(range(10))
    assert Batched.batches == 3 and dataset.calls == 0


def test_images_of_a_dataset_can_be_resized_and_other_items_cannot():
    pictures = Items(lambda i: (Image.new("RGB", (4 + i, 5)), i))
    batch = next(iter(lf.Loader(lf.open(pictures, resize=(3, 2), mode="gray"), 10)))
    assert batch.data.shape == (10, 3, 2, 1)
    with pytest.raises(lf.SettingsError, match="leave them out"):
        lf.open(Items(lambda i: (np.float32(i), i)), resize=3)


# ---- bad data --------------------------------------------------------------------------------------------------------


def test_a_missing_path_and_an_empty_place_are_named(tmp_path):
    with pytest.raises(lf.SourceError, match="nowhere"):
        lf.open(tmp_path / "nowhere")
    with pytest.raises(OSError):
        lf.open(str(tmp_path / "nowhere-{0..3}.tar"))
    (tmp_path / "hollow" / "class0").mkdir(parents=True)
    with pytest.raises(lf.Error):
        lf.open(tmp_path / "hollow")


def test_a_truncated_tar_and_noise_are_errors_and_never_half_a_dataset(shards):
    whole = (shards / "part-0.tar").read_bytes()
    for cut in (700, 2100):
        (shards / "cut.tar").write_bytes(whole[:cut])
        with pytest.raises(lf.Error, match="cut.tar"):
            lf.open(shards / "cut.tar")
    (shards / "noise.tar").write_bytes(np.random.default_rng(0).bytes(4096))
    with pytest.raises(lf.Error, match="noise.tar"):
        lf.open(shards / "noise.tar")


def corrupt(folder, names):
    for name in names:
        path = folder / f"class{int(name) % 3}" / f"{name}.png"
        path.write_bytes(path.read_bytes()[:60])


def test_a_corrupt_image_raises_by_name_or_is_skipped_or_substituted_counted_and_listed(folder):
    corrupt(folder, ["05", "10"])
    data = lf.open(folder)
    bad = {i for i in range(12) if data.name(i).rsplit("/", 1)[-1] in ("05.png", "10.png")}
    with pytest.raises(lf.SampleError, match=r"(05|10)\.png"):
        list(lf.Loader(data, 5))
    skipping = lf.Loader(data, 5, on_error="skip", num_workers=1)
    ids = [i for batch in skipping for i in batch.ids.tolist()]
    assert sorted(ids) == sorted(set(range(12)) - bad)
    substituting = lf.Loader(data, 6, on_error="substitute", num_workers=1)
    for batch in substituting:
        assert len(batch) == 6 and not bad & set(batch.ids.tolist())
        for i, x in zip(batch.ids.tolist(), batch.data.numpy()):
            np.testing.assert_array_equal(x, np.asarray(image(int(data.name(i).rsplit("/", 1)[-1][:2]))))
    for loader in (skipping, substituting):
        assert loader.stats()["bad_samples_total"] == 2
        listed = loader.bad_samples()
        assert {b["id"] for b in listed} == bad and all(b["reason"] and ".png" in b["name"] for b in listed)
    assert substituting.stats()["substituted_total"] == 2


def test_images_of_other_sizes_are_told_with_both_shapes_and_the_remedy(folder):
    (folder / "class1" / "99.png").write_bytes(encoded(99, size=(7, 7)))
    with pytest.raises(lf.SampleError, match="resize"):
        list(lf.Loader(folder, 13))
    assert len(all_rows(lf.open(folder, resize=(6, 5)))) == 13


class Fails(Items):
    def __init__(self, error, at=7, **keywords):
        super().__init__(lambda i: (np.float32(i), i), **keywords)
        self.error, self.at = error, at

    def __getitem__(self, i):
        if i == self.at:
            raise self.error
        return super().__getitem__(i)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_raises_has_its_exception_chained(workers):
    error = KeyError("no such picture")
    with pytest.raises(lf.SampleError, match="item 7") as raised:
        list(lf.Loader(Fails(error), 4, num_workers=workers))
    chained, cause = [], raised.value
    while cause is not None:
        chained.append(cause)
        cause = cause.__cause__
    found = next(one for one in chained if isinstance(one, KeyError))
    assert found.args == error.args and (workers or found is error)
    loader = lf.Loader(Fails(error), 5, num_workers=workers, on_error="skip")
    assert sorted(i for b in loader for i in b.ids.tolist()) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert loader.bad_samples()[0]["id"] == 7 and "no such picture" in loader.bad_samples()[0]["reason"]


def test_a_first_item_that_raises_says_so_at_once():
    with pytest.raises(lf.SampleError, match="item 0 raised ZeroDivisionError") as raised:
        lf.open(Fails(ZeroDivisionError(), at=0))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_after_a_failed_epoch_the_loader_can_go_on():
    dataset = Fails(ValueError("once"))
    loader = lf.Loader(dataset, 2, num_workers=2)
    with pytest.raises(lf.SampleError):
        list(loader)
    dataset.at = None
    assert sorted(i for b in loader for i in b.ids.tolist()) == list(range(10))


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda i: ([[1, 2], [3]], i), "ragged"),
        (lambda i: (np.zeros(2, np.longdouble), i), "float128"),
        (lambda i: (torch.zeros(2).to_sparse(), i), "dense"),
        (lambda i: (np.zeros((0, 3)), i), r"\(0, 3\) has no elements"),
    ],
)
def test_items_that_cannot_travel_say_what_to_return(make, message):
    with pytest.raises((lf.SampleError, lf.SettingsError), match=message):
        lf.open(Items(make))


def test_ragged_items_are_told_with_both_shapes():
    loader = lf.Loader(Items(lambda i: (np.zeros(2 + (i == 3), np.float32), i)), 10)
    with pytest.raises(lf.SampleError, match=r"item 3: x is float32 \(3,\), item 0 had float32 \(2,\)"):
        list(loader)


def test_getitems_of_the_wrong_length_is_told():
    class Short(Items):
        def __getitems__(self, ids):
            return [self.make(ids[0])]

    with pytest.raises(lf.SampleError, match="returned 1 items for 5 indices"):
        list(lf.Loader(Short(lambda i: (np.float32(i), i)), 5))


@pytest.mark.parametrize(
    "data,message",
    [
        ((np.zeros(3), np.zeros(2)), "3 samples and y has 2"),
        ((np.zeros(0), np.zeros(0)), "empty"),
        ((np.zeros(()), np.zeros(3)), "scalar"),
        ((np.zeros(3, dtype="U4"), np.zeros(3)), "dtype str"),
        ([], "empty"),
        ({"x": 1}, "dict cannot be opened"),
        pytest.param(iter([1, 2]), "lf.stage", id="an iterator"),
        (7, "int cannot be opened"),
    ],
    ids=str,
)
def test_what_is_no_dataset_is_told_what_one_is(data, message):
    with pytest.raises(lf.SettingsError, match=message):
        lf.open(data)


@pytest.mark.parametrize(
    "keywords,message",
    [
        ({"mode": "cmyk"}, "auto, rgb or gray"),
        ({"resize": 0}, "resize=0"),
        ({"resize": (1, 2, 3)}, "resize"),
        ({"latency": -1.0}, "latency"),
        ({"latency": float("nan")}, "latency"),
        ({"bandwidth": "fast"}, "bandwidth"),
        ({"bandwidth": -5}, "bandwidth"),
        ({"connections": 0}, "connections"),
        ({"connections": 2.5}, "connections"),
        ({"timeout": float("inf")}, "timeout"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(folder, keywords, message):
    with pytest.raises(lf.SettingsError, match=message):
        lf.open(folder, **keywords)


def test_options_of_stores_are_refused_for_data_in_memory():
    with pytest.raises(lf.SettingsError, match="latency=0.1 is for paths"):
        lf.open((np.zeros(3), np.zeros(3)), latency=0.1)


def test_arrays_are_read_where_they_lie():
    x, y = np.zeros((4, 2), np.float32), np.arange(4)
    data = lf.open((x, y))
    x[2] = 7.0
    rows = all_rows(data)
    assert rows[2][0].tolist() == [7.0, 7.0] and rows[1][0].tolist() == [0.0, 0.0]
    strided = np.arange(16, dtype=">i4").reshape(4, 4)[:, ::2]
    assert all_rows((strided, y))[1][0].tolist() == [4, 6]


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_labels_that_are_missing_or_no_numbers_are_named(tmp_path):
    pair = [("000.png", encoded(0)), ("000.cls", b"1")]
    with pytest.raises(lf.SampleError, match="001.png.*001.cls"):
        lf.open(write_tar(tmp_path / "lacks.tar", [*pair, ("001.png", encoded(1))]))
    with pytest.raises(lf.SampleError, match="001"):
        lf.open(write_tar(tmp_path / "word.tar", [*pair, ("001.png", encoded(1)), ("001.cls", b"cat")]))


@pytest.mark.parametrize("side,form", [(4, "decoded"), (40, "encoded"), (None, "encoded")])
def test_pixels_are_cached_where_a_smaller_size_makes_them_smaller_than_the_pictures(tmp_path, side, form):
    rng = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    for n in range(6):
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(tmp_path / "a" / f"{n}.png")
    data = lf.open(tmp_path, resize=side)
    other = {"decoded": "encoded", "encoded": "decoded"}[form]
    assert data.cache_bytes() == data.cache_bytes("auto") == data.cache_bytes(form) != data.cache_bytes(other)
    batches = {}
    for asked in ("auto", "encoded", "decoded"):
        with lf.Loader(data, 3, shuffle=True, seed=1, cache=1.0, cache_form=asked, framework="numpy", num_workers=0) as loader:
            batches[asked] = [batch.data.copy() for _ in range(3) for batch in loader]
            assert loader.stats()["cache_capacity_bytes"] == data.cache_bytes(asked)
            assert loader.stats()["hits_total"] == 12
    for asked in ("encoded", "decoded"):
        assert all((a == b).all() for a, b in zip(batches["auto"], batches[asked], strict=True))


def test_docs_name_every_kind_of_url_and_no_other():
    names = {name for name, _ in lf._native.schemes()}
    assert {"s3://", "hf://", "file://"} <= names
    # A pool's address is not one of data.
    said = {name for name in re.findall(r"[a-z0-9]+(?:\(s\))?://", lf.open.__doc__)} - {"redis://"}
    assert said == names
    page = pathlib.Path(__file__).parents[2] / "pybind/docs/data.md"
    said = {name.replace("https", "http(s)") for name in re.findall(r"[a-z0-9]+(?:\(s\))?://", page.read_text())}
    assert said - {"redis://", "rediss://", "unix://"} == names - {"file://"}

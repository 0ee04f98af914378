"""Layouts of images that people have: flat folders, files of one stem, lists of paths, manifests, and folders that are
asked about."""

import json
import os
import pickle
import sys
import warnings
from collections.abc import Mapping

import numpy as np
import pytest
import torch

import lossfeed as lf

Image = pytest.importorskip("PIL.Image")

N, SIZE = 12, (10, 14)


def pixels(i, size=SIZE):
    return np.random.default_rng(i).integers(0, 255, (*size, 3)).astype(np.uint8)


def save(place, array):
    os.makedirs(os.path.dirname(place), exist_ok=True)
    Image.fromarray(array).save(place)


@pytest.fixture
def flat(tmp_path):
    for i in range(N):
        save(tmp_path / "flat" / f"{i:02}.png", pixels(i))
        (tmp_path / "flat" / f"{i:02}.txt").write_text(f"caption {i}")
    return tmp_path / "flat"


def rows(data, **keywords):
    """id -> (picture, rest of the batch's row), over two epochs of two threads and a cache."""
    found = {}
    keywords = {"batch_size": 5, "num_workers": 2, "seed": 3, "cache": "1MB", "stats": False, **keywords}
    with lf.Loader(data, **keywords) as loader:
        for _ in range(2):
            for batch in loader:
                for row, i in enumerate(batch.ids.tolist()):
                    if isinstance(batch, Mapping):
                        value = {key: batch[key][row] for key in batch}
                    else:
                        value = batch.data[row], None if batch.target is None else batch.target[row]
                    found.setdefault(i, []).append(value)
    assert sorted(found) == list(range(len(data))) and all(len(values) == 2 for values in found.values())
    return {i: values[1] for i, values in found.items()}


def test_a_flat_folder_asks_and_opens_without_labels(flat):
    with pytest.raises(lf.SettingsError, match=r"no class folders: write lf.open\('.*flat', labels=None\)"):
        lf.open(flat)
    save(flat / "deeper" / "x.png", pixels(99))
    data = lf.open(flat, labels=None)
    assert len(data) == N + 1 and data.spec == ("uint8", (*SIZE, 3))
    assert data.target_spec is None and data.labels is None
    assert data.name(3) == "03.png" and data.name(N) == "deeper/x.png"
    for i, (picture, target) in rows(data).items():
        assert target is None and np.array_equal(picture, pixels(i if i < N else 99))
    assert np.array_equal(data[2], pixels(2))
    assert np.array_equal(pickle.loads(pickle.dumps(data))[2], pixels(2))
    # Class folders without their labels.
    assert lf.open(flat.parent, None).target_spec is None


def test_files_of_one_stem_are_a_sample(flat):
    data = lf.open(flat, fields={"image": "png", "caption": "txt"})
    for i, row in rows(data).items():
        assert np.array_equal(row["image"], pixels(i)) and row["caption"] == f"caption {i}"
    (flat / "03.txt").unlink()
    (flat / "05.txt").write_text("")
    data = lf.open(flat, fields=("png", "txt"))
    assert len(data) == N - 1
    picture, caption = data[4]
    assert caption == "" and np.array_equal(picture, pixels(5))
    save(flat / "deeper" / "x.png", pixels(0))
    assert len(lf.open(flat, fields=("png", "txt"))) == N - 1


def test_masks_in_a_folder_of_their_own_go_with_their_pictures(tmp_path, caplog):
    for i in range(N):
        picture = pixels(i, (20 + i, 30))
        save(tmp_path / "JPEGImages" / f"a/{i}.png", picture)
        if i % 3:
            save(tmp_path / "SegmentationClass" / f"a/{i}_ids.PNG", picture[..., 1])
    with pytest.raises(lf.SettingsError, match=r"look like parts of samples .*fields=\{'image': 'JPEGImages/\*"):
        lf.open(tmp_path)
    fields = {"image": "JPEGImages/*.jpg;JPEGImages/*.png", "mask": "SegmentationClass/*_ids.png"}
    data = lf.open(tmp_path, fields=fields)
    assert len(data) == 8 and "4 files of 'JPEGImages/*.jpg;JPEGImages/*.png' are left out" in caplog.text
    for row in rows(data, transform=lf.ImageTransform("uint8", crop=16, flip=0.5, masks=("mask",))).values():
        assert torch.equal(row["image"][1], row["mask"])


@pytest.mark.parametrize(
    "labels, target, classes",
    [
        (list(range(N)), list(range(N)), []),
        (np.arange(N) * 3, [3 * i for i in range(N)], []),
        (list(np.arange(N)), list(range(N)), []),
        (list(torch.arange(N)), list(range(N)), []),
        (tuple(np.arange(N, dtype=np.float32) / 2), [i / 2 for i in range(N)], []),
        (torch.arange(N) / 2, [i / 2 for i in range(N)], []),
        (list("cabcabcabcab"), [2, 0, 1] * 4, ["a", "b", "c"]),
        (None, None, []),
    ],
)
def test_lists_of_paths_have_labels_or_none(flat, labels, target, classes):
    paths = [flat / f"{i:02}.png" for i in range(N)]
    data = lf.open(paths, labels)
    assert data.classes == classes
    for i, (picture, label) in rows(data).items():
        assert np.array_equal(picture, pixels(i)) and (label is None if target is None else label == target[i])
    if isinstance(labels, list):
        assert lf.open(list(zip(map(str, paths), labels))).labels.tolist() == target
        with lf.Loader(list(zip(map(str, paths), labels)), 4) as loader:
            assert next(iter(loader)).data.dtype == torch.uint8


def test_what_a_list_names_is_opened_as_it_is_written(flat, monkeypatch):
    monkeypatch.chdir(flat)
    os.symlink(flat / "01.png", flat / "link.png")
    data = lf.open(["00.png", "./link.png", "../flat/02.png", str(flat / "03.png")], None)
    for i in range(4):
        assert np.array_equal(data[i], pixels(i))
    for paths, words in (
        ([flat / "00.png", "no.png"], "image of sample 1 (no.png) does not exist"),
        ([flat / "00.png", flat], "is no file: name one file a sample"),
        ([flat / "00.png", "a\0b.png"], "NUL byte"),
    ):
        with pytest.raises(lf.SourceError) as refused:
            lf.open(paths, None)
        assert words in str(refused.value)
    for paths, labels, words in (
        ([flat / "00.png", 7], None, "item 1 is 7, and item 0 is a file name"),
        ([flat / "00.png"], [1, 2], "labels: 2 for 1 paths"),
        ([flat / "00.png"], [(1, 2)], "labels: (1, 2) is no label"),
        ([flat / "00.png"], 5, "labels=5: give a list of labels, one a path"),
        ([flat / "00.png"], torch.tensor(5), "labels=tensor(5): give a list of labels"),
        ([flat / "00.png"], {"00.png": 1}, "labels={'00.png': 1}: give a list of labels"),
        ([flat / "00.png"] * 2, [2**70, 0.5], "labels: 1180591620717411303424 is beyond int64"),
        ([flat / "00.png"], ["cat\ud800"], "labels: 'cat\\ud800' has half of a surrogate pair"),
        ([flat / "00.png", "\ud800.png"], None, "item 1 is '\\ud800.png', which is not UTF-8: rename it"),
        ([(flat / "00.png", str(flat / "01.png"))], "auto", "01.png' is an image file: open their folder with fields="),
        ([flat / "00.png"], [flat / "01.png"], "01.png' is an image file: open their folder with fields="),
        ([(flat / "00.png", 1)], [1], "labels= beside a list of pairs"),
        ((np.zeros((3, 2)), np.zeros(3)), None, "labels=None is for local folders of images"),
        (str(flat / "00.png"), None, "labels=None is for local folders of images"),
    ):
        with pytest.raises(lf.SettingsError) as refused:
            lf.open(paths, labels)
        assert words in str(refused.value)
    with pytest.raises(lf.SettingsError, match="fields= is for folders, shards and manifests, and this is a list"):
        lf.open([flat / "00.png"], None, fields=("png",))
    with pytest.raises(lf.SettingsError, match="latency= is for class folders, shards and stores"):
        lf.open(flat, None, latency=0.1)
    with pytest.raises(lf.SettingsError, match="labels='class': give None, 'folders'"):
        lf.open(flat, "class")


def test_a_file_that_changes_is_no_sample(flat):
    data = lf.open([flat / "00.png", flat / "01.png"], [0, 1])
    save(flat / "01.png", pixels(7, (20, 20)))
    with pytest.raises(lf.SourceError, match="01.png changed since it was indexed"):
        data[1]


def test_csv_as_people_write_it(flat):
    table = flat.parent / "train.csv"
    text = "\ufefffile_name,label,text,score,zip\r\n"
    animals = ["dog", "cat"]
    text += "".join(f'flat/{i:02}.png,{animals[i % 2]},"a, ""b""\nline {i}",{i / 4},0{i}\r\n' for i in range(N))
    table.write_text(text, newline="", encoding="utf-8")
    data = lf.open(table)
    assert data.classes == ["cat", "dog"] and data.labels.tolist() == [1, 0] * 6
    for i, row in rows(data).items():
        assert np.array_equal(row["image"], pixels(i)) and row["text"] == f'a, "b"\nline {i}' and row["zip"] == f"0{i}"
        assert row["score"] == i / 4 and row["label"] == (i + 1) % 2
    chosen = lf.open(table, fields={"picture": "file_name", "words": "text"})
    assert list(chosen[1]) == ["picture", "words"]
    assert "label" not in lf.open(table, labels=None)[0]


def test_csv_of_paths_and_labels_are_pairs_and_of_two_paths_pictures_and_masks(flat):
    (flat.parent / "p.csv").write_text("image,label\n" + "".join(f"flat/{i:02}.png,{i * 2}\n" for i in range(N)))
    for i, (picture, label) in rows(lf.open(flat.parent / "p.csv")).items():
        assert np.array_equal(picture, pixels(i)) and label == 2 * i
    for i in range(N):
        save(flat.parent / "masks" / f"{i}.png", pixels(i)[..., 0])
    lines = "".join(f"{flat}/{i:02}.png;masks/{i}.png\n" for i in range(N))
    (flat.parent / "m.csv").write_text("img;mask\n" + lines)
    transform = lf.ImageTransform("uint8", crop=7, flip=0.5, image="img", masks="mask")
    for row in rows(lf.open(flat.parent / "m.csv"), transform=transform).values():
        assert torch.equal(row["img"][0], row["mask"])


def test_metadata_jsonl_as_hugging_face_has_it(flat):
    def line(i):
        objects = {"bbox": [[1, 2, 9, 10]] * (i % 3), "categories": [i] * (i % 3)}
        rest = {"text": f"t {i}", "n": i, "any": None if i else [1]}
        return json.dumps({"file_name": f"{i:02}.png", "objects": objects, **rest})

    (flat / "metadata.jsonl").write_text("\n".join(map(line, range(N))) + "\n\n")
    with pytest.raises(lf.SettingsError, match=r"images and metadata.jsonl: open that, lf.open\('.*metadata.jsonl'\)"):
        lf.open(flat)
    data = lf.open(flat / "metadata.jsonl")
    assert data[2]["objects"] == {"bbox": [[1, 2, 9, 10]] * 2, "categories": [2, 2]} and data[2]["any"] is None
    transform = lf.ImageTransform("uint8", image="image", boxes={"objects.bbox": ("objects.categories",)}, flip=1.0)
    pad = {"objects.bbox": 0, "objects.categories": -1}
    with lf.Loader(data, N, transform=transform, pad=pad, shuffle=False) as loader:
        (batch,) = loader
    assert batch["objects"]["bbox"][4].tolist() == [[5, 2, 13, 10], [0, 0, 0, 0]]
    assert batch["objects"]["categories"][4].tolist() == [4, -1] and batch["n"].tolist() == list(range(N))


BAD = [
    ("a.csv", "flat/00.png,1\n", "begins with a row of values"),
    ("a.csv", "file_name,x,x\nflat/00.png,1,2\n", "has two columns 'x'"),
    ("a.csv", "file_name,x\nflat/00.png,1,2\n", "line 2: 3 cells for 2 columns"),
    ("a.csv", 'file_name,x\nflat/00.png,"a\n', "near line"),
    ("a.csv", "file_name,x\n", "has no rows"),
    ("a.csv", "", "has no rows"),
    ("a.csv", "name,x\na,b\n", "has no column of image files among 'name', 'x'"),
    ("a.csv", "file_name\nhttps://x/y.png\n", "the path of a local file is needed"),
    ("a.jsonl", '{"file_name": "flat/00.png"}\n{"file_name": "flat/01.png", "x": 1}\n', "line 2: ['x'] are not"),
    ("a.jsonl", '["flat/00.png"]\n', "line 1 is a list"),
    ("a.jsonl", '{"file_name": \n', "near line 1"),
    ("a.csv", "file_name,image\nflat/00.png,flat/01.png\n", "'file_name' and 'image' would be one part of a sample"),
    (
        "a.csv",
        "image,mask_file_name,mask\nflat/00.png,flat/01.png,2\n",
        "name both, fields={'mask_file_name': 'mask_file_name', 'mask': 'mask'}",
    ),
    ("a.jsonl", '{"file_name": "flat/00.png", "a": {"b": 1}, "a.b": 2}\n', "line 1: a key is 'a.b'"),
    ("a.jsonl", '{"file_name": "flat/00.png", "a": 1, "a.b": 2}\n', "line 1: a key is 'a.b'"),
    ("a.jsonl", '{"file_name": "flat/00.png", "": {"a": 1}, "a": 2}\n', "line 1: a key is ''"),
    (
        "a.jsonl",
        '{"image": {"b": 1}, "file_name": "flat/00.png"}\n',
        "columns 'image.b' and 'file_name' would be one part of a sample, 'image': name both",
    ),
    ("a.jsonl", '{"file_name": "flat/00.png", "text": "\\ud800"}\n', "sample 0: text is '\\ud800', with half of a"),
    ("a.jsonl", '{"file_name": "flat/00.png", "\\ud800": 1}\n', "the key '\\ud800' has half of a surrogate pair"),
    ("a.csv", "image,y\nflat/00.png,1\nflat/01.png,9223372036854775808\n", "sample 1: the label is 92233720368547"),
    ("a.jsonl", '{"file_name": "flat/00.png", "y": 9223372036854775808}\n', "sample 0: the label is 92233720368547"),
]


@pytest.mark.parametrize("name, text, words", BAD)
def test_a_manifest_that_is_none_says_where(flat, name, text, words):
    (flat.parent / name).write_text(text)
    with pytest.raises(lf.SettingsError) as refused:
        lf.open(flat.parent / name)
    assert words in str(refused.value)


def test_manifests_that_cannot_be_read(flat):
    (flat.parent / "latin.csv").write_bytes("file_name,x\nflat/00.png,é\n".encode("latin-1"))
    for place, words in ((flat.parent / "latin.csv", "UTF-8"), (flat.parent / "no.csv", "cannot be read: No such")):
        with pytest.raises(lf.SettingsError, match=words):
            lf.open(place)
    (flat.parent / "a.csv").write_text("file_name,x\nflat/00.png,1\n")
    with pytest.raises(lf.SettingsError, match="has no column 'y'"):
        lf.open(flat.parent / "a.csv", fields={"image": "file_name", "t": "y"})
    with pytest.raises(lf.SettingsError, match="is a manifest, which is read of this machine alone"):
        lf.open("s3://bucket/a.csv")


def test_whole_numbers_beyond_64_bits_are_kept_as_they_are(flat):
    (flat.parent / "n.csv").write_text(f"image,hash,id,label\nflat/00.png,{2**64 - 1},{2**62 + 1},0\n")
    row = lf.open(flat.parent / "n.csv")[0]
    assert row["hash"] == 2**64 - 1 and int(row["id"]) == 2**62 + 1


def test_a_folder_of_splits_is_a_question(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            save(tmp_path / split / name / "0.png", pixels(0))
    says = r"which\? .* holds 'train', 'val', .*lf.open\('.*/train'\), or labels='folders'"
    with pytest.raises(lf.SettingsError, match=says):
        lf.open(tmp_path)
    assert lf.open(tmp_path, labels="folders").classes == ["train", "val"]
    assert lf.open(tmp_path / "train").classes == ["cat", "dog"]


def test_images_that_differ_in_size_are_noticed_once_a_process_with_the_line_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["lossfeed._data.open"], "_noticed", False)
    for i in range(40):
        save(tmp_path / "class" / f"{i}.png", pixels(i, (21 - i % 2, 30)))
    says = r"20 x 30 and 21 x 30 among 16.*transform=lf.ImageTransform\(crop=224, scale.*then ignore this"
    with pytest.warns(UserWarning, match=says) as found:
        data = lf.open(tmp_path)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lf.open(tmp_path, resize=8)
        lf.open(tmp_path)
    with lf.Loader(data, 8, num_workers=0) as loader:
        with pytest.raises(lf.SampleError, match=r"give the loader transform=lf.ImageTransform\(crop=224, scale"):
            list(loader)
    for transform in (lf.ImageTransform(crop=20), lf.ImageTransform(resize=24, crop=20, random_crop=False)):
        with lf.Loader(data, 8, transform=transform, cache="1MB", num_workers=0) as loader:
            assert sum(len(batch) for batch in loader) == 40
    with lf.Loader(data, 8, transform=lf.ImageTransform(crop=21), num_workers=0) as loader:
        with pytest.raises(lf.SampleError, match=r"20 × 30 pixels .*, smaller than crop=\(21, 21\)"):
            list(loader)


def test_a_run_over_a_manifest_is_resumed(flat):
    (flat.parent / "p.csv").write_text("image,label\n" + "".join(f"flat/{i:02}.png,{i}\n" for i in range(N)))

    def loader():
        return lf.Loader(lf.open(flat.parent / "p.csv"), 3, num_workers=2, seed=5, shuffle=True)

    with loader() as first:
        passing = iter(first)
        next(passing)
        state, rest = first.state_dict(), [batch.target.tolist() for batch in passing]
    with loader() as second:
        second.load_state_dict(state)
        assert [batch.target.tolist() for batch in second] == rest

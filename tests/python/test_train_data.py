"""`lossfeed train`: the bundled digits, and where the held-out set comes from."""

import hashlib
import io
import tarfile
import threading

import pytest
from lossfeed.train import data, digits
from lossfeed.train.files import once, write_tar
from lossfeed.train.options import OptionError

# Of every shard's bytes, in order of names: any change of split, order or encoding must show (and change the folder's
# name).
DIGITS_SHA256 = "63c75e0476110514b7bfd3d31791297493ea022616268e3ee2729403a332bfae"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("sklearn", reason="scikit-learn brings the digits")
    return digits.digits_folder(tmp_path_factory.mktemp("work"))


def members(path):
    with tarfile.open(path) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive}


def test_the_digits_are_the_same_bytes_everywhere(folder):
    digest = hashlib.sha256()
    for shard in sorted(folder.iterdir()):
        digest.update(shard.name.encode() + shard.read_bytes())
    assert digest.hexdigest() == DIGITS_SHA256


def test_no_digit_is_in_both_halves_and_none_is_lost(folder):
    names = {part: [n for shard in folder.glob(f"{part}-*.tar") for n in members(shard)] for part in ("train", "test")}
    together = names["train"] + names["test"]
    assert len(together) == len(set(together)) == 1797
    assert {n.split("/")[0] for n in names["train"]} == {n.split("/")[0] for n in names["test"]} == set("0123456789")


def test_the_png_holds_the_digits_pixels_exactly(folder):
    image = pytest.importorskip("PIL.Image")
    numpy = pytest.importorskip("numpy")
    from sklearn.datasets import load_digits

    original = load_digits()
    shard = members(folder / "train-00.tar")
    for name, png in list(shard.items())[:50]:
        label, index = name.removesuffix(".png").split("/")
        pixels = numpy.asarray(image.open(io.BytesIO(png)))
        assert int(label) == original.target[int(index)]
        assert numpy.array_equal(pixels, (original.images[int(index)] * (255 / 16)).round())


def test_a_second_call_writes_nothing(folder):
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert digits.digits_folder(folder.parent) == folder
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == before


def test_a_folder_made_by_two_at_once_appears_whole_and_leaves_no_draft(tmp_path):
    both_inside = threading.Barrier(2)
    seen = []

    def make(draft):
        (draft / "one").write_text("1")
        both_inside.wait(timeout=30)
        seen.append((tmp_path / "made").exists())
        (draft / "two").write_text("2")

    threads = [threading.Thread(target=once, args=(tmp_path / "made", make)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made"]
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == ["one", "two"]


def test_a_folder_whose_making_fails_does_not_appear(tmp_path):
    def make(draft):
        (draft / "one").write_text("1")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        once(tmp_path / "made", make)
    assert list(tmp_path.iterdir()) == []


def shards(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        write_tar(folder / name, [(f"{c}/{name}-{i}.png", b"x" * i) for c in "ab" for i in range(1, 40)])
    return folder


def test_train_and_test_shards_of_a_folder_are_taken_as_they_are(tmp_path):
    folder = shards(tmp_path / "set", "train-00.tar", "train-01.tar", "train-10.tar", "test-00.tar")
    found = data.find(str(folder), tmp_path / "work")
    assert data.expand(found.train) == [str(folder / f"train-{n}.tar") for n in ("00", "01", "10")]
    assert data.expand(found.test) == [str(folder / "test-00.tar")]
    assert found.note == ""


def test_class_folders_under_train_and_val_are_taken_as_they_are(tmp_path):
    for part in ("train", "val"):
        (tmp_path / part / "cat").mkdir(parents=True)
    found = data.find(str(tmp_path), tmp_path / "work")
    assert (found.train, found.test) == (str(tmp_path / "train"), str(tmp_path / "val"))


def test_many_shards_without_a_test_set_give_up_whole_ones(tmp_path):
    folder = shards(tmp_path / "set", *(f"part-{i:02d}.tar" for i in range(10)))
    found = data.find(str(folder), tmp_path / "work")
    train, test = data.expand(found.train), data.expand(found.test)
    assert len(train) == 9 and len(test) == 1
    assert sorted(train + test) == sorted(str(p) for p in folder.iterdir())
    assert "held out 1 of 10 shards" in found.note
    assert data.find(str(folder), tmp_path / "work") == found


def test_one_shard_is_split_by_members_none_lost_none_shared(tmp_path):
    folder = shards(tmp_path / "set", "all.tar")
    found = data.find(str(folder / "all.tar"), tmp_path / "work")
    train, test = members(found.train), members(found.test)
    assert not set(train) & set(test) and len(test) > 0
    assert {**train, **test} == members(folder / "all.tar")


def test_a_class_folder_tree_is_split_by_links_a_tenth_of_every_class(tmp_path):
    for name, count in (("cat", 40), ("dog", 20), ("eel", 1)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(count):
            (tmp_path / "set" / name / f"{i}.jpg").write_bytes(bytes([i]))
    found = data.find(str(tmp_path / "set"), tmp_path / "work")
    from pathlib import Path

    train, test = ({p.relative_to(root): p.resolve() for p in Path(root).rglob("*.jpg")} for root in (found.train, found.test))
    assert not set(train) & set(test)
    assert sorted([*train.values(), *test.values()]) == sorted((tmp_path / "set").resolve().rglob("*.jpg"))
    assert sorted(str(p.parent) for p in test) == ["cat"] * 4 + ["dog"] * 2


@pytest.mark.parametrize("given", ["nothing-here", "s3://bucket/train-{00..09}.tar"])
def test_a_path_that_cannot_be_used_is_refused_by_name(given, tmp_path):
    given = given if "://" in given else str(tmp_path / given)
    with pytest.raises(OptionError, match=given.split("{")[0]):
        data.find(given, tmp_path)


def test_an_empty_folder_is_refused_and_told_what_was_expected(tmp_path):
    with pytest.raises(OptionError, match="no class folders and no .tar shards"):
        data.find(str(tmp_path), tmp_path / "work")


@pytest.mark.parametrize("names", [["a.tar"], ["x-1.tar", "x-2.tar"], ["1.tar", "11.tar", "111.tar"], ["a/b.tar", "c/b.tar"]])
def test_a_brace_pattern_expands_to_the_paths_it_was_made_of(names, tmp_path):
    paths = [tmp_path / n for n in names]
    assert data.expand(data.brace(paths)) == [str(p) for p in paths]


def test_ranges_keep_their_leading_zeros():
    assert data.expand("s-{08..11}.{tar,zip}") == [f"s-{n}.{e}" for n in ("08", "09", "10", "11") for e in ("tar", "zip")]

"""Files that are nothing but records of a fixed size. numpy.memmap and numpy.frombuffer are the twins."""

import numpy as np
import pytest
import torch

import lossfeed as lf

CIFAR = np.dtype([("label", "u1"), ("data", "u1", (3, 4, 4))])
MIXED = np.dtype([("a", "f4"), ("b", "u2", (3,)), ("c", "?"), ("d", "i8"), ("e", "u4")], align=True)
RNG = np.random.default_rng(0)


def write(path, kind, records, header=b""):
    raw = RNG.integers(0, 256, records * kind.itemsize, dtype=np.uint8).tobytes()
    made = np.frombuffer(raw, kind).copy()
    for name in kind.names or ():
        if kind[name] == np.bool_:
            made[name] = np.frombuffer(raw, np.uint8)[:records] % 2
    path.write_bytes(header + made.tobytes())
    return made


def same(found, wanted):
    wanted = np.asarray(wanted)
    found = np.asarray(found)
    if wanted.dtype in (np.uint16, np.uint32):
        assert found.dtype == np.int64
        wanted = wanted.astype(np.int64)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    assert found.tobytes() == np.ascontiguousarray(wanted).tobytes(), "floats too, NaN among them"


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [CIFAR, MIXED], ids=["cifar", "mixed"])
def test_records_of_several_files_are_those_that_numpy_reads(tmp_path, kind, workers, framework):
    wanted = np.concatenate([write(tmp_path / f"part_{n}.bin", kind, 10 + n, b"head") for n in range(3)])
    data = lf.open(str(tmp_path / "part_*.bin"), dtype=kind, header=4)
    assert len(data) == len(wanted) == 33
    for batch in lf.Loader(data, 8, shuffle=True, seed=1, cache="1KiB", num_workers=workers, framework=framework):
        for name in kind.names:
            same(batch[name], wanted[name][np.asarray(batch.ids)])
    for name in kind.names:
        same(data[20][name], wanted[name][20])
    listed = lf.open([tmp_path / "part_2.bin", tmp_path / "part_0.bin"], dtype=kind, header=4)
    assert len(listed) == 22


def test_a_named_target_makes_pairs_and_a_usual_name_is_found(tmp_path):
    wanted = write(tmp_path / "batch.bin", CIFAR, 20)
    batch = next(iter(lf.Loader(lf.open(tmp_path / "batch.bin", dtype=CIFAR, target="label"), 20, num_workers=0)))
    x, y = batch
    same(x, wanted["data"])
    same(y, wanted["label"])
    batch = next(iter(lf.Loader(lf.open(tmp_path / "batch.bin", dtype=CIFAR), 20, num_workers=0)))
    assert batch.target is batch["label"]
    wide = np.dtype([("x", "f4", (2,)), ("kind", "u2")])
    wanted = write(tmp_path / "wide.bin", wide, 9)
    x, y = next(iter(lf.Loader(lf.open(tmp_path / "wide.bin", dtype=wide, target="kind"), 9, num_workers=0)))
    same(x, wanted["x"])
    same(y, wanted["kind"])
    three = lf.open(tmp_path / "mixed.bin" if write(tmp_path / "mixed.bin", MIXED, 5) is not None else "", dtype=MIXED, target="d")
    batch = next(iter(lf.Loader(three, 5, num_workers=0)))
    assert batch.target is batch["d"]


@pytest.mark.parametrize("stride", [None, 2, 6, 16, 40])
def test_windows_of_a_file_of_tokens_overlap_as_numpys_do(tmp_path, stride):
    tokens = RNG.integers(0, 2**16, 400, dtype=np.uint16)
    (tmp_path / "train.bin").write_bytes(b"\0" * 7 + tokens.tobytes())
    window = np.dtype(("u2", 8))
    data = lf.open(tmp_path / "train.bin", dtype=window, header=7, stride=stride)
    raw = np.memmap(tmp_path / "train.bin", np.uint8, "r", offset=7)
    wanted = np.stack([raw[at : at + 16] for at in range(0, len(raw) - 15, stride or 16)]).view(np.uint16)
    assert len(data) == len(wanted) and data.spec == ("int64", (8,))
    for batch in lf.Loader(data, 64, shuffle=True, seed=2):
        same(batch.data, wanted[batch.ids.numpy()])
        assert batch.data.dtype == torch.int64 and int(batch.data.min()) >= 0


def test_what_is_no_file_of_such_records_is_refused_with_numbers(tmp_path):
    write(tmp_path / "ok.bin", CIFAR, 3)
    (tmp_path / "cut.bin").write_bytes(b"\0" * 100)
    (tmp_path / "empty.bin").write_bytes(b"")
    over = np.dtype({"names": ["a", "b"], "formats": ["u4", "u4"], "offsets": [0, 2]})
    for name, options, says in [
        ("cut.bin", {}, r"cut.bin has 100 bytes behind its header of 0, which is 2 records of 49 bytes and 2 bytes more.*stride=49"),
        ("empty.bin", {}, "empty.bin has 0 bytes, which is not a record of 49 bytes behind a header of 0"),
        ("ok.bin", {"header": 200}, "ok.bin has 147 bytes, which is not a record of 49 bytes behind a header of 200"),
        ("none.bin", {}, "none.bin: no such file"),
        ("*.none", {}, "no such file"),
        ("ok.bin", {"dtype": ">u2"}, "a foreign byte order"),
        ("ok.bin", {"dtype": [("a", "O")]}, "dtype object, which cannot travel"),
        ("ok.bin", {"dtype": [("a", "c32")]}, "dtype complex256, which cannot travel"),
        ("ok.bin", {"dtype": over}, r"field 'b' of dtype= begins at byte 2, within field 'a', which ends at 4"),
        ("ok.bin", {"dtype": [("a", [("b", "u1")])]}, "list its parts as separate fields, with offsets"),
        ("ok.bin", {"dtype": [("a", "u1", (0,))]}, "which is no bytes"),
        ("ok.bin", {"dtype": []}, "has no fields"),
        ("ok.bin", {"dtype": "no such"}, "is no NumPy dtype"),
        ("ok.bin", {"target": "y"}, r"target='y' is no field of dtype=: it has \['label', 'data'\]"),
        ("ok.bin", {"header": -1}, "header=-1 must be at least 0"),
        ("ok.bin", {"stride": 0}, "stride=0 must be at least 1"),
        ("ok.bin", {"mode": "rgb"}, "mode: with dtype= files are read as they are"),
    ]:
        with pytest.raises(lf.Error, match=says):
            lf.open(tmp_path / name, **{"dtype": CIFAR, **options})
    with pytest.raises(lf.SettingsError, match="copy them here first"):
        lf.open("s3://bucket/a.bin", dtype=CIFAR)
    with pytest.raises(lf.SettingsError, match="stride=2 goes with dtype="):
        lf.open((np.ones((4, 2)), np.ones(4)), stride=2)


def test_a_file_that_changes_is_named(tmp_path):
    write(tmp_path / "a.bin", CIFAR, 8)
    data = lf.open(tmp_path / "a.bin", dtype=CIFAR)
    (tmp_path / "a.bin").write_bytes(b"\0" * 49)
    with pytest.raises(lf.Error, match="changed since"):
        list(lf.Loader(data, 4, num_workers=0))

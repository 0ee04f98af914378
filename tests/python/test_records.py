"""Arrays in files: .npy, .npz and safetensors, read row by row. NumPy's own readers are the twin."""

import io
import json
import os
import struct
import zipfile

import numpy as np
import pytest
import torch

import lossfeed as lf

N = 40
RNG = np.random.default_rng(0)
ARRAYS = {
    "pixels": RNG.integers(0, 256, (N, 5, 3), dtype=np.uint8),
    "z": RNG.normal(size=(N, 7)).astype(np.float16),
    "flags": RNG.integers(0, 2, (N, 2)).astype(bool),
    "label": np.arange(N),
}


@pytest.fixture
def folder(tmp_path):
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", **ARRAYS)
    write_safetensors(tmp_path / "all.safetensors", ARRAYS)
    return tmp_path


def write_safetensors(path, arrays, **changed):
    names = {"uint8": "U8", "float16": "F16", "bool": "BOOL", "int64": "I64", "uint16": "BF16"}
    head, at = {"__metadata__": {"made": "here"}}, 0
    for name, array in arrays.items():
        head[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    head.update(changed)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))


@pytest.mark.parametrize("cache", [None, "3KiB"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["npz", "safetensors", "dict of npy"])
def test_rows_are_those_that_numpy_reads(folder, kind, workers, cache):
    data = {name: folder / f"{name}.npy" for name in ARRAYS} if kind == "dict of npy" else folder / f"all.{kind}"
    loader = lf.Loader(data, 7, shuffle=True, seed=1, num_workers=workers, cache=cache, policy="lru" if cache else None)
    for _ in range(3):
        seen = []
        for batch in loader:
            ids = batch.ids.numpy()
            seen += ids.tolist()
            for name, array in ARRAYS.items():
                assert np.array_equal(batch[name].numpy(), array[ids]) and batch[name].numpy().dtype == array.dtype
            assert batch.target is batch["label"]
        assert sorted(seen) == list(range(N))


def test_two_files_are_a_pair_and_one_is_its_rows(folder):
    x, y = next(iter(lf.Loader((str(folder / "pixels.npy"), folder / "label.npy"), 8)))
    assert np.array_equal(x.numpy(), ARRAYS["pixels"][:8]) and y.tolist() == list(range(8))
    batch = next(iter(lf.Loader(folder / "z.npy", 8)))
    assert np.array_equal(batch.data.numpy(), ARRAYS["z"][:8]) and batch.target is None
    data = lf.open(folder / "all.npz")
    assert data.spec["pixels"] == ("uint8", (5, 3)) and data[3]["label"] == 3 and "all.npz" in repr(data)
    state = lf.Loader(data, 8, seed=1).state_dict()
    np.savez(folder / "all.npz", **{**ARRAYS, "label": ARRAYS["label"] + 1})
    with pytest.raises(lf.SettingsError, match="dataset"):
        lf.Loader(folder / "all.npz", 8, seed=1).load_state_dict(state)


def test_bfloat16_travels_from_safetensors(tmp_path):
    x = torch.arange(12.0).view(4, 3).bfloat16()
    write_safetensors(tmp_path / "x.safetensors", {"x": x.view(torch.int16).numpy().view(np.uint16)})
    assert torch.equal(next(iter(lf.Loader(tmp_path / "x.safetensors", 4)))["x"], x)


def test_a_file_that_changes_under_a_run_is_never_delivered(folder):
    loader = lf.Loader((folder / "pixels.npy", folder / "label.npy"), 8, num_workers=0)
    it = iter(loader)
    next(it)
    with open(folder / "pixels.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(lf.SourceError, match="pixels.npy changed since it was indexed"):
        list(it)
    with open(folder / "label.npy", "r+b") as file:
        file.truncate(200)
    with pytest.raises(lf.SourceError, match=r"label.npy has 200 bytes, and 40 rows of 8 bytes from offset 128"):
        lf.open((folder / "pixels.npy", folder / "label.npy"))


def npy(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


BAD = [
    ("x.npy", lambda: b"", lf.SourceError, "is not a numeric .npy file"),
    ("x.npy", lambda: npy(np.ones(3))[:20], lf.SourceError, "is not a numeric .npy file"),
    ("x.npy", lambda: b"\x93NUMPY\x09\x00" + bytes(100), lf.SourceError, "is not a numeric .npy file"),
    ("x.npy", lambda: npy(np.ones((4, 3)))[:-1], lf.SourceError, "cut short"),
    ("x.npy", lambda: npy(np.array(3.0)), lf.SettingsError, "without dimensions"),
    ("x.npy", lambda: npy(np.ones((0, 3))), lf.SettingsError, "0 rows"),
    ("x.npy", lambda: npy(np.ones((3, 0))), lf.SettingsError, "have no elements"),
    ("x.npy", lambda: npy(np.ones((4, 3), order="F")), lf.SettingsError, "Fortran order.*ascontiguousarray"),
    ("x.npy", lambda: npy(np.ones(4, ">f4")), lf.SettingsError, "byte order"),
    ("x.npy", lambda: npy(np.array([{}, []], object)), lf.SettingsError, "dtype object cannot travel"),
    ("x.npy", lambda: npy(np.ones(3, np.longdouble)), lf.SettingsError, "dtype float128 cannot travel"),
    ("x.npz", lambda: b"PK no zip", lf.SourceError, "is no .npz"),
    ("x.npz", lambda: b"PK\x05\x06" + bytes(18), lf.SourceError, "holds no arrays"),
    ("x.safetensors", lambda: b"short", lf.SourceError, "its head would have"),
    ("x.safetensors", lambda: struct.pack("<Q", 1 << 60) + b"{}", lf.SourceError, "its head would have"),
    ("x.safetensors", lambda: struct.pack("<Q", 3) + b"[1]", lf.SourceError, "is not a safetensors file"),
    ("x.safetensors", lambda: struct.pack("<Q", 2) + b"{}", lf.SourceError, "holds no arrays"),
    ("x.safetensors", lambda: struct.pack("<Q", 7) + b'{"a":1}', lf.SourceError, "is not a safetensors file"),
]


@pytest.mark.parametrize("name,content,kind,says", BAD, ids=[f"{name} {says[:24]}" for name, _, _, says in BAD])
def test_what_is_no_file_of_arrays_is_named(tmp_path, name, content, kind, says):
    (tmp_path / name).write_bytes(content())
    with pytest.raises(kind, match=says) as raised:
        lf.open(tmp_path / name)
    assert name in str(raised.value) or "rows" in str(raised.value)


@pytest.mark.parametrize(
    "tensor,says",
    [
        ({"dtype": "U8", "shape": [4, 3], "data_offsets": [0, 11]}, "is not 11 bytes"),
        ({"dtype": "U8", "shape": [4, -3], "data_offsets": [0, 12]}, "shape"),
        ({"dtype": "U8", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 12]}, "bytes"),
        ({"dtype": "U8", "shape": [4, 3], "data_offsets": [1 << 50, (1 << 50) + 12]}, "cut short"),
        ({"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, "F8_E4M3 cannot travel"),
        ({"dtype": "U8", "shape": [4]}, "data_offsets"),
    ],
    ids=str,
)
def test_a_safetensors_head_is_trusted_in_nothing(tmp_path, tensor, says):
    write_safetensors(tmp_path / "x.safetensors", {}, x=tensor)
    with pytest.raises(lf.Error, match=says):
        lf.open(tmp_path / "x.safetensors")


def test_settings_that_do_not_fit_are_refused(folder):
    np.savez_compressed(folder / "small.npz", **ARRAYS)
    np.save(folder / "short.npy", np.arange(3))
    for data, keywords, says in [
        (folder / "small.npz", {}, "compressed.*np.savez"),
        ((folder / "z.npy", folder / "short.npy"), {}, "40 rows and .*short.npy has 3"),
        (folder / "all.npz", {"resize": 4}, "are for images"),
        (folder / "all.npz", {"latency": 0.1}, "latency=0.1 is for paths"),
        (folder / "all.npz", {"processes": 2}, "for Python datasets"),
        (folder / "all.npz", {"varying": True}, "for Python datasets"),
    ]:
        with pytest.raises(lf.SettingsError, match=says):
            lf.open(data, **keywords)
    with pytest.raises(lf.SourceError, match="nowhere.npy cannot be opened: No such file"):
        lf.open(folder / "nowhere.npy")
    with zipfile.ZipFile(folder / "text.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(lf.SourceError, match="readme.txt is not a numeric .npy"):
        lf.open(folder / "text.npz")

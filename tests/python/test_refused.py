"""The table of bad inputs: each has a named error that says what was wrong and what to do. Nothing of it may be taken in
silence, raise an error of another kind, or hang."""

import inspect
import io
import tarfile
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import refused_choosing
import refused_loading
import refused_opening
import refused_scoring
import refused_transforming
import torch
from PIL import Image

import lossfeed as lf

TABLES = refused_opening, refused_loading, refused_transforming, refused_scoring, refused_choosing
CASES = [case for table in TABLES for case in table.CASES]


class Items(torch.utils.data.Dataset):
    """What `item` gives, `count` times."""

    def __init__(self, item, count=8):
        self.item, self.count = item, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.item(i)


def boom(_):
    raise LookupError("gone")


def png(size=(8, 8)):
    out = io.BytesIO()
    Image.new("RGB", size).save(out, "PNG")
    return out.getvalue()


def write_files(root):
    """What the cases name with ``at``: good files and bad ones of each kind."""
    x, y = np.arange(192, dtype=np.float32).reshape(64, 3), np.arange(64) % 4
    for name, data in {
        **{f"folder/{c}/{i}.png": png() for c in "ab" for i in range(4)},
        **{"sizes/a/0.png": png(), "sizes/a/1.png": png((9, 7)), "broken/a/0.png": b"no picture", "empty/a/.keep": b""},
        **{f"bad.{end}": b"nope" for end in ("npy", "npz", "safetensors")},
        **{"bad.parquet": b"PAR1xxxxPAR1", "bad.tar": b"x" * 2000, "file": b"", "a.csv": b"1,2", "a.h5": b"x", "notes.txt": b"x"},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "nothing").mkdir()
    for name, count in (("shard.tar", 4), ("none.tar", 0)):
        with tarfile.open(root / name, "w") as shard:
            for i in range(count):
                for end, data in (("jpg", png()), ("txt", b"words"), ("cls", b"1")):
                    head = tarfile.TarInfo(f"{i}.{end}")
                    head.size = len(data)
                    shard.addfile(head, io.BytesIO(data))
    columns = {"image": [png()] * 4, "label": [0, 1, 2, 3], "caption": list("abcd"), "when": pa.array([0] * 4, pa.timestamp("s"))}
    pq.write_table(pa.table(columns), root / "rows.parquet")
    for name, array in (("x", x), ("y", y[:60]), ("f", np.asfortranarray(x)), ("o", np.array([None] * 3)), ("c", np.asarray(x, np.longdouble)), ("s", x[0, 0])):
        np.save(root / f"{name}.npy", array)
    np.savez_compressed(root / "z.npz", x=x)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What the calls of the table are made with."""
    import os

    root = tmp_path_factory.mktemp("refused")
    write_files(root)
    x, y = torch.arange(192, dtype=torch.float32).reshape(64, 3), torch.arange(64) % 4
    loader = lf.Loader((x, y), 8, score="loss", num_workers=0, seed=0)
    batch = next(iter(loader))

    def closed():
        one = lf.Loader((x, y), 8, num_workers=0)
        one.close()
        return one

    def private(name):
        (root / name).write_bytes(b"a model that somebody has trained")
        (root / name).chmod(0o600)
        return str(root / name)

    return {
        **{"private": private},
        **{"lf": lf, "torch": torch, "np": np, "os": os, "Items": Items, "boom": boom, "closed": closed},
        **{"x": x, "y": y, "z": torch.randn(8, 4), "pair": (x, y), "data": lf.open((x.numpy(), y.numpy()))},
        **{"loader": loader, "batch": batch, "state": loader.state_dict(), "other": lf.Loader((x, y), 8, num_workers=0, seed=0)},
        **{"at": lambda name: str(root / name), "folder": str(root / "folder"), "file": str(root / "file")},
        **{"images": lf.open(root / "folder"), "scores": lf.Scores(64, 8, seed=0)},
    }


@pytest.mark.parametrize("call,error,says", CASES, ids=[call for call, _, _ in CASES])
def test_bad_input_has_its_answer(given, call, error, says):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(getattr(lf, error)) as refused:
            eval(call, given)
    assert type(refused.value) is getattr(lf, error) and says in str(refused.value)


def test_the_table_is_long_and_leaves_no_keyword_out():
    calls = [call for call, _, _ in CASES]
    assert len(calls) == len(set(calls)) >= 240
    # Those that cases give by position, and a name that may be any text.
    free = {"self", "data", "batch_size", "dtype", "job"}
    for what in (lf.open, lf.Loader, lf.ImageTransform, lf.Cache, lf.Sampling, lf.Reading):
        start = f"lf.{what.__name__}("
        text = "\n".join(call for call in calls if start in call)
        names = set(inspect.signature(what).parameters) - free
        names -= {next(iter(inspect.signature(what).parameters))}
        missing = sorted(name for name in names if f"{name}=" not in text)
        assert not missing, f"{start} no case has {missing}"


@pytest.mark.parametrize(
    "call",
    [
        "{}(z.numpy(), y)", "{}(z, y[:7])", "{}(z, y, torch.ones(3))", "{}(z, y, reduction='median')", "{}(z, None)",
        "{}(None, y)", "{}(z, y, label_smoothing=2.0)", "{}(z, y, ignore_index='x')", "{}(z, y.float())", "{}(z.long(), y)",
    ],
)  # fmt: skip
def test_the_loss_alone_raises_what_torchs_raises(call):
    names = {"lf": lf, "F": torch.nn.functional, "torch": torch, "z": torch.randn(8, 4), "y": torch.arange(8) % 4}
    for name in ("F.cross_entropy", "lf.cross_entropy"):
        with pytest.raises((TypeError, ValueError, RuntimeError)) as refused:
            eval(call.format(name), dict(names))
        if name[0] == "F":
            kind = refused.type
    assert refused.type is kind

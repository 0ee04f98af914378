"""Rows of Parquet files as samples, as pyarrow and Hugging Face write them: pictures, text, numbers, lists."""

import io
import json
import pathlib
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import lossfeed as lf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FaultStore  # noqa: E402

N = 90
SIZE = (9, 7)


def pixels(i):
    return np.random.default_rng(i).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


def png(i):
    out = io.BytesIO()
    Image.fromarray(pixels(i)).save(out, "PNG")
    return out.getvalue()


def words(i):
    return "Wörter " * (i % 5)


def tokens(i):
    return list(range(i % 4))


def table(rows, **columns):
    """As `datasets` writes images: a struct of bytes and path, and a description of the features."""
    image = pa.array([{"bytes": png(i), "path": f"{i}.png"} for i in rows], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    made = {
        "img": image,
        "label": pa.array([i % 3 for i in rows], pa.int64()),
        "caption": pa.array([words(i) for i in rows]),
        "half": pa.array([i / 2 for i in rows], pa.float64()),
        "even": pa.array([i % 2 == 0 for i in rows]),
        "tokens": pa.array([tokens(i) for i in rows], pa.list_(pa.int32())),
        **columns,
    }
    features = {
        "img": {"_type": "Image"},
        "label": {"names": ["cat", "dog", "fish"], "_type": "ClassLabel"},
        "caption": {"dtype": "string", "_type": "Value"},
    }
    made = {name: column for name, column in made.items() if column is not None}
    return pa.table(made).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


#: What writers choose: dictionaries or none, page index or none, codecs, versions of pages, sizes of row groups and pages.
WRITERS = {
    "default": {},
    "hugging face": {"row_group_size": 20, "write_page_index": True, "use_dictionary": False},
    "index and dictionaries": {"row_group_size": 40, "write_page_index": True, "data_page_size": 500},
    "small pages": {"data_page_size": 700, "use_dictionary": False, "compression": "zstd"},
    # The dictionary fills up: later pages of a chunk are plain.
    "dictionaries that fill up": {"data_page_size": 700, "dictionary_pagesize_limit": 2000, "compression": "gzip"},
    "pages of version 2": {"data_page_version": "2.0", "data_page_size": 900, "compression": "lz4"},
    "uncompressed": {"compression": "none", "row_group_size": 7, "use_dictionary": False},
}


@pytest.fixture(scope="module", params=WRITERS, ids=lambda name: name.replace(" ", "-"))
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    for part in range(2):
        rows = range(part * N // 2, (part + 1) * N // 2)
        pq.write_table(table(rows), folder / f"train-{part:05}-of-00002.parquet", write_batch_size=4, **WRITERS[request.param])
    return folder


def check(batch):
    for row, i in enumerate(batch.ids.tolist()):
        assert np.array_equal(batch["img"][row], pixels(i))
        assert batch["label"][row] == batch.target[row] == i % 3
        assert batch["caption"][row] == words(i)
        assert batch["half"][row] == i / 2 and batch["even"][row] == (i % 2 == 0)
        assert batch["tokens"][row][: i % 4].tolist() == tokens(i) and (batch["tokens"][row][i % 4 :] == -1).all()


ALL = ("img", "label", "caption", "half", "even", "tokens")


@pytest.mark.parametrize("reading", [{}, {"latency": 0.001}])
def test_every_row_comes_as_it_was_written(files, reading):
    fields = {name: name for name in ALL}
    data = lf.open(files, fields=fields, **reading)
    assert (len(data), data.classes, data.target_spec) == (N, ["cat", "dog", "fish"], ("int64", ()))
    assert data.labels.tolist() == [i % 3 for i in range(N)]
    assert data.spec["img"] == ("uint8", (*SIZE, 3)) and data.spec["tokens"] == ("int32", (None,))
    for form in ("encoded", "decoded"):
        with lf.Loader(lf.open(files, fields=fields, **reading), 8, shuffle=True, seed=1, cache="1MiB", cache_form=form, pad={"tokens": -1}, num_workers=2) as loader:
            for epoch in range(3):
                loader.set_epoch(epoch)
                seen = []
                for batch in loader:
                    check(batch)
                    seen += batch.ids.tolist()
                assert sorted(seen) == list(range(N))
            # A row's size is known once it was delivered: it enters the cache the second time.
            assert loader.stats()["hits_total"] == N
    item = data[N - 1]
    assert (item["caption"], item["half"], item["even"], item["label"]) == (words(N - 1), (N - 1) / 2, False, (N - 1) % 3)
    assert item["tokens"].tolist() == tokens(N - 1) and data.name(N - 1).endswith(f"of-00002.parquet, row {N // 2 - 1}")


def test_a_picture_and_its_label_are_a_pair_by_themselves(files):
    data = lf.open(files / "train-*.parquet", fields=("img", "label"))
    plain = lf.Loader(data, 16, transform=lf.ImageTransform("float32", mean=0.5, std=0.5, flip=0.5), seed=2, shuffle=True)
    for batch in plain:
        assert batch.data.dtype == torch.float32
        assert batch.target.tolist() == [i % 3 for i in batch.ids.tolist()]
    # Read in order, a page is read once for all of its rows that a batch wants.
    with lf.Loader(lf.open(files, fields=("img", "label"), latency=0.001), 30, shuffle=False, num_workers=0, read_ahead=0) as loader:
        for batch in loader:
            assert [np.array_equal(row, pixels(i)) for row, i in zip(batch.data, batch.ids.tolist())] == [True] * len(batch)
        assert loader.stats()["fetched_samples_total"] == N


def test_what_no_fields_ask_for(tmp_path):
    pq.write_table(table(range(6), caption=None, half=None, even=None, tokens=None), tmp_path / "pair.parquet")
    data = lf.open(tmp_path / "pair.parquet")
    image, label = next(iter(lf.Loader(data, 6)))
    assert image.shape == (6, *SIZE, 3) and label.tolist() == [0, 1, 2, 0, 1, 2]
    # More columns than a picture and its label: the pair all the same, as class folders have it.
    pq.write_table(table(range(6)), tmp_path / "more.parquet")
    image, label = next(iter(lf.Loader(lf.open(tmp_path / "more.parquet"), 6)))
    assert image.shape == (6, *SIZE, 3)
    # Without a picture all columns, as dicts.
    text = pa.table({"text": [words(i) for i in range(6)], "label": list(range(6)), "score": [0.5] * 6})
    pq.write_table(text, tmp_path / "text.parquet")
    data = lf.open(tmp_path / "text.parquet")
    batch = next(iter(lf.Loader(data, 6)))
    assert batch["text"] == [words(i) for i in range(6)] and batch.target.tolist() == list(range(6))
    assert batch["score"].dtype == torch.float64 and list(batch.keys()) == ["text", "label", "score"]
    # Bytes in a column that is called a picture, with nobody's description.
    named = pa.table({"image": [png(i) for i in range(6)], "y": pa.array(range(6), pa.int32())})
    pq.write_table(named, tmp_path / "named.parquet")
    image, label = next(iter(lf.Loader(lf.open(tmp_path / "named.parquet"), 6)))
    assert np.array_equal(image[4], pixels(4)) and label.tolist() == list(range(6)) and label.dtype == torch.int64


def test_token_lists_of_one_length_are_a_tensor_and_others_need_a_rule(tmp_path):
    rows = pa.table({"input_ids": pa.array([[i, i + 1, i + 2] for i in range(10)], pa.list_(pa.int64()))})
    pq.write_table(rows, tmp_path / "even.parquet", row_group_size=4)
    batch = next(iter(lf.Loader(lf.open(tmp_path / "even.parquet"), 10)))
    assert batch["input_ids"].tolist() == [[i, i + 1, i + 2] for i in range(10)]
    ragged = pa.table({"input_ids": pa.array([[1] * i for i in range(10)], pa.list_(pa.int64())), "n": list(range(10))})
    pq.write_table(ragged, tmp_path / "ragged.parquet", data_page_size=16, write_page_index=True)
    data = lf.open(tmp_path / "ragged.parquet")
    with pytest.raises(lf.SampleError, match="pad="):
        next(iter(lf.Loader(data, 10)))
    for batch in lf.Loader(data, 3, shuffle=True, pad="nested"):
        assert [len(row) for row in batch["input_ids"].unbind()] == batch["n"].tolist()


def test_a_run_goes_on_where_its_state_was_taken(files):
    def made():
        return lf.Loader(lf.open(files, fields=("img", "label")), 8, sampler="importance", cache="64KiB", seed=3, num_workers=2)

    loader, order = made(), []
    for epoch in range(3):
        loader.set_epoch(epoch)
        for number, batch in enumerate(loader):
            loader.cross_entropy(torch.zeros(len(batch), 3, requires_grad=True) + batch.ids[:, None], batch).backward()
            if epoch == 2:
                order.append(batch.ids.tolist())
                if number == 3:
                    state = loader.state_dict()
    again = made()
    again.load_state_dict(state)
    resumed = []
    for batch in again:
        again.cross_entropy(torch.zeros(len(batch), 3, requires_grad=True) + batch.ids[:, None], batch)
        resumed.append(batch.ids.tolist())
    assert resumed == order[4:]


def test_rows_behind_a_store_come_a_page_at_a_time_and_survive_its_faults(tmp_path):
    file = io.BytesIO()
    pq.write_table(table(range(N)), file, data_page_size=1200, use_dictionary=False, write_batch_size=4, write_page_index=True)
    with FaultStore({"train.parquet": file.getvalue()}) as store:
        data = lf.open(store.url + "/train.parquet", latency=0.005)
        opened = store.requests["train.parquet"]
        assert opened <= 12
        with lf.Loader(data, 10, shuffle=True, seed=1, cache=0) as loader:
            for batch in loader:
                for row, i in enumerate(batch.ids.tolist()):
                    assert np.array_equal(batch.data[row], pixels(i))
            # In any order: what is read ahead of a page comes with one request.
            assert store.requests["train.parquet"] - opened < N
            assert loader.stats()["read_ahead_samples_total"] > 0
    with FaultStore({"train.parquet": file.getvalue()[:-100]}) as store:
        with pytest.raises(lf.SourceError, match="cannot be read as a Parquet file"):
            lf.open(store.url + "/train.parquet")


def test_packed_rows_are_the_rows(files, tmp_path):
    def pack(*more):
        argv = [sys.executable, "-m", "lossfeed", "pack", str(files), *more]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = pack(str(tmp_path / "all"), "--fields", ",".join(ALL), "--shard-size", "16kB", "--keep-order")
    assert 'fields=["jpg;png;webp;tif;bmp;gif;ppm", "cls", "caption.txt", "half.npy", "even.npy", "tokens.npy"]' in said
    fields = {"img": "png", "label": "cls", "caption": "caption.txt", "half": "half.npy", "even": "even.npy", "tokens": "tokens.npy"}
    data = lf.open(tmp_path / "all", fields=fields)
    assert len(data) == N and len(list((tmp_path / "all").iterdir())) > 3
    for i in (0, 7, N - 1):
        item = data[i]
        assert np.array_equal(item["img"], pixels(i)) and (item["label"], item["caption"]) == (i % 3, words(i))
        assert (item["half"], item["even"], item["tokens"].tolist()) == (i / 2, i % 2 == 0, tokens(i))
        assert (item["half"].dtype, item["even"].dtype, item["tokens"].dtype) == (np.float64, np.bool_, np.int32)
    # A picture and its label become images in the folders of their classes.
    pack(str(tmp_path / "pairs"), "--fields", "img,label")
    pairs = lf.open(tmp_path / "pairs")
    assert pairs.classes == ["cat", "dog", "fish"] and sorted(pairs.labels.tolist()) == sorted(i % 3 for i in range(N))
    packed = {bytes(image.numpy()): int(label) for image, label in (pairs[i] for i in range(N))}
    assert packed == {pixels(i).tobytes(): i % 3 for i in range(N)}
    again = subprocess.run([sys.executable, "-m", "lossfeed", "pack", str(files), str(tmp_path / "pairs"), "--fields", "img,label", "--resume"], capture_output=True, text=True, timeout=120)
    assert again.returncode == 0 and "were there" in again.stdout, again.stderr


def test_a_file_that_was_damaged_is_named_and_never_delivered_wrong(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(table(range(40)), path, row_group_size=10, use_dictionary=False)
    sound = path.read_bytes()
    rng = np.random.default_rng(4)
    told = 0
    for _ in range(120):
        damaged = bytearray(sound)
        start = int(rng.integers(0, len(sound)))
        for at in range(start, min(start + int(rng.integers(1, 60)), len(sound))):
            damaged[at] = int(rng.integers(0, 256))
        path.write_bytes(damaged if rng.integers(0, 3) else damaged[: int(rng.integers(0, len(sound)))])
        try:
            data = lf.open(path, fields=("img", "label"))
            with lf.Loader(data, 8, on_error="skip", stats=False) as loader:
                for batch in loader:
                    assert batch.data.shape[1:] == (*SIZE, 3)
        except lf.Error:
            told += 1
    assert told > 20


@pytest.mark.parametrize(
    "columns, fields, says",
    [
        ({}, ("img", "nothing"), "column 'nothing'.* is not there; it has img, label, caption"),
        ({}, ("img", "img"), "comes twice"),
        ({}, ("label",), "nothing to deliver beside a class number"),
        ({}, ("label", "img"), "comes last"),
        ({"when": pa.array([0] * 6, pa.timestamp("ms"))}, ("img", "when"), "'when'.* is of a type that no batch has"),
        ({"img": None, "when": pa.array([0] * 6, pa.timestamp("ms"))}, None, "'when'.* name the columns you want"),
        ({"label": pa.array([0, 1, None, 0, 1, 2], pa.int64())}, ("img", "label"), "row 2 of .*rows.parquet has no label"),
    ],
)
def test_columns_that_cannot_be_delivered_are_refused(tmp_path, columns, fields, says):
    pq.write_table(table(range(6), **columns), tmp_path / "rows.parquet")
    with pytest.raises(lf.Error, match=says.replace("'", '"')):
        lf.open(tmp_path / "rows.parquet", fields=fields)


def test_nulls_are_bad_samples(tmp_path):
    made = table(range(6), caption=pa.array(["a", None, "c", "d", "e", "f"]))
    pq.write_table(made, tmp_path / "rows.parquet")
    data = lf.open(tmp_path / "rows.parquet", fields=("img", "caption"))
    with pytest.raises(lf.SampleError, match="row 1.*caption is null"):
        list(lf.Loader(data, 6))
    batch = next(iter(lf.Loader(data, 6, on_error="skip")))
    assert batch.ids.tolist() == [0, 2, 3, 4, 5] and batch[1] == ["a", "c", "d", "e", "f"]


def test_the_demonstration_job_trains_on_them(tmp_path):
    def train(data):
        argv = [sys.executable, "-m", "lossfeed", "train", "--data", str(data), "--steps", "2", "--batch-size", "4", "--seeds", "1"]
        return subprocess.run([*argv, "--compare", "uniform+minio", "--quiet"], capture_output=True, text=True, timeout=120)

    for part in ("train", "test"):
        pq.write_table(table(range(20)), tmp_path / f"{part}-00000-of-00001.parquet")
    done = train(tmp_path)
    assert done.returncode == 0 and "uniform" in done.stdout, done.stderr
    done = train(tmp_path / "train-*.parquet")
    assert done.returncode == 2 and "no part is held out" in done.stderr and "Traceback" not in done.stderr


def test_folders_and_options_that_make_no_sense_are_refused(tmp_path):
    for part in ("train", "test"):
        pq.write_table(table(range(6)), tmp_path / f"{part}-00000-of-00001.parquet")
    with pytest.raises(lf.SettingsError, match=r"holds the parts test, train: name the files of one, as .*/train-\*.parquet"):
        lf.open(tmp_path)
    assert len(lf.open(tmp_path / "test-*.parquet")) == 6
    one = tmp_path / "train-00000-of-00001.parquet"
    with pytest.raises(lf.SettingsError, match="cannot be kept on disk"):
        lf.open(one, disk=tmp_path / "disk", disk_bytes="64MiB")
    with pytest.raises(lf.SettingsError, match="leave checksums out"):
        lf.open(one, checksums=True)
    with pytest.raises(lf.SettingsError, match="sizes of this dataset"):
        lf.Loader(lf.open(one), 4, cache="10%")
    # Decoded pictures are of one size, known before any is read.
    data = lf.open(one)
    assert data.cache_bytes("decoded") < 6 * 400
    with lf.Loader(data, 4, cache="100%", cache_form="decoded") as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            assert len(list(loader)) == 2
        assert loader.stats()["hits_total"] == 6
    (tmp_path / "other").mkdir()
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "other" / "a.parquet")
    pq.write_table(pa.table({"words": ["a"]}), tmp_path / "other" / "b.parquet")
    with pytest.raises(lf.SettingsError, match="has other columns than"):
        lf.open(tmp_path / "other")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "other" / "a.parquet")
    with pytest.raises(lf.SourceError, match="has 0 rows"):
        lf.open(tmp_path / "other" / "a.parquet")

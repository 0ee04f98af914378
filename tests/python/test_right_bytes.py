"""What Pillow, tarfile, pyarrow and torch deliver of files of every kind, or a refusal that names the reason. The product of
the formats' options is drawn by the campaign (`tests/chaos/formats.py`)."""

import logging
import random
import sys
from base64 import b64decode, b64encode
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
import torch

import lossfeed as lf

sys.path.append(str(Path(__file__).resolve().parents[1]))
from chaos import archives  # noqa: E402


def pgm(value):
    return b"P5 3 2 255\n" + bytes([value]) * 6


def member(name, body, kind=b"0", link=b"", records=()):
    """A member's blocks."""
    rng = random.Random(1)
    before = archives.extended(list(records), rng) if records else b""
    return before + archives.header(name, kind, len(body), rng, link=link, form="gnu") + archives.padded(body)


def opened(path, *members, **keywords):
    path.write_bytes(b"".join(members) + bytes(1024))
    return lf.open(path, **keywords)


def grays(data):
    return [int(np.asarray(data[i][0])[0, 0, 0]) for i in range(len(data))]


# ---- tar ------------------------------------------------------------------------------------------------------------


def test_links_are_their_files_and_those_that_lead_nowhere_are_counted_and_told(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        data = opened(
            tmp_path / "s.tar",
            member(b"c/a.png", pgm(1)),
            member(b"d/hard.png", b"", b"1", b"c/a.png"),
            member(b"d/soft.png", b"", b"2", b"../c/a.png"),
            member(b"d/of.png", b"", b"2", b"soft.png"),
            # A hard link leads to what is before it, and a symbolic one within the archive.
            member(b"d/early.png", b"", b"1", b"c/late.png"),
            member(b"d/out.png", b"", b"2", b"../../c/a.png"),
            member(b"d/round.png", b"", b"2", b"round.png"),
            member(b"c/late.png", pgm(2)),
            # Of a file that was named twice: no other sample.
            member(b"c/late.png", b"", b"1", b"c/late.png"),
        )
    assert grays(data) == [1, 1, 1, 1, 2] and data.labels.tolist() == [0, 1, 1, 1, 0]
    assert [data.name(i).split("/", 1)[1] for i in range(4)] == ["c/a.png", "d/hard.png", "d/soft.png", "d/of.png"]
    assert "3 links ignored" in repr(data)
    assert "3 members of" in caplog.text and "3 links that lead to no file of their archive" in caplog.text


def test_a_hard_link_that_brings_its_own_bytes_is_a_file(tmp_path):
    data = opened(tmp_path / "s.tar", member(b"c/a.png", pgm(1)), member(b"c/b.png", pgm(2), b"1", b"c/a.png"), member(b"c/c.png", pgm(3)))
    assert grays(data) == [1, 2, 3]


def test_labels_and_fields_of_links(tmp_path):
    parts = [member(b"0.png", pgm(1)), member(b"0.txt", b"one"), member(b"0.cls", b"7")]
    # Another name of a whole sample.
    parts += [member(b"1." + end, b"", b"1", b"0." + end) for end in (b"png", b"txt", b"cls")]
    data = opened(tmp_path / "s.tar", *parts)
    assert grays(data) == [1, 1] and data.labels.tolist() == [7, 7]
    data = lf.open(tmp_path / "s.tar", fields=("png", "txt"))
    assert [data[i][1] for i in range(2)] == ["one", "one"] and len(data) == 2
    far = [*parts[:2], member(b"1.bin", bytes(3 << 20)), member(b"1.txt", b"far"), member(b"1.png", b"", b"1", b"0.png")]
    with pytest.raises(lf.SampleError, match=r"1.png in .* is a link to a file that lies far .* without links"):
        opened(tmp_path / "far.tar", *far, fields=("png", "txt"))


@pytest.mark.parametrize("form", ["gnu", "0.0", "0.1", "1.0"])
def test_sparse_members_have_their_holes_and_what_is_not_believed_is_refused(tmp_path, form):
    rng = random.Random(3)
    whole = b"P5 40 40 255\n" + bytes([9] * 800) + bytes(800)
    parts = [(0, 100), (300, 513)]
    (tmp_path / "s.tar").write_bytes(archives.sparse(b"c/a.png", whole, parts, rng, form) + member(b"d/b.png", whole) + bytes(1024))
    wanted = archives.by_tarfile(str(tmp_path / "s.tar"))
    data = lf.open(tmp_path / "s.tar", index_cache=tmp_path / "index")
    for _ in range(2):
        pictures = [np.asarray(data[i][0]) for i in range(2)]
        assert [picture[..., 0].tobytes() for picture in pictures] == [body[13:1613] for _, body in wanted]
        # From the index that was kept.
        data = lf.open(tmp_path / "s.tar", index_cache=tmp_path / "index", checksums=True)
    huge = archives.sparse(b"c/a.png", b"x" + bytes(70 << 20), [(0, 1)], rng, form)
    (tmp_path / "huge.tar").write_bytes(huge + bytes(1024))
    with pytest.raises(lf.SampleError, match="sparse file of 73400321 bytes of which 1 are stored, too few .* without --sparse"):
        lf.open(tmp_path / "huge.tar")
    with pytest.raises(lf.SampleError, match="a.png in .* is a sparse file, which fields= does not read"):
        lf.open(tmp_path / "s.tar", fields=("png",))
    for wrong in ([(5, 100), (0, 3)], [(0, 100), (1613, 9)]):
        (tmp_path / "bad.tar").write_bytes(archives.sparse(b"c/a.png", bytes(whole) if wrong[1][0] == 0 else whole[:1613], wrong, rng, form) + bytes(1024))
        with pytest.raises(lf.SourceError, match="a sparse map (is malformed|has other bytes than are stored)"):
            lf.open(tmp_path / "bad.tar")


def test_names_that_are_not_utf8_stay_different(tmp_path):
    data = opened(
        tmp_path / "s.tar", member(b"\xe4/a.png", pgm(1)), member(b"\xf6/a.png", pgm(2)), member(b"z/\xff.png", pgm(3)),
        member(b"short", pgm(4), records=[("path", b"\xe4/long\xfe.png")]),
    )
    assert grays(data) == [1, 2, 3, 4] and data.classes == ["\\xe4", "\\xf6", "z"] and data.labels.tolist() == [0, 1, 2, 0]


def test_other_members_are_files_or_told_by_what_they_are(tmp_path):
    rng = random.Random(1)
    label = archives.header(b"x.png", b"V", 0, rng, form="gnu", blank=True)
    data = opened(tmp_path / "s.tar", label, *(member(b"c/%s.png" % kind.hex().encode(), pgm(k), kind) for k, kind in enumerate((b"7", b"\0", b"Z"), 1)),
                  member(b"c/pipe.png", b"", b"6"), member(b"c/", b"a.png\0\0", b"D"))
    assert grays(data) == [1, 2, 3] and "2 other files ignored" in repr(data)
    with pytest.raises(lf.SourceError, match="is not read: at its beginning comes a file that begins in another volume: join the volumes"):
        opened(tmp_path / "m.tar", member(b"c/a.png", pgm(1), b"M"))
    with pytest.raises(lf.SourceError, match="is not read: after c/a.png comes a sparse file of format 2.0: write the archive without"):
        version = [("GNU.sparse.major", b"2"), ("GNU.sparse.minor", b"0")]
        opened(tmp_path / "v.tar", member(b"c/a.png", pgm(1)), member(b"c/b.png", pgm(1), records=version))


# ---- Parquet --------------------------------------------------------------------------------------------------------


def test_a_null_is_a_null_at_every_level(tmp_path):
    inner = pa.list_(pa.int64())
    columns = {
        "list": pa.array([[1], None, [], [None, 2]], inner),
        "struct": pa.array([{"v": [1]}, None, {"v": []}, {"v": None}], pa.struct([("v", inner)])),
    }
    for name, column in columns.items():
        pq.write_table(pa.table({name: column, "n": [0, 1, 2, 3]}), tmp_path / "rows.parquet")
        data = lf.open(tmp_path / "rows.parquet", fields={name: name, "n": "n"})
        assert [data[i][name].tolist() for i in (0, 2)] == [[1], []]
        for row in (1, 3):
            with pytest.raises(lf.SampleError, match=f"its {name} is null"):
                data[row]


def test_files_are_one_dataset_where_their_columns_mean_the_same(tmp_path):
    first = pa.schema([pa.field("text", pa.string(), nullable=False), pa.field("label", pa.int64()), pa.field("ids", pa.list_(pa.int32()))])
    pq.write_table(pa.table([["a"], [1], [[1, 2]]], first), tmp_path / "a.parquet")
    other = pa.schema([pa.field("ids", pa.list_(pa.field("item", pa.int32(), nullable=False))), pa.field("label", pa.int32()), pa.field("text", pa.string())])
    pq.write_table(pa.table([[[], [3]], [2, 3], ["b", None]], other), tmp_path / "b.parquet", use_compliant_nested_type=False)
    data = lf.open(tmp_path)
    rows = [data[i] for i in range(2)]
    assert [(row["text"], row["label"], row["ids"].tolist()) for row in rows] == [("a", 1, [1, 2]), ("b", 2, [])]
    with pytest.raises(lf.SampleError, match="its text is null"):
        data[2]
    for table, says in [
        (pa.table({"text": ["c"], "label": [1]}), 'column "ids" is not there'),
        (pa.table({"text": ["c"], "label": [1], "ids": pa.array([[1]], pa.list_(pa.int32())), "more": [1]}), 'column "more" is there alone'),
        (pa.table({"text": ["c"], "label": [1], "ids": [[1.0]]}), r'column "ids" is numbers \(float64\) there and numbers \(int32\) here'),
        (pa.table({"text": [b"c"], "label": [1], "ids": pa.array([[1]], pa.list_(pa.int32()))}), 'column "text" is bytes there and text here'),
    ]:
        pq.write_table(table, tmp_path / "c.parquet")
        with pytest.raises(lf.SettingsError, match=f"c.parquet has other columns than .*a.parquet: {says}; open them apart"):
            lf.open(tmp_path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_without_a_value_are_no_end(tmp_path, version):
    # pyarrow leaves one behind such a page of a dictionary, and names it in the page index.
    rows = [[1, 2], [], [3], [4, 5], [7, 7], [2, 2, 2]]
    table = pa.table({"ids": pa.array(rows, pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "a.parquet", data_page_size=1, write_batch_size=1, write_page_index=True, data_page_version=version, row_group_size=3)
    data = lf.open(tmp_path / "a.parquet", fields={"ids": "ids"})
    assert [data[i]["ids"].tolist() for i in range(6)] == rows


@pytest.mark.parametrize("store", [{}, {"latency": 0.0001}])
def test_parquet_in_folders_is_told_how_to_be_named(tmp_path, store):
    for part in (0, 1):
        (tmp_path / f"label={part}").mkdir()
        pq.write_table(pa.table({"text": ["a"]}), tmp_path / f"label={part}" / "0.parquet")
    with pytest.raises(lf.SettingsError, match=r"holds Parquet files in folders \(label=0/0.parquet\): name those .*partitioned Parquet, are not read"):
        lf.open(tmp_path, **store)
    assert len(lf.open(f"{tmp_path}/label={{0,1}}/0.parquet", **store)) == 2


class Keys(pe.KmsClient):
    """Wraps keys with nothing."""

    def __init__(self, _):
        pe.KmsClient.__init__(self)

    def wrap_key(self, key_bytes, master_key_identifier):
        return b64encode(key_bytes)

    def unwrap_key(self, wrapped_key, master_key_identifier):
        return b64decode(wrapped_key)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_what_is_sound_and_not_read_is_told_by_its_kind(tmp_path, plaintext_footer):
    table = pa.table({"text": ["a", "b"], "n": [1, 2]})
    settings = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["text"]}, plaintext_footer=plaintext_footer)
    sealed = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(tmp_path / "sealed.parquet", table.schema, encryption_properties=sealed) as writer:
        writer.write_table(table)
    with pytest.raises(lf.SourceError, match="sealed.parquet: encrypted Parquet is not read: write it without encryption") as refused:
        lf.open(tmp_path / "sealed.parquet")
    assert "again" not in str(refused.value)
    if plaintext_footer:
        assert lf.open(tmp_path / "sealed.parquet", fields={"n": "n"})[1]["n"] == 2
    pq.write_table(table, tmp_path / "b.parquet", compression={"text": "brotli", "n": "zstd"})
    with pytest.raises(lf.SourceError, match='column "text" is compressed by Brotli, which is not read: write it with Zstandard') as refused:
        lf.open(tmp_path / "b.parquet")
    assert "again" not in str(refused.value)
    assert len(lf.open(tmp_path / "b.parquet", fields={"n": "n"})) == 2


# ---- arrays ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "complex64", "complex128"])
def test_unsigned_and_complex_numbers_are_torchs(dtype):
    x = (np.arange(24).reshape(8, 3) * 250_000_007 % 2**16 if dtype == "uint16" else np.arange(24).reshape(8, 3) * 170_000_007).astype(dtype)
    x = x * 1j + x if x.dtype.kind == "c" else np.iinfo(dtype).max - x
    pairs, dicts = [(x[i], i) for i in range(8)], [{"a": x[i], "b": torch.from_numpy(x[i])} for i in range(8)]
    for data in ((x, np.arange(8)), (torch.from_numpy(x), torch.arange(8)), pairs, dicts):
        theirs = torch.utils.data.DataLoader(pairs if data is not dicts else dicts, 4)
        for workers in (0, 2):
            for ours, wanted in zip(lf.Loader(data, 4, num_workers=workers), theirs, strict=True):
                for mine, its in zip(ours.values() if data is dicts else ours, wanted.values() if data is dicts else wanted, strict=True):
                    assert mine.dtype == its.dtype and torch.equal(mine, its)
    if x.dtype.kind == "c":
        marked = torch.from_numpy(x).conj()
        assert torch.equal(next(iter(lf.Loader((marked, torch.arange(8)), 8)))[0], marked.resolve_conj())
        rows = [(marked[i], i) for i in range(8)]
        assert torch.equal(next(iter(lf.Loader(rows, 8, num_workers=0)))[0], marked.resolve_conj())
    given = next(iter(lf.Loader((x, np.arange(8)), 8, framework="numpy")))
    assert given.data.dtype == x.dtype and (given.data == x).all()

"""Parquet files that say they become far more than they are: refused with the limit, in little memory. And sound ones that
say much: read as pyarrow reads them."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lossfeed as lf
from web_double import Web

#: Bytes that a process may have beside what it has when lossfeed is loaded.
ROOM = 512 << 20
SCRIPT = f"""
import resource, sys
import lossfeed as lf
import numpy
taken = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (taken + {ROOM},) * 2)
for path in sys.argv[1:]:
    try:
        data = lf.open(path)
        for k in (0, len(data) - 1):
            data[k]
        print("read")
    except lf.Error as error:
        print(type(error).__name__, str(error).replace(chr(10), " ").replace(path, "FILE"))
"""


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def zigzag(value):
    return varint(value * 2 if value >= 0 else -2 * value - 1)


class Struct(dict):
    """A struct of Thrift's compact protocol: numbers of fields with whole numbers, structs, lists, bytes or truths."""

    def __bytes__(self):
        out, last = b"", 0
        for number, value in sorted(self.items()):
            kind, body = self.one(value)
            out, last = out + bytes([(number - last) << 4 | kind]) + body, number
        return out + b"\0"

    @classmethod
    def one(cls, value):
        if isinstance(value, bool):
            return (1 if value else 2), b""
        if isinstance(value, Long):
            return 6, zigzag(value)
        if isinstance(value, int):
            return 5, zigzag(value)
        if isinstance(value, bytes):
            return 8, varint(len(value)) + value
        if isinstance(value, Struct):
            return 12, bytes(value)
        kind = cls.one(value[0])[0]
        head = bytes([len(value) << 4 | kind]) if len(value) < 15 else bytes([0xF0 | kind]) + varint(len(value))
        return 9, head + b"".join(cls.one(v)[1] for v in value)


class Long(int):
    pass


INT32, INT64, BYTES = 1, 2, 6
PLAIN, RLE, DELTA, DELTA_LENGTHS, DELTA_BYTES, RLE_DICTIONARY = 0, 3, 5, 6, 7, 8
NONE, SNAPPY, GZIP, ZSTD = 0, 1, 2, 6


def page(kind, body, values, *, encoding=PLAIN, says=None, of=None):
    head = {1: kind, 2: len(body) if says is None else says, 3: len(body)}
    if kind == 2:
        head[7] = Struct({1: values, 2: encoding})
    else:
        head[5] = Struct({1: values, 2: encoding, 3: RLE, 4: RLE})
    return bytes(Struct({**head, **(of or {})})) + body


def levels(value, count, width=1):
    """All of one value, as a run."""
    run = varint(count << 1) + bytes([value]) * ((width + 7) // 8)
    return len(run).to_bytes(4, "little") + run


def file(pages, rows, *, physical=BYTES, codec=NONE, listed=False, dictionary=0, name=b"text", says=None):
    """A file of one column in one row group; `dictionary`: bytes of a dictionary page that comes first."""
    body = b"PAR1" + pages
    leaf = {1: physical, 3: 1 if listed else 0, 4: b"element" if listed else name}
    if physical == BYTES:
        leaf[6] = 0
    nest = [Struct({3: 0, 4: name, 5: 1, 6: 3}), Struct({3: 2, 4: b"list", 5: 1})] if listed else []
    path = [name, b"list", b"element"] if listed else [name]
    meta = {1: physical, 2: [PLAIN, RLE], 3: path, 4: codec, 5: Long(rows), 6: Long(says or len(pages)), 7: Long(len(pages)), 9: Long(4 + dictionary)}
    if dictionary:
        meta[11] = Long(4)
    group = Struct({1: [Struct({2: Long(4), 3: Struct(meta)})], 2: Long(len(pages)), 3: Long(rows)})
    schema = [Struct({4: b"schema", 5: 1}), *nest, Struct(leaf)]
    footer = bytes(Struct({1: 2, 2: schema, 3: Long(rows), 4: [group]}))
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def hostile():
    many = 30_000_000
    text = b"\1\0\0\0x"
    squeezed = {codec: pa.Codec(name).compress(bytes(1 << 30), asbytes=True) for codec, name in ((GZIP, "gzip"), (ZSTD, "zstd"))}
    index = b"\1" + varint(1 << 1) + b"\0"
    of_dictionary = lambda first: (first + page(0, index, 1, encoding=RLE_DICTIONARY), len(first))  # noqa: E731
    for name, first, codec in (
        ("a dictionary of so many values", page(2, text * 2800, many), NONE),
        ("a dictionary whose values are empty", page(2, squeezed[ZSTD], many * 8, says=1 << 30), ZSTD),
        ("a dictionary that says it becomes 2 GB", page(2, b"\0" * 64, 1, says=2**31 - 1), SNAPPY),
        ("a dictionary of zeros, zstd", page(2, squeezed[ZSTD], 1, says=1 << 30), ZSTD),
    ):
        pages, bytes_ = of_dictionary(first)
        yield name, file(pages, 1, codec=codec, dictionary=bytes_)
    for name, body, says, codec in (
        ("a page that says it becomes 2 GB", b"\0" * 64, 2**31 - 1, SNAPPY),
        ("a page that says it becomes 2 GB, zstd", b"\0" * 64, 2**31 - 1, ZSTD),
        ("a page of zeros, zstd", squeezed[ZSTD], 1 << 30, ZSTD),
    ):
        yield name, file(page(0, body, 1, says=says), 1, codec=codec)
    for count in (300_000_000, 2**31 - 1):
        body = levels(1, count) + levels(2, count, 2) + b"\0\0\0\0" * 4
        yield f"a list of {count} values", file(page(0, body, count, encoding=PLAIN), 1, physical=INT32, listed=True, name=b"numbers")
        body = levels(1, count) + levels(2, count, 2) + index
        first = page(2, b"\0\0\0\0", 1)
        yield f"a list of {count} values of a dictionary", file(
            first + page(0, body, count, encoding=RLE_DICTIONARY), 1, physical=INT32, listed=True, dictionary=len(first), name=b"numbers")  # fmt: skip
    delta = varint(128) + varint(4) + varint(1 << 40) + varint(0)
    short = varint(128) + varint(4) + varint(1) + varint(2)
    yield "2^40 lengths", file(page(0, delta, 1, encoding=DELTA_LENGTHS), 1)
    yield "2^40 prefixes", file(page(0, delta + short + b"x", 1, encoding=DELTA_BYTES), 1)
    yield "2^40 suffixes", file(page(0, short + delta + b"x", 1, encoding=DELTA_BYTES), 1)
    for rows in (2**32 - 1, 2**40, 2**63 - 1):
        yield f"a footer of {rows} rows", file(page(0, text, 1), rows)
    labels = 2**31 - 1
    yield "so many labels", file(page(2, b"\0" * 8, 1) + page(0, b"\1" + varint(labels << 1) + b"\0", labels, encoding=RLE_DICTIONARY), labels,
                                 physical=INT64, dictionary=len(page(2, b"\0" * 8, 1)), name=b"label")  # fmt: skip
    yield "words of a header beyond its end", file(page(0, text, 1, of={9: b"x" * 3}).replace(b"\3xxx", b"\xff\xff\xff\x7fx"), 1)



def test_files_that_say_they_become_far_more_than_they_are_are_refused_in_little_memory(tmp_path):
    paths = {}
    for name, body in hostile():
        path = tmp_path / f"{len(paths)}.parquet"
        path.write_bytes(body)
        assert len(body) < 1_200_000, name
        paths[name] = str(path)
    done = subprocess.run([sys.executable, "-c", SCRIPT, *paths.values()], capture_output=True, text=True, timeout=300)
    answers = dict(zip(paths, done.stdout.splitlines()))
    assert done.returncode == 0 and len(answers) == len(paths), (done.returncode, answers, done.stderr[-2000:])
    wrong = {name: answer for name, answer in answers.items() if not answer.startswith(("SourceError", "SampleError"))}
    assert not wrong, wrong
    named = ("says", "say that", "lengths")
    unnamed = {name for name, answer in answers.items() if not any(word in answer for word in named)}
    assert unnamed <= {"words of a header beyond its end"}, answers
    limits = [answer for answer in answers.values() if "the most that are" in answer]
    assert len(limits) >= 8, answers


def test_what_the_hand_made_files_are_made_of_is_sound(tmp_path):
    """The same files with honest numbers are read, here and by pyarrow: the others are refused for what they say."""
    text, index = b"\1\0\0\0x", b"\1" + varint(1 << 1) + b"\0"
    first = page(2, text, 1)
    short = varint(128) + varint(4) + varint(1) + varint(2)
    made = {
        "plain": file(page(0, text, 1), 1),
        "dictionary": file(first + page(0, index, 1, encoding=RLE_DICTIONARY), 1, dictionary=len(first)),
        "lengths": file(page(0, short + b"x", 1, encoding=DELTA_LENGTHS), 1),
        "zstd": file(page(0, pa.Codec("zstd").compress(text, asbytes=True), 1, says=5), 1, codec=ZSTD),
    }
    for name, body in made.items():
        (tmp_path / "one.parquet").write_bytes(body)
        assert pq.read_table(tmp_path / "one.parquet").column("text").to_pylist() == ["x"], name
        assert lf.open(str(tmp_path / "one.parquet"))[0]["text"] == "x", name
    # One row of three: a level of 0, then two of 1.
    runs = varint(1 << 1) + b"\0" + varint(2 << 1) + b"\1"
    body = len(runs).to_bytes(4, "little") + runs + levels(2, 3, 2) + np.arange(3, dtype="<i4").tobytes()
    path = tmp_path / "list.parquet"
    path.write_bytes(file(page(0, body, 3), 1, physical=INT32, listed=True, name=b"numbers"))
    assert pq.read_table(path).column("numbers").to_pylist() == [[0, 1, 2]]
    row = lf.open(str(path))[0]
    assert np.asarray(row["numbers"] if isinstance(row, dict) else row).tolist() == [0, 1, 2]


def tables(rows):
    """Columns that become much of little, and others."""
    draw = np.random.default_rng(0)
    text = [f"{i} " + "lorem ipsum " * int(draw.integers(0, 4)) for i in range(rows)]
    return pa.table({
        "constant": pa.array([7] * rows, pa.int64()),
        "one_text": pa.array(["the same text in every row"] * rows),
        "few": pa.array([f"class {i % 5}" for i in range(rows)]),
        "text": pa.array(text),
        "maybe": pa.array([None if i % 3 else 1.5 * i for i in range(rows)]).fill_null(0.0),
        "zeros": pa.array([[0] * int(n) for n in draw.integers(0, 300, rows)], pa.list_(pa.int32())),
        "numbers": pa.array([list(map(int, draw.integers(0, 9, int(n)))) for n in draw.integers(0, 6, rows)], pa.list_(pa.int64())),
        "flag": pa.array([i % 2 == 0 for i in range(rows)]),
    })  # fmt: skip


WRITERS = {
    "snappy": dict(compression="snappy"),
    "gzip, small pages": dict(compression="gzip", data_page_size=2048),
    "zstd, version 2": dict(compression="zstd", data_page_version="2.0", write_page_index=True),
    "deltas": dict(compression="none", use_dictionary=False, column_encoding={
        "text": "DELTA_LENGTH_BYTE_ARRAY", "few": "DELTA_BYTE_ARRAY", "one_text": "DELTA_BYTE_ARRAY", "constant": "DELTA_BINARY_PACKED"}),
    "lz4, large groups": dict(compression="lz4", row_group_size=1 << 20),
    "small groups, an index": dict(compression="snappy", row_group_size=500, write_page_index=True),
    "no dictionary": dict(compression="zstd", use_dictionary=False),
}  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS)
def test_twelve_thousand_sound_rows_of_each_writer_are_pyarrows(tmp_path, writer):
    rows = 12_000
    table, path = tables(rows), tmp_path / "sound.parquet"
    pq.write_table(table, path, **WRITERS[writer])
    data = lf.open(str(path), fields=table.column_names)
    assert len(data) == rows
    expected = table.to_pylist()
    seen = 0
    for batch in lf.Loader(data, 500, shuffle=True, num_workers=0, cache=None, framework="numpy", collate_fn=list):
        for i, row in zip(batch.ids.tolist(), batch.data):
            assert [v.tolist() if isinstance(v, np.ndarray) else v for v in row] == list(expected[i].values()), i
            seen += 1
    assert seen == rows


def test_a_million_rows_that_are_all_alike_are_read(tmp_path):
    rows = 1_000_000
    table = pa.table({"text": pa.array(["a"] * rows), "label": pa.array(np.zeros(rows, np.int64))})
    pq.write_table(table, tmp_path / "alike.parquet", row_group_size=rows)
    assert (tmp_path / "alike.parquet").stat().st_size < 20_000
    data = lf.open(str(tmp_path / "alike.parquet"))
    assert len(data) == rows and data[rows - 1]["text"] == "a"


def test_opening_reads_labels_once_however_long_a_row_group_is(tmp_path):
    rows = 200_000
    table = pa.table({"x": np.arange(rows, dtype=np.int32), "label": np.arange(rows) % 1000})
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=rows, compression="none", data_page_size=4096, use_dictionary=["label"])
    body = (tmp_path / "one.parquet").read_bytes()
    with Web({"one.parquet": body}) as web:
        data = lf.open(web.url + "/one.parquet")
        bounds = [request.range.removeprefix("bytes=").split("-") for request in web.asked if request.range]
        asked = sum(min(int(last), len(body)) - int(first) + 1 for first, last in bounds)
        assert asked < 2 * len(body), "pages behind a dictionary were read again for each page"
        assert (data.labels == np.arange(rows) % 1000).all() and int(data[rows - 1]["label"]) == (rows - 1) % 1000


def on_from_the_first(rows, first):
    """A text of so many zeros, and rows that each go on from the one before and add nothing (DELTA_BYTE_ARRAY)."""
    def rest(blocks):
        return (zigzag(0) + bytes(4)) * blocks

    def packed(values):
        return b"".join(value.to_bytes(3, "little") for value in values)

    head, blocks = varint(128) + varint(4) + varint(rows), -(-(rows - 1) // 128)
    prefixes = head + zigzag(0) + zigzag(0) + bytes([24, 0, 0, 0]) + packed([first] + [0] * 31) + rest(blocks - 1)
    suffixes = head + zigzag(first) + zigzag(-first) + bytes([24] * 4) + packed([0] + [first] * 127) + rest(blocks - 1)
    raw = prefixes + suffixes + b"x" * first
    return file(page(0, pa.Codec("zstd").compress(raw, asbytes=True), rows, encoding=DELTA_BYTES, says=len(raw)), rows, codec=ZSTD)


def test_texts_that_go_on_from_a_long_one_take_little_memory(tmp_path):
    path = tmp_path / "long.parquet"
    path.write_bytes(on_from_the_first(300, 1000))
    assert pq.read_table(path).column("text").to_pylist() == ["x" * 1000] * 300
    data = lf.open(str(path))
    assert data[0]["text"] == data[150]["text"] == data[299]["text"] == "x" * 1000
    path.write_bytes(on_from_the_first(600, 8_000_000))
    assert path.stat().st_size < 47_000
    batch = "list(lf.Loader(data, 200, num_workers=1, framework='numpy', stats=False))"
    for reads, says in (("data[0], data[len(data) - 1]", "read\n"), (batch, "Error")):
        script = SCRIPT.replace("for k in (0, len(data) - 1):", "if True:").replace("data[k]", reads)
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and says in done.stdout, (done.stdout, done.stderr[-2000:])
    assert "are the most that are read of so few" in done.stdout


def test_masks_that_are_mostly_zeros_are_read(tmp_path):
    """Pages of lists become hundreds of times what they are."""
    draw = np.random.default_rng(0)
    masks = (draw.random((40, 512 * 512)) < 0.01).astype(np.int32)
    pq.write_table(pa.table({"mask": pa.array(list(masks), pa.list_(pa.int32()))}), tmp_path / "masks.parquet")
    data = lf.open(str(tmp_path / "masks.parquet"), fields=["mask"])
    assert all((np.asarray(data[k][0] if isinstance(data[k], tuple) else data[k]) == masks[k]).all() for k in (0, 17, 39))

"""Parquet files over the product of writers, nullability, nesting and encodings, beside pyarrow."""

from __future__ import annotations

import random
from typing import Any

#: What a column may hold: Arrow's type by name, and how one value is drawn.
SCALARS: dict[str, Any] = {
    "int32": lambda rng: rng.randrange(-(2**31), 2**31),
    "int64": lambda rng: rng.randrange(-(2**63), 2**63),
    "uint8": lambda rng: rng.randrange(256),
    "float": lambda rng: rng.randrange(-1000, 1000) / 8,
    "double": lambda rng: rng.random(),
    "bool": lambda rng: rng.random() < 0.5,
    "string": lambda rng: rng.choice(("", "a", "wörter " * rng.randrange(4), str(rng.randrange(9)))),
    "binary": lambda rng: rng.randbytes(rng.randrange(5)),
}


def columns(rng: random.Random) -> dict[str, tuple[str, str, str, bool]]:
    """Columns of a dataset: type, nesting (none, a list, a fixed list, a large list, a list in a struct), its element's name,
    and whether nulls come."""
    found = {}
    for k in range(rng.randrange(1, 6)):
        kind = rng.choice(list(SCALARS))
        nests = ("none", "none") + (() if kind in ("string", "binary") else ("list", "large", "fixed", "struct"))
        found[f"c{k}"] = kind, rng.choice(nests), rng.choice(("element", "item")), rng.random() < 0.5
    return found


def arrow(kind: str, nest: str, element: str, nulls: bool) -> Any:
    """Arrow's type, and whether the column may be null."""
    import pyarrow as pa

    inner = {"int32": pa.int32(), "int64": pa.int64(), "uint8": pa.uint8(), "float": pa.float32(), "double": pa.float64(),
             "bool": pa.bool_(), "string": pa.string(), "binary": pa.binary()}[kind]
    field = pa.field(element, inner, nullable=nulls)
    return {
        "none": lambda: inner, "list": lambda: pa.list_(field), "large": lambda: pa.large_list(field),
        "fixed": lambda: pa.list_(field, 3), "struct": lambda: pa.struct([pa.field("inner", pa.list_(field), nullable=nulls)]),
    }[nest]()


def value(rng: random.Random, kind: str, nest: str, nulls: bool) -> Any:
    """One row's, null at any level."""
    none = nulls and rng.random() < 0.15
    if none:
        return None
    if nest == "none":
        return SCALARS[kind](rng)
    length = 3 if nest == "fixed" else rng.choice((0, 0, 1, 2, 7))
    some = [None if nulls and rng.random() < 0.1 else SCALARS[kind](rng) for _ in range(length)]
    if nest == "struct":
        return {"inner": None if nulls and rng.random() < 0.15 else some}
    return some


def null_within(value: Any) -> bool:
    """Whether a null is somewhere in it."""
    if isinstance(value, dict):
        return any(map(null_within, value.values()))
    return value is None or (isinstance(value, list) and any(map(null_within, value)))


def written(rng: random.Random, path: str, of: dict[str, tuple[str, str, str, bool]], rows: int) -> list[dict[str, Any]]:
    """Writes one file of a dataset as one of many writers does; its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(of)
    rng.shuffle(names)
    made, fields = {}, []
    for name in names:
        kind, nest, _, nulls = of[name]
        # A file may have no nulls where others do, say so, and call elements what it likes.
        here = nulls and rng.random() < 0.8
        made[name] = [value(rng, kind, nest, here) for _ in range(rows)]
        fields.append(pa.field(name, arrow(kind, nest, rng.choice(("element", "item")), here), nullable=here or rng.random() < 0.5))
    table = pa.table([pa.array(made[field.name], field.type) for field in fields], pa.schema(fields))
    pq.write_table(
        table, path,
        row_group_size=rng.choice((1, 3, 7, rows)), data_page_size=rng.choice((1, 100, 1 << 20)), write_batch_size=rng.choice((1, 5, 1024)),
        use_dictionary=rng.random() < 0.5, dictionary_pagesize_limit=rng.choice((10, 1 << 20)), data_page_version=rng.choice(("1.0", "2.0")),
        compression=rng.choice(("none", "snappy", "gzip", "zstd", "lz4")), write_page_index=rng.random() < 0.5,
        write_statistics=rng.random() < 0.5, use_compliant_nested_type=rng.random() < 0.5, version=rng.choice(("1.0", "2.4", "2.6")),
        store_schema=rng.random() < 0.5,
    )
    return [{name: made[name][k] for name in of} for k in range(rows)]

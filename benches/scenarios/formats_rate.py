"""What a format costs to read: the same pictures in tar shards and in Parquet files, beside Hugging Face's `datasets`.

    python benches/scenarios/formats_rate.py [FOLDER] [--rounds 3]

CIFAR-10's training pictures (FOLDER has train-*.tar) in batches of 256, one epoch each without a cache, shuffled and in
order; every batch is summed. In turn, each in a process of its own, with one loader thread or worker process:

    tar               shards as they are: a picture is one read
    members           shards with a text beside each picture, both delivered
    parquet           as `datasets` writes pictures: row groups of 100 rows, a page index, no dictionaries
    parquet, default  as pyarrow writes by itself: dictionaries, and row groups of everything
    datasets          `datasets.Dataset` over the former with torch's DataLoader (where both are installed)

Samples a second of processor time and by the clock, medians over the rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Record, cifar_folder

BATCH = 256
FORMATS = ("tar", "members", "parquet", "parquet, default", "datasets")
ORDERS = ("shuffled", "in order")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="CIFAR-10 as train-*.tar (default: $LOSSFEED_CIFAR)")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def written(folder: Path, samples: int, place: Path) -> None:
    """The same pictures in every format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pictures, labels, classes = [], [], dict[str, int]()
    for shard in sorted(folder.glob("train-*.tar")):
        with tarfile.open(shard) as archive:
            files = {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]
        for name, raw in files.items():
            if name.endswith((".png", ".jpg", ".jpeg")):
                pictures.append((name.rsplit(".", 1)[1], raw))
                labels.append(classes.setdefault(name.split("/")[0], len(classes)))
        if len(pictures) >= samples:
            break
    pictures, labels = pictures[:samples], labels[:samples]
    for name, texts in (("tar", False), ("members", True)):
        with tarfile.open(place / f"{name}.tar", "w") as archive:
            for i, ((kind, raw), label) in enumerate(zip(pictures, labels)):
                parts = [(kind, raw), ("cls", str(label).encode())]
                for extension, body in parts + ([("txt", b"a picture of something " * 4)] if texts else []):
                    entry = tarfile.TarInfo(f"{i:06}.{extension}")
                    entry.size = len(body)
                    archive.addfile(entry, io.BytesIO(body))
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": raw, "path": f"{i}.png"} for i, (_, raw) in enumerate(pictures)], struct)
    table = pa.table({"img": images, "label": pa.array(labels, pa.int64())})
    features = {"img": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": [str(i) for i in range(10)]}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, place / "parquet.parquet", row_group_size=100, write_page_index=True, use_dictionary=False)
    pq.write_table(table, place / "parquet, default.parquet")


def loader_of(way: str, order: str, place: Path) -> Any:
    shuffled = order == "shuffled"
    if way == "datasets":
        import datasets
        import numpy as np
        import torch

        def batch_of(items: list[dict[str, Any]]) -> list[Any]:
            pixels = [torch.from_numpy(np.asarray(item["img"])) for item in items]
            return [torch.stack(pixels), torch.tensor([item["label"] for item in items])]

        found = datasets.Dataset.from_parquet(str(place / "parquet.parquet"), cache_dir=str(place / "arrow"))
        keywords = {"collate_fn": batch_of, "num_workers": 1, "persistent_workers": True}
        return torch.utils.data.DataLoader(found, BATCH, shuffle=shuffled, **keywords)
    import lossfeed as lf

    fields = ("jpg;jpeg;png", "cls", "txt") if way == "members" else None
    fields = {"img": "jpg;jpeg;png", "label": "cls", "text": "txt"} if fields else None
    path = place / f"{way}.{'parquet' if way.startswith('parquet') else 'tar'}"
    return lf.Loader(lf.open(path, fields=fields), BATCH, shuffle=shuffled, seed=0, num_workers=1, stats=False)


def busy() -> float:
    """Processor seconds of this process and its children that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def one(way: str, order: str, place: Path) -> None:
    """One way in this process: samples a second of processor time and by the clock, as JSON. The second epoch; workers
    of torch have ended then, so their time is of both."""
    loader = loader_of(way, order, place)
    epochs, count, started, worked = 2, 0, time.perf_counter(), busy()
    for _ in range(epochs):
        for batch in loader:
            pixels = batch["img"] if way == "members" else batch[0]
            count += len(pixels)
            pixels.sum()
    took = time.perf_counter() - started
    del loader
    print(json.dumps([count / (busy() - worked), count / took]))


def main() -> int:
    args = arguments()
    if args.way is not None:
        way, order, place = args.way
        one(way, order, Path(place))
        return 0
    folder = cifar_folder(args.folder)
    if folder is None:
        return 0
    if importlib.util.find_spec("pyarrow") is None:
        print("formats: not run, pip install pyarrow writes the Parquet files")
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("formats-rate", {"rounds": args.rounds, "samples": args.samples, "batch": BATCH}, args.date, **where)
    found: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        written(Path(folder), args.samples, Path(place))
        for _ in range(args.rounds):
            for way in FORMATS:
                for order in ORDERS:
                    command = [sys.executable, __file__, "--way", way, order, place]
                    quiet = {**os.environ, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
                    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=quiet)
                    if done.returncode:
                        print(f"{way}, {order}: not run ({done.stderr.strip().splitlines()[-1:]})", file=sys.stderr)
                        continue
                    found.setdefault((way, order), []).append(json.loads(done.stdout.splitlines()[-1]))
    for (way, order), rates in found.items():
        worked, clock = (round(statistics.median(rate[at] for rate in rates)) for at in (0, 1))
        record.add({"format": way, "order": order, "samples_per_busy_s": worked, "samples_per_s": clock})
        print(f"{way:<17} {order:<9} {worked:>9,} samples/s of processor time {clock:>9,} by the clock")
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

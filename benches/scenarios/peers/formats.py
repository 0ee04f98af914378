"""What each peer reads: the same pictures, in the same seeded order, in every peer's own format.

    python formats.py FORM DATA WORK [--rows-gib 2]

DATA is a folder of class folders with JPEGs, or of train-*.tar holding the same. WORK/cifar and WORK/rows receive the
forms. A form that is complete has a ``.done`` file beside it and is not made again.
"""

from __future__ import annotations

import argparse
import io
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

Item = tuple[str, int]
FORMS: dict[str, Callable[[Path, Path], None]] = {}
ROW = (224, 224, 3)
ROW_BYTES = 224 * 224 * 3


def form(write: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    """Registers a function (data or list of files, place to write) under its own name."""
    FORMS[write.__name__.replace("_", "-")] = write
    return write


def items(work: Path) -> list[Item]:
    """(path, label) of every picture, shuffled once."""
    pairs = (line.split("\t") for line in (work / "cifar" / "files").read_text().splitlines())
    return [(path, int(label)) for path, label in pairs]


def pixels(file: str | IO[bytes]) -> np.ndarray:
    from PIL import Image

    with Image.open(file) as image:
        return np.array(image.convert("RGB"))


def class_folder(data: Path, work: Path) -> Path:
    """DATA itself, or what its shards hold, unpacked."""
    shards = sorted(data.glob("train-*.tar"))
    if not shards:
        return data
    folder = work / "folder"
    if not (work / "folder.done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        for shard in shards:
            with tarfile.open(shard) as archive:
                archive.extractall(folder, [m for m in archive if m.name.endswith(".jpg")], filter="data")
        (work / "folder.done").touch()
    return folder


@form
def files(data: Path, out: Path) -> None:
    root = class_folder(data, out.parent.parent).resolve()
    classes = sorted(p.name for p in root.iterdir() if p.is_dir())
    found = [(str(p), label) for label, name in enumerate(classes) for p in sorted((root / name).glob("*.jpg"))]
    if not found:
        raise SystemExit(f"{data}: no CLASS/*.jpg and no train-*.tar in it")
    random.Random(0).shuffle(found)
    (out.parent / "root").write_text(str(root))
    out.write_text("".join(f"{path}\t{label}\n" for path, label in found))


@form
def tar(_: Path, out: Path) -> None:
    """Shards of 5,000 as webdataset writes them: KEY.jpg and KEY.cls."""
    out.mkdir()
    listed = items(out.parent.parent)
    for start in range(0, len(listed), 5000):
        with tarfile.open(out / f"cifar-{start // 5000:06d}.tar", "w") as archive:
            for number, (path, label) in enumerate(listed[start : start + 5000], start):
                for extension, content in (("jpg", Path(path).read_bytes()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:08d}.{extension}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))


@form
def arrays(_: Path, out: Path) -> None:
    out.mkdir()
    listed = items(out.parent.parent)
    x = np.empty((len(listed), 32, 32, 3), np.uint8)
    for row, (path, _label) in enumerate(listed):
        x[row] = pixels(path)
    np.save(out / "x.npy", x)
    np.save(out / "y.npy", np.array([label for _path, label in listed], np.int64))


@form
def mds(_: Path, out: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"jpg": "bytes", "label": "int"}, size_limit=1 << 26) as writer:
        for path, label in items(out.parent.parent):
            writer.write({"jpg": Path(path).read_bytes(), "label": label})


def _litdata_sample(item: Item) -> dict[str, object]:
    return {"jpg": Path(item[0]).read_bytes(), "label": item[1]}


@form
def litdata(_: Path, out: Path) -> None:
    import litdata

    litdata.optimize(
        fn=_litdata_sample,
        inputs=items(out.parent.parent),
        output_dir=str(out),
        chunk_bytes="16MB",
        num_workers=1,
        keep_data_ordered=True,
    )


class _Pictures:
    def __init__(self, listed: list[Item]) -> None:
        self.listed = listed

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        path, label = self.listed[row]
        return pixels(path), label


def _beton(out: Path, mode: str) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    # ffcv encodes the decoded picture again: it cannot take the JPEG's own bytes.
    fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=95), "label": IntField()}
    DatasetWriter(str(out), fields, num_workers=2).from_indexed_dataset(_Pictures(items(out.parent.parent)))


@form
def beton_jpg(_: Path, out: Path) -> None:
    _beton(out, "jpg")


@form
def beton_raw(_: Path, out: Path) -> None:
    _beton(out, "raw")


def rows(out: Path, gib: float) -> None:
    """Random bytes: rows as large as the usual picture, too many for any cache of the processor."""
    count = int(gib * 2**30 / ROW_BYTES) // 256 * 256
    out.mkdir(parents=True)
    generator = np.random.default_rng(0)
    x = np.lib.format.open_memmap(out / "x.npy", mode="w+", dtype=np.uint8, shape=(count, *ROW))
    for start in range(0, count, 256):
        x[start : start + 256] = generator.integers(0, 256, (256, *ROW), dtype=np.uint8)
    x.flush()
    np.save(out / "y.npy", generator.integers(0, 1000, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=[*FORMS, "rows"])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rows-gib", type=float, default=2.0)
    args = parser.parse_args()
    # The size is part of the name, so that another size is another form.
    out = args.work / "rows" / f"{args.rows_gib:g}" if args.form == "rows" else args.work / "cifar" / args.form
    done = out.with_name(out.name + ".done")
    if done.exists():
        return
    shutil.rmtree(out, ignore_errors=True)
    out.unlink(missing_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    if args.form == "rows":
        rows(out, args.rows_gib)
    else:
        FORMS[args.form](args.data, out)
    done.touch()


if __name__ == "__main__":
    main()

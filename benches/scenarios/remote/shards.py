"""The same training pictures in each loader's own format, in one seeded order; written once.

Shards are about a megabyte, so that a disk cache of a fifth of the data holds several of them.
"""

from __future__ import annotations

import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from lossfeed.train.files import once, write_tar

Picture = tuple[bytes, int]
SHARD = 1000


def pictures(data: Path) -> list[Picture]:
    """(JPEG, label) of every picture in DATA's train-*.tar, shuffled."""
    found: list[tuple[str, bytes]] = []
    for shard in sorted(data.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            found += [(info.name, tar.extractfile(info).read()) for info in tar if info.isfile()]
    classes = sorted({name.split("/")[0] for name, _ in found})
    found.sort()
    random.Random(0).shuffle(found)
    return [(jpeg, classes.index(name.split("/")[0])) for name, jpeg in found]


def objects(taken: list[Picture], out: Path) -> None:
    """An object a picture, its label in the name."""
    for number, (jpeg, label) in enumerate(taken):
        (out / f"{number:06d}-{label}.jpg").write_bytes(jpeg)


def tars(taken: list[Picture], out: Path) -> None:
    """Tar shards with a member a picture, its label in the name."""
    for start in range(0, len(taken), SHARD):
        members = ((f"{label}/{number:06d}.jpg", jpeg) for number, (jpeg, label) in enumerate(taken[start : start + SHARD], start))
        write_tar(out / f"train-{start // SHARD:03d}.tar", members)


def mds(taken: list[Picture], out: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"jpg": "bytes", "label": "int"}, size_limit=1 << 20, exist_ok=True) as writer:
        for jpeg, label in taken:
            writer.write({"jpg": jpeg, "label": label})


def litdata(taken: list[Picture], out: Path) -> None:
    import litdata

    # Its writers are processes: they get paths, not pictures.
    listed = sorted((out.parent / "objects").iterdir())
    litdata.optimize(
        fn=_litdata_sample, inputs=listed, output_dir=str(out), chunk_bytes="1MB", num_workers=1, keep_data_ordered=True
    )


def _litdata_sample(path: Path) -> dict[str, object]:
    return {"jpg": path.read_bytes(), "label": int(path.stem.split("-")[1])}


FORMS: dict[str, Callable[[list[Picture], Path], None]] = {"objects": objects, "tars": tars, "mds": mds, "litdata": litdata}


def prepare(data: Path, work: Path, form: str, python: str) -> None:
    """Writes one form into WORK/BUCKET/FORM, by an interpreter that has its packages."""
    here = Path(__file__).resolve()

    def write(draft: Path) -> None:
        subprocess.run([python, str(here), str(data), form, str(draft)], check=True)

    (work / "bucket").mkdir(parents=True, exist_ok=True)
    once(work / "bucket" / form, write)


def size(work: Path, form: str) -> int:
    return sum(p.stat().st_size for p in (work / "bucket" / form).rglob("*") if p.is_file())


if __name__ == "__main__":
    import sys

    _, data, form, out = sys.argv
    Path(out).mkdir(parents=True, exist_ok=True)
    FORMS[form](pictures(Path(data)), Path(out))

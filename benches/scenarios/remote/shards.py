"""The same training pictures in each loader's own format, in one seeded order; written once.

Shards are about a fiftieth of the data, so that a disk cache of a fifth holds several of them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from lossfeed.train.files import once, write_tar
from pictures import KINDS, Kind, Picture


def objects(taken: list[Picture], out: Path, kind: Kind) -> None:
    """An object a picture, its label in the name."""
    for number, (jpeg, label) in enumerate(taken):
        (out / f"{number:06d}-{label}.jpg").write_bytes(jpeg)


def tars(taken: list[Picture], out: Path, kind: Kind) -> None:
    """Tar shards with a member a picture, its label in the name."""
    for start in range(0, len(taken), kind.shard):
        members = ((f"{label}/{number:06d}.jpg", jpeg) for number, (jpeg, label) in enumerate(taken[start : start + kind.shard], start))
        write_tar(out / f"train-{start // kind.shard:03d}.tar", members)


def mds(taken: list[Picture], out: Path, kind: Kind) -> None:
    from streaming import MDSWriter

    columns = {"jpg": "bytes", "label": "int"}
    with MDSWriter(out=str(out), columns=columns, size_limit=kind.shard_bytes, exist_ok=True) as writer:
        for jpeg, label in taken:
            writer.write({"jpg": jpeg, "label": label})


def litdata(taken: list[Picture], out: Path, kind: Kind) -> None:
    import litdata

    # Its writers are processes: they get paths, not pictures.
    listed = sorted((out.parent / "objects").iterdir())
    litdata.optimize(
        fn=_litdata_sample, inputs=listed, output_dir=str(out), chunk_bytes=kind.chunk_bytes, num_workers=1, keep_data_ordered=True
    )


def _litdata_sample(path: Path) -> dict[str, object]:
    return {"jpg": path.read_bytes(), "label": int(path.stem.split("-")[1])}


FORMS: dict[str, Callable[[list[Picture], Path, Kind], None]] = {
    "objects": objects,
    "tars": tars,
    "mds": mds,
    "litdata": litdata,
}


def prepare(data: Path, work: Path, form: str, kind: Kind, python: str) -> None:
    """Writes one form into WORK/bucket/FORM, by an interpreter that has its packages.

    All other forms are made of the objects, which therefore come first.
    """
    here = Path(__file__).resolve()

    def write(draft: Path) -> None:
        subprocess.run([python, str(here), str(data), form, kind.name, str(draft)], check=True)

    (work / "bucket").mkdir(parents=True, exist_ok=True)
    once(work / "bucket" / form, write)


def judged(data: Path, work: Path, kind: Kind) -> str:
    """The shards that trainings are judged with: DATA's own, or, blown up as well, WORK's."""
    if not kind.large:
        return str(data / "test-*.tar")
    return str(once(work / "judged", lambda draft: tars(kind.of(data, "test"), draft, kind)) / "*.tar")


def size(work: Path, form: str) -> int:
    return sum(p.stat().st_size for p in (work / "bucket" / form).rglob("*") if p.is_file())


def _written(objects: Path) -> list[Picture]:
    """The pictures again, from their objects."""
    return [(path.read_bytes(), int(path.stem.split("-")[1])) for path in sorted(objects.iterdir())]


if __name__ == "__main__":
    import sys

    _, data, form, name, out = sys.argv
    Path(out).mkdir(parents=True, exist_ok=True)
    kind = KINDS[name]
    FORMS[form](kind.of(Path(data), "train") if form == "objects" else _written(Path(out).parent / "objects"), Path(out), kind)

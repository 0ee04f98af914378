"""Generated files beside the programs that define them: the same bytes, or a refusal that names the reason.

The generators draw what writers may choose (`pictures.py`, `archives.py`, `rows.py`) and know what they wrote. What is refused, and
where Pillow itself says something else, is counted in the notes.
"""

from __future__ import annotations

import io
import random
import warnings
from pathlib import Path
from typing import Any, Callable

import numpy as np

from . import archives, pictures, rows
from .case import Attack, Case

HEIGHT, WIDTH = 23, 17
#: Pictures of one folder.
TOGETHER = 50


def by_pillow(raw: bytes) -> np.ndarray | None:
    """What Pillow makes of it, where it reads it; of 16-bit grays the high byte."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(raw))
            if image.mode.startswith("I;16"):
                return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, 2)
            return np.asarray(image.convert("RGB"))
    except Exception:  # noqa: BLE001 - whatever it raises, it does not read it
        return None


def pillow_is_wrong(kind: str, drawn: dict[str, Any]) -> bool:
    """What Pillow 13 delivers otherwise than the format says: see the table in tests/README.md."""
    if kind == "tif":
        return (drawn["photometric"] == 0 and drawn["depth"] == 16) or (drawn["planar"] == 2 and drawn["coding"] == 1)
    return kind == "bmp" and drawn["used"] in (1, 2)


def of_pictures(kind: str, write: Callable[[random.Random, int, int], pictures.Drawn], size: int) -> Callable[[Case], None]:
    """The trait that compares pictures of one format."""

    def trait(case: Case) -> None:
        import lossfeed as lf

        for turn in range(case.size(size, max(1, size // 10))):
            folder = case.place / f"{kind}-{turn}" / "class"
            folder.mkdir(parents=True)
            made = [write(case.rng, HEIGHT, WIDTH) for _ in range(TOGETHER)]
            for k, (raw, _, _) in enumerate(made):
                (folder / f"{k:03}.{kind}").write_bytes(raw)
            data = lf.open(folder.parent, mode="rgb")
            for k, (raw, pixels, drawn) in enumerate(made):
                shown = by_pillow(raw)
                if shown is not None and not np.array_equal(shown, pixels):
                    case.count("Pillow says otherwise")
                    case.check(pillow_is_wrong(kind, drawn), f"Pillow delivers other pixels of {drawn}")
                try:
                    got = np.asarray(data[k][0])
                except lf.Error as error:
                    case.count("refused")
                    case.check("is not read: " in str(error), f"{drawn}: {error}")
                    continue
                case.check(np.array_equal(got, pixels), f"{drawn} (seed {case.seed}, {turn}, {k}): other pixels")

    return trait


def tars(case: Case) -> None:
    """Archives beside Python's tarfile: the same pictures in the same order, and classes that are as many."""
    import lossfeed as lf

    for turn in range(case.size(400, 40)):
        raw, counts = archives.archive(case.rng, [archives.picture(case.rng) for _ in range(case.rng.randrange(2, 14))])
        for kind, count in counts.items():
            case.count(kind, count)
        path = Path(case.place / f"{turn}.tar")
        path.write_bytes(raw)
        wanted = archives.by_tarfile(str(path))
        about = f"archive {turn} of {counts}"
        try:
            data = lf.open(path)
            got = [(np.asarray(x)[..., 0].tobytes(), data.classes[int(y)]) for x, y in (data[i] for i in range(len(data)))]
        except lf.Error as error:
            case.fail(f"{about}: {error}")
            continue
        same = [pixels for pixels, _ in got] == [body[13 : 13 + 1600] for _, body in wanted]
        case.check(same, f"{about}: other pictures than tarfile's {[name for name, _ in wanted]}")
        classes = [name.rsplit("/", 2)[-2] for name, _ in wanted]
        case.check(
            len(set(classes)) == len(data.classes) == len(set(zip(classes, (c for _, c in got), strict=False))),
            f"{about}: classes {data.classes}, tarfile has {sorted(set(classes))!r}",
        )
        path.unlink()


def parquet(case: Case) -> None:
    """Rows of datasets of several files beside what was written: equal, or a bad sample that says where a null is."""
    import lossfeed as lf

    for turn in range(case.size(300, 25)):
        folder = case.place / f"rows-{turn}"
        folder.mkdir()
        of = rows.columns(case.rng)
        wanted: list[dict[str, Any]] = []
        for part in range(case.rng.randrange(1, 4)):
            wanted += rows.written(case.rng, str(folder / f"{part}.parquet"), of, case.rng.randrange(1, 30))
        about = f"rows {turn} of {of}"
        try:
            data = lf.open(folder, fields={name: name for name in of})
        except lf.Error as error:
            case.fail(f"{about}: {error}")
            continue
        case.check(len(data) == len(wanted), f"{about}: {len(data)} rows of {len(wanted)}")
        for k, row in enumerate(wanted):
            nulls = {name for name in of if rows.null_within(row[name])}
            try:
                given: dict[str, Any] = data[k]
            except lf.SampleError as error:
                case.count("rows with nulls")
                case.check(any(f"its {name} is null" in str(error) for name in nulls), f"{about}: row {k} {row}: {error}")
                continue
            plain = {name: row[name]["inner"] if of[name][1] == "struct" and row[name] else row[name] for name in of}
            same = not nulls and all(equal(given[name], plain[name]) for name in of)
            case.check(same, f"{about}: row {k} is {given}, and {row} was written")


def equal(given: Any, wanted: Any) -> bool:
    """Whether a delivered value is what was written."""
    given = given.tolist() if hasattr(given, "tolist") else given
    return given == wanted


ATTACK = Attack(
    "formats",
    {
        "tiff": of_pictures("tif", pictures.tiff, 60),
        "bmp": of_pictures("bmp", pictures.bmp, 60),
        "gif": of_pictures("gif", pictures.gif, 60),
        "tars": tars,
        "parquet": parquet,
    },
    share=1.0,
)

"""Finds the training and the held-out set behind ``--data``.

Everything is read through :func:`lossfeed.open`; this module only decides *what* to open.
"""

from __future__ import annotations

import glob
import hashlib
import os
import random
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .digits import digits_folder
from .files import once, write_tar
from .options import OptionError

_TEST_NAMES = ("test", "val", "valid", "validation", "held-out", "heldout")
_ENDINGS = (".tar", ".parquet")
_HELD_OUT = 0.1
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Splits:
    """What to train on and what to judge by. ``note`` says what was decided for the user, if anything was."""

    name: str
    train: str
    test: str
    note: str = ""


def find(data: str | None, work_dir: Path) -> Splits:
    """The two sets behind ``data``; ``None`` is the bundled digits.

    Accepts a folder of ``train-*.tar`` and ``test-*.tar`` shards (or ``.parquet``), a folder with a ``train`` and a ``test`` (or
    ``val``, ``validation``) class-per-folder tree, or one set (a class-per-folder tree, or the tar shards of a folder,
    a glob or a brace pattern), of which a seeded tenth is then held out. Raises :class:`OptionError` if it is none of
    these.
    """
    if data is None:
        folder = digits_folder(work_dir)
        return Splits("digits", brace(_shards(folder, "train")), brace(_shards(folder, "test")))
    if "://" in data and not data.startswith("file://"):
        raise OptionError(f"--data {data}: the demonstration job needs a local path, because it has to hold a part out")
    path = Path(data.removeprefix("file://")).expanduser()
    name = path.name or str(path)
    if path.is_dir():
        train_tars = _shards(path, "train")
        test_tars = next(filter(None, (_shards(path, word) for word in _TEST_NAMES)), [])
        if train_tars and test_tars:
            return Splits(name, brace(train_tars), brace(test_tars))
        test_dir = next((path / word for word in _TEST_NAMES if (path / word).is_dir()), None)
        if (path / "train").is_dir() and test_dir:
            return Splits(name, str(path / "train"), str(test_dir))
        tars = sorted(path.glob("*.tar")) or sorted(path.glob("*.parquet"))
        if tars:
            return _hold_out_tars(name, tars, work_dir)
        return _hold_out_folder(name, path, work_dir)
    tars = [Path(p) for pattern in expand(str(path)) for p in sorted(glob.glob(pattern))]
    if not tars:
        raise OptionError(
            f"--data {data}: nothing is there; give a class-per-folder directory, tar shards, or leave it out"
        )
    names = {word: [p for p in tars if re.match(word, p.name)] for word in ("train", *_TEST_NAMES)}
    test_tars = next(filter(None, (names[word] for word in _TEST_NAMES)), [])
    if names["train"] and test_tars:
        return Splits(name, brace(names["train"]), brace(test_tars))
    return _hold_out_tars(name, tars, work_dir)


def brace(paths: Sequence[Path]) -> str:
    """One brace pattern that :func:`lossfeed.open` expands to exactly ``paths``, in order."""
    if len(paths) == 1:
        return str(paths[0])
    texts = [str(p) for p in paths]
    head = os.path.commonprefix(texts)
    tail = os.path.commonprefix([t[len(head) :][::-1] for t in texts])[::-1]
    return head + "{" + ",".join(t[len(head) : len(t) - len(tail)] for t in texts) + "}" + tail


def expand(pattern: str) -> list[str]:
    """Expands ``{a,b}`` and ``{00..09}`` like a shell; a pattern without braces is itself."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    body = match[1]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", body)
    if numbers:
        digits = len(numbers[1])
        items = [f"{i:0{digits}d}" for i in range(int(numbers[1]), int(numbers[2]) + 1)]
    else:
        items = body.split(",")
    return [done for item in items for done in expand(pattern[: match.start()] + item + pattern[match.end() :])]


def _shards(folder: Path, word: str) -> list[Path]:
    found = (sorted(folder.glob(f"{word}{name}")) for ending in _ENDINGS for name in (f"-*{ending}", ending))
    return next(filter(None, found), [])


def _hold_out_tars(name: str, tars: Sequence[Path], work_dir: Path) -> Splits:
    """Holds out whole shards where there are enough of them, else splits the members into two new archives."""
    if any(tar.suffix == ".parquet" for tar in tars):
        raise OptionError(
            f"--data {name}: of Parquet files no part is held out here; name the training files train-*.parquet and the "
            "others test-*.parquet, as Hugging Face does, or pack them first (lossfeed pack)"
        )
    draw = random.Random(_SPLIT_SEED)
    if len(tars) >= 5:
        chosen = set(draw.sample(range(len(tars)), max(1, round(len(tars) * _HELD_OUT))))
        train = [t for i, t in enumerate(tars) if i not in chosen]
        test = [t for i, t in enumerate(tars) if i in chosen]
        return Splits(name, brace(train), brace(test), f"held out {len(test)} of {len(tars)} shards: {', '.join(t.name for t in test)}")

    def members(held_out: bool) -> Iterator[tuple[str, bytes]]:
        pick = random.Random(_SPLIT_SEED)
        for tar in tars:
            with tarfile.open(tar) as archive:
                for member in archive:
                    if member.isfile() and (pick.random() < _HELD_OUT) == held_out:
                        yield member.name, archive.extractfile(member).read()  # type: ignore[union-attr]

    def write(draft: Path) -> None:
        write_tar(draft / "train.tar", members(False))
        write_tar(draft / "test.tar", members(True))

    folder = once(work_dir / f"split-{_fingerprint(tars)}", write)
    return Splits(name, str(folder / "train.tar"), str(folder / "test.tar"), f"held out a tenth of the samples, split once in {folder}")


def _hold_out_folder(name: str, path: Path, work_dir: Path) -> Splits:
    """Splits a class-per-folder tree into two trees of symbolic links, a tenth of every class held out."""
    classes = sorted(p for p in path.iterdir() if p.is_dir())
    if not classes:
        raise OptionError(
            f"--data {path}: no class folders and no .tar shards in it; expected {path}/CLASS/IMAGE or {path}/*.tar"
        )

    def link(draft: Path) -> None:
        draw = random.Random(_SPLIT_SEED)
        for folder in classes:
            files = sorted(p for p in folder.rglob("*") if p.is_file())
            draw.shuffle(files)
            cut = max(1, round(len(files) * _HELD_OUT)) if len(files) > 1 else 0
            for part, chosen in (("test", files[:cut]), ("train", files[cut:])):
                (draft / part / folder.name).mkdir(parents=True)
                for file in chosen:
                    flat = "_".join(file.relative_to(folder).parts)
                    (draft / part / folder.name / flat).symlink_to(file.resolve())

    folder = once(work_dir / f"split-{_fingerprint(classes)}", link)
    return Splits(name, str(folder / "train"), str(folder / "test"), f"held out a tenth of every class, as links in {folder}")


def _fingerprint(paths: Sequence[Path]) -> str:
    """A name for a split that changes when its input does."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        digest.update(f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]

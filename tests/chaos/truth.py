"""Datasets whose every byte is known: what a loader delivers is compared with them by checksum."""

from __future__ import annotations

import io
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: The ways a dataset can lie on this machine.
KINDS = ("arrays", "folder", "tar", "items")

SIDE = 6
CLASSES = 4


@dataclass(frozen=True)
class Truth:
    """A dataset and the checksum of every sample in the order of ids."""

    kind: str
    #: What `opened` takes: a path, or a pattern of shards.
    where: str
    sums: list[int]

    def __len__(self) -> int:
        return len(self.sums)


def checksum(data: np.ndarray, target: Any) -> int:
    """CRC-32 of a sample's bytes and its target's: a row with another's label is as wrong as another's row."""
    return zlib.crc32(np.asarray(target).tobytes(), zlib.crc32(np.ascontiguousarray(data).tobytes()))


def checksums(batch: Any) -> tuple[int, ...]:
    """Of every sample in a batch of NumPy arrays."""
    return tuple(checksum(row, target) for row, target in zip(batch.data, batch.target, strict=True))


def samples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`n` pictures of noise, no two alike, and their labels, sorted by label as a folder has them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (n, SIDE, SIDE, 3), dtype=np.uint8)
    return pixels, np.arange(n, dtype=np.int64) * CLASSES // n


def png(pixels: np.ndarray) -> bytes:
    """A picture as a file, without loss."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def build(kind: str, n: int, seed: int, place: Path) -> Truth:
    """Writes the dataset of that kind and seed into `place`."""
    pixels, labels = samples(n, seed)
    sums = [checksum(row, label) for row, label in zip(pixels, labels, strict=True)]
    place.mkdir(parents=True, exist_ok=True)
    if kind in ("arrays", "items"):
        np.savez(place / "samples.npz", x=pixels, y=labels)
        return Truth(kind, str(place / "samples.npz"), sums)
    files = [(f"class-{label}/{i:06}.png", png(row)) for i, (row, label) in enumerate(zip(pixels, labels, strict=True))]
    if kind == "folder":
        for name, content in files:
            path = place / "train" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return Truth(kind, str(place / "train"), sums)
    middle = n // 3
    for shard, part in enumerate((files[:middle], files[middle:])):
        write_tar(place / f"train-{shard}.tar", part)
    return Truth(kind, str(place / "train-*.tar"), sums)


def write_tar(path: Path, files: list[tuple[str, bytes]]) -> None:
    """A shard with these members."""
    with tarfile.open(path, "w") as shard:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))


class Items:
    """A map-style dataset over arrays."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return self.x[i], self.y[i]


def opened(kind: str, where: str, **options: Any) -> Any:
    """The dataset as :class:`lossfeed.Loader` takes it."""
    import lossfeed as lf

    if kind in ("folder", "tar"):
        return lf.open(where, **options)
    held = np.load(where)
    pair = held["x"], held["y"]
    return pair if kind == "arrays" else Items(*pair)

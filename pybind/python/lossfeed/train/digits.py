"""The default data: scikit-learn's bundled handwritten digits as PNG tar shards.

1,797 grey 8×8 images of ten classes (the test half of the UCI optical digits, Alpaydin & Kaynak 1998), so nothing is
downloaded. They are written once and then read back like any other data set. The same bytes come out on every machine.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from .files import once, write_tar

SHARDS = {"train": 4, "test": 1}
HELD_OUT = 0.25
_VERSION = "v1"  # of the layout: a change of split, order or encoding must change the folder's name


def png_gray(rows: Sequence[bytes]) -> bytes:
    """An 8-bit greyscale PNG of ``rows``, each one line of pixels. Pixel values are kept exactly."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    # Filter 0 before every line; stored blocks (level 0), because deflate's output differs between zlib builds.
    lines = zlib.compress(b"".join(b"\0" + row for row in rows), 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def digits_folder(work_dir: Path) -> Path:
    """The folder with ``train-*.tar`` and ``test-*.tar``, written on first use.

    Raises ``ImportError`` if scikit-learn is missing and the shards were never written, ``OSError`` if ``work_dir``
    cannot be written.
    """
    folder = work_dir / f"digits-{_VERSION}"
    if folder.is_dir():
        return folder
    from sklearn.datasets import load_digits

    digits = load_digits()
    by_class: dict[int, list[int]] = {}
    for index, label in enumerate(digits.target.tolist()):
        by_class.setdefault(label, []).append(index)
    # Drawn by class, so that both halves hold every digit in the same proportion.
    draw = random.Random(0)
    split: dict[str, list[int]] = {"train": [], "test": []}
    for label in sorted(by_class):
        ids = by_class[label]
        draw.shuffle(ids)
        cut = round(len(ids) * HELD_OUT)
        split["test"] += ids[:cut]
        split["train"] += ids[cut:]
    pixels = (digits.images * (255 / 16)).round().astype("uint8")

    def write(draft: Path) -> None:
        for part, ids in split.items():
            draw.shuffle(ids)
            for shard in range(SHARDS[part]):
                chosen = ids[shard :: SHARDS[part]]
                members = ((f"{digits.target[i]}/{i:04d}.png", png_gray([row.tobytes() for row in pixels[i]])) for i in chosen)
                write_tar(draft / f"{part}-{shard:02d}.tar", members)

    return once(folder, write)

"""The pictures that are trained on: CIFAR-10's own, or a part of them blown up to the size of photographs.

Blown up, a picture tells the network no more than before, but costs as many bytes and as much decoding as a photograph.
Every feed reduces it to 32 by 32 again, so that the same network learns from both.
"""

from __future__ import annotations

import io
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: A JPEG and its label.
Picture = tuple[bytes, int]
#: What the network takes.
SIDE = 32


@dataclass(frozen=True)
class Kind:
    """Which pictures, and how many of them make a shard: about a fiftieth of the data."""

    name: str
    shard: int
    shard_bytes: int
    #: litData's: with large pictures in chunks of 8.8 MB it waited for one that never came, and gave up after 120 s.
    chunk_bytes: int
    large: bool
    #: Pictures trained on and judged with; None: all.
    train: int | None
    test: int | None

    @property
    def resize(self) -> int | None:
        """What feeds reduce the pictures to."""
        return SIDE if self.large else None

    def of(self, data: Path, part: str) -> list[Picture]:
        """(JPEG, label) of the pictures in DATA's PART-*.tar, in one seeded order."""
        found: list[tuple[str, bytes]] = []
        for shard in sorted(data.glob(f"{part}-*.tar")):
            with tarfile.open(shard) as tar:
                found += [(info.name, tar.extractfile(info).read()) for info in tar if info.isfile()]
        classes = sorted({name.split("/")[0] for name, _ in found})
        found.sort()
        random.Random(0).shuffle(found)
        taken = [(jpeg, classes.index(name.split("/")[0])) for name, jpeg in found[: self.train if part == "train" else self.test]]
        if not self.large:
            return taken
        noise = np.random.default_rng(0 if part == "train" else 1)
        return [(enlarged(jpeg, noise), label) for jpeg, label in taken]


KINDS = {
    kind.name: kind
    for kind in (
        Kind("small", shard=1000, shard_bytes=1 << 20, chunk_bytes=1_000_000, large=False, train=None, test=None),
        Kind("large", shard=80, shard_bytes=8_800_000, chunk_bytes=2_200_000, large=True, train=4000, test=4000),
    )
}


def enlarged(jpeg: bytes, noise: np.random.Generator) -> bytes:
    """480 by 480, about 108 KB: bicubic, and grain of the brightness, without which it would have 25 KB."""
    from PIL import Image

    side = 15 * SIDE
    smooth = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB").resize((side, side), Image.Resampling.BICUBIC))
    grain = 17 * noise.standard_normal((side, side, 1), dtype=np.float32)
    out = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()

"""Pictures for the cases, made once in the temporary folder."""

import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "owl")


def encoded(i, side):
    """A JPEG of side × side pixels: a blurred pattern in the class's colour."""
    draw = np.random.default_rng(i)
    small = Image.fromarray(draw.integers(0, 256, (side // 8, side // 8, 3), np.uint8))
    pixels = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC)).copy()
    pixels[..., i % 3] //= 2
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def made(kind):
    """The path of ``"shards"`` (1,024 pictures in four tars) or of ``"large"`` (256 of 512 × 512 in class folders)."""
    root = Path(tempfile.gettempdir()) / "lossfeed-cases"
    place = root / kind
    if not (place / "done").exists():
        place.mkdir(parents=True, exist_ok=True)
        (shards if kind == "shards" else large)(place)
        (place / "done").touch()
    return str(place / "shard-{0..3}.tar") if kind == "shards" else str(place / "train")


def shards(place):
    for number in range(4):
        with tarfile.open(place / f"shard-{number}.tar", "w") as tar:
            for i in range(number * 256, number * 256 + 256):
                member = tarfile.TarInfo(f"{CLASSES[i % 3]}/{i:04}.jpg")
                body = encoded(i, 96)
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))


def large(place):
    for i in range(256):
        folder = place / "train" / CLASSES[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04}.jpg").write_bytes(encoded(i, 512))

"""PNG, PNM and WebP files over all that their headers can say: depths, colours, interlacing, filters, palettes, chunks."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections import Counter
from pathlib import Path

from . import jpegs

#: Colour type -> its depths and samples.
KINDS = {0: ((1, 2, 4, 8, 16), 1), 2: ((8, 16), 3), 3: ((1, 2, 4, 8), 1), 4: ((8, 16), 2), 6: ((8, 16), 4)}
#: Adam7: first column, first row, steps.
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def paeth(a: int, b: int, c: int) -> int:
    p = a + b - c
    far = abs(p - a), abs(p - b), abs(p - c)
    return (a, b, c)[far.index(min(far))]


def filtered(rows: list[bytes], pixel: int, rng: random.Random) -> bytes:
    """Rows, each by a filter of its own. `pixel`: bytes to the one on the left."""
    out, above = b"", bytes(len(rows[0])) if rows else b""
    for row in rows:
        kind = rng.randrange(5)
        made = bytearray([kind])
        for i, value in enumerate(row):
            a, c = (row[i - pixel], above[i - pixel]) if i >= pixel else (0, 0)
            made.append(value - (0, a, above[i], (a + above[i]) // 2, paeth(a, above[i], c))[kind] & 255)
        out, above = out + made, row
    return out


def png(seed: int, size: tuple[int, int]) -> tuple[bytes, str]:
    """A file from a seed, and what it is in words."""
    rng = random.Random(seed)
    width, height = size
    color = rng.choice(tuple(KINDS))
    depths, samples = KINDS[color]
    depth, laced = rng.choice(depths), rng.randrange(2)
    colors = rng.randint(1, 1 << depth) if color == 3 else 0
    most = colors or 1 << depth
    values = [[[rng.randrange(most) for _ in range(samples)] for _ in range(width)] for _ in range(height)]

    def packed(row: list[list[int]]) -> bytes:
        bits = "".join(f"{value:0{depth}b}" for pixel in row for value in pixel)
        bits += "0" * (-len(bits) % 8)
        return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))

    pixel = max(samples * depth // 8, 1)
    data = b""
    for x, y, right, down in PASSES if laced else ((0, 0, 1, 1),):
        rows = [packed(row[x::right]) for row in values[y::down]] if x < width else []
        data += filtered(rows, pixel, rng)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, laced))
    if rng.random() < 0.5:
        out += chunk(*rng.choice(((b"gAMA", struct.pack(">I", 45455)), (b"sRGB", b"\0"), (b"tEXt", b"Title\0x"), (b"teSt", b"?"))))
    if color == 3 or (color in (2, 6) and rng.random() < 0.2):
        out += chunk(b"PLTE", rng.randbytes(3 * (colors or 5)))
    transparent = rng.random() < 0.4 and color in (0, 2, 3)
    if transparent:
        hidden = rng.randbytes(rng.randint(1, colors)) if color == 3 else struct.pack(f">{samples}H", *values[0][0])
        out += chunk(b"tRNS", hidden)
    stream, part = zlib.compress(data, rng.randrange(10)), rng.choice((1 << 20, 100, 7))
    out += b"".join(chunk(b"IDAT", stream[i : i + part]) for i in range(0, len(stream), part))
    return out + chunk(b"IEND", b""), f"{width}x{height} {color=} {depth=} {laced=} {colors=} {transparent=} {part=}"


def pnm(seed: int, size: tuple[int, int]) -> tuple[bytes, str]:
    """Bits, grays or colours, one byte each or two, with comments and whatever white space."""
    rng = random.Random(seed)
    width, height = size
    kind = rng.choice("456")
    most = rng.choice((255, 255, 1, 100, 254, 256, 1000, 65535)) if kind != "4" else 1
    gap = lambda: rng.choice((" ", "\n", "\t", " # a comment\n", "\r\n"))  # noqa: E731
    head = f"P{kind}{gap()}{width}{gap()}{height}" + (f"{gap()}{most}" if kind != "4" else "") + "\n"
    count = width * height * (3 if kind == "6" else 1)
    if kind == "4":
        body = rng.randbytes((width + 7) // 8 * height)
    elif most > 255:
        body = struct.pack(f">{count}H", *(rng.randint(0, most) for _ in range(count)))
    else:
        body = bytes(rng.randint(0, most) for _ in range(count))
    return head.encode() + body, f"{head!r}"


def webp(seed: int, size: tuple[int, int]) -> tuple[bytes, str]:
    """Without loss: what is lossy comes from another decoder than libwebp."""
    from PIL import Image

    rng = random.Random(seed)
    mode = rng.choice(("RGB", "RGBA", "L"))
    small = Image.frombytes("RGBA", (4, 3), rng.randbytes(48))
    shown = small.resize(size, rng.choice((Image.Resampling.NEAREST, Image.Resampling.BICUBIC))).convert(mode)
    out = io.BytesIO()
    options = {"quality": rng.randrange(101), "method": rng.randrange(7), "exact": rng.random() < 0.5}
    shown.save(out, "WEBP", lossless=True, **options)
    return out.getvalue(), f"{mode} {options}"


def drawn(seed: int, place: Path, count: int = 8) -> tuple[list[str], Counter[str]]:
    """One size, and files of it, beside Pillow."""
    rng = random.Random(seed)
    size = rng.randint(1, 40), rng.randint(1, 40)
    files, said = {}, {}
    for k in range(count):
        for make, ending in ((png, "png"), (pnm, "pnm"), (webp, "webp")):
            name = f"{ending}-{k}.{ending.replace('pnm', 'ppm')}"
            files[name], said[name] = make(1000 * seed + k, size)
    wrong, counts = jpegs.beside_pillow(place, files, size)
    return [f"seed {seed}, {size}: {w} {said[w.split(':')[0]]}" for w in wrong], counts

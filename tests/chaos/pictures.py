"""Pictures as no encoder at hand writes them all: TIFF, BMP and GIF over the product of their options.

Each writer draws its options and hands out the file, the pixels that it holds (height, width, 3), and what was drawn.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import numpy as np

#: A file, its pixels, what was drawn.
Drawn = tuple[bytes, np.ndarray, dict[str, Any]]


class Bits:
    """Codes of any width, one after the other."""

    def __init__(self, lowest_first: bool) -> None:
        self.lowest_first = lowest_first
        self.out, self.held, self.count = bytearray(), 0, 0

    def put(self, value: int, width: int) -> None:
        self.held = self.held | value << self.count if self.lowest_first else self.held << width | value
        self.count += width
        while self.count >= 8:
            self.count -= 8
            if self.lowest_first:
                self.out.append(self.held & 255)
                self.held >>= 8
            else:
                self.out.append(self.held >> self.count & 255)
                self.held &= (1 << self.count) - 1

    def end(self) -> bytes:
        if self.count:
            self.put(0, 8 - self.count)
        return bytes(self.out)


def lzw(data: bytes, bits: int, *, gif: bool, ended: bool = True) -> bytes:
    """LZW of TIFF, whose codes grow one early, or of GIF; `ended` is whether the end code follows."""
    clear, out = 1 << bits, Bits(gif)
    early, most = (0, 4096) if gif else (1, 4094)
    table: dict[bytes, int] = {}
    width = bits + 1

    def begin() -> None:
        nonlocal width
        out.put(clear, width)
        table.clear()
        table.update({bytes([value]): value for value in range(clear)})
        width = bits + 1

    begin()
    free, run = clear + 2, b""
    for value in data:
        longer = run + bytes([value])
        if longer in table:
            run = longer
            continue
        out.put(table[run], width)
        if free < most:
            table[longer] = free
            free += 1
            if free + early > 1 << width and width < 12:
                width += 1
        else:
            begin()
            free = clear + 2
        run = bytes([value])
    if run:
        out.put(table[run], width)
        if free < most and free + 1 + early > 1 << width and width < 12:
            width += 1
    if ended:
        out.put(clear + 1, width)
    return out.end()


def pack_bits(data: bytes, rng: random.Random) -> bytes:
    """PackBits, in runs and literals of any length, with a byte that says nothing now and then."""
    out, at = bytearray(), 0
    while at < len(data):
        if rng.random() < 0.1:
            out.append(128)
        same = 1
        while same < 128 and at + same < len(data) and data[at + same] == data[at]:
            same += 1
        if same > 1 and rng.random() < 0.9:
            out += bytes([257 - same, data[at]])
            at += same
        else:
            some = data[at : at + rng.randrange(1, 129)]
            out += bytes([len(some) - 1]) + some
            at += len(some)
    return bytes(out)


def fax(rows: np.ndarray) -> bytes:
    """CCITT group 4 of rows of bits, as libtiff writes it by Pillow's hand; set bits are black."""
    from PIL import Image

    out = io.BytesIO()
    tags = {278: rows.shape[0], 262: 0}
    Image.fromarray(rows == 0).save(out, "TIFF", compression="group4", tiffinfo=tags)
    image = Image.open(out)
    (start,), (length,) = image.tag_v2[273], image.tag_v2[279]
    # Pillow writes white as 0 here.
    return out.getvalue()[start : start + length]


def noise(rng: random.Random, shape: tuple[int, ...], most: int) -> np.ndarray:
    """Values of up to `most`: of any kind, or with runs and repetitions, on which codes grow long."""
    draw = np.random.default_rng(rng.randrange(2**32))
    values = draw.integers(0, most + 1, shape, dtype=np.uint32)
    how = rng.randrange(3)
    if how == 1:
        values = values * (draw.random(shape) < 0.1)
    elif how == 2:
        values = np.broadcast_to(values[:, :1], shape).copy()
    return values.astype(np.uint32)


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The picture whose rows and columns are stored as `orientation` says."""
    flipped = {
        2: lambda p: p[:, ::-1], 3: lambda p: p[::-1, ::-1], 4: lambda p: p[::-1], 5: lambda p: p.swapaxes(0, 1),
        6: lambda p: p.swapaxes(0, 1)[:, ::-1], 7: lambda p: p[::-1, ::-1].swapaxes(0, 1), 8: lambda p: p.swapaxes(0, 1)[::-1],
    }
    return flipped.get(orientation, lambda p: p)(pixels)


def tiff(rng: random.Random, height: int, width: int) -> Drawn:
    """A TIFF that shows `height` × `width` pixels."""
    orientation = rng.choice((None, None, 1, 2, 3, 4, 5, 6, 7, 8))
    if orientation in (5, 6, 7, 8):
        height, width = width, height
    little, big = rng.random() < 0.6, rng.random() < 0.15
    photometric = rng.choice((0, 1, 2, 2, 5))
    colors = {0: 1, 1: 1, 2: 3, 5: 4}[photometric]
    depth = rng.choice((1, 2, 4, 8, 8, 16) if colors == 1 else (8, 8, 16))
    extra = rng.choice((None, None, 0, 1, 2)) if depth >= 8 else None
    extra = 0 if photometric == 5 and extra is not None else extra
    samples = colors + (extra is not None)
    coding = rng.choice((1, 5, 5, 8, 32946, 32773) + ((4, 4, 4) if depth == 1 else ()))
    predictor = rng.choice((1, 2)) if coding in (5, 8, 32946) and depth >= 8 else 1
    planar = rng.choice((1, 2)) if samples > 1 else 1
    fill = rng.choice((None, 1, 1, 2))
    tiled = rng.random() < 0.5
    part = (rng.choice((16, 32, 48)), rng.choice((16, 32, 64))) if tiled else (rng.choice((1, 3, 8, height, height, 10**6)), width)
    ended = rng.random() < 0.6
    drawn = {
        "orientation": orientation, "order": "II" if little else "MM", "big": big, "photometric": photometric, "depth": depth,
        "extra": extra, "coding": coding, "predictor": predictor, "planar": planar, "fill": fill, "tiled": tiled, "part": part,
        "ended": ended,
    }

    stored = noise(rng, (height, width, samples), (1 << depth) - 1)
    order = "<" if little else ">"
    rows_of = min(part[0], height) if not tiled else part[0]
    pieces = []
    planes = [stored[..., k : k + 1] for k in range(samples)] if planar == 2 else [stored]
    for plane in planes:
        for top in range(0, height, rows_of):
            for left in range(0, width, part[1]):
                piece = plane[top : top + rows_of, left : left + part[1]]
                if tiled:
                    padding = [(0, rows_of - piece.shape[0]), (0, part[1] - piece.shape[1]), (0, 0)]
                    piece = np.pad(piece, padding, "edge")
                pieces.append(coded(piece, depth, coding, predictor, order, ended, rng))
    if fill == 2:
        table = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))
        pieces = [piece.translate(table) for piece in pieces]
    tags: dict[int, tuple[int, list[int]]] = {
        256: (3, [width]), 257: (3, [height]), 258: (3, [depth] * samples), 259: (3, [coding]), 262: (3, [photometric]),
        277: (3, [samples]), 284: (3, [planar]),
    }
    if orientation is not None:
        tags[274] = 3, [orientation]
    if extra is not None:
        tags[338] = 3, [extra]
    if predictor != 1 or rng.random() < 0.2:
        tags[317] = 3, [predictor]
    if fill is not None:
        tags[266] = 3, [fill]
    if tiled:
        tags |= {322: (3, [part[1]]), 323: (3, [part[0]])}
    else:
        tags[278] = 4, [part[0]]
    head = bytearray(16 if big else 8)
    offsets = []
    for piece in pieces:
        offsets.append(len(head))
        head += piece + bytes(len(piece) % 2)
    tags |= {324 if tiled else 273: (4, offsets), 325 if tiled else 279: (4, list(map(len, pieces)))}
    return directory(head, tags, order, big), shown(stored, photometric, depth, extra, orientation), drawn


def coded(piece: np.ndarray, depth: int, coding: int, predictor: int, order: str, ended: bool, rng: random.Random) -> bytes:
    """A strip or tile."""
    if coding == 4:
        return fax(piece[..., 0])
    if predictor == 2:
        piece = np.concatenate([piece[:, :1], (piece[:, 1:] - piece[:, :-1]) % (1 << depth)], 1)
    rows = piece.reshape(len(piece), -1)
    if depth == 16:
        raw = rows.astype(f"{order}u2").tobytes()
    elif depth == 8:
        raw = rows.astype(np.uint8).tobytes()
    else:
        places = np.arange(depth - 1, -1, -1, dtype=np.uint32)
        raw = np.packbits((rows[..., None] >> places & 1).astype(np.uint8).reshape(len(rows), -1), axis=1).tobytes()
    if coding == 5:
        return lzw(raw, 8, gif=False, ended=ended)
    if coding == 32773:
        return pack_bits(raw, rng)
    return raw if coding == 1 else zlib.compress(raw)


def shown(stored: np.ndarray, photometric: int, depth: int, extra: int | None, orientation: int | None) -> np.ndarray:
    """The pixels, as the specification and Pillow's integers have them."""
    values = (stored >> 8 if depth == 16 else stored * (255 // ((1 << depth) - 1))).astype(np.int64)
    colors = values[..., : {0: 1, 1: 1, 2: 3, 5: 4}[photometric]]
    if extra == 1:
        alpha = values[..., -1:]
        colors = np.where(alpha == 0, 0, np.minimum(colors * 255 // np.maximum(alpha, 1), 255))
    if photometric == 0:
        colors = 255 - colors
    if photometric == 5:
        taken = colors[..., :3] * (255 - colors[..., 3:]) + 128
        colors = np.maximum(255 - colors[..., 3:] - ((taken >> 8) + taken >> 8), 0)
    colors = np.broadcast_to(colors, (*colors.shape[:2], 3)).astype(np.uint8)
    return turned(colors, orientation or 1)


def directory(head: bytearray, tags: dict[int, tuple[int, list[int]]], order: str, big: bool) -> bytes:
    """The file: what lies in `head`, then the tags; its first bytes are filled in."""
    start = len(head)
    word = "Q" if big else "I"
    entries, after = b"", b""
    end = start + (8 + 20 * len(tags) + 8 if big else 2 + 12 * len(tags) + 4)
    for tag in sorted(tags):
        kind, values = tags[tag]
        raw = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        entries += struct.pack(f"{order}HH{word}", tag, kind, len(values))
        if len(raw) <= struct.calcsize(word):
            entries += raw.ljust(struct.calcsize(word), b"\0")
        else:
            entries += struct.pack(order + word, end + len(after))
            after += raw + bytes(len(raw) % 2)
    count = struct.pack(order + ("Q" if big else "H"), len(tags))
    body = count + entries + bytes(8 if big else 4) + after
    begins = b"II" if order == "<" else b"MM"
    begins += struct.pack(f"{order}HHHQ", 43, 8, 0, start) if big else struct.pack(f"{order}HI", 42, start)
    head[: len(begins)] = begins
    return bytes(head) + body


def bmp(rng: random.Random, height: int, width: int) -> Drawn:
    """A BMP that shows `height` × `width` pixels."""
    header = rng.choice((12, 40, 40, 40, 52, 56, 64, 108, 124))
    bits = rng.choice((1, 4, 8, 24) if header == 12 else (1, 4, 8, 16, 24, 32))
    masked = bits in (16, 32) and header not in (12, 64) and rng.random() < 0.6
    masks = {16: (0x7C00, 0x3E0, 0x1F), 32: (0xFF0000, 0xFF00, 0xFF)}.get(bits, (0, 0, 0))
    if masked:
        masks = rng.choice([(0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F)] if bits == 16 else [
            (0xFF0000, 0xFF00, 0xFF), (0xFF000000, 0xFF0000, 0xFF00), (0xFF, 0xFF00, 0xFF0000), (0, 0, 0),
        ])
    top_first = header != 12 and rng.random() < 0.3
    colors = (1 << bits) if bits <= 8 else 0
    used = 0 if header == 12 or bits > 8 else rng.choice((0, 0, rng.randrange(1, colors + 1), colors))
    place = rng.choice(("right", "right", "zero", "behind the header", "later"))
    draw = np.random.default_rng(rng.randrange(2**32))
    drawn = {"header": header, "bits": bits, "masks": masks if masked else None, "top first": top_first, "used": used, "place": place}

    stored = noise(rng, (height, width), min((1 << bits) - 1, 2**32 - 1))
    table = np.zeros((256, 3), np.uint8)
    count = used or colors
    table[:count] = draw.integers(0, 256, (count, 3)) if rng.random() < 0.7 else np.arange(count)[:, None]
    if count and (table[:count] == np.arange(count)[:, None]).all():
        table = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)
    if bits <= 8:
        pixels = table[stored]
    elif bits == 24:
        pixels = np.stack([stored >> 16 & 255, stored >> 8 & 255, stored & 255], -1).astype(np.uint8)
    else:
        real = masks if any(masks) else (0xFF0000, 0xFF00, 0xFF)
        parts = []
        for mask in real:
            shift = (mask & -mask).bit_length() - 1
            parts.append(((stored.astype(np.uint64) & mask) >> shift) * 255 // (mask >> shift))
        pixels = np.stack(parts, -1).astype(np.uint8)
    rows = bytearray()
    for row in stored if top_first else stored[::-1]:
        if bits < 8:
            places = np.arange(bits - 1, -1, -1, dtype=np.uint32)
            raw = np.packbits((row[:, None] >> places & 1).astype(np.uint8).reshape(-1)).tobytes()
        elif bits == 24:
            raw = row.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
        else:
            raw = row.astype(f"<u{bits // 8}").tobytes()
        rows += raw + bytes(-len(raw) % 4)
    size = 3 if header == 12 else 4
    palette = b"".join(table[k, ::-1].tobytes() + bytes(size - 3) for k in range(count))
    if header == 12:
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        kind = 3 if masked else 0
        head = struct.pack("<IiiHHIIiiII", header, width, -height if top_first else height, 1, bits, kind, len(rows), 0, 0, used, 0)
        more = struct.pack("<3I", *masks) if masked else b""
        # Headers of 40 bytes have their masks behind them.
        head += more if header == 40 else more.ljust(header - 40, b"\0")
    gap = bytes(rng.randrange(1, 20)) if place == "later" else b""
    start = 14 + len(head) + len(palette)
    named = {"right": start, "later": start + len(gap), "zero": 0, "behind the header": 14 + header if bits <= 8 else start}[place]
    return b"BM" + struct.pack("<IHHI", start + len(gap) + len(rows), 0, 0, named) + head + palette + gap + rows, pixels, drawn


def gif(rng: random.Random, height: int, width: int) -> Drawn:
    """A GIF whose screen is `height` × `width` pixels; a frame may cover a part of it."""
    draw = np.random.default_rng(rng.randrange(2**32))
    whole = rng.random() < 0.6
    top, left = (0, 0) if whole else (rng.randrange(height), rng.randrange(width))
    rows, columns = (height, width) if whole else (rng.randrange(1, height - top + 1), rng.randrange(1, width - left + 1))
    kinds = {kind: 1 << rng.randrange(1, 9) for kind in ("global", "local") if rng.random() < 0.7}
    ramp = rng.random() < 0.15
    tables = {kind: np.repeat(np.arange(n)[:, None], 3, 1) if ramp else draw.integers(0, 256, (n, 3)) for kind, n in kinds.items()}
    table = tables.get("local", tables.get("global"))
    bits = rng.randrange(2, 9)
    most = (1 << bits) - 1
    if rng.random() < 0.5 and table is not None:
        most = min(most, len(table) - 1)
    indices = noise(rng, (rows, columns), most)
    transparent = rng.choice((None, None, rng.randrange(256)))
    interlaced = rng.random() < 0.3
    drawn = {
        "frame": (top, left, rows, columns), "tables": kinds, "ramp": ramp, "bits": bits, "most": most, "transparent": transparent,
        "interlaced": interlaced,
    }

    colors = np.zeros((256, 3), np.uint8)
    if table is None or (table == np.arange(len(table))[:, None]).all():
        colors[:] = np.arange(256)[:, None]
    else:
        colors[: len(table)] = table
    pixels = np.full((height, width), transparent or 0, np.uint32)
    pixels[top : top + rows, left : left + columns] = indices
    order = [r for start, step in ((0, 8), (4, 8), (2, 4), (1, 2)) for r in range(start, rows, step)] if interlaced else list(range(rows))

    def flags(kind: str) -> int:
        return 0x80 | (kinds[kind].bit_length() - 2) if kind in kinds else 0

    out = b"GIF89a" + struct.pack("<HHBBB", width, height, flags("global"), rng.randrange(256), 0)
    out += tables["global"].astype(np.uint8).tobytes() if "global" in tables else b""
    if transparent is not None:
        out += b"\x21\xf9\x04" + struct.pack("<BHB", 1, 0, transparent) + b"\0"
    out += b"," + struct.pack("<HHHHB", left, top, columns, rows, flags("local") | 0x40 * interlaced)
    out += tables["local"].astype(np.uint8).tobytes() if "local" in tables else b""
    data = lzw(indices[order].astype(np.uint8).tobytes(), bits, gif=True)
    out += bytes([bits])
    for at in range(0, len(data), 255):
        out += bytes([len(data[at : at + 255])]) + data[at : at + 255]
    return out + b"\0;", colors[pixels], drawn

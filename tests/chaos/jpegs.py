"""JPEG files that no encoder at hand writes: any sampling factors, scan scripts, restarts, markers and tables; and what
Pillow makes of files, beside what lossfeed does."""

from __future__ import annotations

import io
import random
import struct
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

#: What sound files may be refused for.
NOT_READ = ("in one scan and the rest in others",)
#: What files that somebody damaged may be refused for, besides.
HURT = ("is truncated", "is damaged", "restart marker", "last progressive scans are missing", "a scan has coefficients", "bytes are not an image in a supported format")


class Bits:
    """Entropy-coded bits, with a zero after each 0xff."""

    def __init__(self):
        self.out, self.held, self.count = bytearray(), 0, 0

    def put(self, value, count):
        self.held, self.count = self.held << count | value & (1 << count) - 1, self.count + count
        while self.count >= 8:
            self.count -= 8
            byte = self.held >> self.count & 255
            self.out += bytes([byte, 0]) if byte == 255 else bytes([byte])
        self.held &= (1 << self.count) - 1

    def align(self):
        if self.count:
            self.put((1 << 8 - self.count) - 1, 8 - self.count)


def table(rng, symbols):
    """A Huffman table of these symbols: (counts, symbols, {symbol: (code, length)}); no code is all ones."""
    symbols = list(symbols)
    rng.shuffle(symbols)
    lengths, room = [], 1 << 16
    for left in range(len(symbols), 0, -1):
        # The shortest that leaves room for the rest at 16 bits, or somewhat longer.
        least = next(length for length in range(1, 17) if room - (1 << 16 - length) >= left)
        lengths.append(min(max(least + rng.choice((0, 0, 1, 2)), lengths[-1] if lengths else 1), 16))
        room -= 1 << 16 - lengths[-1]
    counts = [lengths.count(length) for length in range(1, 17)]
    if max(counts) > 255:
        return table(rng, symbols)
    return counts, symbols, codes(lengths, symbols)


@cache
def standard() -> list[tuple[Any, Any]]:
    """Annex K's tables, which a decoder takes where a file brings none: [(dc, ac)] of luminance and chrominance."""
    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG")
    raw, at, found = out.getvalue(), 2, {}
    while raw[at + 1] != 0xDA:
        size = int.from_bytes(raw[at + 2 : at + 4])
        if raw[at + 1] == 0xC4:
            counts = list(raw[at + 5 : at + 21])
            symbols = list(raw[at + 21 : at + 2 + size])
            lengths = [length for length, count in enumerate(counts, 1) for _ in range(count)]
            found[raw[at + 4]] = (counts, symbols, codes(lengths, symbols))
        at += 2 + size
    return [(found[0x00], found[0x10]), (found[0x01], found[0x11])]


def codes(lengths, symbols):
    made, code, before = {}, 0, 0
    for symbol, length in zip(symbols, lengths, strict=True):
        code <<= length - before
        made[symbol], before = (code, length), length
        code += 1
    return made


def segment(marker, body):
    return struct.pack(">BBH", 255, marker, len(body) + 2) + body


def size_of(value):
    return abs(value).bit_length()


def low(value, bits):
    """The bits that follow a size: a negative value is one less."""
    return value if value >= 0 else value + (1 << bits) - 1


class Frame:
    """A picture of random coefficients. `factors`: (across, down) of each component."""

    def __init__(self, rng, width, height, factors, loud=1.0):
        self.rng, self.width, self.height, self.factors = rng, width, height, factors
        self.across, self.down = max(h for h, _ in factors), max(v for _, v in factors)
        self.mcus = -(-width // (8 * self.across)), -(-height // (8 * self.down))
        # What the file has of each component in a scan of its own, and in one with others.
        self.alone = [(-(-(-(-width * h // self.across)) // 8), -(-(-(-height * v // self.down)) // 8)) for h, v in factors]
        self.blocks = []
        for h, v in factors:
            columns, rows = self.mcus[0] * h, self.mcus[1] * v
            level = rng.randrange(-60, 60)
            plane = []
            for _ in range(columns * rows):
                block = [0] * 64
                level = max(-100, min(100, level + rng.randrange(-25, 26)))
                block[0] = level
                for _ in range(rng.choice((0, 1, 3, 8, 20))):
                    at = min(int(rng.expovariate(0.15)) + 1, 63)
                    block[at] = int(rng.gauss(0, loud * 12 / (1 + at / 4)))
                plane.append(block)
            self.blocks.append((columns, plane))

    def places(self, members):
        """The blocks of a scan, MCU by MCU: lists of (component, block)."""
        if len(members) == 1:
            (only,) = members
            columns, plane = self.blocks[only]
            across, down = self.alone[only]
            return [[(only, plane[y * columns + x])] for y in range(down) for x in range(across)]
        out = []
        for my in range(self.mcus[1]):
            for mx in range(self.mcus[0]):
                mcu = []
                for member in members:
                    (h, v), (columns, plane) = self.factors[member], self.blocks[member]
                    mcu += [(member, plane[(my * v + y) * columns + mx * h + x]) for y in range(v) for x in range(h)]
                out.append(mcu)
        return out


class Scan:
    """One scan's entropy-coded data, of symbols first (the tables follow from nothing but their set)."""

    def __init__(self, frame, members, first=0, last=63, high=0, low_bit=0, progressive=False):
        self.frame, self.members, self.progressive = frame, members, progressive
        self.first, self.last, self.high, self.low_bit = first, last, high, low_bit

    def bytes(self, dc, ac, restart):
        self.bits, self.dc, self.ac, self.run, self.kept = Bits(), dc, ac, 0, []
        before = dict.fromkeys(self.members, 0)
        for number, mcu in enumerate(self.frame.places(self.members)):
            if restart and number and number % restart == 0:
                self.flush()
                self.bits.align()
                self.bits.out += bytes([255, 0xD0 + (number // restart - 1) % 8])
                before = dict.fromkeys(self.members, 0)
            for member, block in mcu:
                if self.first == 0:
                    before[member] = self.dc_of(member, block[0], before[member])
                if self.last and not self.progressive:
                    self.sequential(member, block)
                elif self.last and self.high == 0:
                    self.spectral(block)
                elif self.last:
                    self.refined(block)
        self.flush()
        self.bits.align()
        return bytes(self.bits.out)

    def symbol(self, tables, value):
        self.bits.put(*tables[value])

    def dc_of(self, member, value, before):
        value = value >> self.low_bit
        if self.high:
            self.bits.put(value & 1, 1)
            return before
        size = size_of(value - before)
        self.symbol(self.dc[member], size)
        self.bits.put(low(value - before, size), size)
        return value

    def sequential(self, member, block):
        run, end = 0, max((k for k in range(1, 64) if block[k]), default=0)
        for value in block[1 : end + 1]:
            if value == 0:
                run += 1
                continue
            while run > 15:
                self.symbol(self.ac[member], 0xF0)
                run -= 16
            size = size_of(value)
            self.symbol(self.ac[member], run << 4 | size)
            self.bits.put(low(value, size), size)
            run = 0
        if end < 63:
            self.symbol(self.ac[member], 0)

    def flush(self):
        if self.run:
            size = self.run.bit_length() - 1
            self.symbol(self.ac[self.members[0]], size << 4)
            self.bits.put(self.run, size)
            self.run = 0
        for bit in self.kept:
            self.bits.put(bit, 1)
        self.kept = []

    def spectral(self, block):
        tables, run = self.ac[self.members[0]], 0
        for k in range(self.first, self.last + 1):
            value = abs(block[k]) >> self.low_bit
            if value == 0:
                run += 1
                continue
            self.flush()
            while run > 15:
                self.symbol(tables, 0xF0)
                run -= 16
            size = value.bit_length()
            self.symbol(tables, run << 4 | size)
            self.bits.put(low(value if block[k] > 0 else -value, size), size)
            run = 0
        if run:
            self.run += 1
            if self.run == 0x7FFF:
                self.flush()

    def refined(self, block):
        tables, run, kept = self.ac[self.members[0]], 0, []
        values = [abs(value) >> self.low_bit for value in block]
        end = max((k for k in range(self.first, self.last + 1) if values[k] == 1), default=0)
        for k in range(self.first, self.last + 1):
            value = values[k]
            if value == 0:
                run += 1
                continue
            while run > 15 and k <= end:
                self.flush()
                self.symbol(tables, 0xF0)
                run -= 16
                for bit in kept:
                    self.bits.put(bit, 1)
                kept = []
            if value > 1:
                kept.append(value & 1)
                continue
            self.flush()
            self.symbol(tables, run << 4 | 1)
            self.bits.put(int(block[k] > 0), 1)
            for bit in kept:
                self.bits.put(bit, 1)
            run, kept = 0, []
        if run or kept:
            self.run += 1
            self.kept += kept
            if self.run == 0x7FFF or len(self.kept) > 900:
                self.flush()


def script(rng, count, factors, progressive):
    """Scans as (members, first, last, high, low): every order and split that the standard allows, at random."""
    fits = sum(h * v for h, v in factors) <= 10
    everyone = list(range(count))
    if not progressive:
        if fits and rng.random() < 0.5:
            return [(everyone, 0, 63, 0, 0)]
        rng.shuffle(everyone)
        parts, rest = [], everyone
        while rest:
            take = rng.choice((1, 1, 2)) if len(rest) > 1 else 1
            part = sorted(rest[:take])
            if sum(factors[i][0] * factors[i][1] for i in part) > 10:
                part = part[:1]
            parts.append((part, 0, 63, 0, 0))
            rest = [i for i in rest if i not in part]
        return parts
    groups = [everyone] if fits and rng.random() < 0.6 else [[i] for i in everyone]
    start = rng.choice((0, 0, 1, 2))
    first = [(group, 0, 0, 0, start) for group in groups]
    rest = []
    for step in range(start, 0, -1):
        rest += [(group, 0, 0, step, step - 1) for group in groups]
    chains = [rest]
    for member in everyone:
        edges = [1, *sorted(rng.sample(range(2, 63), rng.choice((0, 0, 1, 2)))), 64]
        for a, b in zip(edges, edges[1:], strict=False):
            start = rng.choice((0, 0, 1, 2, 3))
            chains.append([([member], a, b - 1, 0, start), *(([member], a, b - 1, s, s - 1) for s in range(start, 0, -1))])
    # Chains one among the other, each in its own order.
    out = list(first)
    while chains := [chain for chain in chains if chain]:
        out.append(rng.choice(chains).pop(0))
    return out


def jpeg(seed, most=40, **said):
    """A file from a seed, and what it is in words. `said` fixes what would be drawn."""
    rng = random.Random(seed)

    def draw(name, *choices):
        value = rng.choice(choices)
        return said.get(name, value)

    count = draw("components", 1, 3, 3, 3, 3, 4)
    width, height = draw("width", rng.randint(1, most)), draw("height", rng.randint(1, most))
    usual = [[(1, 1)] * 3, [(2, 1), (1, 1), (1, 1)], [(2, 2), (1, 1), (1, 1)], [(1, 2), (1, 1), (1, 1)], [(4, 1), (1, 1), (1, 1)]]
    odd = [tuple(rng.choice((1, 1, 2, 2, 3, 4)) for _ in "hv") for _ in range(count)]
    common = rng.choice(usual) + ([rng.choice(((1, 1), (2, 2)))] if count == 4 else [])
    factors = draw("factors", common[:count] if count > 1 else [(1, 1)], odd if rng.random() < 0.6 else common[:count])
    progressive = draw("progressive", False, True)
    scans = said.get("scans") or script(rng, count, factors, progressive)
    restart = draw("restart", 0, 0, 0, 1, 2, 3, 7)
    jfif = draw("jfif", True, False)
    adobe = draw("adobe", None, None, None, 0, 1, 2, 3)
    names = draw("names", [1, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3], [82, 71, 66, 65], [1, 34, 35, 4], [7, 9, 200, 3])
    tables = draw("tables", "one", "own", "standard", "none")
    if progressive and tables in ("standard", "none"):
        tables = "own"
    extended = draw("extended", False, False, True)
    fill = draw("fill", 0, 0, 0, 1, 3)
    frame = Frame(rng, width, height, factors, loud=draw("loud", 1, 1, 1, 4))

    out = bytearray(b"\xff\xd8")
    if jfif:
        out += segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    if adobe is not None:
        out += segment(0xEE, adobe if isinstance(adobe, bytes) else b"Adobe\0\x64\0\0\0\0" + bytes([adobe]))
    out += said.get("between", b"")
    if draw("comment", False, False, True):
        out += segment(0xFE, b"made by a test \xff\xd9")
    quantum = [[rng.randint(1, 9) + k // rng.choice((8, 16)) for k in range(64)] for _ in range(2)]
    for number, values in enumerate(quantum):
        out += segment(0xDB, bytes([number, *values]))
    body = struct.pack(">BHHB", 8, height, width, count)
    for i, (h, v) in enumerate(factors):
        body += bytes([names[i], h << 4 | v, min(i, 1)])
    out += b"\xff" * fill + segment(0xC2 if progressive else 0xC1 if extended else 0xC0, body)

    # Symbols that any of these values needs; 0xf0 and runs of blocks too.
    sizes = range(1, 12)
    runs = [r << 4 | s for r in range(16) for s in sizes] + ([r << 4 for r in range(16)] if progressive else [0, 0xF0])
    current = None
    for number, (members, first, last, high, low_bit) in enumerate(scans):
        if number == 0 or rng.random() < 0.3 or current is None:
            kinds = 2 if tables == "own" else 1
            drawn = [(table(rng, range(12)), table(rng, runs)) for _ in range(kinds)]
            current = standard() if tables in ("standard", "none") else drawn
            for slot, (dc, ac) in enumerate(current if tables != "none" else []):
                out += segment(0xC4, bytes([slot, *dc[0], *dc[1]]))
                out += segment(0xC4, bytes([0x10 | slot, *ac[0], *ac[1]]))
        if number == 0 or rng.random() < 0.2:
            interval = restart if number == 0 else rng.choice((restart, 0))
            if restart or interval:
                out += segment(0xDD, struct.pack(">H", interval))
        slots = {member: min(member, len(current) - 1) for member in members}
        scan = Scan(frame, members, first, last, high, low_bit, progressive)
        body = bytes([len(members)])
        for member in members:
            body += bytes([names[member], slots[member] * 0x11])
        out += segment(0xDA, body + bytes([first, last, high << 4 | low_bit]))
        dc = {member: current[slots[member]][0][2] for member in members}
        ac = {member: current[slots[member]][1][2] for member in members}
        out += scan.bytes(dc, ac, interval)
    out += b"\xff\xd9"
    how = "progressive" if progressive else "sequential"
    words = f"{width}x{height} {factors} {how} {[s[0] for s in scans][:4]} of {len(scans)} {restart=} {jfif=} {adobe=} {tables=}"
    return bytes(out), words


def pillows(seed: int, size: tuple[int, int]) -> bytes:
    """A file that Pillow writes: any mode, quality, subsampling, progressive or not, with restarts or without."""
    from PIL import Image

    rng = random.Random(seed)
    small = Image.frombytes("RGB", (5, 4), rng.randbytes(60))
    shown = small.resize(size, rng.choice((Image.Resampling.BICUBIC, Image.Resampling.NEAREST)))
    options: dict[str, Any] = {"quality": rng.choice((1, 30, 75, 92, 100)), "subsampling": rng.randrange(3)}
    options |= {"progressive": rng.random() < 0.5, "optimize": rng.random() < 0.5}
    if rng.random() < 0.4:
        options["restart_marker_blocks"] = rng.choice((1, 2, 5))
    out = io.BytesIO()
    shown.convert(rng.choice(("RGB", "RGB", "L", "CMYK", "YCbCr"))).save(out, "JPEG", **options)
    return out.getvalue()


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """One thing that happens to files: bits change, bytes are lost or come in, the end is lost or put on too early."""
    begin = raw.index(b"\xff\xda") + 10
    at = rng.randrange(begin, max(len(raw) - 2, begin + 1))
    return rng.choice(
        (
            raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :],
            raw[:at] + raw[at + rng.randrange(1, 4) :],
            raw[:at],
            raw[:at] + b"\xff\xd9",
            raw[:-2] + rng.randbytes(5).replace(b"\xff", b"") + raw[-2:],
            raw + rng.randbytes(20),
        )
    )


def beside_pillow(place: Path, files: dict[str, bytes], size: tuple[int, int], hurt: bool = False) -> tuple[list[str], Counter[str]]:
    """Opens files of one size as a folder: (what is wrong, how often what came out). Right is what Pillow makes of a
    file, or a refusal that says why."""
    import numpy as np
    from PIL import Image

    import lossfeed as lf

    for name, raw in files.items():
        path = place / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    # The first that can be read says the size.
    Image.new("RGB", size).save(place / "all" / "0.png")
    data = lf.open(place, mode="rgb")
    wrong, counts = [], Counter()
    for i in range(len(data)):
        name = data.name(i).rsplit("/", 1)[1]
        if name == "0.png":
            continue
        raw = files[name]
        try:
            shown = Image.open(io.BytesIO(raw))
            # Of 16 bits of gray the high byte: Pillow's own conversion makes all above 255 white.
            deep = (np.asarray(shown) >> 8).astype(np.uint8) if shown.mode.startswith("I") else None
            want = np.asarray(shown.convert("RGB")) if deep is None else deep[..., None].repeat(3, -1)
        except Exception:  # noqa: BLE001 - whatever Pillow says of a file that it does not read
            want = None
        try:
            got = np.asarray(data[i][0])
        except lf.SampleError as error:
            known = NOT_READ + (HURT if hurt else ())
            if "is not read: " in str(error) or hurt:
                counts["refused" if want is not None else "refused by both"] += 1
            if want is not None and not any(words in str(error) for words in known):
                wrong.append(f"{name}: {error}")
            continue
        if want is None:
            # libjpeg gives some damage up that this decoder reads over.
            counts["delivered alone"] += 1
            if not hurt:
                wrong.append(f"{name}: Pillow does not read it")
        elif got.shape != want.shape or (got != want).any():
            wrong.append(f"{name}: {np.abs(got.astype(int) - want).max()} levels off")
        else:
            counts["equal"] += 1
    return wrong, counts


def drawn(seed: int, place: Path, count: int = 8) -> tuple[list[str], Counter[str]]:
    """One size, and files of it: from here, from Pillow, and damaged ones, each beside Pillow."""
    rng = random.Random(seed)
    size = rng.randint(1, 40), rng.randint(1, 40)
    files, said = {}, {}
    for k in range(count):
        files[f"made-{k}.jpg"], said[f"made-{k}.jpg"] = jpeg(1000 * seed + k, width=size[0], height=size[1])
        files[f"pillow-{k}.jpg"] = pillows(1000 * seed + k, size)
    wrong, counts = beside_pillow(place / "sound", files, size)
    hurt = {f"hurt-{name}": damaged(raw, rng) for name, raw in files.items()}
    worse, others = beside_pillow(place / "hurt", hurt, size, hurt=True)
    problems = [f"seed {seed}, {size}: {w} {said.get(w.split(':')[0].removeprefix('hurt-'), '')}" for w in wrong + worse]
    return problems, counts + Counter({f"damaged: {what}": n for what, n in others.items()})

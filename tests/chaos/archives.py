"""Tar archives over the product of formats, kinds of members and names, written by hand: tarfile writes few of them."""

from __future__ import annotations

import random
import tarfile

BLOCK = 512
#: ustar's and GNU's mark, and that of what came before them.
MAGIC = {"ustar": b"ustar\x0000", "gnu": b"ustar  \0", "v7": bytes(8)}


def number(value: int, width: int, rng: random.Random) -> bytes:
    """In octal digits as writers pad them, or in bytes."""
    how = rng.randrange(5)
    if how == 0:
        return (0x80 << 8 * (width - 1) | value).to_bytes(width, "big")
    digits = f"{value:o}".encode()
    return {1: digits.rjust(width - 1) + b"\0", 2: digits.rjust(width - 1, b"0") + b" "}.get(how, digits.rjust(width - 1, b"0") + b"\0")


def header(name: bytes, kind: bytes, size: int, rng: random.Random, *, link: bytes = b"", form: str = "ustar", tail: bytes = b"", blank: bool = False) -> bytes:
    """A header's block; `tail` is what GNU has from byte 386 on."""
    prefix = b""
    if form == "ustar" and len(name) > 100 and b"/" in name:
        prefix, name = name.rsplit(b"/", 1)
    block = bytearray(BLOCK)
    block[:100] = name[:100].ljust(100, b"\0")
    if not blank:
        block[100:124] = b"0000644\x00" + b"0001750\x00" * 2
        block[124:136] = number(size, 12, rng)
        block[136:148] = b"14371573424\0"
    block[156:157] = kind
    block[157:257] = link[:100].ljust(100, b"\0")
    block[257:265] = MAGIC[form]
    if form == "ustar":
        block[345:500] = prefix[:155].ljust(155, b"\0")
    block[386 : 386 + len(tail)] = tail
    total = sum(block) + 8 * 32 if rng.random() < 0.8 else sum((byte & 127) - (byte & 128) for byte in block) + 8 * 32
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def record(key: str, value: bytes) -> bytes:
    """A PAX record, which begins with its own length."""
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest


def extended(records: list[tuple[str, bytes]], rng: random.Random, kind: bytes = b"x") -> bytes:
    body = b"".join(record(key, value) for key, value in records)
    return header(b"PaxHeaders/x", kind, len(body), rng) + padded(body)


def picture(rng: random.Random) -> bytes:
    """A PGM, told by its content, of which many rows are black."""
    rows = [bytes([rng.randrange(1, 256)] * 40) if rng.random() < 0.5 else bytes(40) for _ in range(40)]
    return b"P5 40 40 255\n" + b"".join(rows) + bytes(700)


def parts_of(whole: bytes, rng: random.Random) -> list[tuple[int, int]]:
    """Where a file's bytes lie that are not in holes; some zeros are stored all the same."""
    parts: list[tuple[int, int]] = []
    for at in range(0, len(whole), 40):
        piece = whole[at : at + 40]
        if not any(piece) and rng.random() < 0.9:
            continue
        if parts and sum(parts[-1]) == at:
            parts[-1] = parts[-1][0], parts[-1][1] + len(piece)
        else:
            parts.append((at, len(piece)))
    return parts


def sparse(name: bytes, whole: bytes, parts: list[tuple[int, int]], rng: random.Random, form: str) -> bytes:
    """A sparse file of GNU's own format or of PAX 0.0, 0.1 and 1.0."""
    stored = b"".join(whole[at : at + size] for at, size in parts)
    flat = [n for pair in parts for n in pair]
    if form == "gnu":
        entries = [b"%011o\0%011o\0" % pair for pair in [*parts, (len(whole), 0)]]
        tail = b"".join(entries[:4]).ljust(96, b"\0") + bytes([len(entries) > 4]) + b"%011o\0" % len(whole)
        out = header(name, b"S", len(stored), rng, form="gnu", tail=tail)
        for at in range(4, len(entries), 21):
            out += b"".join(entries[at : at + 21]).ljust(504, b"\0") + bytes([at + 21 < len(entries)]) + bytes(7)
        return out + padded(stored)
    numbers = [str(n).encode() for n in flat]
    if form == "0.0":
        records = [("GNU.sparse.size", str(len(whole)).encode()), ("GNU.sparse.numblocks", str(len(parts)).encode())]
        for at, size in parts:
            records += [("GNU.sparse.offset", str(at).encode()), ("GNU.sparse.numbytes", str(size).encode())]
        return extended(records, rng) + header(name, b"0", len(stored), rng) + padded(stored)
    if form == "0.1":
        records = [
            ("GNU.sparse.size", str(len(whole)).encode()), ("GNU.sparse.numblocks", str(len(parts)).encode()),
            ("GNU.sparse.map", b",".join(numbers)), ("GNU.sparse.name", name),
        ]
        return extended(records, rng) + header(b"GNUSparseFile.1/x", b"0", len(stored), rng) + padded(stored)
    records = [
        ("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.name", name),
        ("GNU.sparse.realsize", str(len(whole)).encode()),
    ]
    within = padded(b"\n".join([str(len(parts)).encode(), *numbers]) + b"\n")
    return extended(records, rng) + header(b"GNUSparseFile.1/x", b"0", len(within) + len(stored), rng) + within + padded(stored)


def name_of(rng: random.Random, k: int) -> bytes:
    """A picture's name in one of three classes, some of whose bytes are no UTF-8, and some long."""
    folder = rng.choice((b"c", b"d", "é".encode(), b"\xe4", b"\xf6", b"x y=1", b"deep/" * rng.choice((1, 30)) + b"c"))
    stem = rng.choice((b"%d" % k, b"n\xff%d" % k, b"\xc3\xbc%d" % k, b"l" * rng.choice((10, 120)) + b"%d" % k))
    return rng.choice((b"", b"", b"./")) + folder + b"/" + stem + b".png"


def archive(rng: random.Random, pictures: list[bytes]) -> tuple[bytes, dict[str, int]]:
    """An archive of these pictures and members of other kinds; how many of each kind it has."""
    out, names, counts = bytearray(), [], {}
    if rng.random() < 0.3:
        out += header(b"a label", b"V", 0, rng, form="gnu", blank=rng.random() < 0.5)
    if rng.random() < 0.3:
        out += extended([("comment", b"of all members")], rng, b"g")
    for k, picture in enumerate(pictures):
        name = name_of(rng, k)
        kind = rng.choice(("file", "file", "old", "7", "unknown", "gnu", "0.0", "0.1", "1.0", "hard", "soft", "hard after"))
        long = rng.choice(("pax", "gnu")) if len(name) > 99 or kind in ("hard", "soft", "hard after") or rng.random() < 0.2 else "none"
        if kind in ("hard", "soft") and not names:
            kind = "file"
        target = rng.choice(names) if names else b""
        if kind == "soft":
            # From the link's own folder.
            depth = len([part for part in name.split(b"/")[:-1] if part not in (b"", b".")])
            target = b"../" * depth + target.removeprefix(b"./")
        if kind == "hard after":
            target = b"c/comes later.png"
        counts[kind] = counts.get(kind, 0) + 1
        before = b""
        if long == "pax":
            records = [("path", name)] + ([("linkpath", target)] if kind in ("hard", "soft", "hard after") else [])
            before = extended(records, rng)
        elif long == "gnu":
            before = header(b"././@LongLink", b"L", len(name) + 1, rng, form="gnu") + padded(name + b"\0")
            if kind in ("hard", "soft", "hard after"):
                before += header(b"././@LongLink", b"K", len(target) + 1, rng, form="gnu") + padded(target + b"\0")
        form = "gnu" if long == "gnu" else rng.choice(("ustar", "gnu", "v7"))
        short = name if long == "none" else b"short%d" % k
        if kind in ("gnu", "0.0", "0.1", "1.0"):
            # Records of two PAX headers do not add up, and 0.1 and 1.0 have the name among theirs.
            named = before if kind == "gnu" or (kind == "0.0" and long == "gnu") else b""
            name = name if named or kind in ("0.1", "1.0") else name[:99]
            out += named + sparse(short if named else name, picture, parts_of(picture, rng), rng, kind)
        elif kind in ("hard", "soft", "hard after"):
            out += before + header(short, b"2" if kind == "soft" else b"1", 0, rng, link=target, form=form)
        else:
            flag = {"old": b"\0", "7": b"7", "unknown": rng.choice((b"Z", b"Y", b"8"))}.get(kind, b"0")
            out += before + header(short, flag, len(picture), rng, form=form) + padded(picture)
        names.append(name)
        if rng.random() < 0.1:
            out += header(b"some/folder/", b"5", 0, rng) + header(b"c/fifo.png", b"6", 0, rng)
    out += header(b"c/comes later.png", b"0", len(pictures[0]), rng) + padded(pictures[0])
    return bytes(out) + bytes(rng.choice((1024, 10240 - len(out) % 10240))), counts


def by_tarfile(path: str) -> list[tuple[str, bytes]]:
    """Names and bytes of all pictures as Python's tarfile delivers them, in their order."""
    found = []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if not member.name.endswith(".png") or member.isfifo() or member.isdir():
                continue
            try:
                file = archive.extractfile(member)
            except KeyError:
                continue
            if file is not None:
                found.append((member.name.removeprefix("./"), file.read()))
    return found

"""Damage to bytes, drawn at random: what disks, cut transfers, and people who mean harm do to files. Pure."""

from __future__ import annotations

import random
import struct

#: Numbers that length fields, counts and offsets do not like.
ODD = (
    0,
    1,
    0x7F,
    0xFF,
    0x100,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x7FFFFFFFFFFFFFFF,
    0xFFFFFFFFFFFFFFFF,
)


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _hole(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randrange(1, 600)]


def _splice(data: bytearray, rng: random.Random) -> None:
    start, to = rng.randrange(len(data)), rng.randrange(len(data))
    part = data[start : start + rng.randrange(1, 600)]
    data[to : to + (len(part) if rng.random() < 0.5 else 0)] = part


def _number(data: bytearray, rng: random.Random) -> None:
    form = rng.choice(("<I", ">I", "<Q", ">Q", "<H", ">H"))
    size = struct.calcsize(form)
    value = rng.choice(ODD) & (2 ** (8 * size) - 1)
    # Fields lie near the beginning more often than elsewhere.
    most = rng.choice((64, 600, len(data)))
    at = rng.randrange(max(1, min(most, len(data) - size)))
    data[at : at + size] = struct.pack(form, value)


def _fill(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    size = min(rng.randrange(1, 5000), len(data) - start)
    data[start : start + size] = bytes([rng.choice((0, 0xFF))]) * size


def _noise(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    size = min(rng.randrange(1, 64), len(data) - start)
    data[start : start + size] = rng.randbytes(size)


def _append(data: bytearray, rng: random.Random) -> None:
    data += rng.randbytes(rng.randrange(1, 2000))


KINDS = (_flip, _flip, _cut, _hole, _splice, _number, _number, _fill, _noise, _append)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """`data` with one or a few damages; never the same bytes."""
    while True:
        found = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            if found:
                rng.choice(KINDS)(found, rng)
        if found != data:
            return bytes(found)


def fnv1a(data: bytes) -> int:
    """FNV-1a, 64 bits: what a state is sealed with. Whoever means harm seals it again."""
    found = 0xCBF29CE484222325
    for byte in data:
        found = ((found ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return found

"""JPEGs beside Pillow: every pixel is libjpeg-turbo's, or the file is refused by what it is; what is cut is never made up."""

import base64
import io
import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lossfeed as lf

sys.path.append(str(Path(__file__).resolve().parents[1]))

from chaos import jpegs  # noqa: E402

Image = pytest.importorskip("PIL.Image")

SIZE = (31, 22)
#: Arithmetic coding, sequential and progressive, and lossless: 12 × 9 pixels, 4:2:0. Pillow reads them and writes none.
ARITHMETIC = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpR"
    "Uk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//yQARCAAJAAwDASIA"
    "AhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AEHpEsKg/ZMc4cHYRIqoOCo9Xj0SjFOgnMtuE7TZnT+g/9k="
)
PROGRESSIVE = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQFdBRkxOUlNSMj5aYVpQYEpR"
    "Uk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT09PT0//ygARCAAJAAwDASIA"
    "AhEBAxEB/8wABgAQARD/2gAMAwEAAhADEAAAAf6P7PZU/8wABBAF/9oACAEBAAEFAhgZFlgogP/MAAQRBf/aAAgBAwEBPwEVmLgbYP/MAAQRBf/aAAgB"
    "AgEBPwE91bj/zAAEEAX/2gAIAQEABj8CwP/MAAQQBf/aAAgBAQABPyEfWFfw/9oADAMBAAIAAwAAABAc/8wABBEF/9oACAEDAQE/EPT/zAAEEQX/2gAI"
    "AQIBAT8Qqv/MAAQQBf/aAAgBAQABPxAnhF+kLuD/2Q=="
)
LOSSLESS = (
    "/9j/7gAOQWRvYmUAZAAAAAAA/8MAEQgACQAMA1IRAEcRAEIRAP/EABcAAQEBAQAAAAAAAAAAAAAAAAAFCAb/2gAMA1IARwBCAAEAAM/5/wCZqFQqFQqF"
    "QqFQqFQqCyqFQqFQqFQqFQqFQqCyqFQqFQqFQqFQqFQqCyqFQqFQqFQqFQqFQqCyqFQqFQqFQqFQqFQqCyqFQqFQqFQqFQqFQqCyqFQqFQqFQqFQqFQq"
    "CyqFQqFQqFQqFQqFQqCyqFQqFQqFQqFQqFQqH//Z"
)


def test_files_of_every_make_have_libjpegs_pixels_or_a_reason(tmp_path):
    total = Counter()
    for seed in range(16):
        wrong, counts = jpegs.drawn(seed, tmp_path / str(seed))
        assert not wrong, "\n".join(wrong)
        total += counts
    # Most are read, and the damage is damage.
    assert total["equal"] > 200 and total["refused"] < 30, total
    assert min(total["damaged: equal"], total["damaged: refused"], total["damaged: refused by both"]) > 40, total


def color(**said):
    """A file of three components and `SIZE`."""
    return jpegs.jpeg(5, components=3, width=SIZE[0], height=SIZE[1], names=[1, 2, 3, 4], **{"fill": 0, **said})[0]


HALVED = [(2, 2), (1, 1), (1, 1)]
PLAIN = {"factors": HALVED, "progressive": False, "scans": [([0, 1, 2], 0, 63, 0, 0)], "restart": 0, "adobe": None, "jfif": True}
ALONE = [([number], 0, 63, 0, 0) for number in range(3)]
NARROW = {"components": 3, "width": 4, "height": 33, "factors": HALVED}


@pytest.mark.parametrize(
    "said",
    [
        {"scans": ALONE},
        {"scans": [ALONE[2], ALONE[0], ALONE[1]]},
        {"factors": [(2, 1), (1, 1), (1, 1)], "scans": [ALONE[1], ALONE[2], ALONE[0]]},
        {"factors": [(1, 1), (2, 1), (2, 1)]},
        {"factors": [(1, 1), (2, 2), (1, 2)]},
        {"factors": [(3, 1), (1, 1), (1, 1)]},
        {"factors": [(4, 1), (1, 1), (2, 1)]},
        {"adobe": 0},
        {"adobe": 0, "jfif": False},
        {"adobe": 3, "jfif": False},
        {"adobe": b"Adobe\0\x64\0\0\0\0", "jfif": False},
        {"adobe": b"Adobe\0\x64\0\0\0\0\0\0\0", "jfif": False},
        {"between": b"\0\0\x01\x02"},
        {"tables": "none"},
        {"tables": "standard"},
        {"restart": 3},
    ],
    ids=repr,
)
def test_sound_files_that_decoders_trip_over(tmp_path, said):
    assert jpegs.beside_pillow(tmp_path, {"a.jpg": color(**PLAIN | said)}, SIZE) == ([], {"equal": 1})


@pytest.mark.parametrize(
    ("factors", "adobe"),
    [
        ([(1, 1)] * 4, 2),
        ([(2, 2), (1, 1), (1, 1), (2, 2)], 2),
        ([(2, 1), (1, 1), (1, 1), (1, 1)], 0),
        ([(1, 1), (1, 2), (2, 1), (1, 1)], None),
    ],
)
def test_four_components(tmp_path, factors, adobe):
    raw, _ = jpegs.jpeg(3, components=4, width=SIZE[0], height=SIZE[1], factors=factors, adobe=adobe, loud=1)
    assert jpegs.beside_pillow(tmp_path, {"a.jpg": raw}, SIZE) == ([], {"equal": 1})


def test_narrow_ones_repeat_their_colours_as_libjpeg_does(tmp_path):
    raw, _ = jpegs.jpeg(9, **NARROW)
    assert jpegs.beside_pillow(tmp_path, {"a.jpg": raw}, (4, 33)) == ([], {"equal": 1})


def test_arithmetic_coding_is_read_and_lossless_is_refused_by_name(tmp_path):
    files = {f"{n}.jpg": base64.b64decode(text) for n, text in enumerate((ARITHMETIC, PROGRESSIVE))}
    assert jpegs.beside_pillow(tmp_path / "read", files, (12, 9)) == ([], {"equal": 2})
    assert refusal(tmp_path / "not", base64.b64decode(LOSSLESS), (12, 9)).count("it uses lossless coding") == 1


def refusal(place, raw, size=SIZE):
    (place / "all").mkdir(parents=True)
    Image.new("RGB", size).save(place / "all" / "0.png")
    (place / "all" / "a.jpg").write_bytes(raw)
    with pytest.raises(lf.SampleError) as caught:
        lf.open(place, mode="rgb")[1]
    return str(caught.value)


def changed(raw, at, value):
    return raw[:at] + bytes([value]) + raw[at + 1 :]


def test_what_is_not_read_says_why_and_what_to_do(tmp_path):
    plain, restarts = color(**PLAIN), color(**PLAIN | {"restart": 1})
    frame = plain.index(b"\xff\xc0" if b"\xff\xc0\0\x11" in plain else b"\xff\xc1")
    first = restarts.index(b"\xff\xd0")
    progressive = color(**PLAIN | {"factors": [(1, 1), (2, 2), (1, 1)], "progressive": True, "scans": None})
    for number, (raw, reason) in enumerate(
        (
            (color(**PLAIN | {"scans": [([0, 1], 0, 63, 0, 0), ALONE[2]]}), "it holds 3 colour components, 2 of them in one scan"),
            (changed(plain, frame + 4, 12), "its samples have 12 bits, not 8"),
            (changed(plain, frame + 1, 0xC5), "it uses hierarchical coding"),
            (changed(plain, frame + 14, 0x32), "its components are sampled by 2x2, 3x2, 1x1, which are not multiples"),
            (restarts[:first] + restarts[first + 2 :], "its restart marker 0 is missing or out of order"),
            (changed(restarts, first + 1, 0xD5), "its restart marker 0 is missing or out of order"),
            (progressive[: progressive.rindex(b"\xff\xda")] + b"\xff\xd9", "its last progressive scans are missing"),
        )
    ):
        said = refusal(tmp_path / str(number), raw)
        assert f"the JPEG of {len(raw)} bytes is not read: {reason}" in said, said
        assert said.count("convert it, for example by Pillow's") == 1 and "corrupt" not in said


def test_what_is_cut_is_refused_wherever_it_was_cut(tmp_path):
    thumbnail = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(thumbnail, "JPEG")
    with_one = color(**PLAIN)
    with_one = with_one[:2] + jpegs.segment(0xE1, b"Exif\0\0" + thumbnail.getvalue()) + with_one[2:]
    rng = random.Random(1)
    (tmp_path / "all").mkdir()
    Image.new("RGB", SIZE).save(tmp_path / "all" / "0.png")
    for name, raw in {"plain": color(**PLAIN), "thumbnail": with_one, "progressive": color(progressive=True)}.items():
        for cut in {1, 2, 3, 6, *rng.sample(range(4, len(raw) - 4), 20)}:
            (tmp_path / "all" / f"{name}-{cut}.jpg").write_bytes(raw[:-cut])
        # An end marker where it ends does not make it whole.
        scan = raw.index(b"\xff\xda") + 14
        (tmp_path / "all" / f"{name}-ended.jpg").write_bytes(raw[: (scan + raw.index(b"\xff", scan)) // 2] + b"\xff\xd9")
    data = lf.open(tmp_path, mode="rgb")
    assert len(data) > 60
    for i in range(1, len(data)):
        with pytest.raises(lf.SampleError, match="is truncated|last progressive scans"):
            data[i]


def test_gray_of_colour_is_torchvisions(tmp_path):
    torch = pytest.importorskip("torch")
    io_ = pytest.importorskip("torchvision.io")
    (tmp_path / "all").mkdir()
    files = [color(**PLAIN), color(**PLAIN | {"factors": [(1, 1), (2, 1), (2, 1)]}), color(**PLAIN | {"progressive": True, "scans": None})]
    for i, raw in enumerate(files):
        (tmp_path / "all" / f"{i}.jpg").write_bytes(raw)
    data = lf.open(tmp_path, mode="gray")
    for i, raw in enumerate(files):
        want = io_.decode_jpeg(torch.frombuffer(bytearray(raw), dtype=torch.uint8), mode=io_.ImageReadMode.GRAY)
        assert (np.asarray(data[i][0])[..., 0] == want[0].numpy()).all(), i

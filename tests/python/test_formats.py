"""Images of every format that is read, against Pillow: in class folders, in shards, with fields, in Parquet files, under
crops, in either form of the cache, and packed; damaged ones are bad samples."""

import io
import os
import struct
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import lossfeed as lf

sys.path.append(str(Path(__file__).resolve().parents[1]))

from chaos import pngs  # noqa: E402

Image = pytest.importorskip("PIL.Image")

SIZE = (31, 23)
N = 6
#: What Pillow is asked to write, under the ending that the file gets. All but "lossy.webp" lose nothing.
WRITTEN = {
    "png": {},
    "webp": {"lossless": True},
    "lossy.webp": {"quality": 85},
    "gif": {},
    "bmp": {},
    "tif": {"compression": "tiff_lzw"},
    "tiff": {"compression": "tiff_adobe_deflate"},
    "ppm": {},
}
#: Lossy WebP may differ by so many levels.
LEVELS = {"lossy.webp": 0}


def picture(seed, size=SIZE):
    """Smooth, as photographs are, with a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[1], : size[0]]
    waves = [np.sin(x / (5 + c) + seed) * np.cos(y / (6 + c)) for c in range(3)]
    return Image.fromarray(np.clip(128 + 90 * np.stack(waves, -1) + rng.integers(-9, 9, (*size[::-1], 3)), 0, 255).astype(np.uint8))


def encoded(kind, seed, mode="RGB", size=SIZE, **keywords):
    out = io.BytesIO()
    shown = picture(seed, size).convert(mode)
    if kind == "gif" and mode != "L":
        shown = picture(seed, size).quantize(64)
    form = {"tif": "TIFF", "jpg": "JPEG"}.get(kind, kind.rsplit(".", 1)[-1].upper())
    form = {"PPM": "PPM", "PGM": "PPM"}.get(form, form)
    shown.save(out, form, **{**WRITTEN.get(kind, {}), **keywords})
    return out.getvalue()


def pillow(raw, mode="RGB"):
    pixels = np.asarray(Image.open(io.BytesIO(raw)).convert(mode))
    return pixels[..., None] if mode == "L" else pixels


def far(made, expected):
    assert made.shape == expected.shape and made.dtype == np.uint8
    return int(np.abs(made.astype(int) - expected.astype(int)).max())


def folder_of(place, files):
    for name, raw in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(raw)
    return place


def tar_of(path, files):
    with tarfile.open(path, "w") as archive:
        for name, raw in files:
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


def delivered(data, passes=1, **keywords):
    """Name and pixels of every sample, from the last of so many passes."""
    given = {}
    with lf.Loader(data, 4, **keywords) as loader:
        for _ in range(passes):
            given = {data.name(i): x for batch in loader for i, x in zip(batch.ids.tolist(), batch.data.numpy())}
    return given


@pytest.mark.parametrize("kind", list(WRITTEN))
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_pixels_are_pillows_in_folders_and_shards_and_in_both_forms_of_the_cache(tmp_path, kind, mode):
    files = {f"c{i % 2}/{i:02}.{kind}": encoded(kind, i) for i in range(N)}
    folder = lf.open(folder_of(tmp_path / "folder", files), mode=mode)
    shard = lf.open(tar_of(tmp_path / "s.tar", files.items()), mode=mode)
    for data in (folder, shard):
        for keywords in ({}, {"cache": 1.0, "cache_form": "decoded"}, {"cache": 1.0, "cache_form": "encoded"}):
            given = delivered(data, 2 if keywords else 1, **keywords)
            assert len(given) == N
            for name, pixels in given.items():
                raw = files["/".join(name.split("/")[-2:])]
                assert far(pixels, pillow(raw, "L" if mode == "gray" else "RGB")) <= LEVELS.get(kind, 0), name


def test_a_folder_of_many_formats_and_sizes_is_cropped_and_resized_as_pillow_does(tmp_path):
    kinds = [kind for kind in WRITTEN if kind != "lossy.webp"]
    sizes = [(31, 23), (23, 31), (40, 40), (57, 24)]
    files = {f"c/{i:02}.{kind}": encoded(kind, i, size=sizes[i % 4]) for i, kind in enumerate(kinds * 2)}
    data = lf.open(folder_of(tmp_path, files))
    assert len(data) == len(files)
    transform = lf.ImageTransform("uint8", layout="NHWC", resize=22, crop=20, random_crop=False)
    for form in ("encoded", None):
        keywords = {"cache": 1.0, "cache_form": form} if form else {}
        given = delivered(data, 2, transform=transform, **keywords)
        for name, pixels in given.items():
            shown = Image.open(io.BytesIO(files[name])).convert("RGB")
            w, h = shown.size
            w, h = (22, int(22 * h / w)) if w <= h else (int(22 * w / h), 22)
            left, top = round((w - 20) / 2.0), round((h - 20) / 2.0)
            expected = shown.resize((w, h), Image.BILINEAR).crop((left, top, left + 20, top + 20))
            # Two passes of rounding, in another order.
            assert far(pixels, np.asarray(expected)) <= 2, name
    resized = delivered(lf.open(tmp_path, resize=(9, 8)))
    for name, pixels in resized.items():
        shown = Image.open(io.BytesIO(files[name])).convert("RGB").resize((8, 9), Image.BILINEAR)
        assert far(pixels, np.asarray(shown)) <= 2, name


def test_alpha_is_dropped_palettes_are_looked_up_and_the_first_frame_is_taken(tmp_path):
    shown = picture(1)
    shown.putalpha(picture(2).convert("L"))
    files = {}
    for form, keywords in (("WEBP", {"lossless": True, "exact": True}), ("TIFF", {}), ("BMP", {})):
        out = io.BytesIO()
        shown.save(out, form, **keywords)
        files[f"alpha/{form}.{'tif' if form == 'TIFF' else form.lower()}"] = out.getvalue()
    for form, keywords in (("WEBP", {"lossless": True}), ("GIF", {})):
        out = io.BytesIO()
        frames = [picture(i).quantize(32) if form == "GIF" else picture(i) for i in range(3)]
        frames[0].save(out, form, save_all=True, append_images=frames[1:], **keywords)
        files[f"frames/{form}.{form.lower()}"] = out.getvalue()
    out = io.BytesIO()
    picture(7).quantize(200).save(out, "BMP")
    files["palette/0.bmp"] = out.getvalue()
    for name, pixels in delivered(lf.open(folder_of(tmp_path, files))).items():
        assert far(pixels, pillow(files[name])) == 0, name


def test_gray_images_are_one_channel_where_the_format_knows_gray(tmp_path):
    for kind, channels in (("bmp", 1), ("tif", 1), ("gif", 1), ("webp", 3)):
        files = {f"c/{i}.{kind}": encoded(kind, i, "L") for i in range(3)}
        data = lf.open(folder_of(tmp_path / kind, files))
        for name, pixels in delivered(data).items():
            assert pixels.shape == (*SIZE[::-1], channels)
            assert far(pixels, pillow(files[name], "L" if channels == 1 else "RGB")) == 0


def test_fields_take_pictures_of_every_format(tmp_path):
    kinds = ["webp", "tif", "bmp", "gif", "ppm", "png"]
    files = [(f"{i:02}.{end}", raw) for i, kind in enumerate(kinds) for end, raw in ((kind, encoded(kind, i)), ("txt", b"%d" % i))]
    path = tar_of(tmp_path / "s.tar", files)
    data = lf.open(path, fields={"image": ";".join(kinds), "caption": "txt"})
    (batch,) = lf.Loader(data, len(kinds), shuffle=False)
    for i, kind in enumerate(kinds):
        assert batch["caption"][i] == str(i)
        assert far(batch["image"][i].numpy(), pillow(dict(files)[f"{i:02}.{kind}"])) == 0
    with pytest.raises(lf.SettingsError, match="alternatives that are not of one kind"):
        lf.open(path, fields=("webp;txt",))


def test_parquet_pictures_of_every_format(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    raws = [encoded(kind, i) for i, kind in enumerate(WRITTEN) if kind != "lossy.webp"]
    parquet.write_table(pa.table({"webp": raws, "label": list(range(len(raws)))}), tmp_path / "p.parquet")
    data = lf.open(tmp_path / "p.parquet")
    (batch,) = lf.Loader(data, len(raws), shuffle=False)
    for i, raw in enumerate(raws):
        assert far(batch.data[i].numpy(), pillow(raw)) == 0


def test_what_is_packed_has_the_ending_of_its_content(tmp_path):
    kinds = ["png", "webp", "tif", "bmp", "gif", "ppm"]
    # The names lie.
    files = {f"c{i % 2}/{i:02}.jpg": encoded(kind, i) for i, kind in enumerate(kinds)}
    folder_of(tmp_path / "folder", files)
    argv = [sys.executable, "-m", "lossfeed", "pack", str(tmp_path / "folder"), str(tmp_path / "packed"), "--keep-order"]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
    (shard,) = (tmp_path / "packed").iterdir()
    with tarfile.open(shard) as archive:
        held = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}
    assert sorted(name.rsplit(".", 1)[1] for name in held) == sorted(kinds)
    for name, raw in held.items():
        assert raw in files.values() and Image.open(io.BytesIO(raw)).format.lower().startswith(name.rsplit(".", 1)[1][:3])
    assert len(delivered(lf.open(tmp_path / "packed"))) == len(files)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_png_pnm_and_webp_of_every_make_have_pillows_pixels(tmp_path):
    total = Counter()
    for seed in range(10):
        wrong, counts = pngs.drawn(seed, tmp_path / str(seed))
        assert not wrong, "\n".join(wrong)
        total += counts
    assert total == {"equal": 240}


def bombs():
    """Sixty thousand pixels each way, in about a hundred bytes."""
    side = 60000
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    yield "bmp", struct.pack("<2sIHHI", b"BM", 94, 0, 0, 54) + header + bytes(40)
    yield "ppm", b"P6 60000 60000 255 " + bytes(80)
    screen = struct.pack("<HH", side, side)
    yield "gif", b"GIF89a" + screen + b"\x80\0\0" + bytes(6) + b"\x2c\0\0\0\0" + screen + b"\0\x02\x02\x4c\x01\0\x3b"
    tags = ((256, side), (257, side), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, side), (279, 99))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    yield "tif", b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    webp = bytearray(encoded("lossy.webp", 0))
    at = webp.index(b"\x9d\x01\x2a")
    webp[at + 3 : at + 7] = b"\xff\x3f\xff\x3f"
    yield "webp", bytes(webp)


def test_damaged_images_and_bombs_are_bad_samples_by_name(tmp_path):
    files = {f"c/{i:02}.{kind}": encoded(kind, i) for i, kind in enumerate(WRITTEN)}
    bad = {}
    for kind in ("webp", "gif", "bmp", "tif", "ppm"):
        bad[f"c/cut.{kind}"] = encoded(kind, 1)[: len(encoded(kind, 1)) // 2]
    for kind, raw in bombs():
        assert len(raw) < 1500
        bad[f"c/bomb.{kind}"] = raw
    bad["c/text.webp"] = b"<html>404 Not Found</html>"
    data = lf.open(folder_of(tmp_path, files | bad))
    with pytest.raises(lf.SampleError, match=r"c/(cut|bomb|text)\.\w+"):
        list(lf.Loader(data, 4))
    loader = lf.Loader(data, 4, on_error="skip")
    given = {data.name(i) for batch in loader for i in batch.ids.tolist()}
    assert given == set(files)
    reasons = {b["name"]: b["reason"] for b in loader.bad_samples()}
    assert set(reasons) == set(bad)
    for name, reason in reasons.items():
        kind = name.rsplit(".", 1)[1]
        if "bomb" in name:
            assert "at most 67108864" in reason, reason
        elif "text" in name:
            assert "bytes are not an image in a supported format" in reason, reason
        else:
            named = {"webp": "WebP", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "ppm": "PNM"}[kind]
            assert f"the {named} of {len(bad[name])} bytes is" in reason and "truncated" in reason, reason


def test_a_dangling_link_or_a_name_that_is_not_utf8_does_not_fail_a_folder(tmp_path, caplog):
    files = {f"{c}/{i}.png": encoded("png", i) for c in "ab" for i in range(3)}
    data = lf.open(folder_of(tmp_path, files))
    healthy = [data.name(i) for i in range(len(data))]
    assert not caplog.records
    (tmp_path / "a" / "9.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "b" / "loop.png").symlink_to("loop.png")
    (tmp_path / "cc").symlink_to(tmp_path / "gone")
    with open(os.fsencode(tmp_path / "b") + b"/\xff.png", "wb") as file:
        file.write(encoded("png", 1))
    caplog.clear()
    data = lf.open(tmp_path)
    assert [data.name(i) for i in range(len(data))] == healthy
    assert len(delivered(data)) == len(healthy)
    (record,) = [r for r in caplog.records if "left out" in r.getMessage()]
    said = record.getMessage()
    assert "4 entries" in said and "3 links that lead nowhere, 1 names that are not UTF-8" in said
    assert "the first: cc is a broken link: repair or remove it" in said


def test_a_shard_that_is_a_dangling_link_is_never_left_out(tmp_path):
    tar_of(tmp_path / "s-0.tar", [("c/0.png", encoded("png", 0))])
    (tmp_path / "s-1.tar").symlink_to(tmp_path / "gone.tar")
    for place in (tmp_path, f"{tmp_path}/s-*.tar"):
        with pytest.raises(lf.SourceError, match=r"s-1\.tar in .* is a broken link: repair or remove it"):
            lf.open(place)
    (tmp_path / "other.txt").symlink_to(tmp_path / "gone.txt")
    assert len(lf.open(f"{tmp_path}/s-0*.tar")) == 1

"""Writes the small images of the decoder's tests, and what Pillow makes of each: NAME.rgb and NAME.l are the raw pixels
of convert("RGB") and convert("L"), rows of 17 pixels, 13 rows; resized.rgb is rgb.png at 9 by 7, BILINEAR. And the
picture that `lossfeed doctor` decodes: noise in octaves, about as many bits a pixel as a photograph.

What Pillow reads and cannot write (rows from top to bottom, planes, a frame within a larger screen) is written here byte
by byte."""

import pathlib
import struct

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
W, H = 17, 13
y, x = np.mgrid[0:H, 0:W]
# Smooth in all channels, as photographs mostly are: on noise two correct JPEG decoders differ by their upsampling
# alone.
smooth = np.stack([128 + 100 * np.sin(x / 5), 128 + 100 * np.cos(y / 4), 40 + 6 * x + 4 * y], -1).round().astype(np.uint8)
noise = np.random.default_rng(0).integers(0, 256, (H, W, 4), dtype=np.uint8)

rgb, gray = Image.fromarray(smooth), Image.fromarray(smooth[..., 0])
rgb.save(HERE / "rgb444.jpg", quality=95, subsampling=0)
rgb.save(HERE / "rgb420.jpg", quality=90, subsampling=2)
rgb.save(HERE / "progressive.jpg", quality=90, progressive=True)
gray.save(HERE / "gray.jpg", quality=90)
rgb.convert("CMYK").save(HERE / "cmyk.jpg", quality=95)
Image.fromarray(noise[..., :3]).save(HERE / "rgb.png")
Image.fromarray(noise).save(HERE / "rgba.png")
Image.fromarray(noise[..., 0]).save(HERE / "gray.png")
Image.fromarray(noise[..., :2], "LA").save(HERE / "gray-alpha.png")
Image.fromarray(noise[..., :3]).quantize(13).save(HERE / "palette.png", bits=4)
Image.fromarray(noise[..., :3]).quantize(40).save(HERE / "palette-transparent.png", transparency=3)
Image.fromarray(noise[..., 0] > 127).save(HERE / "one-bit.png")

color, pale = Image.fromarray(noise[..., :3]), Image.fromarray(noise)
color.save(HERE / "lossless.webp", lossless=True)
pale.save(HERE / "lossless-alpha.webp", lossless=True, exact=True)
rgb.save(HERE / "lossy.webp", quality=90)
rgb.putalpha(Image.fromarray(noise[..., 3]))
rgb.save(HERE / "lossy-alpha.webp", quality=90)
rgb = Image.fromarray(smooth)
color.save(HERE / "animated.webp", lossless=True, save_all=True, append_images=[Image.fromarray(255 - noise[..., :3])])

color.quantize(40).save(HERE / "palette.gif")
color.quantize(40).save(HERE / "transparent.gif", transparency=3)
gray.save(HERE / "gray.gif")
color.quantize(40).save(HERE / "animated.gif", save_all=True, append_images=[rgb.quantize(40)])
# A small picture, whose screen is made larger and whose frame is moved into it.
part = color.resize((9, 5)).quantize(16)
part.save(HERE / "part-of-screen.gif")
encoded = bytearray((HERE / "part-of-screen.gif").read_bytes())
frame = encoded.index(b"\x2c\x00\x00\x00\x00" + struct.pack("<HH", 9, 5))
encoded[6:10] = struct.pack("<HH", W, H)
encoded[frame + 1 : frame + 5] = struct.pack("<HH", 6, 4)
(HERE / "part-of-screen.gif").write_bytes(encoded)

color.save(HERE / "rgb.bmp")
pale.save(HERE / "rgba.bmp")
Image.fromarray(noise[..., 0]).save(HERE / "gray.bmp")
color.quantize(40).save(HERE / "palette.bmp")
Image.fromarray(noise[..., 0] > 127).save(HERE / "one-bit.bmp")


def bmp(bits, rows, height=H, kind=0, between=b"", older=False):
    """A BMP of W columns with these rows."""
    rows = b"".join(row + bytes(-len(row) % 4) for row in rows)
    if older:
        header = struct.pack("<IHHHH", 12, W, height, 1, bits)
    else:
        header = struct.pack("<IiiHHIIiiII", 40, W, height, 1, bits, kind, len(rows), 0, 0, 0, 0)
    start = 14 + len(header) + len(between)
    return struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start) + header + between + rows


sixteen = noise[..., 0].astype("<u2") * 256 + noise[..., 1]
masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
nibbles = np.concatenate([noise[..., 2] >> 4, np.zeros((H, 1), np.uint8)], 1)
packed = (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).astype(np.uint8)
table = np.random.default_rng(2).integers(0, 256, (256, 4), dtype=np.uint8)
for name, content in {
    "top-first.bmp": bmp(24, [row.tobytes() for row in noise[..., :3]], -H),
    "555.bmp": bmp(16, [row.tobytes() for row in sixteen]),
    "565.bmp": bmp(16, [row.tobytes() for row in sixteen], kind=3, between=masks),
    "sixteen-colors.bmp": bmp(4, [row.tobytes() for row in packed], between=table[:16].tobytes()),
    "os2.bmp": bmp(8, [row.tobytes() for row in noise[..., 0]], between=table[:, :3].tobytes(), older=True),
}.items():
    (HERE / name).write_bytes(content)

color.save(HERE / "rgb.tif")
color.save(HERE / "lzw.tif", compression="tiff_lzw")
color.save(HERE / "deflate.tif", compression="tiff_adobe_deflate", tiffinfo={317: 2})
Image.fromarray(noise[..., 0]).save(HERE / "packbits.tif", compression="packbits")
Image.fromarray(noise[..., 0] > 127).save(HERE / "one-bit.tif")
Image.fromarray(noise[..., 0] > 127).save(HERE / "fax.tif", compression="group4")
pale.save(HERE / "rgba.tif")
Image.fromarray(noise[..., :2], "LA").save(HERE / "gray-alpha.tif")
Image.fromarray(noise, "CMYK").save(HERE / "cmyk.tif")


def tiff(bits, samples, meaning, data, planes=False, order="<"):
    """A TIFF of one strip, or one a plane."""
    count = samples if planes else 1
    offset, size = 8, len(data) // count
    after = offset + len(data) + len(data) % 2
    short = lambda tag, *values: (tag, 3, values)
    long = lambda tag, *values: (tag, 4, values)
    tags = [
        short(256, W), short(257, H), short(258, *[bits] * samples), short(259, 1), short(262, meaning),
        long(273, *[offset + i * size for i in range(count)]), short(277, samples), short(278, H),
        long(279, *[size] * count), short(284, 2 if planes else 1),
    ]  # fmt: skip
    beyond, entries = b"", b""
    place = after + 2 + 12 * len(tags) + 4
    for tag, kind, values in tags:
        content = struct.pack(f"{order}{len(values)}{' HI'[kind - 2]}", *values)
        if len(content) > 4:
            content, beyond = struct.pack(f"{order}I", place + len(beyond)), beyond + content
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + content.ljust(4, b"\0")
    magic = b"II*\0" if order == "<" else b"MM\0*"
    head = magic + struct.pack(f"{order}I", after) + data + bytes(len(data) % 2)
    return head + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + beyond


wide = np.stack([noise[..., :3], noise[::-1, :, :3]], -1)
for name, content in {
    "planes.tif": tiff(8, 3, 2, noise[..., :3].transpose(2, 0, 1).tobytes(), planes=True),
    "sixteen-bit.tif": tiff(16, 3, 2, wide.tobytes(), order=">"),
    "four-bit.tif": tiff(4, 1, 1, packed.tobytes()),
    "white-is-zero.tif": tiff(8, 1, 0, noise[..., 0].tobytes()),
}.items():
    (HERE / name).write_bytes(content)

color.save(HERE / "rgb.ppm")
Image.fromarray(noise[..., 0]).save(HERE / "gray.pgm")
Image.fromarray(noise[..., 0] > 127).save(HERE / "one-bit.pbm")
few = (noise[..., 0] % 32).tobytes()
(HERE / "few-grays.pgm").write_bytes(b"P5 # a comment\n%d\n%d\n31\n" % (W, H) + few)

ENDINGS = {".jpg", ".png", ".webp", ".gif", ".bmp", ".tif", ".ppm", ".pgm", ".pbm"}
for path in sorted(path for path in HERE.iterdir() if path.suffix in ENDINGS):
    image = Image.open(path)
    assert image.size == (W, H)
    (HERE / f"{path.name}.rgb").write_bytes(image.convert("RGB").tobytes())
    (HERE / f"{path.name}.l").write_bytes(image.convert("L").tobytes())
Image.open(HERE / "rgb.png").resize((9, 7), Image.Resampling.BILINEAR).save(HERE / "resized.ppm")
(HERE / "resized.rgb").write_bytes(Image.open(HERE / "resized.ppm").tobytes())
(HERE / "resized.ppm").unlink()

side, octaves = 224, ((7, 60), (14, 40), (28, 30), (56, 18), (112, 10), (224, 5))
rng, picture = np.random.default_rng(1), np.full((side, side, 3), 120.0)
for cells, strength in octaves:
    planes = rng.normal(size=(cells, cells, 3)).astype(np.float32)
    grown = [Image.fromarray(planes[..., c]).resize((side, side), Image.Resampling.BICUBIC) for c in range(3)]
    picture += strength * np.stack([np.asarray(plane) for plane in grown], -1)
doctor = HERE.parents[2] / "engine" / "cli" / "src" / "doctor"
Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(doctor / "picture.jpg", quality=85)

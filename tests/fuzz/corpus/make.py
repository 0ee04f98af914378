"""Writes the files that try to hurt the readers of shards and images. README.md says what each one is."""

import gzip
import io
import pathlib
import struct
import tarfile
import zlib

from PIL import Image

HERE = pathlib.Path(__file__).parent


def png(size=(3, 2), value=7):
    out = io.BytesIO()
    Image.new("L", size, value).save(out, "png")
    return out.getvalue()


def jpeg():
    out = io.BytesIO()
    Image.radial_gradient("L").resize((64, 64)).convert("RGB").save(out, "jpeg", quality=90)
    return out.getvalue()


def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, tuple):
                info.type, info.linkname = data
                data = b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def forged(name, size_field, kind=b"0"):
    """A header with any twelve bytes as its size, and a correct checksum."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:108] = b"0000644\0"
    header[124:136] = size_field
    header[156:157] = kind
    header[257:265] = b"ustar  \0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def chunk(kind, data, crc=None):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data) if crc is None else crc)


def png_of(*chunks):
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def ihdr(width, height, depth=8, color=2):
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))


ok, good = ("cat/ok.png", png()), png()
whole = tar(ok, ("cat/b.png", good))
bad_sum = bytearray(whole)
bad_sum[0] ^= 1
photo = jpeg()
sof = photo.index(b"\xff\xc0") + 5
scan = photo.index(b"\xff\xda")
pixels = zlib.compress(bytes(1 << 20))


def saved(form, mode="RGB", **keywords):
    out = io.BytesIO()
    Image.radial_gradient("L").resize((17, 13)).convert(mode).save(out, form, **keywords)
    return bytearray(out.getvalue())


def bmp(width, height, bits=24, kind=0, rest=bytes(40)):
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, kind, 0, 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + len(rest), 0, 0, 54) + header + rest


def gif(screen, frame, colors=b"\0\0\0\xff\xff\xff"):
    table = 0x80 if colors else 0
    start = b"GIF89a" + struct.pack("<HHBBB", *screen, table, 0, 0) + colors
    return start + b"\x2c" + struct.pack("<HHHHB", *frame, 0) + b"\x02\x02\x4c\x01\x00\x3b"


def tif(*tags, rest=b""):
    entries = b"".join(struct.pack("<HHII", tag, 4, count, value) for tag, count, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + rest


# Of an image with alpha the size is told twice: around the frame, and in it.
larger_frame = saved("WEBP", "RGBA", quality=80)
at = larger_frame.index(b"\x9d\x01\x2a")
larger_frame[at + 3 : at + 7] = b"\xff\x3f\xff\x3f"
larger_webp = saved("WEBP", quality=80)
at = larger_webp.index(b"\x9d\x01\x2a")
larger_webp[at + 3 : at + 7] = b"\xff\x3f\xff\x3f"
lossless = saved("WEBP", lossless=True)
plain_tif = [(256, 1, 4), (257, 1, 4), (258, 1, 8), (259, 1, 1), (262, 1, 1), (277, 1, 1)]
strip = [(273, 1, 8), (278, 1, 4), (279, 1, 16)]

files = {
    "cut-in-member.tar": whole[: 512 + 512 + 512 + 20],
    "cut-in-header.tar": whole[: 512 + 512 + 100],
    "no-end-mark.tar": whole[: 4 * 512],
    "two-archives.tar": whole + tar(("cat/c.png", good)),
    "gzip.tar": gzip.compress(whole, mtime=0),
    "text.tar": b"this is not an archive\n" * 100,
    "bad-checksum.tar": bytes(bad_sum),
    "size-beyond-file.tar": forged(b"cat/a.png", b"77777777777\0") + bytes(1024),
    "size-negative.tar": forged(b"cat/a.png", b"\xff" * 12) + bytes(1024),
    "size-2-to-63.tar": forged(b"cat/a.png", b"\x80\0\0\0" + struct.pack(">Q", 1 << 63)) + bytes(1024),
    "size-not-octal.tar": forged(b"cat/a.png", b"zzzzzzzzzzz\0") + bytes(1024),
    "long-name-beyond-file.tar": forged(b"././@LongLink", b"77777777777\0", b"L") + bytes(1024),
    "long-name-of-nothing.tar": forged(b"././@LongLink", b"00000000012\0", b"L") + bytes(512) + bytes(1024),
    "links.tar": tar(ok, ("cat/soft.png", (tarfile.SYMTYPE, "/etc/passwd")), ("cat/hard.png", (tarfile.LNKTYPE, "cat/ok.png"))),
    "climbing-names.tar": tar(ok, ("../../etc/cat/a.png", good), ("cat/../../b.png", good), ("/dog/absolute.png", good)),
    "devices.tar": tar(ok, ("cat/null.png", (tarfile.CHRTYPE, "")), ("cat/pipe.png", (tarfile.FIFOTYPE, ""))),
    "name-twice.tar": tar(ok, ("./cat/ok.png", good)),
    "two-images-one-key.tar": tar(("a.png", good), ("a.left.png", good), ("a.cls", b"1")),
    "label-in-words.tar": tar(("a.png", good), ("a.cls", b"cat")),
    "label-too-large.tar": tar(("a.png", good), ("a.cls", b"99999999999999999999")),
    "label-too-long.tar": tar(("a.png", good), ("a.cls", b"1" + b" " * 5000)),
    "huge-dimensions.png": png_of(ihdr(60000, 60000), chunk(b"IDAT", pixels), chunk(b"IEND", b"")),
    "largest-dimensions.png": png_of(ihdr(2**31 - 1, 2**31 - 1), chunk(b"IDAT", pixels), chunk(b"IEND", b"")),
    "zero-width.png": png_of(ihdr(0, 4), chunk(b"IDAT", pixels), chunk(b"IEND", b"")),
    "no-pixels.png": png_of(ihdr(4, 4), chunk(b"IEND", b"")),
    "too-few-pixels.png": png_of(ihdr(64, 64), chunk(b"IDAT", zlib.compress(bytes(100))), chunk(b"IEND", b"")),
    "wrong-crc.png": png_of(ihdr(4, 4, color=0), chunk(b"IDAT", zlib.compress(bytes(20)), crc=1), chunk(b"IEND", b"")),
    "palette-missing.png": png_of(ihdr(4, 4, color=3), chunk(b"IDAT", zlib.compress(bytes(20))), chunk(b"IEND", b"")),
    "chunk-beyond-file.png": png_of(ihdr(4, 4)) + struct.pack(">I", 2**31 - 1) + b"IDAT",
    "signature-only.png": png_of(),
    "huge-dimensions.jpg": photo[:sof] + struct.pack(">HH", 65535, 65535) + photo[sof + 4 :],
    "zero-height.jpg": photo[:sof] + struct.pack(">HH", 0, 64) + photo[sof + 4 :],
    "cut-in-scan.jpg": photo[: scan + (len(photo) - scan) // 2],
    "cut-in-header.jpg": photo[: scan - 20],
    "no-end-marker.jpg": photo[:-2],
    "scan-ends-early.jpg": photo[: scan + 40] + b"\xff\xd9",
    "start-only.jpg": b"\xff\xd8\xff",
    "huge-dimensions.webp": bytes(larger_webp),
    "frame-larger-than-image.webp": bytes(larger_frame),
    "cut-in-frame.webp": bytes(larger_webp[:60]),
    "no-frame.webp": b"RIFF\x04\0\0\0WEBP",
    "damaged-codes.webp": bytes(lossless[:26] + b"\xff" * (len(lossless) - 26)),
    "huge-dimensions.gif": gif((60000, 60000), (0, 0, 60000, 60000)),
    "huge-offset.gif": gif((1, 1), (65535, 65535, 1, 1)),
    "no-pixels.gif": gif((4, 4), (0, 0, 0, 4)),
    "no-colors.gif": gif((2, 2), (0, 0, 2, 2), b""),
    "no-frame.gif": gif((4, 4), (0, 0, 4, 4))[:19] + b"\x3b",
    "too-few-pixels.gif": gif((40, 40), (0, 0, 40, 40)),
    "huge-dimensions.bmp": bmp(60000, 60000),
    "least-dimensions.bmp": bmp(2**31 - 1, -(2**31)),
    "too-few-pixels.bmp": bmp(40, 40),
    "palette-beyond-file.bmp": bmp(4, 4, 8),
    "run-lengths.bmp": bmp(4, 4, 8, 1, bytes(1100)),
    "pixels-beyond-file.bmp": bmp(2, 2)[:10] + b"\xff" * 4 + bmp(2, 2)[14:],
    "huge-dimensions.tif": tif((256, 1, 60000), (257, 1, 60000), *plain_tif[2:], (273, 1, 8), (278, 1, 60000), (279, 1, 16), rest=bytes(64)),
    "huge-tile.tif": tif(*plain_tif, (322, 1, 2**31), (323, 1, 2**31), (324, 1, 8), (325, 1, 16), rest=bytes(64)),
    "counts-beyond-file.tif": tif(*plain_tif, (273, 2**31, 8), (278, 1, 4), (279, 2**31, 8)),
    "directory-of-itself.tif": b"II*\0" + struct.pack("<IHI", 8, 0, 8),
    "strip-beyond-file.tif": tif(*plain_tif, (273, 1, 2**32 - 1), (278, 1, 4), (279, 1, 16)),
    "huge-dimensions.ppm": b"P6 60000 60000 255 ",
    "number-too-long.ppm": b"P6 99999999999999999999 1 255 ",
    "largest-value-0.ppm": b"P6 1 1 0 abc",
    "header-only.ppm": b"P6 # no more",
    "text.jpg": b"<html>404 Not Found</html>",
    "nothing.jpg": b"",
}
for name, data in files.items():
    (HERE / name).write_bytes(data)

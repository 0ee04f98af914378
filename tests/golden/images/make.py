"""Writes the small images of the decoder's tests, and what Pillow makes of each: NAME.rgb and NAME.l are the raw pixels
of convert("RGB") and convert("L"), rows of 17 pixels, 13 rows; resized.rgb is rgb.png at 9 by 7, BILINEAR. And the
picture that `lossfeed doctor` decodes: noise in octaves, about as many bits a pixel as a photograph."""

import pathlib

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
for path in sorted(HERE.glob("*.[jp][pn]g")):
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

"""Photographs in memory to random resized crops, on one core: by the loader, and by Pillow and torchvision.

    python benches/scenarios/crops_rate.py [--pictures FOLDER] [--rounds 5]

JPEGs of 500 x 375 (quality 92, 4:2:0), all in the cache as they are stored; rounds of the ways in turn:

    decoded      the loader, pixels as they are: what the next two pay on top of
    crops        ImageTransform("uint8", crop=224, scale=(0.08, 1))
    crops float  the same, mirrored by chance and normalised to float32
    pillow       the same crops by Image.open and Image.resize(box=…), from bytes in memory
    torchvision  RandomResizedCrop(224) of those images, where it is installed

Without --pictures (a folder of class folders of JPEGs, all of one size) they are made: noise of all scales, as strong at
each as in photographs. Samples a second and CPU time a sample, medians over the rounds; one thread everywhere.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from record import Record

SIDE, HEIGHT, WIDTH, SCALE = 224, 375, 500, (0.08, 1.0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="class folders of JPEGs of one size")
    parser.add_argument("--count", type=int, default=256, help="pictures that are made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_pictures(folder: Path, count: int) -> None:
    """Noise of every octave, each twice as strong as the next finer one."""
    import numpy as np
    from PIL import Image

    (folder / "made").mkdir()
    for i in range(count):
        rng = np.random.default_rng(i)
        picture = np.zeros((HEIGHT, WIDTH, 3))
        for octave in range(8):
            small = rng.normal(size=(3 + (HEIGHT >> octave), 3 + (WIDTH >> octave), 3)).astype(np.float32)
            planes = [Image.fromarray(small[:, :, c]).resize((WIDTH, HEIGHT), Image.BICUBIC) for c in range(3)]
            picture += np.stack([np.asarray(p) for p in planes], -1) * 1.5 * 2**octave / 4
        pixels = np.clip(128 + picture, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "made" / f"{i:05}.jpg", quality=92)


def pillow_crops(files: list[bytes]) -> Iterator[Any]:
    """Parts as torchvision draws them, without its tensors."""
    import numpy as np
    from PIL import Image

    low, high = math.log(3 / 4), math.log(4 / 3)
    for encoded in files:
        picture = Image.open(io.BytesIO(encoded)).convert("RGB")
        w, h = picture.size
        while True:
            area, aspect = w * h * random.uniform(*SCALE), math.exp(random.uniform(low, high))
            width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if width <= w and height <= h:
                break
        left, top = random.randint(0, w - width), random.randint(0, h - height)
        box = (left, top, left + width, top + height)
        yield np.asarray(picture.resize((SIDE, SIDE), Image.BILINEAR, box=box))


def torchvision_crops() -> Callable[[list[bytes]], Iterator[Any]] | None:
    """None where it is not installed."""
    try:
        from torchvision import transforms
    except ImportError:
        return None
    import numpy as np
    from PIL import Image

    crop = transforms.RandomResizedCrop(SIDE, SCALE)

    def crops(files: list[bytes]) -> Iterator[Any]:
        for encoded in files:
            yield np.asarray(crop(Image.open(io.BytesIO(encoded)).convert("RGB")))

    return crops


def measure(args: argparse.Namespace, folder: Path, record: Record) -> None:
    import torch

    import lossfeed as lf

    torch.set_num_threads(1)
    files = [path.read_bytes() for path in sorted(folder.glob("*/*.jp*g"))]
    common = {"num_workers": 0, "cache": 1.0, "stats": False, "framework": "torch"}
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    transforms = {
        "decoded": None,
        "crops": lf.ImageTransform("uint8", layout="NHWC", crop=SIDE, scale=SCALE),
        "crops float": lf.ImageTransform("float32", mean=mean, std=std, crop=SIDE, scale=SCALE, flip=0.5),
    }
    ways: dict[str, Callable[[], Any]] = {}
    for name, transform in transforms.items():
        loader = lf.Loader(lf.open(str(folder)), 32, transform=transform, **common)
        ways[name] = lambda loader=loader: sum(len(batch.data) for batch in loader)
    theirs = torchvision_crops()
    ways["pillow"] = lambda: sum(1 for _ in pillow_crops(files))
    if theirs is not None:
        ways["torchvision"] = lambda: sum(1 for _ in theirs(files))
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(args.rounds + 1):
        for way, run in ways.items():
            used, started = cpu_seconds(), time.perf_counter()
            count = run()
            if number > 0:  # the first fill the cache
                wall[way].append((time.perf_counter() - started) * 1e6 / count)
                cpu[way].append((cpu_seconds() - used) * 1e6 / count)
    kib = sum(map(len, files)) / len(files) / 1024
    for way in ways:
        wall_us, cpu_us = statistics.median(wall[way]), statistics.median(cpu[way])
        record.add({"way": way, "kib": round(kib, 1), "samples_per_s": round(1e6 / wall_us), "wall_us": round(wall_us, 1), "cpu_us": round(cpu_us, 1)})
        print(f"{way:<12} {1e6 / wall_us:>8,.0f} samples/s  {cpu_us:8.0f} us of CPU a sample (least {min(cpu[way]):.0f})", flush=True)


def main() -> int:
    args = arguments()
    where = {} if args.record is None else {"root": args.record}
    settings = {"rounds": args.rounds, "pictures": "given" if args.pictures else f"{args.count} made"}
    record = Record("crops-rate", settings, args.date, **where)
    with tempfile.TemporaryDirectory() as folder:
        if args.pictures is None:
            make_pictures(Path(folder), args.count)
        measure(args, args.pictures or Path(folder), record)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

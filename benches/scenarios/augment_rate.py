"""Pixels in memory to augmented pixels, on one thread: by the loader, and by torchvision's v2 transforms of uint8 tensors.

    python benches/scenarios/augment_rate.py [--rounds 5] [--note TEXT]

Pictures of 32 x 32 and 224 x 224 x 3; rounds of the ways in turn:

    bytes    the loader, pixels as they are: what ours pay on top of
    colours  brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1 (ColorJitter)
    trivial  augment="trivial" (TrivialAugmentWide)
    rand     augment="rand" (RandAugment: two operations of magnitude 9)

Ours take pixels out of the cache and put batches together; torchvision's are called with one tensor after another, and
nothing else. Samples a second by the clock and CPU time a sample, medians over the rounds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from record import Record

SIZES = (32, 8_192), (224, 512)
COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", help="what else is to be known of the run: its build, other work on the machine")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def pictures(side: int, count: int) -> Any:
    """Noise of every octave, each twice as strong as the next finer one."""
    import torch

    torch.manual_seed(side)
    made = torch.zeros(count, 3, side, side)
    for octave in range(side.bit_length()):
        small = torch.randn(count, 3, 1 + (side >> octave), 1 + (side >> octave))
        made += torch.nn.functional.interpolate(small, (side, side), mode="bilinear") * 1.5 * 2**octave / 4
    return (128 + made).clamp(0, 255).to(torch.uint8)


def by_torchvision() -> dict[str, Callable[[Any], Any]]:
    """Nothing where it is not installed."""
    try:
        from torchvision.transforms import v2
    except ImportError:
        return {}
    return {
        "torchvision colours": v2.ColorJitter(**COLOURS),
        "torchvision trivial": v2.TrivialAugmentWide(),
        "torchvision rand": v2.RandAugment(),
    }


def measure(side: int, count: int, rounds: int, record: Record) -> None:
    import torch

    import lossfeed as lf

    samples = pictures(side, count)
    data = lf.open((samples.permute(0, 2, 3, 1).contiguous().numpy(), torch.arange(count).numpy()))
    common = {"num_workers": 0, "cache": 1.0, "cache_form": "decoded", "stats": False, "framework": "torch"}
    asked: dict[str, dict[str, Any] | None] = {"bytes": None, "colours": COLOURS, "trivial": {"augment": "trivial"}, "rand": {"augment": "rand"}}
    ways: dict[str, Callable[[], Any]] = {}
    for name, keywords in asked.items():
        transform = None if keywords is None else lf.ImageTransform("uint8", layout="NHWC", **keywords)
        loader = lf.Loader(data, 64, transform=transform, **common)
        ways[name] = lambda loader=loader: sum(len(batch.data) for batch in loader)
    for name, theirs in by_torchvision().items():
        ways[name] = lambda theirs=theirs: sum(theirs(sample) is not None for sample in samples)
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, run in ways.items():
            used, started = cpu_seconds(), time.perf_counter()
            made = run()
            if number > 0:  # the first fill the cache
                wall[way].append((time.perf_counter() - started) * 1e6 / made)
                cpu[way].append((cpu_seconds() - used) * 1e6 / made)
    for way in ways:
        wall_us, cpu_us = statistics.median(wall[way]), statistics.median(cpu[way])
        record.add(
            {"side": side, "way": way, "samples_per_s": round(1e6 / wall_us), "wall_us": round(wall_us, 2), "cpu_us": round(cpu_us, 2)}
        )
        print(f"{side:>4} {way:<20} {1e6 / wall_us:>12,.0f} samples/s  {cpu_us:8.2f} us of CPU a sample", flush=True)


def main() -> int:
    args = arguments()
    import torch

    torch.set_num_threads(1)
    where = {} if args.record is None else {"root": args.record}
    try:
        theirs = metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        theirs = "none"
    settings = {"rounds": args.rounds, "torchvision": theirs} | ({} if args.note is None else {"note": args.note})
    record = Record("augment-rate", settings, args.date, **where)
    for side, count in SIZES:
        measure(side, count, args.rounds, record)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

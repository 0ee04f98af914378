"""``num_workers="auto"`` beside fixed numbers of loader threads, on real loaders.

    python benches/scenarios/auto_workers.py [--seconds 4] [--numbers 1 2 4 8 16]

Six profiles, each with every number and with ``auto``:

    cheap     items that cost nothing, and a step of 5 ms: one thread is enough
    decode    JPEGs of 256 x 256 from tar shards, and no step: processors are what is short
    store     the same of 32 x 32 from a store that answers after 20 ms, with nothing read ahead: threads wait
    sleeps    items that sleep 4 ms: more threads than processors are wanted
    crowd     items that compute in Python under one lock: more threads than one only wait for each other
    slow      items that sleep 0.4 ms, one in a hundred 40 ms

A fixed number is timed for so many seconds after one of warm-up, ``auto`` from its sixth second on, as it is given five
to find its number. Then one loader goes from one of the last four profiles to another while it runs, each to each,
and is timed from the sixth second after the change on. What is told is the share of what the best fixed number brings.
"""

from __future__ import annotations

import argparse
import io
import itertools
import statistics
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Record

BATCH, SAMPLES, FIND_S = 32, 3200, 5.0
#: Of items made in Python: seconds of sleep, of one in a hundred, and turns of a loop.
MADE = {"cheap": (0.0, 0.0, 0), "sleeps": (0.004, 0.004, 0), "crowd": (0.0, 0.0, 4000), "slow": (0.0004, 0.04, 0)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4, help="each is timed for so long")
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


class Items:
    """Items that cost what the profile says now."""

    thread_safe = True

    def __init__(self, profile: str) -> None:
        import numpy as np

        self.profile = profile
        self.x = np.zeros(8, np.float32)
        self.slow = np.random.default_rng(0).random(SAMPLES) < 0.01

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[Any, int]:
        sleep_s, slow_s, turns = MADE[self.profile]
        seconds = slow_s if self.slow[i] else sleep_s
        if seconds:
            time.sleep(seconds)
        for _ in range(turns):
            pass
        return self.x, i


def shards(folder: Path, side: int) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for shard in range(4):
        with tarfile.open(folder / f"{side}-{shard}.tar", "w") as tar:
            for n in range(shard, SAMPLES if side < 100 else SAMPLES // 4, 4):
                jpeg = io.BytesIO()
                Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8)).save(jpeg, "JPEG")
                info = tarfile.TarInfo(f"{n % 10}/{n:06d}.jpg")
                info.size = len(jpeg.getvalue())
                tar.addfile(info, io.BytesIO(jpeg.getvalue()))


def open_(profile: str, folder: Path) -> tuple[Any, float]:
    """What is loaded, and the seconds of a step."""
    import lossfeed as lf

    if profile == "decode":
        return lf.open(str(folder / "256-*.tar")), 0.0
    if profile == "store":
        return lf.open(str(folder / "32-*.tar"), latency=0.02, coalesce=False), 0.0
    return Items(profile), 0.005 if profile == "cheap" else 0.0


def batches(loader: Any) -> Any:
    """Epoch after epoch."""
    for _ in itertools.count():
        yield from loader


def rate(running: Any, step_s: float, warm_s: float, seconds: float) -> float:
    """Samples a second, after some seconds that do not count."""
    samples, started, until = 0, 0.0, time.perf_counter() + warm_s
    for batch in running:
        if step_s:
            time.sleep(step_s)
        now = time.perf_counter()
        if started:
            samples += len(batch.ids)
            if now >= until:
                return samples / (now - started)
        elif now >= until:
            started, until = now, now + seconds
    raise AssertionError("epochs have no end")


def loader(data: Any, workers: Any) -> Any:
    import lossfeed as lf

    return lf.Loader(data, BATCH, shuffle=True, seed=0, num_workers=workers, read_ahead=0, stats=False)


def fixed(record: Record, folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Every profile with every number and with ``auto``; what the best number brings of each."""
    best: dict[str, float] = {}
    for profile in ("cheap", "decode", "store", "sleeps", "crowd", "slow"):
        found: dict[Any, float] = {}
        for workers in (*args.numbers, "auto"):
            data, step_s = open_(profile, folder)
            with loader(data, workers) as made:
                warm_s = FIND_S if workers == "auto" else 1.0
                found[workers] = rate(batches(made), step_s, warm_s, args.seconds)
                last = made.num_workers
        most = max(args.numbers, key=lambda workers: found[workers])
        best[profile] = found[most]
        share = found["auto"] / best[profile]
        rates = {f"rate_{workers}": round(value, 1) for workers, value in found.items()}
        record.add({"profile": profile, "best": most, "auto": last, "share_of_best": round(share, 4), **rates})
        print(f"{profile:<8} best {most:2} threads, auto {last:2}: {100 * share:5.1f} % of the best", flush=True)
    return best


def changing(record: Record, best: dict[str, float], args: argparse.Namespace) -> None:
    shares = []
    for before, after in itertools.permutations(MADE, 2):
        items = Items(before)
        with loader(items, "auto") as made:
            running = batches(made)
            rate(running, 0.005 if before == "cheap" else 0.0, FIND_S, 1.0)
            items.profile = after
            changes = made.stats()["workers_changes_total"]
            found = rate(running, 0.005 if after == "cheap" else 0.0, FIND_S, args.seconds)
            changes = made.stats()["workers_changes_total"] - changes
            last = made.num_workers
        shares.append(found / best[after])
        run = {"profile": f"{before} to {after}", "auto": last, "share_of_best": round(shares[-1], 4), "changes": int(changes)}
        record.add(run)
        print(f"{before} to {after}: {last} threads after {changes:.0f} changes, {100 * shares[-1]:.1f} % of the best", flush=True)
    print(f"after a change: least {100 * min(shares):.1f} %, median {100 * statistics.median(shares):.1f} %")


def main() -> int:
    args = arguments()
    where = {} if args.record is None else {"root": args.record}
    settings = {"seconds": args.seconds, "numbers": args.numbers, "batch": BATCH, "samples": SAMPLES}
    record = Record("auto-workers", settings, args.date, **where)
    with tempfile.TemporaryDirectory() as folder:
        for side in (32, 256):
            shards(Path(folder), side)
        changing(record, fixed(record, Path(folder), args), args)
    print(record.csv)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

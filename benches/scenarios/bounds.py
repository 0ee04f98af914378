"""How near a training loop comes to what the link and the step allow, and what late answers cost it.

    python benches/scenarios/bounds.py [--seconds 4] [--only bound|late|limit]

The step is a sleep, as a GPU's is for the processor, so nothing but waiting is measured. Each setting first runs one
epoch, which fills the cache; then whole epochs are timed. Where a bound is compared with, a second epoch is not timed
either: it begins with nothing read ahead if the first was short of the link. At least three are, since what is read
ahead at an epoch's end counts for the next.

``bound``: twenty settings of cache share, latency and bandwidth, through this engine's own throttle, pictures of 110 KB.
SiloD (EuroSys'23, Eq. 4) gives the bound: *min(f*, b / (1 - hit))*, f* the rate of steps alone, b the link in
samples a second, hit the share of samples that were not fetched in the timed epochs.

``late``: pictures of 7 KB from a store over loopback. Its answers take 50 ms, one in a hundred 500 ms, and bandwidth is
in excess. What is told is the share of the loop's time that is not steps. What is read ahead lasts 1.8 s, a seventh of
the dataset and an eighth of what is read ahead by default. Beside it: a store where all answers take 50 ms, no second
requests (``hedge=False``), what is read ahead used up in 0.4 s and so before a late answer comes, and the same shards in
files of this machine: what the loop costs without any store.

``limit``: what comes over the wire, as that store counts it, from one second after ``Data.limit`` on.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from record import Record

BATCH, SHARDS = 32, 8
#: What is read: pixels of a side, and samples a second of the step alone.
LARGE, SMALL = (192, 400.0), (48, 1600.0)
SMALL_TIMES = 10
#: (cache share, latency in seconds, the link's bandwidth over what the steps would use without a cache).
SETTINGS = [
    (cache, latency, link)
    for cache, latency in ((0.0, 0.01), (0.2, 0.0), (0.2, 0.05), (0.5, 0.01), (0.8, 0.05))
    for link in (0.15, 0.4, 0.8, 1.5)
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1600, help="of the large pictures; of the small ones ten times as many")
    parser.add_argument("--seconds", type=float, default=4, help="whole epochs are timed until so long has passed")
    parser.add_argument("--rounds", type=int, default=3, help="of the late answers, in turn")
    parser.add_argument("--only", choices=("bound", "late", "limit"))
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def shards(folder: Path, samples: int, side: int) -> int:
    """Writes pictures of noise, all of one size; the bytes of one."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    size = 0
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for n in range(shard, samples, SHARDS):
                png = io.BytesIO()
                Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8)).save(png, "PNG", compress_level=0)
                info = tarfile.TarInfo(f"{n % 10}/{n:06d}.png")
                info.size = size = len(png.getvalue())
                tar.addfile(info, io.BytesIO(png.getvalue()))
    return size


def loop(batches: Any, step_s: float) -> int:
    """Steps over an epoch; how many samples."""
    samples = 0
    for batch in batches:
        samples += len(batch)
        time.sleep(step_s)
    return samples


def alone(samples: int, step_s: float) -> float:
    """Samples a second of the steps, with nothing loaded."""
    ready = [range(BATCH)] * (samples // BATCH)
    started = time.perf_counter()
    return loop(ready, step_s) / (time.perf_counter() - started)


class Ids:
    """A loader whose batches have a length."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return (batch.ids for batch in self.loader)


def timed(loader: Any, step_s: float, seconds: float, warm: int = 1, least: int = 1) -> tuple[float, float, float]:
    """Of whole epochs behind ``warm`` ones, at least ``least`` of them: samples a second, the share that was not
    fetched, requests a sample."""
    for _ in range(warm):
        loop(Ids(loader), step_s)
    before, started, samples, epochs = loader.stats(), time.perf_counter(), 0, 0
    while time.perf_counter() - started < seconds or epochs < least:
        samples += loop(Ids(loader), step_s)
        epochs += 1
    took, after = time.perf_counter() - started, loader.stats()

    def more(name: str) -> float:
        return float(after[name] - before[name])

    return samples / took, 1 - more("fetched_samples_total") / samples, more("store_requests_total") / samples


def bound(record: Record, folder: Path, size: int, args: argparse.Namespace) -> None:
    import lossfeed as lf

    step_s, shares = BATCH / LARGE[1], []
    for cache, latency, link in SETTINGS:
        steps = alone(args.samples, step_s)
        bandwidth = int(link * LARGE[1] * size)
        data = lf.open(str(folder / "*.tar"), latency=latency, bandwidth=bandwidth)
        # A window that holds a good part of the dataset would be a cache of its own.
        window = args.samples * size // 11
        keywords: dict[str, Any] = {"sampler": "uniform", "stats": False, "num_workers": 2, "read_ahead": window}
        keywords |= {} if cache == 0 else {"cache": f"{100 * cache:.0f}%"}
        with lf.Loader(data, BATCH, shuffle=True, seed=0, **keywords) as loader:
            # Without a cache all epochs are the same.
            rate, hit, requests = timed(loader, step_s, args.seconds, *((2, 3) if cache else (1, 1)))
        most = min(steps, bandwidth / size / (1 - hit))
        shares.append(rate / most)
        run = {"setting": "bound", "cache": cache, "latency_s": latency, "link": link, "steps_per_s": round(steps, 1)}
        run |= {"bound": round(most, 1), "rate": round(rate, 1), "share_of_bound": round(rate / most, 4)}
        record.add({**run, "hit": round(hit, 4), "requests_per_sample": round(requests, 4)})
        print(
            f"cache {cache:3.0%}  latency {1000 * latency:3.0f} ms  link {link:4.2f}  hit {hit:4.0%}: {rate:7.1f} of {most:7.1f} "
            f"samples/s, {100 * rate / most:5.1f} % of the bound",
            flush=True,
        )
    print(f"least {100 * min(shares):.1f} %, {sum(share >= 0.98 for share in shares)} of {len(shares)} within 2 %")


@contextmanager
def store(folder: Path, latency: float, late: str = "0:0") -> Iterator[str]:
    """A store over loopback with bandwidth in excess; its URL."""
    argv = [sys.executable, str(Path(__file__).parent / "remote/store.py"), str(folder.parent)]
    argv += ["--latency", str(latency), "--late", late]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            with urllib.request.urlopen(f"{url}/-/bandwidth/{10**9}"):
                pass
            yield url
        finally:
            server.kill()


def late(record: Record, folder: Path, args: argparse.Namespace) -> None:
    import lossfeed as lf

    step_s = BATCH / SMALL[1]
    keywords = {"cache": "20%", "sampler": "uniform", "stats": False, "num_workers": 2}
    for round_ in range(args.rounds):
        for name, share, hedge, window in (
            ("local", 0.0, True, "16MiB"),
            ("even", 0.0, True, "16MiB"),
            ("late", 0.01, True, "16MiB"),
            ("late, no second requests", 0.01, False, "16MiB"),
            ("late, 4 MiB ahead", 0.01, True, "4MiB"),
            ("late, 4 MiB ahead, no second requests", 0.01, False, "4MiB"),
        ):
            with store(folder, 0.05, f"{share}:0.5") as url:
                steps = alone(SMALL_TIMES * args.samples, step_s)
                remote = f"{url}/{folder.name}/{{0..{SHARDS - 1}}}.tar"
                data = lf.open(str(folder / "*.tar")) if name == "local" else lf.open(remote, hedge=hedge)
                keywords["read_ahead"] = window
                with lf.Loader(data, BATCH, shuffle=True, seed=round_, **keywords) as loader:
                    rate, hit, requests = timed(loader, step_s, args.seconds)
            stall = 1 - rate / steps
            run = {"setting": name, "round": round_, "steps_per_s": round(steps, 1), "rate": round(rate, 1), "stall": round(stall, 4)}
            record.add({**run, "hit": round(hit, 4), "requests_per_sample": round(requests, 4)})
            print(f"{name}: {100 * stall:.2f} % stall, {requests:.3f} requests a sample", flush=True)


def limit(record: Record, folder: Path, args: argparse.Namespace) -> None:
    import lossfeed as lf

    with store(folder, 0.005) as url:

        def brought() -> int:
            with urllib.request.urlopen(f"{url}/-/counts") as answer:
                return int(json.load(answer)["bytes"])

        data = lf.open(f"{url}/{folder.name}/{{0..{SHARDS - 1}}}.tar")
        done = threading.Event()

        def read() -> None:
            # A window smaller than the dataset: it always wants more.
            with lf.Loader(data, BATCH, shuffle=True, seed=0, stats=False, num_workers=2, read_ahead="16MiB") as loader:
                while not done.is_set():
                    for _ in loader:
                        if done.is_set():
                            break

        reader = threading.Thread(target=read)
        reader.start()
        for rate in (4_000_000, 1_000_000, 8_000_000):
            data.limit(rate)
            time.sleep(1)
            before, started = brought(), time.perf_counter()
            time.sleep(2 * args.seconds)
            took, over = time.perf_counter() - started, brought() - before
            record.add({"setting": "limit", "limit": rate, "wire": round(over / took), "share_of_bound": round(over / took / rate, 4)})
            print(f"limit {rate:,} bytes/s: {over / took:,.0f} on the wire, {100 * over / took / rate:.1f} %", flush=True)
        done.set()
        data.limit(None)
        reader.join()


def main() -> int:
    args = arguments()
    where = {} if args.record is None else {"root": args.record}
    settings = {"samples": args.samples, "seconds": args.seconds, "batch": BATCH, "large": list(LARGE), "small": list(SMALL)}
    record = Record("bounds", settings, args.date, **where)
    with tempfile.TemporaryDirectory() as made:
        large, small = Path(made) / "large", Path(made) / "small"
        large.mkdir()
        small.mkdir()
        size = shards(large, args.samples, LARGE[0])
        shards(small, SMALL_TIMES * args.samples, SMALL[0])
        parts = {"bound": lambda: bound(record, large, size, args), "late": lambda: late(record, small, args)}
        parts["limit"] = lambda: limit(record, large, args)
        for name, part in parts.items():
            if args.only in (None, name):
                part()
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Decoded 32×32×3 u8 batches of 256 from CIFAR-10 JPEG shards, samples a second, all in one run.

    python benches/scenarios/loader_rate.py [FOLDER] [--rounds 3]

    lossfeed cold    first epoch of a fresh lossfeed.Loader: every sample is read from its shard and decoded
    lossfeed warm    later epochs: every sample comes decoded from the cache
    DataLoader N     torch DataLoader over the same JPEG files in class folders, Pillow, N worker processes
    gather numpy     np.take of random rows into a reused buffer, one thread: the price of moving the bytes once, nothing else
    gather torch     the same with torch.index_select on all cores: what the machine's memory gives at most

Files are in the page cache for all of them (one unmeasured pass). The consumer touches one byte of every batch and
drops it. Measurements alternate round by round; the median and the best round count. Goals: cold at least 5 × the best
DataLoader, warm at least half of the plain one-thread gather (the ratio to the other is shown beside it).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from record import Record, cifar_folder

BATCH = 256
SHAPE = (32, 32, 3)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="CIFAR-10 as train-*.tar (default: $LOSSFEED_CIFAR)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="least time measured a round, where epochs can be repeated")
    parser.add_argument("--workers", type=int, help="loader threads of lossfeed (default: as many as the run needs)")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


class Folder:
    """The way most people write it: open, decode, copy."""

    def __init__(self, root: Path) -> None:
        classes = sorted(p.name for p in root.iterdir())
        self.files = [(str(p), label) for label, name in enumerate(classes) for p in sorted((root / name).iterdir())]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np
        import torch
        from PIL import Image

        path, label = self.files[index]
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))), label


def drain(batches: Iterator[Any]) -> int:
    """Takes every batch, touches it and drops it; returns how many samples came."""
    count = 0
    for batch in batches:
        data = batch[0] if isinstance(batch, (list, tuple)) else batch.data
        assert tuple(data.shape[1:]) == SHAPE, data.shape
        data[-1, -1, -1, -1].item()
        count += len(data)
    return count


def rate(passes: Callable[[], int], least_seconds: float) -> float:
    """Samples a second over as many whole passes as fill the time."""
    started, count = time.perf_counter(), 0
    while True:
        count += passes()
        seconds = time.perf_counter() - started
        if seconds >= least_seconds:
            return count / seconds


class Lossfeed:
    """A loader whose cache holds everything: its first epoch is cold, all others are warm."""

    def __init__(self, url: str, workers: int | None) -> None:
        import lossfeed as lf

        given = {} if workers is None else {"num_workers": workers}
        data = lf.open(url)
        # Generous: decoded pixels, target and the arena's rounding.
        cache = len(data) * 4096
        self.loader = lf.Loader(
            data, batch_size=BATCH, drop_last=True, cache=cache, cache_form="decoded", policy="minio", sampler="uniform", seed=0, **given
        )
        self.epoch = 0

    def one_epoch(self) -> int:
        self.loader.set_epoch(self.epoch)
        self.epoch += 1
        return drain(iter(self.loader))

    def close(self) -> None:
        self.loader.close()


def gathers(samples: int) -> dict[str, Callable[[], int]]:
    """Random rows of an array that does not fit the last-level cache, into a ring of reused buffers."""
    import numpy as np
    import torch

    generator = np.random.default_rng(0)
    pool = generator.integers(0, 256, (samples, *SHAPE), dtype=np.uint8)
    ring = [np.zeros((BATCH, *SHAPE), np.uint8) for _ in range(4)]
    torch_pool, torch_ring = torch.from_numpy(pool), [torch.from_numpy(b) for b in ring]

    def numpy_pass() -> int:
        order = generator.permutation(samples)
        for i in range(samples // BATCH):
            np.take(pool, order[i * BATCH : (i + 1) * BATCH], axis=0, out=ring[i % 4], mode="clip")
        return samples // BATCH * BATCH

    def torch_pass() -> int:
        order = torch.from_numpy(generator.permutation(samples))
        for i in range(samples // BATCH):
            torch.index_select(torch_pool, 0, order[i * BATCH : (i + 1) * BATCH], out=torch_ring[i % 4])
        return samples // BATCH * BATCH

    return {"gather numpy": numpy_pass, "gather torch": torch_pass}


def extract(folder: Path, root: Path) -> None:
    """The shards as files in class folders."""
    for shard in sorted(folder.glob("train-*.tar")):
        with tarfile.open(shard) as archive:
            archive.extractall(root, filter="data")


def measure(folder: Path, args: argparse.Namespace, root: Path) -> dict[str, list[float]]:
    """Samples a second of everything, round by round."""
    import torch
    from lossfeed.train.data import brace
    from torch.utils.data import DataLoader

    extract(folder, root)
    files = Folder(root)
    url = brace(sorted(folder.glob("train-*.tar")))
    loaders = {
        f"DataLoader {n}": DataLoader(files, BATCH, shuffle=True, drop_last=True, num_workers=n, persistent_workers=n > 0) for n in (0, 2)
    }
    for name, loader in loaders.items():
        if name != "DataLoader 0":
            drain(iter(loader))  # starts the worker processes and fills the page cache
    passes: dict[str, Callable[[], int]] = {n: (lambda l=l: drain(iter(l))) for n, l in loaders.items()}
    passes.update(gathers(len(files)))
    results: dict[str, list[float]] = {}
    warm_up = Lossfeed(url, args.workers)
    warm_up.one_epoch()
    warm_up.close()
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}, torch {torch.__version__}", flush=True)
        ours = Lossfeed(url, args.workers)
        round_results = {"lossfeed cold": rate(ours.one_epoch, 0)}
        round_results["lossfeed warm"] = rate(ours.one_epoch, args.seconds)
        ours.close()
        for name, one_pass in passes.items():
            round_results[name] = rate(one_pass, args.seconds)
        for name, value in round_results.items():
            results.setdefault(name, []).append(value)
            print(f"  {name:<14} {value:>12,.0f} samples/s", flush=True)
    return results


def main() -> int:
    args = arguments()
    folder = cifar_folder(args.folder)
    if folder is None:
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("loader-rate", {"batch_size": BATCH, "shape": list(SHAPE), "workers": args.workers}, args.date, **where)
    with tempfile.TemporaryDirectory(prefix="lossfeed-rate-") as root:
        results = measure(folder, args, Path(root))
    median = {name: statistics.median(values) for name, values in results.items()}
    peer = max(median[n] for n in median if n.startswith("DataLoader"))
    warm = median["lossfeed warm"]
    ratios = {
        "cold ÷ best DataLoader": (median["lossfeed cold"] / peer, 5.0),
        "warm ÷ gather numpy": (warm / median["gather numpy"], 0.5),
        "warm ÷ gather torch": (warm / median["gather torch"], None),
    }
    print()
    for name, values in results.items():
        print(f"{name:<14} median {median[name]:>12,.0f}   best {max(values):>12,.0f} samples/s")
        record.add(
            {"what": name, "median_samples_per_s": round(median[name]), "best_samples_per_s": round(max(values)), "rounds": len(values)}
        )
    for name, (value, goal) in ratios.items():
        print(f"{name}: {value:.2f}" + ("" if goal is None else f" (goal {goal:g})"))
        record.add({"what": name, "ratio": round(value, 3), "goal": goal, "rounds": args.rounds})
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

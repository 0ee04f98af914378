"""A loader in use for a long time: is more memory, are more threads or files held at the end than after the beginning?

    python benches/scenarios/soak.py [--minutes 30]

Training without a network, over a store whose requests fail on purpose (``chaos``), with a cache, a disk tier, scores, and
all that a run may do between: iterators that are dropped in mid-epoch, states that are saved and loaded by a new loader,
a cache that shrinks and grows. What the process holds is looked at once every ten seconds. After a tenth of the time,
in which pools and allocators fill, it must stay where it is: the record has the least-squares slope of resident memory,
and the most threads and open files of the second tenth and of the last.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bounds import shards
from record import Record

BATCH, EVERY_S, SAMPLES = 64, 10.0, 6400


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def held() -> dict[str, float]:
    """What the process holds: MB of resident memory, threads, open files."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    threads = len(os.listdir("/proc/self/task"))
    return {"resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "threads": threads, "files": len(os.listdir("/proc/self/fd"))}


def watch(seen: list[dict[str, float]], stop: threading.Event) -> None:
    started = time.monotonic()
    while not stop.wait(EVERY_S):
        seen.append({"second": round(time.monotonic() - started, 1), **held()})


def train(folder: Path, disk: Path, until: float, seed: int) -> dict[str, int]:
    """Epochs until it is time; what was done."""
    import lossfeed as lf
    import torch

    rng = random.Random(seed)
    done = dict.fromkeys(("samples", "epochs", "loaders", "dropped", "resized"), 0)
    options: dict[str, Any] = {"disk": disk, "disk_bytes": "64MiB", "latency": 0.001, "retry_timeout": 120, "timeout": 2.0}
    while time.monotonic() < until:
        data = lf.open(str(folder / "*.tar"), chaos=seed + done["loaders"], checksums=True, **options)
        keywords = {"cache": "30%", "num_workers": 2, "seed": seed, "shuffle": True, "stats": False}
        sampler = rng.choice(("uniform", "cost-aware", "replay", "importance"))
        state: dict[str, Any] | None = None
        for _ in range(rng.randint(1, 3)):
            with lf.Loader(data, BATCH, sampler=sampler, **keywords) as loader:
                done["loaders"] += 1
                if state is not None:
                    loader.load_state_dict(state)
                for _ in range(rng.randint(1, 3)):
                    stop_at = rng.choice((None, None, rng.randint(1, SAMPLES // BATCH - 1)))
                    for number, batch in enumerate(loader):
                        done["samples"] += len(batch.ids)
                        loader.score_losses(torch.rand(len(batch.ids)), batch)
                        if rng.random() < 0.002:
                            loader.resize_cache(f"{rng.randint(5, 30)}%")
                            done["resized"] += 1
                        if number == stop_at or time.monotonic() > until:
                            done["dropped"] += 1
                            break
                    done["epochs"] += 1
                state = loader.state_dict()
        gc.collect()
    return done


def slope_mb_per_hour(seen: list[dict[str, float]]) -> float:
    import numpy as np

    seconds, resident = (np.array([look[name] for look in seen]) for name in ("second", "resident_mb"))
    return float(np.polyfit(seconds, resident, 1)[0] * 3600)


def main() -> int:
    args = arguments()
    where = {} if args.record is None else {"root": args.record}
    record = Record("soak", {"minutes": args.minutes, "seed": args.seed, "batch": BATCH, "samples": SAMPLES}, args.date, **where)
    seen: list[dict[str, float]] = []
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as made:
        folder, disk = Path(made) / "data", Path(made) / "disk"
        folder.mkdir()
        shards(folder, SAMPLES, 48)
        watcher = threading.Thread(target=watch, args=(seen, stop), daemon=True)
        watcher.start()
        done = train(folder, disk, time.monotonic() + 60 * args.minutes, args.seed)
        stop.set()
        watcher.join()
    tenth = max(1, len(seen) // 10)
    early, last, steady = seen[tenth : 2 * tenth], seen[-tenth:], seen[tenth:]
    if not early:
        print("too short to say anything: nothing was looked at twice")
        return 1

    def most(looks: list[dict[str, float]], name: str) -> float:
        return round(max(look[name] for look in looks), 1)

    run: dict[str, Any] = {"slope_mb_per_hour": round(slope_mb_per_hour(steady), 2), **done}
    for name in ("resident_mb", "threads", "files"):
        run |= {f"{name}_early": most(early, name), f"{name}_last": most(last, name)}
    record.add(run)
    print(", ".join(f"{name} {value}" for name, value in run.items()))
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Slow samples beside others: one in a hundred takes a hundred times as long, and what that costs beyond the mean.

    python benches/scenarios/slow_samples.py [--rounds 3] [--workers 2 4]

A Python dataset whose items sleep 0.2 ms, or 20 ms, so that nothing but waiting is measured; batches of 64, shuffled.
The bound is what so many workers could do if they never waited for each other: their number over the mean time of an
item. In turn: torch's DataLoader (processes, its defaults), and ours (threads, its defaults). Batches come in the same
order as without slow samples; nothing is moved from one batch to another.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from record import Record

FAST_S, SLOW_S, SHARE, BATCH = 0.0002, 0.02, 0.01, 64


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=25_600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


class Items:
    """Items that take their time."""

    thread_safe = True

    def __init__(self, samples: int) -> None:
        import numpy as np

        self.slow = np.random.default_rng(0).random(samples) < SHARE
        self.x = np.zeros(8, np.float32)

    def __len__(self) -> int:
        return len(self.slow)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        time.sleep(SLOW_S if self.slow[i] else FAST_S)
        return self.x, i


def mean_item_s(items: Items) -> float:
    """What an item takes by itself, slow ones by their share."""

    def took(of: float, times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            time.sleep(of)
        return (time.perf_counter() - started) / times

    share = float(items.slow.mean())
    return (1 - share) * took(FAST_S, 1000) + share * took(SLOW_S, 20)


def epoch(loader: Any) -> tuple[float, list[int]]:
    started, ids = time.perf_counter(), []
    for _, y in loader:
        ids.extend(y.tolist())
    return time.perf_counter() - started, ids


def main() -> int:
    import lossfeed as lf
    from torch.utils.data import DataLoader

    args = arguments()
    where = {} if args.record is None else {"root": args.record}
    record = Record("slow-samples", {"rounds": args.rounds, "samples": args.samples, "batch": BATCH}, args.date, **where)
    items = Items(args.samples)
    even = Items(args.samples)
    even.slow[:] = False
    for workers in args.workers:
        shares: dict[str, list[float]] = {"torch": [], "ours": []}
        of_torch = DataLoader(items, BATCH, shuffle=True, num_workers=workers, persistent_workers=True)
        next(iter(of_torch))  # its processes are there
        for round_ in range(args.rounds):
            mean = mean_item_s(items)
            orders = []
            for name, data in (("ours", items), ("even", even)):
                with lf.Loader(data, BATCH, shuffle=True, seed=round_, num_workers=workers, stats=False) as loader:
                    took, order = epoch(loader)
                orders.append(order)
                if name == "ours":
                    shares["ours"].append(args.samples * mean / workers / took)
            assert orders[0] == orders[1], "slow samples changed the order"
            shares["torch"].append(args.samples * mean / workers / epoch(of_torch)[0])
        del of_torch
        for name, found in shares.items():
            run = {"loader": name, "workers": workers, "share_of_bound": round(statistics.median(found), 3)}
            record.add({**run, "least": round(min(found), 3), "most": round(max(found), 3)})
            print(f"{name:<6} {workers} workers: {100 * run['share_of_bound']:.1f} % of the bound ({min(found):.3f} to {max(found):.3f})")
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

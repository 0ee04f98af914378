"""A linear head's loss without its logits, beside whole logits and torch's own: processor time and memory of a step.

    python benches/scenarios/linear_rate.py [--threads N] [--pairs 9]

    ours    lf.linear_cross_entropy(x, w, y, row_weight=q).backward(): a weighted mean, every row's scores included
    eager   (F.cross_entropy(F.linear(x, w), y, reduction="none") * q).mean().backward()
    chunked F.linear_cross_entropy(…, reduction="none", options=LinearCrossEntropyOptions()), (· * q).mean().backward()

Rows M = 1024, features H = 768, classes V = 32,768, float32. The time is the process's processor time, user and system
of all threads, because the machine may be busy; each round runs the three one after another, and a ratio is the median
of the rounds' ratios. The first two rounds are not counted. Memory is the growth of the resident peak over a step,
without the gradients of x and w. Goals: at most 1.05 of eager, at most 0.85 of chunked; at most 64 MiB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from record import Record

ROWS, FEATURES, CLASSES = 1024, 768, 32_768
GOALS = {"eager": 1.05, "chunked": 0.85}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="torch's threads (default: one a core)")
    parser.add_argument("--pairs", type=int, default=9, help="rounds that count")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def resident(key: str) -> float:
    """MiB of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(key))) / 1024


def main() -> int:
    args = arguments()
    threads = args.threads or len(os.sched_getaffinity(0))
    import torch
    import torch.nn.functional as F

    import lossfeed as lf

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x = torch.randn(ROWS, FEATURES, requires_grad=True)
    w = (torch.randn(CLASSES, FEATURES) * 0.03).requires_grad_()
    y, q = torch.randint(CLASSES, (ROWS,)), torch.rand(ROWS) * 2
    options = torch.nn.LinearCrossEntropyOptions()
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "ours": lambda: lf.linear_cross_entropy(x, w, y, row_weight=q),
        "eager": lambda: (F.cross_entropy(F.linear(x, w), y, reduction="none") * q).mean(),
        "chunked": lambda: (F.linear_cross_entropy(x, w, y, reduction="none", options=options) * q).mean(),
    }
    gradients = (x.numel() + w.numel()) * x.element_size() / 2**20
    taken: dict[str, list[float]] = {name: [] for name in ways}
    grown: dict[str, float] = {}
    found: dict[str, tuple[torch.Tensor, ...]] = {}
    for number in range(args.pairs + 2):
        for name, loss in ways.items():
            x.grad = w.grad = None
            Path("/proc/self/clear_refs").write_text("5")
            before, started = resident("VmRSS"), time.process_time()
            value = loss()
            value.backward()
            if number >= 2:
                taken[name].append(time.process_time() - started)
                grown[name] = max(grown.get(name, 0.0), resident("VmHWM") - before - gradients)
            else:
                found[name] = value.detach(), x.grad, w.grad  # type: ignore[assignment]
    where = {} if args.record is None else {"root": args.record}
    settings = {"threads": threads, "pairs": args.pairs, "rows": ROWS, "features": FEATURES, "classes": CLASSES}
    record = Record("linear-rate", settings, args.date, **where)
    for name, seconds in taken.items():
        ratios = [mine / its for mine, its in zip(taken["ours"], seconds, strict=True)]
        away = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found["ours"], found[name], strict=True))
        row = {
            "way": name,
            "cpu_s_median": round(statistics.median(seconds), 3),
            "cpu_s_least": round(min(seconds), 3),
            "ours_over_it": round(statistics.median(ratios), 3),
            "ours_over_it_most": round(max(ratios), 3),
            "goal": GOALS.get(name),
            "extra_mib": round(grown[name], 1),
            "logits_mib": ROWS * CLASSES * 4 / 2**20,
            "ours_away_from_it": f"{away:.1e}",
        }
        record.add(row)
        print(*(f"{key} {value}" for key, value in row.items() if value is not None), sep="  ", flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""How long until the first batch, when the data were opened before on this machine.

    python benches/scenarios/peers/start.py DATA [--rounds 7] [--goal 0.3]

DATA is what ``lossfeed.open`` takes: "train-*.tar" (quoted), one tar, a class folder. Each round is a fresh process
with torch imported already. One unmeasured round fills the index cache (for tar shards) and the file system's cache.
Medians and the range; exits 1 if the median of the sum is above the goal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# record.py lies one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from record import Record

STEPS = ("import", "open", "construct", "first batch")

ROUND = """
import json, sys, time
data, index, workers = sys.argv[1:]
import torch
marks = [time.perf_counter()]
import lossfeed as lf
marks.append(time.perf_counter())
opened = lf.open(data, index_cache=index)
marks.append(time.perf_counter())
loader = lf.Loader(opened, 256, shuffle=True, num_workers=int(workers) if workers else None)
marks.append(time.perf_counter())
batch = next(iter(loader))
int(batch.data.reshape(len(batch), -1)[:, 0].sum())
marks.append(time.perf_counter())
print(json.dumps([b - a for a, b in zip(marks, marks[1:])]))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", default="", help="loader threads (default: as many as the run needs)")
    parser.add_argument("--goal", type=float, default=0.3, help="seconds")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    rounds: list[list[float]] = []
    with tempfile.TemporaryDirectory(prefix="lossfeed-start-") as index:
        for number in range(args.rounds + 1):
            command = [sys.executable, "-c", ROUND, args.data, index, args.workers]
            spent = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            if number:
                rounds.append([*spent, sum(spent)])
    result: dict[str, object] = {"rounds": len(rounds), "goal_s": args.goal}
    for name, *values in zip((*STEPS, "sum"), *rounds, strict=True):
        median = statistics.median(values)
        result[f"{name.replace(' ', '_')}_s"] = round(median, 4)
        print(f"{name:<12} {median:8.4f} s   ({min(values):.4f} - {max(values):.4f})")
    result["all"] = [dict(zip((*STEPS, "sum"), values, strict=True)) for values in rounds]
    where = {} if args.record is None else {"root": args.record}
    record = Record("start", {"data": Path(args.data).name, "workers": args.workers}, args.date, **where)
    record.add(result)
    met = float(str(result["sum_s"])) <= args.goal
    print(f"goal {args.goal:g} s: {'met' if met else 'missed'}\n{record.json}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

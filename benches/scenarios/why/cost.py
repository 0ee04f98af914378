"""The cost of `lossfeed why` a training step, beside TraceML (``traceml-ai``) in the same run.

    python benches/scenarios/why/cost.py [--rounds 7] [--traceml PYTHON] [--record FOLDER]

The step is a small network whose computing is set to a millisecond and to ten; the samples are in memory. With a worker
process the loop waits for its hand-over. Rounds of the ways alternate; ``more`` is the median over rounds of a way's
step less the plain program's in the same round.
``--traceml`` names a Python that has ``traceml-ai`` and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from record import Record  # noqa: E402

PROGRAM = '''
import json, statistics, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset

def main(spin_ms, steps, workers, traced):
    torch.set_num_threads(1)
    if traced:
        import traceml_ai as traceml
        traceml.init(mode="auto")
    step = traceml.trace_step if traced else None
    x, y = torch.rand(8 * steps, 16), torch.zeros(8 * steps, dtype=torch.int64)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    times = []
    def one(x, y):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        until = time.thread_time() + spin_ms / 1000
        while time.thread_time() < until:
            pass
    last = None
    processor = time.thread_time()
    for x, y in DataLoader(TensorDataset(x, y), 8, num_workers=workers):
        if step is None:
            one(x, y)
        else:
            with step(model):
                one(x, y)
        now, used = time.perf_counter(), time.thread_time()
        times.append((now, used))
    walls = [b[0] - a[0] for a, b in zip(times[20:], times[21:])]
    used = [b[1] - a[1] for a, b in zip(times[20:], times[21:])]
    print("STEP", json.dumps({"wall_us": 1e6 * statistics.median(walls), "processor_us": 1e6 * statistics.fmean(used)}))

if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "traceml")
'''


def once(way: str, python: str, file: Path, spin_ms: float, steps: int, workers: int) -> dict[str, float]:
    """The step's median wall time and mean processor time of the training thread, in microseconds."""
    program = [python, str(file), str(spin_ms), str(steps), str(workers), way]
    command = [sys.executable, "-m", "lossfeed", "why", "--", *program] if way == "why" else program
    if way == "traceml":
        command = [str(Path(python).parent / "traceml"), "run", str(file), "--args", *program[2:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=file.parent)
    line = next((line for line in done.stdout.splitlines() if "STEP {" in line), None)
    if line is None:
        raise SystemExit(f"{way}: {done.stdout[-800:]}\n{done.stderr[-1500:]}")
    found: dict[str, float] = json.loads(line[line.index("{") :])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--traceml", help="a Python that has traceml-ai and torch")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    args = parser.parse_args()
    where = {} if args.record is None else {"root": args.record}
    record = Record("why-cost", {"rounds": args.rounds}, args.date, **where)
    ways = {"alone": sys.executable, "why": sys.executable} | ({"traceml": args.traceml} if args.traceml else {})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps.py"
        file.write_text(PROGRAM)
        for spin_ms, steps, workers in ((1.0, 1500, 0), (1.0, 1500, 1), (10.0, 300, 0)):
            found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for _ in range(args.rounds):
                for way, python in ways.items():
                    found[way].append(once(way, python, file, spin_ms, steps, workers))
            middle: dict[str, dict[str, float]] = {
                way: {key: statistics.median(one[key] for one in runs) for key in runs[0]}
                for way, runs in found.items()
            }
            for way, numbers in middle.items():
                pairs = list(zip(found[way], found["alone"], strict=True))
                more = {key: statistics.median(own[key] - alone[key] for own, alone in pairs) for key in numbers}
                row: dict[str, Any] = {"way": way, "step_ms": spin_ms, "workers": workers}
                row |= {key: round(value, 1) for key, value in numbers.items()}
                row |= {f"more_{key}": round(value, 1) for key, value in more.items()}
                row |= {"more_percent": round(100 * more["wall_us"] / middle["alone"]["wall_us"], 2)}
                record.add(row)
                print(json.dumps(row), flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

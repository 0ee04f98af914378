"""`lossfeed why` held to planted bottlenecks and healthy programs, and its what-ifs to what the changes bring.

    python benches/scenarios/why/accept.py [--only CASE …] [--program lossfeed] [--record FOLDER]

Each case of ``planted.py`` runs under ``why`` in two variants: as it is, and with other numbers (``VARIANTS``). Where
the report proposes a setting, the case runs again with it, and the step that came is held to the step that was
foretold. A report that foretells no step, where a setting would change it, counts as one that missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from planted import CASES, Case  # noqa: E402
from record import Record  # noqa: E402

#: Other numbers for each case, so that rules fit no single set.
VARIANTS: dict[str, list[str]] = {
    "source, no workers": ["item_ms=0.6", "step_ms=4", "batch_size=32"],
    "source, two workers": ["num_workers=3", "item_ms=12", "batch_size=8", "step_ms=5"],
    "decode, no workers": ["side=320", "step_ms=5", "batch_size=24"],
    "decode, one worker": ["side=480", "num_workers=2", "step_ms=3"],
    "python, one worker": ["num_workers=0", "rounds=8000", "step_ms=6"],
    "hand-over": ["pieces=3", "batch_size=96", "num_workers=2"],
    "pass start": ["num_workers=1", "epochs=4", "step_ms=15"],
    "ours, slow store": ["latency_ms=60", "bandwidth=250000", "batch_size=8"],
    "ours, slow decode": ["side=900", "batch_size=8"],
    "ours, slow Python": ["rounds=15000", "step_ms=2"],
    "ours, tiny cache": ["cache=20%", "bandwidth=400000", "step_ms=4"],
    "late scores": ["lag=8", "held=20", "step_ms=6"],
    "rank-behind, input": ["slow_rank=0", "item_ms=1", "num_workers=1", "step_ms=5"],
    "rank-behind, computing": ["slow_rank=1", "more_ms=8", "num_workers=1"],
    "busy": ["width=2048", "num_workers=2"],
    "item every step": ["num_workers=0", "width=1024"],
    "tiny model": ["num_workers=2", "steps=600", "batch_size=32"],
    "paused": ["num_workers=0", "pause=2", "step_ms=20"],
}


def run(lossfeed: list[str], name: str, case: Case, changes: list[str]) -> tuple[dict[str, Any], str]:
    """One run under `why`: its report, and what it printed."""
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={case.ranks}", "--standalone"]
    launcher = torchrun if case.ranks > 1 else []
    program = [sys.executable, *launcher, str(HERE / "planted.py"), name, *(["--set", *changes] if changes else [])]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        why = [*lossfeed, "why", "--json", str(report), "--", *program]
        done = subprocess.run(why, capture_output=True, text=True, timeout=300)
        if not report.exists():
            raise SystemExit(f"{name}: no report\n{done.stderr}")
        return json.loads(report.read_text()), done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--program", help="the lossfeed program, if not this Python's")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    args = parser.parse_args()
    where = {} if args.record is None else {"root": args.record}
    record = Record("why-planted", {"cases": len(CASES), "variants": 2}, args.date, **where)
    lossfeed = [args.program] if args.program else [sys.executable, "-m", "lossfeed"]
    right = near = expected = 0
    for name in args.only:
        case = CASES[name]
        for variant, changes in (("as it is", []), ("other numbers", VARIANTS[name])):
            report, text = run(lossfeed, name, case, changes)
            good = report["verdict"] in case.verdicts and report["cause"] in case.causes
            row: dict[str, Any] = {"case": name, "variant": variant, "load": round(os.getloadavg()[0], 1)}
            row |= {"verdict": report["verdict"], "cause": report["cause"] or "", "right": good}
            row |= {"why": report["why"], "next": report["next"] or ""}
            change = next((then for then in report["what_if"] if then["setting"]), None)
            if change is not None:
                after, _ = run(lossfeed, name, case, [*changes, f"{change['setting']}={change['value']}"])
                came = after["evidence"]["step_seconds"]
                error = change["then_seconds"] / came - 1
                row |= {"change": change["change"], "step_ms": round(1e3 * change["step_seconds"], 2)}
                row |= {"foretold_ms": round(1e3 * change["then_seconds"], 2), "came_ms": round(1e3 * came, 2)}
                row |= {"error": round(error, 3)}
                near += abs(error) <= 0.2
            expected += case.foretold
            right += good
            record.add(row)
            print(json.dumps(row, ensure_ascii=False), flush=True)
            if not good:
                print(text[-1500:], flush=True)
    print(f"\nverdicts right: {right} of {2 * len(args.only)}; what-ifs within 20 %: {near} of {expected}")
    print(record.csv)
    return int(right < 2 * len(args.only))


if __name__ == "__main__":
    raise SystemExit(main())

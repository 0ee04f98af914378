"""Two builds of lossfeed side by side: did a change cost speed?

    python benches/scenarios/beside.py --before PYTHON --after PYTHON [FOLDER] [--rounds 7] [--index BEFORE AFTER]

Each of the two interpreters has one build installed. Every piece of work runs in a fresh process of each, in turn, so
that a slow minute of the machine meets both. Counted is processor time (all threads) of a process's quickest epoch or
call, which other work on the machine disturbs least; the median ratio of neighbouring pairs is the answer. For one
build twice, name one interpreter twice: that shows the noise.

    cold       an epoch of CIFAR-10's JPEG shards, read and decoded (FOLDER, or $LOSSFEED_CIFAR)
    warm       epochs of the same out of the cache, decoded
    arrays     epochs of rows of 3 KB in memory, without a cache
    scored     epochs with scores, cost-aware, importance policy: draws, beliefs, admissions
    forward    lf.sample_scores of 4096 x 1000 float32 logits, on one core
    step       lf.cross_entropy(...).backward() of the same
    accesses, updates
               what `cargo bench -p lossfeed-benches --bench index` of each build gives, with --index and the two
               executables (cargo names them with --no-run): by the clock on the wall, one thread, the mean over all
               policies
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORK = ("cold", "warm", "arrays", "scored", "forward", "step")
#: Samples in the index: its tables are far larger than any processor's cache.
INDEXED = "4000000"


def spent(work: Any, units: int, seconds: float) -> float:
    """Units a second of processor time: of the quickest call within at least so many seconds. Others on the machine
    only ever slow one."""
    quickest, until = float("inf"), time.process_time() + seconds
    while time.process_time() < until or quickest == float("inf"):
        started = time.process_time()
        work()
        quickest = min(quickest, time.process_time() - started)
    return units / quickest


def epoch(loader: Any, score: bool = False) -> None:
    for batch in loader:
        if score:
            loader.score_losses(batch.target.float() + 0.5, batch)


def measure(name: str, folder: str | None) -> float:
    """What one fresh process measures."""
    import torch

    import lossfeed as lf

    torch.manual_seed(0)
    common: dict[str, Any] = {"num_workers": 1, "stats": False, "seed": 1}
    if name in ("forward", "step"):
        logits = torch.randn(4096, 1000)
        target = torch.randint(0, 1000, (4096,))
        if name == "forward":
            call = lambda: lf.sample_scores(logits, target)  # noqa: E731
        else:
            leaf = logits.clone().requires_grad_()

            def call() -> None:
                leaf.grad = None
                lf.cross_entropy(leaf, target).backward()

        spent(call, 1, 0.3)
        return spent(call, 4096, 2.0)
    if name in ("cold", "warm"):
        data = lf.open(str(Path(folder or ".") / "train-{00..09}.tar"))
        if name == "cold":
            loader = lf.Loader(data, 256, shuffle=True, **common)
        else:
            loader = lf.Loader(data, 256, shuffle=True, cache=1.0, cache_form="decoded", **common)
            epoch(loader)
        return spent(lambda: epoch(loader), len(data), 2.0)
    rows = torch.randint(0, 256, (50_000, 32, 32, 3), dtype=torch.uint8)
    pair = (rows, torch.arange(50_000) % 10)
    if name == "arrays":
        loader = lf.Loader(pair, 256, shuffle=True, **common)
    else:
        loader = lf.Loader(pair, 256, sampler="cost-aware", policy="importance", cache=0.2, **common)
    scored = name == "scored"
    epoch(loader, scored)
    return spent(lambda: epoch(loader, scored), 50_000, 2.0)


def index(executable: str) -> dict[str, float]:
    """Accesses and updates a second of one run over all policies, each policy with the same number of both."""
    said = subprocess.run([executable, "--bench"], stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"LOSSFEED_SAMPLES": INDEXED})
    rates = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    return {name: statistics.harmonic_mean([rate[f"{name}_per_s"] for rate in rates]) for name in ("accesses", "updates")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.environ.get("LOSSFEED_CIFAR"))
    parser.add_argument("--before")
    parser.add_argument("--after")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work", nargs="+", choices=WORK, default=list(WORK))
    parser.add_argument("--index", nargs=2, metavar=("BEFORE", "AFTER"), help="the two builds' index benchmarks")
    parser.add_argument("--measure", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--record", type=Path, help="a JSON of all figures")
    args = parser.parse_args()
    if args.measure:
        print(measure(args.measure, args.folder))
        return
    if not (args.before and args.after):
        parser.error("--before and --after: the interpreters of two environments")
    work = [name for name in args.work if args.folder or name not in ("cold", "warm")]
    names = [*work, *(("accesses", "updates") if args.index else ())]
    figures: dict[str, dict[str, list[float]]] = {name: {"before": [], "after": []} for name in names}
    for round_ in range(args.rounds):
        # Who goes first changes, so that neither always finds the other's caches.
        order = ("before", "after") if round_ % 2 == 0 else ("after", "before")
        for side in order if args.index else ():
            for name, rate in index(args.index[side == "after"]).items():
                figures[name][side].append(rate)
        for name in work:
            for side in order:
                argv = [getattr(args, side), __file__, *([args.folder] if args.folder else []), "--measure", name]
                alone = {"PYTHONWARNINGS": "ignore", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
                said = subprocess.run(argv, stdout=subprocess.PIPE, text=True, env=os.environ | alone)
                if said.returncode != 0:
                    print(f"{side}, {name}: the process ended with status {said.returncode}", file=sys.stderr)
                figures[name][side].append(float(said.stdout))
    print(f"{'':10}{'before':>14}{'after':>14}{'ratio':>8}{'least':>8}{'most':>8}   samples a processor-second")
    for name, sides in figures.items():
        ratios = [after / before for before, after in zip(sides["before"], sides["after"], strict=True)]
        medians = [statistics.median(sides[side]) for side in ("before", "after")]
        print(f"{name:10}{medians[0]:14,.0f}{medians[1]:14,.0f}{statistics.median(ratios):8.3f}{min(ratios):8.3f}{max(ratios):8.3f}")
    if args.record:
        from record import machine

        head = {"name": "beside", "date": datetime.date.today().isoformat(), "machine": machine(), "rounds": args.rounds}
        args.record.write_text(json.dumps(head | {"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""The loss on the CPU, ours and torch's, in one run: milliseconds and ratios.

    python benches/scenarios/loss_rate.py [--threads N] [--rounds 15]

    forward     lf.sample_scores (loss, gradient norm, entropy, ranks)  beside  F.cross_entropy(reduction="none"), no gradient
    step        lf.cross_entropy(...).backward(), scores included        beside  F.cross_entropy(...).backward()

Random logits of the shapes that train: ImageNet's thousand classes and GPT-2's vocabulary. Each is timed alone, call
after call, and then in turn with the other, as a loss comes behind a model's forward: what the other left in the
caches, and its threads, which go on spinning for milliseconds (ours are the same ones). Medians; the best calls beside
them. Goals (float32): forward at least 2 × as fast, step at least 1.5 ×. The first calls warm allocator and threads up
and are not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from record import Record

SHAPES = ((4096, 1000), (256, 50_257))
GOALS = {"forward": 2.0, "step": 1.5}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="torch's threads, which the loss shares (default: one a core)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def alone(pair: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each, call after call."""
    return {name: in_turn({name: call}, rounds)[name] for name, call in pair.items()}


def in_turn(pair: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each, one call of one after one of the other."""
    taken: dict[str, list[float]] = {name: [] for name in pair}
    for number in range(rounds + 3):
        for name, call in pair.items():
            started = time.perf_counter()
            call()
            if number >= 3:
                taken[name].append((time.perf_counter() - started) * 1e3)
    return taken


def main() -> int:
    args = arguments()
    threads = args.threads or len(os.sched_getaffinity(0))
    import torch
    import torch.nn.functional as F

    import lossfeed as lf

    torch.set_num_threads(threads)
    where = {} if args.record is None else {"root": args.record}
    record = Record("loss-rate", {"threads": threads, "rounds": args.rounds}, args.date, **where)
    for dtype in (torch.float32, torch.bfloat16):
        for rows, classes in SHAPES:
            generator = torch.Generator().manual_seed(0)
            logits = (torch.rand(rows, classes, generator=generator) * 12 - 6).to(dtype)
            target = torch.randint(classes, (rows,), generator=generator)
            leaf = logits.clone().requires_grad_()

            def step(loss: Callable[..., torch.Tensor], leaf: torch.Tensor = leaf, target: torch.Tensor = target) -> None:
                leaf.grad = None
                loss(leaf, target).backward()

            pairs = {
                "forward": {
                    "ours": lambda z=logits, y=target: lf.sample_scores(z, y),
                    "torch": lambda z=logits, y=target: F.cross_entropy(z, y, reduction="none"),
                },
                "step": {"ours": lambda: step(lf.cross_entropy), "torch": lambda: step(F.cross_entropy)},
            }
            for what, pair in pairs.items():
                for how, measure in (("alone", alone), ("in turn", in_turn)):
                    taken = measure(pair, args.rounds)
                    ours, theirs = (statistics.median(taken[name]) for name in ("ours", "torch"))
                    goal = GOALS[what] if dtype == torch.float32 else None
                    kind = str(dtype).removeprefix("torch.")
                    record.add(
                        {
                            "what": what,
                            "how": how,
                            "rows": rows,
                            "classes": classes,
                            "dtype": kind,
                            "ours_median_ms": round(ours, 3),
                            "ours_best_ms": round(min(taken["ours"]), 3),
                            "torch_median_ms": round(theirs, 3),
                            "torch_best_ms": round(min(taken["torch"]), 3),
                            "ratio": round(theirs / ours, 2),
                            "goal": goal,
                        }
                    )
                    print(
                        f"{what:<8} {how:<8} {rows} x {classes} {kind:<9} ours {ours:8.2f} ms  torch {theirs:8.2f} ms  {theirs / ours:5.2f} x"
                        + ("" if goal is None else f"  (goal {goal:g} x)"),
                        flush=True,
                    )
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

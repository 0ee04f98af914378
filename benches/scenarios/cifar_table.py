"""The table of ``lossfeed train`` on CIFAR-10: what each way of feeding costs and what it does to accuracy.

    python benches/scenarios/cifar_table.py [FOLDER] [--processes 2 --threads 1]

Seventeen ways, 10 epochs at equal steps, a cache for 20 % of the samples, 3 paired seeds; pictures are shifted and
mirrored anew for every delivery unless ``--augment none`` says otherwise. Every finished run goes into the
record at once, and runs that are there already are not repeated: stop and resume at will. Several processes share the
work, on one machine, each with its own torch threads.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arranged import WAYS, arranged
from record import Record, cifar_folder

RECIPES = (
    "uniform+lru",
    "uniform+minio",
    "shade:repeats=1",
    "shade:repeats=2",
    "shade:repeats=3",
    "importance",
    "cost-aware:kappa=16",
    "cost-aware:kappa=64",
    "cost-aware",
    # The control: the same tilt towards cached samples, steered by noise.
    "cost-aware:random_scores=1",
    # The other control: the cache's reuse without any score.
    "echo",
    "echo:fresh=0.125",
    "replay",
    "replay:fresh=0.125",
    # One score for a batch, the mean of its losses: as BLS scores samples.
    "replay:scores=batch",
    "cost-aware:scores=batch",
    # As "replay", but noise decides what is used again.
    "replay:fresh=0.125:random_scores=1",
)
# The order in which runs are worth having when there is no time for all of them.
FIRST = (
    "uniform+minio",
    "replay:fresh=0.125",
    "echo:fresh=0.125",
    "cost-aware",
    "shade:repeats=1",
    "shade:repeats=3",
    "cost-aware:random_scores=1",
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="CIFAR-10 as train-*.tar and test-*.tar (default: $LOSSFEED_CIFAR)")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="comma-separated, as for lossfeed train --compare")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="begin here: the seeds before it were run on another machine")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, help="stop every run after so many steps (default: all epochs)")
    parser.add_argument("--cache", default="20%")
    parser.add_argument("--augment", choices=("none", "crop", "crop-flip"), default="crop-flip")
    parser.add_argument("--arrange", choices=WAYS, default=WAYS[0], help="how the training shards are laid out: see arranged.py")
    parser.add_argument("--width", type=int, default=24, help="channels of the network's first stage")
    parser.add_argument("--depth", type=int, default=1, help="convolutions in each stage of the network")
    parser.add_argument("--wrong-labels", default="0%", help="the share of training samples whose label is wrong")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, help="torch threads a process (default: torch's)")
    parser.add_argument("--workers", type=int, default=1, help="loader threads a process")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    folder = cifar_folder(args.folder)
    if folder is None:
        return 0
    folder = arranged(folder, args.arrange, Path(tempfile.gettempdir()) / f"lossfeed-arranged-{os.getuid()}")
    given = {
        "compare": args.recipes,
        "epochs": args.epochs,
        "steps": args.steps,
        "cache": args.cache,
        "seeds": args.seeds,
        "workers": args.workers,
        "augment": args.augment,
        "width": args.width,
    }
    # Wall times depend on how the cores are shared, the other columns do not; both are settings of the record.
    sharing = {"processes": args.processes, "threads": args.threads, "first_seed": args.first_seed}
    settings = {**{k: v for k, v in given.items() if k not in ("compare", "seeds")}, "batch_size": 128, "lr": 0.05}
    name = "cifar" if args.augment == "none" else f"cifar-{args.augment}"
    if args.depth > 1:
        given["depth"] = settings["depth"] = args.depth
        name += f"-depth{args.depth}"
    if args.width != 24:
        name += f"-width{args.width}"
    if args.arrange != WAYS[0]:
        settings["arrange"] = args.arrange
        name += f"-{args.arrange}"
    if (shards := len(list(folder.glob("train-*.tar")))) != 10:
        settings["shards"] = shards
        name += f"-shards{shards}"
    if (wrong := args.wrong_labels.rstrip("%")) != "0":
        given["wrong_labels"] = settings["wrong_labels"] = f"{wrong}%"
        name += f"-wrong{wrong}"
    where = {} if args.record is None else {"root": args.record}
    record = Record(name, settings, args.date, **where)
    if not args.child and args.processes > 1:
        children = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--child"]) for _ in range(args.processes)]
        try:
            failed = [child.wait() for child in children]
        finally:
            for child in children:
                child.terminate()
        if any(failed):
            return 1
    else:
        work(record, folder, given, sharing)
    if not args.child:
        show(record)
    return 0


def work(record: Record, folder: Path, given: dict, sharing: dict) -> None:
    """Takes (recipe, seed) pairs that nobody has finished or is working on until there are none left."""
    import torch
    from lossfeed.train import data, job, run
    from lossfeed.train.options import Options

    if sharing["threads"]:
        torch.set_num_threads(sharing["threads"])
    options = Options.from_mapping({**given, "data": str(folder), "batch_size": 128, "lr": 0.05, "device": "cpu"})
    recipes = sorted(options.compare, key=lambda r: FIRST.index(r.label) if r.label in FIRST else len(FIRST))
    shared = None
    for seed in range(sharing["first_seed"], options.seeds):
        for recipe in recipes:
            with record.locked(f"{recipe.label} {seed}", wait=False) as mine:
                if not mine or any((r["recipe"], r["seed"]) == (recipe.label, seed) for r in record.runs()):
                    continue
                shared = shared or job.prepare(options, data.find(str(folder), options.work_dir))
                started = time.time()
                result = run.train(shared, recipe, seed)
                record.add({**result.as_dict(), "processes": sharing["processes"], "threads": sharing["threads"]})
                print(
                    f"{recipe.label} seed {seed}: accuracy {100 * result.accuracy:.2f} %, {result.fetched_samples:,} fetched, "
                    f"hits {100 * result.hit_ratio:.1f} % ({100 * result.hit_ratio_last:.1f} % in the last epoch), "
                    f"seen {100 * result.coverage:.1f} % an epoch ({time.time() - started:.0f} s)",
                    flush=True,
                )


def show(record: Record) -> None:
    """Prints the table of everything recorded, recipes in their usual order."""
    from lossfeed.train import table
    from lossfeed.train.run import RunResult

    order = {name: i for i, name in enumerate(RECIPES)}
    fields = RunResult.__dataclass_fields__
    runs = [RunResult(**{k: v for k, v in r.items() if k in fields}) for r in record.runs()]
    runs.sort(key=lambda r: (r.recipe != "uniform+minio", order.get(r.recipe, len(order)), r.seed))
    print(table.render(runs, 140))
    print(f"\n{record.csv}")


if __name__ == "__main__":
    sys.exit(main())

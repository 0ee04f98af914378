"""DLIO's accelerator utilisation on one slow folder: torch's DataLoader and lossfeed, at more and more accelerators.

    V/bin/python benches/scenarios/dlio/run.py WORK

See README.md beside it for how V is made. WORK keeps the generated pictures and DLIO's own output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from record import Record  # noqa: E402

#: Per loader: DLIO's `reader` settings and the environment of `lossfeed_dlio.py`.
OURS = {"data_loader_classname": "lossfeed_dlio.LossfeedDataLoader", "data_loader_sampler": "index"}
#: What lossfeed keeps, and how much it reads ahead: where nothing is said, what it does by itself.
KEPT = {"": {}, "-cache": {"LOSSFEED_DLIO_CACHE": "CACHE"}, "-disk": {"LOSSFEED_DLIO_DISK": "DISK"}}
AHEAD = {"": {}} | {f"-ahead-{ahead}": {"LOSSFEED_DLIO_READ_AHEAD": ahead} for ahead in ("0", "4MiB", "128MiB")}
FEEDS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    **{f"torch-{workers}": ({"read_threads": workers}, {}) for workers in (2, 4, 8)},
    **{f"lossfeed{kept}{ahead}": (OURS, KEPT[kept] | AHEAD[ahead]) for kept in KEPT for ahead in AHEAD},
    **{f"lossfeed{kept}-8": (OURS, KEPT[kept] | {"LOSSFEED_DLIO_WORKERS": "8"}) for kept in ("-cache", "-disk")},
}
USUAL = ("torch-2", "torch-4", "torch-8", *(f"lossfeed{kept}{ahead}" for kept in KEPT for ahead in ("", "-ahead-0")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--feeds", default=",".join(USUAL), help=f"of {', '.join(FEEDS)}")
    parser.add_argument("--accelerators", default="1,2,3,4")
    parser.add_argument("--rounds", type=int, default=3, help="every pair so often, in turn")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--files", type=int, default=672)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--step", type=float, default=0.2, help="seconds an accelerator computes a batch")
    parser.add_argument("--latency", type=float, default=0.02, help="seconds to open a file, and until it is read")
    parser.add_argument("--bandwidth", type=float, default=8e6, help="bytes a second for all accelerators")
    parser.add_argument("--kept", type=float, default=0.6, help="share of the data that lossfeed-cache may keep")
    parser.add_argument("--date", help="of the record, where it is not today's")
    parser.add_argument("--name", default="dlio")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    args.work = args.work.resolve()
    library = args.work / "slow_files.so"
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", library, HERE / "slow_files.cpp", "-ldl"], check=True)
    generate(args)
    size = sum(f.stat().st_size for f in (args.work / "data/train").rglob("*.jpeg"))
    others = ("work", "date", "name", "rounds", "feeds", "accelerators")
    chosen = {k: v for k, v in vars(args).items() if k not in others}
    settings = {**chosen, "bytes": size, "picture": "388 x 388 grey noise, JPEG", "dlio": "2.0.0"}
    record = Record(args.name, settings, args.date)
    counts = [int(n) for n in args.accelerators.split(",")]
    for turn in range(args.rounds):
        for count in counts:
            feeds = args.feeds.split(",")
            random.Random(turn).shuffle(feeds)
            for feed in feeds:
                row = measure(args, library, size, feed, count) | {"round": turn}
                record.add(row)
                print(f"{feed:16} {count} accelerators: AU {row['au']}, warm {row['au_warm']:.1f}", flush=True)


def dlio(args: argparse.Namespace, count: int, more: dict[str, Any], env: dict[str, str], out: Path) -> None:
    """One run of DLIO with `count` emulated accelerators."""
    workload: dict[str, Any] = {
        "framework": "pytorch",
        "workflow.evaluation": False,
        "dataset.data_folder": "data",
        "dataset.format": "jpeg",
        "dataset.num_files_train": args.files,
        "dataset.num_files_eval": 0,
        "dataset.num_samples_per_file": 1,
        "dataset.num_subfolders_train": 4,
        "dataset.num_subfolders_eval": 0,
        "dataset.record_length": 388 * 388,
        "storage.storage_root": args.work,
        "reader.data_loader": "pytorch",
        "reader.batch_size": args.batch,
        "reader.sample_shuffle": "seed",
        "reader.prefetch_size": 16,
        "train.epochs": args.epochs,
        "train.computation_time": args.step,
        "output.folder": out,
        **more,
    }
    words = [f"++workload.{key}={value}" for key, value in workload.items()]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(count)]
    if env:
        command += ["env", *(f"{key}={value}" for key, value in env.items())]
    command += [sys.executable, str(HERE / "start.py"), "workload=default", f"hydra.run.dir={out}", *words]
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "said", "w") as said:
        done = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, cwd=out, timeout=900)
    if done.returncode:
        raise SystemExit(f"DLIO ended with {done.returncode}: {(out / 'said').read_text()[-3000:]}")


def generate(args: argparse.Namespace) -> None:
    if len(list((args.work / "data/train").rglob("*.jpeg"))) == args.files:
        return
    shutil.rmtree(args.work / "data", ignore_errors=True)
    dlio(args, 1, {"workflow.generate_data": True, "workflow.train": False}, {}, args.work / "generated")


def measure(args: argparse.Namespace, library: Path, size: int, feed: str, count: int) -> dict[str, Any]:
    reader, ours = FEEDS[feed]
    with tempfile.TemporaryDirectory(dir=args.work) as scratch:
        values = {"CACHE": str(int(size * args.kept / count)), "DISK": f"{scratch}/disk"}
        env = {
            "LD_PRELOAD": str(library),
            "SLOW_FOLDER": str(args.work / "data"),
            "SLOW_LATENCY_S": str(args.latency),
            "SLOW_BYTES_PER_S": str(args.bandwidth),
            "SLOW_LINK": f"{scratch}/link",
            "PYTHONPATH": str(HERE),
            "OMP_NUM_THREADS": "1",
            "LOCAL_WORLD_SIZE": str(count),
            **{key: values.get(value, value) for key, value in ours.items()},
        }
        out = args.work / "out" / f"{feed}-{count}"
        shutil.rmtree(out, ignore_errors=True)
        before = os.getloadavg()[0]
        dlio(args, count, {f"reader.{key}": value for key, value in reader.items()}, env, out)
        metric = json.loads((out / "summary.json").read_text())["metric"]
    epochs = metric["train_au_percentage"]
    return {
        "feed": feed,
        "accelerators": count,
        "au": [round(au, 1) for au in epochs],
        "au_mean": round(metric["train_au_mean_percentage"], 1),
        "au_warm": round(sum(epochs[1:]) / max(len(epochs) - 1, 1), 1),
        "samples_per_s": round(metric["train_throughput_mean_samples_per_second"], 1),
        "load_before": round(before, 1),
    }


if __name__ == "__main__":
    main()

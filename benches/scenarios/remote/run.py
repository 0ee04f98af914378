"""Time to accuracy behind a slow object store: lossfeed beside other loaders, in one run.

    python run.py DATA [--ratios 10,4,1] [--only FEED,FEED] [--together 3] [--python mosaicml-streaming=INTERPRETER]

DATA is a folder of CIFAR-10's train-*.tar and test-*.tar. README.md in this folder says how the peers are installed and
what is compared. Finished trainings go into the record at once and are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

# record.py lies one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from feeds import BATCH, CACHE, FEEDS, Feed, Lossfeed, Place
from pictures import KINDS
from record import Record

import shards

HERE = Path(__file__).resolve().parent
LATENCY_S = 0.01


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, help="folder of the formats, kept between runs (default: under the temporary folder)")
    parser.add_argument("--pictures", choices=KINDS, default="small", help="CIFAR-10's own, or 4,000 of them blown up to 108 KB")
    parser.add_argument("--ratios", default="10,4,1", help="how often the compute of an epoch one read of the pictures takes")
    parser.add_argument("--only", default="", help="feeds: see feeds.py (default: all)")
    parser.add_argument("--python", action="append", default=[], metavar="PACKAGE=INTERPRETER", help="for a package with its own venv")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch threads of a training")
    parser.add_argument("--together", type=int, default=1, help="trainings at a time, each with a store of its own")
    parser.add_argument("--step-ms", type=float, help="what a step takes by itself (default: measured first)")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


@dataclass
class Training:
    """One that has begun, and the store that it reads."""

    process: subprocess.Popen
    store: subprocess.Popen
    out: IO[str]
    errors: IO[str]

    def end(self) -> dict[str, Any]:
        """What it took, or why it failed."""
        try:
            code = self.process.wait()
        finally:
            self.store.kill()
        for file in (self.out, self.errors):
            file.seek(0)
        if code:
            last = [line for line in self.errors.read().splitlines() if line.strip()] or ["no message"]
            return {"error": f"{last[-1][:300]} (exit {code})"}
        return json.loads(self.out.read().strip().splitlines()[-1])


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work = args.work or Path(tempfile.gettempdir()) / f"lossfeed-remote-{args.pictures}"
        self.kind = KINDS[args.pictures]
        self.pythons = dict(pair.split("=", 1) for pair in args.python)

    def python(self, package: str) -> str:
        return self.pythons.get(package, sys.executable)

    def prepare(self, feeds: list[Feed]) -> None:
        forms = {"objects": "lossfeed", **{feed.form: feed.package for feed in feeds}}
        for form, package in forms.items():
            shards.prepare(self.args.data, self.work, form, self.kind, self.python(package))
        shards.judged(self.args.data, self.work, self.kind)

    def begin(self, feed: Feed, bandwidth: float, epochs: int) -> Training:
        command = [sys.executable, str(HERE / "store.py"), str(self.work), "--latency", str(LATENCY_S)]
        store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert store.stdout is not None
        url = f"http://127.0.0.1:{int(store.stdout.readline())}"
        if feed.package == "lossfeed":
            # Opened once, unthrottled: the index is kept, as the others' own were written with their shards.
            Lossfeed.open(Place(url, self.work / "scratch" / "first", [], 0, 0, self.kind))
        with urllib.request.urlopen(f"{url}/-/bandwidth/{bandwidth:.0f}"):
            pass
        given = [feed.name, url, str(self.work), str(self.args.data)]
        options = {"--pictures": self.kind.name, "--epochs": epochs, "--seed": self.args.seed, "--threads": self.args.threads}
        command = [self.python(feed.package), str(HERE / "train.py"), *given, *(str(x) for pair in options.items() for x in pair)]
        # Into files: a pipe that nobody reads yet, because others are waited for, would stop a loader that says much.
        out, errors = (tempfile.TemporaryFile("w+") for _ in range(2))
        return Training(subprocess.Popen(command, stdout=out, stderr=errors), store, out, errors)

    def step_ms(self) -> float:
        """A step of the network on pictures in memory: the median of its epochs but the first."""
        if self.args.step_ms:
            return self.args.step_ms
        found = self.begin(FEEDS["in-memory"], 1e9, 4).end()
        if "error" in found:
            raise SystemExit(f"steps could not be measured: {found['error']}")
        ends = found["epoch_ends_s"]
        return 1e3 * statistics.median(b - a for a, b in zip(ends, ends[1:], strict=False)) / self.steps()

    def steps(self) -> int:
        """Steps an epoch."""
        return sum(1 for _ in (self.work / "bucket" / "objects").iterdir()) // BATCH


def main() -> int:
    args = arguments()
    named = [name for name in args.only.split(",") if name] or [name for name in FEEDS if name != "in-memory"]
    bench = Bench(args)
    feeds = [FEEDS[name] for name in named]
    bench.prepare(feeds)
    step_ms = bench.step_ms()
    pictures, epoch_s = shards.size(bench.work, "objects"), bench.steps() * step_ms / 1e3
    print(f"a step takes {step_ms:.1f} ms, an epoch {epoch_s:.1f} s; the pictures are {pictures / 1e6:.1f} MB", flush=True)
    settings = {"epochs": args.epochs, "batch_size": BATCH, "cache": CACHE, "latency_s": LATENCY_S, "threads": args.threads}
    name = "remote"
    if bench.kind.large:
        name, settings = f"{name}-{bench.kind.name}", {**settings, "pictures": bench.kind.name}
    record = Record(name, settings, args.date, **({} if args.record is None else {"root": args.record}))
    for ratio in (float(text) for text in args.ratios.split(",")):
        bandwidth = pictures / (ratio * epoch_s)
        done = {run["feed"] for run in record.runs() if run["ratio"] == ratio and run["seed"] == args.seed}
        left = [feed for feed in feeds if feed.name not in done]
        for first in range(0, len(left), args.together):
            begun = [(feed, bench.begin(feed, bandwidth, args.epochs)) for feed in left[first : first + args.together]]
            for feed, training in begun:
                found = training.end()
                run = {"feed": feed.name, "seed": args.seed, "ratio": ratio, "bandwidth": round(bandwidth), "together": len(begun)}
                run |= {"step_ms": round(step_ms, 2), "read_bytes_of_form": shards.size(bench.work, feed.form), **found}
                print({k: v for k, v in run.items() if k != "epoch_ends_s"}, flush=True)
                if "error" not in found:
                    record.add(run)
    show(record)
    return 0


def show(record: Record) -> None:
    """A table for each ratio, the quickest first."""
    for ratio in sorted({run["ratio"] for run in record.runs()}, reverse=True):
        print(f"\nOne read of the pictures takes {ratio:g}x the compute of an epoch\n")
        print("| | seconds | of them waiting | first epoch, s | read, MB | requests | accuracy % |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for run in sorted((r for r in record.runs() if r["ratio"] == ratio), key=lambda r: r["seconds"]):
            numbers = f"{run['seconds']:.0f} | {run['waited_s']:.0f} | {run['first_epoch_s']:.0f} | {run['bytes'] / 1e6:.0f}"
            print(f"| {run['feed']} | {numbers} | {run['requests']:,} | {100 * run['accuracy']:.1f} |")
    print(f"\n{record.csv}")


if __name__ == "__main__":
    sys.exit(main())

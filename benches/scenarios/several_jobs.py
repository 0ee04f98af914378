"""Three training jobs that share one slow store: `lossfeed allocate --apply --watch` beside an equal split.

    python benches/scenarios/several_jobs.py [--rounds 1] [--quick] [--sharing sjf]

Each job is a process with a loader of its own; its compute is a sleep, so that its ideal rate is known. All read from
one store whose bandwidth they share. Two jobs begin together, the third comes later, and the first ends first. A model
in small steps, written apart from the command's own division, predicts when each job ends: jobs hit what was cached
when their epoch began, and the link goes by what each misses at the moment. Compared is the time from a job's first
batch to its last. Rules other than ``fifo`` are measured without a model.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from record import Record

HERE = Path(__file__).resolve().parent
BATCH = 10
#: The store has more than the jobs are given together: what limits them is the limits.
STORE_SPARE = 1.15
#: Beside an equal split of what there is among the jobs that run; the model knows the first.
SHARING = ("fifo", "sjf", "max-min", "aiv")


@dataclass(frozen=True)
class Job:
    """A job; it reads ``ideal`` bytes a second if it never waits."""

    name: str
    arrives_s: float
    ideal: float
    epochs: int


@dataclass(frozen=True)
class Setting:
    samples: int
    sample_bytes: int
    cache: float
    link: float
    jobs: tuple[Job, ...]

    @property
    def dataset(self) -> float:
        return float(self.samples * self.sample_bytes)


FULL = Setting(600, 10_000, 7e6, 2e6, (Job("a", 0, 4e6, 16), Job("b", 0, 1.5e6, 12), Job("c", 20, 1e6, 10)))
QUICK = Setting(100, 10_000, 1.2e6, 2e6, (Job("a", 0, 4e6, 6), Job("b", 0, 1.5e6, 4), Job("c", 2, 1e6, 3)))


def predicted(setting: Setting, sharing: str, step_s: float = 0.01) -> dict[str, float]:
    """Seconds that each job takes, by the model."""

    @dataclass
    class State:
        job: Job
        filled: float = 0.0
        hit: float = 0.0
        left: float = 0.0
        epochs: int = 0

    def fair(wanted: list[float], total: float) -> list[float]:
        given = [0.0] * len(wanted)
        waiting = sorted(range(len(wanted)), key=lambda k: wanted[k])
        for place, k in enumerate(waiting):
            given[k] = min(wanted[k], total / (len(waiting) - place))
            total -= given[k]
        return given

    data, now = setting.dataset, 0.0
    to_come = sorted(setting.jobs, key=lambda job: job.arrives_s)
    running: list[State] = []
    took: dict[str, float] = {}
    while to_come or running:
        while to_come and to_come[0].arrives_s <= now:
            running.append(State(to_come.pop(0), left=data))
        if sharing == "equal-split":
            room = {s.job.name: min(data, setting.cache / len(running)) for s in running}
        else:
            room, free = {}, setting.cache
            for s in sorted(running, key=lambda s: -s.job.ideal):
                room[s.job.name] = min(data, free)
                free -= room[s.job.name]
        for s in running:
            s.hit *= min(1.0, room[s.job.name] / s.filled) if s.filled > 0 else 1.0
            s.filled = min(s.filled, room[s.job.name])
        wanted = [s.job.ideal * (1 - s.hit) for s in running]
        if sharing == "equal-split":
            links = [setting.link / len(running)] * len(running)
        else:
            links = fair(wanted, 0.99 * setting.link)
            spare = (setting.link - sum(links)) / max(len(running), 1)
            links = [link + spare for link in links]
        for s, link in zip(list(running), links, strict=True):
            rate = min(s.job.ideal, link / (1 - s.hit)) if s.hit < 1 else s.job.ideal
            s.left -= rate * step_s
            s.filled = min(room[s.job.name], s.filled + rate * (1 - s.hit) * step_s)
            if s.left <= 0:
                s.epochs, s.left, s.hit = s.epochs + 1, s.left + data, s.filled / data
            if s.epochs == s.job.epochs:
                took[s.job.name] = now + step_s - s.job.arrives_s
                running.remove(s)
        now += step_s
    return took


def shards(folder: Path, setting: Setting) -> None:
    """One tar a job: pictures of noise of nearly equal size."""
    import numpy as np
    from PIL import Image

    side = int((setting.sample_bytes / 3) ** 0.5)
    (folder / "b").mkdir()
    for job in setting.jobs:
        with tarfile.open(folder / "b" / f"{job.name}.tar", "w") as archive:
            for number in range(setting.samples):
                noise = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
                picture = io.BytesIO()
                Image.fromarray(noise).save(picture, "PNG", compress_level=0)
                # Zeros after its end belong to no picture, and make all members one size.
                body = picture.getvalue().ljust(setting.sample_bytes, b"\0")
                member = tarfile.TarInfo(f"x/{number:05}.png")
                member.size = len(body)
                archive.addfile(member, io.BytesIO(body))


def train(name: str, ideal: float, epochs: int, sample_bytes: int) -> None:
    """One job, in a process of its own."""
    import lossfeed as lf

    data = lf.open(f"s3://b/{name}.tar")
    loader = lf.Loader(
        data, BATCH, shuffle=True, sampler="uniform", policy="minio",
        cache=int(1.1 * data.cache_bytes("encoded")), cache_form="encoded",
        num_workers=1, read_ahead="200kB", seed=0, framework="numpy", job=name,
    )
    print("ready", flush=True)
    # Told to begin: importing and opening are no part of the time.
    sys.stdin.readline()
    began, overslept = time.monotonic(), 0.0
    for _ in range(epochs):
        for batch in loader:
            # What one sleep takes too long, the next ones take less.
            computes, slept = len(batch.ids) * sample_bytes / ideal - overslept, time.monotonic()
            time.sleep(max(0.0, computes))
            overslept = time.monotonic() - slept - computes
    took = time.monotonic() - began
    stats = loader.stats()
    hits = stats["hits_total"] / stats["requests_total"]
    print(json.dumps({"took_s": took, "hits": hits, "fetched_bytes": stats["fetched_bytes_total"]}))


def measured(setting: Setting, sharing: str) -> dict[str, dict[str, float]]:
    """Seconds of each job, with the command watching."""
    with tempfile.TemporaryDirectory() as folder:
        shards(Path(folder), setting)
        command = [sys.executable, str(HERE / "remote" / "store.py"), folder, "--latency", "0.002"]
        store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert store.stdout is not None
        url = f"http://127.0.0.1:{int(store.stdout.readline())}"
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}
        keys["AWS_ENDPOINT_URL"] = url
        environment = {**os.environ, **keys, "AWS_ALLOW_HTTP": "true", "LOSSFEED_RUNTIME_DIR": f"{folder}/pages"}
        started: list[subprocess.Popen[str]] = []

        def start(job: Job) -> subprocess.Popen[str]:
            words = [job.name, job.ideal, job.epochs, setting.sample_bytes]
            command = [sys.executable, __file__, "--train", *map(str, words)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = subprocess.Popen(command, text=True, env=environment, **pipes)
            started.append(process)
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            return process

        def go(process: subprocess.Popen[str]) -> None:
            assert process.stdin is not None
            print(file=process.stdin, flush=True)

        parts = ["--cache", str(int(setting.cache)), "--bandwidth", str(int(setting.link)), "--sharing", sharing]
        jobs = sorted(setting.jobs, key=lambda job: job.arrives_s)
        if sharing == "sjf":
            parts += [word for job in jobs for word in ("--epochs", f"{job.name}={job.epochs}")]
        watching = None
        try:
            first = [start(job) for job in jobs if job.arrives_s == 0]
            with urllib.request.urlopen(f"{url}/-/bandwidth/{STORE_SPARE * setting.link:.0f}"):
                pass
            command = [sys.executable, "-m", "lossfeed", "allocate", "--apply", "--watch", *parts]
            watching = subprocess.Popen(command, env=environment, stdout=sys.stderr)
            time.sleep(3)
            for process in first:
                go(process)
            began = time.monotonic()
            for job in jobs[len(first) :]:
                # Opened before it is its turn, as a job that starts up would be.
                time.sleep(max(0.0, began + job.arrives_s - 1.5 - time.monotonic()))
                late = start(job)
                time.sleep(max(0.0, began + job.arrives_s - time.monotonic()))
                go(late)
            found = {}
            for job, process in zip(jobs, started, strict=True):
                assert process.stdout is not None
                found[job.name] = json.loads(process.stdout.readline())
            return found
        finally:
            if watching:
                watching.send_signal(signal.SIGINT)
                watching.wait()
            for process in [*started, store]:
                process.kill()
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small, and no record: does it run?")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--sharing", choices=SHARING, default=SHARING[0])
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        name, ideal, epochs, sample_bytes = args.train
        return train(name, float(ideal), int(epochs), int(sample_bytes))
    setting = QUICK if args.quick else FULL
    settings = {"cache_bytes": setting.cache, "link_bytes_per_s": setting.link, "dataset_bytes": setting.dataset}
    settings |= {"jobs": [vars(job) for job in setting.jobs], "sharing": args.sharing}
    name = "several-jobs" if args.sharing == SHARING[0] else f"several-jobs-{args.sharing}"
    record = None if args.quick else Record(name, settings, args.date)
    for round_ in range(args.rounds):
        times: dict[str, dict[str, float]] = {}
        for sharing in ("equal-split", args.sharing):
            found = measured(setting, sharing)
            model = predicted(setting, sharing) if sharing in ("equal-split", SHARING[0]) else {}
            times[sharing] = {name: of["took_s"] for name, of in found.items()}
            for name, of in found.items():
                seconds = model.get(name)
                off = ""
                if seconds is not None:
                    off = f", predicted {seconds:.1f} ({100 * (of['took_s'] / seconds - 1):+.1f} %)"
                print(f"{sharing} {name}: {of['took_s']:.1f} s{off}", flush=True)
                if record:
                    record.add({"round": round_, "sharing": sharing, "job": name, "predicted_s": seconds, **of})
        gains = {name: times["equal-split"][name] / took for name, took in times[args.sharing].items()}
        print(f"against an equal split: {statistics.mean(gains.values()):.2f} x on average, by job {gains}")


if __name__ == "__main__":
    main()

"""One cache for a machine beside private caches and a disk tier in memory, for 1, 2 and 4 jobs.

    python benches/scenarios/node.py

6,000 pictures of 3 KB in a shard of a store that answers after ten milliseconds, each picture by a request of its
own. Each job reads two epochs in a random order of its own:

- ``private``: a cache of a fifth of the dataset for each; ``whole``: one that holds all of it;
- ``disk``: a disk tier in /dev/shm, without a cache;
- ``node``: ``cache=lf.Cache("64MiB", share="node")``, which holds all, and ``node-fifth`` with a fifth for all jobs;
- ``node-order``: the same fifth, and ``order="node"``: the owner shuffles for all jobs;
- ``ods``: Seneca's opportunistic sampling for each job by itself, ``sampler="ods"`` with a cache of a fifth for each.

Processor time is that of the jobs, their starts left out, and of the owner. Seconds of the second epoch say what hits
cost. ``arena_mib`` is what the shared memory takes of the machine's, divided among those that map it and summed again
(PSS); ``owner_mib`` what else its owner has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pool import shard
from record import Record

SAMPLES, BATCH = 6000, 256
WAYS: dict[str, dict[str, Any]] = {
    "private": {"cache": "20%"},
    "whole": {"cache": "100%"},
    "disk": {"disk": True},
    "node": {"share": "64MiB"},
    "node-fifth": {"share": "3800KiB"},
    "node-order": {"share": "3800KiB", "order": "node"},
    "ods": {"cache": "20%", "sampler": "ods"},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--process", help=argparse.SUPPRESS)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def used() -> float:
    seconds = resource.getrusage(resource.RUSAGE_SELF)
    return seconds.ru_utime + seconds.ru_stime


def process(asked: dict[str, Any]) -> None:
    """One of several: two epochs, each begun when it is told to; prints its numbers at the end."""
    import lossfeed as lf

    disk = {"disk": asked["disk"], "disk_bytes": "64MiB"} if "disk" in asked else {}
    data = lf.open(asked["data"], latency=0.01, coalesce=False, **disk)
    cache = lf.Cache(asked["share"], share="node") if "share" in asked else asked.get("cache")
    order = {name: asked[name] for name in ("sampler", "order") if name in asked} or {"shuffle": True}
    options: dict[str, Any] = order | {"seed": asked["seed"], "num_workers": 2, "read_ahead": 1 << 20}
    with lf.Loader(data, BATCH, cache=cache, framework="numpy", **options) as loader:
        begun = used()
        for _ in range(2):
            print("ready", flush=True)
            sys.stdin.readline()
            assert sum(len(batch.ids) for batch in loader) == SAMPLES
            print("done", flush=True)
        seen = loader.stats()
        print("read", flush=True)
        sys.stdin.readline()
    print(json.dumps({"requests": seen["store_requests_total"], "cpu": used() - begun}))


def owner() -> tuple[int, float] | None:
    """The owner's process and the seconds that it has used."""
    done = subprocess.run([sys.executable, "-m", "lossfeed", "node", "ls", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    pid = json.loads(done.stdout)["pid"]
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return pid, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> tuple[float, float]:
    """A process' part of the arena, and the rest of its memory, in MiB (PSS)."""
    arena, rest, ours = 0.0, 0.0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            ours = "memfd:lossfeed-node" in line
        elif name == "Pss:":
            arena, rest = (arena + float(words[0]), rest) if ours else (arena, rest + float(words[0]))
    return arena / 1024, rest / 1024


def jobs(number: int, how: str, data: Path, folder: Path) -> dict[str, Any]:
    """Jobs beside each other, with a cache of this kind."""
    os.environ["LOSSFEED_RUNTIME_DIR"] = str(folder / "run")
    folder.mkdir()
    asked = WAYS[how] | {"data": str(data)}
    if "disk" in asked:
        asked["disk"] = tempfile.mkdtemp(dir="/dev/shm")
    made = []
    for seed in range(number):
        command = [sys.executable, __file__, "--process", json.dumps(asked | {"seed": seed})]
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    seconds = []
    for _ in range(2):
        wait(made, "ready")
        started = time.perf_counter()
        for child in made:
            print(file=child.stdin, flush=True)
        wait(made, "done")
        seconds.append(round(time.perf_counter() - started, 3))
    wait(made, "read")
    arena, rest, found = sum(memory(child.pid)[0] for child in made), 0.0, owner()
    if found is not None:
        own, rest = memory(found[0])
        arena += own
    for child in made:
        print(file=child.stdin, flush=True)
    said = [json.loads(child.stdout.readline()) for child in made if child.stdout is not None]
    for child in made:
        child.communicate()
    cpu = sum(each["cpu"] for each in said)
    if (found := owner()) is not None:
        os.kill(found[0], signal.SIGKILL)
        cpu += found[1]
    if "disk" in asked:
        shutil.rmtree(asked["disk"])
    requests = int(sum(each["requests"] for each in said))
    row = {"jobs": number, "how": how, "requests": requests, "bytes": requests * 3126}
    row["seconds"] = round(sum(seconds), 2)
    row |= {"second_epoch_s": seconds[1], "cpu_s": round(cpu, 2)}
    return row | {"arena_mib": round(arena, 1), "owner_mib": round(rest, 1)}


def wait(made: list[subprocess.Popen[str]], word: str) -> None:
    for child in made:
        assert child.stdout is not None and child.stdout.readline() == f"{word}\n"


def main() -> int:
    args = arguments()
    if args.process:
        process(json.loads(args.process))
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("node", {"batch": BATCH, "samples": SAMPLES, "picture": "BMP 32x32x3"}, args.date, **where)
    with tempfile.TemporaryDirectory() as made:
        shard(Path(made) / "0.tar", SAMPLES)
        for number in (1, 2, 4):
            for how in WAYS:
                record.add(row := jobs(number, how, Path(made) / "0.tar", Path(made) / f"{number}-{how}"))
                print(row, flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

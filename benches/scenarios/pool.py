"""A pool on a Redis server beside SHADE's way to ask one, and what several processes read of the source.

    python benches/scenarios/pool.py [--rounds 3]

20,000 pictures of 3 KB in a shard, all in the pool of a redis-server on this machine, one epoch without a cache:

- ``shade``: for each sample EXISTS and then GET, one after the other, over one connection of a client without any work
  beside it (nothing is checked or decoded, so it is quicker than SHADE's own);
- ``pool``: the loader, with headers and checksums verified, pictures decoded and batches filled.

Round trips are the server's count of commands. A loop of the least priority keeps each core awake: on a virtual machine
a round trip that has to wake one takes up to five times as long, and SHADE has 40,000 of them.

Then three processes read 6,000 pictures in random orders of their own, with room in the pool for a share c of the
pictures for each process: in the second epoch the source brings 1 − 3c.

At last 1, 2 and 4 jobs read two epochs of them from a store that answers after ten milliseconds, each picture by a
request of its own and at most 1 MiB ahead: with a private cache of a fifth alone, and with the disk tier or the pool
beside it. Processor time is that of the jobs and of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

from record import Record

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))
from redis_server import Redis, read, request

SAMPLES, SHARED, SIDE, BATCH = 20_000, 6000, 32, 256
AWAKE = "import os; os.nice(19)\nwhile os.getppid() != 1: pass"
#: Bytes that a picture takes in the pool: a BMP, its header there and its accounting.
TAKEN = SIDE * SIDE * 3 + 54 + 40 + 320


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--process", help=argparse.SUPPRESS)
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    return parser.parse_args()


def shard(path: Path, samples: int) -> None:
    """Writes pictures of noise."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    with tarfile.open(path, "w") as tar:
        for n in range(samples):
            body = BytesIO()
            Image.fromarray(rng.integers(0, 255, (SIDE, SIDE, 3), np.uint8)).save(body, "BMP")
            info = tarfile.TarInfo(f"{n % 10}/{n:06d}.bmp")
            info.size = len(body.getvalue())
            tar.addfile(info, BytesIO(body.getvalue()))


def epoch(data: Any, seed: int = 0, epochs: int = 1) -> dict[str, float]:
    import lossfeed as lf

    with lf.Loader(data, BATCH, seed=seed, num_workers=2, cache=None, read_ahead=0, stats=False) as loader:
        before = loader.stats()
        started = time.perf_counter()
        samples = sum(len(batch.ids) for _ in range(epochs) for batch in loader)
        took, after = time.perf_counter() - started, loader.stats()
    hits = after["pool_hits_total"] - before["pool_hits_total"]
    return {"samples": samples, "seconds": round(took, 3), "samples_per_s": round(samples / took), "hits": hits}


def shade(redis: Redis) -> dict[str, float]:
    keys = redis.keys()
    with socket.create_connection(("127.0.0.1", redis.port)) as link, link.makefile("rb") as answers:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        started = time.perf_counter()
        for key in keys:
            link.sendall(request("EXISTS", key))
            if read(answers):
                link.sendall(request("GET", key))
                read(answers)
        took = time.perf_counter() - started
    samples = len(keys)
    return {"samples": samples, "seconds": round(took, 3), "samples_per_s": round(samples / took), "hits": samples}


def filled(redis: Redis, path: Path, samples: int) -> Any:
    import lossfeed as lf

    data = lf.open(str(path), pool=redis.url, latency=0.05)
    while len(redis.keys()) < samples:
        epoch(data)
        time.sleep(0.5)
    return data


def process(asked: dict[str, Any]) -> None:
    """One of several: two epochs, each begun when it is told to; prints its numbers at the end."""
    import lossfeed as lf

    data = lf.open(asked["data"], **asked["opening"])
    fetched: list[float] = []
    with lf.Loader(data, BATCH, num_workers=2, stats=False, **asked["loader"]) as loader:
        for _ in range(2):
            print("ready", flush=True)
            sys.stdin.readline()
            assert sum(len(batch.ids) for batch in loader) == SHARED
            print("done", flush=True)
            time.sleep(1)  # until the pool has what was fetched
            seen = loader.stats()
            fetched.append(seen["fetched_samples_total"] - seen["pool_hits_total"])
    used = resource.getrusage(resource.RUSAGE_SELF)
    requests, last = seen["store_requests_total"], fetched[1] - fetched[0]
    print(json.dumps({"requests": requests, "last": last, "cpu": used.ru_utime + used.ru_stime}))


def processes(number: int, data: Path, opening: dict[str, Any], **loader: Any) -> dict[str, float]:
    """The numbers of so many processes together, with the seconds of their two epochs."""
    made = []
    for k in range(number):
        asked = json.dumps({"data": str(data), "opening": opening, "loader": {"seed": k, "shuffle": True, **loader}})
        command = [sys.executable, __file__, "--process", asked]
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    seconds = 0.0
    for _ in range(2):
        wait(made, "ready")
        started = time.perf_counter()
        for child in made:
            print(file=child.stdin, flush=True)
        wait(made, "done")
        seconds += time.perf_counter() - started
    said = [json.loads(child.communicate()[0]) for child in made]
    return {name: sum(each[name] for each in said) for name in said[0]} | {"seconds": round(seconds, 2)}


def wait(made: list[subprocess.Popen[str]], word: str) -> None:
    for child in made:
        assert child.stdout is not None and child.stdout.readline() == f"{word}\n"


def jobs(number: int, how: str, data: Path, folder: Path) -> dict[str, Any]:
    """Jobs beside each other, with a tier of this kind."""
    folder.mkdir()
    with Redis(folder / "redis") as redis:
        tiers: dict[str, dict[str, Any]] = {
            "private": {},
            "disk": {"disk": str(folder / "disk"), "disk_bytes": "64MiB"},
            "pool": {"pool": redis.url, "pool_bytes": "64MiB"},
        }
        before = processor(redis)
        seen = processes(number, data, {"latency": 0.01, "coalesce": False, **tiers[how]}, cache="20%", read_ahead=1 << 20)
        cpu = seen["cpu"] + processor(redis) - before
    requests = int(seen["requests"])
    row = {"jobs": number, "how": how, "requests": requests, "bytes": requests * (TAKEN - 360)}
    return row | {"seconds": seen["seconds"], "cpu_s": round(cpu, 2)}


def processor(redis: Redis) -> float:
    """Seconds that the server has used."""
    told = dict(line.split(":", 1) for line in redis.ask("INFO", "cpu").decode().split() if ":" in line)
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def main() -> int:
    args = arguments()
    if args.process:
        process(json.loads(args.process))
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("pool", {"batch": BATCH, "samples": SAMPLES, "picture": f"BMP {SIDE}x{SIDE}x3"}, args.date, **where)
    with tempfile.TemporaryDirectory() as made:
        with Redis(Path(made) / "redis") as redis:
            shard(Path(made) / "0.tar", SAMPLES)
            data = filled(redis, Path(made) / "0.tar", SAMPLES)
            awake = [subprocess.Popen([sys.executable, "-c", AWAKE]) for _ in range(os.cpu_count() or 1)]
            for round_ in range(args.rounds):
                for how, run in (("shade", lambda: shade(redis)), ("pool", lambda: epoch(data))):
                    redis.ask("CONFIG", "RESETSTAT")
                    measured = run()
                    calls = redis.calls()
                    trips = sum(calls.get(name, 0) for name in ("exists", "get", "mget"))
                    record.add(row := {"round": round_, "how": how, **measured, "round_trips": trips})
                    print(row, flush=True)
            for process_ in awake:
                process_.kill()
        shard(Path(made) / "1.tar", SHARED)
        few = Path(made) / "1.tar"
        for shared in (0.1, 0.2, 0.3):
            with Redis(Path(made) / f"redis-{shared}") as redis:
                opening = {"pool": redis.url, "pool_bytes": int(3 * shared * SHARED * TAKEN), "latency": 0.05}
                source = processes(3, few, opening, cache=None, read_ahead=0)["last"] / 3 / SHARED
                row = {"how": "three processes", "share_each": shared, "source_share": round(source, 4)}
                record.add(row := row | {"bound": round(1 - 3 * shared, 4)})
                print(row, flush=True)
        for number in (1, 2, 4):
            for how in ("private", "disk", "pool"):
                record.add(row := jobs(number, how, few, Path(made) / f"{number}-{how}"))
                print(row, flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

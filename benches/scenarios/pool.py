"""A pool on a Redis server beside SHADE's way to ask one, and what several processes read of the source.

    python benches/scenarios/pool.py [--rounds 3]

20,000 pictures of 3 KB in a shard, all in the pool of a redis-server on this machine, one epoch without a cache:

- ``shade``: for each sample EXISTS and then GET, one after the other, over one connection of a client without any work
  beside it (nothing is checked or decoded, so it is quicker than SHADE's own);
- ``pool``: the loader, with headers and checksums verified, pictures decoded and batches filled.

Round trips are the server's count of commands. Then three processes read 6,000 pictures in random orders of their own,
with room in the pool for a share c of the pictures for each process: in the second epoch the source brings 1 − 3c.
"""

from __future__ import annotations

import argparse
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
#: Bytes that a picture takes in the pool: a BMP, its header there and its accounting.
TAKEN = SIDE * SIDE * 3 + 54 + 40 + 320


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shared", type=float, help="(for the processes) share of the pictures that have room")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
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


def process(args: argparse.Namespace) -> None:
    """One of several: an epoch to fill the pool, and one that counts."""
    import lossfeed as lf

    data = lf.open(args.data, pool=args.url, pool_bytes=int(3 * args.shared * SHARED * TAKEN), latency=0.05)
    epoch(data, args.seed)
    time.sleep(1)
    print("filled", flush=True)
    sys.stdin.readline()
    print(SHARED - int(epoch(data, 100 + args.seed)["hits"]))


def shares(folder: Path, url: str, shared: float) -> float:
    """The share of the pictures that the source had to bring in the second epoch, over three processes."""
    command = [sys.executable, __file__, "--data", str(folder), "--url", url, "--shared", str(shared), "--seed"]
    pipe = subprocess.PIPE
    made = [subprocess.Popen([*command, str(k)], stdin=pipe, stdout=pipe, text=True) for k in range(3)]
    for child in made:
        assert child.stdout is not None and child.stdout.readline() == "filled\n"
    read = [int(child.communicate("\n")[0]) for child in made]
    return sum(read) / len(read) / SHARED


def main() -> int:
    args = arguments()
    if args.url:
        process(args)
        return 0
    where = {} if args.record is None else {"root": args.record}
    record = Record("pool", {"batch": BATCH, "samples": SAMPLES, "picture": f"BMP {SIDE}x{SIDE}x3"}, args.date, **where)
    with tempfile.TemporaryDirectory() as made:
        with Redis(Path(made) / "redis") as redis:
            shard(Path(made) / "0.tar", SAMPLES)
            data = filled(redis, Path(made) / "0.tar", SAMPLES)
            for round_ in range(args.rounds):
                for how, run in (("shade", lambda: shade(redis)), ("pool", lambda: epoch(data))):
                    redis.ask("CONFIG", "RESETSTAT")
                    measured = run()
                    calls = redis.calls()
                    trips = sum(calls.get(name, 0) for name in ("exists", "get", "mget"))
                    record.add(row := {"round": round_, "how": how, **measured, "round_trips": trips})
                    print(row, flush=True)
        shard(Path(made) / "1.tar", SHARED)
        for shared in (0.1, 0.2, 0.3):
            with Redis(Path(made) / f"redis-{shared}") as redis:
                source = shares(Path(made) / "1.tar", redis.url, shared)
                row = {"how": "three processes", "share_each": shared, "source_share": round(source, 4)}
                record.add(row := row | {"bound": round(1 - 3 * shared, 4)})
                print(row, flush=True)
    print(f"\n{record.csv}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

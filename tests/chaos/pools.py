"""Training over a pool whose server is killed, stopped, flushed, replaced or spoiled: the right bytes, every epoch
whole, and no thread that waits for ever.

Where there is no redis-server a case notes that and tries nothing.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import checks, truth
from .case import Attack, Case
from .checks import Row
from .training import loss

sys.path.append(str(Path(__file__).parents[1] / "python"))
from redis_server import Redis, program  # noqa: E402

EPOCHS, BATCH = 3, 6


def held(redis: Redis, key: bytes) -> bytes:
    """The value of a key; empty if there is none, or a list."""
    try:
        return redis.ask("GET", key) or b""
    except RuntimeError:
        return b""


def spoil(redis: Redis, rng: random.Random) -> None:
    """Some values are flipped, truncated, another sample's, another program's or of another type."""
    keys = redis.keys()
    for key in rng.sample(keys, len(keys) // 2):
        value, other = held(redis, key), held(redis, rng.choice(keys))
        if not value:
            continue
        at = rng.randrange(len(value))
        flipped = value[:at] + bytes([value[at] ^ rng.randrange(1, 256)]) + value[at + 1 :]
        redis.ask("SET", key, rng.choice((flipped, value[:at], other, b"another program's", value + b"more")))
    for key in rng.sample(keys, len(keys) // 8):
        redis.ask("DEL", key)
        redis.ask("RPUSH", key, "a list")
    # Its own accounting is no better off.
    for key in redis.ask("KEYS", "lossfeed:*:[sdw]*"):
        how = rng.randrange(4)
        if how == 0:
            redis.ask("DEL", key)
        elif how == 1:
            redis.ask("SET", key, "no accounting")


def replaced(redis: Redis, rng: random.Random) -> None:
    """Another server under the name: it has the same keys, each with the next one's value."""
    keys = redis.keys()
    values = [held(redis, key) for key in keys]
    redis.stop()
    redis.start()
    for key, value in zip(keys, values[1:] + values[:1]):
        redis.ask("SET", key, value)


#: What is done to the server between two batches, and what ends it some batches later.
Done = Callable[[Redis, random.Random], object]
NOTHING: Done = lambda redis, rng: None  # noqa: E731
DISTURBED: dict[str, tuple[Done, Done]] = {
    "killed": (lambda redis, rng: redis.stop(), lambda redis, rng: redis.start()),
    "stopped": (
        lambda redis, rng: redis.send_signal(signal.SIGSTOP),
        lambda redis, rng: redis.send_signal(signal.SIGCONT),
    ),
    "flushed": (lambda redis, rng: redis.ask("FLUSHALL"), NOTHING),
    "disconnected": (lambda redis, rng: redis.ask("CLIENT", "KILL", "TYPE", "normal"), NOTHING),
    "full": (
        lambda redis, rng: redis.ask("CONFIG", "SET", "maxmemory", "1"),
        lambda redis, rng: redis.ask("CONFIG", "SET", "maxmemory", "0"),
    ),
    "spoiled": (spoil, NOTHING),
    "replaced": (replaced, NOTHING),
}


def train(case: Case, loader: Any, data: truth.Truth, redis: Redis, names: tuple[str, ...], about: str) -> None:
    """Some epochs, with disturbances of these names at batches drawn at random."""
    steps = EPOCHS * -(-len(data) // BATCH)
    begin, ends = {}, {}
    last = 0
    while (at := last + case.rng.randrange(1, 5)) < steps - 1:
        last = at + case.rng.randrange(1, 6)
        name = case.rng.choice(names)
        begin[at], ends[min(last, steps - 1)] = DISTURBED[name][0], DISTURBED[name][1]
    log: list[Row] = []
    for epoch in range(EPOCHS):
        for batch in loader:
            step = epoch * len(loader) + batch.number
            for act in (begin.get(step), ends.get(step)):
                if act is not None:
                    act(redis, case.rng)
                    case.count("disturbances")
            log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
            loader.score_losses(loss(batch.ids, batch.epoch) * batch.weight, batch)
    case.none_of(checks.right_bytes(log, data.sums), about)
    delivered = sum(len(row.ids) for row in log)
    case.check(delivered == EPOCHS * len(data), f"{about}: {delivered} samples of {EPOCHS} epochs of {len(data)}")
    if loader.stats()["pool_hits_total"] > 0:
        case.count("hit")
    case.check(not loader.bad_samples(), f"{about}: the pool was taken for bad data: {loader.bad_samples()[:2]}")


def training(case: Case, names: tuple[str, ...]) -> None:
    """Some trainings, each beside a server of its own."""
    import lossfeed as lf

    if program() is None:
        case.count("no redis-server")
        return
    n = case.size(60, 36)
    data = truth.build("tar", n, case.rng.randrange(2**32), case.place / "data")
    for trial in range(case.size(4, 1)):
        opening: dict[str, Any] = {"latency": 0.002, "coalesce": case.rng.random() < 0.5}
        opening["pool_bytes"] = case.rng.choice(("1MiB", "8KiB"))
        settings: dict[str, Any] = {
            "num_workers": case.rng.randrange(3),
            "cache": case.rng.choice((None, "50%")),
            "sampler": case.rng.choice(("uniform", "importance")),
            "seed": case.rng.randrange(2**32),
        }
        if case.rng.random() < 0.5:
            settings["read_ahead"] = 0
        about = f"trial {trial}: {', '.join(names)}; {opening}, {settings}"
        with Redis(case.place / f"redis-{trial}") as redis:
            opened = lf.open(data.where, pool=redis.url, **opening)
            with lf.Loader(opened, BATCH, framework="numpy", stats=False, **settings) as loader:
                train(case, loader, data, redis, names, about)
            case.count("trained")


ATTACK = Attack(
    "pool",
    {
        "gone": lambda case: training(case, ("killed", "stopped", "disconnected")),
        "spoiled": lambda case: training(case, ("flushed", "full", "spoiled", "replaced")),
        "all": lambda case: training(case, tuple(DISTURBED)),
    },
    share=2.0,
    deadline_s=600.0,
)

"""Long runs through a cache that changes all the time: resident memory stays where it was after the beginning."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import checks
from .case import Attack, Case
from .processes import counted, made

#: Bytes of cache: a fifth of the samples.
LIMIT = 60_000

#: KiB that the rest of a run may add to its first tenth: allocators keep some of what was freed.
GROWTH_KIB = 8 << 10


def run_of(case: Case, batches: int, **settings: Any) -> None:
    """`batches` scored batches; a state now and then; memory, threads and files compared with the first tenth."""
    x = np.random.default_rng(case.rng.randrange(2**32)).integers(0, 256, (4000, 64), dtype=np.uint8)
    y = np.arange(4000, dtype=np.int64)
    with made(case, (x, y), batch_size=20, cache=LIMIT, **settings) as loader:
        done, before = 0, {}
        while done < batches:
            for batch in loader:
                loader.score_losses((batch.data[:, 0].astype(np.float32) + 1) * np.float32(1 + done % 7), batch)
                done += 1
                if done % 1000 == 0:
                    loader.state_dict()
                if done == batches // 10:
                    before = counted()
        after = counted()
        stats = loader.stats()
    case.count("batches", done)
    about = f"{done:,} batches, {settings}"
    case.none_of(checks.no_growth(before, after, {"KiB": GROWTH_KIB, "threads": 4, "files": 2}), about)
    held = max(stats["cache_bytes"], stats["arena_used_bytes"])
    case.check(held <= LIMIT, f"{about}: the cache holds {held:.0f} bytes of {LIMIT}")
    case.check(
        stats["evicted_total"] > batches,
        f"{about}: the cache did not change: {stats['evicted_total']:.0f} samples left it",
    )


def long(case: Case) -> None:
    """120,000 batches with the policy that evicts at every miss, and by importance."""
    # Where fetches cost more, fewer samples come and go.
    for policy, sampler in (("lru", "uniform"), ("importance", {"name": "cost-aware", "kappa": 16})):
        run_of(case, case.size(60_000, 4_000), policy=policy, sampler=sampler, num_workers=1, stats=False)


ATTACK = Attack("memory", {"long": long}, share=1.0, deadline_s=1800.0)

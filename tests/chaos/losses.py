"""Hostile scores: none gives a sample more than its share of the draws, and the weights keep the mean right."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import checks
from .case import Attack, Case

#: No sequence of scores gives one sample more than this part of an epoch of `SAMPLES` draws.
MOST_SHARE = 0.05
SAMPLES = 2000
LARGEST = np.float32(3.4e38)

#: (ids, epoch, generator) -> float32 scores; NaN where a sample gets none.
Scores = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]


def _ordinary(ids: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
    return (0.5 + (ids % 7) / 7 + 0.1 * rng.random(len(ids))).astype(np.float32)


def _with(share: float, value: float) -> Scores:
    """Ordinary scores, and `value` for the same few samples in every epoch."""

    def scores(ids: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
        found = _ordinary(ids, epoch, rng)
        found[ids % round(1 / share) == 0] = value
        return found

    return scores


def _one(value: float) -> Scores:
    """Ordinary scores, and `value` for a single sample."""

    def scores(ids: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
        found = _ordinary(ids, epoch, rng)
        found[ids == 17] = value
        return found

    return scores


def _all(value: float) -> Scores:
    return lambda ids, epoch, rng: np.full(len(ids), value, np.float32)


def _alternating(ids: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
    return np.full(len(ids), LARGEST if epoch % 2 == 0 else -LARGEST, np.float32)


def _nan_and_one_large(ids: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
    return _with(0.01, math.nan)(ids, epoch, rng) + np.where(ids == 17, np.float32(1e6), np.float32(0))


def _anything(ids: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
    odd = [math.nan, math.inf, -math.inf, LARGEST, -LARGEST, 1e30, -1.0, 0.0, -0.0, 1e-45, 1e-38, 1.0]
    return np.asarray(rng.choice(odd, len(ids)), np.float32)


def _bits(ids: np.ndarray, epoch: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 2**32, len(ids), dtype=np.uint32).view(np.float32)


SCORES: dict[str, Scores] = {
    "nan-1%": _with(0.01, math.nan),
    "nan-all": _all(math.nan),
    "nan-and-one-1e6": _nan_and_one_large,
    "infinite": _with(0.02, math.inf),
    "minus-infinite": _with(0.02, -math.inf),
    "one-1e30": _one(1e30),
    "one-3.4e38": _one(float(LARGEST)),
    "one-negative": _one(-1e30),
    "negative": _all(-1.0),
    "zeros": _all(0.0),
    "zeros-but-one": lambda ids, epoch, rng: (ids == 17).astype(np.float32),
    "denormal": _all(1e-45),
    "denormal-but-one": lambda ids, epoch, rng: np.where(ids == 17, np.float32(1), np.float32(1e-45)),
    "alternating-3.4e38": _alternating,
    "anything": _anything,
    "any-bits": _bits,
}


def loader_of(case: Case, sampler: Any, data: Any, **options: Any) -> Any:
    """A loader with NumPy batches, and what the case's chance adds."""
    import lossfeed as lf

    return lf.Loader(
        data, 50, sampler=sampler, framework="numpy", seed=case.rng.randrange(2**32), stats=False, **options
    )


def epochs_held(case: Case, loader: Any, epochs: int, score: Callable[[Any, int], None], about: str) -> None:
    """Trains and holds every epoch's draws and weights, and the beliefs, to what must be true."""
    for epoch in range(epochs):
        ids, weights = [], []
        for batch in loader:
            ids += batch.ids.tolist()
            weights += batch.weight.tolist()
            score(batch, epoch)
        case.none_of(checks.share_bounded(ids, MOST_SHARE) + checks.weights_sound(weights), f"{about}, epoch {epoch}")
        beliefs = loader.importance()
        beliefs = beliefs[~np.isnan(beliefs)]
        case.check(
            np.isfinite(beliefs).all(), f"{about}, epoch {epoch}: {int(np.isinf(beliefs).sum())} beliefs are infinite"
        )


def scores(case: Case) -> None:
    """Every pattern with every sampler that looks at scores; a state is taken and put back on the way."""
    data = np.zeros((SAMPLES, 1), np.float32), np.zeros(SAMPLES, np.int64)
    for name, pattern in SCORES.items():
        sampler = case.rng.choice(("importance", "cost-aware", "pads"))
        smoothing = case.rng.choice((None, 0.0, 0.9))
        cache, workers = case.rng.choice((None, "20%")), case.rng.randrange(2)
        rng = np.random.default_rng(case.rng.randrange(2**32))
        about = f"{name} under {sampler}, smoothing {smoothing}, cache {cache}"
        with loader_of(case, sampler, data, smoothing=smoothing, cache=cache, num_workers=workers) as loader:

            def score(batch: Any, epoch: int, loader: Any = loader, pattern: Scores = pattern, rng: Any = rng) -> None:
                loader.score_losses(pattern(batch.ids, epoch, rng), batch)

            epochs_held(case, loader, case.size(10, 4), score, about)
            loader.load_state_dict(loader.state_dict())
            epochs_held(case, loader, 1, score, f"{about}, resumed")


def ignored(case: Case) -> None:
    """Targets that are ignored: their samples never get a score and must not be chased."""
    target = np.arange(SAMPLES, dtype=np.int64) % 5
    target[:: case.rng.choice((20, 50, 100))] = -100
    data = np.zeros((SAMPLES, 1), np.float32), target
    for sampler in ("importance", "cost-aware"):
        with loader_of(case, sampler, data, num_workers=0) as loader:
            rng = np.random.default_rng(case.rng.randrange(2**32))
            counts = []
            for _ in range(case.size(14, 6)):
                drawn = 0
                for batch in loader:
                    drawn += int((batch.target == -100).sum())
                    loader.score(rng.normal(size=(len(batch), 5)).astype(np.float32), batch)
                counts.append(drawn)
            share = int((target == -100).sum())
            held = max(counts) <= 2 * share + 20
            case.check(
                held, f"{sampler}: {share} of {SAMPLES} samples are ignored and were drawn {counts} times an epoch"
            )


def order(case: Case) -> None:
    """Scores that never come, come twice, late, in any order, or from other threads at once."""
    data = np.zeros((SAMPLES, 1), np.float32), np.zeros(SAMPLES, np.int64)
    for habit in ("never", "sometimes", "twice", "late", "reversed", "threads", "after-the-epoch"):
        with loader_of(
            case, case.rng.choice(("importance", "cost-aware")), data, num_workers=case.rng.randrange(3), cache="20%"
        ) as loader:
            rng, held, threads = case.rng, [], []

            def give(batch: Any, loader: Any = loader) -> None:
                loader.score_losses(np.abs(np.sin(batch.ids)).astype(np.float32) + np.float32(0.01), batch)

            def score(batch: Any, epoch: int, habit: str = habit, held: list = held, threads: list = threads) -> None:
                if habit == "sometimes" and rng.random() < 0.5 or habit == "twice":
                    give(batch)
                if habit == "twice":
                    give(batch)
                if habit in ("late", "reversed", "after-the-epoch"):
                    held.append(batch)
                if habit == "late" and len(held) > 5:
                    give(held.pop(rng.randrange(len(held))))
                if habit == "reversed" and len(held) == 8:
                    while held:
                        give(held.pop())
                if habit == "after-the-epoch" and len(held) == 40:
                    for old in held:
                        give(old)
                    held.clear()
                if habit == "threads":
                    threads.append(threading.Thread(target=give, args=(batch,)))
                    threads[-1].start()

            epochs_held(case, loader, case.size(8, 3), score, f"scores come: {habit}")
            for thread in threads:
                thread.join()
            held.clear()


class Unreadable:
    """Values by id; some raise when they are read."""

    def __init__(self, values: np.ndarray, bad: frozenset[int]) -> None:
        self.values, self.bad = values, bad

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> tuple[np.float32, int]:
        if i in self.bad:
            raise ValueError(f"item {i} is bad on purpose")
        return self.values[i], 0


#: SHADE's sampler with the weights that undo its bias.
CORRECTED = {"name": "pads", "repeats": 2, "miss_quota": 0.2, "corrected": True}


@dataclass(frozen=True)
class Setting:
    """One point of the grid that the means are held to."""

    sampler: str
    ranks: int
    cache: str | None
    drop_last: bool
    on_error: str

    def sensible(self) -> bool:
        """Whether it says what its mean must be.

        Replays need a cache, and a rank that drops samples does not show which are its own.
        """
        replays_nothing = self.sampler == "pads" and self.cache is None
        return not replays_nothing and not (self.on_error != "raise" and self.drop_last and self.ranks > 1)


def off(setting: Setting, values: np.ndarray, bad: frozenset[int], seed: int, epochs: int) -> float:
    """How far means of weight × value are from the mean of the values that can be read, over ranks and epochs.

    A rank that draws by belief stands for the samples that it owns; its first epoch is a pass over them.
    """
    import lossfeed as lf

    data: Any = Unreadable(values, bad) if bad else (values, np.zeros(len(values), np.int64))
    exact = values.astype(np.float64)
    everyone = float(np.mean([exact[i] for i in range(len(exact)) if i not in bad]))
    sampler = CORRECTED if setting.sampler == "pads" else setting.sampler
    options = {
        "drop_last": setting.drop_last,
        "on_error": setting.on_error,
        "cache": setting.cache,
        "world_size": setting.ranks,
    }
    found = []
    for rank in range(setting.ranks):
        truth = everyone
        with lf.Loader(
            data, 6, sampler=sampler, framework="numpy", seed=seed, stats=False, num_workers=0, rank=rank, **options
        ) as loader:
            for epoch in range(epochs):
                total, count, ids = 0.0, 0, set()
                for batch in loader:
                    total += float(np.dot(batch.weight.astype(np.float64), batch.data.astype(np.float64)))
                    count += len(batch)
                    ids.update(batch.ids.tolist())
                    loader.score_losses(batch.data, batch)
                if epoch == 0 and bad and setting.sampler != "uniform":
                    truth = float(exact[sorted(ids)].mean())
                found.append(total / count - truth)
    return math.fsum(found) / len(found)


def unbiased(case: Case) -> None:
    """Monte Carlo over samplers × ranks × cache × drop_last × on_error: right over the samples that can be read."""
    n = 60
    values = np.exp(np.random.default_rng(case.rng.randrange(2**32)).normal(size=n)).astype(np.float32)
    bad = frozenset(case.rng.sample(range(1, n), 4))  # item 0 sets the shape
    axes = (
        ("uniform", "importance", "cost-aware", "pads"),
        (1, 2, 3),
        (None, "40%"),
        (False, True),
        ("raise", "skip", "substitute"),
    )
    grid = [setting for setting in itertools.starmap(Setting, itertools.product(*axes)) if setting.sensible()]
    for setting in case.rng.sample(grid, 12) if case.short else grid:
        spoilt = bad if setting.on_error != "raise" else frozenset()
        runs = [off(setting, values, spoilt, case.rng.randrange(2**63), 4) for _ in range(case.size(100, 40))]
        case.count("means")
        case.none_of(checks.unbiased(runs, 0.0, float(values.mean())), f"{setting}, {len(spoilt)} of {n} samples bad")


ATTACK = Attack(
    "losses", {"scores": scores, "ignored": ignored, "order": order, "unbiased": unbiased}, share=3.0, deadline_s=600.0
)

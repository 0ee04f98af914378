"""The checkers: logs and numbers in, problems in words out.

They are pure, and `tests/python/test_chaos.py` gives each of them planted mistakes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One delivered batch: where it stood, who was in it, and a checksum of every sample's bytes."""

    epoch: int
    number: int
    ids: tuple[int, ...]
    sums: tuple[int, ...]


#: Standard errors that a mean may lie from the truth: one honest mean in 150,000 does (normal distribution).
STANDARD_ERRORS = 4.5


def right_bytes(log: Iterable[Row], truth: Sequence[int]) -> list[str]:
    """Every sample's checksum is that of the sample whose id it carries."""
    found = []
    for row in log:
        if len(row.ids) != len(row.sums):
            found.append(f"batch {row.number} of epoch {row.epoch} has {len(row.ids)} ids and {len(row.sums)} rows")
        for i, total in zip(row.ids, row.sums, strict=False):
            if not 0 <= i < len(truth):
                found.append(f"batch {row.number} of epoch {row.epoch} names id {i} of {len(truth)} samples")
            elif total != truth[i]:
                whose = truth.index(total) if total in truth else None
                what = "of no sample" if whose is None else f"of sample {whose}"
                found.append(f"batch {row.number} of epoch {row.epoch}: id {i} came with the bytes {what}")
    return found


def each_position_once(log: Sequence[Row], epochs: int, batches: int) -> list[str]:
    """The batches 0, 1, … of every epoch, each once and in order."""
    found = []
    times = Counter((row.epoch, row.number) for row in log)
    for epoch in range(epochs):
        for number in range(batches):
            n = times.pop((epoch, number), 0)
            if n != 1:
                found.append(f"batch {number} of epoch {epoch} was delivered {n} times")
    found += [f"batch {number} of epoch {epoch} is none of {epochs} epochs of {batches}" for epoch, number in times]
    places = [(row.epoch, row.number) for row in log]
    if places != sorted(places):
        found.append("batches came out of order")
    return found


def each_id_once(logs: Sequence[Sequence[Row]], samples: int, epochs: int, drawn: int | None = None) -> list[str]:
    """In every epoch the ranks' logs together hold every id exactly once; `drawn` of them, where some are dropped."""
    found = []
    for epoch in range(epochs):
        times = Counter(i for log in logs for row in log if row.epoch == epoch for i in row.ids)
        doubled = sorted(i for i, n in times.items() if n > 1)
        if doubled:
            found.append(f"epoch {epoch} delivered {len(doubled)} ids more than once, the first {doubled[0]}")
        wanted = samples if drawn is None else drawn
        if len(times) != wanted:
            missed = next((i for i in range(samples) if i not in times), None)
            found.append(f"epoch {epoch} delivered {len(times)} different ids of {wanted}; {missed} is missing")
    return found


def same_batches(log: Iterable[Row], undisturbed: Iterable[Row], wherever: str = "the undisturbed run") -> list[str]:
    """Where both have a batch, it holds the same ids in the same order."""
    wanted = {(row.epoch, row.number): row.ids for row in undisturbed}
    return [
        f"batch {row.number} of epoch {row.epoch} is {_some(row.ids)}, "
        f"in {wherever} {_some(wanted[row.epoch, row.number])}"
        for row in log
        if wanted.get((row.epoch, row.number), row.ids) != row.ids
    ]


def _some(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids[:4]))}{', …' if len(ids) > 4 else ''}]"


def unbiased(means: Sequence[float], truth: float, size: float) -> list[str]:
    """The mean of independent `means` lies within 4.5 standard errors of `truth`.

    What float32 rounds off values of that `size` is allowed beside.
    """
    n = len(means)
    if not all(math.isfinite(m) for m in means):
        return ["a mean is not finite"]
    mean = math.fsum(means) / n
    error = math.sqrt(math.fsum((m - mean) ** 2 for m in means) / (n - 1) / n)
    off = abs(mean - truth)
    if off <= STANDARD_ERRORS * error + 1e-5 * abs(size):
        return []
    far = f"{off / error:.1f} standard errors" if error > 0 else "no variance"
    return [f"the mean over {n} runs is {mean:.5f}, the truth {truth:.5f}: {far} away"]


def share_bounded(ids: Iterable[int], most: float) -> list[str]:
    """No id is more than `most` of the draws."""
    times = Counter(ids)
    total = sum(times.values())
    i, n = times.most_common(1)[0]
    return [f"sample {i} is {n} of {total} draws, {most * total:.0f} are the most"] if n > most * total else []


def weights_sound(weights: Iterable[float]) -> list[str]:
    """Every weight is finite and above 0."""
    wrong = [w for w in weights if not (math.isfinite(w) and w > 0)]
    return [f"{len(wrong)} weights are not finite and above 0, the first {wrong[0]}"] if wrong else []


def no_growth(before: Mapping[str, int], after: Mapping[str, int], slack: Mapping[str, int]) -> list[str]:
    """Nothing counted (threads, files, bytes) grew by more than its slack."""
    return [
        f"{name} grew from {before[name]} to {after[name]}, {slack.get(name, 0)} more are allowed"
        for name in before
        if after[name] > before[name] + slack.get(name, 0)
    ]

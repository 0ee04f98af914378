"""The process's random generators: of ``random``, of NumPy and of torch.

A dataset and a ``collate_fn`` draw from them, and so does the training loop. Where they draw for a sample, the
generators are seeded by (seed, epoch, id), so that it does not matter which process reads the sample, or when.
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Iterator

from .._base.memory import torch_loaded

_MASK = 2**64 - 1
#: Odd constants that spread epochs, ids and purposes over 64 bits (SplitMix64's increment and multipliers; Steele, Lea
#: and Flood, 2014).
_EPOCH, _ID, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(seed: int, epoch: int, number: int) -> int:
    """64 bits that depend on all three alike."""
    z = (seed + _EPOCH * (epoch + 1) + _ID * (number + 1)) & _MASK
    z = ((z ^ (z >> 30)) * _ID) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def seed_all(seed: int) -> None:
    """Seeds the generators that this process has loaded. About 10 µs: torch's is seeded without its devices, which a
    dataset does not draw from."""
    random.seed(seed)
    torch, numpy_random = torch_loaded(), sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed & 0xFFFF_FFFF)
    if torch is not None:
        torch.default_generator.manual_seed(seed)


def _states() -> tuple[Any, Any, Any]:
    # A generator that nobody has loaded has no state to keep. Loading NumPy's here would also put Ctrl-C at risk: the
    # start of a Cython module drops an exception that falls into one of its steps.
    torch, numpy_random = torch_loaded(), sys.modules.get("numpy.random")
    return (
        random.getstate(),
        None if numpy_random is None else numpy_random.get_state(),
        None if torch is None else torch.default_generator.get_state(),
    )


def together(seed: int, epoch: int, ids: list[int], read: Any, drew: list[bool]) -> list[Any]:
    """``read(ids)``, whose every item shall depend on (seed, epoch, its id): of a dataset that draws, one by one.
    `drew` remembers whether it does."""
    if not drew[0]:
        seed_all(mixed(seed, epoch, ids[0]))
        before = _states()
        items = list(read(ids))
        if len(ids) == 1 or _same(before, _states()):
            return items
        drew[0] = True
    found = []
    for id in ids:
        seed_all(mixed(seed, epoch, id))
        found += read([id])
    return found


def _same(before: Any, after: Any) -> bool:
    pythons, numpys, torchs = zip(before, after, strict=True)
    return (
        pythons[0] == pythons[1]
        and (numpys[0] is None or (numpys[0][2:] == numpys[1][2:] and (numpys[0][1] == numpys[1][1]).all()))
        and (torchs[0] is None or bool((torchs[0] == torchs[1]).all()))
    )


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Leaves the generators as they were."""
    pythons, numpys, torchs = _states()
    try:
        yield
    finally:
        random.setstate(pythons)
        if numpys is not None:
            sys.modules["numpy.random"].set_state(numpys)
        if torchs is not None:
            sys.modules["torch"].default_generator.set_state(torchs)

"""Hostile Python datasets: the right rows, an error by name, or the very exception that was raised; no hang."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import checks, truth
from .case import Attack, Case
from .checks import Row

N = 48


class Own(BaseException):
    """An exception that is no Exception."""


class Dataset:
    """Pictures by id; subclasses spoil some reads. The item that is looked at when a dataset is opened is sound."""

    #: Whether what goes wrong shows whose fault it is: only then is every other sample delivered under skip.
    tells_which = True

    def __init__(self, seed: int) -> None:
        self.x, self.y = truth.samples(N, seed)
        self.rng = random.Random(seed)
        self.spoilt = frozenset(self.rng.sample(range(1, N), 3))
        self.sums = [truth.checksum(x, y) for x, y in zip(self.x, self.y, strict=True)]
        self.loader: Any = None

    def __len__(self) -> int:
        return N

    def sound(self, i: int) -> tuple[Any, Any]:
        return self.x[i].copy(), self.y[i]

    def spoil(self, i: int) -> Any:
        return self.sound(i)

    def __getitem__(self, i: int) -> Any:
        return self.spoil(i) if i in self.spoilt else self.sound(i)


class Raises(Dataset):
    """Raises what it was told to."""

    error: type[BaseException] = ValueError

    def spoil(self, i: int) -> Any:
        raise self.error(f"item {i}, on purpose")


class Odd(Dataset):
    """Returns something else than it should, another thing for each spoilt item."""

    def spoil(self, i: int) -> Any:
        x, y = self.sound(i)
        odd = [
            *(
                None,
                x,
                (x,),
                (x, y, y),
                {"x": x, "y": y},
                (None, y),
                (x, None),
                (object(), y),
                ("text", y),
                iter((x, y)),
            ),
            *(
                (x[:-1], y),
                (x[None], y),
                (x.astype(np.float32), y),
                (x, float(y)),
                (x, np.array([y, y])),
                ([[1], [2, 3]], y),
            ),
            *((np.empty((0, 6, 3), np.uint8), y), (np.zeros((6, 6, 3), dtype=object), y)),
            *((np.zeros((6, 6, 3), dtype=complex), y), (x.astype(">u2"), y)),
        ]
        return self.rng.choice(odd)


class Batched(Dataset):
    """Answers for many ids at once, and not as many."""

    tells_which = False

    def __getitems__(self, ids: list[int]) -> Any:
        items = [self.sound(i) for i in ids]
        if self.spoilt.isdisjoint(ids):
            return items
        return self.rng.choice([items[:-1], [*items, items[0]], [], None, 7, iter(items)])


class BatchedRaises(Batched):
    """As above, raising; asked one by one it answers."""

    tells_which = True

    def __getitems__(self, ids: list[int]) -> Any:
        if self.spoilt.isdisjoint(ids):
            return [self.sound(i) for i in ids]
        raise RuntimeError("on purpose")


class Huge(Dataset):
    """Some items are far larger than they were said to be."""

    def spoil(self, i: int) -> Any:
        return np.zeros((40_000, 500), np.uint8), self.y[i]


class Slow(Dataset):
    """Some items take a while; the rest give up the interpreter lock at odd moments."""

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.05 if i in self.spoilt else 0.0)
        return self.sound(i)


class Reentrant(Dataset):
    """Iterates a loader of its own in every item."""

    def __getitem__(self, i: int) -> Any:
        import lossfeed as lf

        with lf.Loader(
            (self.x[i : i + 1], self.y[i : i + 1]), 1, num_workers=i % 2, framework="numpy", stats=False
        ) as inner:
            batch = next(iter(inner))
            return batch.data[0].copy(), batch.target[0]


class Mutates(Dataset):
    """Overwrites the arrays it returned, at the next read."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.last = threading.local()

    def __getitem__(self, i: int) -> Any:
        old = getattr(self.last, "x", None)
        if old is not None:
            old[:] = 0
        self.last.x, y = self.sound(i)
        return self.last.x, y


class Forks(Dataset):
    """Forks in the middle of a read; the child leaves at once."""

    def spoil(self, i: int) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return self.sound(i)


class Closes(Dataset):
    """Closes the loader that is reading it."""

    def spoil(self, i: int) -> Any:
        if self.loader is not None:
            self.loader.close()
        return self.sound(i)


class AsksItsLoader(Dataset):
    """Calls every harmless method of the loader that is reading it."""

    def spoil(self, i: int) -> Any:
        if self.loader is not None:
            self.loader.stats()
            self.loader.importance()
            self.loader.bad_samples()
            repr(self.loader)
        return self.sound(i)


class Shrinks(Dataset):
    """Has fewer items after a while than it said."""

    def __getitem__(self, i: int) -> Any:
        if self.loader is not None and i in self.spoilt:
            raise IndexError(i)
        return self.sound(i)


def passed(case: Case, dataset: Dataset, on_error: str, through: tuple[type[BaseException], ...] = ()) -> None:
    """Two epochs over `dataset` in a setting drawn at random."""
    import lossfeed as lf

    settings = {
        "num_workers": case.rng.randrange(3),
        "cache": case.rng.choice((None, "40%", 1.0)),
        "on_error": on_error,
        "seed": case.rng.randrange(2**32),
        "batch_size": case.rng.choice((1, 5, 16)),
    }
    about = (
        f"{type(dataset).__name__}{f' of {dataset.error.__name__}' if isinstance(dataset, Raises) else ''}, {settings}"
    )
    log: list[Row] = []
    raised: BaseException | None = None
    loader = lf.Loader(dataset, framework="numpy", stats=False, **{"shuffle": True, **settings})
    dataset.loader = loader
    try:
        try:
            for _ in range(2):
                for batch in loader:
                    log.append(Row(batch.epoch, batch.number, tuple(batch.ids.tolist()), truth.checksums(batch)))
        except BaseException as error:  # noqa: BLE001
            raised = error
        expected = isinstance(raised, (type(None), lf.Error, *through)) and not isinstance(raised, lf.InternalError)
        case.check(expected, f"{about}: ended with {type(raised).__name__}: {raised}")
        case.none_of(checks.right_bytes(log, dataset.sums), about)
        if through:
            case.check(
                isinstance(raised, through), f"{about}: {through[0].__name__} became {type(raised).__name__}: {raised}"
            )
        elif on_error == "skip" and raised is None and dataset.tells_which:
            good = {i for row in log for i in row.ids}
            held = good >= set(range(N)) - dataset.spoilt
            case.check(held, f"{about}: good samples are missing: {sorted(set(range(N)) - dataset.spoilt - good)[:5]}")
    finally:
        dataset.loader = None
        loader.close()


def raises(case: Case) -> None:
    """Ordinary exceptions are bad samples or errors by name."""
    for error in (ValueError, KeyError, OSError, MemoryError, RecursionError, StopIteration, UnicodeError):
        for on_error in ("raise", "skip", "substitute"):
            dataset = Raises(case.rng.randrange(2**32))
            dataset.error = error
            passed(case, dataset, on_error)


def leaves(case: Case) -> None:
    """What is meant to end the program passes through, whatever is done with bad samples."""
    for error in (KeyboardInterrupt, SystemExit, Own):
        for on_error in ("raise", "skip", "substitute"):
            dataset = Raises(case.rng.randrange(2**32))
            dataset.error = error
            passed(case, dataset, on_error, through=(error,))


def each(*kinds: type[Dataset]) -> Callable[[Case], None]:
    """The trait that goes through datasets of these kinds, under every way to treat what is bad."""

    def trait(case: Case) -> None:
        for kind in kinds:
            for on_error in ("raise", "skip", "substitute"):
                for _ in range(case.size(4, 1)):
                    passed(case, kind(case.rng.randrange(2**32)), on_error)

    return trait


def changing(case: Case) -> None:
    """Items that change between reads: refused when the loader is made, or every row is one of those that were read."""
    import lossfeed as lf

    class Changes(Dataset):
        def __getitem__(self, i: int) -> Any:
            x, y = self.sound(i)
            x[0, 0, 0] = self.rng.randrange(256)
            return x, y

    for cache in (None, "50%", 1.0):
        dataset = Changes(case.rng.randrange(2**32))
        try:
            loader = lf.Loader(
                dataset, 8, shuffle=True, cache=cache, framework="numpy", stats=False, num_workers=case.rng.randrange(3)
            )
        except lf.Error:
            case.check(cache is not None, "a dataset that changes was refused although nothing is cached")
            continue
        with loader:
            case.check(
                cache is None,
                f"cache={cache}: the cache would freeze what the dataset does at random, and nothing said so",
            )
            for batch in loader:
                for row, i in zip(batch.data, batch.ids, strict=True):
                    same = (row.reshape(-1)[1:] == dataset.x[i].reshape(-1)[1:]).all()
                    case.check(same, f"id {i} came with another sample's bytes")


def lengths(case: Case) -> None:
    """A dataset must say how long it is, in a way that can be."""
    import lossfeed as lf

    def of(length: Any) -> Any:
        class Long(Dataset):
            def __len__(self) -> Any:
                return length() if callable(length) else length

        return Long(1)

    def raising() -> int:
        raise RuntimeError("no length")

    for length in (0, -1, 2**32, 2**33, 2**62, 2**70, 1.5, None, "9", raising):
        try:
            with lf.Loader(of(length), 4, shuffle=True, framework="numpy", stats=False) as loader:
                case.fail(f"__len__ is {length!r}, and a loader of {len(loader)} batches was made")
        except (lf.Error, ValueError, OverflowError, TypeError, RuntimeError) as error:
            # What Python itself says to such a length is as good.
            case.check(not isinstance(error, lf.InternalError), f"__len__ is {length!r}: {error}")


ATTACK = Attack(
    "datasets",
    {
        "raises": raises,
        "leaves": leaves,
        "odd": each(Odd),
        "batched": each(Batched, BatchedRaises),
        "large-and-slow": each(Huge, Slow),
        "reentrant": each(Reentrant, AsksItsLoader),
        "mutates": each(Mutates),
        "forks": each(Forks),
        "closes": each(Closes),
        "shrinks": each(Shrinks),
        "changing": changing,
        "lengths": lengths,
    },
    share=2.0,
)

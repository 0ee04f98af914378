"""Exceptions of the user's functions: a loop that ends without an error has delivered the whole epoch."""

import contextlib
import os

import numpy as np
import pytest
import torch

import lossfeed as lf

SAMPLES, BATCH = 16, 4
ARRAYS = np.arange(3 * SAMPLES, dtype=np.float32).reshape(SAMPLES, 3), np.arange(SAMPLES)


class Preempted(Exception):
    """Save and leave."""


class Items:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return np.full(3, i, np.float32), i


def stacked(items):
    return torch.stack([torch.as_tensor(x) for x, _ in items]), torch.tensor([int(y) for _, y in items])


def test_stop_iteration_of_a_users_function_does_not_end_the_epoch():
    other = iter(range(2))

    class Sampler:
        def __len__(self):
            return 3

        def __iter__(self):
            next(iter(()))

    ways = {
        "transform=": {"transform": lambda data: (next(other), data)[1]},
        "collate_fn=": {"collate_fn": lambda items: (next(other), items)[1]},
        "sampler=Sampler": {"sampler": Sampler()},
        "batch_sampler=Sampler": {"batch_sampler": Sampler(), "batch_size": BATCH},
    }
    for name, keywords in ways.items():
        with lf.Loader(ARRAYS, **{"batch_size": BATCH, "stats": False} | keywords) as loader:
            with pytest.raises(RuntimeError, match=f"{name}.* raised StopIteration"):
                list(loader)


def at(number, error, function=lambda given: given):
    """A function whose call of that number raises."""
    calls = iter(range(1000))

    def called(*given):
        if next(calls) == number:
            raise error
        return function(*given)

    return called


class Raising(Items):
    def __init__(self, item, error):
        self.item, self.error = item, error

    def __getitem__(self, i):
        if i == self.item:
            raise self.error
        return super().__getitem__(i)


class RaisingTogether(Raising):
    def __getitems__(self, ids):
        if self.item in ids:
            raise self.error
        return [self[i] for i in ids]


class RaisingLength(Items):
    def __init__(self, error):
        self.error = error

    def __len__(self):
        raise self.error


class Draws:
    def __init__(self, error):
        self.error = error

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        yield from range(9)
        raise self.error


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([super(Raising, Raising(-1, None)).__getitem__(i) for i in range(SAMPLES)])


CALLBACKS = {
    "__getitem__": lambda e: {"data": Raising(9, e), "num_workers": 0},
    "__getitem__ in a worker": lambda e: {"data": Raising(9, e), "num_workers": 1},
    "__getitem__ behind a cache": lambda e: {"data": lf.open(Raising(9, e), thread_safe=True), "cache": "1MiB"},
    "the first __getitem__": lambda e: {"data": Raising(0, e), "num_workers": 0},
    "__getitems__": lambda e: {"data": RaisingTogether(9, e), "num_workers": 0},
    "__len__": lambda e: {"data": RaisingLength(e)},
    "collate_fn": lambda e: {"data": Items(), "num_workers": 0, "collate_fn": at(2, e, stacked)},
    "collate_fn in a worker": lambda e: {"data": Items(), "num_workers": 1, "collate_fn": at(2, e, stacked)},
    "collate_fn of arrays": lambda e: {"data": ARRAYS, "collate_fn": at(2, e, stacked)},
    "collate_fn of a stream": lambda e: {"data": Stream(), "num_workers": 0, "collate_fn": at(2, e, stacked)},
    "collate_fn of a stream in a worker": lambda e: {"data": Stream(), "num_workers": 1, "collate_fn": at(2, e, stacked)},
    "transform": lambda e: {"data": ARRAYS, "transform": at(2, e)},
    "worker_init_fn": lambda e: {"data": Items(), "num_workers": 1, "worker_init_fn": at(0, e)},
    "worker_init_fn behind a cache": lambda e: {"data": Items(), "num_workers": 1, "cache": "1MiB", "worker_init_fn": at(0, e)},
    "worker_init_fn of a stream": lambda e: {"data": Stream(), "num_workers": 1, "worker_init_fn": at(0, e)},
    "sampler": lambda e: {"data": ARRAYS, "sampler": Draws(e)},
    "batch_sampler": lambda e: {"data": ARRAYS, "batch_sampler": ([k] for k in Draws(e)), "batch_size": None},
}  # fmt: skip
RAISED = [StopIteration(), StopIteration(3), StopAsyncIteration(), IndexError("9"), KeyError(9), ValueError("\udcff"), OSError(5, "io"),
          EOFError(), GeneratorExit(), Preempted(), lf.SampleError("x"), lf.Error("x")]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", CALLBACKS)
def test_a_loop_that_ends_without_an_error_has_delivered_the_epoch(where):
    """Whatever a function of the user's raises. As PEP 479 has it, that is no StopIteration by the time it leaves."""
    for error in RAISED if "worker" not in where else [*RAISED[:2], Preempted()]:
        for on_error in ("raise", "skip", "substitute")[: 1 if "stream" in where else 3]:
            keywords = {"batch_size": BATCH, "stats": False, "on_error": on_error} | CALLBACKS[where](error)
            keywords = {k: v for k, v in keywords.items() if v is not None and ("stream" not in where or k != "on_error")}
            got, bad = 0, 0
            try:
                with contextlib.closing(lf.Loader(**keywords)) as loader:
                    for batch in loader:
                        got += len(batch[0])
                    bad = len(loader.bad_samples()) if on_error == "skip" and "stream" not in where else 0
            except BaseException as raised:
                assert not isinstance(raised, StopIteration) and "bug" not in str(raised), (error, on_error)
            else:
                assert got + bad == SAMPLES, (error, on_error)


@pytest.mark.parametrize("workers", [0, 2])
def test_words_that_are_no_utf_8_are_one_samples(workers):
    class Named(Items):
        def __getitem__(self, i):
            if i == 9:
                raise ValueError(os.fsdecode(b"cannot read /data/\xff.jpg"))
            if i == 14:
                raise lf.SampleError("no \udc80 here")
            return super().__getitem__(i)

    keywords = {"num_workers": workers, "framework": "numpy", "stats": False}
    with lf.Loader(Named(), BATCH, on_error="skip", **keywords) as loader:
        assert sum(len(batch) for batch in loader) == SAMPLES - 2
        assert sorted(bad["id"] for bad in loader.bad_samples()) == [9, 14]
    with lf.Loader(Named(), BATCH, **keywords) as loader, pytest.raises(lf.SampleError, match=r"\\udcff\.jpg"):
        list(loader)

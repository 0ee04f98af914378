"""A signal's exception, wherever it falls: no batch is lost, none comes twice, and nobody else is blamed for it."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import lossfeed as lf

SAMPLES, BATCH = 24, 4
OURS = str(Path(lf.__file__).parent)


class Preempted(Exception):
    """Save and leave."""


class Items:
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return np.full(3, i, np.float32), i


def preempted(*_):
    raise Preempted


@contextlib.contextmanager
def handled(handler=preempted, number=signal.SIGUSR1):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class Falling:
    """Raises `error` where the `at`-th instruction of lossfeed's Python begins in this thread, while it is on."""

    def __init__(self, at, error):
        self.left, self.error, self.on, self.where = at, error, False, None

    def __enter__(self):
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def __call__(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and self.on:
            self.left -= 1
            if self.left == 0:
                self.on, self.where = False, f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                # Python itself looks for signals behind calls: what is between the store and the return is never there.
                if not self.behind_the_store(frame):
                    raise self.error
                self.where = None
        return self

    @staticmethod
    def behind_the_store(frame):
        if frame.f_code.co_name != "__next__":
            return False
        import dis

        instructions = list(dis.get_instructions(frame.f_code))
        store = next(i.offset for i in instructions if i.opname == "STORE_ATTR" and i.argval == "handed_out")
        back = next(i.offset for i in instructions if i.opname == "RETURN_VALUE" and i.offset > store)
        return store < frame.f_lasti <= back


def ids_of(batch):
    return batch.ids.tolist()


def settings(way):
    """Keywords of a loader, by what its batches go through in Python."""
    common = {"batch_size": BATCH, "seed": 1, "shuffle": True, "stats": False, "num_workers": 1}
    arrays = np.arange(3 * SAMPLES, dtype=np.float32).reshape(SAMPLES, 3), np.arange(SAMPLES)
    if way == "arrays":
        return common | {"data": arrays, "framework": "numpy"}
    if way == "collate":
        stacked = lambda items: (torch.stack([x for x, _ in items]), torch.tensor([int(y) for _, y in items]))  # noqa: E731
        return common | {"data": Items(), "collate_fn": stacked, "framework": "torch"}
    if way == "transform":
        return common | {"data": arrays, "transform": lambda x: x + 1, "framework": "torch"}
    return common | {"data": arrays, "sampler": torch.utils.data.SequentialSampler(range(SAMPLES)), "shuffle": None}


@pytest.mark.parametrize("error", [KeyboardInterrupt, Preempted])
@pytest.mark.parametrize("way", ["arrays", "collate", "transform", "sampler"])
def test_wherever_it_falls_every_sample_comes_once(way, error):
    """At every instruction of the third batch's way, and of the first one's, with which the epoch begins: a state goes on
    behind what the loop got, and so does the iterator."""
    keywords, fallen = settings(way), set()
    if error is Preempted:
        # What a handler raises is known by how Python calls it.
        pass
    for before in (0, 2):
        at = 0
        while True:
            at += 1
            with lf.Loader(**keywords) as loader, lf.Loader(**keywords) as other:
                passing, got = iter(loader), []
                got += [ids_of(next(passing)) for _ in range(before)]
                falling = Falling(at, error())
                try:
                    with falling:
                        falling.on = True
                        batch = passing.__next__()
                        falling.on = False
                    got.append(ids_of(batch))
                except error:
                    fallen.add(falling.where)
                else:
                    if falling.left > 0:
                        break
                other.load_state_dict(loader.state_dict())
                rest = [ids_of(batch) for batch in other]
                assert sorted(i for ids in got + rest for i in ids) == list(range(SAMPLES)), falling.where
                if error is KeyboardInterrupt:
                    goes_on = [ids_of(batch) for batch in passing]
                    assert goes_on == rest, falling.where
    assert len(fallen) > 20

"""lf.stage: any iterable, ahead of its consumer."""

import collections
import gc
import threading
import time

import numpy as np
import pytest
import torch

import lossfeed as lf

Pair = collections.namedtuple("Pair", "x y")


def stage_threads():
    return sum(t.name == "lossfeed-stage" for t in threading.enumerate())


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_batches_arrive_in_order_and_unchanged():
    batches = [
        torch.arange(3),
        Pair(torch.ones(2), np.arange(2)),
        {"x": [torch.zeros(1), "text"], "n": None},
        collections.OrderedDict(a=(1, torch.ones(1))),
        7,
    ]
    staged = list(lf.stage(batches))
    assert all(a is b for a, b in zip(staged, batches, strict=True))


def test_it_can_be_iterated_again_and_knows_its_length():
    staged = lf.stage([1, 2, 3], depth=1)
    assert list(staged) == list(staged) == [1, 2, 3] and len(staged) == 3
    with pytest.raises(TypeError):
        len(lf.stage(iter([1])))


def test_a_torch_dataloader_is_staged_without_a_change_to_it():
    dataset = torch.utils.data.TensorDataset(torch.arange(10.0), torch.arange(10))
    rows = [y for x, y in lf.stage(torch.utils.data.DataLoader(dataset, batch_size=3))]
    assert torch.equal(torch.cat(rows), torch.arange(10))


def test_a_loader_is_staged_too(numbers):
    ids = [i for batch in lf.stage(lf.Loader(numbers, 8)) for i in batch.ids.tolist()]
    assert sorted(ids) == list(range(64))


def test_no_more_than_depth_batches_are_ahead():
    made = []

    def source():
        for i in range(50):
            made.append(i)
            yield i

    it = iter(lf.stage(source(), depth=2))
    assert next(it) == 0
    time.sleep(0.4)
    assert len(made) <= 1 + 2 + 1, "one handed out, two waiting, one in the making"
    assert list(it) == list(range(1, 50))


def test_an_exception_comes_at_its_place_with_its_own_traceback():
    def source():
        yield 1
        raise KeyError("the source's own")

    it = iter(lf.stage(source()))
    assert next(it) == 1
    with pytest.raises(KeyError, match="the source's own") as raised:
        next(it)
    assert any(entry.name == "source" for entry in raised.traceback)
    with pytest.raises(StopIteration):
        next(it)


def test_dropping_an_iterator_ends_its_thread_and_closes_the_generator():
    closed = []

    def endless():
        try:
            while True:
                yield torch.zeros(4)
        finally:
            closed.append(True)

    before = stage_threads()
    it = iter(lf.stage(endless()))
    next(it)
    assert stage_threads() == before + 1
    del it
    gc.collect()
    wait_until(lambda: stage_threads() == before and closed)


def test_close_waits_for_the_thread_and_ends_the_pass():
    before = stage_threads()
    it = iter(lf.stage(iter(int, 1)))
    next(it)
    it.close()
    it.close()
    assert stage_threads() == before and list(it) == []


def test_set_epoch_reaches_the_sampler():
    dataset = torch.utils.data.TensorDataset(torch.arange(8))
    sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0)
    staged = lf.stage(torch.utils.data.DataLoader(dataset, sampler=sampler))
    staged.set_epoch(5)
    assert sampler.epoch == 5
    with pytest.raises(lf.UsageError, match="set_epoch"):
        lf.stage([1]).set_epoch(1)


def test_bad_arguments_are_named():
    for arguments, message in ((([1], "tpu"), "tpu"), (([1], "cpu", 0), "depth=0"), ((5,), "not iterable")):
        with pytest.raises(lf.SettingsError, match=message):
            lf.stage(*arguments)
    if not torch.cuda.is_available():
        with pytest.raises(lf.DeviceError, match="device='cpu'"):
            lf.stage([1], "cuda")


def test_nested_batches_are_taken_apart_and_put_together_the_same():
    from lossfeed._loader.stage import nested

    class Encoding(dict):
        pass

    batch = Pair([torch.ones(2), {"k": torch.ones(1)}], Encoding(ids=torch.ones(3), text="a"))
    doubled = nested(batch, lambda t: t * 2, arrays=True)
    assert isinstance(doubled, Pair) and isinstance(doubled.y, Encoding) and doubled.y["text"] == "a"
    assert doubled.x[0].tolist() == [2, 2] and doubled.x[1]["k"].tolist() == [2] and doubled.y["ids"].tolist() == [2] * 3
    assert batch.x[0].tolist() == [1, 1]

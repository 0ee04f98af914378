"""Batches in the hands of other frameworks: the same memory, for as long as anybody holds it."""

import gc

import numpy as np
import pytest
import torch

import lossfeed as lf


def loader(framework, **keywords):
    x = np.arange(64 * 6, dtype=np.float32).reshape(64, 6)
    return x, lf.Loader((x, np.arange(64)), 8, shuffle=False, framework=framework, stats=False, max_slots=12, **keywords)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_dlpack_shares_the_slot_and_keeps_it(framework):
    x, made = loader(framework, num_workers=1)
    with made:
        taken, addresses = [], set()
        for batch in made:
            array = np.from_dlpack(batch.data)
            address = batch.data.data_ptr() if framework == "torch" else batch.data.ctypes.data
            assert array.ctypes.data == address, "no copy"
            taken.append(array)
            addresses.add(address)
            del batch
        gc.collect()
        assert len(addresses) == 8, "a slot that somebody holds is not filled again"
        assert np.array_equal(np.concatenate(taken), x)
        assert made.stats()["slots_lent"] == 8
        del array
        taken.clear()
        gc.collect()
        made.stats()
        for _ in made:
            pass
        assert made.stats()["slots_lent"] <= 1


def test_torch_takes_what_numpy_was_given_and_outlives_the_loader():
    x, made = loader("numpy", num_workers=0)
    with made:
        batch = next(iter(made))
        tensor = torch.from_dlpack(batch.data)
        del batch
    del made
    gc.collect()
    assert np.array_equal(tensor.numpy(), x[:8])


def test_jax_takes_the_batch_where_it_lies():
    jax = pytest.importorskip("jax")
    x, made = loader("numpy", num_workers=1)
    with made:
        for k, batch in enumerate(made):
            array = jax.dlpack.from_dlpack(batch.data)
            assert np.array_equal(np.asarray(array), x[8 * k : 8 * k + 8])


def test_several_iterators_side_by_side_do_not_mix():
    (x, a), (_, b) = loader("torch", num_workers=2), loader("torch", num_workers=0, transform=None)
    with a, b:
        for k, (one, two) in enumerate(zip(a, b, strict=True)):
            expected = torch.from_numpy(x[8 * k : 8 * k + 8])
            assert torch.equal(one.data, expected) and torch.equal(two.data, expected)

"""lf.Loader: who is delivered, as what, how often and in which order."""

import gc
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf


def test_a_batch_carries_its_samples_targets_ids_and_weights(numbers):
    x, y = numbers
    loader = lf.Loader((x, y), batch_size=10, seed=3)
    seen = 0
    for number, batch in enumerate(loader):
        assert (batch.number, batch.epoch) == (number, 0)
        assert batch.data.dtype == torch.float32 and batch.target.dtype == torch.int64
        assert batch.ids.dtype == torch.int64 and batch.weight.dtype == torch.float32
        assert batch.data.shape == (len(batch), 3) and batch.weight.shape == (len(batch),)
        np.testing.assert_array_equal(batch.data.numpy(), x[batch.ids.numpy()])
        np.testing.assert_array_equal(batch.target.numpy(), y[batch.ids.numpy()])
        a, b = batch
        assert a is batch.data and b is batch.target and batch.pin_memory() is batch
        seen += len(batch)
    assert seen == len(x) and len(loader) == number + 1 == 7


def test_numpy_users_get_arrays_and_torch_is_never_imported(tmp_path):
    script = textwrap.dedent(
        """
        import sys, numpy as np, lossfeed as lf
        x, y = np.arange(12, dtype=np.longdouble), np.zeros(12, np.int64)
        try:
            lf.Loader((x, y))
            raise SystemExit("float128 cannot travel")
        except lf.SettingsError as e:
            assert "float128" in str(e)
        with lf.Loader((x.astype(np.int32), y), batch_size=4, seed=1) as loader:
            for batch in loader:
                assert type(batch.data) is np.ndarray and batch.data.dtype == np.int32
                loader.score(np.zeros((4, 3), np.float32), batch)
            assert type(loader.importance()) is np.ndarray and not np.isnan(loader.importance()).any()
        assert "torch" not in sys.modules
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_importing_lossfeed_imports_neither_torch_nor_numpy():
    script = "import sys, lossfeed; assert not {'torch', 'numpy', 'PIL'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"])
def test_every_dtype_travels_unchanged(dtype):
    kind = getattr(torch, dtype)
    x = (torch.randn(9, 2, 3) * 5).to(kind)
    y = torch.arange(9).to(torch.int32).reshape(9, 1)
    for batch in lf.Loader((x, y), batch_size=4):
        assert batch.data.dtype == kind and batch.target.dtype == torch.int32
        assert torch.equal(batch.data, x[batch.ids]) and torch.equal(batch.target, y[batch.ids])


def test_views_share_the_slot_stay_valid_while_held_and_give_it_back(numbers):
    loader = lf.Loader(numbers, batch_size=4, num_workers=1, prefetch_factor=1, max_slots=12)
    it = iter(loader)
    batch = next(it)
    addresses = [t.untyped_storage().data_ptr() for t in (batch.data, batch.target, batch.ids, batch.weight)]
    assert sorted(addresses) == addresses and addresses[-1] - addresses[0] < 4096, "one slot, no copies"
    kept, ids = batch.data[1:, :1], batch.ids.clone()
    expected = kept.clone()
    del batch
    gc.collect()
    lent = loader.stats()["slots_lent"]
    for other in it:
        other.data.fill_(-1.0)
    del other
    gc.collect()
    assert lent >= 1 and torch.equal(kept, expected), "a view of a view keeps the slot from being reused"
    assert torch.equal(kept[:, 0], ids[1:].float())
    thread = threading.Thread(target=lambda held: held.clear(), args=([kept],))
    del kept
    thread.start()
    thread.join()
    for _ in range(3):
        assert len(epoch_ids(loader)) == 16, "every slot came back: the pool is large enough again"


def test_holding_every_slot_is_a_named_error_and_letting_go_heals_it(numbers):
    loader = lf.Loader(numbers, batch_size=4, num_workers=1, prefetch_factor=1, max_slots=5)
    held = []
    with pytest.raises(lf.MemoryLimitError, match="max_slots"):
        for batch in loader:
            held.append(batch)
    assert len(held) >= 3
    held.clear()
    del batch
    assert sum(len(ids) for ids in epoch_ids(loader)) == 64


def test_batches_outlive_their_loader(numbers):
    loader = lf.Loader(numbers, batch_size=8)
    batch = next(iter(loader))
    expected = numbers[0][batch.ids.numpy()]
    loader.close()
    del loader
    gc.collect()
    np.testing.assert_array_equal(batch.data.numpy(), expected)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_uniform_delivers_every_id_exactly_once_an_epoch(ranks, workers, drop_last):
    n, batch_size = 53, 4
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, dtype=np.int64)
    for epoch in range(2):
        per_rank = []
        for rank in range(ranks):
            loader = lf.Loader((x, y), batch_size, num_workers=workers, drop_last=drop_last, seed=5, rank=rank, world_size=ranks)
            loader.set_epoch(epoch)
            per_rank.append(epoch_ids(loader))
            assert len(per_rank[-1]) == len(loader)
            loader.close()
        assert len({len(batches) for batches in per_rank}) == 1, "every rank has equally many batches"
        ids = np.concatenate([i for batches in per_rank for i in batches])
        assert len(set(ids.tolist())) == len(ids)
        if drop_last:
            assert len(ids) == n // (ranks * batch_size) * ranks * batch_size
        else:
            assert sorted(ids.tolist()) == list(range(n))


@pytest.mark.parametrize("sampler", ["uniform", "cost-aware", "importance", "pads"])
def test_one_seed_gives_one_order_whatever_the_number_of_workers(numbers, sampler):
    def orders(workers):
        with lf.Loader(numbers, 8, sampler=sampler, num_workers=workers, seed=11, cache="30%") as loader:
            return [np.concatenate(epoch_ids(loader)).tolist() for _ in range(2)]

    assert orders(0) == orders(1) == orders(3)


def test_epochs_differ_advance_by_themselves_and_can_be_chosen(numbers):
    loader = lf.Loader(numbers, 16, shuffle=True, seed=1)
    first, second = (np.concatenate(epoch_ids(loader)).tolist() for _ in range(2))
    assert first != second and loader.epoch == 2
    loader.set_epoch(0)
    assert np.concatenate(epoch_ids(loader)).tolist() == first
    assert loader.epoch == 1


def test_shuffle_false_walks_the_ids_in_order(numbers):
    loader = lf.Loader(numbers, 16, shuffle=False)
    assert np.concatenate(epoch_ids(loader)).tolist() == list(range(64))


def test_stats_is_one_flat_dict_of_numbers_with_coverage_beside_the_hit_ratio(numbers):
    loader = lf.Loader(numbers, 8, cache="50%", policy="minio", seed=1, num_workers=1)
    for _ in range(2):
        epoch_ids(loader)
    stats = loader.stats()
    assert all(isinstance(k, str) and isinstance(v, float) for k, v in stats.items())
    assert stats["hit_ratio"] == pytest.approx(32 / 128) and stats["coverage_epoch"] == 1.0
    assert stats["samples_total"] == 128 and stats["batches_total"] == 16


def test_repr_tells_what_it_is(numbers):
    loader = lf.Loader(numbers, 8, cache="50%", sampler="cost-aware")
    assert "64 samples in 8 batches of 8" in repr(loader) and "cost-aware" in repr(loader) and "importance" in repr(loader)
    assert "64 rows, each float32 (3,)" in repr(loader.data)
    assert "Batch 0 of epoch 0" in repr(next(iter(loader)))


CAUSES = ("source", "decode", "slot", "copy", "score", "handover")


@pytest.mark.parametrize("form", ["encoded", "decoded"])
def test_a_wait_for_decoding_is_blamed_on_decoding_and_the_causes_add_up(tmp_path, form):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0)
    for label in "ab":
        (tmp_path / label).mkdir()
        for k in range(16):
            picture = pixels.integers(0, 256, (256, 256, 3), dtype=np.uint8)
            image.fromarray(picture).save(tmp_path / label / f"{k}.jpg", quality=95)
    loader = lf.Loader(lf.open(tmp_path), 8, num_workers=0, cache=1.0, cache_form=form, stats=False)
    epoch_ids(loader)
    first = loader.stats()
    epoch_ids(loader)
    now = loader.stats()
    waited = {cause: now[f"wait_{cause}_us_total"] - first[f"wait_{cause}_us_total"] for cause in CAUSES}
    assert sum(waited.values()) == now["wait_us_total"] - first["wait_us_total"]
    # How much it is depends on what else the machine does; whether there is any does not.
    assert (waited["decode"] > 0) == (form == "encoded"), waited
    assert waited["source"] == 0, "everything was in the cache"

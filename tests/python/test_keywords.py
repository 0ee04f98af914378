"""Every keyword of torch's DataLoader is honoured or refused with the reason; every bad setting has its name and
number."""

import inspect
import math

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf
from lossfeed._loader import keywords


def test_the_table_names_every_keyword_of_torchs_loader_and_the_signature_keeps_its_order():
    torchs = list(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)[1:]
    named = set(keywords.HONOURED) | {name.split("=")[0] for name in keywords.REFUSED}
    assert named == set(torchs)
    ours = list(inspect.signature(lf.Loader.__init__).parameters)[1:]
    assert [n if n != "data" else "dataset" for n in ours[: torchs.index("generator") + 1]] == torchs[: torchs.index("generator") + 1]
    assert set(torchs) <= set(ours)


@pytest.mark.parametrize(
    "keyword,value",
    [
        ("pin_memory_device", "cuda"),
    ],
)
def test_refused_keywords_say_why_and_what_to_do(numbers, keyword, value):
    with pytest.raises(lf.SettingsError) as refused:
        lf.Loader(numbers, 8, **{keyword: value})
    message = str(refused.value)
    assert message.startswith(f"{keyword}=") and "is refused: " in message and len(message.split("is refused: ")[1]) > 30


def test_batch_size_is_honoured(numbers):
    sizes = [len(i) for i in epoch_ids(lf.Loader(numbers, batch_size=24))]
    assert len(sizes) == 3 and sum(sizes) == 64 and max(sizes) == 24
    assert len(lf.Loader(numbers)) == 64


def test_drop_last_is_honoured(numbers):
    assert [len(i) for i in epoch_ids(lf.Loader(numbers, 24, drop_last=True))] == [24, 24]


def test_shuffle_is_honoured(numbers):
    orders = [np.concatenate(epoch_ids(lf.Loader(numbers, 8, shuffle=s, seed=0))).tolist() for s in (None, True, False)]
    assert orders[0] == orders[2] == list(range(64)) != orders[1] and sorted(orders[1]) == orders[0]
    named = np.concatenate(epoch_ids(lf.Loader(numbers, 8, sampler="uniform", seed=0))).tolist()
    assert named == orders[1], "shuffle=True is sampler='uniform'"
    assert sorted(np.concatenate(epoch_ids(lf.Loader(numbers, 8, cache="50%"))).tolist()) == orders[0]


def test_dataset_is_torchs_name_for_data(numbers):
    assert len(lf.Loader(dataset=numbers, batch_size=8)) == 8
    for keywords in ({}, {"data": numbers, "dataset": numbers}):
        with pytest.raises(lf.SettingsError, match="give the dataset once"):
            lf.Loader(**keywords)


@pytest.mark.parametrize("cache", [None, "1MiB"])
def test_num_workers_is_honoured(cache):
    import os
    import threading

    class Where:
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return i, (os.getpid(), threading.current_thread() is threading.main_thread())

    for workers in (0, 2):
        loader = lf.Loader(Where(), 2, num_workers=workers, cache=cache, frozen_augmentation=True)
        found = {tuple(map(int, pair)) for batch in loader for pair in zip(*batch.target, strict=True)}
        if workers == 0:
            assert found == {(os.getpid(), 1)}
        else:
            assert 1 <= len(found) <= 2 and os.getpid() not in {pid for pid, _ in found}


def test_the_number_of_workers_is_found_unless_it_is_named(numbers, monkeypatch):
    import copy
    import os
    import pickle

    cores = len(os.sched_getaffinity(0))
    for keywords in ({}, {"num_workers": "auto"}, {"num_workers": None}):
        with lf.Loader(numbers, 8, shuffle=True, seed=1, **keywords) as loader:
            assert 1 <= loader.num_workers <= cores and loader.prefetch_factor == 2
            for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
                assert np.concatenate(epoch_ids(other)).tolist() == np.concatenate(epoch_ids(loader)).tolist()
                loader.set_epoch(0)
            assert loader.stats()["workers"] == loader.num_workers
    with lf.Loader(numbers, 8, num_workers=3) as loader:
        epoch_ids(loader)
        assert (loader.num_workers, loader.stats()["workers"], loader.stats()["workers_reason"]) == (3, 3, 0)
    # Ranks of one machine share its processors; what is no number says nothing.
    for said, most in (("1000", 1), ("no", cores), ("0", cores), ("", cores)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
        assert 1 <= lf.Loader(numbers, 8).num_workers <= most


def test_one_seed_is_one_order_whether_the_number_of_workers_is_found_or_named(numbers):
    def order(workers):
        with lf.Loader(numbers, 8, shuffle=True, seed=4, num_workers=workers, cache="40%", policy="lru") as loader:
            ids = [np.concatenate(epoch_ids(loader)).tolist() for _ in range(3)]
            return ids, loader.state_dict()

    (expected, state), (found, _) = order(0), order("auto")
    assert found == expected
    # A state names no number of workers: another one may go on from it.
    with lf.Loader(numbers, 8, shuffle=True, seed=4, num_workers="auto", cache="40%", policy="lru") as loader:
        loader.load_state_dict(state)
        assert loader.epoch == 3


def test_prefetch_factor_bounds_how_far_workers_run_ahead():
    class Count:
        fetched = 0
        thread_safe = True

        def __len__(self):
            return 400

        def __getitem__(self, i):
            Count.fetched += 1
            return np.float32(i), i

    import time

    loader = lf.Loader(Count(), 2, num_workers=1, prefetch_factor=3, max_slots=5)
    probed = Count.fetched
    it = iter(loader)
    batch = next(it)
    time.sleep(0.5)
    assert 2 <= Count.fetched - probed <= 2 * 5, "at most every slot is filled"
    del batch


def test_collate_fn_makes_data_and_target_of_the_rows(numbers):
    def collate(rows):
        assert all(x.shape == (3,) for x, _ in rows)
        return torch.stack([x for x, _ in rows]).mean(1), [int(y) for _, y in rows]

    loader = lf.Loader(numbers, 8, collate_fn=collate)
    for batch in loader:
        torch.testing.assert_close(batch.data, batch.ids.float() + 0.25)
        assert batch.target == (batch.ids % 4).tolist() and len(batch) == 8
        loader.score_losses(batch.data, batch)
    with pytest.raises(lf.SettingsError, match="collate_fn returned None"):
        next(iter(lf.Loader(numbers, 8, collate_fn=lambda rows: None)))
    with pytest.raises(lf.SettingsError, match="callable"):
        lf.Loader(numbers, 8, collate_fn=3)


def test_generator_gives_the_seed(numbers):
    def order(seed):
        keywords = {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}
        return np.concatenate(epoch_ids(lf.Loader(numbers, 8, **keywords))).tolist()

    assert order(1) == order(1) != order(2)
    with pytest.raises(lf.SettingsError, match="leave one out"):
        lf.Loader(numbers, 8, generator=torch.Generator(), seed=1)
    with pytest.raises(lf.SettingsError, match="torch.Generator"):
        lf.Loader(numbers, 8, generator=np.random.default_rng())


def shuffled(numbers, **keywords):
    with lf.Loader(numbers, 8, shuffle=True, num_workers=0, **keywords) as loader:
        return [np.concatenate(epoch_ids(loader)).tolist() for _ in range(2)]


def test_an_unset_seed_follows_torch_manual_seed(numbers):
    torch.manual_seed(7)
    first, other = shuffled(numbers), shuffled(numbers)
    assert first != other and first[0] != first[1], "one is drawn for every loader"
    torch.manual_seed(7)
    assert shuffled(numbers) == first
    torch.manual_seed(8)
    assert shuffled(numbers) != first
    torch.manual_seed(7)
    loader = lf.Loader(numbers, 8, shuffle=True)
    torch.manual_seed(9)
    later = [i.tolist() for i in epoch_ids(loader)]
    torch.manual_seed(9)
    assert np.concatenate(later).tolist() == shuffled(numbers)[0], "when the first epoch begins"


def test_a_seed_draws_nothing_from_torch_and_ranks_and_numpy_have_seed_0(numbers):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    zero = shuffled(numbers, seed=0)
    assert shuffled(numbers, framework="numpy") == zero
    assert torch.equal(torch.get_rng_state(), state)
    shares = [shuffled(numbers, rank=rank, world_size=2)[0] for rank in range(2)]
    assert shares == [shuffled(numbers, rank=rank, world_size=2, seed=0)[0] for rank in range(2)]
    assert sorted(sum(shares, [])) == list(range(64))


def test_a_state_brings_its_seed_to_a_loader_that_was_given_none(numbers):
    def make(**keywords):
        return lf.Loader(numbers, 8, shuffle=True, **keywords)

    for take in (0, 3, 8):
        loader = make()
        if take == 0:
            state = loader.state_dict()  # before the first epoch: the seed is settled now
            rest = []
        else:
            it = iter(loader)
            for _ in range(take):
                next(it)
            state = loader.state_dict()
            rest = [batch.ids.tolist() for batch in it]
        following = [i.tolist() for i in epoch_ids(loader)]
        for keywords in ({}, {"generator": torch.Generator().manual_seed(1)}):
            resumed = make(**keywords)
            resumed.load_state_dict(state)
            if rest:
                assert [i.tolist() for i in epoch_ids(resumed)] == rest
            assert [i.tolist() for i in epoch_ids(resumed)] == following, "and the epochs after it"
        with pytest.raises(lf.SettingsError, match="seed .* .this loader: 5"):
            make(seed=5).load_state_dict(state)


def test_images_and_noise_draw_by_the_seed_that_was_settled(numbers):
    pixels = np.arange(16 * 8 * 8 * 3, dtype=np.uint8).reshape(16, 8, 8, 3), np.arange(16)

    def made(seed=None, state=None):
        transform = lf.ImageTransform("float32", padding=2, flip=0.5)
        sampler = {"name": "cost-aware", "random_scores": True}
        loader = lf.Loader(pixels, 4, sampler=sampler, cache="50%", seed=seed, transform=transform, num_workers=0)
        if state is not None:
            loader.load_state_dict(state)
        taken = []
        for _ in range(2):
            for batch in loader:
                loader.score_losses(torch.ones(len(batch)), batch)
                taken.append(batch.data.clone())
        return loader, torch.cat(taken)

    torch.manual_seed(3)
    drawn, there = made()
    seed = drawn._engine.seed()
    same, here = made(seed=seed)
    assert torch.equal(there, here) and not torch.equal(there, made(seed=seed + 1)[1])
    assert torch.equal(drawn.importance(), same.importance())
    torch.manual_seed(4)
    fresh = lf.Loader(pixels, 4, sampler={"name": "cost-aware", "random_scores": True}, cache="50%", seed=seed, transform=lf.ImageTransform("float32", padding=2, flip=0.5), num_workers=0)
    assert torch.equal(made(state=fresh.state_dict())[1], here), "a state's seed goes everywhere too"


def test_a_recorded_run_settles_its_seed_at_once(numbers, tmp_path):
    torch.manual_seed(7)
    loader = lf.Loader(numbers, 8, shuffle=True, journal=tmp_path / "run.csv", cache="50%")
    assert loader._engine.seed() is not None
    seed = loader._engine.seed()
    epoch_ids(loader)
    loader.close()
    assert str(seed) in (tmp_path / "run.csv").read_text().split("\n", 3)[0] + (tmp_path / "run.csv").read_text()[:4000]


def test_pin_memory_timeout_persistent_workers_and_in_order(numbers):
    with pytest.warns(UserWarning, match="pin_memory=True with device='cpu'") as told:
        assert lf.Loader(numbers, 8, pin_memory=True).pin_memory
    assert told[0].filename == __file__
    loader = lf.Loader(numbers, 8, pin_memory=False, timeout=30, persistent_workers=True, in_order=True)
    assert [len(epoch_ids(loader)) for _ in range(2)] == [8, 8]


def test_pin_memory_device_may_say_what_device_says(numbers):
    with pytest.warns(UserWarning, match="pin_memory_device='cpu' is deprecated: use device='cpu'") as told:
        assert lf.Loader(numbers, 8, pin_memory_device="cpu").pin_memory_device == "cpu"
    assert told[0].filename == __file__
    with pytest.raises(lf.SettingsError, match="pin_memory_device='cuda:1' is refused.*use device="):
        lf.Loader(numbers, 8, pin_memory_device="cuda:1")
    for said, device, same in (("cuda", "cuda:1", True), ("cuda:1", "cuda:1", True), ("cuda:1", "cuda:0", False), ("cuda:0", "cpu", False)):
        with pytest.warns(UserWarning) if same else pytest.raises(lf.SettingsError):
            keywords.pin_memory_device(said, device)


def test_in_order_false_allows_any_order_and_gets_this_one(numbers):
    loader = lf.Loader(numbers, 8, num_workers=2, in_order=False)
    assert loader.in_order is False
    assert np.concatenate(epoch_ids(loader)).tolist() == list(range(64))


def test_what_is_written_for_batch_size_none_gives_torchs_items(numbers):
    given = torch.utils.data.TensorDataset(*map(torch.from_numpy, numbers))
    ours = lf.Loader(given, batch_size=1, collate_fn=lambda items: items[0])
    for (x, y), (a, b) in zip(ours, torch.utils.data.DataLoader(given, batch_size=None), strict=True):
        assert torch.equal(x, a) and torch.equal(y, b)
    many = torch.utils.data.BatchSampler(range(64), 10, False)
    theirs = torch.utils.data.DataLoader(given, batch_size=None, sampler=many)
    for (x, y), (a, b) in zip(lf.Loader(given, batch_sampler=many), theirs, strict=True):
        assert torch.equal(x, a) and torch.equal(y, b)


def test_torch_distributed_gives_rank_and_world_size(numbers, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        loader = lf.Loader(numbers, 8)
        assert (loader._settings["rank"], loader._settings["world_size"]) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()
    assert len(lf.Loader(numbers, 8, rank=1, world_size=2)) == 4


@pytest.mark.parametrize(
    "cache,expected",
    [(None, 0), (0, 0), (6400, 6400), ("64kB", 64000), ("1KiB", 1024), ("0.5MiB", 524288), ("50%", 2048), (0.25, 1024), (1.0, 4096), ("100%", 4096)],
)
def test_cache_sizes_are_read(numbers, cache, expected):
    loader = lf.Loader(numbers, 8, cache=cache)
    assert loader._settings["cache_bytes"] == expected
    assert loader.stats()["cache_capacity_bytes"] == expected


@pytest.mark.parametrize(
    "keywords,message",
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": -3}, "batch_size=-3"),
        ({"batch_size": 33, "drop_last": True, "rank": 0, "world_size": 2}, "drop_last leaves no batch: batch_size 33 .* 66"),
        ({"rank": 0, "world_size": 1000}, "at most as many ranks as samples"),
        ({"batch_size": 2.0}, "batch_size=2.0 must be an int"),
        ({"batch_size": True}, "batch_size=True must be an int"),
        ({"batch_size": None}, "batch_size=None"),
        ({"batch_size": 2**70}, "batch_size"),
        ({"cache": -1}, "cache=-1"),
        ({"cache": 1}, "smaller than one sample"),
        ({"cache": math.nan}, "cache=nan"),
        ({"cache": 1.5}, "cache=1.5"),
        ({"cache": "2 GigaBananas"}, "GigaBananas.*20%"),
        ({"cache": "120%"}, "120%"),
        ({"cache": [1]}, "cache="),
        ({"cache_form": "zip"}, "encoded or decoded"),
        ({"copy_path": "zip"}, "gathered, batched or mapped"),
        ({"copy_path": "mapped"}, "set device="),
        ({"policy": "best"}, "best.*lru"),
        ({"policy": "nopfs"}, "nopfs.*lossfeed-lab replay"),
        ({"policy": "belady", "sampler": "importance"}, "belady goes by the order of the next epoch.*use policy importance"),
        ({"sampler": "fair"}, "fair.*cost-aware"),
        ({"sampler": "cost_aware"}, "'cost_aware' is unknown .did you mean 'cost-aware'.*use uniform"),
        ({"sampler": {"kappa": 2}}, "no name"),
        ({"sampler": {"name": "cost-aware", "kappa": math.nan}}, "kappa=nan"),
        ({"sampler": {"name": "cost-aware", "kappa": -1}}, "kappa is -1"),
        ({"sampler": {"name": "cost-aware", "cappa": 4}}, "no option 'cappa' .did you mean 'kappa'.*: it has fetches, floor, kappa, random_scores$"),
        ({"sampler": {"name": "ods", "kappa": 4}}, "sampler ods has no option 'kappa': it has none"),
        ({"sampler": {"name": "cost-aware", "kappa": "much"}}, "sampler cost-aware: kappa='much' must be a number$"),
        ({"sampler": {"name": "uniform", "replacement": 1}}, "replacement=1 must be True or False"),
        ({"sampler": {"name": "importance", "floor": 0.0}}, "floor is 0"),
        ({"sampler": {"name": "pads", "repeats": 0.3}}, "repeats is 0.3"),
        ({"sampler": {"name": "uniform", "replacement": object}}, "neither a number"),
        ({"sampler": "importance", "shuffle": False}, "shuffle=False"),
        ({"shuffle": 1}, "shuffle=1"),
        ({"drop_last": "yes"}, "drop_last='yes'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"rank": 0}, "give both or neither"),
        ({"rank": 0, "world_size": 0}, "world_size=0"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": 10**6}, "num_workers=1000000"),
        ({"num_workers": 0, "prefetch_factor": 2}, "num_workers=0"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"),
        ({"timeout": -1}, "timeout=-1"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"timeout": "5"}, "timeout='5'"),
        ({"smoothing": 1.0}, "smoothing=1.0"),
        ({"smoothing": math.nan}, "smoothing=nan"),
        ({"smoothing": -0.1}, "smoothing=-0.1"),
        ({"score": "vibes"}, "gradient_norm"),
        ({"on_error": "ignore"}, "raise, skip or substitute"),
        ({"max_slots": 1}, "max_slots 1"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"framework": "jax"}, "torch or numpy"),
        ({"framework": "numpy", "device": "cuda"}, "NumPy arrays live in host memory"),
    ],
    ids=str,
)
def test_a_bad_setting_is_named_with_its_value(numbers, keywords, message):
    with pytest.raises(lf.SettingsError, match=message):
        lf.Loader(numbers, **{"batch_size": 8, **keywords})


def test_a_device_that_is_not_there_is_a_device_error(numbers):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(lf.DeviceError, match="device='cpu'"):
        lf.Loader(numbers, 8, device="cuda")


def test_an_unknown_keyword_is_a_type_error(numbers):
    with pytest.raises(TypeError, match="batchsize"):
        lf.Loader(numbers, batchsize=8)


# ---- bad input of the hook -------------------------------------------------------------------------------------------


@pytest.fixture
def batch_of(numbers):
    loader = lf.Loader(numbers, 8)
    return loader, next(iter(loader))


def test_logits_and_ids_of_different_length_are_refused(batch_of):
    loader, batch = batch_of
    for call in (loader.score, loader.cross_entropy):
        with pytest.raises(lf.SettingsError, match=r"\(7, 4\) for a batch of 8"):
            call(torch.randn(7, 4), batch)
    with pytest.raises(lf.SettingsError, match="batch of 8"):
        loader.score_losses(torch.ones(9), batch)
    assert loader.stats()["scores_total"] == 0


def test_a_target_out_of_range_is_named(batch_of):
    loader, batch = batch_of
    for call in (loader.score, loader.cross_entropy):
        with pytest.raises(lf.SampleError, match=r"outside 0\.\.2"):
            call(torch.randn(8, 2), batch)
    assert loader.stats()["scores_total"] == 0, "nothing is scored by half"


def test_scores_for_another_loaders_batch_and_for_no_batch_are_refused(batch_of, numbers):
    loader, batch = batch_of
    other = lf.Loader(numbers, 8)
    with pytest.raises(lf.UsageError, match="another loader"):
        other.score(torch.randn(8, 4), batch)
    for wrong in (None, (batch.data, batch.target), 3):
        with pytest.raises(lf.UsageError, match="batch that the loop delivered"):
            loader.score(torch.randn(8, 4), wrong)


def test_losses_that_are_not_one_float_a_sample_are_refused(batch_of):
    loader, batch = batch_of
    for losses, message in ((torch.ones(8, 2), r"\(8, 2\)"), (torch.ones(8, dtype=torch.int64), "int64"), (torch.tensor(1.0), "one row"), (3.0, "float")):
        with pytest.raises(lf.SettingsError, match=message):
            loader.score_losses(losses, batch)


def test_non_contiguous_logits_and_numpy_logits_work(batch_of):
    loader, batch = batch_of
    wide = torch.randn(4, 16)[:, ::2].t()
    loader.score(wide, batch)
    it = iter(loader)
    second = next(it)
    loader.score(np.asfortranarray(np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)), second)
    assert loader.stats()["scores_total"] == 16


def test_a_wrong_reduction_is_refused(batch_of):
    loader, batch = batch_of
    with pytest.raises(lf.SettingsError, match="none, mean or sum"):
        loader.cross_entropy(torch.randn(8, 4), batch, reduction="median")


def test_every_exception_is_an_lf_error_and_the_builtin_that_fits():
    import builtins

    for name, builtin in {
        "SettingsError": ValueError,
        "SourceError": OSError,
        "SampleError": ValueError,
        "MemoryLimitError": MemoryError,
        "DeviceError": RuntimeError,
        "UsageError": RuntimeError,
        "TimeoutError": builtins.TimeoutError,
        "InternalError": RuntimeError,
    }.items():
        kind = getattr(lf, name)
        assert issubclass(kind, lf.Error) and issubclass(kind, builtin) and kind.__module__ == "lossfeed"

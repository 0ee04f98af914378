"""Small pictures in shards come by requests of megabytes, in any order; nothing but the number of requests changes."""

import io
import pathlib
import sys
import tarfile
import threading
import time

import numpy as np
import pytest
from PIL import Image

import lossfeed as lf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FaultStore  # noqa: E402


def pictures(count, seed=0):
    """PNGs of 2 KB, each another one."""
    pixels = np.random.default_rng(seed).integers(0, 255, (count, 25, 25, 3), dtype=np.uint8)
    for picture in pixels:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "PNG", compress_level=0)
        yield out.getvalue()


def shard(bodies, start=0):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for i, body in enumerate(bodies, start):
            info = tarfile.TarInfo(f"c{i % 2}/{i:05}.png")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


@pytest.fixture(scope="module")
def one_shard():
    return {"train.tar": shard(pictures(5000))}


def opened(store, folder, **options):
    """The dataset by an index that is there: nothing was read of it while it was opened."""
    options["index_cache"] = folder / "index"
    lf.open(store.url + "/train.tar", **options)
    return lf.open(store.url + "/train.tar", **options)


def epoch(loader):
    return [(np.array(batch.ids), np.array(batch.weight), np.array(batch.data)) for batch in loader]


def same(some, others):
    return len(some) == len(others) and all(np.array_equal(*pair) for a, b in zip(some, others) for pair in zip(a, b))


def test_a_shuffled_epoch_of_one_shard_takes_fifty_requests_at_most(one_shard, tmp_path):
    samples = 5000
    with FaultStore(one_shard, tags=False) as store:
        data = opened(store, tmp_path)
        other = lf.open(store.url + "/train.tar")
        plain = lf.Loader(other, 50, shuffle=True, num_workers=0, seed=1, framework="numpy", stats=False)
        expected = epoch(plain)
        loader = lf.Loader(data, 50, shuffle=True, num_workers=2, seed=1, framework="numpy", stats=False)
        before = store.requests["train.tar"]
        assert same(epoch(loader), expected)
        requests, stats = store.requests["train.tar"] - before, loader.stats()
        assert stats["store_requests_total"] == requests <= 50
        assert stats["fetched_samples_total"] == samples
        # A header and padding each, and of other samples 2 % at most.
        framing = len(one_shard["train.tar"]) - stats["fetched_bytes_total"]
        assert stats["store_vain_bytes_total"] <= framing + 0.02 * stats["fetched_bytes_total"]
        loader.close()


def test_ranks_get_what_they_would_without_reading_ahead(one_shard, tmp_path):
    with FaultStore(one_shard, tags=False) as store:
        data = opened(store, tmp_path)
        for rank in range(2):
            how = {"rank": rank, "world_size": 2, "seed": 3, "framework": "numpy", "stats": False}
            with lf.Loader(data, 50, shuffle=True, num_workers=2, **how) as loader:
                got, stats = epoch(loader), loader.stats()
            with lf.Loader(data, 50, shuffle=True, num_workers=0, **how) as plain:
                assert same(got, epoch(plain))
                others = plain.stats()
                assert stats["fetched_samples_total"] == others["fetched_samples_total"] == 2500
                assert stats["store_requests_total"] < others["store_requests_total"]


@pytest.mark.parametrize("fault", ["status_500", "cut_body", "flipped_bit"])
def test_a_range_that_fails_is_asked_for_again_and_its_samples_come(one_shard, fault, tmp_path):
    with FaultStore(one_shard, tags=False) as store:
        data = opened(store, tmp_path, checksums=True)
        loader = lf.Loader(data, 50, shuffle=True, num_workers=2, seed=1, framework="numpy", stats=False)
        store._schedule["train.tar"] = [fault, None, fault]
        got = epoch(loader)
        assert sorted(np.concatenate([ids for ids, _, _ in got])) == list(range(5000))
        assert store.counts[fault] == 2
        loader.close()
        plain = lf.Loader(data, 50, shuffle=True, num_workers=0, seed=1, framework="numpy", stats=False)
        assert same(got, epoch(plain))


def test_a_pass_that_is_left_while_ranges_are_under_way_ends_at_once(one_shard, tmp_path):
    with FaultStore(one_shard, tags=False) as store:
        data = opened(store, tmp_path)
        loader = lf.Loader(data, 50, shuffle=True, num_workers=2, framework="numpy", stats=False)
        store._schedule["train.tar"] = ["black_hole"] * 1000

        def wait():
            with pytest.raises(lf.UsageError, match="closed"):
                next(iter(loader))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        time.sleep(0.3)
        began = time.perf_counter()
        loader.close()
        waiting.join(2)
        assert not waiting.is_alive() and time.perf_counter() - began < 2


def test_the_limit_of_what_is_read_ahead_holds_with_ranges(one_shard, tmp_path):
    limit = 12 << 20
    with FaultStore(one_shard, tags=False) as store:
        data = opened(store, tmp_path)
        loader = lf.Loader(data, 50, shuffle=True, num_workers=2, read_ahead=limit, framework="numpy", stats=False)
        most, before = 0, store.requests["train.tar"]
        for batch in loader:
            most = max(most, loader.stats()["read_ahead_bytes"])
        assert 0 < most <= limit
        assert store.requests["train.tar"] - before < 1000
        loader.close()

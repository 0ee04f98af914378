"""What is read ahead of a store, and how much a second may be: neither changes what is delivered."""

import numpy as np
import pytest

import lossfeed as lf


@pytest.fixture
def shard(tmp_path):
    """A tar of 200 small pictures in four classes."""
    import io
    import tarfile

    from PIL import Image

    path = tmp_path / "train.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(200):
            picture = io.BytesIO()
            Image.fromarray(np.full((4, 5, 3), number, np.uint8)).save(picture, "PNG")
            member = tarfile.TarInfo(f"c{number % 4}/{number:04}.png")
            member.size = picture.tell()
            picture.seek(0)
            archive.addfile(member, picture)
    return str(path)


def seen(loader, epochs=2):
    """Ids, targets and the first pixel of everything that is delivered."""
    return [
        (np.asarray(batch.ids).tolist(), np.asarray(batch.target).tolist(), np.asarray(batch.data)[:, 0, 0, 0].tolist())
        for _ in range(epochs)
        for batch in loader
    ]


def test_reading_ahead_changes_no_batch_and_is_the_default_behind_a_network(shard):
    def loader(**options):
        data = lf.open(shard, latency=0.002)
        return lf.Loader(data, batch_size=16, shuffle=True, seed=3, cache="20%", stats=False, **options)

    plain = loader(read_ahead=0, num_workers=2)
    expected = seen(plain)
    assert plain.stats()["read_ahead_samples_total"] + plain.stats()["read_ahead_late_total"] == 0
    for options in ({}, {"read_ahead": "64KiB"}, {"read_ahead": 200}, {"num_workers": 0}, {"num_workers": 0, "read_ahead": 10**6}):
        ahead = loader(**{"num_workers": 2, **options})
        assert seen(ahead) == expected, options
        stats = ahead.stats()
        reads = stats["read_ahead_samples_total"] + stats["read_ahead_late_total"]
        assert (reads > 0) == (options != {"num_workers": 0}), (options, stats)
        assert stats["hits_total"] == plain.stats()["hits_total"]
        # Files of this machine are read when they are needed.
    local = lf.Loader(lf.open(shard), batch_size=16, num_workers=2, stats=False)
    seen(local)
    assert local.stats()["read_ahead_samples_total"] == 0


@pytest.mark.parametrize("size", ["fast", -1, True, 1.5, "20%"])
def test_a_size_that_is_none_is_refused(shard, size):
    with pytest.raises(lf.SettingsError, match="read_ahead="):
        lf.Loader(lf.open(shard), batch_size=16, read_ahead=size)


@pytest.mark.parametrize("read_ahead", [0, 10**6])
def test_a_new_limit_holds_for_requests_that_wait_already(shard, read_ahead):
    data = lf.open(shard, latency=0.001)
    data.limit("1B")
    # A pass that cannot move ends with its timeout, within bounds, though requests are under way.
    stuck = lf.Loader(data, batch_size=16, num_workers=1, timeout=0.5, read_ahead=read_ahead, stats=False)
    with pytest.raises(lf.TimeoutError):
        next(iter(stuck))
    loader = lf.Loader(data, batch_size=16, num_workers=1, read_ahead=read_ahead, stats=False)
    batches = iter(loader)
    batches.begin()
    data.limit(None)
    assert sum(len(batch) for batch in batches) == 200
    data.limit("1GB")
    assert len(seen(loader, 1)) == len(loader)


def test_what_has_no_limit_says_so(shard, numbers):
    for data in (lf.open(shard), lf.open(numbers)):
        with pytest.raises(lf.SettingsError, match="no single store"):
            data.limit("1MB")
    far = lf.open(shard, latency=0.001)
    with pytest.raises(lf.SettingsError, match="no single store"):
        (far + far).limit("1MB")
    with pytest.raises(lf.SettingsError, match="remove it for no limit"):
        far.limit(0)
    far.subset(range(10)).limit("1MB")


def test_a_cache_may_hold_less_or_more_while_batches_go_on():
    x, y = np.arange(400, dtype=np.float32).repeat(16).reshape(400, 16), np.arange(400)
    with lf.Loader((x, y), 40, shuffle=True, seed=0, cache="100%", policy="minio") as loader:
        list(loader)
        most = loader.stats()["cache_capacity_bytes"]
        assert loader.resize_cache("25%") > 0
        assert loader.stats()["cache_capacity_bytes"] == most / 4 >= loader.stats()["cache_bytes"]
        for batch in loader:
            assert np.array_equal(np.asarray(batch.data)[:, 3], np.asarray(batch.target))
        assert loader.stats()["hits_total"] == 100
        assert loader.resize_cache(1.0) == 0
        list(loader)
        list(loader)
        assert loader.stats()["hits_total"] == 600
        for cache, says in (("2GB", "exceeds the"), (-1, "cache=-1"), ("two", "cache='two'"), (1.5, "cache=1.5")):
            with pytest.raises(lf.SettingsError, match=says):
                loader.resize_cache(cache)
    with pytest.raises(lf.UsageError, match="closed"):
        loader.resize_cache(0)

"""The disk tier of lf.open: what was fetched is read from a local disk the next time, and only that."""

import gc
import shutil
import sys
import time

import lossfeed as lf
import numpy as np
import pytest
from PIL import Image

SHAPE = (6, 5, 3)


def pixels(i):
    return np.random.default_rng(i).integers(0, 255, SHAPE, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Twelve PNGs in three classes."""
    root = tmp_path / "data"
    for i in range(12):
        place = root / f"class{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(i)).save(place / f"{i:02}.png")
    return root


def epochs(data, count=1, **keywords):
    """Runs some epochs, each of which must deliver every sample with its own pixels; the loader's numbers."""
    with lf.Loader(data, 4, num_workers=0, **keywords) as loader:
        for epoch in range(count):
            loader.set_epoch(epoch)
            seen = set()
            for batch in loader:
                for i, x in zip(batch.ids.tolist(), batch.data.numpy()):
                    number = int(data.name(i).rpartition("/")[2].partition(".")[0])
                    assert (x == pixels(number)).all()
                    seen.add(i)
            assert len(seen) == 12
        return loader.stats()


def written(data, samples):
    """Until the tier's thread has written so many."""
    deadline = time.monotonic() + 60
    while True:
        with lf.Loader(data, 4, num_workers=0) as loader:
            numbers = loader.stats()
        if numbers["disk_written_total"] >= samples:
            return numbers
        assert time.monotonic() < deadline, numbers
        time.sleep(0.01)


def test_a_second_run_reads_from_the_disk_and_hits_of_the_cache_are_counted_apart(folder, tmp_path):
    options = {"latency": 0.001, "disk": tmp_path / "tier", "disk_bytes": "64MiB"}
    data = lf.open(folder, **options)
    first = epochs(data)
    # The first sample is looked at when a dataset is opened.
    assert first["disk_misses_total"] + first["disk_hits_total"] == 13 and first["hits_total"] == 0
    assert written(data, 12)["disk_bytes"] > 0
    del data
    gc.collect()

    data = lf.open(folder, **options)
    second = epochs(data, count=2, cache="1MiB")
    assert second["disk_hits_total"] == 13 and second["disk_misses_total"] == 0
    assert second["hits_total"] == 12, "the second epoch is the cache's"
    assert second["disk_damaged_total"] == second["disk_dropped_total"] == 0
    assert second["disk_hit_bytes_total"] > 0 and second["fetched_samples_total"] == 12
    assert second["on_time_total"] + second["late_total"] == 12 and second["samples_total"] == 24
    assert second["disk_circuit"] == second["disk_opened_total"] == second["disk_failed_total"] == 0


def test_a_folder_that_vanishes_costs_nothing_but_what_would_have_been_kept(folder, tmp_path):
    options = {"latency": 0.001, "disk": tmp_path / "tier", "disk_bytes": "64MiB"}
    data = lf.open(folder, **options)
    epochs(data)
    written(data, 12)
    shutil.rmtree(tmp_path / "tier")
    numbers = epochs(data, count=2)
    assert numbers["disk_damaged_total"] == numbers["disk_failed_total"] == 0
    came = numbers["hits_total"] + numbers["on_time_total"] + numbers["late_total"]
    assert came == numbers["samples_total"] == 24
    del data
    gc.collect()
    assert not (tmp_path / "tier").exists()


def test_damage_costs_fetches_and_nothing_else(folder, tmp_path, monkeypatch):
    tier = tmp_path / "tier"
    options = {"disk": str(tier), "disk_bytes": 64 << 20}
    data = lf.open(folder, **options)
    epochs(data)
    written(data, 12)
    del data
    gc.collect()
    (segment,) = tier.glob("*.seg")
    damaged = bytearray(segment.read_bytes())
    # Of the last record, before the footer: the first was the sample that opening looks at.
    damaged[-(12 * 24 + 40) - 20] ^= 1
    segment.write_bytes(damaged)
    # Opening looks at the sizes of all twelve first, in a process that has warned of none.
    monkeypatch.setattr(sys.modules["lossfeed._data.open"], "_noticed", False)
    data = lf.open(folder, **options)
    numbers = epochs(data)
    assert numbers["disk_damaged_total"] == 1 and numbers["disk_hits_total"] >= 22


def test_options_that_make_no_sense_are_named(folder, tmp_path):
    for options, words in [
        ({"disk": tmp_path}, "need each other"),
        ({"disk_bytes": "1GB"}, "need each other"),
        ({"disk": tmp_path, "disk_bytes": "1MB"}, "64 MiB"),
        ({"disk": tmp_path, "disk_bytes": "a lot"}, "disk_bytes"),
        ({"disk": folder / "class0" / "00.png", "disk_bytes": "1GB"}, "disk folder"),
    ]:
        with pytest.raises(lf.SettingsError, match=words):
            lf.open(folder, **options)
    with pytest.raises(lf.SettingsError, match="disk="):
        lf.open((np.zeros((4, 2)), np.zeros(4)), disk=tmp_path, disk_bytes="1GB")


def test_a_tilde_is_home(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    data = lf.open(folder, disk="~/cache/lossfeed", disk_bytes="64MiB")
    epochs(data)
    assert (tmp_path / "cache" / "lossfeed").stat().st_mode & 0o777 == 0o700

"""`lf.open(chaos=SEED)` and `lossfeed train --chaos SEED`: a store that fails on purpose delivers what it delivers else.

A thousand seeds on a clock turned by hand: `engine/src/engine/chaos_tests.rs`.
"""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

import lossfeed as lf
import lossfeed.train as train


@pytest.fixture
def folder(tmp_path):
    """48 pictures in two classes, and a shard of the same."""
    chance = np.random.default_rng(3)
    with tarfile.open(tmp_path / "all.tar", "w") as shard:
        for i in range(48):
            place = tmp_path / "classes" / f"c{i % 2}" / f"{i:02}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(chance.integers(0, 255, (4, 5, 3), dtype=np.uint8)).save(place)
            shard.add(place, f"c{i % 2}/{i:02}.png")
    return tmp_path


def epoch(data):
    loader = lf.Loader(data, batch_size=10, shuffle=True, seed=5, cache="2KB")
    return [[np.asarray(part).copy() for part in (batch.ids, batch.data, batch.target)] for _ in range(2) for batch in loader]


@pytest.mark.parametrize("place", ["classes", "all.tar"])
@pytest.mark.parametrize("options", [{}, {"checksums": True}, {"coalesce": False, "connections": 2}])
def test_a_store_that_fails_on_purpose_delivers_the_same(folder, place, options):
    sound = epoch(lf.open(folder / place))
    for seed in (1, 2):
        failing = lf.open(folder / place, chaos=seed, timeout=0.3, **options)
        for batch, expected in zip(epoch(failing), sound, strict=True):
            for part, of in zip(batch, expected, strict=True):
                np.testing.assert_array_equal(part, of)


def test_requests_do_fail(folder):
    # This seed's store is gone for its first requests, and nothing is asked for a second time.
    with pytest.raises(lf.OutageError, match="connection reset"):
        lf.open(folder / "classes", chaos=1, retry_timeout=0)


def test_a_training_run_under_chaos_is_the_training_run_without(folder, tmp_path):
    def losses(**options):
        out = io.StringIO()
        given = {"work_dir": str(tmp_path), "latency": 0, "bandwidth": 0, "json": True, "workers": 0, "device": "cpu"}
        wanted = {"data": str(folder / "classes"), "batch_size": 8, "epochs": 4, "seeds": 1, "compare": "uniform+minio", "threads": 1}
        assert train.main({**given, **wanted, **options}, out) == 0
        told = [json.loads(line) for line in out.getvalue().splitlines()]
        return [(e["accuracy"], e["fetched_samples"], e["fetched_bytes"]) for e in told if e["event"] == "epoch"]

    sound = losses()
    assert losses(chaos=11) == sound and len(sound) == 4

"""``ais://…``: against a server that answers as AIStore's documentation says. AIStore itself was not there to try."""

import logging

import numpy as np
import pytest
from test_coalescing import png, shard

import lossfeed as lf
from ais_double import Ais

QUICKLY = {"retry_timeout": 20.0, "timeout": 30.0}
COUNT = 300


@pytest.fixture
def shards():
    made = {f"s/train-{n}.tar": shard([png(n * 1000 + i) for i in range(COUNT)]) for n in range(5)}
    return made | {"s/notes.txt": b"x"}


def opened(ais, url="ais://images/s/train-*.tar", **options):
    given = {"endpoint": ais.url, **options.pop("store_options", {})}
    return lf.open(url, store_options=given, **{"checksums": True, **QUICKLY, **options})


def pixels(data, **options):
    """Every sample's pixels by id, through a shuffled loader."""
    found = {}
    with lf.Loader(data, 256, shuffle=True, seed=1, framework="numpy", stats=False, **options) as loader:
        for batch in loader:
            found.update(zip(batch.ids.tolist(), np.array(batch.data)))
    return found


def same(found, other):
    assert found.keys() == other.keys() and all((found[i] == other[i]).all() for i in found)


def test_a_shuffled_epoch_takes_a_tenth_of_the_requests_and_brings_the_same_bytes(shards):
    with Ais(shards) as ais:
        by_lists, by_ranges = opened(ais), opened(ais, store_options={"get_batch": "never"})
        assert len(by_lists) == 5 * COUNT and "5 shards" in repr(by_lists)
        before, batches = ais.requests(), len(ais.batches)
        first = pixels(by_lists, num_workers=0)
        lists, batches = ais.requests() - before, len(ais.batches) - batches
        before = ais.requests()
        second = pixels(by_ranges, num_workers=0)
        ranges = ais.requests() - before
        same(first, second)
        assert lists == batches == 6 and ranges >= 10 * lists
        assert not any(entry["objname"].endswith("notes.txt") for batch in ais.batches for entry in batch)
        # Reading ahead asks for lists as well.
        before = ais.requests()
        same(pixels(by_lists, num_workers=2), first)
        assert ais.requests() - before <= ranges // 2


def test_without_checksums_names_are_proof_only_where_somebody_says_so(shards):
    with Ais(shards) as ais:
        plain = pixels(opened(ais, checksums=False), num_workers=0)
        assert not ais.batches
        same(pixels(opened(ais, checksums=False, store_options={"get_batch": "names"}), num_workers=0), plain)
        assert len(ais.batches) == 6


@pytest.mark.parametrize(
    "wrongs",
    [
        [lambda stream: stream[: len(stream) // 3] + b"CUT"] * 2,
        [lambda stream: b"CUT"] * 8,
        [lambda stream: stream.replace(b"00007.png", b"00008.png")] * 3,
        [lambda stream: b"\x1f\x8b" + stream] * 2,
        [lambda stream: bytes(len(stream))],
        [lambda stream: stream[:5120] + bytes(255 - byte for byte in stream[5120:5130]) + stream[5130:]] * 6,
    ],
    ids=["cut", "nothing", "other names", "no archive", "zeros", "damage"],
)
def test_a_stream_that_is_wrong_costs_requests_and_no_sample(shards, wrongs):
    with Ais(shards) as ais:
        data = opened(ais)
        right = pixels(data, num_workers=0)
        ais.wrongs = list(wrongs)
        same(pixels(data, num_workers=0), right)
        assert len(ais.wrongs) < len(wrongs)


def test_what_is_missing_is_an_error_of_that_sample(shards):
    with Ais(shards) as ais:
        data = opened(ais, "ais://images/s/train-{0..4}.tar")
        del ais.objects["s/train-3.tar"]
        with lf.Loader(data, 256, framework="numpy", num_workers=0, on_error="skip", stats=False) as loader:
            assert sum(len(batch.ids) for batch in loader) == 4 * COUNT
            bad = loader.bad_samples()
        assert bad and all("train-3.tar" in str(sample) for sample in bad)


def test_a_store_that_is_busy_is_asked_again_and_one_that_knows_no_lists_is_not(shards, caplog):
    with Ais(shards) as ais, caplog.at_level(logging.WARNING, "lossfeed"):
        data = opened(ais)
        ais.refusals = [429, 503]
        right = pixels(data, num_workers=0)
        assert len(ais.batches) == 8
        ais.refusals = [405] * 50
        data = opened(ais)
        before = len(ais.batches)
        same(pixels(data, num_workers=0), right)
        assert len(ais.batches) == before + 1


def test_class_folders_come_in_lists_too():
    objects = {f"train/{label}/{i}.png": png(i * 7 + len(label)) for label in ("cat", "dog") for i in range(40)}
    with Ais(objects, page=7) as ais:
        data = opened(ais, "ais://images/train", store_options={"get_batch": "names"}, checksums=False)
        assert data.classes == ["cat", "dog"]
        found = pixels(data, num_workers=0)
        assert len(found) == 80 and len(ais.batches) == 1 and "archpath" not in ais.batches[0][0]
        same(found, pixels(opened(ais, "ais://images/train", store_options={"get_batch": "never"}), num_workers=0))


def test_a_token_goes_to_the_gateway_and_nobody_else(shards, monkeypatch, caplog):
    with Ais(shards, token="secret-token") as ais, caplog.at_level(logging.DEBUG, "lossfeed"):
        with pytest.raises(lf.SourceError, match="may not be read"):
            opened(ais)
        monkeypatch.setenv("AIS_AUTHN_TOKEN", "secret-token")
        monkeypatch.setenv("AIS_ENDPOINT", ais.url)
        data = lf.open("ais://images/s/train-0.tar", checksums=True, **QUICKLY)
        assert len(pixels(data, num_workers=0)) == COUNT
        told = [repr(data), *(record.getMessage() for record in caplog.records)]
        assert not [text for text in told if "secret-token" in text]


def test_what_makes_no_sense_is_said(monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    with pytest.raises(lf.SettingsError, match="AIS_ENDPOINT"):
        lf.open("ais://images/x.tar")
    with Ais({}) as ais:
        with pytest.raises(lf.SettingsError, match="get_batch"):
            opened(ais, store_options={"get_batch": "perhaps"})
        with pytest.raises(lf.SourceError, match="no object matches ais://images/s/train-"):
            opened(ais)
        with pytest.raises(lf.SourceError, match="ais://images/none.tar does not exist"):
            opened(ais, "ais://images/{none,other}.tar")

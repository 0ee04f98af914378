"""Stores that go wrong: never other bytes, never a hang, never a skipped sample for an outage, never a password in
words."""

import io
import pathlib
import sys
import tarfile
import threading

import numpy as np
import pytest
from PIL import Image

import lossfeed as lf
from web_double import Web

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FAULTS, QUICK, FaultStore  # noqa: E402

SHAPE = (6, 5)
#: Short, so that a test which waits for a store to be given up on does not wait long.
QUICKLY = {"retry_timeout": 1.0, "timeout": 0.5}


def pixels(i):
    return np.random.default_rng(i).integers(0, 255, (*SHAPE, 3), dtype=np.uint8)


def png(i):
    out = io.BytesIO()
    Image.fromarray(pixels(i)).save(out, "PNG", compress_level=0)
    return out.getvalue()


def tar(first, count, classes=2):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for i in range(first, first + count):
            info = tarfile.TarInfo(f"c{i % classes}/{i:03}.png")
            info.size = len(png(i))
            archive.addfile(info, io.BytesIO(png(i)))
    return out.getvalue()


def folder(first, count):
    return {f"data/c{i % 2}/{i:03}.png": png(i) for i in range(first, first + count)}


def open_folder(store, **keywords):
    return lf.open(store.s3_url + "/data", store_options=store.store_options, **keywords)


def delivered(data, **keywords):
    """Each sample of a pass: its id and whether it has the pixels that its name says."""
    seen = {}
    for batch in lf.Loader(data, 4, shuffle=False, num_workers=0, **keywords):
        for i, x in zip(batch.ids.tolist(), batch.data.numpy()):
            number = int(data.name(i).rpartition("/")[2].partition(".")[0])
            seen[i] = bool((x == pixels(number)).all())
    return seen


def right(data, **keywords):
    assert delivered(data, **keywords) == dict.fromkeys(range(len(data)), True)


@pytest.mark.parametrize("kind", ["shard", "folder"])
@pytest.mark.parametrize("name", QUICK)
def test_an_answer_that_goes_wrong_once_is_asked_for_again_and_the_bytes_are_right(kind, name):
    objects = {"train.tar": tar(0, 8)} if kind == "shard" else folder(0, 8)
    with FaultStore(objects) as store:
        data = lf.open(store.url + "/train.tar", **QUICKLY) if kind == "shard" else open_folder(store, **QUICKLY)
        store._schedule["*"] = [name]
        right(data)
        assert store.counts[name] == 1


@pytest.mark.parametrize("seconds", [0, 100])
def test_wrong_bytes_of_the_right_length_are_asked_for_again_within_the_time_that_a_store_has(seconds):
    objects = folder(0, 8)
    objects["data/c1/005.png"] = bytes(len(objects["data/c1/005.png"]))
    with FaultStore(objects) as store:
        data = open_folder(store, retry_timeout=seconds)
        seen = delivered(data, on_error="skip")
        assert len(seen) == 7 and all(seen.values())
        # Once more in any case, and three times at most.
        assert store.requests["data/c1/005.png"] == (4 if seconds else 2)


@pytest.mark.parametrize("name", ["status_503_retry_after", "slow_tail", "black_hole", "trickle", "overlong_body", "endless_body",
                                  "endless_200", "huge_error_body"])
def test_slow_and_endless_answers_are_left_and_asked_for_again(name):
    with FaultStore({"train.tar": tar(0, 8)}, retry_after=0, slow_s=30, hold_s=30, endless_bytes=64 << 20) as store:
        data = lf.open(store.url + "/train.tar", retry_timeout=20, timeout=0.5)
        store._schedule["*"] = [name]
        right(data)
        assert store.counts[name] == 1


@pytest.mark.parametrize("name", [f.name for f in FAULTS.values() if f.owes == "checksum"])
def test_what_no_tag_tells_a_checksum_does(name):
    with FaultStore({"train.tar": tar(0, 8)}) as store:
        plain = lf.open(store.url + "/train.tar", coalesce=False, **QUICKLY)
        data = lf.open(store.url + "/train.tar", coalesce=False, checksums=True, **QUICKLY)
        together = lf.open(store.url + "/train.tar", checksums=True, **QUICKLY)
        for source in (data, together):
            store._schedule["*"] = [name]
            right(source)
        store._schedule["*"] = [name] * 100
        with pytest.raises(lf.SampleError, match="has the checksum [0-9a-f]{8} where the index has"):
            delivered(data)
        # As often as any answer that is wrong.
        store._schedule["*"] = [name] * 3
        right(data)
        store._schedule["*"] = [name] * 100
        # Of what comes together the damage may hit what lies between samples, where it does no harm.
        try:
            right(together)
        except lf.SampleError as e:
            assert "has the checksum" in str(e)
        # Without checksums nothing can tell (or the decoder does): that is what they are for.
        with pytest.raises((AssertionError, lf.Error)):
            right(plain)


def test_a_picture_that_comes_damaged_thrice_is_right_in_the_end():
    """With the right length and tag: its decoder alone finds it. As many tries as for every wrong answer."""
    body, times = tar(0, 8), {}

    def answer(request, _):
        first, last = (int(at) for at in request.range.removeprefix("bytes=").split("-")) if request.range else (0, len(body) - 1)
        found = body[first : last + 1]
        if most and len(found) < len(body):
            times[first] = times.get(first, 0) + 1
            found = found if times[first] > most else bytes(byte ^ 0x55 for byte in found)
        return 206, found, {"ETag": '"x"', "Content-Range": f"bytes {first}-{first + len(found) - 1}/{len(body)}"}

    most = 0
    with Web({"x.tar": body}, answers={"/x.tar": lambda r, s: answer(r, s) if r.range else (200, body, {"ETag": '"x"'})}) as web:
        data = lf.open(web.url + "/x.tar", coalesce=False, hedge=False, **QUICKLY)
        for most in (1, 3):
            times.clear()
            right(data, read_ahead=0)
            assert max(times.values()) == most + 1
        most = 100
        with pytest.raises(lf.SampleError):
            delivered(data, read_ahead=0)


def test_many_faults_at_once_lose_and_confuse_nothing():
    faults = [name for name in QUICK if FAULTS[name].owes == "heals"]
    with FaultStore(folder(0, 60), faults, rate=0.15, seed=3, in_a_row=1) as store:
        right(open_folder(store, retry_timeout=30))
        assert sum(store.counts.values()) >= 5


@pytest.mark.parametrize("tags", [True, False])
@pytest.mark.parametrize("kind", ["shard", "folder"])
def test_a_replaced_object_is_never_read_under_the_old_ids(kind, tags):
    shard = kind == "shard"
    with FaultStore({"train.tar": tar(0, 8)} if shard else folder(0, 8), tags=tags, honours_if_match=False) as store:
        data = lf.open(store.url + "/train.tar", **QUICKLY) if shard else open_folder(store, **QUICKLY)
        right(data)
        new = {"train.tar": tar(100, 8)} if shard else {k: png(100 + i) for i, k in enumerate(folder(0, 8))}
        for key, body in new.items():
            assert len(body) == len(store.object(key)[0])
            store.put(key, body)
        with pytest.raises(lf.SourceError, match="changed since it was indexed"):
            delivered(data)


def test_an_index_of_one_store_is_not_anothers(tmp_path):
    one, other = tar(0, 4), tar(0, 4, classes=4)
    options = {"index_cache": tmp_path / "index", "retry_timeout": 1}
    with FaultStore({"train.tar": one}, tags=False) as a, FaultStore({"train.tar": other}, tags=False) as b:
        assert len(one) == len(other) and a.object("train.tar")[1] == b.object("train.tar")[1]
        for store, classes in ((a, 2), (b, 4), (a, 2)):
            assert len(lf.open("s3://bucket/train.tar", store_options=store.store_options, **options).classes) == classes


@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
@pytest.mark.parametrize("how", ["status_503", "reset_before_headers", "black_hole"])
def test_an_outage_is_told_and_skips_nothing(on_error, how):
    with FaultStore(folder(0, 12), hold_s=30) as store:
        data = open_folder(store, retry_timeout=0.5, timeout=0.2, connections=1)
        loader = lf.Loader(data, 4, on_error=on_error, num_workers=0)
        store.down(how)
        with pytest.raises(lf.OutageError, match="nothing is known to be wrong with the data"):
            next(iter(loader))
        assert loader.bad_samples() == []
        # One probe at a time, and none for samples that come after the store was given up on.
        assert store.counts["outage"] <= 12


def test_a_store_that_comes_back_within_the_budget_costs_nothing():
    with FaultStore(folder(0, 12)) as store:
        data = open_folder(store, retry_timeout=60)
        store.down()
        threading.Timer(0.7, store.up).start()
        right(data)
        assert store.counts["outage"] > 1


@pytest.mark.parametrize("name", ["status_404", "status_403", "garbage"])
def test_one_bad_object_is_skipped_and_the_rest_is_read(name):
    with FaultStore(folder(0, 12), schedule={"data/c1/003.png": [name] * 9}) as store:
        data = open_folder(store, **QUICKLY)
        loader = lf.Loader(data, 4, on_error="skip", num_workers=0)
        assert sum(len(batch.ids) for batch in loader) == 11
        assert [bad["name"] for bad in loader.bad_samples()] == ["c1/003.png"]
        asked = 4
        assert store.counts[name] == asked, f"asked for {asked} times, and no more"


def test_an_unreachable_store_is_told_soon_and_by_name():
    with FaultStore({}) as store:
        gone = store.url
    with pytest.raises(lf.OutageError, match="train.tar: the store did not serve it within 300ms.*refused"):
        lf.open(gone + "/train.tar", retry_timeout=0.3)


def test_a_port_without_tls_is_told_as_that():
    with FaultStore({"x.tar": tar(0, 2)}) as store, pytest.raises(lf.OutageError, match="does this port speak https"):
        lf.open(store.url.replace("http:", "https:") + "/x.tar", retry_timeout=0.2)


@pytest.mark.parametrize("name", ["overlong_body", "endless_body", "endless_200", "huge_error_body", "full_200"])
def test_an_answer_is_read_to_the_ranges_end_and_no_further(name):
    size = 192 << 20
    with FaultStore({"train.tar": tar(0, 4)}, endless_bytes=size) as store:
        data = lf.open(store.url + "/train.tar", **QUICKLY)
        store._schedule["*"] = [name] * 50
        with pytest.raises(lf.Error):
            next(iter(lf.Loader(data, 1, num_workers=0)))
        # What the sockets between hold is not in our memory; it is megabytes at most.
        assert store.counts[name] > 0 and store.poured < store.counts[name] * (16 << 20)


SECRETS = ("pa55w0rd", "pa5%35w0rd", "user:")


def spill(*texts):
    return [secret for text in texts for secret in SECRETS if secret in str(text)]


@pytest.mark.parametrize("password", ["pa55w0rd", "pa5%35w0rd"])
def test_a_password_in_the_url_is_sent_and_never_told(password, monkeypatch):
    with FaultStore({"data/train.tar": tar(0, 4)}, credentials=("user", "pa55w0rd")) as store:
        url = f"http://user:{password}@{store.host}"
        data = lf.open(url + "/data/train.tar", **QUICKLY)
        right(data)
        store._schedule["*"] = ["status_404"] * 99
        loader = lf.Loader(data, 4, on_error="skip", num_workers=0)
        try:
            list(loader)
        except lf.Error as e:
            assert not spill(e)
        assert not spill(repr(data), data.name(0), loader.bad_samples(), loader.stats())
        for wrong in ("/data/none.tar", "/data/none-{0..9}.tar", "/data/x.tar?token=pa55w0rd", "/{0..99999999}.tar", "/a/*.tar"):
            with pytest.raises(lf.Error) as told:
                lf.open(url + wrong, retry_timeout=0.2)
            assert not spill(told.value), wrong
    # What is no URL, or of a store that takes no such login, is refused without it.
    for url in ("http://user:pa55w0rd/@host/x.tar", "http://user:pa55w0rd?@host:x/x.tar", "s3://user:pa55w0rd@bucket/x.tar",
                "https://user:pa55w0rd@[broken/x.tar", "ftp://user:pa55w0rd@host/x.tar"):
        with pytest.raises(lf.Error) as told:
            lf.open(url, retry_timeout=0.2)
        assert not spill(told.value), url
    with pytest.raises(lf.SettingsError, match="user and password") as told:
        lf.open("s3://bucket/x.tar", store_options={"endpoint": "http://user:pa55w0rd@host", "allow_http": "true", "region": "x"})
    assert not spill(told.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", None])
def test_an_endpoint_that_begins_with_http_works_by_itself_unless_it_is_forbidden(monkeypatch, name):
    with FaultStore({"train.tar": tar(0, 4)}) as store:
        options = {"skip_signature": "true", "region": "nowhere"}
        if name is None:
            options["endpoint"] = store.url
        else:
            monkeypatch.setenv(name, store.url)
        assert len(lf.open("s3://bucket/train.tar", store_options=options)) == 4
        with pytest.raises(lf.SourceError):
            lf.open("s3://bucket/train.tar", store_options={**options, "allow_http": "false"}, retry_timeout=0)


@pytest.mark.parametrize("name", ["AWS_ALLOW_INVALID_CERTIFICATES", "AWS_Allow_Invalid_Certificates"])
def test_verification_is_not_turned_off_by_the_environment(name, monkeypatch):
    with FaultStore({"x.tar": tar(0, 2)}) as store:
        monkeypatch.setenv(name, "true")
        with pytest.raises(lf.SettingsError, match="turns off the verification of certificates"):
            lf.open("s3://bucket/x.tar", store_options=store.store_options)
        lf.open("s3://bucket/x.tar", store_options={**store.store_options, "allow_invalid_certificates": "false"})
        monkeypatch.setenv(name, "false")
        lf.open("s3://bucket/x.tar", store_options=store.store_options)


def test_names_never_reach_a_terminal_raw(tmp_path):
    evil = "c/z\x1b]0;owned\x07\x1b[2J\u202egpj.png"
    shard = tmp_path / "s.tar"
    with tarfile.open(shard, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, body in (("c/good.png", png(1)), (evil, b"nope")):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    data = lf.open(shard)
    loader = lf.Loader(data, 2, on_error="skip", num_workers=0)
    assert sum(len(b.ids) for b in loader) == 1
    with pytest.raises(lf.SampleError) as told:
        list(lf.Loader(data, 2, num_workers=0))
    bad = loader.bad_samples()[0]
    for text in (data.name(1), repr(data), bad["name"], bad["reason"], str(told.value)):
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" for c in text), text
    assert "\\u{1b}" in data.name(1)


def test_the_store_repeats_itself():
    def faults(seed):
        with FaultStore(folder(0, 30), QUICK, rate=0.3, seed=seed) as store:
            drawn = [store.next_fault("GET", f"k{i}", "bytes=0-9") for i in range(60)]
        return drawn

    assert faults(1) == faults(1) != faults(2)
    assert len(FAULTS) >= 20

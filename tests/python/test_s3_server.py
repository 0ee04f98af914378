"""Data on an S3 server that is not ours: what real listings, keys, tags and signatures are like."""

import io
import tarfile

import pytest

import lossfeed as lf
from s3_server import FAULTS, S3
from test_store_faults import delivered, folder, pixels, png, right, tar

QUICKLY = {"retry_timeout": 5.0, "timeout": 2.0}


@pytest.fixture
def s3():
    with S3() as server:
        yield server


def fill(s3, objects):
    for key, body in objects.items():
        s3.put(key, body)


def test_a_folder_of_more_keys_than_a_listing_holds(s3):
    names = [f"data/c{i % 3}/{i:04}.png" for i in range(1100)]
    s3.put_at_once(dict.fromkeys(names, png(0)))
    data = lf.open("s3://bucket/data", store_options=s3.options, **QUICKLY)
    assert len(data) == 1100 and data.classes == ["c0", "c1", "c2"]
    assert sorted(data.name(i).rpartition("data/")[2] for i in range(1100)) == sorted(n[5:] for n in names)
    assert s3.requests["list"] >= 2
    batch = next(iter(lf.Loader(data, 64, num_workers=0)))
    assert (batch.data.numpy() == pixels(0)).all()


def test_pages_of_seven_keys_name_every_object_once():
    with S3(page=7) as s3:
        fill(s3, folder(0, 40))
        data = lf.open("s3://bucket/data", store_options=s3.options, **QUICKLY)
        assert len(data) == 40 and s3.requests["list"] >= 6
        right(data)


def test_keys_of_any_characters(s3):
    odd = ["ä ö", "名前", "100% + more", "a&b=c", "q?x#y", "(1)", "it's", "~tilde", "a,b;c", "[x]{y}", "dot.dot", "😀"]
    fill(s3, {f"data/{name}/{i:03}.png": png(i) for i, name in enumerate(odd)})
    data = lf.open("s3://bucket/data", store_options=s3.options, **QUICKLY)
    assert set(data.classes) == set(odd)
    right(data)

    # In a URL "#" and "%" are written as such characters are in URLs.
    fill(s3, {"Größe & Co/sh#rd %20+1.tar": tar(0, 5)})
    right(lf.open("s3://bucket/Größe & Co/sh%23rd %2520+1.tar", store_options=s3.options, **QUICKLY))
    with pytest.raises(lf.SettingsError, match="fragment"):
        lf.open("s3://bucket/Größe & Co/sh#rd %2520+1.tar", store_options=s3.options, **QUICKLY)


def test_the_bucket_in_the_hosts_name(s3):
    fill(s3, folder(0, 6))
    # Names below a bucket's host lead nowhere on this machine: the server stands in for a proxy to them.
    options = {**s3.options, "endpoint": "http://bucket.s3.amazonaws.com", "proxy_url": s3.endpoint, "allow_http": "true",
               "virtual_hosted_style_request": "true"}  # fmt: skip
    before = s3.styles["host"]
    right(lf.open("s3://bucket/data", store_options=options, **QUICKLY))
    assert s3.styles["host"] > before and s3.styles["path"] == 0


def test_a_shard_that_was_uploaded_in_parts(s3):
    filling = io.BytesIO()
    with tarfile.open(fileobj=filling, mode="w") as archive:
        archive.addfile(_member("notes.bin", 6 << 20), io.BytesIO(bytes(6 << 20)))
    # The end of an archive is two empty blocks and more: cut it off, and what follows belongs to the same archive.
    body = filling.getvalue()[: 512 + (6 << 20)] + tar(0, 40)
    s3.put_in_parts("train.tar", [body[: 5 << 20], body[5 << 20 :]])
    assert s3.client.head_object(Bucket="bucket", Key="train.tar")["ETag"].strip('"').endswith("-2")
    data = lf.open("s3://bucket/train.tar", store_options=s3.options, **QUICKLY)
    assert len(data) == 40
    right(data)
    # Stored again, with the same length: the tag differs, and no sample of it is taken for one of before.
    s3.put_in_parts("train.tar", [body[: 5 << 20], body[5 << 20 : -40960] + bytes(40960)])
    with pytest.raises(lf.SourceError, match="changed since it was indexed"):
        delivered(data)


def _member(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["folder", "shard"])
def test_what_goes_wrong_on_the_way_is_asked_for_again(s3, fault, kind):
    fill(s3, folder(0, 12) if kind == "folder" else {"data": tar(0, 12)})
    url = "s3://bucket/data" if kind == "folder" else "s3://bucket/data.tar"
    if kind == "shard":
        s3.put("data.tar", tar(0, 12))
    data = lf.open(url, store_options=s3.options, **QUICKLY)
    s3.faults = [fault, None, fault]
    right(data)
    assert s3.served[fault] >= 1


@pytest.mark.parametrize("fault", ["503", "500", "429", "cut", "reset"])
def test_a_listing_that_goes_wrong_names_everything_all_the_same(fault):
    with S3(page=5) as s3:
        fill(s3, folder(0, 16))
        s3.listing_faults = [None, fault, None, fault]
        right(lf.open("s3://bucket/data", store_options=s3.options, **QUICKLY))
        assert s3.served[fault] == 2


def test_requests_are_signed_and_a_wrong_key_is_named(s3):
    fill(s3, folder(0, 6))
    key, secret = s3.require_signatures()
    right(lf.open("s3://bucket/data", store_options={**s3.options, "access_key_id": key, "secret_access_key": secret}))
    for wrong in ({"access_key_id": key, "secret_access_key": "another"}, {"access_key_id": "nobody"}):
        options = {**s3.options, "secret_access_key": secret, **wrong}
        with pytest.raises(lf.SourceError, match="403|denied|credentials|refused") as refused:
            lf.open("s3://bucket/data", store_options=options, retry_timeout=1)
        assert secret not in str(refused.value) and "<" not in str(refused.value)


def test_the_usual_environment_is_enough(s3, monkeypatch):
    fill(s3, folder(0, 6))
    key, secret = s3.require_signatures()
    for name, value in {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": key,
                        "AWS_SECRET_ACCESS_KEY": secret}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    right(lf.open("s3://bucket/data"))


def test_a_store_is_the_same_however_it_is_named(s3, monkeypatch, tmp_path):
    fill(s3, {"train.tar": tar(0, 5)})
    kept = lambda: sorted(p.name for p in tmp_path.iterdir())  # noqa: E731
    endpoint = {"endpoint": s3.endpoint}
    others = {name: value for name, value in s3.options.items() if name != "endpoint"}
    right(lf.open("s3://bucket/train.tar", store_options={**others, **endpoint}, index_cache=tmp_path))
    once = kept()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint + "/")
    right(lf.open("s3://bucket/train.tar", store_options=others, index_cache=tmp_path))
    right(lf.open("s3://bucket/train.tar", store_options={**others, "aws_endpoint": s3.endpoint}, index_cache=tmp_path))
    assert len(once) == 1 and kept() == once


def test_no_such_bucket_and_no_such_key_are_told_apart(s3):
    with pytest.raises(lf.SourceError, match="bucket"):
        lf.open("s3://elsewhere/data", store_options=s3.options, retry_timeout=1)
    with pytest.raises(lf.SourceError, match=r"nothing|no such|not found|empty"):
        lf.open("s3://bucket/nothing/here", store_options=s3.options, retry_timeout=1)
    with pytest.raises(lf.SourceError, match=r"nothing|no such|not found|empty"):
        lf.open("s3://bucket/nothing.tar", store_options=s3.options, retry_timeout=1)

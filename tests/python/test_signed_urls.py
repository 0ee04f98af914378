"""URLs that are signed by their query: read with it, and known without it."""

import logging

import pytest

import lossfeed as lf
from s3_server import S3
from test_store_faults import right, tar
from web_double import Web

QUICKLY = {"retry_timeout": 1.0, "timeout": 5.0}
ONE, OTHER = "X-Amz-Signature=0123456789abcdef&X-Amz-Expires=60", "X-Amz-Expires=90&X-Amz-Signature=fedcba9876543210"
SECRETS = ("0123456789abcdef", "fedcba9876543210", "X-Amz")


def clean(*texts):
    assert not [(secret, text) for text in texts for secret in SECRETS if secret in str(text)]


def test_a_signed_object_is_read_with_its_query_and_known_without(tmp_path, caplog):
    body = tar(0, 8)
    options = {"index_cache": tmp_path / "index", "disk": tmp_path / "disk", "disk_bytes": "64MiB", **QUICKLY}
    # A signature for GET lets no HEAD in.
    with Web({"a b/train.tar": body}, methods=("GET",), signatures={ONE, OTHER}) as web, caplog.at_level(logging.DEBUG, "lossfeed"):
        url = web.url + "/a b/train.tar?"
        data = lf.open(url + ONE, **options)
        right(data)
        asked = len(web.asked)
        again = lf.open(url + OTHER, **options)
        # The index knows it by another signature: its first byte is read, and a sample, but no header.
        first, *others = (request.range for request in web.asked[asked:])
        assert first == "bytes=0-0" and not [part for part in others if part.startswith("bytes=0-")]
        right(again)
        # So does a run's state.
        loader = lf.Loader(data, 2, seed=1, shuffle=True, num_workers=0)
        next(iter(loader))
        state = loader.state_dict()
        lf.Loader(again, 2, seed=1, shuffle=True, num_workers=0).load_state_dict(state)
        clean(repr(data), data.name(0), state, loader.stats(), *(r.getMessage() for r in caplog.records))
        assert all(request.query in (ONE, OTHER) and request.method == "GET" for request in web.asked)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        clean(str(path), path.read_bytes().decode("latin-1"))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_signature_that_ends_ends_the_pass_with_its_remedy_and_skips_nothing(on_error):
    with Web({"train.tar": tar(0, 12)}, signatures={ONE}) as web:
        data = lf.open(f"{web.url}/train.tar?{ONE}", **QUICKLY)
        loader = lf.Loader(data, 4, on_error=on_error, num_workers=0)
        web.signatures = set()
        with pytest.raises(lf.OutageError, match="signature in its URL expired.*sign the URL again") as told:
            list(loader)
        clean(told.value)
        assert loader.bad_samples() == []
        with pytest.raises(lf.SourceError, match="the signature in its URL expired or does not match") as told:
            lf.open(f"{web.url}/train.tar?{ONE}", **QUICKLY)
        clean(told.value)


def test_what_else_a_query_says_tells_objects_apart(tmp_path):
    # Two objects of one name and one size; nothing but the query tells them apart.
    bodies = {"id=1": tar(0, 4), "id=2": tar(0, 4, classes=4)}

    def served(request, _):
        return 200, bodies[request.query.split("&")[0]], {"Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"}

    with Web(answers={"/get": served}) as web:
        for query, classes in (("id=1", 2), ("id=2", 4), ("id=1", 2)):
            data = lf.open(f"{web.url}/get?{query}&{ONE}", index_cache=tmp_path, **QUICKLY)
            assert len(data.classes) == classes
            right(data)
        assert len(list(tmp_path.iterdir())) == 2


def test_a_signature_of_the_servers_own(tmp_path):
    with S3() as s3:
        s3.put("train.tar", tar(0, 6))
        url = s3.client.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "train.tar"}, ExpiresIn=600)
        right(lf.open(url, **QUICKLY))


def test_queries_are_for_web_servers_and_fragments_for_nobody():
    for url in ("s3://bucket/x.tar?versionId=0123456789abcdef", "https://host/x.tar#0123456789abcdef", f"https://host/x.tar?{ONE}#part"):
        with pytest.raises(lf.SettingsError, match="query or fragment|fragment") as told:
            lf.open(url, **QUICKLY)
        clean(told.value)
    for url in (f"https://ho st/x.tar?{ONE}", f"http://127.0.0.1:1/x.tar?{ONE}", f"http://127.0.0.1:1/x.csv?{ONE}.csv"):
        with pytest.raises(lf.Error) as told:
            lf.open(url, retry_timeout=0.1)
        clean(told.value)

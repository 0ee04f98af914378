"""Web servers that give no parts of objects."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lossfeed as lf
from test_store_faults import png, right, tar
from web_double import Web

QUICKLY = {"retry_timeout": 1.0, "timeout": 5.0}


@pytest.mark.parametrize("coalesce", [True, False])
def test_each_shard_is_asked_for_once_and_kept(coalesce, caplog):
    objects = {f"{n}.tar": tar(20 * n, 20) for n in range(3)}
    with Web(objects, ranges=False) as web, caplog.at_level(logging.WARNING, "lossfeed"):
        data = lf.open(web.url + "/{0..2}.tar", coalesce=coalesce, **QUICKLY)
        right(data)
        for seed in range(2):
            batches = list(lf.Loader(data, 7, shuffle=True, seed=seed, num_workers=2))
            assert sum(len(batch.ids) for batch in batches) == 60
        # One asks for a part in vain, for all three at most; then all of each comes once.
        whole = {path: sum(r.path == path and r.method == "GET" and r.range is None for r in web.asked) for path in ("/0.tar", "/1.tar", "/2.tar")}
        assert whole == dict.fromkeys(whole, 1), whole
        assert sum(request.range is not None for request in web.asked) <= 3
    assert sum("each shard is read whole and kept in memory" in r.getMessage() for r in caplog.records) == 1


def test_the_same_comes_with_parts_and_without():
    objects = {"x.tar": tar(0, 30)}
    with Web(objects) as parts, Web(objects, ranges=False) as whole:
        one, other = (lf.open(web.url + "/x.tar", checksums=True, **QUICKLY) for web in (parts, whole))
        for a, b in zip(lf.Loader(one, 8, shuffle=True, seed=3), lf.Loader(other, 8, shuffle=True, seed=3), strict=True):
            assert a.ids.tolist() == b.ids.tolist() and (a.data.numpy() == b.data.numpy()).all()
        assert not any(request.method == "GET" and request.range is None for request in parts.asked)


def test_shards_without_room_are_refused_with_numbers_before_a_pass(tmp_path):
    objects = {f"{n}.tar": tar(8 * n, 8) for n in range(2)}
    sizes = [len(body) for body in objects.values()]
    with Web(objects, ranges=False) as web:
        url = web.url + "/{0..1}.tar"
        small = {"store_options": {"whole_bytes": str(sum(sizes) - 1)}}
        with pytest.raises(lf.SourceError, match=rf"has {sizes[0]} bytes \({sum(sizes)} with .*whole_bytes.*copy the shards"):
            lf.open(url, **small, **QUICKLY)
        assert not any(request.method == "GET" and request.range is None for request in web.asked)
        right(lf.open(url, store_options={"whole_bytes": str(sum(sizes))}, index_cache=tmp_path, **QUICKLY))
        # Nothing is walked where the index is known: it is found out all the same.
        with pytest.raises(lf.SourceError, match="whole_bytes"):
            lf.open(url, index_cache=tmp_path, **small, **QUICKLY)
        with pytest.raises(lf.SettingsError, match="no number of bytes"):
            lf.open(url, store_options={"whole_bytes": "lots"}, **QUICKLY)


def test_a_server_that_gave_parts_is_held_to_it():
    with Web({"x.tar": tar(0, 8)}) as web:
        data = lf.open(web.url + "/x.tar", **QUICKLY)
        right(data)
        # From here on whole objects with status 200: an answer that goes wrong once is asked for again.
        first = len(web.asked)
        web.ranges = lambda n, seen=[]: seen.append(n) or len(seen) > 1  # noqa: B006
        right(data)
        web.ranges = False
        with pytest.raises(lf.SourceError, match="cannot be read in parts"):
            list(lf.Loader(data, 4, num_workers=0))
        assert all(request.range is not None for request in web.asked[first:])


def test_a_server_without_head_is_asked_for_a_first_byte():
    for ranges in (True, False):
        with Web({"x.tar": tar(0, 8)}, methods=("GET",), ranges=ranges) as web:
            right(lf.open(web.url + "/x.tar", **QUICKLY))
            with pytest.raises(lf.SourceError, match="does not exist"):
                lf.open(web.url + "/none-{0..1}.tar", **QUICKLY)


def test_a_shard_that_changes_before_it_is_read_whole_is_not_taken_for_the_old_one():
    with Web({"x.tar": tar(0, 8)}) as web:

        def swapped(parts):
            if parts:
                web.objects["x.tar"] = tar(100, 8)
            return False

        web.ranges = swapped
        with pytest.raises(lf.SourceError, match="changed since it was indexed"):
            lf.open(web.url + "/x.tar", **QUICKLY)


def test_parquet_files_come_whole_too(tmp_path):
    pq.write_table(pa.table({"image": [png(i) for i in range(6)], "label": list(range(6))}), tmp_path / "x.parquet")
    with Web({"x.parquet": (tmp_path / "x.parquet").read_bytes()}, ranges=False) as web:
        data = lf.open(web.url + "/x.parquet", **QUICKLY)
        labels = np.concatenate([batch.target.numpy() for batch in lf.Loader(data, 4, shuffle=False, num_workers=0)])
        assert labels.tolist() == list(range(6))
        assert sum(request.method == "GET" and request.range is None for request in web.asked) == 1

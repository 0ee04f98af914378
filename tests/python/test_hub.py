"""``hf://datasets/…``: against a server that answers as the Hugging Face Hub does, and redirects files to another host."""

import contextlib
import http.server
import io
import json
import pathlib
import sys
import threading
import urllib.parse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_parquet import pixels, table

import lossfeed as lf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "chaos"))
from fault_store import FaultStore  # noqa: E402

TOKEN = "hf_secret"
PAGE = 2


@contextlib.contextmanager
def hub(files, private=False):
    """A Hub with one dataset, ``me/pets``; files lie on a host of their own. Yields (endpoint, requests)."""
    seen = []
    with FaultStore(files) as blobs:

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, body=b"", **headers):
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                seen.append((url.path, self.headers.get("Authorization")))
                if private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    return self.answer(401, b'{"error":"Invalid credentials"}')
                for revision in ("main", "refs%2Fconvert%2Fparquet"):
                    tree, files_at = f"/api/datasets/me/pets/tree/{revision}", f"/datasets/me/pets/resolve/{revision}/"
                    if url.path == tree or url.path.startswith(tree + "/"):
                        return self.tree(revision, url.path[len(tree) :].strip("/"), urllib.parse.parse_qs(url.query))
                    if url.path.startswith(files_at):
                        name = urllib.parse.unquote(url.path[len(files_at) :])
                        if name not in files:
                            return self.answer(404)
                        return self.answer(302, Location=f"{blobs.url}/{name}", X_Linked_Size=str(len(files[name])))
                return self.answer(404)

            do_HEAD = do_GET

            def tree(self, revision, folder, query):
                names = sorted(name for name in files if name.startswith(folder and folder + "/"))
                if not names:
                    return self.answer(404)
                start = int(query.get("cursor", ["0"])[0])
                listed = [{"type": "file", "oid": "0", "size": len(files[n]), "path": n} for n in names[start : start + PAGE]]
                listed.append({"type": "directory", "oid": "1", "size": 0, "path": "data"})
                link = {}
                if start + PAGE < len(names):
                    at = f"http://127.0.0.1:{self.server.server_port}/api/datasets/me/pets/tree/{revision}"
                    link = {"Link": f'<{at}{"/" + folder if folder else ""}?recursive=true&cursor={start + PAGE}>; rel="next"'}
                return self.answer(200, json.dumps(listed).encode(), **link)

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen, blobs
        finally:
            server.shutdown()
            server.server_close()


def parquet(rows):
    out = io.BytesIO()
    pq.write_table(table(rows), out, row_group_size=10, write_page_index=True)
    return out.getvalue()


PETS = {
    "README.md": b"# Pets",
    "data/train-00000-of-00003.parquet": parquet(range(0, 20)),
    "data/train-00001-of-00003.parquet": parquet(range(20, 40)),
    "data/train-00002-of-00003.parquet": parquet(range(40, 60)),
    "data/test-00000-of-00001.parquet": parquet(range(60, 70)),
}


def test_a_dataset_of_the_hub_is_read_where_it_lies(monkeypatch):
    with hub(PETS) as (endpoint, seen, blobs):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        data = lf.open("hf://datasets/me/pets/data/train-*.parquet", fields=("img", "label"))
        assert (len(data), data.classes) == (60, ["cat", "dog", "fish"])
        for epoch in range(2):
            ids = []
            for batch in lf.Loader(data, 8, shuffle=True, seed=epoch, cache="1MiB"):
                assert all(np.array_equal(row, pixels(i)) for row, i in zip(batch.data, batch.ids.tolist()))
                ids += batch.ids.tolist()
            assert sorted(ids) == list(range(60))
        one = lf.open("hf://datasets/me/pets/data/test-00000-of-00001.parquet", fields=("img", "label"))
        assert np.array_equal(one[0][0], pixels(60)) and data.name(25).startswith("train-00001")
        converted = lf.open("hf://datasets/me/pets@~parquet/data/test-*.parquet", fields=("img", "label"))
        assert len(converted) == 10
        assert any("refs%2Fconvert%2Fparquet" in path for path, _ in seen)


def test_what_is_meant_of_several_datasets_must_be_said(monkeypatch):
    with hub(PETS) as (endpoint, _, _):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        says = r"several datasets: name one of hf://datasets/me/pets/data/test-\*.parquet, hf://.*/data/train-\*.parquet"
        with pytest.raises(lf.SettingsError, match=says):
            lf.open("hf://datasets/me/pets")
        with pytest.raises(lf.SettingsError, match="holds the parts test, train"):
            lf.open("hf://datasets/me/pets/data")
        with pytest.raises(lf.SourceError, match="no object matches hf://datasets/me/pets/data/valid"):
            lf.open("hf://datasets/me/pets/data/valid-*.parquet")
        with pytest.raises(lf.SourceError):
            lf.open("hf://datasets/me/cars")
        for wrong in ("hf://me/pets", "hf://datasets/pets", "hf://spaces/me/pets", "hf://datasets/me/pets?x"):
            with pytest.raises(lf.SettingsError, match="hf://datasets/OWNER/NAME"):
                lf.open(wrong)
    train = {name: body for name, body in PETS.items() if "train" in name or name == "README.md"}
    with hub(train) as (endpoint, _, _):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert len(lf.open("hf://datasets/me/pets")) == 60
    with hub({"README.md": b"# Words", "a.csv": b"1,2"}) as (endpoint, _, _):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(lf.SourceError, match="neither Parquet files nor tar shards.*@~parquet"):
            lf.open("hf://datasets/me/pets")


def test_a_token_goes_to_the_hub_and_to_nobody_else(monkeypatch, capfd):
    with hub(PETS, private=True) as (endpoint, seen, blobs):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        with pytest.raises(lf.SourceError, match="HF_TOKEN"):
            lf.open("hf://datasets/me/pets/data/train-*.parquet", retry_timeout=0)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        data = lf.open("hf://datasets/me/pets/data/train-*.parquet", fields=("img", "label"))
        assert np.array_equal(data[30][0], pixels(30))
        assert {authorization for _, authorization in seen[-5:]} == {f"Bearer {TOKEN}"}
        assert blobs.authorizations == {None}
        assert TOKEN not in repr(data)
    out, err = capfd.readouterr()
    assert TOKEN not in out + err


def test_tar_shards_of_the_hub_open_with_their_members(monkeypatch, tmp_path):
    from test_members import WORDS, members, write

    files = {f"shards/{part}.tar": pathlib.Path(write(tmp_path / f"{part}.tar", [f for i in range(part * 5, part * 5 + 5) for f in members(i)])).read_bytes() for part in range(2)}
    with hub(files) as (endpoint, _, _):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        data = lf.open("hf://datasets/me/pets", fields=("png", "txt"), index_cache=tmp_path / "index")
        image, text = next(iter(lf.Loader(data, 10)))
        assert text == [WORDS[i % 4] for i in range(10)]


def test_text_of_the_hub_makes_dicts(monkeypatch):
    out = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b", "c"], "label": [0, 1, 0]}), out)
    with hub({"default/train/0000.parquet": out.getvalue()}) as (endpoint, _, _):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        batch = next(iter(lf.Loader(lf.open("hf://datasets/me/pets@~parquet"), 3)))
        assert batch["text"] == ["a", "b", "c"] and batch.target.tolist() == [0, 1, 0]

"""AIStore on this machine, as far as reading goes: a gateway that redirects to a target, a listing in pages, objects by
ranges, and GetBatch. Written from AIStore's documentation; it is not AIStore.

    with Ais({"train-0.tar": body}) as ais:
        lf.open("ais://images/train-0.tar", store_options={"endpoint": ais.url}, checksums=True)
        ais.batches                  # every list of samples that was asked for
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tarfile
import threading
import urllib.parse
import zlib
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BUCKET = "images"


class Ais:
    """One bucket; a context manager. Attributes may change while it runs."""

    def __init__(self, objects: Mapping[str, bytes], *, token: str | None = None, page: int = 3) -> None:
        self.objects, self.token, self.page = dict(objects), token, page
        #: What the gateway was asked: method and path.
        self.asked: list[tuple[str, str]] = []
        #: Entries of every GetBatch, and what is done to the next ones' streams: bytes in, bytes out.
        self.batches: list[list[dict[str, str]]] = []
        self.wrongs: list[Callable[[bytes], bytes]] = []
        #: Statuses of the next GetBatches, in place of an answer.
        self.refusals: list[int] = []
        self.target_asked: list[tuple[str, str | None]] = []
        self._gateway, self._target = self._server(_Gateway), self._server(_Target)

    def _server(self, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads, server.block_on_close = True, False
        server.ais = self  # type: ignore[attr-defined]
        return server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._gateway.server_port}"

    @property
    def target(self) -> str:
        return f"http://127.0.0.1:{self._target.server_port}"

    def __enter__(self) -> Ais:
        for server in (self._gateway, self._target):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._gateway, self._target):
            server.shutdown()
            server.server_close()

    def requests(self) -> int:
        return len(self.asked)

    def stream(self, wanted: dict[str, Any]) -> bytes:
        """The TAR of a GetBatch."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for entry in wanted["in"]:
                name, body = entry["objname"], self.objects.get(entry["objname"])
                if body is not None and "archpath" in entry:
                    name = f"{name}/{entry['archpath']}"
                    body = _members(body).get(entry["archpath"])
                full = name if wanted["onob"] else f"{BUCKET}/{name}"
                if body is None:
                    assert wanted["coer"]
                    full, body = f"__404__/{full}", b""
                info = tarfile.TarInfo(full)
                info.size = len(body)
                archive.addfile(info, io.BytesIO(body))
        return out.getvalue()


@functools.cache
def _members(shard: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
        files = ((info.name, archive.extractfile(info)) for info in archive if info.isfile())
        return {name: file.read() for name, file in files if file}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def ais(self) -> Ais:
        return self.server.ais  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().handle()

    def body(self) -> dict[str, Any]:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(sent) if sent else {}

    def say(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Gateway(_Handler):
    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.ais.asked.append((self.command, urllib.parse.unquote(url.path)))
        sent = self.body()
        if self.ais.token and self.headers.get("Authorization") != f"Bearer {self.ais.token}":
            return self.say(401, b'{"status":401,"message":"token required"}')
        if url.query != "provider=ais":
            return self.say(400, b"whose bucket?")
        if url.path == f"/v1/buckets/{BUCKET}":
            return self.listing(sent)
        # A name in the redirect tells the target who sent it.
        return self.say(307, headers={"Location": f"{self.ais.target}{self.path}&pid=gateway"})

    do_HEAD = do_GET

    def listing(self, sent: dict[str, Any]) -> None:
        assert sent["action"] == "list", sent
        wanted = sent["value"]
        names = sorted(name for name in self.ais.objects if name.startswith(wanted["prefix"]))
        names = [name for name in names if name > wanted["continuation_token"]]
        page, more = names[: self.ais.page], names[self.ais.page :]
        found = [(name, self.ais.objects[name]) for name in page]
        entries = [{"name": n, "size": str(len(body)), "checksum": f"{zlib.crc32(body):08x}"} for n, body in found]
        told = {"uuid": "u", "entries": entries, "continuation_token": page[-1] if more else ""}
        self.say(200, json.dumps(told).encode())


class _Target(_Handler):
    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        sent = self.body()
        self.ais.target_asked.append((path, self.headers.get("Range")))
        if url.query != "provider=ais&pid=gateway":
            return self.say(400, b"not by this way")
        if path == f"/v1/ml/moss/{BUCKET}":
            return self.batch(sent)
        whole = self.ais.objects.get(path.removeprefix(f"/v1/objects/{BUCKET}/"))
        if whole is None:
            return self.say(404, b'{"status":404,"message":"does not exist"}')
        headers = {"Ais-Checksum-Type": "crc32c", "Ais-Checksum-Value": f"{zlib.crc32(whole):08x}", "Ais-Version": "1"}
        if self.headers.get("If-Match"):
            return self.say(412, b"unknown tag")
        asked = self.headers.get("Range")
        if asked is None:
            return self.say(200, whole, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(whole)) + 1, len(whole))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(whole)}"
        return self.say(206, whole[start:stop], headers)

    do_HEAD = do_GET

    def batch(self, sent: dict[str, Any]) -> None:
        self.ais.batches.append(sent["in"])
        if self.ais.refusals:
            return self.say(self.ais.refusals.pop(0), b"not now")
        assert sent["mime"] == ".tar" and sent["strm"], sent
        stream = self.ais.stream(sent)
        if self.ais.wrongs:
            stream = self.ais.wrongs.pop(0)(stream)
        # Of no length that is known, as a stream that is still being made.
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        whole = bool(stream) and not stream.endswith(b"CUT")
        for at in range(0, len(stream.removesuffix(b"CUT")), 5000):
            piece = stream.removesuffix(b"CUT")[at : at + 5000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

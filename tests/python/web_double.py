"""A web server on this machine for stores that are no S3: it gives parts or not, wants a signature or not, and lists as
Azure does.

    with Web({"train.tar": body}, ranges=False) as web:
        lf.open(web.url + "/train.tar")
        web.asked                    # every request: method, path, query, range
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from xml.sax.saxutils import escape


class Request(NamedTuple):
    method: str
    path: str
    query: str
    range: str | None
    authorization: str | None
    headers: Mapping[str, str] = {}


class Web:
    """The server; a context manager. Attributes may change while it runs."""

    def __init__(
        self,
        objects: Mapping[str, bytes] | None = None,
        *,
        ranges: bool | Callable[[int], bool] = True,
        methods: tuple[str, ...] = ("GET", "HEAD"),
        signatures: set[str] | None = None,
        answers: Mapping[str, Callable[[Request, str], tuple[Any, ...]]] | None = None,
    ) -> None:
        """`ranges`: whether parts are given, or that of the n-th request for one. `signatures`: queries that let in;
        others get 403 and a page that quotes them. `answers`: by path, what is said to a request and its body: status, body, headers."""
        self.objects, self.ranges, self.methods, self.signatures = dict(objects or {}), ranges, methods, signatures
        self.answers = dict(answers or {})
        self.asked: list[Request] = []
        self._parts = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.web = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="web", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def count(self, method: str, path: str) -> int:
        with self._lock:
            return sum(request.method == method and request.path == path for request in self.asked)

    def note(self, request: Request) -> bool:
        """Whether a part is given, if one is asked for."""
        with self._lock:
            self.asked.append(request)
            self._parts += request.range is not None
            return self.ranges(self._parts) if callable(self.ranges) else self.ranges


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, ValueError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_PUT = do_POST = do_PROPFIND = do_GET

    def _say(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        # An answer's own headers come in place of the usual ones.
        self.send_response_only(status)
        for name, value in {"Date": self.date_time_string(), "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer(self) -> None:
        web: Web = self.server.web  # type: ignore[attr-defined]
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, path, url.query, headers.get("range"), headers.get("authorization"), headers)
        in_parts = web.note(request)
        if path in web.answers:
            self._say(*web.answers[path](request, sent))
            return
        if self.command not in web.methods:
            self._say(403 if web.signatures is not None else 405, b"")
            return
        if web.signatures is not None and url.query not in web.signatures:
            self._say(403, f"<Error><Code>AccessDenied</Code><Message>no: {escape(url.query)}</Message></Error>".encode())
            return
        if "comp=list" in url.query:
            self._say(200, self._azure_list(web, path, url.query))
            return
        whole = web.objects.get(path.lstrip("/"))
        if whole is None:
            self._say(404, b"<html><title>nothing here</title></html>")
            return
        headers = {"ETag": f'"{hashlib.md5(whole).hexdigest()}"', "Last-Modified": email.utils.formatdate(1.7e9, usegmt=True)}
        if request.range is None or not in_parts:
            self._say(200, whole, headers)
            return
        first, _, last = request.range.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(whole)) + 1, len(whole))
        if start >= stop:
            self._say(416, b"", {"Content-Range": f"bytes */{len(whole)}"})
            return
        self._say(206, whole[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(whole)}"})

    @staticmethod
    def _azure_list(web: Web, path: str, query: str) -> bytes:
        container, prefix = path.lstrip("/") + "/", dict(urllib.parse.parse_qsl(query)).get("prefix", "")
        blobs = []
        for name, body in sorted(web.objects.items()):
            if name.startswith(container + prefix):
                key = name.removeprefix(container)
                date = email.utils.formatdate(1.7e9, usegmt=True)
                blobs.append(
                    f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{date}</Last-Modified><Content-Length>{len(body)}"
                    f"</Content-Length><Content-Type>x</Content-Type><Etag>{hashlib.md5(body).hexdigest()}</Etag></Properties></Blob>"
                )
        return f"<EnumerationResults><Blobs>{''.join(blobs)}</Blobs><NextMarker/></EnumerationResults>".encode()

"""An HTTP and S3-like store on this machine that goes wrong on purpose, as a seed says.

    with FaultStore("data/", faults=["status_503", "cut_body"], rate=0.1, seed=7) as store:
        lf.open(store.url + "/train.tar")                                    # plain HTTP: HEAD and GET with ranges
        lf.open(store.s3_url + "/folder", store_options=store.store_options)   # S3: listings too
        store.counts["cut_body"], store.requests["train.tar"]

Objects lie below a directory or in a dict of bytes. Which answer goes wrong is decided by the seed, the object, the
range and how often that range was asked for, and not by the order of threads: the same requests meet the same faults.
Only GETs of objects are hit; ``listing_faults`` and ``head_faults`` hit the others. ``schedule={"train.tar":
["status_500", None]}`` gives the first answers of an object one by one (the key ``"*"`` counts all objects together),
and comes before the rate. ``down()``, ``up()`` and ``outage(requests)`` make the whole store fail and return. Nothing
outside the standard library is needed.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import email.utils
import hashlib
import os
import pathlib
import socket
import threading
import time
import urllib.parse
import xml.sax.saxutils
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

try:
    from .faults import FAULTS, QUICK, Answer
except ImportError:  # imported by path, as the tests and the campaign do
    from faults import FAULTS, QUICK, Answer

__all__ = ["FAULTS", "QUICK", "FaultStore"]

BUCKET = "bucket"


class FaultStore:
    """The server; a context manager. See the module's head."""

    def __init__(
        self,
        root: str | os.PathLike[str] | Mapping[str, bytes],
        faults: Sequence[str] = (),
        *,
        rate: float = 0.0,
        seed: int = 0,
        schedule: Mapping[str, Sequence[str | None]] | None = None,
        in_a_row: int = 2,
        tags: bool = True,
        dates: bool = True,
        honours_if_match: bool = True,
        listing_faults: Sequence[str | None] = (),
        head_faults: Sequence[str | None] = (),
        retry_after: float = 1,
        hold_s: float = 60.0,
        slow_s: float = 1.0,
        endless_bytes: int = 256 << 20,
        credentials: tuple[str, str] | None = None,
        page: int = 1000,
    ) -> None:
        """`rate` is the share of answers that go wrong, each by one of `faults`; never more than `in_a_row` for one
        range in a row. `tags`, `dates`: whether answers carry ETag and Last-Modified. `credentials`: what basic auth
        must bring."""
        unknown = [f for f in [*faults, *listing_faults, *head_faults] if f is not None and f not in FAULTS]
        unknown += [f for row in (schedule or {}).values() for f in row if f is not None and f not in FAULTS]
        if unknown:
            raise ValueError(f"unknown faults {unknown}: there are {', '.join(FAULTS)}")
        self.root = root if isinstance(root, Mapping) else pathlib.Path(root)
        self.faults, self.rate, self.seed, self.in_a_row = list(faults), rate, seed, in_a_row
        self.tags, self.dates, self.honours_if_match = tags, dates, honours_if_match
        self.retry_after, self.hold_s, self.slow_s, self.endless_bytes = retry_after, hold_s, slow_s, endless_bytes
        self.credentials, self.page = credentials, page
        #: How often each fault was served, and how often each object was asked for; "outage" counts refused requests.
        self.counts: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        #: Body bytes of sound answers, by object.
        self.sent: Counter[str] = Counter()
        #: What requests for objects brought to be let in.
        self.authorizations: set[str | None] = set()
        #: Body bytes the client took from endless answers.
        self.poured = 0
        self.closing = threading.Event()
        self._schedule = {key: list(row) for key, row in (schedule or {}).items()}
        self._listing, self._head = list(listing_faults), list(head_faults)
        self._asked: dict[tuple[str, str | None], int] = defaultdict(int)
        self._row: dict[tuple[str, str | None], int] = defaultdict(int)
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._down: str | None = None
        self._outage = 0
        self._lock = threading.Lock()
        if isinstance(root, Mapping):
            for key, body in root.items():
                self.put(key, body, modified=1_700_000_000)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._server.store = self  # type: ignore[attr-defined]
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), name="fault-store", daemon=True)

    # --- life

    def __enter__(self) -> FaultStore:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets every held answer go and stops the server."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """What plain HTTP URLs begin with."""
        return f"http://{self.host}"

    @property
    def s3_url(self) -> str:
        """What S3 URLs begin with; needs :attr:`store_options`."""
        return f"s3://{BUCKET}"

    @property
    def store_options(self) -> dict[str, str]:
        """For ``lf.open(s3 URL, store_options=…)``."""
        return {"endpoint": self.url, "allow_http": "true", "skip_signature": "true", "region": "nowhere"}

    # --- what is stored

    def put(self, key: str, body: bytes, modified: float | None = None) -> None:
        """Stores or replaces an object (above the directory, which is left alone), a second later than before."""
        with self._lock:
            before = self._objects.get(key)
            when = modified if modified is not None else (int(time.time()) if before is None else before[1] + 1)
            self._objects[key] = (bytes(body), when)

    def object(self, key: str) -> tuple[bytes, float] | None:
        with self._lock:
            if key in self._objects:
                return self._objects[key]
        if not isinstance(self.root, pathlib.Path):
            return None
        path = self.root / key
        try:
            return path.read_bytes(), path.stat().st_mtime
        except OSError:
            return None

    def keys(self) -> list[str]:
        with self._lock:
            found = set(self._objects)
        if isinstance(self.root, pathlib.Path):
            found |= {p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file()}
        return sorted(found)

    # --- trouble

    def down(self, fault: str = "reset_before_headers") -> None:
        """Every request fails so from now on."""
        with self._lock:
            self._down = fault

    def up(self) -> None:
        with self._lock:
            self._down, self._outage = None, 0

    def outage(self, requests: int, fault: str = "status_503") -> None:
        """The next `requests` requests fail so, whatever they ask for."""
        with self._lock:
            self._down, self._outage = fault, requests

    def hold(self, seconds: float | None = None) -> None:
        """Waits, but no longer than the store lives."""
        self.closing.wait(self.hold_s if seconds is None else seconds)

    def other(self, answer: Answer) -> Answer:
        """Another object as if it had been stored in this one's place: other bytes, the next date, its own tag."""
        whole = hashlib.sha256(answer.whole).digest() * (len(answer.whole) // 32 + 1)
        for key in self.keys():
            found = self.object(key)
            if found is not None and found[0] != answer.whole and len(found[0]) >= answer.start + len(answer.body):
                whole = found[0]
                break
        whole = whole[: max(len(answer.whole), answer.start + len(answer.body))].ljust(len(answer.whole), b"\0")
        modified = None
        if answer.modified is not None:
            before = email.utils.parsedate_to_datetime(answer.modified).timestamp()
            modified = email.utils.formatdate(before + 60, usegmt=True)
        body = whole[answer.start : answer.start + len(answer.body)]
        return dataclasses.replace(answer, body=body, whole=whole, etag=self.tag(whole), modified=modified)

    def tag(self, body: bytes) -> str | None:
        return f'"{hashlib.md5(body).hexdigest()}"' if self.tags else None

    def next_fault(self, kind: str, key: str, span: str | None) -> str | None:
        """What happens to this request. `kind` is GET, HEAD or LIST."""
        with self._lock:
            self.requests[key] += 1
            if self._down is not None:
                if self._outage == 0 or self._outage > 1:
                    self._outage -= self._outage > 1
                    self.counts["outage"] += 1
                    return self._down
                fault, self._down, self._outage = self._down, None, 0
                self.counts["outage"] += 1
                return fault
            if kind in ("HEAD", "LIST"):
                row = self._head if kind == "HEAD" else self._listing
                return self._count(row.pop(0) if row else None)
            for name in (key, "*"):
                if self._schedule.get(name):
                    return self._count(self._schedule[name].pop(0))
            if not self.faults or self.rate <= 0:
                return None
            asked = self._asked[key, span]
            self._asked[key, span] += 1
            draw = hashlib.sha256(f"{self.seed}/{key}/{span}/{asked}".encode()).digest()
            if int.from_bytes(draw[:8], "big") / 2**64 >= self.rate or self._row[key, span] >= self.in_a_row:
                self._row[key, span] = 0
                return None
            self._row[key, span] += 1
            return self._count(self.faults[int.from_bytes(draw[8:16], "big") % len(self.faults)])

    def _count(self, fault: str | None) -> str | None:
        if fault is not None:
            self.counts[fault] += 1
        return fault


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body leave together; small answers do not wait for an acknowledgement.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    @property
    def store(self) -> FaultStore:
        return self.server.store  # type: ignore[attr-defined]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        # A client that leaves in the middle of an answer is part of the game.
        with contextlib.suppress(ConnectionError, socket.timeout, ValueError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    # --- saying something

    def start(self, status: int, named: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in named.items():
            self.send_header(name, value)
        self.end_headers()

    def write(self, data: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(data)

    def say(self, status: int, named: Mapping[str, str], body: bytes) -> None:
        self.start(status, {**named, "Content-Length": str(len(body))})
        self.write(body)

    def pour(self, count: int, chunked: bool = False) -> None:
        """`count` bytes of nothing, for as long as the client takes them."""
        self.close_connection = True
        piece = b"\x5a" * (64 << 10)
        while count > 0 and not self.store.closing.is_set() and self.command != "HEAD":
            part = piece[: min(count, len(piece))]
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
                self.wfile.flush()
            except OSError:
                return
            self.store.poured += len(part)
            count -= len(part)
        if chunked:
            with contextlib.suppress(OSError):
                self.wfile.write(b"0\r\n\r\n")

    # --- being asked

    def do_HEAD(self) -> None:
        self._object()

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        if "list-type" in query:
            self._list(query)
        else:
            self._object()

    def do_PROPFIND(self) -> None:
        self.say(405, {}, b"")

    def _key(self) -> str:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).lstrip("/")
        return path.removeprefix(BUCKET + "/") if path.startswith(BUCKET + "/") else path

    def _allowed(self) -> bool:
        self.store.authorizations.add(self.headers.get("Authorization"))
        if self.store.credentials is None:
            return True
        wanted = "Basic " + base64.b64encode(":".join(self.store.credentials).encode()).decode()
        if self.headers.get("Authorization") == wanted:
            return True
        self.say(401, {"WWW-Authenticate": "Basic"}, b"who are you?")
        return False

    def _object(self) -> None:
        key, span = self._key(), self.headers.get("Range")
        if not self._allowed():
            return
        fault = self.store.next_fault(self.command, key, span)
        found = self.store.object(key)
        if found is None:
            if fault is not None and FAULTS[fault].owes == "heals":
                FAULTS[fault].act(self, Answer(key, b"", b"", 0, False, None, None))
            else:
                self.say(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        whole, modified = found
        tag = self.store.tag(whole)
        date = email.utils.formatdate(modified, usegmt=True) if self.store.dates else None
        answer = Answer(key, whole, whole, 0, False, tag, date, self.command == "HEAD")
        if span is not None and self.command == "GET":
            bounds = _bounds(span, len(whole))
            if bounds is None:
                self.say(416, {"Content-Range": f"bytes */{len(whole)}"}, b"")
                return
            answer = dataclasses.replace(answer, body=whole[bounds[0] : bounds[1]], start=bounds[0], partial=True)
        if fault is not None:
            FAULTS[fault].act(self, answer)
            return
        wanted = self.headers.get("If-Match")
        if wanted is not None and self.store.honours_if_match and tag is not None and wanted != tag:
            self.say(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self.start(206 if answer.partial else 200, answer.headers())
        self.store.sent[key] += 0 if self.command == "HEAD" else len(answer.body)
        self.write(answer.body)

    def _list(self, query: Mapping[str, str]) -> None:
        if not self._allowed():
            return
        fault = self.store.next_fault("LIST", "?list", query.get("prefix"))
        body = self._listing(query)
        answer = Answer("?list", body, body, 0, False, None, None)
        if fault is not None:
            FAULTS[fault].act(self, answer)
            return
        self.say(200, {"Content-Type": "application/xml"}, body)

    def _listing(self, query: Mapping[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        keys = [k for k in self.store.keys() if k.startswith(prefix) and k > after]
        page, more = keys[: self.store.page], len(keys) > self.store.page
        parts = ['<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>']
        for key in page:
            found = self.store.object(key)
            if found is None:
                continue
            date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found[1]))
            tag = self.store.tag(found[0])
            quoted = "" if tag is None else f"<ETag>{xml.sax.saxutils.escape(tag)}</ETag>"
            parts.append(
                f"<Contents><Key>{xml.sax.saxutils.escape(key)}</Key><Size>{len(found[0])}</Size>"
                f"<LastModified>{date}</LastModified>{quoted}</Contents>"
            )
        parts.append(f"<IsTruncated>{str(more).lower()}</IsTruncated>")
        if more and page:
            parts.append(f"<NextContinuationToken>{xml.sax.saxutils.escape(page[-1])}</NextContinuationToken>")
        parts.append("</ListBucketResult>")
        return "".join(parts).encode()


def _bounds(span: str, size: int) -> tuple[int, int] | None:
    """``bytes=a-b`` as a half-open range within the object, or None where there is nothing."""
    first, _, last = span.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    start, stop = int(first), min(int(last) + 1 if last else size, size)
    return (start, stop) if start < stop else None


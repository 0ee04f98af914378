"""A store like S3 over loopback, as slow as a remote one: it answers late, and all connections share one bandwidth.

    python store.py FOLDER --latency 0.01

Prints the port it listens on. ``GET /-/bandwidth/N`` sets N bytes a second, ``GET /-/counts`` tells requests and bytes
so far. It knows what loaders ask of a bucket: GET with one range, HEAD, and lists (`ListObjectsV2`). Paths are
/BUCKET/KEY; a bucket is a folder in FOLDER. Anybody is let in: it is for measurements on one machine, and listens on
loopback alone.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

#: What one turn of the shared bandwidth sends: small, so that connections get on side by side.
PIECE = 16384
#: Seconds by which a timer that wakes late is made up for: a millisecond late at each piece would make a link of
#: 20 MB/s, where a piece takes less than one, half as fast.
LATE_S = 0.05


class Link:
    """Bytes a second that all connections share, piece by piece in the order in which they ask."""

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.free_at = 0.0

    async def pass_through(self, size: int, asked: float = 0.0) -> float:
        """Returns when the last of ``size`` bytes has arrived, and says when it should have.

        ``asked`` is when the piece before it in the same answer should have arrived: the link did not idle since.
        """
        now = asyncio.get_running_loop().time()
        begun = min(max(asked, now - LATE_S), now) if asked else now
        self.free_at = due = max(self.free_at, begun) + size / self.bandwidth
        await asyncio.sleep(due - now)
        return due


class Store:
    def __init__(self, root: Path, latency: float, late: tuple[float, float] = (0.0, 0.0)) -> None:
        self.root, self.latency, self.link = root.resolve(), latency, Link(1e9)
        self.late, self.chance = late, random.Random(0)
        self.requests = self.bytes = 0
        self.kept: dict[str, tuple[bytes, str]] = {}

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                await self.answer(method, target, fields.get("range"), writer)
                if target.endswith(".json"):
                    # Some loaders read an index before they fork, and share its connection afterwards.
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async def answer(self, method: str, target: str, wanted: str | None, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(target)
        path = unquote(url.path)
        if path == "/-/counts":
            await self.send(writer, "200 OK", {}, json.dumps({"requests": self.requests, "bytes": self.bytes}).encode())
            return
        if found := re.fullmatch(r"/-/bandwidth/(\d+)", path):
            self.link.bandwidth = float(found[1])
            await self.send(writer, "200 OK", {}, b"")
            return
        self.requests += 1
        share, seconds = self.late
        await asyncio.sleep(seconds if self.chance.random() < share else self.latency)
        bucket, _, key = path.strip("/").partition("/")
        if not key:
            await self.send(writer, "200 OK", {"content-type": "application/xml"}, self.listing(bucket, parse_qs(url.query)))
            return
        try:
            body, etag = self.object(path)
        except OSError:
            missing = b"<Error><Code>NoSuchKey</Code></Error>"
            await self.send(writer, "404 Not Found", {}, b"" if method == "HEAD" else missing)
            return
        headers = {"connection": "close"} if key.endswith(".json") else {}
        headers |= {"etag": etag, "last-modified": formatdate(0, usegmt=True), "accept-ranges": "bytes"}
        status, part = "200 OK", memoryview(body)
        if wanted and (found := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)):
            first, last = int(found[1]), min(int(found[2] or len(body)), len(body) - 1)
            headers["content-range"] = f"bytes {first}-{last}/{len(body)}"
            status, part = "206 Partial Content", part[first : last + 1]
        if method == "HEAD":
            headers["content-length"] = str(len(part))
            part = part[:0]
        await self.send(writer, status, headers, part)

    async def send(self, writer: asyncio.StreamWriter, status: str, headers: dict[str, str], body: bytes | memoryview) -> None:
        given = {"content-length": str(len(body)), **headers}
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        writer.write("\r\n".join(lines).encode())
        due = 0.0
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            due = await self.link.pass_through(len(piece), due)
            self.bytes += len(piece)
            writer.write(piece)
            await writer.drain()

    def object(self, path: str) -> tuple[bytes, str]:
        if path not in self.kept:
            file = (self.root / path.strip("/")).resolve()
            if not file.is_relative_to(self.root):
                raise FileNotFoundError(path)
            body = file.read_bytes()
            self.kept[path] = (body, f'"{hashlib.md5(body).hexdigest()}"')
        return self.kept[path]

    def listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        files = sorted(p for p in (self.root / bucket).rglob("*") if p.is_file())
        keys = [(p.relative_to(self.root / bucket).as_posix(), p.stat().st_size) for p in files]
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><LastModified>1970-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(self.object(f'/{bucket}/{key}')[1])}</ETag></Contents>"
            for key, size in keys
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.01, help="seconds until an answer begins")
    parser.add_argument("--late", default="0:0", help="SHARE:SECONDS: that share of answers begins after so many seconds")
    args = parser.parse_args()
    share, _, seconds = args.late.partition(":")
    store = Store(args.folder, args.latency, (float(share), float(seconds)))
    server = await asyncio.start_server(store.connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

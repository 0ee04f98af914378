"""The faults a store can have, by name: what each one does to one answer, and what a reader owes for it.

A fault is a function of the request's handler and the :class:`Answer` that a sound store would give. It writes what it
likes to the connection. ``owes`` says what the program under test must make of it:

* ``heals``: asked again, the store gives the right bytes, so the reader must deliver them;
* ``told``: the reader must deliver the right bytes in another attempt, or raise an error by name: never other bytes;
* ``checksum``: nothing in the answer shows that the bytes are wrong; only a checksum a sample can;
* ``harmless``: the answer is unusual but right.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
import time
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass
class Answer:
    """What a sound store would say: the bytes asked for, and what proves them."""

    key: str
    body: bytes
    whole: bytes
    start: int
    partial: bool
    etag: str | None
    modified: str | None
    head: bool = False

    def headers(self) -> dict[str, str]:
        named: dict[str, str] = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        named["Content-Length"] = str(len(self.body))
        if self.partial:
            named["Content-Range"] = f"bytes {self.start}-{self.start + len(self.body) - 1}/{len(self.whole)}"
        if self.etag is not None:
            named["ETag"] = self.etag
        if self.modified is not None:
            named["Last-Modified"] = self.modified
        return named


@dataclasses.dataclass(frozen=True)
class Fault:
    """One way for an answer to go wrong."""

    name: str
    owes: str
    act: Callable[[Any, Answer], None]
    words: str


FAULTS: dict[str, Fault] = {}


def fault(owes: str) -> Callable[[Callable[[Any, Answer], None]], Callable[[Any, Answer], None]]:
    def enter(act: Callable[[Any, Answer], None]) -> Callable[[Any, Answer], None]:
        FAULTS[act.__name__] = Fault(act.__name__, owes, act, (act.__doc__ or "").strip())
        return act

    return enter


def reset(handler: Any) -> None:
    """Ends the connection with a reset, not with an orderly end."""
    try:
        handler.wfile.flush()
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
    except OSError:
        pass
    handler.close_connection = True


def end(handler: Any) -> None:
    """Ends the connection in good order."""
    handler.close_connection = True
    try:
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


# --- statuses


@fault("heals")
def status_500(handler: Any, answer: Answer) -> None:
    """500 Internal Server Error."""
    handler.say(500, {}, b"internal error")


@fault("heals")
def status_503(handler: Any, answer: Answer) -> None:
    """503 Slow Down, as S3 says it under load."""
    handler.say(503, {}, b"<Error><Code>SlowDown</Code></Error>")


@fault("heals")
def status_503_retry_after(handler: Any, answer: Answer) -> None:
    """503 with Retry-After in seconds (the store's ``retry_after``)."""
    handler.say(503, {"Retry-After": str(handler.store.retry_after)}, b"later")


@fault("heals")
def status_429(handler: Any, answer: Answer) -> None:
    """429 Too Many Requests."""
    handler.say(429, {}, b"too many requests")


@fault("heals")
def status_403(handler: Any, answer: Answer) -> None:
    """403 for an object that may be read (expired credentials that are renewed)."""
    handler.say(403, {}, b"<Error><Code>AccessDenied</Code></Error>")


@fault("heals")
def status_404(handler: Any, answer: Answer) -> None:
    """404 for an object that exists (a replica that lags behind)."""
    handler.say(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")


@fault("told")
def huge_error_body(handler: Any, answer: Answer) -> None:
    """500 with a body of ``endless_bytes``: an error page that nobody should hold in memory."""
    handler.start(500, {"Content-Length": str(handler.store.endless_bytes)})
    handler.pour(handler.store.endless_bytes)


@fault("told")
def redirect_loop(handler: Any, answer: Answer) -> None:
    """302 to itself."""
    handler.say(302, {"Location": handler.path}, b"")


# --- connections


@fault("heals")
def reset_before_headers(handler: Any, answer: Answer) -> None:
    """Connection reset before a byte was said."""
    reset(handler)


@fault("heals")
def reset_after_headers(handler: Any, answer: Answer) -> None:
    """Connection reset between headers and body."""
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.wfile.flush()
    reset(handler)


@fault("heals")
def reset_in_body(handler: Any, answer: Answer) -> None:
    """Connection reset in the middle of the body."""
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.write(answer.body[: len(answer.body) // 2])
    reset(handler)


@fault("heals")
def not_http(handler: Any, answer: Answer) -> None:
    """Bytes of another protocol: what a TLS port says to a plain client."""
    handler.write(b"\x15\x03\x03\x00\x02\x02\x50" * 3)
    end(handler)


@fault("heals")
def black_hole(handler: Any, answer: Answer) -> None:
    """Nothing is ever said (until the store's ``hold_s`` is over)."""
    handler.store.hold()
    end(handler)


@fault("heals")
def slow_tail(handler: Any, answer: Answer) -> None:
    """All but the last byte at once, the last one after ``slow_s``."""
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.write(answer.body[:-1])
    handler.wfile.flush()
    handler.store.hold(handler.store.slow_s)
    handler.write(answer.body[-1:])


@fault("heals")
def trickle(handler: Any, answer: Answer) -> None:
    """A byte at a time, so that the connection never looks idle (``hold_s`` in all at most)."""
    handler.start(206 if answer.partial else 200, answer.headers())
    until = time.monotonic() + handler.store.hold_s
    for at in range(len(answer.body)):
        if time.monotonic() > until or handler.store.closing.wait(0.05):
            break
        handler.write(answer.body[at : at + 1])
        handler.wfile.flush()
    end(handler)


# --- bodies


@fault("heals")
def cut_body(handler: Any, answer: Answer) -> None:
    """The headers promise all, the body ends in good order half way."""
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.write(answer.body[: len(answer.body) // 2])
    end(handler)


@fault("told")
def wrong_content_length(handler: Any, answer: Answer) -> None:
    """Content-Range is right, Content-Length and body are 7 bytes short."""
    body = answer.body[: max(0, len(answer.body) - 7)]
    handler.start(206 if answer.partial else 200, {**answer.headers(), "Content-Length": str(len(body))})
    handler.write(body)


@fault("told")
def overlong_body(handler: Any, answer: Answer) -> None:
    """Content-Range is right, the body goes on for ``endless_bytes``."""
    named = {**answer.headers(), "Content-Length": str(handler.store.endless_bytes)}
    handler.start(206 if answer.partial else 200, named)
    handler.write(answer.body)
    handler.pour(handler.store.endless_bytes - len(answer.body))


@fault("told")
def endless_body(handler: Any, answer: Answer) -> None:
    """Chunked, without a length, ``endless_bytes`` long."""
    named = answer.headers()
    del named["Content-Length"]
    handler.start(206 if answer.partial else 200, {**named, "Transfer-Encoding": "chunked"})
    handler.pour(handler.store.endless_bytes, chunked=True)


@fault("told")
def full_200(handler: Any, answer: Answer) -> None:
    """200 with the whole object where a range was asked for."""
    handler.start(200, dataclasses.replace(answer, body=answer.whole, start=0, partial=False).headers())
    handler.write(answer.whole)


@fault("told")
def endless_200(handler: Any, answer: Answer) -> None:
    """200 with ``endless_bytes`` where a range was asked for."""
    named = dataclasses.replace(answer, partial=False).headers()
    handler.start(200, {**named, "Content-Length": str(handler.store.endless_bytes)})
    handler.pour(handler.store.endless_bytes)


@fault("told")
def shifted_range(handler: Any, answer: Answer) -> None:
    """Another range of the object, honestly named in Content-Range."""
    start = answer.start + 1 if answer.start + 1 + len(answer.body) <= len(answer.whole) else max(0, answer.start - 1)
    body = answer.whole[start : start + len(answer.body)]
    handler.start(206, dataclasses.replace(answer, body=body, start=start, partial=True).headers())
    handler.write(body)


@fault("checksum")
def shifted_silently(handler: Any, answer: Answer) -> None:
    """The bytes from one further on, under the Content-Range that was asked for."""
    body = (answer.whole + b"\0")[answer.start + 1 : answer.start + 1 + len(answer.body)]
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.write(body)


@fault("told")
def garbage(handler: Any, answer: Answer) -> None:
    """Bytes that no decoder takes, under the right headers."""
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.write(bytes(b ^ 0xA5 for b in answer.body))


@fault("checksum")
def flipped_bit(handler: Any, answer: Answer) -> None:
    """One bit of the body is another one."""
    body = bytearray(answer.body)
    if body:
        body[len(body) // 2] ^= 1
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.write(bytes(body))


# --- identity


@fault("told")
def other_object(handler: Any, answer: Answer) -> None:
    """Another object's bytes of the same length, with that object's ETag, date and size; If-Match is ignored."""
    other = handler.store.other(answer)
    handler.start(206 if answer.partial else 200, other.headers())
    handler.write(other.body)


@fault("checksum")
def other_object_same_tag(handler: Any, answer: Answer) -> None:
    """Another object's bytes under this object's ETag, date and size."""
    handler.start(206 if answer.partial else 200, answer.headers())
    handler.write(handler.store.other(answer).body)


@fault("told")
def other_object_no_tag(handler: Any, answer: Answer) -> None:
    """Another object's bytes with its date and size, and no ETag."""
    other = dataclasses.replace(handler.store.other(answer), etag=None)
    handler.start(206 if answer.partial else 200, other.headers())
    handler.write(other.body)


@fault("told")
def wrong_tag(handler: Any, answer: Answer) -> None:
    """The right bytes under another ETag; If-Match is ignored."""
    handler.start(206 if answer.partial else 200, dataclasses.replace(answer, etag='"nobody"').headers())
    handler.write(answer.body)


@fault("harmless")
def no_tag(handler: Any, answer: Answer) -> None:
    """The right bytes without ETag: the date is there."""
    handler.start(206 if answer.partial else 200, dataclasses.replace(answer, etag=None).headers())
    handler.write(answer.body)


@fault("told")
def no_proof(handler: Any, answer: Answer) -> None:
    """The right bytes without ETag and date."""
    handler.start(206 if answer.partial else 200, dataclasses.replace(answer, etag=None, modified=None).headers())
    handler.write(answer.body)


@fault("told")
def wrong_total(handler: Any, answer: Answer) -> None:
    """The right bytes, and a Content-Range whose total is one more."""
    named = answer.headers()
    if answer.partial:
        named["Content-Range"] = f"bytes {answer.start}-{answer.start + len(answer.body) - 1}/{len(answer.whole) + 1}"
    handler.start(206 if answer.partial else 200, named)
    handler.write(answer.body)


#: Faults after which the next attempt gives the right bytes and which take no longer than a moment.
_SLOW = {"black_hole", "slow_tail", "trickle", "status_503_retry_after"}
_ENDLESS = {"endless_body", "endless_200", "overlong_body", "huge_error_body"}
QUICK = [name for name, f in FAULTS.items() if f.owes != "checksum" and name not in _SLOW | _ENDLESS]

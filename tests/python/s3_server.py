"""An S3 server that this project did not write, on this machine, with faults in front of it.

    with S3() as s3:
        s3.put("data/cat/0.png", body)
        lf.open("s3://bucket/data", store_options=s3.options)
        s3.faults = ["503", None, "cut"]        # of the next GETs of objects, one each

The server is moto's (Apache 2.0): listings in pages, multipart objects and signatures are its own. Faults are WSGI
middleware, so that what goes wrong goes wrong on the way from a server that did right.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import boto3
import botocore.config
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

Environ = dict[str, Any]

#: What can happen on the way: the middleware's names for it.
FAULTS = ("503", "500", "429", "cut", "reset", "whole", "slow")
_ERRORS = {"503": ("503 Slow Down", "SlowDown"), "500": ("500 Internal Server Error", "InternalError"),
           "429": ("429 Too Many Requests", "TooManyRequests")}  # fmt: skip
ID, SECRET = "an-id", "a-secret-that-is-nowhere-printed"


class S3:
    """The server with one bucket, ``bucket``; a context manager."""

    def __init__(self, *, page: int | None = None) -> None:
        """`page`: the most keys a listing answers with, if fewer than asked for."""
        self.page = page
        #: What happens to the next GETs of objects, and to the next listings, in turn; None is nothing.
        self.faults: list[str | None] = []
        self.listing_faults: list[str | None] = []
        #: Requests by kind: "get", "list", "head"; and faults served, by name.
        self.requests: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        #: How the bucket was named: "path" or "host".
        self.styles: Counter[str] = Counter()
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="s3", daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def options(self) -> dict[str, str]:
        """For ``store_options=``: signed, the bucket in the path."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "access_key_id": ID, "secret_access_key": SECRET}

    def __enter__(self) -> S3:
        self._thread.start()
        self._post("reset")
        how = botocore.config.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
        self.client = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=ID,
                                   aws_secret_access_key=SECRET, config=how)  # fmt: skip
        self.client.create_bucket(Bucket="bucket")
        return self

    def __exit__(self, *_: object) -> None:
        self._post("reset")
        self._post("reset-auth", b"inf")
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket="bucket", Key=key, Body=body)

    def put_at_once(self, objects: Mapping[str, bytes]) -> None:
        """Past the network: for very many."""
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key, body in objects.items():
            backend.put_object("bucket", key, body)

    def put_in_parts(self, key: str, parts: Iterable[bytes]) -> None:
        """Parts but the last have at least 5 MiB; the object's tag is then no digest of its bytes."""
        of = {"Bucket": "bucket", "Key": key}
        upload = self.client.create_multipart_upload(**of)["UploadId"]
        done = []
        for number, body in enumerate(parts, 1):
            tag = self.client.upload_part(**of, UploadId=upload, PartNumber=number, Body=body)["ETag"]
            done.append({"ETag": tag, "PartNumber": number})
        self.client.complete_multipart_upload(**of, UploadId=upload, MultipartUpload={"Parts": done})

    def require_signatures(self) -> tuple[str, str]:
        """From now on who may not read is refused. A new id and secret that may."""
        iam = boto3.client("iam", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id=ID,
                           aws_secret_access_key=SECRET)  # fmt: skip
        iam.create_user(UserName="reader")
        policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
        iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        self._post("reset-auth", b"0")
        return key["AccessKeyId"], key["SecretAccessKey"]

    def _post(self, what: str, body: bytes = b"") -> None:
        of = {"Content-Type": "text/plain"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/moto-api/{what}", body, of)) as answer:
            answer.read()

    def _answer(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        kind = _kind(environ)
        if kind is None:
            return self._app(environ, start)
        self.requests[kind] += 1
        self.styles["path" if environ["PATH_INFO"].startswith("/bucket") else "host"] += 1
        queue = {"get": self.faults, "list": self.listing_faults}.get(kind, [])
        fault = queue.pop(0) if queue else None
        if fault is not None:
            self.served[fault] += 1
        if kind == "list" and self.page is not None:
            environ["QUERY_STRING"] += f"&max-keys={self.page}"
        return self._go_wrong(fault, environ, start)

    def _go_wrong(self, fault: str | None, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if fault in _ERRORS:
            status, code = _ERRORS[fault]
            start(status, [("Content-Type", "application/xml"), ("Retry-After", "0")])
            return [f"<Error><Code>{code}</Code><Message>wait</Message></Error>".encode()]
        if fault == "reset":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        if fault == "slow":
            time.sleep(0.3)
        if fault == "whole":
            environ.pop("HTTP_RANGE", None)  # a server that knows no ranges
        body = self._app(environ, start)
        return _first_half(body) if fault == "cut" else body


def _first_half(body: Iterable[bytes]) -> Iterator[bytes]:
    whole = b"".join(body)
    yield whole[: len(whole) // 2]


def _kind(environ: Environ) -> str | None:
    path, host = environ["PATH_INFO"], environ.get("HTTP_HOST", "")
    if path.startswith("/moto-api") or not (path.startswith("/bucket") or host.startswith("bucket.")):
        return None
    if environ["REQUEST_METHOD"] == "HEAD":
        return "head"
    if environ["REQUEST_METHOD"] != "GET":
        return None
    return "list" if "list-type=2" in environ["QUERY_STRING"] else "get"

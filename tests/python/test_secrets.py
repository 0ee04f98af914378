"""Credentials are nowhere but in requests: a mark in every one of them, and a search of everything that is written, raised,
logged and shown."""

import base64
import contextlib
import json
import logging
import pathlib
import pickle
import re
import socket
import threading
import types
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

import pytest
from test_store_faults import right, tar

import lossfeed as lf
from web_double import Web

QUICKLY = {"retry_timeout": 0.0, "timeout": 1.0}
BODY = tar(0, 12)


class Echo:
    """A store of one object, ``train.tar``, at any path. Or it answers `status`, and its page quotes all that it was sent."""

    def __init__(self):
        self.status, self.pages, self.asked, self.seen = None, "xml", 0, ""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"echo": self}))
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.host = self.url.removeprefix("http://")

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("latin-1")
        said = f"{self.path} {urllib.parse.unquote(self.path)} {' '.join(f'{k}: {v}' for k, v in self.headers.items())} {sent}"
        self.echo.asked, self.echo.seen = self.echo.asked + 1, self.echo.seen + said
        status, path = self.echo.status, urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if status == "nonsense":
            self.say(200, b"<nonsense", {})
        elif status == "silence":
            threading.Event().wait(3)
            self.close_connection = True
        elif status is not None or not path.endswith("train.tar"):
            # Only the first words of a page are shown: each header may be among them.
            words = sorted(said.split(" "), key=lambda word: -len(word))
            pages = {"xml": f"<Error><Code>No</Code><Message>{escape(' '.join(words))}</Message></Error>",
                     "text": " ".join(words), "html": f"<html><title>{escape(' '.join(reversed(words)))}</title>"}  # fmt: skip
            self.say(status or 404, pages[self.echo.pages].encode(), {})
        else:
            first, _, last = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
            part = BODY[int(first) : min(int(last or len(BODY)), len(BODY)) + 1]
            headers = {"ETag": '"one"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
            if self.headers.get("Range"):
                headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(BODY)}"
            self.say(206 if self.headers.get("Range") else 200, part, headers)

    do_HEAD = do_POST = do_PUT = do_PROPFIND = do_GET

    def say(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)


class Marks:
    """Secrets that can be found again, as they are, percent-encoded or in base64."""

    def __init__(self):
        self.made = []

    def one(self):
        self.made.append("s3" + uuid.uuid4().hex)
        return self.made[-1]

    def found(self, text):
        """The marks that `text` has."""
        text = text.decode("latin-1") if isinstance(text, bytes) else text
        plain = text + urllib.parse.unquote(text)
        return [mark for mark in self.made if any(form in plain for form in self._forms(mark))]

    @staticmethod
    def _forms(mark):
        # In base64 it begins at one of three places.
        coded = [base64.b64encode(b" " * k + mark.encode()).decode()[k + 1 + (k > 0) : -4] for k in range(3)]
        return [mark, mark.upper(), *coded, *(c.replace("+", "-").replace("/", "_") for c in coded)]


@pytest.fixture
def marks():
    return Marks()


@pytest.fixture
def echo(tmp_path, monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "HF_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("AWS_EC2_METADATA_DISABLED", "NO_GCE_CHECK"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "stats"))
    with Echo() as server:
        yield server


def stores(echo, marks):
    """URLs, options and environment with a mark in everything that lets in, by name."""
    one, key = marks.one, lambda: base64.b64encode(marks.one().encode()).decode()
    s3 = {"endpoint": echo.url, "region": "us-east-1"}
    az = {"endpoint": echo.url, "account_name": "account"}
    keys = lambda: {"access_key_id": one(), "secret_access_key": one(), "session_token": one(), "user_agent": one()}  # noqa: E731
    return {
        "s3": ("s3://bucket/train.tar", s3 | keys(), {}),
        "s3 of the environment": ("s3://bucket/train.tar", s3, {f"AWS_{k.upper()}": v for k, v in keys().items() if k != "user_agent"}),
        "s3, a customer's key": ("s3://bucket/train.tar", s3 | keys() | {
            "server_side_encryption": "sse-c", "sse_customer_key_base64": key()}, {}),
        "s3, a command": ("s3://bucket/train.tar", {"profile": "command"}, {}),
        "s3, a profile": ("s3://bucket/train.tar", {"profile": "keys"}, {}),
        "azure": ("az://container/train.tar", az | {"access_key": key()}, {}),
        "azure of the environment": ("az://container/train.tar", az, {"AZURE_STORAGE_ACCOUNT_KEY": key()}),
        "azure, a token": ("az://container/train.tar", az | {"bearer_token": one()}, {}),
        "azure, shared access": ("az://container/train.tar", az | {"sas_token": f"sv=2020-02-10&sp=r&sig={one()}%3D"}, {}),
        "google": ("gs://bucket/train.tar", {"base_url": echo.url, "bearer_token": one()}, {}),
        "web": (f"http://{one()}:{one()}@{echo.host}/train.tar", {}, {}),
        "web, signed": (f"{echo.url}/train.tar?X-Amz-Credential={one()}%2F2025&X-Amz-Signature={one()}", {}, {}),
        "hub": ("hf://datasets/o/n/train.tar", {}, {"HF_ENDPOINT": echo.url, "HF_TOKEN": one()}),
    }  # fmt: skip


def profiles(echo, marks):
    """AWS's file of profiles, with keys and with a command that prints some."""
    one = marks.one
    command = json.dumps({"Version": 1, "AccessKeyId": one(), "SecretAccessKey": one(), "SessionToken": one()})
    pathlib.Path("~/.aws").expanduser().mkdir(exist_ok=True)
    pathlib.Path("~/.aws/config").expanduser().write_text(
        f"[profile command]\nregion = us-east-1\nendpoint_url = {echo.url}\ncredential_process = echo '{command}'\n"
        f"[profile keys]\nregion = us-east-1\nendpoint_url = {echo.url}\n"
        f"aws_access_key_id = {one()}\naws_secret_access_key = {one()}\naws_session_token = {one()}\n")  # fmt: skip


NAMES = list(stores(types.SimpleNamespace(url="http://h", host="h"), Marks()))


def chain(error):
    """All that an exception says, and what it came of."""
    while error is not None:
        yield f"{error} {error!r} {error.args} {vars(error)}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_is_written_raised_logged_or_shown(name, echo, marks, tmp_path, monkeypatch, caplog, capfd):
    profiles(echo, marks)
    url, options, environment = stores(echo, marks)[name]
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    given = {"store_options": options, "index_cache": tmp_path / "index", "disk": tmp_path / "disk", "disk_bytes": "64MiB", **QUICKLY}
    told = []
    caplog.set_level(logging.DEBUG)
    data = lf.open(url, **given)
    right(data)
    assert any(mark in echo.seen or base64.b64encode(mark.encode()).decode()[:-4] in echo.seen or name.startswith("azure")
               or base64.b64decode(echo.seen.partition("Basic ")[2].split(" ")[0] or "").decode("latin-1").count(mark)
               for mark in marks.made)  # fmt: skip
    (tmp_path / "run").mkdir()
    with lf.Loader(data, 4, seed=1, shuffle=True, journal=tmp_path / "run/journal", score_file=tmp_path / "run/scores") as loader:
        for batch in loader:
            loader.update(batch, batch.data.float().mean((1, 2, 3))) if hasattr(loader, "update") else None
        told += [json.dumps(loader.state_dict(), default=str), pickle.dumps(loader.state_dict()), repr(loader), loader.stats()]
    told += [repr(data), data.name(0), repr(data.subset([0])), repr(data + data)]
    # A pickle opens the store again, so it has what the user gave: and shows nothing of it.
    again = pickle.loads(pickle.dumps(data))
    right(again)
    told.append(repr(again))
    bare = lf.open(url, store_options=options, **QUICKLY)
    for echo.status in (400, 401, 403, 404, 409, 412, 500, 503, "nonsense", "silence"):
        for echo.pages in ("xml", "text", "html") if isinstance(echo.status, int) else ("xml",):
            for asked in (url, url.replace("train.tar", "train-*.tar")) if "?" not in url else (url,):
                # Silence is waited for in vain.
                with pytest.raises(lf.Error) as raised:
                    lf.open(asked, store_options=options, **QUICKLY | ({"timeout": 0.1} if echo.status == "silence" else {}))
                told += chain(raised.value)
            with pytest.raises(lf.Error) as raised:
                bare[0]
            told += chain(raised.value)
    echo.status = None
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    elsewhere = {k: v.replace(echo.host, nobody) for k, v in options.items()}
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value.replace(echo.host, nobody))
    if "profile" not in options:
        with pytest.raises(lf.Error) as raised:
            lf.open(url.replace(echo.host, nobody), store_options=elsewhere, **QUICKLY)
        told += chain(raised.value)
    told += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records] + list(capfd.readouterr())
    for text in told:
        assert not marks.found(text if isinstance(text, bytes) else str(text)), text
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and ".aws" not in path.parts]
    assert {path.relative_to(tmp_path).parts[0] for path in kept} == {"index", "disk", "run"}
    for path in kept:
        assert not marks.found(str(path)) and not marks.found(path.read_bytes()), path
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others: {path.stat().st_mode:o}"
    assert all((tmp_path / folder).stat().st_mode & 0o077 == 0 for folder in ("index", "disk"))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("azure", "google", "s3", "web"))])
def test_an_index_is_used_with_other_credentials(name, echo, marks, tmp_path, monkeypatch):
    asked = []
    for _ in range(2):
        profiles(echo, marks)
        url, options, environment = stores(echo, marks)[name]
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        before = echo.asked
        right(lf.open(url, store_options=options, index_cache=tmp_path / "index", disk=tmp_path / "disk", disk_bytes="64MiB", **QUICKLY))
        asked.append(echo.asked - before)
    assert asked[1] < asked[0] and len(list((tmp_path / "index").glob("*.idx"))) == 1


#: What object_store's clients can be told (AmazonS3ConfigKey, AzureConfigKey, GoogleConfigKey, ClientConfigKey), each option
#: by one of its names.
CLIENTS = """allow_http allow_invalid_certificates disable_system_certificates connect_timeout default_content_type http1_only
http2_only http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle http2_max_frame_size
pool_idle_timeout pool_max_idle_per_host proxy_url proxy_ca_certificate proxy_excludes randomize_addresses read_timeout timeout
user_agent"""
OPTIONS = {
    "s3": ("s3://bucket/train.tar", """access_key_id secret_access_key default_region region bucket endpoint aws_endpoint_url_s3
        session_token virtual_hosted_style_request s3_express imdsv1_fallback metadata_endpoint unsigned_payload
        checksum_algorithm container_credentials_relative_uri container_credentials_full_uri
        container_authorization_token_file web_identity_token_file role_arn role_session_name endpoint_url_sts skip_signature
        copy_if_not_exists conditional_put disable_tagging disable_bulk_delete request_payer server_side_encryption
        sse_kms_key_id sse_bucket_key_enabled sse_customer_key_base64 profile""" + " " + CLIENTS),
    "azure": ("az://container/train.tar", """account_key access_key account_name client_id client_secret tenant_id authority_host
        sas_token bearer_token use_emulator endpoint msi_endpoint object_id msi_resource_id federated_token_file
        use_fabric_endpoint use_azure_cli skip_signature container_name disable_tagging fabric_token_service_url
        fabric_workload_host fabric_session_token fabric_cluster_identifier credential_type encryption_key""" + " " + CLIENTS),
    "google": ("gs://bucket/train.tar", """service_account service_account_key bucket base_url application_credentials
        bearer_token skip_signature""" + " " + CLIENTS),
    "web": ("{url}/train.tar", "whole_bytes " + CLIENTS),
}  # fmt: skip
#: What is shown where it is wrong, and what tells stores apart: the name of a place, and no secret.
SHOWN = {"endpoint", "aws_endpoint_url_s3", "base_url", "region", "default_region", "bucket", "account_name", "container_name",
         "profile", "whole_bytes"}  # fmt: skip
IN_INDEXES = {"endpoint", "aws_endpoint_url_s3", "base_url", "bucket", "account_name", "container_name"}


@pytest.mark.parametrize("kind", OPTIONS)
def test_no_option_is_shown_or_written_that_does_not_say_where_a_store_is(kind, echo, marks, tmp_path, caplog):
    place, names = OPTIONS[kind]
    base = {"s3": {"endpoint": echo.url, "region": "us-east-1", "access_key_id": "a", "secret_access_key": "b"},
            "azure": {"endpoint": echo.url, "account_name": "account", "bearer_token": "c"},
            "google": {"base_url": echo.url, "bearer_token": "d"}, "web": {}}[kind]  # fmt: skip
    caplog.set_level(logging.DEBUG)
    for name in names.split():
        url = any(part in name for part in ("url", "uri", "endpoint", "host"))
        key = json.dumps({"private_key": marks.one(), "client_email": marks.one(), "private_key_id": marks.one()})
        forms = [marks.one(), base64.b64encode(marks.one().encode()).decode(), f"/{marks.one()}", '"' + marks.one() + '"', key]
        forms += [f"{echo.url.replace('://', f'://{marks.one()}:{marks.one()}@')}", f"{echo.url}/?{marks.one()}"] if url else []
        for value in forms:
            options, told = {**base, name: value}, []
            marked = [] if name in SHOWN and "@" not in value and "?" not in value else marks.found(value)
            try:
                told.append(repr(lf.open(place.format(url=echo.url), store_options=options, index_cache=tmp_path / "index", **QUICKLY)))
            except lf.Error as error:
                told += chain(error)
            told += [record.getMessage() for record in caplog.records]
            caplog.clear()
            kept = list((tmp_path / "index").glob("*"))
            for text in [*told, *(path.read_bytes().decode("latin-1") for path in kept if name not in IN_INDEXES)]:
                assert not set(marked) & set(marks.found(text)), (name, text)
            assert not [text for text in told if "PanicException" in text or "InternalError" in text], (name, told)
            for path in kept:
                path.unlink()


def test_words_about_wrong_calls_show_no_secret(echo, marks, numbers, tmp_path):
    one = marks.one
    pair = {"account_key": one()}
    web = lambda scheme="https", end="x.tar": f"{scheme}://{one()}:{one()}@host/{end}"  # noqa: E731
    calls = [
        lambda: lf.open(numbers, store_options=pair),
        lambda: lf.open("s3://b/x.tar", store_options=list(pair.items())),
        lambda: lf.open("s3://b/x.tar", store_options=f"account_key={one()}"),
        lambda: lf.open("s3://b/x.tar", store_options={"access_key_id": [one()]}),
        lambda: lf.open(str(tmp_path), store_options=pair),
        lambda: lf.open("s3://b/x.tar", store_options={"no such": one()}),
        *[lambda place=place: lf.open(place, **QUICKLY) for place in (
            web(end="x.csv"), web(end=f"x.csv?sig={one()}"), web("HTTPS"), web(" https"), web("ftp"), web("s3"), web("gs", "x.csv"), web("file"),
            f"HTTPS://{one()}@127.0.0.1:1/x.tar", f"https://u:{one()}/@127.0.0.1:1/x.tar",
            f"hf://datasets/o/n?token={one()}", f"hf://{one()}:{one()}@datasets/o", f"ais://{one()}:{one()}@b/x.tar", f"ais://b/x?token={one()}",
            f"s3://b/x.tar?X-Amz-Signature={one()}", f"az://c/x.tar?sig={one()}", f"https://u:{one()}@127.0.0.1:1/x.tar#{one()}",
            f"https://u:{one()}@host/\udcff.tar",
        )],
        lambda: lf.open([web()], dtype="u1"),
        lambda: lf.open(web(), dtype="u1"),
    ]  # fmt: skip
    for number, call in enumerate(calls):
        with pytest.raises(lf.Error) as raised:
            call()
        for text in chain(raised.value):
            assert not marks.found(text), (number, text)


def test_a_login_in_an_endpoint_of_the_environment_is_refused_and_not_shown(echo, marks, monkeypatch):
    for variable, url in (("HF_ENDPOINT", "hf://datasets/o/n/train.tar"), ("AWS_ENDPOINT_URL", "s3://b/train.tar"),
                          ("AWS_ENDPOINT_URL_S3", "s3://b/train.tar"), ("GOOGLE_BASE_URL", "gs://b/train.tar"), ("AZURE_STORAGE_ENDPOINT", "az://b/train.tar")):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setenv(variable, echo.url.replace("://", f"://{marks.one()}:{marks.one()}@"))
            with pytest.raises(lf.SettingsError, match="(?i)endpoint|base_url") as raised:
                lf.open(url, **QUICKLY)
            for text in chain(raised.value):
                assert not marks.found(text), text
    # A proxy's password: there is nobody at the proxy.
    monkeypatch.setenv("http_proxy", f"http://{marks.one()}:{marks.one()}@127.0.0.1:9")
    with pytest.raises(lf.Error) as raised:
        lf.open("http://store.invalid/train.tar", **QUICKLY)
    for text in chain(raised.value):
        assert not marks.found(text), text
    assert re.search("store.invalid", str(raised.value))


def test_an_address_that_lacks_a_slash_is_refused_without_its_password():
    for address in ("http:/me:S3CRET@host/x.tar", "https:/me:S3CRET@host/x.tar?sig=1"):
        with pytest.raises(lf.SourceError, match="does not exist") as told:
            lf.open(address)
        assert "S3CRET" not in str(told.value) and "sig=1" not in str(told.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("kind", ["signed", "login", "s3"])
def test_where_a_store_redirects_to_is_told_no_secret(kind, status):
    """Neither in the address that led there, which reqwest says in Referer, nor in headers that it knows for no secret."""
    body, secret = tar(0, 6), "a-S3CRET-of-nobody"
    with Web({"x.tar": body, "bucket/x.tar": body}) as other, Web() as web:
        aside = other.url.replace("127.0.0.1", "localhost")
        web.answers |= {f"/{name}": lambda r, _: (status, b"", {"Location": aside + r.path}) for name in ("x.tar", "bucket/x.tar")}
        options, url = None, f"{web.url}/x.tar?X-Amz-Signature={secret}"
        if kind == "login":
            url = web.url.replace("//", f"//me:{secret}@") + "/x.tar"
        if kind == "s3":
            url, options = "s3://bucket/x.tar", {
                "endpoint": web.url, "region": "us-east-1", "access_key_id": "an-id", "secret_access_key": "a-secret", "session_token": secret
            }  # fmt: skip
        data = lf.open(url, store_options=options, retry_timeout=5)
        assert len(data) == 6 and int(data[3][1]) == 3 % 2
        assert web.asked and other.asked
        encoded = base64.b64encode(f"me:{secret}".encode()).decode()
        for request in other.asked:
            told = f"{request.path} {request.query} {request.headers}"
            assert secret not in told and encoded not in told and "referer" not in request.headers, told
            assert request.authorization is None
        assert any(request.range for request in other.asked)


def test_redirects_that_never_end_and_lead_nowhere_are_errors():
    for location in ("/x.tar", "http://[", "gopher://x/x.tar"):
        with Web(answers={"/x.tar": lambda *_, location=location: (302, b"", {"Location": location})}) as web:
            with pytest.raises(lf.Error):
                lf.open(web.url + "/x.tar", retry_timeout=0)
            assert len(web.asked) < 30

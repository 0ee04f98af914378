"""Credentials as AWS's own tools keep them: profiles, commands, roles, logins; and stores that want none."""

import hashlib
import json
import logging

import pytest

import lossfeed as lf
from s3_server import S3
from test_store_faults import folder, right, tar
from web_double import Web

QUICKLY = {"retry_timeout": 1.0, "timeout": 5.0}
#: What gives nothing: no machine of a cloud is asked in these tests but where they say so.
NO_MACHINE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of its own, without anything that the environment says of stores."""
    import os

    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in NO_MACHINE.items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".aws").mkdir()
    return tmp_path


@pytest.fixture
def s3():
    with S3() as server:
        for key, body in folder(0, 6).items():
            server.put(key, body)
        yield server


def write(home, *, config="", credentials=""):
    (home / ".aws/config").write_text(config)
    (home / ".aws/credentials").write_text(credentials)


def fails(secrets, match, error=lf.SourceError, **keywords):
    """The words of what opening fails with; no secret is in them."""
    with pytest.raises(error, match=match) as told:
        lf.open("s3://bucket/data", **QUICKLY, **keywords)
    assert not [secret for secret in secrets if secret in str(told.value)], told.value


def test_a_profile_is_enough(s3, home, monkeypatch):
    key, secret = s3.require_signatures()
    write(home, config=f"[profile work]\nregion = us-east-1\nendpoint_url = {s3.endpoint}\n",
          credentials=f"[work]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")  # fmt: skip
    right(lf.open("s3://bucket/data", store_options={"profile": "work"}, **QUICKLY))
    monkeypatch.setenv("AWS_PROFILE", "work")
    data = lf.open("s3://bucket/data", **QUICKLY)
    right(data)
    assert secret not in repr(data)
    # Other files, and the default profile of them.
    monkeypatch.delenv("AWS_PROFILE")
    (home / "c").write_text(f"[default]\nregion = us-east-1\nendpoint_url = {s3.endpoint}\n")
    (home / "k").write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", "~/c")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "k"))
    right(lf.open("s3://bucket/data", **QUICKLY))
    # Keys that the server does not know are refused with both causes, and never told.
    (home / "k").write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=an0ther5ecret\n")
    fails(["an0ther5ecret", secret], "with these credentials.*skip_signature")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    fails([secret], "profile \"nobody\" is in neither.*default", lf.SettingsError)
    (home / "c").write_text("[default]\nno value here S3CRET\n")
    fails(["S3CRET"], "line 2", lf.SettingsError)


def test_a_command_gives_credentials_and_is_run_once(s3, home, monkeypatch):
    key, secret = s3.require_signatures()
    answer = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": secret, "Expiration": "2099-01-01T00:00:00Z"}
    (home / "answer.json").write_text(json.dumps(answer))
    write(home, config=f"[default]\nregion=us-east-1\nendpoint_url={s3.endpoint}\n"
          f"credential_process = sh -c 'echo run >> {home}/runs; cat {home}/answer.json'\n")  # fmt: skip
    right(lf.open("s3://bucket/data", **QUICKLY))
    assert (home / "runs").read_text().count("run") == 1
    (home / "answer.json").write_text(json.dumps({**answer, "Version": 7}))
    fails([secret], "credential_process prints no credentials")
    write(home, config=f"[default]\ncredential_process = echo {secret}; exit 3\nendpoint_url={s3.endpoint}\n")
    fails([secret], "credential_process failed .exit status: 3")


def test_a_role_is_assumed_with_another_profiles_keys(s3, home, monkeypatch):
    key, secret = s3.require_signatures()
    seen = []
    # The server has STS, and keys that it lends let in nobody here: it is asked through a double that lends the user's.
    lent = ("<AssumeRoleResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><AssumeRoleResult><Credentials>"
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>t0ken</SessionToken>"
            "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>")  # fmt: skip
    refusal = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>"
    said = {"status": 200, "body": lent}

    def sts(request, sent):
        seen.append((request, sent))
        return said["status"], said["body"].encode()

    write(home, config=f"[profile reader]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\nexternal_id = e 1\n"
          f"role_session_name = me\nregion = us-east-1\nservices = here\n[services here]\ns3 =\n  endpoint_url = {s3.endpoint}\n",
          credentials="[base]\naws_access_key_id = AKBASE\naws_secret_access_key = ba5esecret\n")  # fmt: skip
    monkeypatch.setenv("AWS_PROFILE", "reader")
    with Web(answers={"/": sts}) as web:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", web.url)
        # What is lent is signed with, token and all: the server does not know the token, and says so.
        opened = None
        try:
            opened = lf.open("s3://bucket/data", **QUICKLY)
        except lf.SourceError as e:
            assert secret not in str(e) and "t0ken" not in str(e)
        request, sent = seen[0]
        assert request.method == "POST" and "Credential=AKBASE/" in request.authorization and "/us-east-1/sts/" in request.authorization
        assert "Action=AssumeRole" in sent and "ExternalId=e+1" in sent and "RoleSessionName=me" in sent
        assert opened is None or len(seen) == 1
        said.update(status=403, body=refusal)
        fails([secret, "ba5esecret"], "role/r was not given by STS .403: AccessDenied: not you.: check role_arn")
        said.update(status=200, body="<html>S3CRET</html>")
        fails(["S3CRET"], "its answer makes no sense")


def test_the_servers_own_sts_takes_the_signature(home, monkeypatch):
    with S3() as s3:
        for key, body in folder(0, 4).items():
            s3.put(key, body)
        write(home, config="[profile reader]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\nregion = us-east-1\n"
              f"endpoint_url = {s3.endpoint}\n", credentials="[base]\naws_access_key_id = A\naws_secret_access_key = ba5e\n")  # fmt: skip
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        right(lf.open("s3://bucket/data", store_options={"profile": "reader"}, **QUICKLY))


@pytest.mark.parametrize("kind", ["session", "older"])
def test_a_login_of_identity_center(s3, home, monkeypatch, kind):
    key, secret = s3.require_signatures()
    of_session = "sso_session = me" if kind == "session" else "sso_start_url = https://me/start\nsso_region = eu-west-3"
    write(home, config=f"[default]\n{of_session}\nsso_account_id = 12\nsso_role_name = a/b\nregion = us-east-1\n"
          f"services = here\n[sso-session me]\nsso_region = eu-west-3\nsso_start_url = https://me/start\n"
          f"[services here]\ns3 =\n  endpoint_url = {s3.endpoint}\n")  # fmt: skip
    cache = home / ".aws/sso/cache"
    cache.mkdir(parents=True)
    name = hashlib.sha1(b"me" if kind == "session" else b"https://me/start").hexdigest()
    token = {"accessToken": "l0gin", "expiresAt": "2099-01-01T00:00:00Z", "region": "eu-west-3"}
    seen = []

    def portal(request, _):
        seen.append(request)
        keys = {"accessKeyId": key, "secretAccessKey": secret, "sessionToken": "", "expiration": 4070908800000}
        return 200, json.dumps({"roleCredentials": keys}).encode()

    with Web(answers={"/federation/credentials": portal}) as web:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", web.url)
        fails([], "not logged in: run: aws sso login --profile default")
        (cache / f"{name}.json").write_text(json.dumps(token))
        right(lf.open("s3://bucket/data", **QUICKLY))
        assert seen[0].query == "role_name=a%2Fb&account_id=12" and len(seen) == 1
        (cache / f"{name}.json").write_text(json.dumps({**token, "expiresAt": "2020-01-01T00:00:00Z"}))
        fails(["l0gin"], "ended at 2020-01-01.*aws sso login --profile default")
        (cache / f"{name}.json").write_text(json.dumps(token))
        web.answers["/federation/credentials"] = lambda *_: (401, b'{"message": "Session token not found"}')
        fails(["l0gin", secret], "no credentials.*401.*aws sso login")


def test_without_credentials_what_is_public_is_read_and_the_log_says_so(s3, home, monkeypatch, caplog):
    options = {"endpoint": s3.endpoint, "region": "us-east-1"}

    def let(acl):
        for key in folder(0, 6):
            s3.client.put_object_acl(Bucket="bucket", Key=key, ACL=acl)

    let("public-read")
    with caplog.at_level(logging.WARNING, "lossfeed"):
        right(lf.open("s3://bucket/data", store_options=options, **QUICKLY))
    assert sum("no credentials were found for s3://bucket" in r.getMessage() for r in caplog.records) == 1
    let("private")
    fails([], "store_options, environment, profile, this machine", store_options=options)


def test_a_machines_role_is_asked_once_and_no_machine_costs_no_wait(s3, home, monkeypatch):
    key, secret = s3.require_signatures()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    keys = {"AccessKeyId": key, "SecretAccessKey": secret, "Token": "", "Expiration": "2099-01-01T00:00:00Z", "Code": "Success",
            "LastUpdated": "2020-01-01T00:00:00Z", "Type": "AWS-HMAC"}  # fmt: skip
    roles = "/latest/meta-data/iam/security-credentials/"
    answers = {"/latest/api/token": lambda *_: (200, b"tok"), roles: lambda *_: (200, b"r"), roles + "r": lambda *_: (200, json.dumps(keys).encode())}
    options = {"endpoint": s3.endpoint, "region": "us-east-1"}
    with Web(answers=answers) as machine:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.url)
        try:
            lf.open("s3://bucket/data", store_options=options, **QUICKLY)
        except lf.SourceError as e:
            # The server knows the key, and not the empty token that the machine sends with it. HEAD has no words.
            assert secret not in str(e) and "session token has ended" in str(e)
        assert machine.count("PUT", "/latest/api/token") == 1
        # A machine without a role.
        machine.answers[roles] = lambda *_: (404, b"")
        with Web(answers={"/bucket/data": lambda *_: (403, b"")}) as store:
            fails([], "no credentials were found", store_options={**options, "endpoint": store.url})
            assert {request.authorization for request in store.asked} == {None}


def test_google_and_azure_are_read_without_credentials(home, monkeypatch, caplog):
    shard, files = tar(0, 5), folder(0, 6)
    # Azure's default is the machine's own service, which nobody may ask here.
    objects = {f"box/{key}": body for key, body in files.items()} | {"box/train.tar": shard}
    with Web(objects) as web:
        azure = {"account_name": "me", "endpoint": web.url, "skip_signature": "true"}
        right(lf.open("az://box/train.tar", store_options=azure, **QUICKLY))
        right(lf.open("az://box/data", store_options=azure, **QUICKLY))
        right(lf.open("az://box/*.tar", store_options=azure, **QUICKLY))
        right(lf.open("abfs://box/train.tar", store_options={**azure, "account_name": "other"}, **QUICKLY))
        with caplog.at_level(logging.WARNING, "lossfeed"):
            right(lf.open("gs://box/train.tar", store_options={"base_url": web.url}, **QUICKLY))
        assert any("no credentials were found for gs://box" in r.getMessage() for r in caplog.records)
        assert {request.authorization for request in web.asked} == {None}
        with pytest.raises(lf.SourceError, match=r"none-0.tar does not exist"):
            lf.open("gs://box/none-{0..1}.tar", store_options={"base_url": web.url}, **QUICKLY)


def test_a_key_with_a_lines_end_is_told_and_does_not_end_the_process(home):
    for options in ({"access_key_id": "A\n", "secret_access_key": "S3CRET"}, {"access_key_id": "A", "secret_access_key": "S3CRET\r"}):
        fails(["S3CRET"], "no header takes", lf.SettingsError, store_options={**options, "region": "x"})

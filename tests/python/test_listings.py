"""Listings that contradict themselves, names that no path takes, and answers whose fields say more than their status: no
sample is lost or comes twice without a word."""

import datetime
import email.utils
import hashlib
import json
import logging
import threading
import urllib.parse
from xml.sax.saxutils import escape

import pytest

import lossfeed as lf
from test_store_faults import png, right, tar
from web_double import Web

QUICKLY = {"retry_timeout": 1.0, "timeout": 5.0}
KEYS = [f"data/c{i % 2}/{i:03}.png" for i in (0, 2, 4, 6, 1, 3, 5, 7)]
OBJECTS = {key: png(int(key[-7:-4])) for key in KEYS}


def page(keys, token=None, truncated=None):
    text = "" if truncated is False else f"<IsTruncated>{'true' if truncated or token else 'false'}</IsTruncated>"
    if token is not None:
        text += f"<NextContinuationToken>{token}</NextContinuationToken>"
    for key in keys:
        body = OBJECTS.get(key, b"")
        text += (
            f"<Contents><Key>{escape(key)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
            f'<ETag>"{hashlib.md5(body).hexdigest()}"</ETag><Size>{len(body)}</Size></Contents>'
        )
    return f"<ListBucketResult>{text}</ListBucketResult>".encode()


def s3(pages, objects=OBJECTS):
    """A store whose listing's pages are `pages`, by the token that asks for each; None is the first's."""
    asked = []

    def answer(request, _):
        asked.append(dict(urllib.parse.parse_qsl(request.query)).get("continuation-token"))
        return 200, pages(asked[-1]) if callable(pages) else pages[asked[-1]], {"Content-Type": "application/xml"}

    web = Web({f"bucket/{key}": body for key, body in objects.items()}, answers={"/bucket": answer})
    web.pages = asked
    return web


def opened(web, **keywords):
    options = {"endpoint": web.url, "region": "us-east-1", "access_key_id": "an-id", "secret_access_key": "a-secret"}
    return lf.open("s3://bucket/data", store_options=options, **{**QUICKLY, **keywords})


ENDLESS = {str(n): page([], str((n + 1) % 3)) for n in range(3)}


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        ({None: page(KEYS[:4], truncated=True)}, "page 1 of it says that more follow"),
        ({None: page(KEYS[:4], "", truncated=True)}, "page 1 of it says that more follow"),
        ({None: page(KEYS[:2], "1"), "1": page(KEYS[2:4], truncated=True)}, "page 2 of it says that more follow"),
        ({None: page([], "same"), "same": page([], "same")}, "page 2 .* would never end"),
        ({None: page(KEYS[:4], "0"), **ENDLESS}, "page 4 .* would never end"),
        ({None: page(KEYS[:4], "same"), "same": page(KEYS[:4], "same")}, "would never end|names data/c0/000.png twice"),
        ({None: page(KEYS[:4], "1"), "1": page(KEYS[3:])}, "names data/c0/006.png twice"),
        ({None: page(KEYS[:4], "1"), "1": page(KEYS[:3:-1], "2"), "2": page(KEYS[4:])}, "names data/c1/00..png twice"),
        (lambda token: page(KEYS[:3], str(int(token or 0) + 1)), "names data/c0/000.png twice"),
    ],
    ids=["no-token", "empty-token", "no-token-later", "one-token", "three-tokens", "one-page", "overlap", "backwards", "new-tokens"],
)
def test_a_listing_that_contradicts_itself_is_refused(pages, why):
    with s3(pages) as web:
        with pytest.raises(lf.SourceError, match=f"the listing of data/ cannot be trusted, as .*{why}"):
            opened(web)
        assert len(web.pages) <= 4, "it ends there"


@pytest.mark.parametrize(
    "pages",
    [
        {None: page(KEYS, "again", truncated=False).replace(b"<Next", b"<IsTruncated>false</IsTruncated><Next")},
        {None: page(KEYS[4:], "1"), "1": page(KEYS[:4])},
        {None: page([], "1"), "1": page(KEYS, "2"), "2": page([])},
        {None: page(KEYS[:3], "1", truncated=False), "1": page(KEYS[3:], truncated=False)},
    ],
    ids=["ended-with-a-token", "not-in-order", "empty-pages", "only-tokens"],
)
def test_a_listing_that_is_odd_and_whole_is_taken(pages):
    with s3(pages) as web:
        data = opened(web)
        assert [data.name(i) for i in range(len(data))] == [key.removeprefix("data/") for key in sorted(KEYS)]
        right(data)
        assert len(web.pages) == len(pages)


ODD = ["data/c0//9.png", "data//9.png", "data/./9.png", "data/c0/../9.png", "data/c1/9.png/"]


def odd_store(kind):
    every = sorted(KEYS + ODD + ["data/c0/", "data/"])
    if kind == "s3":
        return s3({None: page(every[:6], "1"), "1": page(every[6:])})
    return Web({f"box/{key}": OBJECTS.get(key, b"") for key in every})


@pytest.mark.parametrize("kind", ["s3", "az"])
def test_names_that_no_path_takes_are_left_out_by_name_and_the_rest_comes(kind, caplog):
    with caplog.at_level(logging.WARNING, "lossfeed"):
        if kind == "az":
            with odd_store(kind) as web:
                options = {"account_name": "me", "endpoint": web.url, "skip_signature": "true"}
                data = lf.open("az://box/data", store_options=options, **QUICKLY)
                right(data)
        else:
            with odd_store(kind) as web:
                data = opened(web)
                right(data)
    assert sorted(data.name(i) for i in range(len(data))) == sorted(key.removeprefix("data/") for key in KEYS)
    (told,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert "5 in all" in told and all(json.dumps(name) in told for name in ODD), told


@pytest.mark.parametrize("link", ["http://127.0.0.2/api/datasets/me/pets/tree/main?cursor=2", "http://[", "?cursor=1"])
def test_a_listing_of_the_hub_that_leads_away_or_back_is_refused(link, monkeypatch):
    files = json.dumps([{"type": "directory", "path": "data"}]).encode()
    answer = (200, files, {"Link": f'<{link}>; rel="next"'})
    with Web(answers={"/api/datasets/me/pets/tree/main": lambda *_: answer}) as web:
        monkeypatch.setenv("HF_ENDPOINT", web.url)
        with pytest.raises(lf.SourceError, match="cannot be trusted, as .*(no URL of the Hub|would never end)"):
            lf.open("hf://datasets/me/pets", **QUICKLY)
        assert len(web.asked) <= 2


@pytest.mark.parametrize("entries", [[], [{"type": "directory", "path": "data"}], [{"type": "file", "path": "data/a.tar", "size": 1}]])
def test_a_listing_of_the_hub_that_never_ends_is_refused(entries, monkeypatch):
    """Each page has a cursor of its own, and nothing new."""
    path = "/api/datasets/me/pets/tree/main"
    with Web() as web:
        following = lambda *_: (200, json.dumps(entries).encode(), {"Link": f'<{web.url}{path}?cursor={len(web.asked)}>; rel="next"'})  # noqa: E731
        web.answers[path] = following
        monkeypatch.setenv("HF_ENDPOINT", web.url)
        with pytest.raises(lf.SourceError, match="cannot be trusted, as .*(would never end|names data/a.tar twice)"):
            lf.open("hf://datasets/me/pets", **QUICKLY)
        assert len(web.asked) <= 1002


def test_a_listing_of_empty_pages_that_never_ends_is_refused():
    with s3(lambda token: page([], str(int(token or 0) + 1))) as web:
        with pytest.raises(lf.SourceError, match="1000 pages of it in a row name no object"):
            opened(web)
        assert len(web.pages) <= 1002


ARCHIVED = b"<Error><Code>InvalidObjectState</Code><Message>see the code</Message></Error>"
SKEWED = b"<Error><Code>RequestTimeTooSkewed</Code><Message>see the code</Message></Error>"


def test_an_archived_object_and_a_clock_that_is_off_are_named():
    with s3({None: page(KEYS)}) as web:
        web.answers |= {f"/bucket/{key}": lambda request, _: (403, ARCHIVED) for key in KEYS}
        with pytest.raises(lf.SourceError, match="000.png is archived .*: restore it, or copy it to another storage class"):
            opened(web)
    xml = {"Content-Type": "application/xml"}
    behind = email.utils.format_datetime(datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=40), usegmt=True)
    for date, body, told in [
        (behind, SKEWED, r"this machine's clock is (39|40) minutes behind the store's; set it right"),
        # A HEAD has no body, and other stores have other words.
        (behind, b"", r"this machine's clock is (39|40) minutes behind the store's; set it right"),
        ("Tue, 14 Nov 2023 22:13:20 GMT", SKEWED, r"this machine's clock is \d+ minutes ahead of the store's; set it right"),
        (email.utils.formatdate(usegmt=True), SKEWED, "this machine's clock is off; set it right"),
    ]:
        headers = {**xml, "Date": date}
        with s3({None: b""}) as web:
            web.answers["/bucket"] = lambda request, _, body=body, headers=headers: (403, body, headers)
            with pytest.raises(lf.OutageError, match=f"the listing of data/ was refused .403.: {told}"):
                opened(web)
    # A clock that is off is no matter of who may read.
    with s3({None: b""}) as web:
        web.answers["/bucket"] = lambda *_: (403, b"<Error><Code>AccessDenied</Code></Error>")
        with pytest.raises(lf.SourceError, match="may not be read with these credentials"):
            opened(web)


@pytest.mark.parametrize("date", ["Tuesday, 14-Nov-23 22:13:20 GMT", "Tue Nov 14 22:13:20 2023", "Mon, 14 Nov 2023 22:13:20 GMT", "0"])
@pytest.mark.parametrize("tagged", [True, False])
def test_dates_of_every_form_are_taken_and_what_is_no_date_is_none(date, tagged):
    body = tar(0, 6)

    def answer(request, _):
        headers = {"Last-Modified": date, **({"ETag": '"x"'} if tagged else {})}
        if request.range is None:
            return 200, body, headers
        first, last = (int(at) for at in request.range.removeprefix("bytes=").split("-"))
        part = body[first : last + 1]
        return 206, part, {**headers, "Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(body)}"}

    with Web(answers={"/x.tar": answer}) as web:
        right(lf.open(web.url + "/x.tar", **QUICKLY))


def test_a_head_that_tells_no_length_is_no_empty_file():
    with Web({"x.tar": tar(0, 6), "empty.tar": b""}) as web:
        for length in ({"Content-Length": "0"}, {"Transfer-Encoding": "chunked"}):

            def head(request, _, length=length):
                if request.method == "HEAD":
                    return 200, b"", length
                del web.answers["/x.tar"]
                whole = web.objects["x.tar"]
                tag = f'"{hashlib.md5(whole).hexdigest()}"'
                return 206, whole[:1], {"Content-Range": f"bytes 0-0/{len(whole)}", "ETag": tag}

            web.answers["/x.tar"] = head
            assert len(lf.open(web.url + "/x.tar", **QUICKLY)) == 6
        with pytest.raises(lf.SourceError, match=r"empty.tar is empty \(0 bytes\)"):
            lf.open(web.url + "/empty.tar", **QUICKLY)


def test_wrong_answers_in_a_row_do_not_end_a_run_over_a_class_folder():
    wrong = {key: [403, 404, 200] for key in KEYS}
    lock = threading.Lock()
    headers = {"Last-Modified": email.utils.formatdate(1.7e9, usegmt=True)}

    def answer(request, _):
        key = request.path.removeprefix("/bucket/")
        with lock:
            status = wrong[key].pop() if wrong[key] else None
        if status == 200:
            return 206, OBJECTS[key], {"Content-Range": f"bytes 0-{len(OBJECTS[key]) - 1}/{len(OBJECTS[key])}"}  # without a tag
        if status is not None:
            return status, b"<Error><Code>AccessDenied</Code></Error>"
        tag = {"ETag": f'"{hashlib.md5(OBJECTS[key]).hexdigest()}"', **headers}
        return 206, OBJECTS[key], {**tag, "Content-Range": f"bytes 0-{len(OBJECTS[key]) - 1}/{len(OBJECTS[key])}"}

    with s3({None: page(KEYS)}) as web:
        web.answers |= {f"/bucket/{key}": answer for key in KEYS}
        data = opened(web, retry_timeout=20.0)
        assert not wrong[KEYS[0]], "the first is looked at when it is opened"
        right(data)
        assert not any(wrong.values())

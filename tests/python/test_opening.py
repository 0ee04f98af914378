"""Opening a dataset ends soon after a signal's handler has raised, wherever it is; and what a machine forbids is named."""

import contextlib
import io
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time

import pytest

import lossfeed as lf
from test_listings import KEYS, OBJECTS, page, s3
from test_store_faults import png, tar
from web_double import Web

#: What waits for an answer waits longer than any test may take.
PATIENT = {"timeout": 300.0, "retry_timeout": 300.0}


class Asked(BaseException):
    """The exception of a handler."""


@contextlib.contextmanager
def raising(number):
    def handler(*_):
        raise Asked

    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def sparse_tar():
    """Headers so far apart that each takes a request."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for i in range(100):
            info = tarfile.TarInfo(f"c/{i:03}.png")
            info.size = 300_000
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return out.getvalue()


def part(body, request):
    first, last = (int(at) for at in request.range.removeprefix("bytes=").split("-"))
    found = body[first : last + 1]
    return 206, found, {"ETag": '"x"', "Content-Range": f"bytes {first}-{first + len(found) - 1}/{len(body)}"}


@contextlib.contextmanager
def slow(where):
    """A store whose answers do not come, from somewhere on: a URL, options, and the number of requests so far."""
    let_go = threading.Event()

    def never(*_):
        let_go.wait(300)
        return 503, b""

    def headed(body, then):
        """HEAD is answered at once."""
        return lambda r, sent: (200, body, {"ETag": '"x"'}) if r.method == "HEAD" else then(r, sent)

    if where == "deaf":
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(50)
            yield f"http://127.0.0.1:{deaf.getsockname()[1]}/x.tar", None, lambda: 0
        return
    whole = tar(0, 6)
    far_apart = sparse_tar() if where == "headers" else b""

    def a_header_each(request, _):
        time.sleep(0.3)
        return part(far_apart, request)

    def pages(token):
        if where == "page":
            time.sleep(0.5)
            return page([KEYS[0].replace("000", f"{int(token or 0):06}")], str(int(token or 0) + 1))
        return never()[1] if token else page(KEYS[:2], "1")

    web = s3(pages if where != "sample" else {None: page(KEYS)})
    web.answers |= {f"/bucket/{key}": never for key in (KEYS if where == "sample" else [])}
    web.answers |= {f"/{n:02}.tar": never for n in range(40)}
    web.answers |= {f"/walk{n:02}.tar": headed(whole, never) for n in range(40)}
    web.answers["/far.tar"] = headed(far_apart, a_header_each)
    web.answers["/x.parquet"] = headed(whole, never)
    options = {"region": "us-east-1", "access_key_id": "an-id", "secret_access_key": "a-secret"}
    with web:
        url = {"head": "/00.tar", "heads": "/{00..39}.tar", "walks": "/walk{00..39}.tar", "headers": "/far.tar", "footer": "/x.parquet"}.get(where)
        try:
            if url is None:
                yield "s3://bucket/data", {**options, "endpoint": web.url}, lambda: len(web.asked)
            else:
                yield web.url + url, None, lambda: len(web.asked)
        finally:
            let_go.set()


def opening_threads():
    names = []
    for comm in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            names.append(comm.read_text().strip())
    return names.count("lossfeed-open")


@pytest.mark.parametrize(
    ("where", "number"),
    [(where, signal.SIGINT) for where in ("page", "pages", "deaf", "head", "heads", "headers", "walks", "footer", "sample")]
    + [("headers", signal.SIGTERM), ("walks", signal.SIGTERM), ("footer", signal.SIGALRM), ("deaf", signal.SIGALRM)],
)
def test_a_handler_that_raises_ends_the_opening_wherever_it_is(where, number, tmp_path):
    with slow(where) as (url, options, requests), raising(number):
        threading.Timer(1.0, os.kill, (os.getpid(), number)).start()
        began = time.monotonic()
        with pytest.raises(Asked):
            lf.open(url, store_options=options, index_cache=tmp_path / "index", **PATIENT)
        assert time.monotonic() - began < 20, "it waited for an answer"
        deadline = time.monotonic() + 20
        while opening_threads() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert opening_threads() == 0, "it was left, and goes on"
        asked = requests()
        time.sleep(1.0)
        assert requests() == asked, "and nothing is asked for any more"
    assert not list((tmp_path / "index").rglob("*"))


def test_a_file_system_that_hangs_is_left_behind(tmp_path):
    os.mkfifo(tmp_path / "x.tar")
    with raising(signal.SIGINT):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(Asked):
            lf.open(tmp_path / "x.tar")
    # Its thread ends when the file system answers.
    os.close(os.open(tmp_path / "x.tar", os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("how", ["loader", "sample", "samples", "loader over a disk tier"])
def test_ctrl_c_ends_a_read_on_the_calling_thread_of_a_store_that_never_answers(how, tmp_path):
    """And the batch comes again behind a state."""
    body, let_go, hangs = tar(0, 12), threading.Event(), threading.Event()

    def answer(request, _):
        if hangs.is_set():
            let_go.wait(300)
        return part(body, request) if request.range else (200, body, {"ETag": '"x"'})

    tier = {"disk": tmp_path / "tier", "disk_bytes": "64MiB"} if "disk" in how else {}
    with Web(answers={"/x.tar": answer}) as web, raising(signal.SIGINT):
        data = lf.open(web.url + "/x.tar", **PATIENT, **tier)
        make = lambda: lf.Loader(data, 4, num_workers=0, framework="numpy", stats=False, read_ahead=0)  # noqa: E731
        loader, seen = make(), []
        reads = {"sample": lambda: data[3], "samples": lambda: data[3:7][0]}
        try:
            if "loader" in how:
                passing = iter(loader)
                seen += next(passing).ids.tolist()
                reads[how] = lambda: next(passing)
            hangs.set()
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            with pytest.raises(Asked):
                reads[how]()
            assert time.monotonic() - began < 20, "it waited for an answer"
            state = loader.state_dict()
            loader.close()
        finally:
            hangs.clear()
            let_go.set()
        if "loader" in how:
            again = make()
            again.load_state_dict(state)
            seen += [i for batch in again for i in batch.ids.tolist()]
            assert sorted(seen) == list(range(12))


def test_opening_in_another_thread_leaves_signals_to_the_main_one(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar(0, 6))
    opened = []
    threads = [threading.Thread(target=lambda: opened.append(len(lf.open(tmp_path / "x.tar")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [6] * 4


#: From here on the process may start no thread, as in containers whose seccomp profile does not know clone3.
FORBIDDEN = """
    import ctypes, errno, struct
    libc = ctypes.CDLL(None, use_errno=True)
    def rule(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
    rules = rule(0x20, 0, 0, 0) + rule(0x15, 0, 1, 435) + rule(0x06, 0, 0, 0x00050000 | errno.EPERM) + rule(0x06, 0, 0, 0x7FFF0000)
    held = ctypes.create_string_buffer(rules)
    program = struct.pack("HxxxxxxP", 4, ctypes.addressof(held))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    if libc.prctl(22, 2, program, 0, 0) != 0: sys.exit(77)
"""


def test_threads_that_a_container_forbids_are_named(tmp_path):
    for n in range(6):
        (tmp_path / f"{n}.tar").write_bytes(tar(6 * n, 6))
    (tmp_path / "data" / "c").mkdir(parents=True)
    (tmp_path / "data" / "c" / "0.png").write_bytes(png(0))
    body = """
        import sys, torch, lossfeed as lf
        whole = lf.open(sys.argv[1] + "/{0..5}.tar")
        FORBIDDEN
        def told(what, work):
            try:
                print(what, work())
            except lf.Error as e:
                print(what, type(e).__name__, e)
        told("one", lambda: len(lf.open(sys.argv[1] + "/0.tar")))
        told("folder", lambda: len(lf.open(sys.argv[1] + "/data", checksums=True)))
        told("several", lambda: len(lf.open(sys.argv[1] + "/{0..5}.tar")))
        told("store", lambda: len(lf.open("http://127.0.0.1:9/x.tar", retry_timeout=0)))
        told("loader", lambda: sum(len(b.ids) for b in lf.Loader(whole, 4, num_workers=2)))
        told("without", lambda: sum(len(b.ids) for b in lf.Loader(whole, 4, num_workers=0)))
    """
    code = textwrap.dedent(body).replace("FORBIDDEN", textwrap.dedent(FORBIDDEN))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=240)
    if done.returncode == 77:
        pytest.skip("this machine lets nobody forbid a system call")
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert (said["one"], said["folder"], said["without"]) == ("6", "1", "36"), said
    for what, kind in [("several", "SourceError"), ("store", "SourceError"), ("loader", "MemoryLimitError")]:
        assert said[what].startswith(kind) and "refuses clone3 with EPERM; update the container runtime" in said[what], said[what]
        assert "num_workers" not in said[what] and "panicked" not in done.stderr


def test_an_opening_of_more_than_two_seconds_says_on_a_terminal_how_far_it_is():
    objects = {f"s-{i}.tar": tar(2 * i, 2) for i in range(4)}
    script = "import lossfeed as lf, sys; print(len(lf.open(sys.argv[1], connections=1, hedge=False)))"
    with Web(objects, ranges=lambda number: time.sleep(0.8) or True) as web:
        run = [sys.executable, "-c", script, web.url + "/s-{0..3}.tar"]
        ours, theirs = os.openpty()
        at = {**os.environ, "TERM": "xterm"}
        with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=theirs, env=at) as opening:
            os.close(theirs)
            told = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while part := os.read(ours, 4096):
                    told += part
            assert opening.stdout.read() == b"8\n" and opening.wait() == 0
        os.close(ours)
        lines = told.decode().split("\r\x1b[K")
        assert lines[0] == "" and lines[-1] == "", "the line is gone"
        assert all(line.startswith("opening ") and len(line) < 80 and line.endswith(" s") for line in lines[1:-1])
        assert any(" of 4 shards" in line and "[##" in line for line in lines), lines
        piped = subprocess.run(run, capture_output=True, timeout=100)
        assert (piped.stdout, piped.stderr) == (b"8\n", b"")

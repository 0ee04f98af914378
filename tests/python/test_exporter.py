"""`lossfeed exporter`: OpenMetrics that Prometheus's own parser takes, and clients that mean it ill."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import lossfeed as lf


@pytest.fixture
def exporter(tmp_path, monkeypatch):
    """The address of an exporter that sees the pages of this test alone."""
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "pages"))
    command = [sys.executable, "-m", "lossfeed", "exporter", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        program.url = program.stdout.readline().strip()
        program.port = int(program.url.rsplit(":")[-1].partition("/")[0])
        yield program
        program.terminate()


def scraped(exporter):
    with urllib.request.urlopen(exporter.url, timeout=60) as answer:
        assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        text = answer.read().decode()
    assert text.endswith("\n# EOF\n")
    return {family.name: family for family in text_string_to_metric_families(text)}


def sent(exporter, request):
    """The answer to a request, byte by byte as it is."""
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=60) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def test_prometheus_parser_finds_every_counter_with_help_and_unit(exporter, numbers):
    with lf.Loader(numbers, 4, job='a "job"\\n') as first, lf.Loader(numbers, 4, job="other", seed=1):
        for _ in first:
            pass
        until = time.monotonic() + 30
        while sum(sample.value for sample in scraped(exporter)["lossfeed_samples"].samples) != 64:
            assert time.monotonic() < until, "the page is written once a second"
        families = scraped(exporter)
        samples = families["lossfeed_samples"].samples
        assert {s.labels["job"] for s in samples} == {'a "job"\\n', "other"}
        assert {s.name for s in samples} == {"lossfeed_samples_total"}
        waits = families["lossfeed_wait_source_seconds"]
        assert (waits.type, waits.unit) == ("counter", "seconds") and waits.documentation.startswith("Part of the wait")
        wanted = first.stats()["wait_us_total"] / 1e6
        mine = next(s for s in families["lossfeed_wait_seconds"].samples if s.labels["job"] != "other")
        assert mine.value == pytest.approx(wanted)
        assert families["lossfeed_epoch"].type == "gauge"
        info = next(s for s in families["lossfeed_engine"].samples if s.labels["job"] != "other")
        assert info.labels["pid"] == str(os.getpid()) and info.labels["sampler"] and info.value == 1
        assert "Values: 0 closed; 1 open" in families["lossfeed_disk_circuit"].documentation
    # A family for every number that is no ratio and no former name, and three of the exporter's own.
    command = [sys.executable, "-m", "lossfeed", "smi", "--demo", "--json"]
    engine = json.loads(subprocess.run(command, capture_output=True, timeout=60).stdout)["engines"][0]
    assert len(families) == len(engine["counters"]) + 3
    ended = scraped(exporter)
    assert not ended["lossfeed_samples"].samples, "engines that have ended are no longer told"


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200"),
        (b"GET /metrics?x=1 HTTP/1.0", b"200"),
        (b"HEAD /metrics HTTP/1.1", b"200"),
        (b"GET / HTTP/1.1", b"200"),
        (b"GET /other HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"GET /metrics HTTP/2.0", b"400"),
        (b"\xff\xfe\x00", b"400"),
        (b"GET", b"400"),
        (b"", b"400"),
    ],
)
def test_each_request_has_its_status(exporter, request_line, status):
    answer = sent(exporter, request_line + b"\r\nHost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 " + status + b" "), answer
    body = answer.partition(b"\r\n\r\n")[2]
    assert (request_line.startswith(b"HEAD") or status in (b"405", b"400")) == (body == b""), answer


def test_half_requests_and_huge_heads_neither_stop_it_nor_make_it_grow(exporter):
    def kib():
        status = open(f"/proc/{exporter.pid}/status").read()
        return int(status.partition("VmRSS:")[2].split()[0])

    scraped(exporter)
    before = kib()
    for _ in range(20):
        answer = sent(exporter, b"GET /metrics HTTP/1.1\r\nX: " + b"a" * (1 << 20))
        assert answer.startswith(b"HTTP/1.1 431 ")
    half = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(200)]
    for connection in half:
        connection.sendall(b"GET /metrics HT")
    # They have every place for some seconds; then they are gone, and the next in line is answered.
    scraped(exporter)
    for connection in half:
        connection.close()
    # An open connection that sends nothing, and one that takes nothing.
    address = ("127.0.0.1", exporter.port)
    with socket.create_connection(address), socket.create_connection(address) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        scraped(exporter)
    assert kib() - before < 16 << 10
    assert exporter.poll() is None


def test_a_scrape_takes_the_place_of_the_connection_that_is_idle_for_longest(exporter):
    """More idle connections than it has places: the oldest make room at once, and none waits for a time limit."""
    idle = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(600)]
    scraped(exporter)
    assert idle[0].recv(1) == b"" and idle[87].recv(1) == b""
    with pytest.raises(BlockingIOError):
        idle[300].recv(1, socket.MSG_DONTWAIT)
    for connection in idle:
        connection.close()


def test_an_address_in_use_is_an_error_that_names_the_option(exporter):
    command = [sys.executable, "-m", "lossfeed", "exporter", "--listen", f"127.0.0.1:{exporter.port}"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1 and f"--listen 127.0.0.1:{exporter.port}: " in refused.stderr


def test_it_listens_on_the_loopback_unless_told_otherwise():
    command = [sys.executable, "-m", "lossfeed", "exporter", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "[default: 127.0.0.1:9841]" in told.stdout

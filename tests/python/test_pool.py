"""The pool of lf.open: a process reads from a Redis server what another fetched, and training never depends on it."""

import contextlib
import datetime
import gc
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import lossfeed as lf
import numpy as np
import pytest
from PIL import Image
from redis_server import Redis, free_port, program

pytestmark = pytest.mark.skipif(
    program() is None, reason="no redis-server: .ci/redis unpacks one, REDIS_SERVER names one"
)

COUNT = 24
#: A source that a pool on this machine is surely faster than.
FAR = {"latency": 0.02, "coalesce": False}
HEADER = 40


def pixels(i):
    return np.random.default_rng(i).integers(0, 255, (6, 5, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "data"
    for i in range(COUNT):
        place = root / f"class{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(i)).save(place / f"{i:02}.png")
    return root


@pytest.fixture
def redis(tmp_path):
    with Redis(tmp_path / "redis") as server:
        yield server


def epochs(data, count=1, before=lambda epoch: None, **keywords):
    """Some epochs, each of which must deliver every sample with its own pixels; the loader's numbers."""
    with lf.Loader(data, 4, num_workers=1, cache=None, read_ahead=0, **keywords) as loader:
        for epoch in range(count):
            before(epoch)
            loader.set_epoch(epoch)
            right(data, [batch for batch in loader])
        return loader.stats()


def right(data, batches):
    seen = set()
    for batch in batches:
        for i, x in zip(batch.ids.tolist(), batch.data.numpy()):
            number = int(data.name(i).rpartition("/")[2].partition(".")[0])
            assert (x == pixels(number)).all()
            seen.add(i)
    assert len(seen) == COUNT


def settled(redis, data, samples=COUNT):
    """Until so many samples are in the pool."""
    deadline = time.monotonic() + 30
    while len(redis.keys()) < samples:
        assert time.monotonic() < deadline, (len(redis.keys()), numbers(data))
        time.sleep(0.01)


def numbers(data):
    with lf.Loader(data, 4, num_workers=0) as loader:
        return loader.stats()


def filled(folder, redis, **options):
    """A dataset whose samples are all in the pool."""
    data = lf.open(folder, pool=redis.url, **FAR, **options)
    epochs(data)
    settled(redis, data)
    return data


def test_a_second_run_reads_nothing_from_the_source_in_one_request_a_batch(folder, redis):
    data = filled(folder, redis)
    first = numbers(data)
    assert first["pool_hits_total"] + first["pool_misses_total"] == COUNT + 1 and first["pool_written_total"] == COUNT
    assert all(0 < redis.ask("PTTL", key) <= 86_400_000 for key in redis.keys())
    del data
    redis.ask("CONFIG", "RESETSTAT")
    data = lf.open(folder, pool=redis.url, **FAR)
    second = epochs(data, count=2)
    # The first sample is looked at when a dataset is opened.
    assert second["pool_hits_total"] == 2 * COUNT + 1 and second["pool_misses_total"] == 0
    assert second["store_requests_total"] == 0 and second["pool_hit_bytes_total"] > 0
    assert second["pool_circuit"] == second["pool_opened_total"] == second["pool_damaged_total"] == 0
    calls = redis.calls()
    # One is the check of what this user may do.
    assert calls["mget"] <= 2 * COUNT // 4 + 2 and calls["eval"] == 1
    assert not calls.keys() & {"exists", "get", "del", "unlink", "flushall", "keys"}, calls


def test_another_dataset_and_another_version_of_a_file_have_other_keys(folder, redis, tmp_path):
    filled(folder, redis)
    before = set(redis.keys())
    (changed,) = folder.glob("*/07.png")
    Image.fromarray(pixels(7)[::-1]).save(changed)
    Image.fromarray(pixels(7)).save(changed, compress_level=0)
    data = lf.open(folder, pool=redis.url, **FAR)
    seen = epochs(data)
    assert seen["pool_damaged_total"] == 0 and seen["pool_misses_total"] > 0
    settled(redis, data, len(before) + 1)
    assert before < set(redis.keys()), "another run's samples are never deleted"


def test_a_server_that_is_down_costs_one_warning(folder, caplog):
    with caplog.at_level(logging.WARNING):
        data = lf.open(folder, pool=f"redis://user:pa55w0rd@127.0.0.1:{free_port()}", **FAR)
        seen = epochs(data, 3)
    assert seen["pool_hits_total"] == 0 and seen["pool_skipped_total"] > 0 and seen["pool_circuit"] == 1
    warned = [record.getMessage() for record in caplog.records if "pool" in record.getMessage()]
    assert len(warned) == 1 and "does not answer" in warned[0] and "pa55w0rd" not in caplog.text, warned


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_server_that_goes_is_left_out_and_used_again_when_it_is_back(folder, redis, how):
    data = filled(folder, redis)

    def gone(epoch):
        if epoch == 1:
            redis.stop() if how == "killed" else redis.send_signal(signal.SIGSTOP)

    begun = time.monotonic()
    seen = epochs(data, 3, gone)
    assert time.monotonic() - begun < 20
    assert seen["pool_circuit"] == 1 and seen["pool_opened_total"] == 1, seen
    assert seen["pool_circuit_reason"] == {"killed": 3, "stopped": 2}[how]
    # One request of a batch, or two, had to fail; one without an answer is counted as well.
    assert 0 < seen["pool_failed_total"] <= 8 and seen["pool_skipped_total"] > 0
    redis.start() if how == "killed" else redis.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 60
    while numbers(data)["pool_circuit"] != 0:
        epochs(data)
        assert time.monotonic() < deadline, numbers(data)
    settled(redis, data, 1)
    before = numbers(data)["pool_hits_total"]
    epochs(data, 2)
    assert numbers(data)["pool_hits_total"] > before


def test_a_pool_that_is_slower_than_the_source_is_left_out_and_smi_says_so(folder, redis, tmp_path, monkeypatch):
    monkeypatch.setenv("LOSSFEED_RUNTIME_DIR", str(tmp_path / "pages"))
    filled(folder, redis)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def carry(source, target, delay):
            with contextlib.suppress(OSError), source, target:
                while got := source.recv(65536):
                    time.sleep(delay)
                    target.sendall(got)

        def serve():
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                onward = socket.create_connection(("127.0.0.1", redis.port))
                threading.Thread(target=carry, args=(link, onward, 0.0), daemon=True).start()
                threading.Thread(target=carry, args=(onward, link, 0.15), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        # A millisecond, where the pool takes 150 for four; who filled it needed 80, and no sample is missing there.
        data = lf.open(folder, pool=f"redis://127.0.0.1:{server.getsockname()[1]}", latency=0.001, coalesce=False)
        with lf.Loader(data, 4, num_workers=1, cache=None, read_ahead=0) as loader:
            for _ in range(3):
                right(data, list(loader))
            seen = loader.stats()
            assert seen["pool_circuit_reason"] == 1 and 0 < seen["pool_hits_total"] < 3 * COUNT, seen
            assert seen["pool_skipped_total"] > 0 and seen["pool_opened_total"] >= 1
            deadline, said = time.monotonic() + 30, "(last: it was slower than the source)"
            while said not in (shown := smi()):
                assert time.monotonic() < deadline, shown
            assert re.search(r"pool +breaker (open|half-open) ", shown), shown


def smi():
    command = [sys.executable, "-m", "lossfeed", "smi"]
    env = {**os.environ, "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env).stdout


def test_a_connection_that_the_server_closed_is_made_again(folder, redis):
    data = filled(folder, redis)
    seen = epochs(data, 3, lambda epoch: redis.ask("CLIENT", "KILL", "TYPE", "normal"))
    assert seen["pool_opened_total"] == seen["pool_failed_total"] == 0 and seen["pool_hits_total"] >= 3 * COUNT


def test_a_forked_child_reads_past_the_pool_and_lets_go_of_it(folder, redis):
    held = [lf.open(folder, pool=redis.url)]
    right(held[0], lf.Loader(held[0], 4))
    child = os.fork()
    if child == 0:
        # Whatever it raises must not run the parent's tests on.
        try:
            right(held[0], lf.Loader(held[0], 4))
            del held[0]
            gc.collect()
            os._exit(0)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    assert ended[1] == 0
    right(held[0], lf.Loader(held[0], 4))


def test_flushed_in_mid_run_it_is_filled_again(folder, redis):
    data = filled(folder, redis)
    seen = epochs(data, 3, lambda epoch: redis.ask("FLUSHALL") if epoch == 1 else settled(redis, data))
    assert seen["pool_opened_total"] == 0 and seen["pool_misses_total"] >= 2 * COUNT
    settled(redis, data)
    assert epochs(data)["pool_circuit"] == 0


def test_damaged_truncated_and_foreign_values_are_misses_and_only_ours_are_replaced(folder, redis):
    data = filled(folder, redis)
    del data
    gc.collect()
    keys = sorted(redis.keys())
    values = {key: redis.ask("GET", key) for key in keys}
    flipped = bytearray(values[keys[0]])
    flipped[-1] ^= 1
    header = bytearray(values[keys[1]])
    header[30] ^= 1
    foreign, of_another, list_key = keys[5], keys[6], keys[7]
    redis.ask("SET", keys[0], bytes(flipped))
    redis.ask("SET", keys[1], bytes(header))
    redis.ask("SET", keys[2], values[keys[2]][:-1])
    redis.ask("SET", keys[3], values[keys[3]][:HEADER])
    redis.ask("SET", keys[4], values[keys[4]][:9])
    redis.ask("SET", foreign, b"what another program keeps")
    redis.ask("SET", of_another, values[keys[8]])
    redis.ask("DEL", list_key)
    redis.ask("RPUSH", list_key, "x")
    data = lf.open(folder, pool=redis.url, **FAR)
    seen = epochs(data)
    # A list is no value at all.
    assert seen["pool_damaged_total"] == 7 and seen["store_requests_total"] >= 7, seen
    deadline = time.monotonic() + 30
    while numbers(data)["pool_written_total"] < 6:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert all(redis.ask("GET", key)[HEADER:] == values[key][HEADER:] for key in [*keys[:5], of_another])
    assert redis.ask("GET", foreign) == b"what another program keeps" and redis.ask("TYPE", list_key) == b"list"
    again = epochs(data)
    assert again["pool_damaged_total"] - seen["pool_damaged_total"] == 1


def test_another_server_under_the_name_delivers_no_wrong_sample(folder, redis, tmp_path):
    """It has all keys, with the values of others under them."""
    data = filled(folder, redis)
    keys = sorted(redis.keys())
    values = [redis.ask("GET", key) for key in keys]
    redis.stop()
    with Redis(tmp_path / "other", port=redis.port) as other:
        for key, value in zip(keys, values[1:] + values[:1]):
            other.ask("SET", key, value)
        del data
        data = lf.open(folder, pool=other.url, **FAR)
        seen = epochs(data)
        assert seen["pool_hits_total"] <= 1 and seen["pool_damaged_total"] >= COUNT


def test_the_budget_is_kept_and_expired_samples_make_room(folder, redis):
    value = 400
    budget = 10 * (value + 320)
    data = lf.open(folder, pool=redis.url, pool_bytes=budget, pool_ttl=5, **FAR)
    epochs(data)
    deadline = time.monotonic() + 30
    while sum(numbers(data)[f"pool_{what}_total"] for what in ("written", "declined", "dropped")) < COUNT:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kept = redis.keys()
    taken = sum(redis.ask("STRLEN", key) + 320 for key in kept)
    assert 0.8 * budget < taken <= budget and numbers(data)["pool_declined_total"] >= COUNT - len(kept)
    memory = sum(redis.ask("MEMORY", "USAGE", key) for key in redis.ask("KEYS", "lossfeed:*"))
    assert memory <= 1.1 * taken, (memory, taken)
    while redis.keys():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    epochs(data)
    while not redis.keys():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_full_server_is_no_error(folder, tmp_path):
    with Redis(tmp_path / "full", "--maxmemory", "1", "--maxmemory-policy", "noeviction") as redis:
        data = lf.open(folder, pool=redis.url, **FAR)
        seen = epochs(data, 2)
        assert seen["pool_hits_total"] == 0 and redis.keys() == []
        deadline = time.monotonic() + 30
        while numbers(data)["pool_declined_total"] < COUNT:
            assert time.monotonic() < deadline, numbers(data)
            time.sleep(0.01)


def test_below_a_disk_tier_and_over_a_unix_socket(folder, redis, tmp_path):
    filled(folder, redis)
    options = {"disk": tmp_path / "tier", "disk_bytes": "64MiB", "pool": f"redis+unix://{redis.socket}", **FAR}
    data = lf.open(folder, **options)
    seen = epochs(data)
    assert seen["pool_hits_total"] == COUNT + 1 - seen["disk_hits_total"] and seen["store_requests_total"] == 0
    deadline = time.monotonic() + 30
    while numbers(data)["disk_written_total"] < COUNT:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    again = epochs(data)
    assert again["pool_hits_total"] == seen["pool_hits_total"] and again["disk_hits_total"] >= COUNT
    assert again["disk_circuit"] == again["pool_circuit"] == 0


def test_who_is_refused_is_told_by_name_and_no_password_is_shown(folder, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    with Redis(tmp_path / "redis", password="s3cret") as redis:
        address = f"127.0.0.1:{redis.port}"
        redis.ask("ACL", "SETUSER", "reader", "on", ">hunter2", "~lossfeed:*", "+mget", "+hello")
        may = ["~lossfeed:*", "+@read", "+@write", "+@scripting", "+@connection", "+time"]
        redis.ask("ACL", "SETUSER", "both", "on", ">p@ss/w", *may)
        for login in (":wr0ng@", "", "stranger:wr0ng@", "reader:hunter2@"):
            with pytest.raises(lf.SettingsError, match="pool=.*refuses this user") as told:
                lf.open(folder, pool=f"redis://{login}{address}", **FAR)
            text = f"{told.value}{told.value.__cause__!r}"
            assert not [secret for secret in ("wr0ng", "hunter2", "s3cret") if secret in text]
        right(data := lf.open(folder, pool=f"redis://both:p%40ss%2Fw@{address}", **FAR), lf.Loader(data, 4))
        settled(redis, data)
        monkeypatch.setenv("REDISCLI_AUTH", "s3cret")
        data = lf.open(folder, pool=f"redis://{address}", **FAR)
        seen = epochs(data)
        assert seen["pool_hits_total"] == COUNT + 1
        shown = f"{data!r} {seen} {caplog.text} {pickle.dumps(data)!r}"
        assert "s3cret" not in shown and "p@ss" not in shown and "p%40ss" not in shown
        assert len(pickle.loads(pickle.dumps(data))) == COUNT


def test_over_tls_only_with_a_certificate_that_is_trusted(folder, tmp_path, monkeypatch, caplog):
    place, port = tmp_path / "tls", free_port()
    place.mkdir()
    key, cert = certificate()
    (place / "key").write_bytes(key)
    (place / "cert").write_bytes(cert)
    tls = ["--tls-port", str(port), "--tls-cert-file", str(place / "cert"), "--tls-key-file", str(place / "key")]
    tls += ["--tls-auth-clients", "no"]
    with Redis(place, *tls) as redis:
        with caplog.at_level(logging.WARNING):
            assert epochs(lf.open(folder, pool=f"rediss://localhost:{port}", **FAR))["pool_circuit"] == 1
        assert "certificate" in caplog.text and redis.keys() == []
        monkeypatch.setenv("SSL_CERT_FILE", str(place / "cert"))
        data = lf.open(folder, pool=f"rediss://localhost:{port}", **FAR)
        epochs(data)
        settled(redis, data)
        assert epochs(data)["pool_hits_total"] >= COUNT


def certificate():
    """A key and a certificate of localhost that signs itself, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    pem = serialization.Encoding.PEM
    return (
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        made.sign(key, hashes.SHA256()).public_bytes(pem),
    )


def test_settings_that_make_no_sense_are_named(folder):
    for options, words in [
        ({"pool": "http://host:6379"}, "pool='?\"?http://host:6379.* is no address of Redis"),
        ({"pool": "redis://me:pa55@"}, "is no address of Redis"),
        ({"pool": 3}, "pool is a int"),
        ({"pool_bytes": "1GB"}, "pool_bytes: without pool="),
        ({"pool": "redis://h", "pool_bytes": "much"}, "pool_bytes='much' is not a size"),
        ({"pool": "redis://h", "pool_ttl": 0}, "pool_ttl=0 is not possible"),
    ]:
        with pytest.raises(lf.SettingsError, match=words) as told:
            lf.open(folder, **options)
        assert "pa55" not in str(told.value)
    with pytest.raises(lf.SettingsError, match="pool=… is for paths"):
        lf.open((np.zeros((4, 2), np.float32), np.zeros(4, np.int64)), pool="redis://:pa55@h")


#: What a hostile server answers to MGET: each begins an answer that never ends, or is none.
HOSTILE = {
    "a bulk of 8 EiB": b"*1\r\n$9223372036854775807\r\n" + b"x" * 4096,
    "a bulk of 1 TiB": b"*1\r\n$1099511627776\r\n" + b"x" * 4096,
    "an array of 8 EiB": b"*9223372036854775807\r\n",
    "arrays in arrays": b"*1\r\n" * 100_000,
    "no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another form": b"$5\r\nhello\r\n",
    "too few": b"*0\r\n",
    "integers": b"*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
    "a long line": b"+" + b"y" * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_left_out_and_its_answers_take_no_memory(name, folder):
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = threading.Event()

        def serve():
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(link,), daemon=True).start()

        def answer(link):
            with link:
                try:
                    while got := link.recv(65536):
                        # A pipeline of the handshake's is answered command by command.
                        for _ in range(got.count(b"SETINFO")):
                            link.sendall(b"+OK\r\n")
                        if b"HELLO" in got:
                            link.sendall(b"*0\r\n")
                        if b"EVAL" in got:
                            link.sendall(b"*0\r\n")
                        if b"MGET" in got:
                            link.sendall(HOSTILE[name] if asked.is_set() else b"*1\r\n$-1\r\n")
                except OSError:
                    pass

        threading.Thread(target=serve, daemon=True).start()
        data = lf.open(folder, pool=f"redis://127.0.0.1:{server.getsockname()[1]}", **FAR)
        asked.set()
        before = resident()
        seen = epochs(data, 2)
        assert resident() - before < 64 << 20
        assert seen["pool_hits_total"] == 0
        if name != "integers":
            assert seen["pool_opened_total"] >= 1, seen


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

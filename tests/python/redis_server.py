"""A redis-server on this machine for the tests of the pool, and the least client that asks it.

    with Redis(tmp_path) as redis:
        lf.open(folder, pool=redis.url)
        redis.ask("FLUSHALL")

The program is what ``REDIS_SERVER`` names, the one on PATH, or what ``.ci/redis`` unpacked.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

_UNPACKED = Path(__file__).parents[2] / "target/tools/redis/usr/bin/redis-server"


def program() -> str | None:
    """The path of redis-server, if it is here."""
    unpacked = str(_UNPACKED) if _UNPACKED.exists() else None
    return os.environ.get("REDIS_SERVER") or shutil.which("redis-server") or unpacked


class Redis:
    """A server with nothing in it, on a port of the loopback and a unix socket; a context manager."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, password: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.options, self.password = folder, options, password
        self.port = free_port() if port is None else port
        self.socket = str(folder / "s")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}"

    def start(self) -> None:
        binary = Path(program() or "redis-server")
        libraries = [str(path) for path in binary.parents[1].glob("lib/*-linux-*")]
        env = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
        password = ["--requirepass", self.password] if self.password else []
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket, "--save", "",
                 "--appendonly", "no", "--dir", str(self.folder), *password, *self.options],
                stdout=log, stderr=log, env=env)  # fmt: skip
        deadline = time.monotonic() + 30
        while True:
            try:
                return self._hello()
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.01)

    def _hello(self) -> None:
        self.ask("PING")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def __enter__(self) -> Redis:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, *words: str | bytes) -> Any:
        """The answer to one command; an error's text is raised."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as link, link.makefile("rb") as answers:
            if self.password:
                link.sendall(request("AUTH", self.password))
                read(answers)
            link.sendall(request(*words))
            return read(answers)

    def keys(self) -> list[bytes]:
        """The keys of samples."""
        return [key for key in self.ask("KEYS", "lossfeed:*") if len(key.rpartition(b":")[2]) == 32]

    def calls(self) -> dict[str, int]:
        """Calls of each command since ``CONFIG RESETSTAT``."""
        lines = self.ask("INFO", "commandstats").decode().split()
        found = [re.match(r"cmdstat_([^:]+):calls=(\d+)", line) for line in lines]
        return {match[1]: int(match[2]) for match in found if match}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request(*words: str | bytes) -> bytes:
    """A command as it is sent."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def read(answers: Any) -> Any:
    """The next answer."""
    line = answers.readline()
    if not line:
        raise ConnectionError("the server closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else answers.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [read(answers) for _ in range(int(rest))]
    return rest


class Cluster:
    """Three masters with a third of the slots each; a context manager."""

    def __init__(self, folder: Path) -> None:
        self.buses = [free_port() for _ in range(3)]
        self.nodes = [Redis(folder / str(k), "--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                            "--cluster-port", str(self.buses[k])) for k in range(3)]  # fmt: skip

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def __enter__(self) -> Cluster:
        for k, node in enumerate(self.nodes):
            node.start()
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(k * 5461), str(16383 if k == 2 else (k + 1) * 5461 - 1))
        for node, bus in zip(self.nodes[1:], self.buses[1:]):
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(node.port), str(bus))
        deadline = time.monotonic() + 30
        while not all(b"cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in self.nodes):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.stop()

    def keys(self) -> list[bytes]:
        return [key for node in self.nodes for key in node.keys()]

    def move(self, source: int, target: int) -> int:
        """Gives the slots of all samples on one node to another; how many there were."""
        ids = [node.ask("CLUSTER", "MYID") for node in self.nodes]
        slots = {self.nodes[source].ask("CLUSTER", "KEYSLOT", key) for key in self.nodes[source].ask("KEYS", "*")}
        for slot in map(str, slots):
            self.nodes[target].ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            self.nodes[source].ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
            for key in self.nodes[source].ask("CLUSTER", "GETKEYSINSLOT", slot, "1000"):
                self.nodes[source].ask("MIGRATE", "127.0.0.1", str(self.nodes[target].port), key, "0", "5000")
            for node in (self.nodes[target], self.nodes[source]):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        return len(slots)

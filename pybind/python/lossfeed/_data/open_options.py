"""The keywords of :func:`lossfeed.open`, as they were given; those of paths and URLs, checked for the engine."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _native
from .._base import literals
from .._base.checks import differs, flag, seconds, whole
from .._base.errors import SettingsError
from .._base.sizes import parse_bytes
from . import members
from .data import parse_bandwidth
from .resize import Resize

#: Keywords for Python datasets alone.
_OF_DATASETS = {"thread_safe", "processes", "varying", "target"}
#: Keywords for paths and URLs of images alone.
OF_PATHS = {
    "latency", "bandwidth", "connections", "timeout", "index_cache", "store_options", "retry_timeout", "checksums",
    "coalesce", "hedge", "disk", "disk_bytes", "pool", "pool_bytes", "pool_ttl", "fields", "chaos",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """Keywords of :func:`lossfeed.open`."""

    mode: literals.Mode = "auto"
    resize: tuple[int, int] | int | None = None
    crop: tuple[int, int] | int | None = None
    latency: float = 0.0
    bandwidth: int | str | None = None
    connections: int = 64
    timeout: float | None = None
    index_cache: str | os.PathLike[str] | None = None
    store_options: dict[str, str] | None = None
    retry_timeout: float = 120.0
    checksums: bool = False
    coalesce: bool = True
    hedge: bool = True
    disk: str | os.PathLike[str] | None = None
    disk_bytes: int | str | None = None
    pool: str | None = None
    pool_bytes: int | str = "4GiB"
    pool_ttl: float = 86400.0
    thread_safe: bool | None = None
    processes: int = 0
    varying: bool = False
    target: str | None = None
    fields: Sequence[str] | Mapping[str, str] | None = None
    labels: Any = "auto"
    chaos: int | None = None
    dtype: Any = None
    header: int = 0
    stride: int | None = None

    def given(self) -> dict[str, Any]:
        """The keywords that are not as by default."""
        found = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        return {name: value for name, (value, default) in found.items() if differs(value, default)}

    def of_files(self, what: str) -> bool:
        """True if files that are named one by one get checksums.

        Raises:
            SettingsError: a keyword for stores and shards.
        """
        known = {"mode", "resize", "crop", "checksums", "fields", "labels", *_OF_DATASETS}
        other = sorted(self.given().keys() - known)
        if other:
            raise SettingsError(
                f"{', '.join(f'{name}=' for name in other)} is for class folders, shards and stores, not for {what}: "
                f"leave it out"
            )
        return flag("checksums", self.checksums)

    def of_path(self, location: str, mode: str, resized: Resize | None) -> dict[str, Any]:
        """The engine's settings for a path or URL."""
        return {
            "mode": mode,
            "resize": None if resized is None else resized.to,
            "crop": None if resized is None else resized.crop,
            "latency_s": seconds("latency", self.latency),
            "bandwidth_bytes_per_s": parse_bandwidth(self.bandwidth),
            "connections": whole("connections", self.connections, 1, 4096),
            "index_cache": _index_cache(self.index_cache),
            "store_options": _store_options(location, self.store_options),
            "timeout_s": None if self.timeout is None else seconds("timeout", self.timeout),
            "retry_timeout_s": seconds("retry_timeout", self.retry_timeout),
            "checksums": flag("checksums", self.checksums),
            "coalesce": flag("coalesce", self.coalesce),
            "hedge": flag("hedge", self.hedge),
            "disk": _disk(self.disk, self.disk_bytes),
            "pool": self._pool(),
            "fields": members.names(self.fields),
            "chaos": None if self.chaos is None else whole("chaos", self.chaos, 0, 2**64 - 1),
        }

    def _pool(self) -> tuple[str, int, float] | None:
        limits = [name for name in ("pool_bytes", "pool_ttl") if name in self.given()]
        if self.pool is None:
            if limits:
                raise SettingsError(
                    f"{' and '.join(limits)}: without pool= there is no pool: leave them out, or name its server"
                )
            return None
        if not isinstance(self.pool, str):
            kind = type(self.pool).__name__
            raise SettingsError(f"pool is a {kind}: give its address as text, as in 'redis://host:6379'")
        ttl = seconds("pool_ttl", self.pool_ttl)
        if not 1 <= ttl <= 365 * 86400:
            raise SettingsError(f"pool_ttl={self.pool_ttl!r} is not possible: use 1 second to a year")
        return self.pool, parse_bytes("pool_bytes", self.pool_bytes), ttl


def _disk(folder: str | os.PathLike[str] | None, size: int | str | None) -> tuple[str, int] | None:
    if folder is None and size is None:
        return None
    if folder is None or size is None:
        raise SettingsError("disk= and disk_bytes= need each other: give a folder and a limit such as '50GB'")
    return os.path.expanduser(place("disk", folder)), parse_bytes("disk_bytes", size)


def _index_cache(folder: str | os.PathLike[str] | None) -> str | None:
    """The folder of indexes, made if need be: one that cannot be written would be asked in vain at every start."""
    if folder is None:
        return None
    location = place("index_cache", folder)
    try:
        os.makedirs(location, 0o700, exist_ok=True)
        if not os.access(location, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as cause:
        why = getattr(cause, "strerror", None) or cause
        raise SettingsError(f"index_cache={location!r} is not a writable folder: {why}; name another") from None
    return location


def place(name: str, value: Any) -> str:
    """A path or URL as text that the engine takes."""
    try:
        location = os.fspath(value)
    except TypeError:
        raise SettingsError(f"{name}={value!r} is no path: give text or a pathlib.Path") from None
    if not isinstance(location, str):
        raise SettingsError(f"{name} is bytes: give text, with os.fsdecode")
    if any("\ud800" <= c <= "\udfff" for c in location):
        shown = _native.without_secrets(location.encode(errors="backslashreplace").decode())
        raise SettingsError(f"{name}='{shown}' is not UTF-8: rename it")
    return location


def _store_options(location: str, given: dict[str, str] | None) -> list[tuple[str, str]]:
    if given is not None and not isinstance(given, Mapping):
        raise SettingsError(f"store_options is a {type(given).__name__}: give a dict, as in {{'region': 'eu-central-1'}}")
    if given and ("://" not in location or location.startswith("file://")):
        raise SettingsError(
            f"store_options={sorted(map(str, given))} for {_native.without_secrets(location)!r}, which is not an "
            f"object store: remove them, or give a URL ({', '.join(name for name, _ in _native.schemes() if name != 'file://')})"
        )
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            raise SettingsError(f"store_options={{{name!r}: {type(value).__name__}}}: names and values are text")
    return [(name, str(value)) for name, value in (given or {}).items()]

"""Result files: ``benches/record/<machine>/<date>-<name>.{json,csv}``.

A number without its machine, its versions and its settings is a rumour: all three stand in the file. Files are
rewritten whole and renamed, under a lock, so that several processes may add runs to one of them.
"""

from __future__ import annotations

import csv
import datetime
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

RECORD = Path(__file__).resolve().parent.parent / "record"


def machine() -> dict[str, Any]:
    """What ran it: processor, usable cores, memory, operating system and the versions that matter."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = {}
    for package in ("lossfeed", "torch", "numpy", "pillow"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    return {
        "processor": _processor(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


class Record:
    """One result file and its CSV twin."""

    def __init__(self, name: str, settings: dict[str, Any], date: str | None = None, root: Path = RECORD) -> None:
        host = machine()
        slug = re.sub(r"[^a-z0-9]+", "-", f"{host['processor']} {host['cores']} cores".lower()).strip("-")
        self.folder = root / slug
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stem = f"{date or datetime.date.today().isoformat()}-{name}"
        self.json = self.folder / f"{self.stem}.json"
        self.csv = self.folder / f"{self.stem}.csv"
        self._head = {"name": name, "machine": host, "settings": settings}
        with self.locked():
            if self.json.exists() and (old := json.loads(self.json.read_text()))["settings"] != settings:
                changed = sorted(k for k in {*settings, *old["settings"]} if settings.get(k) != old["settings"].get(k))
                raise SystemExit(
                    f"{self.json} was begun with other settings ({', '.join(changed)}): move it away or give --date another name"
                )

    @contextmanager
    def locked(self, what: str = "file", wait: bool = True) -> Iterator[bool]:
        """Holds the lock named ``what`` of this record; yields whether it was got. A dead process holds none."""
        # Not beside the record: locks are this machine's business, records are everybody's.
        folder = Path(tempfile.gettempdir()) / f"lossfeed-record-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        name = hashlib.sha256(f"{self.json.resolve()}\0{what}".encode()).hexdigest()[:32]
        with open(folder / name, "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def runs(self) -> list[dict[str, Any]]:
        """The runs recorded so far."""
        return json.loads(self.json.read_text())["runs"] if self.json.exists() else []

    def add(self, run: dict[str, Any]) -> None:
        """Adds one run (flat values; lists and dicts go into the JSON only)."""
        with self.locked():
            runs = [*self.runs(), {**run, "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}]
            old = json.loads(self.json.read_text()) if self.json.exists() else {}
            kept = {k: old[k] for k in ("headline", "superseded_by") if k in old}  # written by hand, for INDEX.md
            self._write(self.json, json.dumps({**kept, **self._head, "runs": runs}, indent=1, ensure_ascii=False) + "\n")
            text = io.StringIO()
            host = self._head["machine"]
            fixed = {"machine": host["processor"], "cores": host["cores"], **host["versions"]}
            flat = [{k: v for k, v in r.items() if not isinstance(v, (list, dict))} for r in runs]
            columns = list(dict.fromkeys(k for r in flat for k in r))
            writer = csv.DictWriter(text, [*columns, *fixed], lineterminator="\n")
            writer.writeheader()
            writer.writerows({**r, **fixed} for r in flat)
            self._write(self.csv, text.getvalue())

    @staticmethod
    def _write(path: Path, text: str) -> None:
        draft = path.with_suffix(path.suffix + ".new")
        draft.write_text(text)
        os.replace(draft, path)


def cifar_folder(given: str | None) -> Path | None:
    """The folder with CIFAR-10's ``train-*.tar``, from the argument or ``LOSSFEED_CIFAR``; ``None`` after saying so."""
    text = given or os.environ.get("LOSSFEED_CIFAR", "")
    folder = Path(text).expanduser()
    if text and sorted(folder.glob("train-*.tar")):
        return folder
    print(
        f"skipped: no CIFAR-10 shards {f'in {folder}' if text else 'given'}; set LOSSFEED_CIFAR to a folder of train-*.tar and test-*.tar"
    )
    return None

"""Writing small things once: archives without a clock in them, folders that appear whole or not at all."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Writes ``(name, bytes)`` pairs as a plain USTAR archive with no clock, user or host in it."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def once(folder: Path, make: Callable[[Path], Any]) -> Path:
    """Fills ``folder`` by ``make(draft)`` unless it is there already, and returns it.

    The draft gets its name only when it is complete. Two processes may come here at once: each fills its own draft and
    the first rename wins.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(draft)
        draft.chmod(0o755)
        os.rename(draft, folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder

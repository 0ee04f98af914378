"""A process's file of numbers: names, then one 8-byte float each. `why` reads it while the process runs, and after.

Numbers are stored through a mapping, a few tens of nanoseconds each. The file's blocks are allocated first: a full disk
refuses here, and not by a signal in mid-run.
"""

import json
import mmap
import os
import tempfile
import time

#: The folder of `why`; empty: nothing is measured.
folder = ""
#: Bytes for the names.
NAMES_BYTES = 2048


class Slots:
    """Numbers by name. `at[name]` is a number's place in `numbers`."""

    def __init__(self, kind, names):
        path = os.path.join(folder, f"{kind}-{os.getpid()}.slots")
        if os.path.exists(path):  # an ended process's, whose number this one has
            path = os.path.join(folder, f"{kind}-{os.getpid()}-{time.time_ns()}.slots")
        text = "\n".join(names).encode()
        if len(text) > NAMES_BYTES:
            raise ValueError("too many names")
        size = NAMES_BYTES + 8 * len(names)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            os.pwrite(fd, text.ljust(NAMES_BYTES), 0)
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self.numbers = memoryview(memory)[NAMES_BYTES:].cast("d")
        self.at = {name: place for place, name in enumerate(names)}

    def set(self, **values):
        """Sets numbers by name."""
        for name, value in values.items():
            self.numbers[self.at[name]] = value


def describe(kind, **words):
    """Words about this process, beside its numbers: written whole, so that a reader never sees half of them."""
    try:
        fd, passing = tempfile.mkstemp(dir=folder, prefix=".words-")
        with os.fdopen(fd, "w") as file:
            json.dump(words, file)
        os.replace(passing, os.path.join(folder, f"{kind}-{os.getpid()}.json"))
    except OSError:
        pass

"""Starts DLIO with its own command line.

DLIO imports TensorFlow for a profiler that nobody asks for here. Where it is not installed an empty module stands in,
which saves its download and its start; nothing that is measured touches it.
"""

from __future__ import annotations

import importlib.util
import sys
import types

if importlib.util.find_spec("tensorflow") is None:
    sys.modules["tensorflow"] = types.ModuleType("tensorflow")

from dlio_benchmark.main import main  # noqa: E402

if __name__ == "__main__":
    main()

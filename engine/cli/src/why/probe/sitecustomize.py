"""Imported by the interpreters that `lossfeed why` starts: prepares the probe, then gives way to the user's module."""

import os
import sys


def _prepare():
    here = os.path.dirname(os.path.abspath(__file__))
    own = sys.modules[__name__]
    try:
        import lossfeed_probe

        lossfeed_probe.prepare(os.environ.get("LOSSFEED_WHY", ""))
    except Exception as error:  # the program comes first
        sys.stderr.write(f"lossfeed why: this Python cannot be measured: {error!r}\n")
    finally:
        sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    del sys.modules[__name__]
    try:
        import sitecustomize  # noqa: F401  (the user's, further on the path)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, own)


_prepare()

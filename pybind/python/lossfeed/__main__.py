"""``python -m lossfeed``, ``lossfeed`` and ``lossfeed-smi``: the command line. Imports no torch unless it trains."""

import os
import signal
import sys
from typing import Any

from . import _native
from lossfeed.train import main as train


def _train(options: dict[str, Any]) -> int:
    """Starts the demonstration job; called by the command line with its options."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return train(options)


def _detach() -> None:
    """Leaves the process that started this one, with its terminal, folder and open files."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def main() -> int:
    """Runs the command line and returns its exit code."""
    program = os.path.basename(sys.argv[0])
    argv = sys.argv[1:]
    if program.startswith("lossfeed-smi"):
        argv = ["smi", *argv]
    if argv[:2] == ["node", "serve"] and "--detach" in argv:
        _detach()
    # What doctor examines is this interpreter, and not the first one on PATH.
    if sys.executable:
        os.environ.setdefault("LOSSFEED_PYTHON", sys.executable)
    # The command line waits outside the interpreter, where Python's own handler would never run.
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.cli_main(argv, _train)


if __name__ == "__main__":
    sys.exit(main())

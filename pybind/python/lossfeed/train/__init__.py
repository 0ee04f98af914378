"""The demonstration job behind ``lossfeed train``: the same small training, fed in several ways, side by side.

    options.py   what can be asked for, checked first         digits.py    the bundled data, written once
    data.py      which set trains and which one judges        files.py     writing things once
    job.py       what all runs share                          model.py     the network
    run.py       one run: a recipe and a seed                 progress.py  what the user sees meanwhile
    table.py     the comparison                           compare.py   all runs, one after the other

torch is imported when a run begins, not before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from .options import OptionError, Options

__all__ = ["main"]

#: The exit code after Ctrl-C.
INTERRUPTED = 130


def main(options: Mapping[str, Any] | None = None, out: TextIO | None = None) -> int:
    """Runs the comparison that ``options`` describes and returns an exit code.

    ``options`` holds the command line's options by name (``compare``, ``epochs``, ``batch_size``, …; ``None`` means the
    default). Progress and the table go to ``out`` (standard output), complaints to standard error.

    Returns 0 when every run finished, 1 when one failed, 2 when an option cannot be honoured, 130 after Ctrl-C (the
    table then shows the runs that did finish).
    """
    try:
        chosen = Options.from_mapping(options or {})
        # Here and not at the head: it imports torch.
        from .compare import compare

        code, complaint = compare(chosen, out or sys.stdout)
        return code if complaint is None else _complain(complaint, code)
    except OptionError as error:
        return _complain(str(error), 2)
    except ImportError as error:
        needed = "the demonstration job needs PyTorch and scikit-learn: pip install torch scikit-learn"
        return _complain(f"{error}; {needed}", 1)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough (`| head`): that is no failure. Python flushes standard output once
        # more on its way out; let that go nowhere instead of failing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(text: str, code: int) -> int:
    print(f"lossfeed train: {text}", file=sys.stderr)
    return code

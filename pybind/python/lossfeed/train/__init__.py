"""The demonstration job behind ``lossfeed train``: the same small training, fed in several ways, side by side.

    options.py   what can be asked for, checked first         digits.py    the bundled data, written once
    data.py      which set trains and which one judges        files.py     writing things once
    job.py       what all runs share                          model.py     the network
    run.py       one run: a recipe and a seed                 progress.py  what the user sees meanwhile
    table.py     the comparison

torch is imported when a run begins, not before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

__all__ = ["main"]

_INTERRUPTED = 130


def main(options: Mapping[str, Any] | None = None, out: TextIO | None = None) -> int:
    """Runs the comparison that ``options`` describes and returns an exit code.

    ``options`` holds the command line's options by name (``compare``, ``epochs``, ``batch_size``, …; ``None`` means the
    default). Progress and the table go to ``out`` (standard output), complaints to standard error.

    Returns 0 when every run finished, 1 when one failed, 2 when an option cannot be honoured, 130 after Ctrl-C (the
    table then shows the runs that did finish).
    """
    from .options import OptionError, Options

    try:
        chosen = Options.from_mapping(options or {})
        return _compare(chosen, out or sys.stdout)
    except OptionError as error:
        return _complain(str(error), 2)
    except ImportError as error:
        return _complain(f"{error}; the demonstration job needs PyTorch and scikit-learn: pip install torch scikit-learn", 1)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough (`| head`): that is no failure. Python flushes standard output once more
        # on its way out; let that go nowhere instead of failing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(text: str, code: int) -> int:
    print(f"lossfeed train: {text}", file=sys.stderr)
    return code


def _compare(options: Any, out: TextIO) -> int:
    import lossfeed as lf

    from . import data, job, progress, run

    reporter = progress.choose(out, options.json, options.quiet)
    seeds = range(options.seed, options.seed + options.seeds)
    planned = len(options.compare) * len(seeds)
    runs: list[run.RunResult] = []
    try:
        splits = data.find(options.data, options.work_dir)
        if splits.note:
            reporter.note(splits.note)
        shared = job.prepare(options, splits)
        reporter.job(shared.describe(), [r.label for r in options.compare], list(seeds))
        # Seeds outside, recipes inside: an interrupted comparison still holds complete pairs.
        for seed in seeds:
            for recipe in options.compare:
                on_epoch = lambda e, recipe=recipe, seed=seed: reporter.epoch(recipe.label, seed, shared.epochs, e)  # noqa: E731
                runs.append(run.train(shared, recipe, seed, reporter.progress, on_epoch))
                reporter.run(runs[-1])
    except KeyboardInterrupt:
        reporter.finish(runs, planned)
        return _INTERRUPTED
    except BrokenPipeError:
        raise
    except (lf.Error, OSError) as error:
        reporter.interrupted()
        if runs:
            reporter.finish(runs, planned)
        return _complain(str(error), 2 if isinstance(error, lf.SettingsError) else 1)
    reporter.finish(runs, planned)
    return 0

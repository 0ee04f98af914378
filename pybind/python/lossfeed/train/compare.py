"""All runs of a comparison, one after the other."""

from __future__ import annotations

from typing import TextIO

import lossfeed as lf

from . import data, job, progress, run
from .options import Options, Recipe

_INTERRUPTED = 130


def compare(options: Options, out: TextIO) -> tuple[int, str | None]:
    """Trains every recipe with every seed. Returns the exit code, and what to complain about, if anything."""
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

                def on_epoch(e: run.EpochResult, recipe: Recipe = recipe, seed: int = seed) -> None:
                    reporter.epoch(recipe.label, seed, shared.epochs, e)

                runs.append(run.train(shared, recipe, seed, reporter.progress, on_epoch))
                reporter.run(runs[-1])
    except KeyboardInterrupt:
        reporter.finish(runs, planned)
        return _INTERRUPTED, None
    except BrokenPipeError:
        raise
    except (lf.Error, OSError) as error:
        reporter.interrupted()
        if runs:
            reporter.finish(runs, planned)
        return 2 if isinstance(error, lf.SettingsError) else 1, str(error)
    reporter.finish(runs, planned)
    return 0, None

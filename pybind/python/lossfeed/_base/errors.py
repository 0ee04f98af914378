"""The exceptions of lossfeed.

Each derives from :class:`Error` and from the built-in that fits, so ``except ValueError`` and ``except lf.Error`` both
work. The message says what was wrong, with numbers, and what to do.
"""

import builtins as _builtins

__all__ = [
    "Error",
    "SettingsError",
    "KeywordError",
    "CounterError",
    "SourceError",
    "OutageError",
    "SampleError",
    "MemoryLimitError",
    "DeviceError",
    "UsageError",
    "TimeoutError",
    "InternalError",
    "ThreadWarning",
    "TrainingWarning",
    "ResumeWarning",
]


class Error(Exception):
    """Base of every exception that lossfeed raises on purpose."""


class SettingsError(Error, ValueError):
    """A setting or argument is wrong: change it."""


class KeywordError(SettingsError, TypeError):
    """An unknown keyword: the message names the one that was probably meant, or the call it belongs to."""


class CounterError(SettingsError, KeyError):
    """No counter has that name: the message names the one that was probably meant."""

    __str__ = Exception.__str__  # KeyError's would quote the message


class SourceError(Error, OSError):
    """The source could not be read: check the path or the network, then retry."""


class OutageError(SourceError):
    """A store did not serve for ``retry_timeout``: the data is not known to be bad, so ``on_error`` does not skip
    samples. Check the network and the store, then resume from the last checkpoint."""


class SampleError(Error, ValueError):
    """A sample is bad (corrupt, ragged, wrong label): repair the data, or set ``on_error``."""


class MemoryLimitError(Error, MemoryError):
    """Not enough memory under the configured limits: raise the limit or hold fewer batches."""


class DeviceError(Error, RuntimeError):
    """The device or its driver refused; ``lossfeed doctor`` tells more."""


class UsageError(Error, RuntimeError):
    """The call is not allowed now (closed loader, scores for an unknown batch, a forked child)."""


class TimeoutError(Error, _builtins.TimeoutError):
    """A batch took longer than the loader's ``timeout``."""


class InternalError(Error, RuntimeError):
    """An invariant of the engine broke: please report it."""


class ThreadWarning(RuntimeWarning):
    """A thread hangs in a source and was abandoned."""


class TrainingWarning(UserWarning):
    """The training loop does not use what the loader provides: it records no scores, or ignores weights."""


class ResumeWarning(UserWarning):
    """Part of a saved state could not be restored: the message says what, and why."""

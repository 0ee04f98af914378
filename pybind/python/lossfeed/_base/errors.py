"""The exceptions of lossfeed.

Each derives from :class:`Error` and from the built-in that fits, so ``except ValueError`` and ``except lf.Error`` both
work. The message says what was wrong, with numbers, and what to do.
"""

import builtins as _builtins

__all__ = [
    "Error",
    "SettingsError",
    "KeywordError",
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
    """A keyword that is not taken: the message names the one that was meant, or whose it is."""


class SourceError(Error, OSError):
    """The source could not be read: check the path or the network, then retry."""


class OutageError(SourceError):
    """A store did not serve for ``retry_timeout``: nothing is known to be wrong with the data, so ``on_error`` skips
    nothing for it. Check the network and the store, then go on from the last checkpoint."""


class SampleError(Error, ValueError):
    """A sample is bad (corrupt, ragged, wrong label): mend the data, or choose ``on_error``."""


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
    """A thread hangs in a source and was left behind."""


class TrainingWarning(UserWarning):
    """The loader was asked for something that the training loop does not use: scores that never come, weights that
    nobody reads."""


class ResumeWarning(UserWarning):
    """A run goes on without something that was saved: the message says what, and why."""

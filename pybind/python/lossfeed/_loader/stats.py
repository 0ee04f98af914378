"""Counters, reports and importances of a run."""

from __future__ import annotations

from typing import Any

from .._base.errors import CounterError
from .._base.html import table
from .._base.memory import to_numpy, to_torch
from .._base.spelling import nearest
from .._data.data import Data
from .._loss.scoring import Account
from .._native import counters
from . import summary
from .report import readable


class Code(float):
    """A code: a float for programs that record it, words for readers."""

    __slots__ = ("words",)
    words: str

    def __repr__(self) -> str:
        return f"{self:g} ({self.words})"

    # A format and a logger want the number.
    __str__ = float.__repr__


class Stats:
    """All counters (``_total``), gauges and ratios (0 to 1) of a loader. Read ``hit_ratio`` together with
    ``coverage_epoch``: repeating few samples hits very well."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def __call__(self) -> dict[str, float]:
        """Every number now, as one flat dict by name. Printed, a code has its words: ``workers_reason: 3 (fewer threads
        are enough)``."""
        flat = self._numbers()
        flat["scores_dropped_total"] = flat.get("scores_dropped_total", 0.0) + self._account.dropped_total
        for name, codes in _CODES.items():
            if words := codes.get(int(flat.get(name, 0.0))):
                flat[name] = made = Code(flat[name])
                made.words = words
        return flat

    def _numbers(self) -> dict[str, float]:
        return dict(self._account.engine().stats())

    @staticmethod
    def help(name: str | None = None) -> str:
        """What the number of that name means, as text to print; without a name, all of them.

        Raises:
            CounterError: no number has that name.
        """
        known = {number[0]: number for number in counters()}
        if name is None:
            return "\n\n".join(map(_explained, known.values()))
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else "print(loader.stats.help()) lists all"
            raise CounterError(f"stats() has no {name!r}: {hint}")
        return _explained(known[name])


#: Counter -> code -> words, of those that are codes.
_CODES = {name: dict(codes) for name, *_, codes in counters() if codes}


def _explained(number: tuple[str, bool, str, str, list[tuple[int, str]]]) -> str:
    name, grows, unit, text, codes = number
    first = f"{name} ({unit}{', only grows' if grows else ''}): {text}"
    return "\n".join([first, *(f"    {code}: {words}" for code, words in codes)])


class Statistics:
    """Counters, reports and importances of a :class:`lossfeed.Loader`."""

    _account: Account
    _data: Data
    _framework: str

    def importance(self) -> Any:
        """float32 ``(N,)``: the current importance of every sample; NaN where there is no score. A copy."""
        engine = self._account.engine()
        self._account.deliver()
        convert = to_torch if self._framework == "torch" else to_numpy
        return convert(engine.importance(), "float32", (len(self._data),))

    @property
    def stats(self) -> Stats:
        """``loader.stats()`` returns all counters now; ``loader.stats.help(name)`` explains one of them."""
        return Stats(self._account)

    def summary(self) -> str:
        """Text to print: the choices, yours and the automatic ones, with reasons. A loader that has delivered batches
        also says what came of them."""
        rows = summary.rows(self)
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def _repr_html_(self) -> str:
        return table("lossfeed.Loader", summary.rows(self))

    def epoch_report(self) -> dict[str, Any]:
        """Statistics of the current epoch so far, or of the last one. Takes some milliseconds for a million samples:
        call it at an epoch's end.

        Keys: ``epoch``, ``delivered`` (rows), ``distinct`` (different samples), ``weight_mean`` (1 on average),
        ``weight_max``, ``ess_fraction`` (effective sample size as a share of the rows), ``uses`` (``{"3-4": n}``: n
        samples came three or four times), ``most_used`` (``{id: times}``, a hundred of them: they show whether wrong
        labels are used most), ``score_ages`` (``{"1-2": n}``: n samples were scored between one and two epochs ago),
        ``unscored`` (samples), and for class labels ``classes`` (``{label: (share of rows, share of their weight)}``).
        """
        return readable(self._account.engine().epoch_report())

    def bad_samples(self) -> list[dict[str, Any]]:
        """The bad samples met so far: ``{"id", "name", "reason"}``, the first 10,000 of what ``bad_samples_total``
        counts."""
        return [{"id": i, "name": name, "reason": reason} for i, name, reason in self._account.engine().bad_samples()]

"""What a loader tells of the run so far."""

from __future__ import annotations

from typing import Any

from .._base.memory import to_numpy, to_torch
from .._data.data import Data
from .._loss.scoring import Account
from .report import readable


class Statistics:
    """Counters, reports and beliefs of a :class:`lossfeed.Loader`."""

    _account: Account
    _data: Data
    _framework: str

    def importance(self) -> Any:
        """float32 ``(N,)``: what is believed about every sample now; NaN where there is no score. A copy."""
        engine = self._account.engine()
        self._account.deliver()
        convert = to_torch if self._framework == "torch" else to_numpy
        return convert(engine.importance(), "float32", (len(self._data),))

    def stats(self) -> dict[str, float]:
        """All counters (``_total``), gauges and ratios (0 to 1) as one flat dict. Never look at ``hit_ratio`` without
        ``coverage_epoch`` beside it.

        ``wait_us_total`` is the time you waited for batches. Its parts say what the thread that brought the batch did
        meanwhile, and add up to it: ``wait_source_us_total`` (reading), ``wait_decode_us_total`` (and the transform, on
        the CPU), ``wait_slot_us_total`` (no free batch slot: you hold on to batches), ``wait_copy_us_total`` (rows into
        the batch), ``wait_decide_us_total`` (deciding what the cache keeps, or those who fold scores in;
        ``wait_score_us_total`` is its former name and goes with the next release) and ``wait_handover_us_total`` (what
        none of them explains: threads waking up).
        """
        engine = self._account.engine()
        flat = dict(engine.stats())
        flat["scores_dropped_total"] = flat.get("scores_dropped_total", 0.0) + self._account.dropped_total
        return flat

    def epoch_report(self) -> dict[str, Any]:
        """What the epoch under way has delivered so far, or the last one all in all. Takes a moment for each million of
        samples: for an epoch's end.

        Keys: ``epoch``, ``delivered`` (rows), ``distinct`` (different samples), ``weight_mean`` (1 but for chance),
        ``weight_max``, ``ess_fraction`` (effective sample size as a share of the rows), ``uses`` (``{"3-4": n}``: n
        samples came three or four times), ``most_used`` (``{id: times}``, a hundred of them: who they are tells
        whether wrong labels steer the run), ``score_ages`` (``{"1-2": n}``: n samples were scored between one and two
        epochs ago), ``unscored`` (samples), and for class labels ``classes`` (``{label: (share of rows, share of their
        weight)}``).
        """
        return readable(self._account.engine().epoch_report())

    def bad_samples(self) -> list[dict[str, Any]]:
        """The bad samples met so far: ``{"id", "name", "reason"}``, the first 10,000 of what ``bad_samples_total``
        counts."""
        return [{"id": i, "name": name, "reason": reason} for i, name, reason in self._account.engine().bad_samples()]

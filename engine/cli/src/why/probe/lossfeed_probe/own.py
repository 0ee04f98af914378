"""`lossfeed.Loader`, timed where the loop takes batches; the causes of its waits are its engine's counters."""

import time

from .loaders import rows
from .rank import PLACE, Source, here

_clock = time.perf_counter
#: Seconds between two readings of the counters.
_PERIOD = 0.5
#: A counter of the engine, and where it goes. Microseconds become seconds.
_COUNTERS = {
    "wait_us_total": "engine_wait", "wait_source_us_total": "wait_source", "wait_decode_us_total": "wait_decode",
    "wait_slot_us_total": "wait_slot", "wait_copy_us_total": "wait_copy", "wait_decide_us_total": "wait_decide",
    "wait_handover_us_total": "wait_handover", "filled_total": "filled", "work_us_total": "work",
    "processor_us_total": "processor", "workers": "workers", "cache_capacity_bytes": "cache_capacity",
    "cache_bytes": "cache_used", "requests_total": "requests", "hits_total": "hits", "fetched_samples_total": "fetched",
    "fetched_bytes_total": "fetched_bytes", "distinct_ever": "distinct", "samples_in_dataset": "dataset",
    "scores_total": "scores", "scores_late_total": "scores_late", "scores_dropped_total": "scores_dropped",
    "store_us_p50": "store_p50", "store_us_p99": "store_p99", "dataset_readers": "readers",
}  # fmt: skip


def change_passes(module):
    """For `lossfeed._loader.epoch_pass`."""
    _time(module.Pass, Source("lossfeed.Loader", torch=0), lambda batch: len(batch.ids), _read)


def change_stages(module):
    """For `lossfeed._loader.stage`: streams, which torch's loader reads in a thread of their own."""
    _time(module.StagedIterator, Source("a stream", torch=1), rows, None)


def _time(passes, kind, size, read):
    """Times `__next__` of a class of iterators, each a source of that kind. `read`: looks at its engine's counters."""
    take = passes.__next__

    def __next__(self):
        rank = here()
        if rank is None:
            return take(self)
        source = self.__dict__.get("_lossfeed_why")
        first = None
        if source is None:
            source = self.__dict__["_lossfeed_why"] = Source(kind.name, **kind.settings)
            source.read, first = 0.0, 0.0
            rank.begins()
        asked = rank.asked(source)
        try:
            batch = take(self)
        except BaseException:
            rank.over()
            if read:
                read(rank, self, source)
            raise
        rank.answered(source, asked, source, size(batch), first)
        if read and (rank.last - source.read > _PERIOD or source.batches == 20):
            read(rank, self, source)
        return batch

    __next__.__doc__ = take.__doc__
    passes.__next__ = __next__


def _read(rank, one, source):
    if rank.best is None or rank.best.settings.get("torch"):
        return
    source.read = _clock()
    try:
        counters = one._engine.stats()
    except Exception:
        return
    for name, value in counters:
        if name in _COUNTERS:
            rank.numbers[PLACE[_COUNTERS[name]]] = value / 1e6 if "_us_" in name else value
    rank.numbers[PLACE["stats"]] = 1
    # Reading them is no work of the training's.
    rank.last = _clock() if rank.last else 0.0

"""Who reads a Python dataset's items for a loader, and in how many processes."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from typing import Any

from .. import _native
from .._base import checks
from .._base.errors import SettingsError
from .._base.memory import require_torch, torch_loaded
from .._batch.usage import Reads
from .._data import open as _open, reopening
from .._data.adaptor import Adaptor, guarded
from .._data.data import Data
from .._data.pictured import Pictures
from .._data.process_pool import Processes, Start
from .._transform.image import ImageTransform
from . import keywords, ranks
from .options import Options
from .torch_workers import Items, TorchReading, collated

#: Most worker processes that "auto" starts.
_AUTO_MAX = 8

_log = logging.getLogger("lossfeed")


def find(asked: Options, framework: str, device: str) -> tuple[TorchReading, Data] | None:
    """The reading of a Python dataset by worker processes or the calling thread, and the numbers of its items for the
    engine. None where the engine reads samples itself: from files, arrays and lists, into a cache, into batch slots for a
    CUDA device, or by what only loader threads do."""
    dataset = reopening.python_dataset(asked.source)
    if dataset is None or framework != "torch" or _engine_reads(asked, dataset, device):
        return None
    count = _open.length(dataset)
    if count == 0:
        raise SettingsError(f"the dataset is empty: {type(dataset).__name__} has 0 items")
    name = f"dataset {type(dataset).__name__}"
    data = Data(_native.numbers_source(count, name, _open.classes_of(dataset)))
    ids = None
    if asked.ids is not None:
        ids = asked.ids.tolist() if hasattr(asked.ids, "tolist") else list(asked.ids)
        data = data.subset(ids)
    items = Items(dataset, ids, asked.collate_fn)
    return TorchReading(items, _processes(asked, dataset, len(data)), _settings(asked, device)), data


def for_engine(asked: Options, data: Data, framework: str, pictures: Pictures | None) -> tuple[Data, Any, bool]:
    """`data` as the engine is to read it, its Python datasets in as many processes as are asked for; what collates their
    items; and whether the calling thread alone reads them."""
    collate_fn = asked.collate_fn
    if not data._adaptors:
        return data, collate_fn, False
    plain = collate_fn is None and asked.pad is None and not isinstance(asked.transform, ImageTransform)
    if plain and framework == "torch" and reopening.as_given(data):
        structures = [adaptor.structure for adaptor in data._adaptors]
        leaves = [leaf for structure in structures for leaf in structure.leaves]
        if not all(of.like_torch for of in structures) and all(leaf.given != "image" for leaf in leaves):
            collate_fn = collated
    alone = [adaptor.dataset for adaptor in data._adaptors if isinstance(adaptor, Adaptor) and len(adaptor.turns)]
    count = (_processes(asked, alone[0], len(data)) or 0) if alone else 0
    torch = torch_loaded()
    seed = torch.initial_seed() if torch is not None else 0
    start = Start(asked.reading.multiprocessing_context, asked.reading.worker_init_fn, seed)
    structures = [adaptor.structure for adaptor in data._adaptors]
    items = collate_fn is not None and asked.pad is None and not isinstance(asked.transform, ImageTransform)
    whole = items and not all(of.comes_back for of in structures)
    data = reopening.reopened(data, count, whole, start, pictures)
    if items and data._structure is None:
        # Rows of a batch are no items: an int would come as a tensor.
        data = data._with(structures[0])
    return data, collate_fn, bool(alone) and not count


def end(reading: TorchReading | None, data: Data, opened: Data | None) -> None:
    """Ends the worker processes that a loader started, and none of a dataset that it was given."""
    if reading is not None:
        reading.end()
    given = opened._adaptors if opened is not None else []
    for adaptor in data._adaptors:
        if isinstance(adaptor, Processes) and adaptor not in given:
            adaptor.end()


def tell_threads(data: Data, threads: int) -> None:
    """What "auto" does where the engine's threads read."""
    words = "num_workers='auto': %d loader threads to begin with read %s, as many as the run needs later"
    _log.info(words, threads, data._native.describe())


def reads(reading: TorchReading | None, data: Data) -> Reads | None:
    """Who reads a Python dataset's items, for the word about a training that waits for them."""
    if reading is not None:
        return Reads(type(reading.items.dataset).__name__, reading.workers or 0)
    for adaptor in data._adaptors:
        return Reads(type(adaptor.dataset).__name__, adaptor.count if isinstance(adaptor, Processes) else 0)
    return None


def _engine_reads(asked: Options, dataset: Any, device: str) -> bool:
    if asked.cache.is_on or asked.transform is not None or asked.pad is not None:
        return True
    how = asked.reading
    if how.on_error != "raise" or how.max_slots is not None or how.read_ahead is not None:
        return True
    if asked.collate_fn is not None:
        return False
    # Threads read what bears it, and what is made of arrays in memory; rows go straight to a GPU's batch slots.
    return device != "cpu" or not guarded(dataset)


def _processes(asked: Options, dataset: Any, samples: int) -> int | None:
    """Worker processes; None if "auto" starts none."""
    found, _ = keywords.workers(asked.reading.num_workers, asked.reading.prefetch_factor)
    name = type(dataset).__name__
    if found is not None:
        return found
    if not guarded(dataset):
        _log.info("num_workers='auto': %s lies in memory, its batches are made in the calling thread", name)
        return None
    method = multiprocessing.get_start_method(allow_none=True)
    forks = method == "fork" if method is not None else sys.version_info < (3, 14)
    if asked.reading.multiprocessing_context is None and not forks:
        _log.info("num_workers='auto': items of %s are read in the calling thread, since processes are not started by "
                  "fork here; num_workers=4 reads them in 4 processes", name)  # fmt: skip
        return None
    processors = len(os.sched_getaffinity(0)) // ranks.on_this_machine()
    most = -(-samples // max(1, asked.batch_size if isinstance(asked.batch_size, int) else 1))
    count = max(1, min(processors, _AUTO_MAX, most))
    _log.info("num_workers='auto': %d worker processes read the items of %s", count, name)
    return count


def _settings(asked: Options, device: str) -> dict[str, Any]:
    """Keywords for torch's DataLoader."""
    how = asked.reading
    auto = how.num_workers is None or isinstance(how.num_workers, str)
    return {
        "timeout": checks.seconds("timeout", how.timeout),
        "prefetch_factor": how.prefetch_factor,
        "persistent_workers": auto or how.persistent_workers,
        "multiprocessing_context": how.multiprocessing_context,
        "worker_init_fn": how.worker_init_fn,
        "pin_memory": device != "cpu" and require_torch("device=").cuda.is_available(),
    }

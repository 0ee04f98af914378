"""For Hugging Face's Accelerate, and for the Trainer of transformers, which is built on it. Needs accelerate."""

from __future__ import annotations

from itertools import repeat
from typing import Any, Iterator

from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from torch.utils.data import IterableDataset

from ._batch.batch import Batch
from ._batch.generic import D, Y
from ._loader.all_ranks_state import Together
from ._loader.loader import Loader


class Batches(Together[D, Y]):
    """What a loader delivers, for Accelerate: in place of ``accelerator.prepare(loader)``, which takes torch's
    DataLoader apart and leaves every other alone.

    Iterating it tells Accelerate which batch is an epoch's last, so that ``accumulate`` ends a group there. It is known
    by its number: where ``on_error="skip"`` leaves the whole last batch out, nobody is told.
    ``accelerator.register_for_checkpointing(batches)`` puts where all ranks stand into ``save_state``, and
    ``load_state`` brings it back: then nothing need be skipped. ``skip_first_batches(batches, n)`` counts from the
    epoch's start, and skips what such a state has left of them. Batches are on the loader's own device.
    """

    def __init__(self, loader: Loader[D, Y]) -> None:
        super().__init__(loader)
        loader._account.uses.wrapped = True
        #: What skip_first_batches makes a DataLoader of, which takes batches as they are.
        self.dataset: IterableDataset[Any] = _FromTheStart(self)
        self.batch_size: int | None = None
        self.prefetch_factor: int | None = None
        self.drop_last = False
        self.collate_fn = _as_it_is

    def __iter__(self) -> Iterator[Batch[D, Y]]:
        progress = _Progress()
        progress.begin()
        try:
            passing = iter(self.loader)
            for batch in passing:
                progress.end_of_dataloader = batch.number + 1 == len(passing)
                yield batch
        finally:
            progress.end()


class _Progress(DataLoaderStateMixin):
    """What Accelerate asks the loader it is in: whether this batch is the last."""

    def __init__(self) -> None:
        self.gradient_state = GradientState()
        #: No rank is padded with samples of others: gather_for_metrics must cut none off.
        self._drop_last = True


class _FromTheStart(IterableDataset[Any]):
    """Batches as skip_first_batches counts them: None for each that a restored state has behind it."""

    def __init__(self, batches: Batches[Any, Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch[Any, Any] | None]:
        begun = False
        for batch in self._batches:
            yield from repeat(None, 0 if begun else batch.number)
            begun = True
            yield batch


def _as_it_is(batch: Any) -> Any:
    return batch

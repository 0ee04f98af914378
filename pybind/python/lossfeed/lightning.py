"""For Lightning."""

from __future__ import annotations

from typing import Any

from ._batch.generic import D, Y
from ._loader.all_ranks_state import Together
from ._loader.sampler_view import Order


class Batches(Together[D, Y]):
    """What a loader delivers, for Lightning on several ranks: ``train_dataloader`` returns ``Batches(loader)``, and
    every checkpoint holds where all of them stand. Loaders for validation, test and prediction may be wrapped too.

    Lightning puts the `state_dict` of whatever loader it is given into its checkpoints, but only rank 0's. That of
    these batches is of all ranks. A :class:`lossfeed.Loader` may be returned as it is on one rank, and on several where
    rank 0's state is enough (see :meth:`lossfeed.Loader.load_state_dict`). Either needs no callback: Lightning saves
    the state, the loader takes it up with the first epoch where Lightning has kept it (as it does if an optimizer asks
    for ``trainer.estimated_stepping_batches``, and at an epoch's end), and Lightning tells :attr:`sampler` each epoch's
    number. A run that goes on in mid-epoch from a checkpoint without such a state is a :class:`lossfeed.UsageError`.
    """

    @property
    def sampler(self) -> Any:
        """The order of the loader, whose ``set_epoch`` Lightning calls."""
        return Order(self.loader)

    @property
    def batch_sampler(self) -> Any:
        """The loader's, where Lightning looks for shuffling and a batch size."""
        return self.loader.batch_sampler

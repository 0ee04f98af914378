"""For Lightning."""

from __future__ import annotations

from typing import Any

from ._generic import D, Y
from ._together import Together


class Batches(Together[D, Y]):
    """What a loader delivers, for Lightning on several ranks: ``train_dataloader`` returns ``Batches(loader)``, and
    every checkpoint holds where all of them stand.

    Lightning puts the `state_dict` of whatever loader it is given into its checkpoints, but only rank 0's. That of
    these batches is of all ranks. A :class:`lossfeed.Loader` may be returned as it is on one rank, and on several where
    rank 0's state is enough (see :meth:`lossfeed.Loader.load_state_dict`). Either needs no callback: Lightning saves
    and restores the state, and tells :attr:`sampler` each epoch's number.
    """

    @property
    def sampler(self) -> Any:
        """The loader's, whose ``set_epoch`` Lightning calls."""
        return self.loader.sampler

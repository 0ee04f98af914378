"""A loader whose state is that of all ranks: for trainers that have one rank write the checkpoint."""

from __future__ import annotations

from typing import Any, Iterator

from .._batch.batch import Batch
from .._batch.generic import D, Of, Y
from . import ranks
from .loader import Loader


class Together(Of[D, Y]):
    """What `loader` delivers on this rank, and where all ranks stand."""

    def __init__(self, loader: Loader[D, Y]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        """Batches an epoch and rank."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch[D, Y]]:
        return iter(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """As :meth:`Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """:meth:`Loader.state_dict` of every rank, through the default process group where there is one: then every
        rank must call it."""
        mine, group = self.loader.state_dict(), ranks.default_group()
        states = [mine]
        if group is not None:
            states *= group.get_world_size()
            group.all_gather_object(states, mine)
        return {"ranks": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state_dict`, or from :meth:`Loader.state_dict` of one rank: as
        :meth:`Loader.load_state_dict`, on any number of ranks."""
        self.loader.load_state_dict(state)

"""Who comes when, for code that looks at a loader's ``sampler`` and ``batch_sampler``."""

from __future__ import annotations

import sys
from itertools import chain
from typing import Any, Iterator

from .._base.errors import UsageError
from .lightning_fit import take_up


class Order:
    """``loader.sampler`` where the engine draws: it has the length and gives the ids that a sampler of torch's would.

    It is equal to what the loader was asked for, a name or a dict with options. Iterating it gives the ids of the epoch
    under way, or of the one that begins next if none is: nothing begins by it. An epoch that is still to be drawn by
    scores is shown as it would be drawn now. A seed that is still open is settled by it, as ``state_dict`` does.
    """

    def __init__(self, loader: Any) -> None:
        #: A :class:`lossfeed.Loader`.
        self._loader = loader

    @property
    def name(self) -> str:
        """The sampler's name; ``"weights"`` where ids are drawn by ``weights=``."""
        asked = self._loader._asked
        if asked.weights is not None:
            return "weights"
        named = asked.sampling.sampler
        return str(named["name"] if isinstance(named, dict) else "uniform" if named is None else named)

    def __len__(self) -> int:
        """Ids of an epoch on this rank, with those that ``drop_last`` leaves out."""
        settings, samples = self._loader._settings, len(self._loader._data)
        rank, ranks = int(settings["rank"]), int(settings["world_size"])
        if self._loader._asked.weights is not None:
            return -(-samples // ranks)
        return samples // ranks + (rank < samples % ranks)

    def __iter__(self) -> Iterator[int]:
        """The ids, one by one.

        Raises:
            UsageError: under a sampler that decides batch by batch who comes (``"echo"``, ``"replay"``).
        """
        return iter(self._loader._plan()[0])

    def set_epoch(self, epoch: int) -> None:
        """As :meth:`lossfeed.Loader.set_epoch`; a state that Lightning has kept is loaded before."""
        take_up(self._loader, again=True)
        self._loader.set_epoch(epoch)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Order):
            return self._loader is other._loader
        asked = self._loader._asked.sampling.sampler
        return other == self.name or (isinstance(asked, dict) and other == asked)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        in_order = ", in order" if self._loader._settings["sampler"].get("in_order") else ""
        return f"<lossfeed sampler {self.name!r}{in_order}: {len(self)} ids an epoch>"


class Cut:
    """``loader.batch_sampler`` where the engine cuts batches: as many as the loader has, each the list of its ids. What
    is said of :class:`Order` holds here too; a sampler of yours is asked for an epoch, as torch's batch sampler asks it."""

    def __init__(self, loader: Any) -> None:
        #: A :class:`lossfeed.Loader`.
        self._loader = loader

    @property
    def sampler(self) -> Any:
        """The loader's."""
        return self._loader.sampler

    @property
    def batch_size(self) -> int:
        """The loader's."""
        return int(self._loader._asked.batch_size)

    @property
    def drop_last(self) -> bool:
        """The loader's."""
        return bool(self._loader.drop_last)

    def __len__(self) -> int:
        """Batches an epoch and rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        """The ids, batch by batch.

        Raises:
            UsageError: as :class:`Order`. Also for Accelerate's ``skip_first_batches``, which would make a DataLoader of
                torch's of them: the run's scores, cache and position would know nothing of it.
        """
        if sys._getframe(1).f_globals.get("__name__") == "accelerate.data_loader":
            raise UsageError(
                "Accelerate would read these batches with its own DataLoader, without this loader's scores and "
                "position: pass skip_first_batches a lossfeed.accelerate.Batches(loader), or load a state"
            )
        ids, ends = self._loader._plan()
        return (ids[start:end].tolist() for start, end in zip(chain((0,), ends), ends))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cut) and self._loader is other._loader

    def __hash__(self) -> int:
        return id(self._loader)

    def __repr__(self) -> str:
        return f"<lossfeed batches of {self.batch_size}: {len(self)} an epoch>"

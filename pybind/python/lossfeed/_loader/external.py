"""Scores for batches that another loader reads."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Iterable, Iterator, TypeVar

from .._base import literals
from .._base.checks import whole
from .._base.errors import MemoryLimitError, SettingsError, UsageError
from .._base.memory import require_numpy
from .._base.process import MadeAgain
from .._batch.batch import Batch
from .._loss.arrays import score_ids
from .loader import Loader
from .stats import Stats

T = TypeVar("T")


class Scores(MadeAgain):
    """A batch sampler for other loaders, such as torch's ``DataLoader``, that draws by scores::

        scores = lf.Scores(dataset, 64, sampler="importance", seed=0)
        loader = DataLoader(dataset, batch_sampler=scores, num_workers=4)
        for epoch in range(10):
            scores.set_epoch(epoch)
            for batch, (x, y) in scores.beside(loader):
                loss = scores.cross_entropy(model(x), batch, target=y)

    It only draws ids and records scores; it neither reads nor caches samples. Iterate it in the process that scores, as
    torch does with its samplers.

    Args:
        samples: the dataset, or how many samples it has: ids are ``0 .. samples - 1``.
        batch_size, shuffle, sampler, drop_last, seed, rank, world_size, score, smoothing, job, stats: as for
            :class:`lossfeed.Loader`. Samplers that depend on a cache are refused.

    Raises:
        SettingsError: a setting is wrong; the message has its value and a remedy.
    """

    def __init__(
        self,
        samples: Any,
        batch_size: int = 1,
        *,
        shuffle: bool | None = None,
        sampler: literals.Sampler | dict[str, Any] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        score: literals.Score | None = None,
        smoothing: float | None = None,
        job: str | None = None,
        stats: bool = True,
    ) -> None:
        self._given: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "sampler": sampler,
            "drop_last": drop_last,
            "seed": seed,
            "rank": rank,
            "world_size": world_size,
            "score": score,
            "smoothing": smoothing,
            "job": job,
            "stats": stats,
        }
        numpy = require_numpy("lf.Scores")
        if isinstance(samples, (str, bytes)):
            raise SettingsError(f"samples={samples!r} must be the dataset, or an int: how many samples it has")
        count = whole("samples", len(samples) if hasattr(samples, "__len__") else samples, 1)
        if sampler is not None and not isinstance(sampler, (str, dict)):
            raise SettingsError(
                f"sampler={type(sampler).__name__} is your own order: give it to your loader, and score by ids with "
                "score_ids"
            )
        try:
            ids = numpy.arange(count)
        except MemoryError:
            raise MemoryLimitError(f"samples={count}: their ids, scores and orders do not fit into memory") from None
        self._loader = Loader((ids, ids), num_workers=0, **self._given)
        # Its batches are ids, and the loader that reads them is the trainer's.
        self._loader._account.uses.wrapped = True
        #: Batches that were drawn and have not come back.
        self._drawn: deque[Batch] = deque()
        self._pass: Iterator[Batch] | None = None

    def __len__(self) -> int:
        """Batches an epoch and rank."""
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        """Draws an epoch: the ids of its batches, one after the other. Ends an earlier pass."""
        self._drawn.clear()
        self._pass = iter(self._loader)
        for batch in self._pass:
            self._drawn.append(batch)
            yield batch.ids.tolist()
            # Not asked for its end: the epoch is over when its last batch was delivered, and not when it was drawn.
            if batch.number + 1 == len(self._loader):
                return

    def beside(self, loader: Iterable[T]) -> Iterator[tuple[Batch, T]]:
        """Iterates over `loader`'s deliveries, each with the batch drawn for it: ``batch.ids``, ``batch.weight``, and
        the credit for its scores. `loader` must deliver batches in the order in which they were drawn, as torch's does.

        Raises:
            UsageError: `loader` delivered a batch that was not drawn here.
        """
        if not hasattr(loader, "__iter__"):
            raise SettingsError(f"{type(loader).__name__} is not iterable: give the loader that these scores draw for")
        for theirs in loader:
            if not self._drawn:
                raise UsageError(
                    f"{type(loader).__name__} delivered a batch that these scores did not draw: make it with these "
                    "scores as batch_sampler=, and do not iterate it elsewhere meanwhile"
                )
            pair = self._drawn[0], theirs
            # Not by a call, behind which a signal's exception would find it neither here nor in the loop.
            del self._drawn[0]
            yield pair

    def set_epoch(self, epoch: int) -> None:
        """As :meth:`lossfeed.Loader.set_epoch`."""
        self._loader.set_epoch(epoch)

    def cross_entropy(self, logits: Any, batch: Batch, *, target: Any, **keywords: Any) -> Any:
        """As :meth:`lossfeed.Loader.cross_entropy`; `target` is what the other loader delivered."""
        return self._loader.cross_entropy(logits, batch, target=target, **keywords)

    def linear_cross_entropy(
        self, hidden: Any, linear_weight: Any, batch: Batch, *, target: Any, **keywords: Any
    ) -> Any:
        """As :meth:`lossfeed.Loader.linear_cross_entropy`; `target` is what the other loader delivered."""
        return self._loader.linear_cross_entropy(hidden, linear_weight, batch, target=target, **keywords)

    def loss(self, kind: literals.LossKind, prediction: Any, batch: Batch, *, target: Any, **keywords: Any) -> Any:
        """As :meth:`lossfeed.Loader.loss`."""
        return self._loader.loss(kind, prediction, batch, target=target, **keywords)

    def score_losses(self, losses: Any, batch: Batch, grad_norms: Any = None, *, entropies: Any = None) -> None:
        """As :meth:`lossfeed.Loader.score_losses`."""
        self._loader.score_losses(losses, batch, grad_norms, entropies=entropies)

    def weighted_mean(self, losses: Any, batch: Batch, grad_norms: Any = None, *, entropies: Any = None) -> Any:
        """As :meth:`lossfeed.Loader.weighted_mean`."""
        return self._loader.weighted_mean(losses, batch, grad_norms, entropies=entropies)

    def score_ids(self, ids: Any, losses: Any, grad_norms: Any = None) -> None:
        """Scores samples by their ids, without a drawn batch: for streams (``IterableDataset``) and orders of your own.

        Args:
            ids: ``(B,)`` integers, each below the number of samples. A repeated id is scored twice.
            losses, grad_norms: ``(B,)`` floats, as for :meth:`lossfeed.Loader.score_losses`. Waits for torch tensors.

        Raises:
            SettingsError: other shapes. SampleError: an id is out of range.
        """
        score_ids(self._loader._account, len(self._loader._data), ids, losses, grad_norms)

    def importance(self) -> Any:
        """As :meth:`lossfeed.Loader.importance`."""
        return self._loader.importance()

    @property
    def stats(self) -> Stats:
        """As :attr:`lossfeed.Loader.stats`."""
        return self._loader.stats

    def epoch_report(self) -> dict[str, Any]:
        """As :meth:`lossfeed.Loader.epoch_report`."""
        return self._loader.epoch_report()

    def state_dict(self) -> dict[str, Any]:
        """As :meth:`lossfeed.Loader.state_dict`: batches that a loader prefetched and :meth:`beside` has not delivered
        yet are delivered again."""
        return self._loader._state(len(self._drawn))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As :meth:`lossfeed.Loader.load_state_dict`."""
        self._drawn.clear()
        self._loader.load_state_dict(state)

    def _recipe(self) -> tuple[Any, tuple[Any, ...]]:
        if self._drawn:
            raise UsageError(
                f"{len(self._drawn)} drawn batches were not delivered yet: pickle or copy scores between epochs, or "
                "save "
                "state_dict()"
            )
        return partial(Scores, **self._given), (len(self._loader._data),)

    def close(self) -> None:
        """Gives the memory back."""
        self._drawn.clear()
        self._loader.close()

    def __repr__(self) -> str:
        return f"<lossfeed.Scores of {len(self._loader._data)} samples: {self._loader!r}>"

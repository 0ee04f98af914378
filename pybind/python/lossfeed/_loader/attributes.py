"""What a loader was asked for, under the names that torch's DataLoader has for it."""

from __future__ import annotations

from typing import Any

from .. import _native
from .._base.errors import SettingsError, UsageError
from .._base.memory import require_torch
from .epoch_pass import Line
from .options import Options
from .sampler_view import Cut, Order


class TorchAttributes:
    """Attributes of :class:`torch.utils.data.DataLoader`, for the code that reads them. They say what was asked for, and
    nothing changes by them."""

    _asked: Options
    #: "torch" or "numpy".
    _framework: str
    _engine: _native.Engine | None
    #: Worker processes, or loader threads when it was made.
    _workers: int
    _line: Line

    def _to_copy(self, under_way: bool) -> dict[str, Any]:
        """The keywords that another such loader is made with.

        Raises:
            UsageError: a copy would be something else, silently.
        """
        given = self._asked.given()
        for name in ("journal", "score_file"):
            if name in given:
                raise UsageError(
                    f"a loader with {name}={given[name]!r} cannot be pickled or copied, because the file belongs to "
                    "one run: make another loader there, with another file name"
                )
        if under_way:
            raise UsageError(
                "this loader is in the middle of an epoch: pickle or copy it between epochs, or save state_dict() and "
                "load it into a loader made there"
            )
        return given

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(getattr(TorchAttributes, name, None), property):
            raise SettingsError(f"{name} cannot change once the loader is made: make another with {name}={value!r}")
        super().__setattr__(name, value)

    @property
    def dataset(self) -> Any:
        """The dataset as it was given."""
        return self._asked.source

    @property
    def batch_size(self) -> int | None:
        """Samples a batch and rank; None with a batch sampler, as in torch."""
        return None if self._asked.batch_sampler is not None else self._asked.batch_size

    @property
    def drop_last(self) -> bool:
        """True if a short last batch is dropped."""
        return self._asked.drop_last

    @property
    def sampler(self) -> Any:
        """The given sampler; with a ``batch_sampler`` its own sampler, or None. Otherwise an object that equals the
        sampler's name (``"uniform"`` by default), has a length and ``set_epoch``, and iterates over the ids of the
        current or next epoch."""
        if self._asked.batch_sampler is not None:
            return getattr(self._asked.batch_sampler, "sampler", None)
        given = self._asked.sampling.sampler
        return given if given is not None and not isinstance(given, (str, dict)) else Order(self)

    @property
    def batch_sampler(self) -> Any:
        """The given batch sampler; otherwise an iterable of the batches of :attr:`sampler`, as lists of ids."""
        return Cut(self) if self._asked.batch_sampler is None else self._asked.batch_sampler

    @property
    def num_workers(self) -> int:
        """Worker processes or loader threads: the given number, or with "auto" the current one; with 0 the calling
        thread prepares each batch."""
        return self._workers if self._engine is None or self._line.reading is not None else self._engine.workers()

    @property
    def collate_fn(self) -> Any:
        """What was given. Else torch's ``default_collate`` if batches are tensors: equivalent to it, though it is not
        called. Of arrays None."""
        if self._asked.collate_fn is not None or self._framework != "torch":
            return self._asked.collate_fn
        return require_torch("collate_fn").utils.data.default_collate

    @property
    def pin_memory(self) -> bool:
        """The given value: with a CUDA device batches are always page-locked."""
        return self._asked.pin_memory

    @property
    def pin_memory_device(self) -> str:
        """As given; ``device`` says where batches go."""
        return self._asked.pin_memory_device

    @property
    def timeout(self) -> float:
        """Seconds to wait for a batch; 0 waits without limit."""
        return self._asked.reading.timeout

    @property
    def generator(self) -> Any:
        """The given generator, or None."""
        return self._asked.generator

    @property
    def prefetch_factor(self) -> int | None:
        """Batches that each worker prepares ahead; None without workers."""
        if self._workers == 0:
            return None
        return 2 if self._asked.reading.prefetch_factor is None else self._asked.reading.prefetch_factor

    @property
    def persistent_workers(self) -> bool:
        """The given value: caches and scores always live as long as the loader."""
        return self._asked.reading.persistent_workers

    @property
    def worker_init_fn(self) -> Any:
        """As given."""
        return self._asked.reading.worker_init_fn

    @property
    def multiprocessing_context(self) -> Any:
        """As given."""
        return self._asked.reading.multiprocessing_context

    @property
    def in_order(self) -> bool:
        """The given value: batches always come in order."""
        return self._asked.in_order

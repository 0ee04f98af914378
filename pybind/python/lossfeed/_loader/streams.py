"""Loaders of streams: an ``IterableDataset`` has no ids, so torch's own DataLoader reads it, and its batches are staged."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from html import escape
from typing import Any, Callable, Iterator

from .._base import checks
from .._base.errors import ResumeWarning, SettingsError, TrainingWarning, UsageError
from .._base.memory import is_stream, require_torch
from .._base.process import MadeAgain
from .._base.signals import Called
from . import keywords
from .attributes import TorchAttributes
from .options import Options
from .stage import Mover, Staged, StagedIterator

#: Keywords that torch's DataLoader honours for streams, too.
_TORCHS = {
    "batch_size", "shuffle", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "in_order",
}  # fmt: skip
#: Keywords that mean for streams what they always do.
_OURS = {"data", "dataset", "pin_memory_device", "device", "framework", "seed", "stats"}
#: Batches that are staged ahead on a device.
_DEPTH = 3
#: A class of loaders, and that of those which are of streams.
_KINDS: dict[type[Any], type[Any]] = {}


def takes(loader: Any, asked: Options) -> bool:
    """Whether `loader`, which is made with these options, is one of a stream: it is a :class:`Stream` from here on."""
    given = [data for data in (asked.data, asked.dataset) if data is not None]
    if len(given) != 1 or not is_stream(stream := given[0]):
        return False
    loader.__class__ = _of_streams(type(loader))
    loader._begin_stream(stream, asked)
    return True


class Stream(MadeAgain):
    """What a :class:`lossfeed.Loader` of a stream has in place of its own: batches are those of torch's DataLoader, on the
    loader's device."""

    _asked: Options
    #: torch's loader; None when it is closed.
    _torch: Any
    _device: str
    #: The last pass that a thread stages.
    _passing: Callable[[], StagedIterator[Any] | None]
    _until_ended: Callable[[], None]

    def _begin_stream(self, stream: Any, asked: Options) -> None:
        torch, kind, given = require_torch("a stream"), type(stream).__name__, asked.given()
        refused = given.keys() - _TORCHS - _OURS
        if given.get("shuffle") is True and not isinstance(stream, torch.utils.data.IterDataPipe):
            refused.add("shuffle")
        for name in sorted(refused):
            raise SettingsError(
                f"{name}={given[name]!r} is refused: {kind} is a stream, whose samples have no ids for shuffling, "
                "choosing, caching or scoring: remove it, or give a dataset with __len__ and __getitem__"
            )
        device = keywords.device(asked.device, False)
        keywords.pin_memory_device(asked.pin_memory_device, device)
        if keywords.framework(asked.framework, device) != "torch":
            raise SettingsError(f"framework={asked.framework!r} is refused: torch reads {kind}, a stream; leave it out")
        torchs = {name: given[name] for name in given.keys() & _TORCHS}
        torchs |= {name: Called(name, torchs[name]) for name in torchs.keys() & {"collate_fn", "worker_init_fn"} if callable(torchs[name])}
        # A copy of the stream in each worker process is asked for, and not found.
        torchs["num_workers"] = keywords.workers(asked.reading.num_workers, None)[0] or 0
        seed = keywords.seed(asked.seed, asked.generator)
        if seed is not None:
            torchs["generator"] = torch.Generator().manual_seed(seed)
        try:
            made = torch.utils.data.DataLoader(stream, **torchs)
        except (ValueError, TypeError, AssertionError) as cause:
            raise SettingsError(f"{kind}, a stream: {cause}") from cause
        if made.timeout and not made.num_workers:
            raise SettingsError(
                f"timeout={made.timeout:g} with num_workers=0: the calling thread reads the stream itself: remove it, "
                "or use num_workers=1 or more"
            )
        # It refuses a device that is not there.
        Staged(made, device, _DEPTH)
        self._asked, self._torch, self._device = asked, made, device
        self._passing = self._until_ended = lambda: None
        warnings.warn(
            f"{kind} is a stream: its samples have no ids, so it is read as it comes, as torch's DataLoader reads it, without "
            "cache, shuffling, scores and weights. Every rank and worker process reads all of it, unless it shares itself out "
            "(torch.utils.data.get_worker_info)",
            TrainingWarning,
            stacklevel=4,  # whoever makes the loader
        )

    def _loader(self) -> Any:
        if self._torch is None:
            raise UsageError("the loader is closed: make another")
        return self._torch

    def __len__(self) -> int:
        """Batches an epoch, as torch counts them; TypeError where the stream has no length."""
        return len(self._loader())

    def __iter__(self) -> Iterator[Any]:
        """One pass over the stream from its beginning, or from where :meth:`load_state_dict` put it."""
        loader = self._loader()
        if loader.persistent_workers:
            if (earlier := self._passing()) is not None:
                earlier.close()
            # One that was dropped ends by itself, and until then takes batches from the workers of both.
            self._until_ended()
        # Here, for it draws the workers' seed: from torch's generator as torch does, and beside nobody.
        batches = iter(loader)
        if self._device == "cpu":
            return batches  # type: ignore[no-any-return]
        if loader.num_workers == 0:
            # What the stream draws, too, comes in its turn with what the loop draws.
            return _moved(batches, Mover(self._device))
        staged = StagedIterator[Any](batches, self._device, _DEPTH)
        self._passing, self._until_ended = weakref.ref(staged), staged.until_ended()
        return staged

    def set_epoch(self, epoch: int) -> None:
        """Tells the stream, if it has a ``set_epoch`` (Hugging Face's shuffle by it). Each pass begins it anew."""
        tell = getattr(self._asked_stream(), "set_epoch", None)
        number = checks.whole("epoch", epoch, 0)
        if callable(tell):
            tell(number)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream says it is, if it has a ``state_dict`` and is read in this process. Else nobody knows, and
        whoever loads the state is told."""
        return {"stream": None if self._unknown() else self._asked_stream().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        if not isinstance(state, Mapping) or set(state) != {"stream"}:
            raise SettingsError("the state is not of a stream: load the state_dict() of a stream's loader")
        unknown = self._unknown()
        if unknown is None and state["stream"] is not None:
            self._asked_stream().load_state_dict(state["stream"])
            return
        why = unknown or "the state was saved where nobody knew how far it was read"
        warnings.warn(f"the stream begins anew: {why}", ResumeWarning, stacklevel=2)

    def _unknown(self) -> str | None:
        """Why nobody knows how far the stream was read; None where it says so."""
        stream, workers = self._asked_stream(), self._loader().num_workers
        if not all(callable(getattr(stream, name, None)) for name in ("state_dict", "load_state_dict")):
            return f"{type(stream).__name__} has no state_dict and load_state_dict"
        if workers:
            return (
                f"num_workers={workers} worker processes each read a copy of {type(stream).__name__}, and this process does not "
                "know how far; use num_workers=0, or torchdata's StatefulDataLoader"
            )
        return None

    def _asked_stream(self) -> Any:
        return self._asked.source

    def close(self, timeout: float | None = 10.0) -> None:
        """Ends the pass under way and its worker processes."""
        if (passing := self._passing()) is not None:
            passing.close()
        self._torch = None

    def __repr__(self) -> str:
        made, kind = self._torch, type(self._asked_stream()).__name__
        rest = "closed" if made is None else f"batches of {made.batch_size}, {made.num_workers} worker processes, {self._device}"
        return f"<lossfeed.Loader of a stream, {kind}: {rest}>"

    def summary(self) -> str:
        """Its repr: nothing is chosen or counted for a stream."""
        return repr(self)

    def _repr_html_(self) -> str:
        return escape(repr(self))

    def _recipe(self) -> tuple[Any, tuple[Any, ...]]:
        return _again, (type(self).__bases__[0], TorchAttributes._to_copy(self, False))  # type: ignore[arg-type]


def _moved(batches: Iterator[Any], mover: Mover) -> Iterator[Any]:
    """Batches on a device, moved when they are asked for."""
    while True:
        mover.refuse_in_a_capture()
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield mover.receive(mover.send(batch))


def _again(kind: type[Any], keywords: dict[str, Any]) -> Any:
    return kind(**keywords)


def _of_streams(kind: type[Any]) -> type[Any]:
    """The class of the loaders of `kind` that are of streams. What needs ids is refused by name."""
    if kind in _KINDS:
        return _KINDS[kind]
    members = {name: value for name, value in vars(Stream).items() if callable(value)}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if base.__module__.partition(".")[0] == "lossfeed" and not name.startswith("_") and name not in members:
                members[name] = _asked(name) if base is TorchAttributes else _refused(name, value)
    # Not derived from Stream: an object's class can be replaced by one that is laid out as it.
    _KINDS[kind] = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__doc__": kind.__doc__, **members})
    return _KINDS[kind]


def _asked(name: str) -> property:
    def asked(self: Any) -> Any:
        value = getattr(self._loader(), name)
        return value.function if isinstance(value, Called) else value

    return property(asked)


def _refused(name: str, value: Any) -> Any:
    what = f"{name}: this loader is of a stream, whose samples have no ids; "

    def call(self: Any, *_: Any, **__: Any) -> Any:
        raise UsageError(f"{what}take the loss from torch, and score batches that bring ids by lossfeed.Scores(…).score_ids")

    def read(self: Any) -> Any:
        raise AttributeError(f"{what}loader.dataset is the stream")

    return property(read) if isinstance(value, property) else call

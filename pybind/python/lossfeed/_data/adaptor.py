"""Items of a Python dataset as bytes."""

from __future__ import annotations

import functools
import threading
from typing import Any

from .. import _native
from .._base.errors import SampleError
from .._base.memory import require_numpy, torch_loaded
from .._base.signals import of_signal
from . import generators, reader_threads
from .resize import Resize
from .pictured import Pictured, Pictures
from .structure import WHOLE, Structure

#: How long one call goes on with further items. A pass that is over ends between two calls.
RUN_S = 0.02


class Adaptor:
    """Calls a map-style dataset and turns its items into bytes.

    The first item says what all are made of; an item that is made otherwise is a bad sample, told with both. `whole` items
    may be anything: they are pickled. Of `pictures` the image travels encoded.
    """

    def __init__(
        self,
        dataset: Any,
        mode: str,
        resize: Resize | None,
        thread_safe: bool | None = None,
        varying: bool = False,
        target: str | None = None,
        whole: bool = False,
        pictures: Pictures | None = None,
        structure: Structure | None = None,
    ) -> None:
        self.dataset = dataset
        #: (seed, epoch) of what items draw at random, which then depends on their ids alone; None: from the process's
        #: generators as they are.
        self.seeded: tuple[int, int] | None = None
        self._drew = [False]
        self.batched = callable(getattr(dataset, "__getitems__", None))
        parts = [] if thread_safe else guarded(dataset) + ([dataset] if thread_safe is False else [])
        self.turns = _native.Turns([id(part) for part in parts])
        self.readers = reader_threads.Readers()
        #: Thread -> the item it is reading.
        self.reading: dict[int, int] = {}
        reader_threads.watch(self)
        image = functools.partial(_pixels, mode=mode, resize=resize)
        if structure is None:
            with generators.kept():
                first = WHOLE if whole else self.turns.call(self._first)
            if pictures is None:
                structure = Structure(first, varying=varying, target=target, image=image)
            else:
                structure = Pictured(first, pictures, target, image)
        #: What samples are made of; `structure` if another process has found it.
        self.structure = structure.here(image)

    def _first(self) -> Any:
        try:
            return self.dataset[0]
        except Exception as cause:
            if of_signal(cause):
                raise
            raise SampleError(
                f"dataset item 0 raised {type(cause).__name__} while its structure was read: item 0 defines the "
                "structure of all items, so it must be readable when the dataset is opened or a loader is made"
            ) from cause

    def __call__(self, ids: list[int]) -> _native.Rows:
        """The first of `ids`, one at least: the bytes of each item, or what reading it raised.

        ``__getitems__`` gets them all in one call. ``__getitem__`` is called until some time has passed: a slow one
        once.
        """
        me, reading, dataset = threading.get_ident(), self.reading, self.dataset
        try:
            reading[me] = ids[0]
            items = self._batch(ids) if self.batched else None
            rows, add = self.structure.rows(len(ids), RUN_S)
            if items is not None:
                for item, i in zip(items, ids, strict=True):
                    if add(item) is None:
                        rows.put(self._bytes(item, i))
                return rows
            for i in ids:
                reading[me] = i
                more: bool | None
                try:
                    if self.seeded is not None:
                        generators.seed_all(generators.mixed(*self.seeded, i))
                    item = dataset[i]
                except BaseException as error:
                    more = rows.put(_raised(error))
                else:
                    # Copied before the next call: a dataset may fill the same array again.
                    more = add(item)
                    if more is None:
                        more = rows.put(self._bytes(item, i))
                if not more:
                    break
            return rows
        finally:
            reading.pop(me, None)

    def _batch(self, ids: list[int]) -> list[Any] | None:
        """All items in one call, or None if that fails: item by item the bad one is found by name."""
        read = self.dataset.__getitems__
        try:
            items = list(read(ids)) if self.seeded is None else generators.together(*self.seeded, ids, read, self._drew)
        except Exception as error:
            return [error] * len(ids) if of_signal(error) else None
        except BaseException as end:
            return [end] * len(ids)
        if len(items) != len(ids):
            short = SampleError(
                f"dataset.__getitems__ returned {len(items)} items for {len(ids)} indices: it must return one an "
                "index, in order"
            )
            return [short] * len(ids)
        return items

    def _bytes(self, item: Any, i: int) -> Any:
        if isinstance(item, BaseException):
            return _raised(item)
        try:
            return self.structure.pack(item, i)
        except BaseException as error:
            return _raised(error)


def guarded(dataset: Any) -> list[Any]:
    """What only one thread at a time may touch: `dataset` and the datasets it is made of, but for those that are
    known to bear it.

    The mark ``thread_safe = True`` speaks for everything behind it. Lists and torch's own wrappers touch nothing but
    what they wrap.
    """
    found: list[Any] = []
    waiting, seen = [dataset], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen or getattr(part, "thread_safe", False) is True or type(part) in (list, tuple):
            continue
        seen.add(id(part))
        if not _is_torchs_own(part):
            found.append(part)
        inner = getattr(part, "dataset", None)
        several = getattr(part, "datasets", None)
        several = list(several.values()) if isinstance(several, dict) else several
        candidates = [inner, *(several if isinstance(several, (list, tuple)) else ())]
        indexed = (c for c in candidates if callable(getattr(c, "__getitem__", None)))
        waiting += [c for c in indexed if not isinstance(c, (str, bytes, dict))]
    return found


def _is_torchs_own(dataset: Any) -> bool:
    """Whether it is one of torch's wrappers, which hold no handle of their own, or a TensorDataset."""
    torch = torch_loaded()
    if torch is None:
        return False
    known = ("Subset", "ConcatDataset", "StackDataset", "TensorDataset")
    return any(type(dataset) is getattr(torch.utils.data, name, None) for name in known)


def _is_fatal(item: Any) -> bool:
    """Whether it asks for the end of everything (KeyboardInterrupt, SystemExit, whatever a signal handler raises) and is no
    fault of an item's."""
    return isinstance(item, BaseException) and (not isinstance(item, Exception) or of_signal(item))


def _raised(error: BaseException) -> tuple[str, BaseException | None, bool]:
    """The words are made here: nobody else may run the exception's own code for them."""
    if isinstance(error, SampleError) and error.__cause__ is not None and of_signal(error.__cause__):
        # It fell into the making of our own message.
        error = error.__cause__
    try:
        words = str(error)
    except Exception as cause:
        if of_signal(cause):
            raise
        words = "(its words cannot be had)"
    # Our own message already says what is wrong with the item.
    if isinstance(error, SampleError):
        return words, None, False
    return f"{type(error).__name__}: {words}", error, _is_fatal(error)


def _pixels(image: Any, mode: str, resize: Resize | None) -> Any:
    """A PIL image as uint8 (height, width, channels)."""
    numpy = require_numpy("a dataset of images")
    if image.mode == "F" or image.mode.startswith("I"):
        # Pillow would cut them off at 255, and 0.5 would be 0.
        raise SampleError(
            f"an image of mode {image.mode}, whose pixels are not bytes: return numpy.asarray(image), or scale it to "
            "bytes"
        )
    if mode == "rgb" or (mode == "auto" and image.mode not in ("L", "RGB")):
        image = image.convert("RGB")
    elif mode == "gray":
        image = image.convert("L")
    if resize is not None:
        image = resize.of(image)
    pixels = numpy.asarray(image, dtype=numpy.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels

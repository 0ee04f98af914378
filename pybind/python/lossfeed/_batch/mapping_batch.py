"""Batches of samples that are dicts: mappings that can be written to, as torch's loader gives dicts."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any

from .._base.memory import compiling
from .batch import APART, FIELDS, Apart, Whole, arrays_in, shown_as_batch

#: The key of a target that is under none.
_NO_KEY = object()
#: The batch that this thread asked for its items last, if it was delivered no batch since.
_asked = threading.local()
#: Every batch of this kind that is there and was gone through, by its address.
_live: weakref.WeakValueDictionary[int, Keyed] = weakref.WeakValueDictionary()


class Keyed(Whole, MutableMapping[Any, Any]):
    """A batch of samples that are dicts: ``batch["image"]``, ``"image" in batch``, ``batch.items()``, ``model(**batch)``,
    ``batch.pop("labels")``, ``batch["mask"] = …``. Iterating it gives the keys; ``len(batch)`` stays the number of samples,
    and ``len(batch.keys())`` is that of the keys. ``batch.data`` is the dict. ``batch["data"]``, ``"target"``, ``"ids"`` and
    ``"weight"`` are there too, where no key of the samples has that name.

    ``batch.target`` stays when its key is taken out, and is what is written under its key later. ``batch | {…}``,
    ``batch.copy()`` and ``copy.copy(batch)`` are batches of the same samples, with another dict. So is
    ``type(batch)({…})``, by which trainers move batches, of tensors that are in a batch that was iterated, or of one of the
    same shape for each of ``batch.items()``, asked for just before. Of anything else it is a plain dict.
    """

    __slots__ = ("_key", "_like")

    _kind = "keyed"

    #: The key of the target.
    _key: Any
    #: The batch that it is a copy of.
    _like: Keyed

    def __new__(cls, data: Any = (), *rest: Any) -> Any:
        return super().__new__(cls) if rest else _made_of(dict(data))

    def __init__(self, data: Any = (), *rest: Any) -> None:
        if not rest:  # made by `_made_of`
            return
        super().__init__(data, *rest)
        self._key, target = _NO_KEY, self.target
        if target is not None:
            for key, value in data.items():
                if value is target:
                    self._key = key
                    break
        _asked.batch = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._walked())

    def __getitem__(self, key: Any) -> Any:
        """What is under a key of the samples; or a field by its name."""
        data = self._mapping()
        if key in data:
            return data[key]
        if key not in FIELDS:
            raise KeyError(f"{key!r} is no key of these samples: they have {list(data)}")
        return getattr(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mutable()[key] = value
        if key == self._key:
            self.target = value

    def __delitem__(self, key: Any) -> None:
        if key not in self._mapping():
            raise KeyError(f"{key!r} is no key of these samples: they have {list(self._mapping())}")
        del self._mutable()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._mapping()

    def _mapping(self) -> Mapping[Any, Any]:
        if not isinstance(self.data, Mapping):
            raise TypeError(f"batch.data is a {type(self.data).__name__} now, and no dict: use batch.data")
        return self.data

    def _walked(self) -> Mapping[Any, Any]:
        """The dict, for who goes through it: another may be made of what is in it."""
        if not compiling():
            _live[id(self)] = self
        return self._mapping()

    def _mutable(self) -> MutableMapping[Any, Any]:
        if not isinstance(self.data, MutableMapping):
            self.data = dict(self._mapping())
        return self.data

    def keys(self) -> KeysView[Any]:  # type: ignore[override]
        """The samples' keys; what ``**batch`` passes."""
        return self._walked().keys()

    def values(self) -> ValuesView[Any]:
        """What is under the samples' keys."""
        return self._walked().values()

    def items(self) -> ItemsView[Any, Any]:
        """Both."""
        if not compiling():
            _asked.batch = weakref.ref(self)
        return self._walked().items()

    def get(self, key: Any, default: Any = None) -> Any:
        """What is under a key of the samples, or `default`."""
        return self._mapping().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        """Takes a key out. Its value stays ``batch.target`` if it was."""
        if key not in self._mapping() and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def copy(self) -> Keyed:
        """A batch of the same samples whose dict is another."""
        made = object.__new__(type(self))
        for kind in type(self).__mro__:
            for name in getattr(kind, "__slots__", ()):
                slot = vars(kind)[name]
                if name != "__weakref__" and hasattr(slot, "__set__"):
                    try:
                        slot.__set__(made, slot.__get__(self))
                    except AttributeError:
                        continue  # one that another kind of batch has no use for
        made.data = copy.copy(self._mapping())
        # A compiled step finds the batch that was delivered as long as it is there.
        made._like = self
        _live[id(made)] = made
        return made

    __copy__ = copy

    def _has(self, arrays: set[int]) -> bool:
        """Whether one of these, by address, is in it."""
        return any(id(array) in arrays for array in arrays_in([self.data, self.target]))

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: Any) -> Any:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Keyed:
        self.update(other)
        return self

    # Batches are told apart as objects: a Mapping's comparison would be that of its tensors.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<lossfeed.Batch {self.number} of epoch {self.epoch}: {len(self)} samples of {list(self._mapping())}>"


class ApartKeyed(Keyed, Apart):
    """The same, out of a pickle."""

    __slots__ = ()


APART["keyed"] = ApartKeyed
shown_as_batch(Keyed, ApartKeyed)


def _made_of(data: dict[Any, Any]) -> Any:
    """The batch that `data` are made of, with `data`; `data` itself where it is none."""
    arrays = list(arrays_in(list(data.values())))
    given = {id(array) for array in arrays}
    found, _asked.batch = getattr(_asked, "batch", None), None
    batch = next((b for ref in _live.valuerefs() if (b := ref()) is not None and b._has(given)), None)
    if batch is None and found is not None and (last := found()) is not None and list(data) == list(last.data):
        # On another device, or in another dtype.
        theirs = list(arrays_in(list(last.data.values())))
        if arrays and [array.shape for array in arrays] == [array.shape for array in theirs]:
            batch = last
    if batch is None:
        return data
    made = batch.copy()
    made.data = data
    if made._key in data:
        made.target = data[made._key]
    return made

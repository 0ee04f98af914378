"""An opened dataset."""

from __future__ import annotations

import operator
from array import array
from typing import Any, Callable, Iterable

from .. import _native
from .._base import literals
from .._base.checks import choice, real, whole
from .._base.errors import SettingsError
from .._base.html import table
from .._base.memory import to_numpy, to_torch, torch_loaded
from .._base.process import MadeAgain
from .._base.sizes import parse_bytes
from .adaptor import Adaptor
from .process_pool import Processes
from .structure import Structure


class Data(MadeAgain):
    """An opened dataset: what :func:`lossfeed.open` returns and :class:`lossfeed.Loader` reads.

    Opening reads an index and at most one sample. Ids are ``0 .. len(data) - 1`` and stay the same as long as the data
    is unchanged.

    Pickles and copies hold its path, arrays or dataset and the keywords, and open it again when they are loaded. So a
    pickle contains ``store_options`` and URLs with their secrets. Keys from the environment or a profile are not
    pickled; they are read again.
    """

    __slots__ = ("_native", "_adaptors", "_made", "_structure")

    def __init__(
        self,
        native: _native.Source,
        adaptors: tuple[Adaptor | Processes, ...] = (),
        structure: Structure | None = None,
    ) -> None:
        self._native = native
        #: Of the Python datasets behind it.
        self._adaptors = adaptors
        #: What samples are made of; None for pairs of one array and one target.
        self._structure = structure
        #: What makes it again, and of what.
        self._made: tuple[Callable[..., Any], tuple[Any, ...]] | None = None

    def _made_by(self, how: Callable[..., Any], *of: Any) -> Data:
        """Itself, with its recipe."""
        self._made = how, of
        return self

    def _with(self, structure: Structure) -> Data:
        """The same, with what its pairs are made of."""
        made = Data(self._native, self._adaptors, structure)
        made._made = self._made
        return made

    def _recipe(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        assert self._made is not None, "whoever makes one says how"
        return self._made

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._native)

    @property
    def spec(self) -> Any:
        """``(dtype, shape)`` of one delivered sample: images are ``("uint8", (height, width, channels))``. For other
        structures than pairs, the same for each leaf: a varying length is None, and a leaf that is not an array is
        ``("object", ())``."""
        if self._structure is not None:
            return self._structure.spec()
        dtype, shape = self._native.spec
        return dtype, tuple(shape)

    @property
    def target_spec(self) -> Any:
        """``(dtype, shape)`` of one target: class labels are ``("int64", ())``. None if samples have none."""
        if self._structure is not None:
            return self._structure.pick(self._structure.spec())
        dtype, shape = self._native.target_spec
        return dtype, tuple(shape)

    @property
    def classes(self) -> list[str]:
        """Class names by label; empty when labels are plain numbers."""
        return self._native.classes

    @property
    def labels(self) -> Any:
        """int64 array of all labels where they are known without reading samples, else None. Needs NumPy."""
        labels = self._native.labels
        return None if labels is None else to_numpy(labels, "int64", (len(self),))

    def name(self, id: int) -> str:
        """Name of sample `id`: its path, or its row."""
        return self._native.name(whole("id", id, 0, len(self) - 1))

    def __getitem__(self, id: Any) -> Any:
        """One sample, read now: data and target as tensors if this process has imported torch, else as arrays. Where
        samples are no pairs, their tree, with numbers, lists and text as the dataset gives them.
        Negative ids count from the end. For looking at samples, and for torch's own DataLoader; a
        :class:`lossfeed.Loader` reads without it. ``data[10:20]`` and ``data[[3, -1]]`` are datasets of these samples, as
        :meth:`subset` makes them."""
        count = len(self)
        if isinstance(id, slice):
            return self.subset(range(*id.indices(count)))
        if isinstance(id, (list, range)) or getattr(id, "ndim", 0) == 1:
            return self.subset([self._place(one, count) for one in (id.tolist() if hasattr(id, "tolist") else id)])
        place = self._place(id, count)
        convert = to_numpy if torch_loaded() is None else to_torch
        data, target = self._native.sample(place)
        if self._structure is not None:
            return self._structure.read(data, target, convert)
        return convert(data, *self.spec), convert(target, *self.target_spec)

    def _place(self, id: Any, count: int) -> int:
        """An id from 0 on."""
        try:
            if isinstance(id, bool):
                raise TypeError
            place = operator.index(id)
        except TypeError:
            raise SettingsError(f"data[{id!r}]: give an int, a slice or a list of ints") from None
        if not -count <= place < count:
            raise IndexError(f"sample {place} of {count}")
        return place % count

    def subset(self, ids: Any) -> Data:
        """The samples `ids` (a sequence, an array or a tensor of ints; each once) as a dataset, in that order, with ids
        from 0."""
        values = ids.tolist() if hasattr(ids, "tolist") else ids
        if not hasattr(values, "__iter__") or isinstance(values, (str, bytes)):
            raise SettingsError(f"ids={values!r}: give a sequence, an array or a tensor of ints")
        chosen = [whole("id", id, 0, len(self) - 1) for id in values]
        made = Data(self._native.subset(chosen), self._adaptors, self._structure)
        return made._made_by(_subset, self, array("q", chosen))

    def split(self, part: float | int, seed: int = 0) -> tuple[Data, Data]:
        """Two disjoint datasets: a random share (a float below 1) or number (an int) of the samples, and the rest. The
        same `seed` gives the same choice on any machine."""
        if isinstance(part, float):
            first = round(real("part", part, 0.0, 1.0) * len(self))
        else:
            first = whole("part", part, 1, len(self), hint=" or a share as a float")
        chosen = self._native.split(first, whole("seed", seed, 0, 2**64 - 1))
        one, other = (Data(native, self._adaptors, self._structure) for native in chosen)
        return one._made_by(_part, self, first, seed, 0), other._made_by(_part, self, first, seed, 1)

    def __add__(self, other: Data) -> Data:
        """Both datasets as one; see :func:`lossfeed.concat`."""
        return concat([self, other]) if hasattr(other, "__getitem__") else NotImplemented

    def limit(self, bandwidth: int | str | None) -> None:
        """Limits the bytes read from the store per second, an int or text (``"100MB"``); None: no limit. It applies at
        once to all loaders of this data and replaces the ``bandwidth`` of :func:`open`. Requests in flight without a
        limit may finish within a second; from then on the limit is exact.

        Raises:
            SettingsError: a limit of 0, or data in memory, in local files or in several stores.
        """
        if not self._native.limit(parse_bandwidth(bandwidth)):
            raise SettingsError(
                f"bandwidth={bandwidth!r}: {self._native.describe()} is no single store: what lies in memory or in files "
                "of this machine has no limit (open the files with bandwidth= or latency= for one), and of several "
                "stores each has its own: limit those"
            )

    def cache_bytes(self, form: literals.CacheForm = "auto") -> int:
        """Host memory in bytes that caching every sample would take, in the form ``"encoded"`` or ``"decoded"``;
        ``"auto"``: the form that a loader would choose."""
        size = self._native.cache_bytes(self._cache_form(choice("form", form, "auto", "encoded", "decoded")))
        if size == 2**64 - 1:
            raise SettingsError(
                "the sizes of this dataset's samples are unknown until they are read: give cache= in bytes"
            )
        return size

    def _cache_form(self, asked: literals.CacheForm) -> literals.CacheForm:
        """``"encoded"`` or ``"decoded"``."""
        return self._native.better_form() if asked == "auto" else asked

    def _said(self) -> list[tuple[str, str]]:
        """Names and texts: place, number, kind of samples, classes."""
        made = str(self.spec)
        if self._structure is None:
            made = "{} {}".format(*self.spec) + (", channels last" if self._native.images else "")
        place, classes = self._native.describe(), self.classes
        # Folders and shards count their samples themselves.
        counted = any(said in place for said in (f"{len(self)} samples", f"{len(self)} rows", f"{len(self)} of the "))
        count = [] if counted else [("samples", str(len(self)))]
        names = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
        return [("data", place), *count, ("each sample", made), *([("classes", names)] if classes else [])]

    def __repr__(self) -> str:
        said = dict(self._said())
        count = f"{said['samples']} samples, " if "samples" in said else ""
        return f"<lossfeed.Data {said['data']}, {count}each {said['each sample']}>"

    def _repr_html_(self) -> str:
        return table("lossfeed.Data", self._said())


def concat(parts: Iterable[Data]) -> Data:
    """Several datasets as one; ids of each follow those of the one before. ``a + b`` is ``concat([a, b])``. A batch
    with samples of several is read from one after the other.

    Raises:
        SettingsError: their samples, targets or classes differ.
    """
    if isinstance(parts, Data) or not hasattr(parts, "__iter__"):
        raise SettingsError(f"a {type(parts).__name__} is not a list of datasets: lf.concat([a, b])")
    all_parts = list(parts)
    for number, part in enumerate(all_parts):
        if not isinstance(part, Data):
            raise SettingsError(
                f"part {number} is of type {type(part).__name__}: open it first, lf.concat([lf.open(part) for part in parts])"
            )
    if not all_parts:
        raise SettingsError("nothing to concatenate: give at least one dataset")
    first, *others = all_parts
    for number, part in enumerate(others, 1):
        mine, theirs = first._structure, part._structure
        if (mine is None) != (theirs is None) or (mine is not None and theirs is not None and not mine.alike(theirs)):
            raise SettingsError(f"part {number} has samples of {part.spec}, part 0 of {first.spec}: make them alike")
    adaptors = {id(adaptor): adaptor for part in all_parts for adaptor in part._adaptors}
    made = Data(first._native.concat([part._native for part in others]), tuple(adaptors.values()), first._structure)
    return made._made_by(concat, all_parts)


def _subset(data: Data, ids: Any) -> Data:
    return data.subset(ids)


def _part(data: Data, first: int, seed: int, which: int) -> Data:
    return data.split(first, seed)[which]


def parse_bandwidth(given: int | str | None) -> int | None:
    """``bandwidth=`` in bytes a second; None is no limit."""
    if given is None:
        return None
    size = parse_bytes("bandwidth", given)
    if size == 0:
        raise SettingsError(f"bandwidth={given!r} would stop all reads: remove it for no limit")
    return size

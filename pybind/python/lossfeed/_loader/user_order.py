"""Orders of the user's own: ids from a sampler, or batches of ids from a batch sampler. Their order is the plan."""

from __future__ import annotations

from array import array
from itertools import islice
from typing import Any, Iterable

from .. import _native
from .._base.checks import whole
from .._base.errors import SettingsError
from .._base.memory import is_array, is_tensor
from .options import Options

#: A sampler without a length that gives more ids than this, or than 64 times the dataset, is held to be endless.
_MANY = 1 << 20


class UserOrder:
    """A sampler or a batch sampler. An epoch is taken from it whole, when the epoch begins: nothing that happens in mid
    epoch changes its order, and a state of the loader can hold what is left of it."""

    def __init__(self, source: Any, batches: bool, batch_size: int, drop_last: bool, samples: int) -> None:
        self._source = source
        #: Whether it gives batches.
        self.batches = batches
        #: Samples a batch; the most of them where it gives batches.
        self.batch_size = batch_size
        self._drop_last = drop_last
        self._samples = samples

    @property
    def name(self) -> str:
        """The keyword it was given by, and its type."""
        return f"{'batch_sampler' if self.batches else 'sampler'}={type(self._source).__name__}"

    def __len__(self) -> int:
        """Batches an epoch, by the sampler's own length.

        Raises:
            TypeError: it has none.
        """
        count = len(self._source)
        if self.batches:
            return count
        return count // self.batch_size if self._drop_last else -(-count // self.batch_size)

    def ends(self, count: int) -> array[int]:
        """Where `count` ids are cut into batches, where the sampler does not cut them: the end of each."""
        whole, rest = divmod(count, self.batch_size)
        ends = array("q", range(self.batch_size, whole * self.batch_size + 1, self.batch_size))
        if rest and not self._drop_last:
            ends.append(count)
        return ends

    def set_epoch(self, epoch: int) -> None:
        """Tells the sampler, or that of a batch sampler, if it asks to be told (``DistributedSampler``)."""
        for source in (self._source, getattr(self._source, "sampler", None)):
            tell = getattr(source, "set_epoch", None)
            if callable(tell):
                tell(epoch)

    def drawn(self, engine: _native.Engine) -> tuple[Any, array[int] | None]:
        """As :meth:`draw`, for a loop, which a StopIteration would end as if the epoch were over."""
        try:
            return self.draw(engine)
        except StopIteration as end:
            raise RuntimeError(f"{self.name} raised StopIteration while its ids were read") from end

    def draw(self, engine: _native.Engine) -> tuple[Any, array[int] | None]:
        """The next epoch of `engine`: its ids, and where its batches end if it gives batches."""
        taken = self._take()
        if not self.batches:
            return self._ids(taken, "draw {} of {}"), None
        ids, ends = array("q"), array("q")
        for number, batch in enumerate(taken):
            if not (hasattr(batch, "__iter__") or hasattr(batch, "__getitem__")) or isinstance(batch, (str, bytes)):
                raise SettingsError(
                    f"batch {number} of {self.name} is {batch!r}, not a list of ids: pass a sampler of single ids as "
                    "sampler="
                )
            ids.extend(self._ids(_plain(batch), f"place {{}} of batch {number} of {{}}"))
            ends.append(len(ids))
        return ids, ends

    def _take(self) -> list[Any]:
        given = _plain(self._source)
        try:
            length = len(given)
        except (TypeError, NotImplementedError):
            length = None
        if length is not None:
            items = iter(given)
            taken = list(islice(items, length))
            # To its end, as torch goes: what a sampler does after its last id (RandomSampler draws once more) is done.
            next(items, None)
            return taken
        most = max(_MANY, 64 * self._samples)
        taken = list(islice(given, most + 1))
        if len(taken) > most:
            raise SettingsError(
                f"{self.name} has no length and gave more than {most} items for {self._samples} samples: an epoch's "
                "ids are read before it starts, so give it a __len__, which bounds them"
            )
        return taken

    def _ids(self, given: Iterable[Any], where: str) -> array[int]:
        found = list(given)
        try:
            if any(type(id) is bool for id in found):
                raise TypeError
            return array("q", found)
        except (TypeError, OverflowError):
            # Which one.
            for place, id in enumerate(found):
                _check(id, where.format(place, self.name))
            raise


class Weighted(UserOrder):
    """Ids with replacement, each in proportion to its weight, as torch's ``WeightedRandomSampler`` draws them: anew for
    every (seed, epoch), as many on every rank as make one epoch together."""

    def __init__(self, weights: Any, batch_size: int, drop_last: bool, samples: int, ranks: int) -> None:
        try:
            given = array("d", _plain(weights))
        except (TypeError, ValueError) as cause:
            raise SettingsError(f"weights={type(weights).__name__} must be numbers, one a sample: {cause}") from cause
        if len(given) != samples:
            raise SettingsError(f"weights= has {len(given)} numbers for {samples} samples: give one a sample")
        super().__init__(range(-(-samples // ranks)), False, batch_size, drop_last, samples)
        self._weights = given

    def draw(self, engine: _native.Engine) -> tuple[Any, None]:
        """The next epoch of `engine`."""
        return engine.draw_weighted(self._weights), None


def numbers(drawn: Any) -> memoryview:
    """int64 numbers in a buffer, as ints."""
    view = memoryview(drawn)
    # No view of nothing can be cast.
    return view.cast("B").cast("q") if view.nbytes else memoryview(array("q"))


def _plain(given: Any) -> Any:
    """Arrays and tensors as lists, whose items are ints."""
    return given.tolist() if is_array(given) or is_tensor(given) else given


def _check(id: Any, what: str) -> None:
    hint = " (a sampler of batches is a batch_sampler=)" if isinstance(id, (list, tuple)) else ""
    whole(what, id, -(2**63), 2**63 - 1, hint or ": ids count from 0")


def find(asked: Options, samples: int, ranks: int) -> UserOrder | None:
    """The order that ``sampler=``, ``batch_sampler=`` or ``weights=`` brings; None where the engine draws by scores or
    evenly."""
    sampler = asked.sampling.sampler
    if asked.weights is not None:
        for name, value in (("sampler", sampler), ("batch_sampler", asked.batch_sampler)):
            if value is not None:
                raise SettingsError(f"{name}= and weights= exclude each other, since both choose the samples: remove one")
        if asked.shuffle is False:
            raise SettingsError("shuffle=False and weights= exclude each other: weights draw at random")
        return Weighted(asked.weights, whole("batch_size", asked.batch_size, 1), asked.drop_last, samples, ranks)
    if asked.batch_sampler is not None:
        for name, given in (("sampler", sampler is not None), ("shuffle", asked.shuffle), ("drop_last", asked.drop_last)):
            if given:
                raise SettingsError(f"{name}= and batch_sampler= exclude each other, as in torch: leave one out")
        source = _iterable("batch_sampler", asked.batch_sampler)
        return UserOrder(source, True, _largest(source, asked.batch_size), False, samples)
    if sampler is None or isinstance(sampler, (str, dict)):
        return None
    if asked.shuffle:
        raise SettingsError(
            f"shuffle={asked.shuffle!r} and sampler={type(sampler).__name__} exclude each other, as in torch: "
            "the sampler's order is the order"
        )
    source = _iterable("sampler", sampler)
    return UserOrder(source, False, whole("batch_size", asked.batch_size, 1), asked.drop_last, samples)


def _iterable(name: str, value: Any) -> Any:
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
        raise SettingsError(
            f"{name}={value!r} is refused: give torch's samplers or anything that gives ids when it is iterated"
        )
    if hasattr(value, "__next__"):
        raise SettingsError(
            f"{name}={type(value).__name__} is refused: an iterator gives its ids only once, and each epoch needs "
            "them again; give a list, or an object with __iter__"
        )
    return value


def _largest(source: Any, asked: Any) -> int:
    """The most samples of a batch, for which memory is made."""
    most = whole("batch_size", asked, 1)
    if most > 1:
        return most
    said = getattr(source, "batch_size", None)
    if isinstance(said, int) and not isinstance(said, bool) and said > 0:
        return said
    if isinstance(source, (list, tuple)) and all(hasattr(batch, "__len__") for batch in source):
        return max((len(batch) for batch in source), default=1) or 1
    raise SettingsError(
        f"batch_sampler={type(source).__name__} has no batch_size, which is needed to allocate memory: pass "
        "batch_size= with the size of its largest batch"
    )

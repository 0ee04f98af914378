"""A delivered batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, Iterator

from .. import _native
from .._base.errors import SettingsError, UsageError
from .._base.html import table
from .._transform import mixing
from .generic import D, Of, Y

if TYPE_CHECKING:
    from .usage import Uses
    from .documents import Documents

#: A batch's fields by name.
FIELDS = ("data", "target", "ids", "weight")


class Batch(Of[D, Y]):
    """Samples and targets of one step, with the samples' ids and weights.

    On the CPU the four fields are views of one batch slot, without a copy: they stay valid as long as one of them, or a
    view of one, is referenced; then the slot returns to the loader. Many kept batches keep many slots: ``clone()`` what
    you need for long. On a CUDA device they are views of one tensor on the device, ready on the stream that was current
    when the batch was handed out.

    ``x, y = batch`` unpacks data and target; so do ``batch[0]`` and ``batch[1]``. ``batch["data"]``, ``"target"``,
    ``"ids"`` and ``"weight"`` are the fields by name, ``step(**batch)`` passes data and target. torch's pytrees know it.
    ``pickle`` copies the fields: such a batch can be trained on, but its scores are not recorded.
    """

    __slots__ = ("data", "target", "ids", "_weight", "_ticket", "_uses", "_mix", "_documents", "_place", "__weakref__")

    #: Which of the classes here it is, in a pickle.
    _kind = "pair"

    data: D
    """``(B,)`` + the sample's shape, in the source's dtype; images are uint8 ``(B, height, width, channels)``, or
    what the loader's ``transform`` makes of them."""
    target: Y
    """``(B,)`` + the target's shape, in the source's dtype; class labels are int64 ``(B,)``."""
    ids: Any
    """int64 ``(B,)``: the samples that are really in it, in row order."""

    def __init__(
        self,
        data: D,
        target: Y,
        ids: Any,
        weight: Any,
        ticket: _native.Ticket,
        uses: Uses,
        mix: mixing.Mix | None = None,
        documents: Documents | None = None,
    ) -> None:
        self.data = data
        self.target = target
        self.ids = ids
        self._weight = weight
        self._ticket = ticket
        self._uses = uses
        self._mix = mix
        self._documents = documents

    @property
    def weight(self) -> Any:
        """float32 ``(B,)``: multiplied with the per-sample losses it makes their mean an unbiased estimate of the
        mean over the dataset; 1 for samplers that draw uniformly, and for those that are biased by name."""
        self._uses.weight_read = True
        return self._weight

    @property
    def mix(self) -> mixing.Mix | None:
        """The mixing of its images, if the transform has ``mixup`` or ``cutmix``: ``lam``, float32 ``(B,)``, the own
        image's share, and ``target``, the partners'. ``batch.target`` stays the own image's target. None without
        mixing."""
        self._uses.mix_read = True
        return self._mix

    @property
    def documents(self) -> Documents | None:
        """Positions of each sample's tokens, if samples are packed (``pad="packed"``, :class:`lossfeed.Packed`), and
        inputs for attention: ``position_ids``, ``document_ids``, ``cu_seqlens``, ``max_seqlen``, and ``samples``. None
        of other batches."""
        return self._documents

    def soft_target(self, num_classes: int, label_smoothing: float = 0.0) -> Any:
        """float32 ``(B, num_classes)``: target probabilities of its images, mixed or not, for your own losses.
        ``loader.cross_entropy(logits, batch)`` needs none.

        Args:
            num_classes: number of classes. label_smoothing: share of each row that is spread evenly over all classes, 0
                to 1.

        Raises:
            SettingsError: targets are not one class index a sample. SampleError: a target is outside the classes; on a
                CUDA device its row is NaN instead.
        """
        return mixing.soft_target(self.target, self.mix, num_classes, label_smoothing)

    def __len__(self) -> int:
        """Number of samples; the last batch of an epoch and one with skipped samples are shorter than
        ``batch_size``."""
        return len(self._ticket)

    @property
    def epoch(self) -> int:
        """Its epoch."""
        return self._ticket.epoch

    @property
    def number(self) -> int:
        """Its position in the epoch, from 0."""
        return self._ticket.number

    def __iter__(self) -> Iterator[Any]:
        return iter((self.data, self.target))

    def __getitem__(self, key: Any) -> Any:
        """A field by its name, or data and target by position."""
        if isinstance(key, str):
            if key not in FIELDS:
                raise KeyError(f"{key!r} is not a field of a batch: use {', '.join(FIELDS[:-1])} or {FIELDS[-1]}")
            return getattr(self, key)
        return (self.data, self.target)[key]

    def keys(self) -> tuple[str, str]:
        """What ``**batch`` passes: ``"data"`` and ``"target"``. Ids and weight are attributes of the batch."""
        return ("data", "target")

    def to(self, device: Any, non_blocking: bool = False) -> Batch[D, Y]:
        """Returns itself, with data, target and weight moved to `device`; a ``collate_fn``'s result is moved if it can
        be. Ids stay. A loader with ``device="cuda"`` delivers there already, without this extra copy."""
        if not hasattr(self._weight, "to"):
            raise SettingsError(f"a batch of NumPy arrays cannot go to {device}: make the loader with framework='torch'")
        parts = self.data, self.target, self._weight, self._mix, self._documents
        self.data, self.target, self._weight, self._mix, self._documents = moved(parts, device, non_blocking)
        return self

    def __reduce__(self) -> Any:
        fields = own((self.data, self.target, self.ids, self._weight))
        place = len(self), self.epoch, self.number
        return _unpickled, (self._kind, *fields, *place, own(self._mix), own(self._documents))

    def copy_(self, other: Batch[Any, Any]) -> Batch[D, Y]:
        """Copies the samples of `other`, a batch of the same shapes, on the current stream without waiting.

        For CUDA graphs: capture a step on one batch, then ``static.copy_(batch)`` before each replay. A replay's scores
        are credited to the ids in ``static.ids`` at that time.
        """
        if not isinstance(other, Batch):
            raise SettingsError(f"{type(other).__name__} is not a batch: copy_ needs another batch")
        # First, for a pickled batch has none: nothing may change then.
        ticket = other._ticket
        pairs: list[tuple[Any, Any]] = []
        if (self._mix is None) != (other._mix is None):
            raise SettingsError("only one of the batches comes from a loader that mixes images: use two batches of one loader")
        if self._documents is not None or other._documents is not None:
            raise SettingsError(
                "packed batches have different layouts, and a CUDA graph needs equal ones: pad instead, pad=0"
            )
        for name in ("data", "target", "ids", "_weight", "_mix"):
            mine, theirs = list(arrays_in(getattr(self, name))), list(arrays_in(getattr(other, name)))
            shapes = [tuple(array.shape) for array in mine], [tuple(array.shape) for array in theirs]
            if shapes[0] != shapes[1]:
                said = [shape[0] if len(shape) == 1 else shape for shape in shapes]
                raise SettingsError(
                    f"{name.lstrip('_')} of shape {said[1]} does not fit this batch's {said[0]}: a CUDA graph needs "
                    "batches of one size: use drop_last=True"
                )
            pairs += zip(mine, theirs, strict=True)
        for to, of in pairs:
            to.copy_(of, non_blocking=True)
        # Who is in it now: a step that is not replayed credits by the ticket.
        self._ticket = ticket
        return self

    def pin_memory(self) -> Batch[D, Y]:
        """Returns itself: with a GPU, batches are page-locked already."""
        return self

    def __repr__(self) -> str:
        return f"<lossfeed.Batch {self.number} of epoch {self.epoch}: {len(self)} samples, data {_said(self.data)}>"

    def _repr_html_(self) -> str:
        parts = self.data if isinstance(self.data, Mapping) else {"data": self.data}
        fields = {**parts, "target": self.target, "ids": self.ids, "weight": self._weight}
        title = f"lossfeed.Batch {self.number} of epoch {self.epoch}: {len(self)} samples"
        return table(title, [(str(name), _said(value)) for name, value in fields.items()])


class Whole(Batch[Any, Any]):
    """A batch of samples that are no pairs: its data is made as they are.

    Of tuples and lists: ``a, b, c = batch`` and ``batch[0]``; of named ones, ``batch.name`` too. ``batch["data"]``,
    ``"target"``, ``"ids"`` and ``"weight"`` are there too. ``len(batch)`` stays the number of samples.
    """

    __slots__ = ()

    _kind = "whole"

    data: Any
    """The samples' own tree: dicts, tuples and lists with a tensor in the place of each array or number (``(B,)`` + its
    shape, in its dtype), and a list of B in the place of text and other objects."""
    target: Any
    """What of it is the target: see ``target`` of :func:`lossfeed.open`. None if the samples have none."""

    def __getattr__(self, name: str) -> Any:
        """A field of named tuples, which has no other meaning here."""
        if name not in FIELDS and name in getattr(self.data, "_fields", ()):
            return getattr(self.data, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data if isinstance(self.data, (tuple, list)) else (self.data,))

    def __getitem__(self, key: Any) -> Any:
        """A part of the samples, by position; or a field by its name."""
        if isinstance(key, str) and key in FIELDS:
            return getattr(self, key)
        return (self.data if isinstance(self.data, (tuple, list)) else (self.data,))[key]

    def keys(self) -> Any:
        """Refused: these samples have none."""
        raise TypeError(f"these samples are not dicts but {type(self.data).__name__}: use batch.data")

    def __contains__(self, key: object) -> bool:
        return any(key is part for part in self)

    def __repr__(self) -> str:
        kind = type(self.data).__name__
        return f"<lossfeed.Batch {self.number} of epoch {self.epoch}: {len(self)} samples of {kind}>"


class Apart(Batch[Any, Any]):
    """A batch that came out of a pickle: it belongs to no loader of this process."""

    __slots__ = ()

    def __init__(
        self,
        data: Any,
        target: Any,
        ids: Any,
        weight: Any,
        rows: int,
        epoch: int,
        number: int,
        mix: mixing.Mix | None = None,
        documents: Documents | None = None,
    ) -> None:
        self.data = data
        self.target = target
        self.ids = ids
        self._weight = weight
        self._mix = mix
        self._documents = documents
        self._place = rows, epoch, number

    @property
    def _ticket(self) -> Any:  # type: ignore[override]
        raise UsageError(
            "this batch was pickled, so its scores cannot be credited: score the batch that the loader delivered, in "
            "the loader's process"
        )

    def copy_(self, other: Batch[Any, Any]) -> Batch[Any, Any]:
        """Refused: a static batch must be one of the loader's.

        Raises:
            UsageError: always.
        """
        raise UsageError("copy_ does not work on a pickled batch: use a batch that the loader delivered")

    @property
    def weight(self) -> Any:
        """As in the batch that was pickled."""
        return self._weight

    @property
    def mix(self) -> mixing.Mix | None:
        """As in the batch that was pickled."""
        return self._mix

    def __len__(self) -> int:
        return self._place[0]

    @property
    def epoch(self) -> int:
        """The epoch it belonged to."""
        return self._place[1]

    @property
    def number(self) -> int:
        """Its position in that epoch, from 0."""
        return self._place[2]

    def __reduce__(self) -> Any:
        fields = self.data, self.target, self.ids, self._weight
        return _unpickled, (self._kind, *fields, *self._place, self._mix, self._documents)


class ApartWhole(Whole, Apart):
    """The same of samples that are no pairs."""

    __slots__ = ()


#: What a pickled batch of each kind becomes.
APART: dict[str, type[Apart]] = {"pair": Apart, "whole": ApartWhole}


def _unpickled(kind: str, *parts: Any) -> Apart:
    return APART[kind](*parts)


def shown_as_batch(*kinds: type) -> None:
    """Names `kinds` as users know them."""
    for kind in kinds:
        kind.__module__, kind.__name__, kind.__qualname__ = "lossfeed", "Batch", "Batch"


shown_as_batch(Batch, Whole, Apart, ApartWhole)


def mapped(change: Callable[[Any], Any], value: Any, able: str) -> Any:
    """`value` with all in it that has the method `able` changed, in dicts, lists and tuples of any depth."""
    if hasattr(value, able):
        return change(value)
    if isinstance(value, dict):
        return type(value)((k, mapped(change, v, able)) for k, v in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(change, v, able) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(change, v, able) for v in value)
    return value


def moved(parts: Any, device: Any, non_blocking: bool = False) -> Any:
    """`parts` with all in them that can be moved on `device`. A target that is a part of the data stays that part."""
    there: dict[int, Any] = {}

    def sent(value: Any) -> Any:
        if id(value) not in there:
            there[id(value)] = value.to(device, non_blocking=non_blocking)
        return there[id(value)]

    return mapped(sent, parts, "to")


def _said(data: Any) -> str:
    """Shape and dtype; of what a transform made of it its type."""
    return f"{tuple(data.shape)} {data.dtype}" if hasattr(data, "shape") else type(data).__name__


def own(value: Any) -> Any:
    """`value` in memory of its own. What is in it twice is in it twice again."""
    made: dict[int, Any] = {}

    def copied(array: Any) -> Any:
        if id(array) not in made:
            made[id(array)] = array.clone() if hasattr(array, "clone") else array.copy()
        return made[id(array)]

    return mapped(copied, value, "shape")


def arrays_in(value: Any) -> Iterator[Any]:
    """All arrays and tensors in it."""
    found: list[Any] = []
    mapped(lambda array: found.append(array), value, "shape")
    return iter(found)

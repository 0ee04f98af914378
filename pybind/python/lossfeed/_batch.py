"""A delivered batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

from . import _native
from ._errors import SettingsError, UsageError
from ._memory import to_numpy, to_torch

if TYPE_CHECKING:
    from ._advice import Uses

#: A batch's fields by name.
FIELDS = ("data", "target", "ids", "weight")


class Batch:
    """Samples, targets, and who they are.

    On the CPU the four fields are views of one batch slot, without a copy: they stay valid as long as any of them (or a
    view of one) lives, and the slot goes back to the loader when the last is gone, on whichever thread. Holding many
    batches therefore holds many slots; ``clone()`` what must stay long. On a CUDA device they are views of one tensor
    on the device, ready on the stream that was current when the batch was handed out.

    ``x, y = batch`` unpacks data and target; so do ``batch[0]`` and ``batch[1]``. ``batch["data"]``, ``"target"``,
    ``"ids"`` and ``"weight"`` are the fields by name, ``step(**batch)`` passes data and target. torch's pytrees know it.
    ``pickle`` copies the fields: such a batch can be trained on, and is credited with no score.
    """

    __slots__ = ("data", "target", "ids", "_weight", "_ticket", "_uses", "__weakref__")

    data: Any
    """``(B,)`` + the sample's shape, in the source's dtype; images are uint8 ``(B, height, width, channels)``, or
    what the loader's ``transform`` makes of them."""
    target: Any
    """``(B,)`` + the target's shape, in the source's dtype; class labels are int64 ``(B,)``."""
    ids: Any
    """int64 ``(B,)``: the samples that are really in it, in row order."""

    def __init__(self, data: Any, target: Any, ids: Any, weight: Any, ticket: _native.Ticket, uses: Uses) -> None:
        self.data = data
        self.target = target
        self.ids = ids
        self._weight = weight
        self._ticket = ticket
        self._uses = uses

    @property
    def weight(self) -> Any:
        """float32 ``(B,)``: multiplied with the per-sample losses it makes their mean an unbiased estimate of the
        mean over the dataset; 1 for samplers that draw uniformly, and for those that are biased by name."""
        self._uses.weight_read = True
        return self._weight

    def __len__(self) -> int:
        """Number of samples; the last batch of an epoch and one with skipped samples are shorter than
        ``batch_size``."""
        return len(self._ticket)

    @property
    def epoch(self) -> int:
        """The epoch it belongs to."""
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
                raise KeyError(f"{key!r} is no field of a batch: use {', '.join(FIELDS[:-1])} or {FIELDS[-1]}")
            return getattr(self, key)
        return (self.data, self.target)[key]

    def keys(self) -> tuple[str, str]:
        """What ``**batch`` passes: ``"data"`` and ``"target"``. Ids and weight travel beside them."""
        return ("data", "target")

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """Itself, with data, target and weight on `device`; what a ``collate_fn`` made is moved where it can be. Ids
        stay where they are. A loader with ``device="cuda"`` delivers there already, and sooner."""
        def moved(value: Any) -> Any:
            if hasattr(value, "to"):
                return value.to(device, non_blocking=non_blocking)
            if isinstance(value, dict):
                return type(value)((k, moved(v)) for k, v in value.items())
            if isinstance(value, tuple) and hasattr(value, "_fields"):
                return type(value)(*map(moved, value))
            return type(value)(map(moved, value)) if isinstance(value, (list, tuple)) else value

        if not hasattr(self._weight, "to"):
            raise SettingsError(f"a batch of NumPy arrays cannot go to {device}: make the loader with framework='torch'")
        self.data, self.target, self._weight = moved(self.data), moved(self.target), moved(self._weight)
        return self

    def __reduce__(self) -> Any:
        def own(value: Any) -> Any:
            copied = getattr(value, "clone", None) or getattr(value, "copy", None)
            return copied() if callable(copied) else value

        fields = tuple(own(value) for value in (self.data, self.target, self.ids, self._weight))
        return Apart, (*fields, len(self), self.epoch, self.number)

    def copy_(self, other: Batch) -> Batch:
        """Takes over the samples of `other`, a batch of the same shapes, on the current stream without a wait.

        For CUDA graphs: capture a step on one batch, then ``static.copy_(batch)`` before each replay. The scores of a
        replay are credited to the ids that lie in ``static.ids`` then.
        """
        # First, for a pickled batch has none: nothing may change then.
        ticket = other._ticket
        for name in ("data", "target", "ids", "_weight"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if tuple(mine.shape) != tuple(theirs.shape):
                raise SettingsError(
                    f"{name.lstrip('_')} of shape {tuple(theirs.shape)} does not fit this batch's "
                    f"{tuple(mine.shape)}: a graph needs batches of one size, drop_last=True"
                )
        for name in ("data", "target", "ids", "_weight"):
            getattr(self, name).copy_(getattr(other, name), non_blocking=True)
        # Who is in it now: a step that is not replayed credits by the ticket.
        self._ticket = ticket
        return self

    def pin_memory(self) -> Batch:
        """Itself: a slot is page-locked already where that helps."""
        return self

    def __repr__(self) -> str:
        return (
            f"<lossfeed.Batch {self.number} of epoch {self.epoch}: {len(self)} samples, data "
            f"{tuple(self.data.shape)} {self.data.dtype}>"
        )


class Apart(Batch):
    """A batch that came out of a pickle: it belongs to no loader of this process."""

    __slots__ = ("_place",)

    def __init__(self, data: Any, target: Any, ids: Any, weight: Any, rows: int, epoch: int, number: int) -> None:
        self.data = data
        self.target = target
        self.ids = ids
        self._weight = weight
        self._place = rows, epoch, number

    @property
    def _ticket(self) -> Any:  # type: ignore[override]
        raise UsageError(
            "this batch was pickled, and its scores have nowhere to go: score the batch that the loader delivered, in "
            "its own process"
        )

    def copy_(self, other: Batch) -> Batch:
        """Refused: a static batch must be one of the loader's.

        Raises:
            UsageError: always.
        """
        raise UsageError("this batch was pickled and takes over no other: make the static batch from one of the loader's")

    @property
    def weight(self) -> Any:
        """As in the batch that was pickled."""
        return self._weight

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
        return Apart, (self.data, self.target, self.ids, self._weight, *self._place)


class Views:
    """Makes the fields of a slot tensors or arrays."""

    def __init__(
        self, framework: str, data: tuple[str, list[int]], target: tuple[str, list[int]], channels_last: bool = False
    ) -> None:
        self._torch = framework == "torch"
        self._convert = to_torch if self._torch else to_numpy
        self._data = (data[0], tuple(data[1]))
        self._target = (target[0], tuple(target[1]))
        self._channels_last = channels_last
        if not self._torch and "bfloat16" in (data[0], target[0]):
            raise SettingsError("NumPy has no bfloat16: use framework='torch', or convert the data to float32")

    def kinds(self, rows: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(dtype, shape in memory) of data, target, ids and weight."""
        return (
            (self._data[0], (rows, *self._data[1])),
            (self._target[0], (rows, *self._target[1])),
            ("int64", (rows,)),
            ("float32", (rows,)),
        )

    def shown(self, data: Any) -> Any:
        """`data` in the shape that is promised: channels before height and width, wherever they lie in memory."""
        if not self._channels_last:
            return data
        return data.permute(0, 3, 1, 2) if self._torch else data.transpose(0, 3, 1, 2)

    def of(self, slot: _native.Slot) -> tuple[Any, Any, Any, Any]:
        """data, target, ids and weight, each keeping the slot alive."""
        fields = (self._convert(field, *kind) for field, kind in zip(slot.fields(), self.kinds(slot.rows), strict=True))
        data, target, ids, weight = fields
        return self.shown(data), target, ids, weight


def collated(fields: tuple[Any, Any, Any, Any], collate_fn: Any) -> tuple[Any, Any, Any, Any]:
    """The fields with data and target replaced by what the user's `collate_fn` makes of the rows."""
    data, target, ids, weight = fields
    result = collate_fn([(data[i], target[i]) for i in range(len(ids))])
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise SettingsError(
            f"collate_fn returned {type(result).__name__}: it must return a pair (data, target); ids and weight "
            "travel beside them"
        )
    return result[0], result[1], ids, weight

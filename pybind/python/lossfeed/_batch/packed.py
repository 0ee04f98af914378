"""Packing: samples of varying length put end to end, in one row or in rows of a fixed length. Here is the rule, and
where it puts what; :mod:`lossfeed._batch.documents` does it."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Sequence

from .._base import literals
from .._base.checks import choice, whole
from .._base.errors import SampleError, SettingsError
from .._base.spelling import Spelled

#: What packing can put beside the samples' own keys, and what each is: a field of `Documents`, in which dtype.
KEYS = {
    "position_ids": ("position_ids", "int64"),
    "document_ids": ("document_ids", "int64"),
    "seq_idx": ("document_ids", "int32"),
    "cu_seqlens": ("cu_seqlens", "int32"),
    "cu_seq_lens_q": ("cu_seqlens", "int32"),
    "cu_seq_lens_k": ("cu_seqlens", "int32"),
    "max_seqlen": ("max_seqlen", None),
    "max_length_q": ("max_seqlen", None),
    "max_length_k": ("max_seqlen", None),
}


@dataclass(frozen=True)
class Packed(Spelled):
    """How samples of varying length are packed: ``Loader(pad=Packed(…))``. ``pad="packed"`` is ``Packed()``.

    Args:
        length: tokens a row. None: one row as long as all samples of the batch.
        place: which row a sample gets. ``"best-fit"``: the longest first, each into the row with the least room that
            still holds it, the first of several. ``"in-order"``: the row of the sample before it, or else a new one.
        long: a sample longer than a row is refused (``"raise"``), cut into pieces of `length` (``"split"``), or cut off
            after `length` (``"truncate"``).
        fill: padding after a row's last sample: a number, or one by path. None: -100 in integer targets, 0 elsewhere.
        separator: target value at a document's first token: -100 for models that shift targets themselves, as
            transformers' models do. None leaves targets as they are.
        keys: keys added to samples that are dicts, for ``model(**batch)``: ``"position_ids"``, ``"document_ids"``,
            ``"cu_seqlens"`` and ``"max_seqlen"``, and by the names of transformers ``"seq_idx"``, ``"cu_seq_lens_q"``,
            ``"cu_seq_lens_k"``, ``"max_length_q"`` and ``"max_length_k"``. None: position ids, unless samples have
            some. All of it is in ``batch.documents`` anyway.

    Raises:
        SettingsError: a value is invalid.
    """

    length: int | None = None
    place: literals.Place = "best-fit"
    long: literals.Long = "raise"
    fill: float | Mapping[str, float] | None = None
    separator: int | None = None
    keys: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            whole("length", self.length, 1)
        choice("place", self.place, "best-fit", "in-order")
        choice("long", self.long, "raise", "split", "truncate")
        if self.separator is not None:
            whole("separator", self.separator, -(2**63))
        if self.length is None and (self.fill is not None or self.long != "raise" or self.place != "best-fit"):
            raise SettingsError(
                f"{self!r} has no rows to fill: fill=, long= and place= go with length=, the tokens of a row"
            )
        if isinstance(self.keys, str) or any(key not in KEYS for key in self.keys or ()):
            raise SettingsError(f"keys={self.keys!r}: give a list of {', '.join(KEYS)}")


class Run(NamedTuple):
    """Tokens that lie one after the other: a document, which is a sample or a piece of one, or filling."""

    #: The sample, by its place in the batch; -1 is filling.
    sample: int
    #: Where its first token lies in the sample.
    start: int
    tokens: int


def runs(lengths: Sequence[int], rule: Packed) -> tuple[int, int, list[Run]]:
    """Rows, tokens a row, and what lies in them, row by row. Samples without tokens are in none.

    Raises:
        SampleError: a sample is longer than a row, and the rule says nothing about it.
    """
    length = rule.length
    if length is None:
        return 1, sum(lengths), [Run(sample, 0, tokens) for sample, tokens in enumerate(lengths) if tokens]
    pieces: list[Run] = []
    for sample, tokens in enumerate(lengths):
        if tokens > length and rule.long == "raise":
            raise SampleError(
                f"row {sample} of a batch has {tokens} tokens, and lf.Packed(length={length}) makes rows of {length}: "
                "raise length, or use long='split' or long='truncate'"
            )
        last = min(tokens, length) if rule.long == "truncate" else tokens
        pieces += [Run(sample, start, min(length, last - start)) for start in range(0, last, length)]
    rows = _in_order(pieces, length) if rule.place == "in-order" else _best_fit(pieces, length)
    laid: list[Run] = []
    for row in rows:
        laid += row
        room = length - sum(run.tokens for run in row)
        if room:
            laid.append(Run(-1, 0, room))
    return len(rows), length, laid


def _in_order(pieces: list[Run], length: int) -> list[list[Run]]:
    rows: list[list[Run]] = [[]]
    room = length
    for piece in pieces:
        if piece.tokens > room:
            rows.append([])
            room = length
        rows[-1].append(piece)
        room -= piece.tokens
    return rows


def _best_fit(pieces: list[Run], length: int) -> list[list[Run]]:
    rows: list[list[Run]] = []
    #: (room, row) of rows that have some, sorted.
    open_rows: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda piece: -piece.tokens):
        at = bisect_left(open_rows, (piece.tokens, -1))
        if at == len(open_rows):
            room, row = length, len(rows)
            rows.append([])
        else:
            room, row = open_rows.pop(at)
        rows[row].append(piece)
        if room > piece.tokens:
            insort(open_rows, (room - piece.tokens, row))
    return rows or [[]]

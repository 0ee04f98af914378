"""Documents: which sample's tokens lie where in a packed batch. torch or NumPy comes in as `xp`."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from .._base.memory import is_tensor
from .packed import Run


class Documents(NamedTuple):
    """What a model and a loss need of a packed batch. A document is a sample, or a piece of one that was split; what a
    row is filled with is a document too, which is no sample's. Tensors or arrays, on the batch's device."""

    position_ids: Any
    """int64 ``(rows, length)``: a token's place in its document, from 0."""
    document_ids: Any
    """int64 ``(rows, length)``: a token's document, counted over the batch; tokens attend to their own."""
    samples: Any
    """int64 ``(rows, length)``: a token's sample, by its place in ``batch.ids``; -1 is filling."""
    cu_seqlens: Any
    """int32 ``(documents + 1,)``: where each document begins in all rows end to end, and the end of the last, as
    attention kernels for varying lengths take it."""
    max_seqlen: int
    """Tokens of the longest document."""

    def next_tokens(self, tokens: Any, ignore_index: int = -100) -> Any:
        """What each token is followed by in its document, `ignore_index` at a document's end and in filling: targets of
        a language model whose samples have tokens alone. `tokens`: signed integers ``(rows, length)``."""
        here, owners = self.document_ids.reshape(-1), self.samples.reshape(-1)
        found = (tokens.clone() if is_tensor(tokens) else tokens.copy()).reshape(-1)
        last = len(found) - 1
        found[:-1] = found[1:] if not is_tensor(found) else found[1:].clone()
        inside = owners >= 0
        if last >= 0:
            inside[:last] &= here[:last] == here[1:]
            inside[last] = False
        found[~inside] = ignore_index
        return found.reshape(tokens.shape)


def documents(xp: Any, laid: Sequence[Run], rows: int, length: int) -> Documents:
    """Those of `laid`, in the arrays of `xp`."""
    int64 = xp.int64
    tokens = xp.asarray([run.tokens for run in laid], dtype=int64)
    begins = xp.asarray([0] * (len(laid) + 1), dtype=int64)
    begins[1:] = tokens.cumsum(0)
    owner = xp.asarray([run.sample for run in laid], dtype=int64)
    repeat = xp.repeat_interleave if hasattr(xp, "repeat_interleave") else xp.repeat
    document = repeat(xp.arange(len(laid), dtype=int64), tokens)
    positions = xp.arange(rows * length, dtype=int64) - begins[document]
    ends = begins.to(xp.int32) if hasattr(begins, "to") else begins.astype(xp.int32)
    shape = rows, length
    return Documents(
        positions.reshape(shape),
        document.reshape(shape),
        owner[document].reshape(shape),
        ends,
        max((run.tokens for run in laid), default=0),
    )


def filled(xp: Any, flat: Any, begins: Sequence[int], laid: Sequence[Run], found: Documents, fill: Any) -> Any:
    """The tokens `flat` of a batch's samples, of which each begins at `begins`, laid out; `fill` is an array of one
    element."""
    begin = xp.asarray([0 if run.sample < 0 else begins[run.sample] + run.start for run in laid], dtype=xp.int64)
    rest = tuple(flat.shape[1:])
    shape = tuple(found.samples.shape)
    document, owners = found.document_ids.reshape(-1), found.samples.reshape(-1)
    out = xp.empty((document.shape[0], *rest), dtype=flat.dtype)
    out[...] = fill[0]
    taken = owners >= 0
    out[taken] = flat[(begin[document] + found.position_ids.reshape(-1))[taken]]
    return out.reshape((*shape, *rest))


def owned(documents: Documents, values: Any) -> bool:
    """Whether `values` are laid out as the packed samples are: a number a token."""
    shape = tuple(getattr(values, "shape", ()))
    return shape[:2] == tuple(documents.samples.shape)

"""Batches as torch's pytrees, for what maps a function over the tensors of one or several batches."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

from .._batch.array_batch import Plain
from .._batch.batch import Batch, Whole
from .._batch.mapping_batch import Keyed
from .._transform.mixing import Mix


class _Whose:
    """Ticket and uses of a batch. All are alike, so that several batches can be mapped together: what comes out is
    the first one's."""

    def __init__(self, batch: Batch) -> None:
        self.parts = type(batch), batch._ticket, batch._uses, batch._mix, batch._documents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Whose)

    def __hash__(self) -> int:
        return 0


def _flatten(batch: Batch) -> tuple[list[Any], Any]:
    mix = [] if batch._mix is None else [batch._mix.lam, batch._mix.target]
    return [batch.data, batch.target, batch.ids, batch._weight, *mix], _Whose(batch)


def _unflatten(fields: Any, whose: _Whose) -> Batch:
    kind, ticket, uses, mix, documents = whose.parts
    data, target, ids, weight, *mixed = fields
    if mix is not None:
        mix = Mix(lam=mixed[0], target=mixed[1], kind=mix.kind)
    return kind(data, target, ids, weight, ticket, uses, mix, documents)


for kind in (Batch, Whole, Keyed, Plain):
    _pytree.register_pytree_node(kind, _flatten, _unflatten, serialized_type_name=f"lossfeed.Batch.{kind._kind}")

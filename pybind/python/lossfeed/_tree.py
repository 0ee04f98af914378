"""Batches as torch's pytrees, for what maps a function over the tensors of one or several batches."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

from ._batch import Batch, Whole
from ._plain import Plain


class _Whose:
    """Ticket and uses of a batch. All are alike, so that several batches can be mapped together: what comes out is
    the first one's."""

    def __init__(self, batch: Batch) -> None:
        self.parts = type(batch), batch._ticket, batch._uses

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Whose)

    def __hash__(self) -> int:
        return 0


def _flatten(batch: Batch) -> tuple[list[Any], Any]:
    return [batch.data, batch.target, batch.ids, batch._weight], _Whose(batch)


def _unflatten(fields: Any, whose: _Whose) -> Batch:
    kind, ticket, uses = whose.parts
    data, target, ids, weight = fields
    return kind(data, target, ids, weight, ticket, uses)


for kind in (Batch, Whole, Plain):
    _pytree.register_pytree_node(kind, _flatten, _unflatten, serialized_type_name=f"lossfeed.{kind.__name__}")

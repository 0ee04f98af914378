"""Batches as torch's pytrees, for what maps a function over the tensors of a batch."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

from ._batch import Batch


def _flatten(batch: Batch) -> tuple[list[Any], Any]:
    return [batch.data, batch.target, batch.ids, batch._weight], (batch._ticket, batch._uses)


def _unflatten(fields: Any, whose: Any) -> Batch:
    return Batch(*fields, *whose)


_pytree.register_pytree_node(Batch, _flatten, _unflatten, serialized_type_name="lossfeed.Batch")

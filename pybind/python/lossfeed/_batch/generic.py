"""What a loader's batches are made of, for type checkers."""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeVar

    #: ``batch.data``, and ``batch.target``: tensors where nothing else is said.
    D = TypeVar("D", default=torch.Tensor)
    Y = TypeVar("Y", default=torch.Tensor)
else:
    from typing import TypeVar

    # A default needs Python 3.13, and is for type checkers alone.
    D, Y = TypeVar("D"), TypeVar("Y")


class Of(Generic[D, Y]):
    """``Loader[D]`` and ``Loader[D, Y]``: of batches with data of type D and targets of type Y."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> Any:
            # typing's own wants both. A class that is made of it has its bases from there.
            if cls is Of or item == (D, Y):
                return super().__class_getitem__(item)
            return GenericAlias(cls, item)

"""Scores out of compiled graphs: the way home as an operator, so that ``torch.compile`` sees no break."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from . import _cuda, _native
from ._errors import UsageError
from ._memory import span

if TYPE_CHECKING:
    from ._batch import Batch
    from ._loader import Loader

_loaders: weakref.WeakValueDictionary[int, Loader] = weakref.WeakValueDictionary()


class Graph:
    """What a compiled step sees of its loader: a number, and a tensor that the operator writes."""

    def __init__(self, loader: Loader) -> None:
        self.handle = id(loader)
        _loaders[self.handle] = loader
        #: Batches credited from compiled code. An operator that writes nothing would be optimised away.
        self.credited = torch.zeros(1, dtype=torch.int64)
        #: Batches in the consumer's hands, by where their ids lie.
        self._lent: weakref.WeakValueDictionary[int, Batch] = weakref.WeakValueDictionary()

    def lend(self, batch: Batch) -> None:
        """A batch is handed out."""
        self._lent[batch.ids.data_ptr()] = batch

    def batch(self, ids: torch.Tensor) -> Batch:
        """The batch in the consumer's hands whose ids these are."""
        found = self._lent.get(ids.data_ptr())
        if found is None:
            raise UsageError(
                "a compiled step scores ids that are those of no batch of this loader: pass it the batch as the loop variable gave it"
            )
        return found

    def credit(self, batch: Batch, floats: list[torch.Tensor]) -> None:
        """Called while a graph is traced: loss, and maybe grad_norm and entropy, float32 ``(B,)`` each."""
        torch.ops.lossfeed.credit(self.credited, self.handle, batch.ids, torch.stack(floats))


def _take_home(owner: Loader, batch: Batch, scores: torch.Tensor) -> None:
    """Credits the rows of `scores` on their device."""
    owner._uses.scored = True
    engine, ticket = owner._open_engine(), batch._ticket
    if (native := _cuda.kernels(scores.device)) is not None:
        _cuda.mail_columns(native, list(scores), _cuda.home(owner, batch, scores.device))
    elif scores.device.type == "cuda":
        from ._autograd import rank_counts
        from ._hook import _mail

        _mail(owner).post(ticket, scores, rank_counts(scores[0]))
    else:
        rows = [span(row) for row in scores.contiguous()]
        if len(rows) == 1:
            engine.apply_losses(ticket, rows[0])
        else:
            entropy = rows[2] if len(rows) > 2 else None
            engine.apply_scores(ticket, rows[0], rows[1], entropy, _native.rank_counts(rows[0]))


@torch.library.custom_op("lossfeed::credit", mutates_args=("credited",))
def credit(credited: torch.Tensor, loader: int, ids: torch.Tensor, scores: torch.Tensor) -> None:
    """Credits ``(k, B)`` scores (loss, grad_norm, entropy) to the batch with these ids."""
    owner = _loaders.get(loader)
    if owner is None:
        raise UsageError("a compiled step scores for a loader that is gone: compile it again with the new loader")
    _take_home(owner, owner._graph.batch(ids), scores)
    credited.add_(1)


@credit.register_fake
def _(credited, loader, ids, scores):  # type: ignore[no-untyped-def]
    return None

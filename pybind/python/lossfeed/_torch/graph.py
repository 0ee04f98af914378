"""Scores out of compiled graphs: the way home as an operator, so that ``torch.compile`` sees no break."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from .._base.errors import UsageError
from .._loss.columns import Columns
from .._loss.scoring import Account
from . import routes

if TYPE_CHECKING:
    from .._batch.batch import Batch

_accounts: weakref.WeakValueDictionary[int, Account] = weakref.WeakValueDictionary()


class Graph:
    """What a compiled step sees of a loader's account: a number, and a tensor that the operator writes."""

    def __init__(self, account: Account) -> None:
        self.handle = id(account)
        _accounts[self.handle] = account
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
                "this compiled step scores ids that belong to no batch of this loader: pass it the batch that the "
                "loop delivered"
            )
        return found


def _take_home(account: Account, batch: Batch, scores: torch.Tensor, norms: bool) -> None:
    """Credits the rows of `scores` (loss, grad_norm if `norms`, and maybe entropy) on their device."""
    account.uses.scored = True
    loss, *others = scores.unbind()
    norm = others.pop(0) if norms else None
    routes.choose_eager(account, batch, scores.device).send(Columns(loss, norm, others[0] if others else None))


# Written out, for PyTorch 2.4: see rows.py.
@torch.library.custom_op(
    "lossfeed::credit",
    mutates_args=("credited",),
    schema="(Tensor(a0!) credited, int loader, Tensor ids, Tensor scores, bool norms) -> ()",
)
def credit(credited: torch.Tensor, loader: int, ids: torch.Tensor, scores: torch.Tensor, norms: bool) -> None:
    """Credits ``(k, B)`` scores (loss, grad_norm if `norms`, entropy) to the batch with these ids."""
    account = _accounts.get(loader)
    if account is None:
        raise UsageError("the loader that this compiled step scores for is gone: compile the step again with the new loader")
    _take_home(account, account.graph.batch(ids), scores, norms)
    credited.add_(1)


@credit.register_fake
def _(credited, loader, ids, scores, norms):  # type: ignore[no-untyped-def]
    return None

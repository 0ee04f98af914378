"""Beside losses of the user's own: scores of a batch, and its unbiased mean."""

from __future__ import annotations

import sys
from typing import Any

from .._base import literals
from .._base.errors import UsageError
from .._base.memory import is_tensor
from .._base.ranges import ranged
from .._base.torch_imports import torch_half
from .._batch.batch import Batch
from . import arrays
from .scoring import Account


class OwnLosses:
    """What a :class:`lossfeed.Loader` makes of logits and losses beside which it takes no loss itself."""

    _account: Account

    @ranged("lossfeed.score")
    def score(
        self, logits: Any, batch: Batch[Any, Any], ignore_index: int = -100, *, sequence: literals.Sequence = "mean"
    ) -> None:
        """Scores a batch from its logits, for use with your own loss. Records no gradient and does not wait. Can be
        captured in a CUDA graph once it has run outside of one; the batch's memory that a graph reads is kept until the
        loader is closed.

        Args:
            logits: ``(B, C)`` or ``(B, C, d1, …)`` of this very batch, rows in its order; torch or NumPy, on any
                device. Of ``(B, T)`` targets also ``(B, T, C)``, unless T is C, and ``(B · T, C)``.
            batch: the batch as delivered. It is scored once; scoring it again changes nothing and is counted
                (``scores_repeated_total``).
            ignore_index: rows with this target get no score.
            sequence: how the losses of ``(B, C, T)`` logits become the loss of a sample: ``"mean"``, ``"max"`` or
                ``"sum"`` over its positions that are not ignored. Packed logits are ``(rows, length, C)``, ``(rows, C,
                length)`` or ``(rows · length, C)``.

        Raises:
            SettingsError: logits of another length or shape. SampleError: a target outside the classes.
            UsageError: a batch of another loader.
        """
        module = torch_half("score").hook if is_tensor(logits) else arrays
        module.score(self._account, logits, self._own(batch), ignore_index, sequence)

    @ranged("lossfeed.score_losses")
    def score_losses(
        self, losses: Any, batch: Batch[Any, Any], grad_norms: Any = None, *, entropies: Any = None
    ) -> None:
        """Scores a batch from per-sample losses that you computed (regression, sequences, your own objectives).

        Args:
            losses: ``(B,)`` floats of this very batch, torch (any device) or NumPy. Of sequences also a number a token,
                ``(B, T)``, ``(B · T,)`` or, packed, ``(rows, length)``: a sample has the mean of those whose
                ``batch.target`` is not -100. They are used as importance unchanged; NaN and infinite losses are ignored
                and counted (``scores_unranked_total``).
            grad_norms: ``(B,)`` floats, if you can bound each sample's gradient: with ``score="gradient_norm"`` they
                become the importance.
            entropies: ``(B,)`` floats, or a number a token as for `losses`: what Liger-Kernel returns beside its token
                losses, for ``score="entropy"``.

        Nothing waits for a device.

        Raises:
            UsageError: only losses were given, but this run is scored by gradient norms or entropies (set by
                ``score=``, or by earlier batches). Pass ``score="loss"`` to the loader, or those numbers.
        """
        module = torch_half("score_losses").hook if is_tensor(losses) else arrays
        module.score_losses(self._account, losses, self._own(batch), grad_norms, entropies)

    @ranged("lossfeed.weighted_mean")
    def weighted_mean(
        self, losses: Any, batch: Batch[Any, Any], grad_norms: Any = None, *, entropies: Any = None
    ) -> Any:
        """The mean of your own losses, made unbiased by the batch's weights; records their scores.

        Args:
            losses: ``(B, …)`` of this very batch, a torch tensor, before any reduction: what torch's losses give with
                ``reduction="none"``. A sample's loss is the mean over what follows its row, or, of packed samples
                ``(rows, length, …)``, over its own tokens; ``(B · T,)`` of sequences is read as ``(B, T)``. Its score
                is that mean, for values per token as in :meth:`score_losses`.
            grad_norms, entropies: as for :meth:`score_losses`.

        Returns:
            A scalar tensor, differentiable: the mean over the rows of weight times loss.
        """
        hook = torch_half("weighted_mean").hook
        return hook.weighted_mean(self._account, losses, self._own(batch), grad_norms, entropies)

    def _own(self, batch: Any) -> Batch[Any, Any]:
        if not isinstance(batch, Batch):
            hint = "; batch.to(device) moves one and keeps its samples" if isinstance(batch, dict) else ""
            hint += "; under Accelerate that of lossfeed.accelerate.Batches(loader)" if "accelerate" in sys.modules else ""
            raise UsageError(
                f"{type(batch).__name__} is not a batch of this loader: pass the batch that the loop delivered{hint}"
            )
        self._account.uses.scored = True
        return batch

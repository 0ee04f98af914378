"""The cross entropy of a linear head that never holds all logits."""

from __future__ import annotations

from typing import Any

from .._base import literals
from .._base.ranges import ranged
from .._base.torch_imports import torch_half
from .._batch.batch import Batch
from .own_losses import OwnLosses


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    row_weight: Any = None,
    reduction: literals.Reduction = "mean",
) -> Any:
    """``F.cross_entropy(F.linear(input, linear_weight, linear_bias), target)`` without the logits: they exist for one
    chunk of rows at a time, at most 48 MiB, or a tenth of them where that is more. Gradients are summed in float32, or float64.

    A mean or a sum computes its gradients in the forward, with three products of matrices. ``reduction="none"`` needs
    a fourth in the backward; weights that are known before belong into `row_weight`.

    Args:
        input: hidden states ``(…, H)``; float16, bfloat16, float32 or float64.
        linear_weight: the head, ``(V, H)``: a parameter, frozen or tied to an embedding as may be.
        target: class indices ``(…)``.
        row_weight: ``(…)``, a constant factor w of each row's loss. The mean is then sum(w_i l_i) / number of rows
            whose target is not `ignore_index`.

    Under ``torch.compile`` it is one operator of the graph. ``torch.func`` transforms, forward-mode derivatives, the
    gradient of the gradient and devices without our kernels use torch's operators on whole logits.

    Raises:
        SettingsError: shapes, dtypes and devices that do not fit; a DTensor, as tensor-parallel heads are.
        SampleError: a target outside ``[0, V)``, with its row. On a CUDA device a later call raises, with the row's
            place in its chunk, because checking at once would stall.
    """
    settings = linear_bias, ignore_index, label_smoothing, row_weight, reduction
    module = torch_half("linear_cross_entropy").linear_cross_entropy
    return module.linear_cross_entropy(input, linear_weight, target, *settings)


class LinearLosses(OwnLosses):
    """A loader's loss of hidden states and a linear head."""

    @ranged("lossfeed.linear_cross_entropy")
    def linear_cross_entropy(
        self,
        hidden: Any,
        linear_weight: Any,
        batch: Batch[Any, Any],
        *,
        linear_bias: Any = None,
        target: Any = None,
        ignore_index: int = -100,
        reduction: literals.Reduction = "mean",
        label_smoothing: float = 0.0,
        weighted: bool = True,
        sequence: literals.Sequence = "mean",
    ) -> Any:
        """:meth:`cross_entropy` of the logits that a linear head makes of hidden states, without those logits: see
        :func:`lossfeed.linear_cross_entropy`. The batch's weights are its `row_weight`. Records the same scores in the
        same pass.

        Args:
            hidden: ``(B, H)``, or of tokens ``(B, T, H)`` or ``(B · T, H)``; packed ``(rows, length, H)`` or
                ``(rows · length, H)``.
            linear_weight: the head, ``(V, H)``.
            target: other class indices than ``batch.target``, of the same samples; a language model's are shifted:
                ``hidden[:, :-1]`` with ``target=tokens[:, 1:]``.
            weighted: False ignores the batch's weights.
            sequence: as for :meth:`score`.

        Raises:
            SettingsError: also class probabilities and mixed images, which need whole logits.
        """
        settings = linear_bias, target, ignore_index, reduction, label_smoothing, weighted, sequence
        module = torch_half("linear_cross_entropy").linear_cross_entropy
        return module.loader_linear_cross_entropy(self._account, hidden, linear_weight, self._own(batch), *settings)

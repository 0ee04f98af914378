"""The cross entropy of a linear head, alone and as a loader's loss with its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .._base.checks import choice, flag, real
from .._base.errors import SettingsError
from .._base.memory import check_dense
from .._loss.columns import Columns, check_ignored, check_sequence, known
from .._loss.tokens import hidden_rows
from . import cuda, hook
from .cross_entropy import REDUCTIONS
from .forward import class_indices, real_dtype
from .linear import Call, LinearLoss, composite, reduced, sweep, takes
from .routes import choose

if TYPE_CHECKING:
    from .._batch.batch import Batch
    from .._loss.scoring import Account


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    ignore_index: int,
    label_smoothing: float,
    row_weight: Any,
    reduction: str,
) -> torch.Tensor:
    """See :func:`lossfeed.linear_cross_entropy`."""
    _check_settings(reduction, ignore_index, label_smoothing)
    _check_head("input", input, linear_weight, linear_bias)
    target = _check_target("input", input, target)
    shape = tuple(input.shape[:-1])
    if row_weight is not None:
        row_weight = _check_row_weight(row_weight, input, shape)
    settings = ignore_index, label_smoothing, reduction
    rows = input.reshape(-1, input.shape[-1])
    call = _call(rows, linear_weight, linear_bias, target.reshape(-1), row_weight, *settings)
    return _shaped(call, _losses(call)[0], shape)


def loader_linear_cross_entropy(
    account: Account,
    hidden: Any,
    linear_weight: Any,
    batch: Batch,
    linear_bias: Any,
    target: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    weighted: bool,
    sequence: str,
) -> torch.Tensor:
    """See :meth:`lossfeed.Loader.linear_cross_entropy`."""
    flag("weighted", weighted)
    check_sequence(sequence)
    _check_settings(reduction, ignore_index, label_smoothing)
    _check_head("hidden", hidden, linear_weight, linear_bias)
    if target is None and batch.mix is not None:
        raise SettingsError(
            "this batch mixes images (mixup=, cutmix=), and linear_cross_entropy has one target a row: use "
            "loader.cross_entropy(logits, batch)"
        )
    target = _check_target(None, hidden, hook._beside(known(batch.target if target is None else target), hidden.device))
    shape, samples = tuple(hidden.shape[:-1]), batch.ids.shape[0]
    rows, labels = hidden_rows(hidden, target, batch)
    packed = hook._owners(batch, labels)
    if packed is not None:
        labels = torch.where(packed.reshape(labels.shape) >= 0, labels, ignore_index)
    labels = labels.reshape(-1)
    weights = hook._weights(batch, hidden.device, len(labels) // max(1, samples), packed) if weighted else None
    call = _call(rows, linear_weight, linear_bias, labels, weights, ignore_index, label_smoothing, reduction)
    way = choose(account, batch, hidden.device)
    loss, columns = _losses(call, cuda.UNSEEN if way.home.losses_suffice else cuda.NOWHERE)
    if columns is None:
        logits = F.linear(rows.detach(), linear_weight.detach(), None if linear_bias is None else linear_bias.detach())
        hook._score(way, logits, labels, ignore_index, sequence, packed, samples)
    else:
        way.send(columns if packed is None else hook._of_documents(columns, packed, samples, sequence), sequence)
    return _shaped(call, loss, shape)


def _call(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    row_weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Call:
    kind, dtype = hidden.device.type, hidden.dtype
    if torch.is_autocast_enabled(kind) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
    row_weight = None if row_weight is None else row_weight.detach().reshape(-1).contiguous()
    labels, smoothing = class_indices(target), float(label_smoothing)
    return Call(hidden, weight, bias, labels, row_weight, dtype, ignore_index, smoothing, reduction)


def _losses(call: Call, home: cuda.Home = cuda.UNSEEN) -> tuple[torch.Tensor, Columns | None]:
    """The loss in the precision of the arithmetic, and its scores; None if whole logits have to be scored."""
    if not takes(call):
        return composite(call), None
    if torch.compiler.is_compiling():
        grad = torch.is_grad_enabled()
        needs = [grad and t is not None and t.requires_grad for t in (call.hidden, call.weight, call.bias)]
        loss, rest, correct, *_ = torch.ops.lossfeed.linear_forward(*call, *needs)
    elif torch.is_grad_enabled():
        loss, rest, correct = LinearLoss.apply(home, *call)
    else:
        found = sweep(call, home=home)
        loss, rest, correct = reduced(call, found.term), found.rest, found.correct
    _, plain, _, _, *norms = rest.detach().unbind()
    grad_norm, entropy = norms or (None, None)
    return loss, Columns(plain, grad_norm, entropy, correct)


def _shaped(call: Call, loss: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The result in torch's shape and dtype: the logits', but float32 under autocast."""
    cast = torch.is_autocast_enabled(call.hidden.device.type)
    dtype = real_dtype(loss) if cast else call.dtype
    return (loss.reshape(shape) if call.reduction == "none" else loss).to(dtype)


def _check_settings(reduction: Any, ignore_index: Any, label_smoothing: Any) -> None:
    choice("reduction", reduction, *REDUCTIONS)
    check_ignored(ignore_index)
    if not isinstance(label_smoothing, (int, float)) or not 0.0 <= label_smoothing <= 1.0:
        real("label_smoothing", label_smoothing, 0.0, 1.0)


def _check_head(name: str, hidden: Any, weight: Any, bias: Any) -> None:
    """Refuses hidden states and heads that do not make logits together."""
    for what, value in ((name, hidden), ("linear_weight", weight), ("linear_bias", bias)):
        if value is None and what == "linear_bias":
            continue
        if not isinstance(value, torch.Tensor):
            raise SettingsError(f"{what} must be a torch tensor, not {type(value).__name__}")
        if hasattr(value, "device_mesh"):
            raise SettingsError(
                f"{what} is a DTensor, of a tensor-parallel or sharded head: linear_cross_entropy needs the whole head "
                "on each rank. Under FSDP call it in the forward of the module that owns the head, where weights are "
                "whole; a tensor-parallel head needs loader.cross_entropy(logits.full_tensor(), batch)"
            )
        if not torch.compiler.is_compiling():
            check_dense(what, value)
        if not value.is_floating_point():
            raise SettingsError(f"{what} has dtype {value.dtype}: give floats")
        if value.device != hidden.device:
            raise SettingsError(f"{what} is on {value.device}, {name} on {hidden.device}: move them to one device")
        if value.dtype != hidden.dtype and not torch.is_autocast_enabled(hidden.device.type):
            raise SettingsError(
                f"{what} has dtype {value.dtype}, {name} {hidden.dtype}: give both in one, or call this under "
                "torch.autocast"
            )
    shape, head = tuple(hidden.shape), tuple(weight.shape)
    if not shape or len(head) != 2 or shape[-1] != head[1]:
        raise SettingsError(
            f"linear_weight of shape {head} does not fit {name} of shape {shape}: it must be (classes, "
            f"{shape[-1] if shape else 'features'}), and {name} (…, features)"
        )
    if bias is not None and tuple(bias.shape) != head[:1]:
        found = tuple(bias.shape)
        raise SettingsError(f"linear_bias of shape {found} does not fit {head[0]} classes: it must be {head[:1]}")


def _check_target(name: str | None, hidden: torch.Tensor, target: Any) -> torch.Tensor:
    """Class indices beside the hidden states; of their shape, if they have a `name`."""
    if not isinstance(target, torch.Tensor):
        raise SettingsError(f"target must be a torch tensor, not {type(target).__name__}")
    if hasattr(target, "device_mesh"):
        raise SettingsError("target is a DTensor: give this rank's rows, target.to_local()")
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise SettingsError(
            f"target of {target.dtype} holds no class indices: give integers; class probabilities need whole logits, "
            "cross_entropy(logits, target)"
        )
    if name is not None and tuple(target.shape) != tuple(hidden.shape[:-1]):
        raise SettingsError(
            f"target of shape {tuple(target.shape)} does not fit {name} of shape {tuple(hidden.shape)}: it must be "
            f"{tuple(hidden.shape[:-1])}"
        )
    if target.device != hidden.device:
        raise SettingsError(f"target is on {target.device}, {name} on {hidden.device}: move them to one device")
    return target


def _check_row_weight(row_weight: Any, hidden: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if not isinstance(row_weight, torch.Tensor):
        raise SettingsError(f"row_weight must be a torch tensor, not {type(row_weight).__name__}")
    if tuple(row_weight.shape) != shape:
        raise SettingsError(f"row_weight of shape {tuple(row_weight.shape)} must be {shape}, a number for each target")
    if row_weight.requires_grad:
        raise SettingsError(
            "row_weight requires a gradient and would get none: pass row_weight.detach(), or multiply the losses of "
            "reduction='none'"
        )
    if row_weight.device != hidden.device:
        raise SettingsError(f"row_weight is on {row_weight.device}, input on {hidden.device}: move them to one device")
    return row_weight

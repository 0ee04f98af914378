"""Cross entropy against class probabilities on a CUDA device: one read of both forward, one backward."""

from __future__ import annotations

from typing import Any

import torch

from .. import _native
from .._base.memory import dtype_name
from . import cuda
from .forward import class_rows, has_tangent, readable, real_dtype


def takes(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, label_smoothing: float) -> bool:
    """Whether the kernels can take this call; torch takes the others, wrong ones included."""
    if torch.compiler.is_compiling() or type(logits) is not torch.Tensor or type(target) is not torch.Tensor:
        return False
    fits = target.shape == logits.shape and target.dtype == logits.dtype and target.device == logits.device
    # The gradient at the probabilities is torch's affair.
    if not fits or target.requires_grad or has_tangent(logits, target, weight) or not logits.is_floating_point() or logits.dim() == 0 or logits.numel() == 0:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or not 0.0 <= label_smoothing <= 1.0:
        return False
    classes = logits.shape[0] if logits.dim() == 1 else logits.shape[1]
    if weight is not None and (weight.shape != (classes,) or weight.dtype != logits.dtype or weight.requires_grad):
        return False
    return cuda.kernels(logits.device) is not None


class ProbabilityLosses(torch.autograd.Function):
    """``(R,)`` losses of ``(R, C)`` logits against ``(R, C)`` probabilities. The gradient has a gradient."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, label_smoothing: float
    ) -> torch.Tensor:
        rows, q = readable(logits), readable(target)
        count, classes = rows.shape
        native, real = cuda.kernels(rows.device), real_dtype(rows)
        assert native is not None, "asked before"
        w = None if weight is None else weight.detach().to(real).contiguous()
        with cuda.on(rows.device):
            found = torch.empty((4, count), dtype=real, device=rows.device)
            scratch = torch.empty(_native.scratch_bytes(count, classes), dtype=torch.uint8, device=rows.device)
            native.probabilities(
                cuda.stream(rows.device),
                dtype_name(rows),
                scratch.data_ptr(),
                count,
                classes,
                rows.stride(0) if count > 1 else classes,
                rows.data_ptr(),
                q.data_ptr(),
                q.stride(0) if count > 1 else classes,
                loss=found[0].data_ptr(),
                max=found[1].data_ptr(),
                log_sum=found[2].data_ptr(),
                mass=found[3].data_ptr(),
                weight=0 if w is None else w.data_ptr(),
                label_smoothing=label_smoothing,
            )
        ctx.save_for_backward(logits, target, weight, found)
        ctx.label_smoothing = label_smoothing
        return found[0].clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        logits, target, weight, found = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _composite(logits, target, weight, ctx.label_smoothing, grad), None, None, None
        rows, q = readable(logits), readable(target)
        count, classes = rows.shape
        native = cuda.kernels(rows.device)
        assert native is not None, "the forward ran on it"
        w = None if weight is None else weight.to(found.dtype).contiguous()
        one = count > 1 and grad.stride(0) == 0
        upstream = (grad[:1] if one else grad).to(found.dtype).contiguous()
        with cuda.on(rows.device):
            out = torch.empty((count, classes), dtype=rows.dtype, device=rows.device)
            native.backward_probabilities(
                cuda.stream(rows.device),
                dtype_name(rows),
                count,
                classes,
                rows.stride(0) if count > 1 else classes,
                rows.data_ptr(),
                q.data_ptr(),
                q.stride(0) if count > 1 else classes,
                max=found[1].data_ptr(),
                log_sum=found[2].data_ptr(),
                mass=found[3].data_ptr(),
                upstream=upstream.data_ptr(),
                upstream_stride=0 if one or count == 1 else 1,
                gradient=out.data_ptr(),
                gradient_stride=classes,
                weight=0 if w is None else w.data_ptr(),
                label_smoothing=ctx.label_smoothing,
            )
        return out, None, None, None


def _composite(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, label_smoothing: float, grad: torch.Tensor
) -> torch.Tensor:
    """The gradient in torch's operators: grad times (p times the mass of the weighted, smoothed targets, minus
    those)."""
    real = real_dtype(logits)
    q = target.to(real) * (1.0 - label_smoothing) + label_smoothing / logits.shape[1]
    q = q if weight is None else q * weight.to(real)
    p = torch.softmax(logits, dim=-1, dtype=real)
    return ((p * q.sum(1, keepdim=True) - q) * grad.to(real).unsqueeze(1)).to(logits.dtype)


def losses(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, label_smoothing: float
) -> torch.Tensor:
    """Losses in the shape of class indices for these logits, in the precision of the arithmetic."""
    shape = () if logits.dim() == 1 else (logits.shape[0], *logits.shape[2:])
    rows: torch.Tensor = ProbabilityLosses.apply(class_rows(logits), class_rows(target), weight, label_smoothing)
    return rows.view(shape)

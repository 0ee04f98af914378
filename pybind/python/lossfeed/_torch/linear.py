"""Cross entropy of a linear head, a chunk of rows at a time: the logits of all rows never exist together.

A mean or a sum takes three products of matrices: a chunk's logits, and, from the gradient that replaces them in place,
the gradients at the hidden states and at the head. Unreduced losses learn their upstream gradient only in the backward,
so that multiplies the logits again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from .._base.errors import SampleError
from . import cuda, rows as _rows
from .forward import KINDS, has_tangent, in_forward_mode, plain, real_dtype

#: A chunk's logits take this much memory, or a tenth of all logits where that is more.
CHUNK_BYTES = 48 << 20

_Three = tuple[bool, bool, bool]
_Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


class Call(NamedTuple):
    """The arguments of one loss."""

    hidden: torch.Tensor
    """``(R, H)``."""
    weight: torch.Tensor
    """``(V, H)``."""
    bias: torch.Tensor | None
    """``(V,)``."""
    target: torch.Tensor
    """int64 ``(R,)``."""
    row_weight: torch.Tensor | None
    """``(R,)``, a factor of each row's loss, without a gradient."""
    dtype: torch.dtype
    """The logits' dtype: autocast's, or that of hidden states and head."""
    ignore_index: int
    label_smoothing: float
    reduction: str


class Swept(NamedTuple):
    """The result of one pass over the chunks."""

    term: torch.Tensor
    """``(R,)`` losses with smoothing, before row weights."""
    rest: torch.Tensor
    """See :attr:`lossfeed._torch.forward.Forward.rest`."""
    correct: torch.Tensor
    gradients: _Gradients
    """At hidden states, head and bias; None where not needed."""


def takes(call: Call) -> bool:
    """True if the native kernels can compute this call; torch's operators compute the others on whole logits."""
    hidden, weight, bias, target = call[:4]
    for tensor in (hidden, weight, bias, target):
        if tensor is None:
            continue
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return False
        if tensor.layout != torch.strided or tensor.numel() == 0:
            return False
    if call.dtype not in KINDS or not _rows.native_on(hidden.device):
        return False
    if torch.compiler.is_compiling():
        return True
    # Inside vmap, grad and their like the tensors stand for others.
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return not (in_forward_mode() and has_tangent(hidden, weight, bias))


def chunk_rows(rows: int, row_bytes: int, logits_bytes: int) -> int:
    """Rows of a chunk: as few chunks of equal size as the limit allows."""
    most = max(1, max(CHUNK_BYTES, logits_bytes // 10) // row_bytes)
    return -(-rows // -(-rows // most))


def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out = a @ b``, summed in the dtype of `out`."""
    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    elif a.is_cuda and "dtype_out" in torch.ops.aten.mm.overloads():
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a.to(out.dtype), b.to(out.dtype), out=out)


def add_product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """``out += a.T @ b``, summed in the dtype of `out`. Where that is wider, scratch holds at most `block` rows."""
    if a.dtype == out.dtype:
        out.addmm_(a.t(), b)
        return
    block = min(block, len(out))
    scratch = torch.empty((block, out.shape[1]), dtype=out.dtype, device=out.device)
    for start in range(0, len(out), block):
        part = out[start : start + block]
        product(a[:, start : start + block].t(), b, scratch[: len(part)])
        part.add_(scratch[: len(part)])


@torch.no_grad()
def sweep(
    call: Call,
    needs: _Three = (False, False, False),
    upstream: torch.Tensor | None = None,
    softmax: torch.Tensor | None = None,
    home: cuda.Home = cuda.NOWHERE,
) -> Swept:
    """Passes over the chunks once.

    Args:
        needs: which gradients to compute, for the sum of `upstream` ``(R,)`` times the terms.
        softmax: that of an earlier pass over these rows. The losses are not computed again then.
    """
    x, w = call.hidden.detach().to(call.dtype), call.weight.detach().to(call.dtype)
    bias = plain(call.bias, call.dtype)
    (rows, width), classes, real = x.shape, len(w), real_dtype(x)
    _check_targets(call)
    # A product that sums half precision in float32 on the CPU needs a copy of the chunk.
    copies = real.itemsize if needs[1] and x.dtype != real and not x.is_cuda else 0
    step = chunk_rows(rows, classes * (x.dtype.itemsize + copies), rows * classes * x.dtype.itemsize)
    logits = x.new_empty((step, classes))
    of_hidden = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
    of_weight = x.new_empty((classes, width), dtype=real) if needs[1] else None
    of_bias = x.new_zeros(classes, dtype=real) if needs[2] else None
    found: list[tuple[torch.Tensor, ...]] = []
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        labels, some = call.target[part], x[part]
        z = logits[: len(some)]
        if bias is None:
            torch.mm(some, w.t(), out=z)
        else:
            torch.addmm(bias, some, w.t(), out=z)
        settings = None, call.ignore_index, call.label_smoothing
        if softmax is None:
            measured = _rows.forward(z, labels, *settings, home, ranks=False)
            found.append(measured[:3])
            mine = measured.softmax
        else:
            mine = softmax[:, part]
        if upstream is None or not any(needs):
            continue
        _rows.backward(z, labels, *settings, mine, upstream[part], overwrite=True)
        if of_hidden is not None:
            torch.mm(z, w, out=of_hidden[part])
        if of_weight is not None and start == 0 and z.dtype == real:
            torch.mm(z.t(), some, out=of_weight)
        elif of_weight is not None:
            block = max(1, CHUNK_BYTES // (4 * width * real.itemsize))
            add_product(z, some, of_weight if start else of_weight.zero_(), block)
        if of_bias is not None:
            of_bias.add_(z.sum(0, dtype=real))
    gradients = of_hidden, of_weight, of_bias
    if softmax is not None:
        return Swept(softmax[0], softmax, softmax[0], gradients)
    if len(found) == 1:
        term, rest, correct = found[0]
        return Swept(term, rest, correct, gradients)
    terms, rests, corrects = zip(*found, strict=True)
    return Swept(torch.cat(terms), torch.cat(rests, 1), torch.cat(corrects), gradients)


def _check_targets(call: Call) -> None:
    """Refuses a target outside the classes with its row among all rows; the kernels know the chunk's alone. A CUDA
    device is not waited for: there they do."""
    if call.target.is_cuda:
        return
    outside = ((call.target < 0) | (call.target >= len(call.weight))) & (call.target != call.ignore_index)
    if bool(outside.any()):
        row = int(outside.to(torch.uint8).argmax())
        raise SampleError(
            f"target {int(call.target[row])} of row {row} is outside 0..{len(call.weight)}; fix the label, or pass it "
            "as ignore_index to leave such rows out"
        )


def rows_count(call: Call, real: torch.dtype) -> torch.Tensor:
    """The number of rows that count, on their device."""
    return (call.target != call.ignore_index).sum().to(real)


def reduced(call: Call, term: torch.Tensor) -> torch.Tensor:
    """The terms times the row weights, reduced."""
    if call.row_weight is not None:
        term = term * call.row_weight.to(term.dtype)
    if call.reduction == "none":
        return term
    return term.sum() / rows_count(call, term.dtype) if call.reduction == "mean" else term.sum()


def divisor_waits(call: Call) -> bool:
    """True if the mean's divisor is applied in the backward: with it the gradients at the logits of many rows vanish in
    float16, before a gradient scaler can help."""
    return call.reduction == "mean" and call.dtype == torch.float16


def share(call: Call, real: torch.dtype) -> torch.Tensor | None:
    """The mean's factor of each row; 0 where no row counts, as torch's gradient is."""
    if call.reduction != "mean":
        return None
    count = rows_count(call, real)
    return torch.where(count > 0, 1 / count, torch.zeros_like(count))


def upstream(call: Call, grad: torch.Tensor | None, real: torch.dtype, factor: torch.Tensor | None) -> torch.Tensor:
    """``(R,)``: the gradient at each row's term, which `grad`, row weight and `factor` make."""
    made = torch.ones((), dtype=real, device=call.hidden.device) if grad is None else grad.to(real)
    if factor is not None:
        made = made * factor
    return made.expand(len(call.target)) if call.row_weight is None else made * call.row_weight.to(real)


def composite(call: Call) -> torch.Tensor:
    """The loss in torch's own operators, on whole logits: differentiable by every means of torch."""
    with torch.autocast(call.hidden.device.type, enabled=False):
        logits = _logits(call)
        settings: dict[str, Any] = {"ignore_index": call.ignore_index, "label_smoothing": call.label_smoothing}
        return reduced(call, F.cross_entropy(logits.to(real_dtype(logits)), call.target, reduction="none", **settings))


def composite_gradients(call: Call, needs: _Three, grad: torch.Tensor) -> _Gradients:
    """The gradients in torch's own operators, on whole logits; differentiable themselves."""
    with torch.autocast(call.hidden.device.type, enabled=False):
        logits = _logits(call)
        each = upstream(call, grad, real_dtype(logits), share(call, real_dtype(logits)))
        at_logits = _rows.composite_gradient(logits, call.target, None, call.ignore_index, call.label_smoothing, each)
        hidden, weight = call.hidden.to(call.dtype), call.weight.to(call.dtype)
        return (
            (at_logits @ weight).to(call.hidden.dtype) if needs[0] else None,
            (at_logits.t() @ hidden).to(call.weight.dtype) if needs[1] else None,
            at_logits.sum(0).to(call.bias.dtype) if needs[2] and call.bias is not None else None,
        )


def _logits(call: Call) -> torch.Tensor:
    bias = None if call.bias is None else call.bias.to(call.dtype)
    return F.linear(call.hidden.to(call.dtype), call.weight.to(call.dtype), bias)


def held(call: Call, gradients: _Gradients) -> _Gradients:
    """Gradients as they wait for the backward: in their parameters' dtypes, unless the divisor is to come."""
    if divisor_waits(call):
        return gradients
    kinds = (call.hidden, call.weight, call.bias)
    made = [None if g is None or like is None else g.to(like.dtype) for g, like in zip(gradients, kinds, strict=True)]
    return made[0], made[1], made[2]


def scaled(
    gradient: torch.Tensor | None, like: torch.Tensor | None, factor: torch.Tensor, free: bool
) -> torch.Tensor | None:
    """The gradient times `factor`, in the dtype of `like`; in its own memory if that is `free`."""
    if gradient is None or like is None:
        return None
    if gradient.dtype == torch.float16:
        gradient = gradient.float()
    if not free or gradient.dtype != like.dtype:
        return (gradient * factor).to(like.dtype)
    # A device is not asked, because that would wait for it.
    return gradient if factor.device.type == "cpu" and factor == 1 else gradient.mul_(factor)


#: True while a backward runs whose graph is kept for another one.
_graph_is_kept = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)


class LinearLoss(torch.autograd.Function):
    """(result, rest, correct) of a :class:`Call`. The gradient has a gradient, in torch's own operators."""

    @staticmethod
    def forward(ctx: Any, home: cuda.Home, *fields: Any) -> tuple[torch.Tensor, ...]:
        call = Call(*fields)
        real, whole = real_dtype(call.hidden.new_empty(0, dtype=call.dtype)), call.reduction != "none"
        needs = tuple(ctx.needs_input_grad[1:4])
        factor = share(call, real) if whole else None
        if whole:
            each = upstream(call, None, real, None if divisor_waits(call) else factor)
            found = sweep(call, needs, each, home=home)
        else:
            found = sweep(call, home=home)
        gradients = held(call, found.gradients)
        softmax = None if whole else found.rest[2:4].clone()
        ctx.save_for_backward(*call[:5], factor if divisor_waits(call) else None, softmax, *gradients)
        ctx.settings = call[5:]
        ctx.mark_non_differentiable(found.rest, found.correct)
        return reduced(call, found.term), found.rest, found.correct

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        *tensors, factor, softmax, of_hidden, of_weight, of_bias = ctx.saved_tensors
        call, needs = Call(*tensors, *ctx.settings), tuple(ctx.needs_input_grad[1:4])
        if torch.is_grad_enabled():
            found = composite_gradients(call, needs, grad)
        elif softmax is not None:
            found = of_rows(call, needs, grad, softmax)
        else:
            grad = grad if factor is None else grad * factor
            free = not _graph_is_kept()
            found = (
                scaled(of_hidden, call.hidden, grad, free),
                scaled(of_weight, call.weight, grad, free),
                scaled(of_bias, call.bias, grad, free),
            )
        return None, *found, *[None] * 6


def of_rows(call: Call, needs: _Three, grad: torch.Tensor, softmax: torch.Tensor) -> _Gradients:
    """The gradients for one upstream gradient a row."""
    each = upstream(call, grad, softmax.dtype, None)
    return held(call, sweep(call, needs, each, softmax).gradients)

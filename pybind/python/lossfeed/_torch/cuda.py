"""The native kernels on CUDA tensors: addresses, the current stream and scratch. Nothing waits for the device.

Every call queues on the current stream of its tensors' device and may be captured in a CUDA graph once the kernels have
been used outside of one (loading them is no work for a capture). Temporaries go back to torch's allocator at once: it
hands them out again in the order of the stream.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _native
from .._base.errors import Error, UsageError
from .._base.memory import dtype_name
from .._loss.columns import RANK_BASE, Columns
from .forward import Forward, Reduction, real_dtype

if TYPE_CHECKING:
    from .._loss.scoring import Account
    from .._batch.batch import Batch

_loaded: dict[int, _native.CudaKernels | None] = {}


class Home(NamedTuple):
    """Where a launch mails its scores, on whose account, and whether the losses alone are needed."""

    mail: int
    tag: int
    ids: int
    losses_suffice: bool = False


NOWHERE = Home(0, 0, 0)
#: No mail, and the losses alone are needed.
UNSEEN = Home(0, 0, 0, True)


def kernels(device: torch.device) -> _native.CudaKernels | None:
    """The kernels of a device; None, with one warning that says why, where they cannot be had: torch's operators do
    then."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _loaded:
        if torch.cuda.is_current_stream_capturing():
            raise UsageError(
                "loading lossfeed's kernels would break this CUDA graph capture: run the step once before the capture"
            )
        try:
            _loaded[index] = _native.CudaKernels(index)
        except Error as cause:
            words = f"lossfeed scores on {device} with torch's operators, not with its kernels: {cause}"
            warnings.warn(words, RuntimeWarning, stacklevel=3)
            _loaded[index] = None
    return _loaded[index]


def stream(device: torch.device) -> int:
    """The handle of torch's current stream."""
    return raw_stream(torch.cuda.current_device() if device.index is None else device.index)


def _slow_raw_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


#: The handle of the current stream of the device of that number: a field of torch's own, where this torch shows it.
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", _slow_raw_stream)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Makes `device` the current one, for no host time where it is."""
    return nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def home(account: Account, batch: Batch, device: torch.device, native: _native.CudaKernels) -> Home:
    """Where scores of this batch that are computed on `device` go. In a graph that is being captured they are
    credited to the ids that lie in ``batch.ids`` when it is replayed; else to the batch's ticket, once.

    Raises:
        SampleError: what an earlier call found in its targets. UsageError: a capture with ids that are not on the
            device.
    """
    box = mailbox(account, device)
    native.check(stream(device), box)
    if not torch.cuda.is_current_stream_capturing():
        return Home(box.address, box.register(batch._ticket), 0, box.losses_suffice())
    return Home(box.address, 0, captured_ids(box, batch, device), box.losses_suffice())


def captured_ids(box: _native.Mailbox, batch: Batch, device: torch.device) -> int:
    """Where a graph that is being captured on `device` finds the ids it credits.

    Raises:
        UsageError: they are not on the device.
    """
    if batch.ids.device != device:
        raise UsageError(
            f"a CUDA graph that scores on {device} finds the batch's ids on {batch.ids.device}: make the loader with "
            f"device={str(device)!r}"
        )
    # The graph knows them by their address alone, and may be replayed long after the batch has gone from the caller's
    # hands. They share their memory with what else came with the batch, the targets among them.
    address: int = batch.ids.data_ptr()
    box.keep(address, (batch.ids, batch.target, batch.data, batch._weight))
    return address


def mailbox(account: Account, device: torch.device) -> _native.Mailbox:
    """The account's mailbox on a device, made at its first use."""
    engine = account.engine()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in account.mailboxes:
        if torch.cuda.is_current_stream_capturing():
            raise UsageError(
                f"a graph that is being captured on {device} would create this loader's mailbox, which breaks the "
                "capture: score one batch before it"
            )
        account.mailboxes[index] = engine.mailbox(index, account.batch_size)
    return account.mailboxes[index]


def forward(
    native: _native.CudaKernels,
    rows: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    where: Home,
    ranks: bool,
    reduction: Reduction | None,
) -> Forward:
    """:func:`lossfeed._torch.rows.forward` of readable rows and contiguous int64 labels; mails the scores, a row a sample.

    With a reduction the terms become one number in the same launch, and the first share is the mean's divisor."""
    device, (count, classes) = rows.device, rows.shape
    with on(device):
        if not where.mail:
            native.check(stream(device))
        real = real_dtype(rows)
        one = reduction is not None
        term = torch.empty(() if one else count, dtype=real if reduction is None else reduction.dtype, device=device)
        rest = torch.empty((4 if where.losses_suffice else 6, count), dtype=real, device=device)
        correct = torch.empty(count, dtype=torch.uint8, device=device)
        counts = torch.empty(count, dtype=torch.int32, device=device) if ranks else None
        rank_score = torch.empty(count, dtype=torch.float32, device=device) if ranks else None
        scratch = torch.empty(_native.scratch_bytes(count, classes), dtype=torch.uint8, device=device)
        weight_sum = weight.sum() if weight is not None and label_smoothing > 0.0 else None
        first, column = rest.data_ptr(), count * rest.element_size()
        share, loss, peak, log_sum, grad_norm, entropy = (first + i * column for i in range(6))
        more: dict[str, Any] = {} if where.losses_suffice else {"grad_norm": grad_norm, "entropy": entropy}
        if reduction is None:
            more |= {"term": term.data_ptr(), "share": share}
        else:
            narrow, weights = reduction.dtype != real, reduction.sample_weight
            more |= {"reduced": term.data_ptr(), "mean": reduction.mean, "narrow": narrow, "divisor": share}
            if weights is not None:
                more |= {"sample_weight": weights.data_ptr(), "sample_rows": count // len(weights)}
        native.forward(
            stream(device),
            dtype_name(rows),
            scratch.data_ptr(),
            count,
            classes,
            rows.stride(0) if count > 1 else classes,
            rows.data_ptr(),
            labels.data_ptr(),
            loss=loss,
            max=peak,
            log_sum=log_sum,
            correct=correct.data_ptr(),
            count=0 if counts is None else counts.data_ptr(),
            rank_score=0 if rank_score is None else rank_score.data_ptr(),
            weight=0 if weight is None else weight.data_ptr(),
            weight_sum=0 if weight_sum is None else weight_sum.data_ptr(),
            mail=where.mail,
            tag=where.tag,
            ids=where.ids,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            b0=RANK_BASE,
            **more,
        )
    return Forward(term, rest, correct, counts, rank_score)


def score(
    native: _native.CudaKernels, rows: torch.Tensor, labels: torch.Tensor, ignore_index: int, where: Home
) -> None:
    """Mails the scores of readable rows, a row a sample, and keeps nothing: one allocation and one call."""
    device, (count, classes) = rows.device, rows.shape
    column, counts = (-(-count * size // 256) * 256 for size in (real_dtype(rows).itemsize, 4))
    with on(device):
        size = 3 * column + counts + _native.scratch_bytes(count, classes)
        room = torch.empty(size, dtype=torch.uint8, device=device)
        first = room.data_ptr()
        native.forward(
            stream(device),
            dtype_name(rows),
            first + 3 * column + counts,
            count,
            classes,
            rows.stride(0) if count > 1 else classes,
            rows.data_ptr(),
            labels.data_ptr(),
            loss=first,
            grad_norm=0 if where.losses_suffice else first + column,
            entropy=0 if where.losses_suffice else first + 2 * column,
            count=first + 3 * column,
            mail=where.mail,
            tag=where.tag,
            ids=where.ids,
            ignore_index=ignore_index,
            b0=RANK_BASE,
        )


def backward(
    native: _native.CudaKernels,
    rows: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    softmax: torch.Tensor,
    upstream: torch.Tensor,
    out: torch.Tensor,
    divisor: torch.Tensor | None = None,
    sample_weight: torch.Tensor | None = None,
) -> None:
    """Writes the gradient to `out`, which may be `rows`.

    `softmax` is contiguous ``(2, R)``: maxima, then log-sums. `upstream` has one number, or one a row, in the logits'
    dtype or that of the arithmetic. Each is divided by `divisor` (one number) and multiplied with its sample's
    weight."""
    count, classes = rows.shape
    with on(rows.device):
        weight_sum = weight.sum() if weight is not None and label_smoothing > 0.0 else None
        native.backward(
            stream(rows.device),
            dtype_name(rows),
            count,
            classes,
            rows.stride(0) if count > 1 else classes,
            rows.data_ptr(),
            labels.data_ptr(),
            max=softmax.data_ptr(),
            log_sum=softmax.data_ptr() + count * softmax.element_size(),
            upstream=upstream.data_ptr(),
            upstream_stride=1 if upstream.numel() == count and count > 1 else 0,
            upstream_narrow=upstream.dtype != softmax.dtype,
            divisor=0 if divisor is None else divisor.data_ptr(),
            sample_weight=0 if sample_weight is None else sample_weight.data_ptr(),
            sample_rows=1 if sample_weight is None else count // len(sample_weight),
            gradient=out.data_ptr(),
            gradient_stride=out.stride(0) if count > 1 else classes,
            weight=0 if weight is None else weight.data_ptr(),
            weight_sum=0 if weight_sum is None else weight_sum.data_ptr(),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )


def mail_sequences(native: _native.CudaKernels, columns: Columns, samples: int, sequence: str, where: Home) -> None:
    """One loss a sample from the rows of its positions, ranked and mailed."""
    loss, grad_norm, entropy = columns.loss, columns.grad_norm, columns.entropy
    length, device = loss.numel() // samples, loss.device
    with on(device):
        outputs = torch.empty((5, samples), dtype=loss.dtype, device=device)
        # A column that was not measured is none of the sample's either.
        norms = {} if grad_norm is None else {"grad_norm": grad_norm, "mean_grad_norm": outputs[3]}
        entropies = {} if entropy is None else {"entropy": entropy, "mean_entropy": outputs[4]}
        counts = torch.empty(samples, dtype=torch.int32, device=device)
        scratch = torch.empty(_native.scratch_bytes(samples, 1), dtype=torch.uint8, device=device)
        native.sequences(
            stream(device),
            loss.dtype == torch.float64,
            sequence,
            scratch.data_ptr(),
            samples,
            length,
            loss.data_ptr(),
            columns.correct.data_ptr(),
            mean=outputs[0].data_ptr(),
            max=outputs[1].data_ptr(),
            sum=outputs[2].data_ptr(),
            count=counts.data_ptr(),
            mail=where.mail,
            tag=where.tag,
            ids=where.ids,
            b0=RANK_BASE,
            **{name: column.data_ptr() for name, column in (norms | entropies).items()},
        )


def mail_columns(native: _native.CudaKernels, columns: Columns, where: Home) -> None:
    """Ranks ``(B,)`` losses and mails them, gradient norms and entropies in float32."""
    floats = (columns.loss, columns.grad_norm, columns.entropy)
    loss, grad_norm, entropy = (None if c is None else c.detach().to(torch.float32).contiguous() for c in floats)
    assert loss is not None
    device = loss.device
    with on(device):
        scratch = torch.empty(_native.scratch_bytes(len(loss), 1), dtype=torch.uint8, device=device)
        native.ranks(
            stream(device),
            len(loss),
            scratch.data_ptr(),
            loss.data_ptr(),
            grad_norm=0 if grad_norm is None else grad_norm.data_ptr(),
            entropy=0 if entropy is None else entropy.data_ptr(),
            mail=where.mail,
            tag=where.tag,
            ids=where.ids,
            b0=RANK_BASE,
        )


def settle(account: Account) -> None:
    """Waits until the scores of all work given to the devices so far have been credited.

    Raises:
        UsageError: this thread is capturing a graph, which waiting would end.
    """
    if account.mailboxes and torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "pending scores cannot be waited for during a CUDA graph capture: do it outside of the capture"
        )
    for box in account.mailboxes.values():
        box.settle()

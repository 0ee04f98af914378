"""The ways home of a batch's scores. A call chooses one, once; then ``send(measure(…))``.

* :class:`OnHost`: the CPU measures, and the engine credits at once.
* :class:`Mailed`: a CUDA device with our kernels. The launch that measures rows mails them; a second one does where a
  sample is many rows. In a graph that is being captured the mail names the batch by its ids instead of its ticket.
* :class:`Posted`: a CUDA device without our kernels. torch's operators measure, and torch's copies bring it home.
* :class:`Traced`: a step that is being compiled. Both are operators of the graph; the second chooses again when it
  runs.

A fifth, for arrays, needs no torch: :mod:`lossfeed._loss.arrays`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from .. import _native
from .._base.memory import span
from .._loss.columns import Columns, per_sample
from . import cuda, rows as _rows
from .forward import class_indices, readable
from .mail import Mail
from .operators import device_rows, rank_counts

if TYPE_CHECKING:
    from .._loss.scoring import Account
    from .._batch.batch import Batch


class Way(Protocol):
    """One call's way home."""

    #: Where a launch that measures a row a sample mails the scores: nowhere, but for :class:`Mailed`.
    home: cuda.Home
    #: Whether a launch that measures makes the mean or the sum of the losses too.
    reduces: bool

    def measure(self, rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> Columns | None:
        """The columns of ``(R, C)`` logits. None: they are on their way already."""

    def send(self, columns: Columns, sequence: str = "mean") -> None:
        """Takes columns home; rows of one sample become one first."""


def choose(account: Account, batch: Batch, device: torch.device) -> Way:
    """The way home of scores that are computed on `device`, in this call."""
    return Traced(account, batch) if torch.compiler.is_compiling() else choose_eager(account, batch, device)


def choose_eager(account: Account, batch: Batch, device: torch.device) -> Way:
    """:func:`choose` outside of a compiler."""
    if device.type != "cuda":
        return OnHost(account, batch)
    native = cuda.kernels(device)
    return Posted(account, batch) if native is None else Mailed(account, batch, device, native)


class OnHost:
    """Measured by the CPU and credited at once; other devices than CUDA ones are waited for."""

    home = cuda.NOWHERE
    reduces = False

    def __init__(self, account: Account, batch: Batch) -> None:
        self._account = account
        self._batch = batch

    def measure(self, rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> Columns:
        return _rows.forward(rows.cpu(), labels.cpu(), None, ignore_index, 0.0).scores()

    def send(self, columns: Columns, sequence: str = "mean") -> None:
        samples = self._batch.ids.shape[0]
        if len(columns.loss) != samples:
            columns = per_sample(torch, columns, samples, sequence)
        floats = (columns.loss, columns.grad_norm, columns.entropy)
        sent: list[Any] = [None if c is None else span(c.detach().to("cpu", torch.float32).contiguous()) for c in floats]
        loss, grad_norm, entropy = sent
        count = None if columns.rank_count is None else span(columns.rank_count)
        self._account.engine().apply_scores(self._batch._ticket, loss, grad_norm, entropy, count)


class Mailed:
    """Measured by a launch of ours, which ranks and mails the scores too."""

    reduces = True

    def __init__(
        self, account: Account, batch: Batch, device: torch.device, native: _native.CudaKernels
    ) -> None:
        self.home = cuda.home(account, batch, device, native)
        self._native = native
        self._samples = batch.ids.shape[0]
        # As many packed tokens as samples are no row a sample.
        self._rows_are_samples = batch.documents is None

    def measure(self, rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> Columns | None:
        if self._rows_are_samples and len(labels) == self._samples:
            cuda.score(self._native, readable(rows), class_indices(labels), ignore_index, self.home)
            return None
        return _rows.forward(rows, labels, None, ignore_index, 0.0, ranks=False).scores()

    def send(self, columns: Columns, sequence: str = "mean") -> None:
        if len(columns.loss) == self._samples:
            cuda.mail_columns(self._native, columns, self.home)
        else:
            cuda.mail_sequences(self._native, columns, self._samples, sequence, self.home)


class Posted:
    """Measured by torch's operators, copied home by torch."""

    home = cuda.NOWHERE
    reduces = False

    def __init__(self, account: Account, batch: Batch) -> None:
        self._account = account
        self._batch = batch

    def measure(self, rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> Columns:
        return device_rows(rows, labels, ignore_index)

    def send(self, columns: Columns, sequence: str = "mean") -> None:
        samples = self._batch.ids.shape[0]
        if len(columns.loss) != samples:
            columns = per_sample(torch, columns, samples, sequence)
        floats, count = _floats(columns), columns.rank_count
        if self._account.mail is None:
            self._account.mail = Mail(self._account)
        counts = rank_counts(floats[0]) if count is None else count
        self._account.mail.post(self._batch._ticket, torch.stack(floats), counts, columns.grad_norm is not None)


class Traced:
    """Measured and sent by operators of the graph that is being made."""

    home = cuda.NOWHERE
    reduces = False

    def __init__(self, account: Account, batch: Batch) -> None:
        self._account = account
        self._batch = batch

    def measure(self, rows: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> Columns:
        if _rows.native_on(rows.device):
            return _rows.traced(rows, labels, None, ignore_index, 0.0).scores()
        return device_rows(rows, labels, ignore_index)

    def send(self, columns: Columns, sequence: str = "mean") -> None:
        samples = self._batch.ids.shape[0]
        if len(columns.loss) != samples:
            columns = per_sample(torch, columns, samples, sequence)
        graph = self._account.graph
        scores, norms = torch.stack(_floats(columns)), columns.grad_norm is not None
        torch.ops.lossfeed.credit(graph.credited, graph.handle, self._batch.ids, scores, norms)


def _floats(columns: Columns) -> list[Any]:
    """Loss, gradient norm and entropy, those that were measured, in float32."""
    floats = (columns.loss, columns.grad_norm, columns.entropy)
    return [column.detach().to(torch.float32) for column in floats if column is not None]

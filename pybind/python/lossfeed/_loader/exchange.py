"""What ranks have learned, exchanged through the trainer's own process group."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .. import _native
from .._base.errors import Error, UsageError
from .._base.torch_imports import torch_half

if TYPE_CHECKING:
    from .._loss.scoring import Account


def exchange(account: Account, rank: int, world_size: int, group: Any) -> None:
    """Gives what this rank has learned to all ranks of ``group``, and takes theirs. Every rank must call it; whatever
    one of them finds wrong is raised on all."""
    if world_size > 1:
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            raise UsageError(
                f"this loader exchanges scores with {world_size - 1} other ranks, but there is no process group: call "
                "torch.distributed.init_process_group first, or leave ranks= out"
            )
        every: _Everybody | _Nobody = _Everybody(distributed, group)
    else:
        every = _Nobody()
    failed: Error | None = None
    try:
        account.deliver(wait=True)
        if account.mailboxes:
            torch_half("mail of a device").cuda.settle(account)
        proposal, news = account.engine().begin_exchange()
    except Error as error:
        # The others wait for this rank: they are told.
        failed, news = error, b""
        proposal = _native.exchange_refusal(rank, str(error).encode("utf-8", "backslashreplace").decode())
    proposals = [text.decode() for text in every.gather(proposal.encode())]
    if failed is not None:
        raise failed
    engine = account.engine()
    if engine.agree(proposals):
        engine.end_exchange(proposals, every.gather(news))


class _Nobody:
    """A world of one."""

    def gather(self, mine: bytes) -> list[bytes]:
        return [mine]


class _Everybody:
    """The ranks of a process group."""

    def __init__(self, distributed: Any, group: Any) -> None:
        import torch

        self._torch, self._distributed, self._group = torch, distributed, group
        # What NCCL moves must lie on a GPU.
        of_gpu = "nccl" in str(distributed.get_backend(group))
        self._device = torch.device("cuda", torch.cuda.current_device()) if of_gpu else torch.device("cpu")

    def gather(self, mine: bytes) -> list[bytes]:
        """Everybody's bytes, in the order of the group's ranks."""
        torch = self._torch
        lengths = [int(length) for length in self._all(torch.tensor([len(mine)]))]
        most = max(lengths)
        if most == 0:
            return [b"" for _ in lengths]
        # All ranks must give equally much.
        padded = torch.frombuffer(bytearray(mine.ljust(most, b"\0")), dtype=torch.uint8)
        found = self._all(padded)
        return [one[:length].cpu().numpy().tobytes() for one, length in zip(found, lengths, strict=True)]

    def _all(self, mine: Any) -> list[Any]:
        mine = mine.to(self._device)
        size = self._distributed.get_world_size(self._group)
        found = [self._torch.empty_like(mine) for _ in range(size)]
        self._distributed.all_gather(found, mine, group=self._group)
        return found

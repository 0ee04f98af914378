"""The loop between batches: optimizer steps are counted, backward passes and collectives timed."""

import functools
import os
import time

from . import rank

_clock = time.perf_counter
_COLLECTIVES = (
    "all_reduce", "barrier", "all_gather", "all_gather_into_tensor", "all_gather_object", "reduce_scatter_tensor",
    "broadcast", "broadcast_object_list", "reduce", "monitored_barrier",
)  # fmt: skip


def count_steps(module):
    """For `torch.optim.optimizer`."""

    def stepped(*_):
        here = rank.known()
        if here is not None:
            here.numbers[rank.STEPS] += 1

    module.register_optimizer_step_post_hook(stepped)


def _timed(original):
    """Ranks wait for each other in it."""
    depth = [0]

    @functools.wraps(original)
    def timed(*args, **keywords):
        here = rank.known()
        if here is None or depth[0] or here.inside or not here.last:
            return original(*args, **keywords)
        depth[0] = 1
        began = _clock()
        try:
            return original(*args, **keywords)
        finally:
            depth[0] = 0
            here.numbers[rank.SYNC] += _clock() - began

    return timed


def time_backward(module):
    """For `torch.autograd`: with several ranks, gradients are exchanged in here."""
    if int(os.environ.get("WORLD_SIZE", 1) or 1) > 1:
        module.backward = _timed(module.backward)


def time_collectives(module):
    """For `torch.distributed.distributed_c10d`."""
    for name in _COLLECTIVES:
        if hasattr(module, name):
            setattr(module, name, _timed(getattr(module, name)))

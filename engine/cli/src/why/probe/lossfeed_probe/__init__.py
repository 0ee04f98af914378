"""The half of `lossfeed why` in the measured program: times of a training loop, written where `why` reads them.

Imports nothing but the standard library, and changes torch only when the program imports it. Each process has a file of
numbers in the folder of its `why`, which outlives the process however that ends.
"""

import sys

from . import imports

#: Module, and where its changes are made: (file here, function).
CHANGES = {
    "torch.utils.data.dataloader": ("loaders", "change_loaders"),
    "torch.utils.data._utils.fetch": ("workers", "change_fetchers"),
    "lossfeed._loader.torch_workers": ("workers", "change_items"),
    "lossfeed._data.process_pool": ("workers", "change_pool"),
    "torch.optim.optimizer": ("steps", "count_steps"),
    "torch.autograd": ("steps", "time_backward"),
    "torch.distributed.distributed_c10d": ("steps", "time_collectives"),
    "lossfeed._loader.epoch_pass": ("own", "change_passes"),
    "lossfeed._loader.stage": ("own", "change_stages"),
}


def prepare(folder: str) -> None:
    """Changes the modules of :data:`CHANGES` when they are imported, if `folder` is one to write to."""
    if not folder or sys.version_info < (3, 9):
        return
    from . import slots

    slots.folder = folder
    imports.when_imported(CHANGES, __name__)

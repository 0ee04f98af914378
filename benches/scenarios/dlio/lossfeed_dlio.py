"""A data loader for DLIO: its folder of JPEG files, read through :class:`lossfeed.Loader`.

DLIO takes it by name, where this file's folder is on ``PYTHONPATH``:

    dlio_benchmark ... ++workload.reader.data_loader_classname=lossfeed_dlio.LossfeedDataLoader \
        ++workload.reader.data_loader_sampler=index

DLIO's settings have no place for a loader's own, so those are environment variables, named in ``run.py``. Each rank
is an accelerator and reads its own share of the files. Batches are the pictures themselves; DLIO's readers deliver one
random picture again and again, whatever they have read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

import lossfeed as lf

FORMATS = (FormatType.JPEG, FormatType.PNG)


class LossfeedDataLoader(BaseDataLoader):
    """Made by DLIO's factory, once for training and once for validation."""

    def __init__(self, format_type: Any, dataset_type: DatasetType, epoch: int) -> None:
        super().__init__(format_type, dataset_type, epoch, DataLoaderType.PYTORCH)
        self._loader: lf.Loader | None = None
        self._epoch = 0

    def read(self) -> None:
        """Opens the folder, before DLIO's clock runs, as its other loaders do."""
        args = self._args
        training = self.dataset_type is DatasetType.TRAIN
        folders = args.num_subfolders_train if training else args.num_subfolders_eval
        if args.format not in FORMATS or args.num_samples_per_file != 1 or folders < 2:
            raise ValueError(
                f"format={args.format}, num_samples_per_file={args.num_samples_per_file}, {folders} subfolders: this "
                "loader reads JPEG and PNG, a sample a file, in two subfolders or more, which it takes for classes"
            )
        disk = os.environ.get("LOSSFEED_DLIO_DISK")
        data = lf.open(
            os.path.join(args.storage_root, args.data_folder, "train" if training else "valid"),
            disk=disk,
            disk_bytes=os.environ.get("LOSSFEED_DLIO_DISK_BYTES", "1GiB") if disk else None,
        )
        self._loader = lf.Loader(
            data,
            batch_size=self.batch_size,
            shuffle=args.sample_shuffle != Shuffle.OFF,
            drop_last=True,
            num_workers=_number("LOSSFEED_DLIO_WORKERS"),
            cache=os.environ.get("LOSSFEED_DLIO_CACHE") or None,
            read_ahead=os.environ.get("LOSSFEED_DLIO_READ_AHEAD"),
            seed=args.seed,
            rank=args.my_rank,
            world_size=args.comm_size,
            stats=False,
        )

    def next(self) -> Iterator[Any]:
        """One epoch's batches."""
        if self._loader is None:
            raise RuntimeError("DLIO asks for batches before it has called read()")
        self._loader.set_epoch(self._epoch)
        self._epoch += 1
        for batch in self._loader:
            yield batch.data

    def finalize(self) -> None:
        """Called after every epoch: there is nothing to end yet."""


def _number(name: str) -> Any:
    text = os.environ.get(name, "auto")
    return text if text == "auto" else int(text)

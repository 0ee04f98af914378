"""The same shards arranged otherwise: sorted by class, or with classes of very different sizes.

``by-class``: neighbours are of one class, as in a folder that was packed as it lay. What new samples that come in runs of
neighbours do to training shows here, and not on shards that were mixed when they were packed.

``long-tail``: the k-th of K classes keeps 100^(−k/(K−1)) of its samples (CIFAR-10-LT, Cui et al., CVPR 2019, imbalance
100). The test shards stay balanced.
"""

from __future__ import annotations

import random
import shutil
import tarfile
from pathlib import Path

from lossfeed.train.files import once, write_tar

WAYS = ("as-packed", "by-class", "long-tail")
IMBALANCE = 100


def arranged(folder: Path, way: str, work_dir: Path) -> Path:
    """A folder of shards like ``folder``, whose training samples lie ``way``; written on first use."""
    if way == "as-packed":
        return folder
    return once(work_dir / f"{folder.name}-{way}", lambda draft: _write(folder, way, draft))


def _write(folder: Path, way: str, draft: Path) -> None:
    shards = sorted(folder.glob("train-*.tar"))
    members: list[tuple[str, bytes]] = []
    for shard in shards:
        with tarfile.open(shard) as tar:
            members += [(info.name, tar.extractfile(info).read()) for info in tar if info.isfile()]
    members.sort()
    if way == "long-tail":
        members = _long_tailed(members)
    share = -(-len(members) // len(shards))
    for k, shard in enumerate(shards):
        write_tar(draft / shard.name, members[k * share : (k + 1) * share])
    for test in folder.glob("test-*.tar"):
        shutil.copy(test, draft / test.name)


def _long_tailed(members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The samples that stay, in random order. The same ones on every machine."""
    by_class: dict[str, list[tuple[str, bytes]]] = {}
    for member in members:
        by_class.setdefault(member[0].split("/")[0], []).append(member)
    draw = random.Random(0)
    kept = []
    for k, of_class in enumerate(by_class.values()):
        draw.shuffle(of_class)
        kept += of_class[: round(len(of_class) * IMBALANCE ** (-k / max(1, len(by_class) - 1)))]
    draw.shuffle(kept)
    return kept

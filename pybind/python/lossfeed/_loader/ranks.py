"""Which rank of how many this process is, and whether that stays true."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from typing import Any, Mapping, NamedTuple

from .._base.checks import whole
from .._base.errors import SettingsError, UsageError
from .._base.signals import of_signal

_REMEDY = (
    "make the loader after the process group (in Lightning: in train_dataloader() of the module or data module; with "
    "Accelerate: after Accelerator()), or pass rank= and world_size="
)


class World(NamedTuple):
    """A rank, and who said so."""

    rank: int
    size: int
    #: In words. None: the arguments, which need not be the group's (ranks that share their data, for example).
    source: str | None

    def agrees(self) -> bool:
        """Whether the process group, if there is one by now, says the same; True too if nobody will ever have to ask
        again.

        Raises:
            UsageError: it says something else: this loader reads another rank's share.
        """
        if self.source is None:
            return True
        group = default_group()
        if group is None:
            return False
        found = group.get_rank(), group.get_world_size()
        if found != (self.rank, self.size):
            raise UsageError(
                f"this loader was made as rank {self.rank} of {self.size} ({self.source}), but the process group "
                f"says rank {found[0]} of {found[1]}: ranks would read the same samples. To mend it, {_REMEDY}"
            )
        return True


class Watch:
    """Asks at every batch whether the world is still the one a loader was made for, until it need not be asked any
    more; and whether all ranks draw by one seed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._settled = world.agrees()
        self._seeds: _Seeds | None = None

    def check(self) -> None:
        """Raises UsageError if a process group that has come since says another rank, SettingsError if another rank has
        another seed."""
        if not self._settled:
            self._settled = self._world.agrees()
        if self._seeds is not None:
            self._seeds.batch()

    def draws(self, samples: int, settings: Mapping[str, Any], seed: int | None) -> None:
        """An epoch of a loader with these settings is about to be drawn by this seed.

        Raises:
            SettingsError: the same loader of another rank has another seed.
        """
        if self._seeds is None:
            group = default_group()
            if group is None or self._world.size == 1 or (group.get_rank(), group.get_world_size()) != self._world[:2]:
                return
            self._seeds = _Seeds(samples, settings, self._world.rank, seed)
        self._seeds.look()


#: How many loaders of these settings this process has, by their digest.
_alike: Counter[str] = Counter()


class _Seeds:
    """The seeds of one loader on all ranks, compared through the process group's key-value store. No rank waits for
    another, which may have no such loader: the first one leaves its seed there, a later one with another seed leaves
    word and is refused, and the others find that word when an epoch begins or at a batch: the 1st, 2nd, 4th, 8th and so
    on. A call of the store takes about 0.1 ms."""

    def __init__(self, samples: int, settings: Mapping[str, Any], rank: int, seed: int | None) -> None:
        same = {name: settings[name] for name in ("batch_size", "drop_last", "world_size", "sampler", "policy", "score")}
        digest = hashlib.sha256(json.dumps([samples, same], sort_keys=True, default=str).encode()).hexdigest()[:16]
        self._key = f"lossfeed/seed/{digest}/{_alike[digest]}"
        _alike[digest] += 1
        self._mine, self._batches = f"rank {rank} has {seed}", 0
        #: None where there is no store, or it is gone: then nothing is compared.
        self._store: Any = None
        try:
            self._store = sys.modules["torch.distributed.distributed_c10d"]._get_default_store()
            first = self._store.compare_set(self._key, "", self._mine).decode()
            if first.rpartition(" ")[2] != str(seed):
                self._store.set(f"{self._key}/differ", f"{first}, {self._mine}")
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if of_signal(error):
            raise error
        self._store = None

    def batch(self) -> None:
        """A batch is asked for."""
        self._batches += 1
        if self._batches & (self._batches - 1) == 0:
            self.look()

    def look(self) -> None:
        """Raises SettingsError if two ranks differ."""
        if self._store is None:
            return
        try:
            word = f"{self._key}/differ"
            found = self._store.get(word).decode() if self._store.check([word]) else None
        except Exception as error:
            return self._give_up(error)
        if found is not None:
            raise SettingsError(
                f"seed= differs between ranks: {found}. Pass the same number on every rank: each draws its own share of "
                "that order. A loader that only some ranks make needs rank=0, world_size=1"
            )


def find(rank: Any, world_size: Any) -> World:
    """The world as given, else the process group's where it is initialised, else that of RANK and WORLD_SIZE in the
    environment (torchrun sets both), else this process alone."""
    if (rank is None) != (world_size is None):
        raise SettingsError(f"rank={rank!r} and world_size={world_size!r}: give both or neither")
    if rank is not None:
        size = whole("world_size", world_size, 1, 2**32 - 1)
        return World(whole("rank", rank, 0, size - 1, " (ranks count from 0 to world_size - 1)"), size, None)
    group = default_group()
    if group is not None:
        return World(group.get_rank(), group.get_world_size(), "from the process group")
    return _environment()


def on_this_machine() -> int:
    """Ranks that share this machine's processors, by LOCAL_WORLD_SIZE in the environment (torchrun sets it); 1 where
    nobody says."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "").strip()
    return int(said) if said.isdecimal() and 1 <= int(said) < 2**16 else 1


def _environment() -> World:
    texts = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE")}
    if texts["RANK"] is None and texts["WORLD_SIZE"] in (None, "1"):
        return World(0, 1, "no process group was there")
    said = " and ".join(f"{name} is {'not set' if text is None else repr(text)}" for name, text in texts.items())
    try:
        rank, size = (int(text) if text is not None and text.strip().isdecimal() else -1 for text in texts.values())
    except ValueError:
        rank = size = -1
    if not 0 <= rank < size:
        raise SettingsError(
            f"in the environment {said}, which names no rank (torchrun sets both; Lightning's own launcher sets "
            f"WORLD_SIZE alone): {_REMEDY}"
        )
    return World(rank, size, "from RANK and WORLD_SIZE in the environment")


def default_group() -> Any:
    """torch.distributed if its default group is initialised. Never imports it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed

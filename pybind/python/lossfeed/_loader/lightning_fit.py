"""Lightning's fit loop, seen from a loader that begins an epoch in it.

Lightning hands a checkpoint's loader states out when it sets its loaders up, and only where it goes on in mid-epoch. They
stay where they are if an optimizer asked for ``trainer.estimated_stepping_batches`` before, and at an epoch's end, with
all scores. So the loader takes its own.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from .._base.errors import ResumeWarning, SettingsError, UsageError

_MODULES = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
#: Frames between a fit loop's epoch and the pass that it begins, at most; there are eleven.
_FRAMES = 20


def _loop() -> Any | None:
    """The fit loop that is about to begin an epoch, or asks for its first batch, in this call."""
    if not any(name in sys.modules for name in _MODULES):
        return None
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame.f_code.co_name in ("on_advance_start", "advance") and frame.f_globals.get("__name__") in _MODULES:
            return frame.f_locals["self"]
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def take_up(loader: Any, again: bool) -> None:
    """Before an epoch of `loader`, a :class:`lossfeed.Loader`: loads its state, if Lightning has read one and kept it.

    Args:
        again: Lightning's iterator is made again, as it may hold what it fetched before.

    Raises:
        UsageError: Lightning goes on in mid-epoch and has no state for the loader.
        SettingsError: ``overfit_batches`` with a loader that draws others each epoch.
    """
    loop = _loop()
    if loop is None:
        return
    if not any(loader is one or loader is getattr(one, "loader", None) for one in loop._combined_loader.flattened):
        return  # a loader for validation
    drawn = loader._given is None or loader._asked.weights is not None
    if loop.trainer.overfit_batches > 0 and drawn and not loader._settings["sampler"].get("in_order"):
        raise SettingsError(
            f"Trainer(overfit_batches={loop.trainer.overfit_batches}) trains on the same batches each epoch, but this "
            "loader draws new ones: make it with shuffle=False and no sampler"
        )
    states, loop._combined_loader_states_to_load = loop._combined_loader_states_to_load, []
    if states:
        _load(loop, states)
        if again:
            iter(loop._data_fetcher)
    batches = loop.epoch_loop.batch_progress
    if loop.restarting and batches.current.ready > 0 and not batches.is_last_batch and not loader._resumed:
        raise UsageError(
            f"Lightning continues after batch {batches.current.ready} of an epoch, but its checkpoint has no state of "
            "this loader, so the epoch would start again: resume from a checkpoint of an epoch's end, or call "
            "load_state_dict on the loader before trainer.fit"
        )


def _load(loop: Any, states: list[Any]) -> None:
    """The kept states, as Lightning loads them; at an epoch's end, where it loads none, those of our loaders."""
    if loop.restarting:
        loop._combined_loader._load_state_dicts(states)
        return
    stateful = [one for one in loop._combined_loader.flattened if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")]
    said = "" if len(stateful) == len(states) else f"it has {len(states)} states, and there are {len(stateful)} loaders"
    for one, state in zip(stateful, states):
        if not said and type(one).__module__.partition(".")[0] == "lossfeed":
            try:
                one.load_state_dict(state)
            except SettingsError as cause:
                said = str(cause)
    if said:
        warnings.warn(
            f"the epoch starts without the scores and position in Lightning's checkpoint: {said}",
            ResumeWarning,
            stacklevel=2,
        )

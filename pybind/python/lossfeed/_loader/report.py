"""An epoch's report, and a loader in a line, as people read them."""

from __future__ import annotations

import json
from typing import Any

from .._base.sizes import shown


def readable(report: str) -> dict[str, Any]:
    """The engine's report (JSON), with ranges as text and pairs as dicts."""
    found: dict[str, Any] = json.loads(report)
    found["uses"] = {_range(least, most): samples for least, most, samples in found["uses"]}
    found["most_used"] = {sample: times for sample, times in found["most_used"]}
    ages = found["score_ages"]
    found["score_ages"] = {f"{least}+" if below is None else f"{least}-{below}": n for least, below, n in ages}
    found["classes"] = {label: (rows, weight) for label, rows, weight in found["classes"]}
    return found


def _range(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least}-{most}"


def described(loader: Any, settings: dict[str, Any], in_force: tuple[str, str, float, str] | None) -> str:
    """A loader's repr. `in_force` is what its engine says of itself; None when it is closed."""
    policy, sampler = settings["policy"], settings["sampler"]["name"]
    if in_force is not None:
        policy, _, _, chosen = in_force
        sampler = chosen if sampler == chosen else f"{sampler} ({chosen})"
    order = "in order" if settings["sampler"].get("in_order") else f"sampler {sampler}"
    size = settings["cache_bytes"]
    cache = "no cache" if size == 0 else f"cache {shown(size)}" + ("" if policy is None else f", policy {policy}")
    if "node" in settings:
        cache = f"cache {shown(settings['node']['bytes'])} of this machine"
    ranks = "" if settings["world_size"] == 1 else f"rank {settings['rank']} of {settings['world_size']}, "
    try:
        batches = f"{len(loader)} batches"
    except TypeError:  # a sampler without a length
        batches = "batches"
    return (
        f"<lossfeed.Loader {len(loader._data)} samples in {batches} of {settings['batch_size']}, {order}, {cache}, "
        f"{ranks}{settings['device']}{'' if in_force is not None else ', closed'}>"
    )

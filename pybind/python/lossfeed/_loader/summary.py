"""A loader for people: what was chosen and why, and what came of it."""

from __future__ import annotations

import logging
from typing import Any

from .._base.sizes import shown

Rows = list[tuple[str, str]]
_WAITS = ("source", "decode", "slot", "copy", "decide", "handover", "score")
_CHANGES = {
    "threads": ("workers_changes_total", "workers_reason"),
    "prefetch requests": ("read_ahead_changes_total", "read_ahead_reason"),
    "prefetch limit": ("read_ahead_limit_changes_total", "read_ahead_limit_reason"),
}

_NEIGHBOURS = {
    "mixed": '; new samples in runs of neighbours ("block": "auto"), whose labels are mixed',
    "alike": "; new samples one by one, as neighbours have the same labels: `lossfeed pack` mixes them",
}


def rows(loader: Any) -> Rows:
    """Names and texts of everything."""
    data = "; ".join(text for _, text in loader._data._said())
    found: Rows = [("data", data), ("batches", _batches(loader)), *_choices(loader)]
    if loader._engine is None:
        return [*found, ("now", "closed")]
    numbers = loader.stats()
    return found + (_results(numbers) if numbers["batches_total"] else [])


def tell(loader: Any) -> None:
    """Logs the choices once, at INFO."""
    logger = logging.getLogger("lossfeed")
    if logger.isEnabledFor(logging.INFO):
        # The number of threads has a line of its own.
        logger.info("%s", "; ".join(f"{name}: {text}" for name, text in _choices(loader) if name != "reading"))


def _batches(loader: Any) -> str:
    settings = loader._settings
    try:
        text = f"{len(loader)} an epoch, of {settings['batch_size']} samples"
    except TypeError:  # a sampler without a length
        text = f"of {settings['batch_size']} samples"
    if settings["world_size"] > 1:
        text += f"; rank {settings['rank']} of {settings['world_size']}"
    return text


def _choices(loader: Any) -> Rows:
    settings, engine = loader._settings, loader._engine
    policy, sampler = settings["policy"], settings["sampler"]["name"]
    if engine is not None:
        policy, _, _, sampler = engine.describe()
    device = f"{settings['device']}, {'PyTorch tensors' if loader._framework == 'torch' else 'NumPy arrays'}"
    if settings["device"] != "cpu" and engine is not None:
        device += f", rows {engine.copy_path()[0]}"
    return [
        ("order", _order(loader, sampler)),
        ("cache", _cache(loader, policy)),
        ("reading", _reading(loader)),
        ("device", device),
    ]


def _order(loader: Any, chosen: str) -> str:
    asked = loader._settings["sampler"]
    if asked["name"] == "given":
        return "your own ids"
    if asked.get("in_order"):
        return "in order; shuffle=True shuffles"
    if asked.get("by_node"):
        return "shuffled by the shared cache's owner, with the other jobs of this machine"
    if asked["name"] != "auto":
        return "shuffled by (seed, epoch)" if chosen == "uniform" else f"sampler {chosen}"
    if chosen == "auto":  # closed, or not begun: nothing was chosen
        return "auto"
    augmented = asked.get("augmented")
    if loader._settings["cache_bytes"] == 0:
        why = "without cache= nothing is gained by drawing unevenly"
    elif chosen == "uniform":
        why = "the cache holds every sample"
    elif augmented is None:
        better = '{"name": "auto", "augmented": True} is better'
        why = f"nothing says whether deliveries vary by chance; if they do, {better}"
    else:
        why = "the transform draws by chance" if augmented else "deliveries do not vary by chance"
    neighbours = loader._engine.neighbours()
    return f"auto chose {chosen}: {why}{_NEIGHBOURS.get(neighbours, '')}"


def _cache(loader: Any, policy: str | None) -> str:
    settings, asked = loader._settings, loader._asked.cache
    if "node" in settings:
        return f"{shown(settings['node']['bytes'])} for all jobs of this machine, encoded (as stored)"
    if settings["cache_bytes"] == 0:
        return "none: every epoch reads everything"
    form = settings["cache_form"]
    if asked.form == "auto":
        form += " (auto: pixels are no larger)" if form == "decoded" else " (auto: as stored)"
    by = "" if asked.policy is not None else " (suits the sampler)"
    return f"{shown(settings['cache_bytes'])}, {form}" + (f", policy {policy}{by}" if policy is not None else "")


def _reading(loader: Any) -> str:
    count, auto = loader._workers, loader._asked.reading.num_workers == "auto"
    if loader._line.reading is not None:
        kind = "worker processes"
    else:
        kind, engine = "threads", loader._engine
        count = count if engine is None else engine.workers()
    return "the thread that takes batches" if count == 0 else f"{count} {kind}" + (" (auto)" if auto else "")


def _results(numbers: dict[str, float]) -> Rows:
    delivered, hits = numbers["samples_total"], numbers["hits_total"]
    found: Rows = [
        ("epoch", "{epoch:.0f}, {batch:.0f} of {batches_per_epoch:.0f} batches taken".format(**numbers)),
        ("delivered", f"{delivered:,.0f} samples in {numbers['batches_total']:,.0f} batches"),
    ]
    if numbers["cache_capacity_bytes"]:
        share = hits / max(numbers["requests_total"], 1)
        found.append(("from cache", f"{hits:,.0f} ({share:.0%}); it holds {numbers['residents']:,.0f} samples"))
    if numbers["fetched_samples_total"]:
        asked = f" in {n:,.0f} requests" if (n := numbers["store_requests_total"]) else ""
        size = shown(numbers["fetched_bytes_total"])
        found.append(("read", f"{numbers['fetched_samples_total']:,.0f} samples, {size}{asked}"))
    waits = {name: numbers[f"wait_{name}_us_total"] for name in _WAITS}
    total = sum(waits.values())
    largest = sorted(waits.items(), key=lambda wait: -wait[1])
    parts = ", ".join(f"{name} {us / total:.0%}" for name, us in largest if us >= 0.05 * total > 0)
    found.append(("waited", f"{numbers['stall_fraction']:.1%} of the time" + (f": {parts}" if parts else "")))
    if numbers["scores_total"]:
        found.append(("scores", f"{numbers['scores_total']:,.0f}; effective sample size {numbers['ess_fraction']:.0%}"))
    if numbers["bad_samples_total"]:
        found.append(("bad samples", f"{numbers['bad_samples_total']:,.0f}: see loader.bad_samples()"))
    for name, (times, reason) in _CHANGES.items():
        if numbers[times]:
            words = getattr(numbers[reason], "words", "?")
            found.append((name, f"changed {numbers[times]:.0f} times, last because {words}"))
    return found

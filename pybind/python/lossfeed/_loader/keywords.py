"""Every keyword of :class:`torch.utils.data.DataLoader`: honoured, or refused with the reason. None is ignored.

``HONOURED`` and ``REFUSED`` together name all of them; a test holds that against torch's own signature.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import multiprocessing.context
import os
import warnings
from typing import Any, get_args

from .. import _native
from .._base import literals
from .._base.checks import LONGEST_S, WORD, choice, did_you_mean, differs, flag, former, real, whole
from .._base.errors import SettingsError, UsageError
from .._base.memory import torch_loaded
from .._base.sizes import parse_bytes

#: Keyword -> what it means here.
HONOURED = {
    "dataset": "the first argument, here called data: what lf.open returns, or anything lf.open takes",
    "batch_size": "samples a batch and rank",
    "shuffle": "True permutes the ids by (seed, epoch); False, or nothing, walks them in order",
    "sampler": "torch's samplers and anything else that gives ids: their order is the plan, taken whole when an epoch "
    "begins; or one of lossfeed's samplers by name (uniform, auto, cost-aware, replay, …)",
    "batch_sampler": "anything that gives lists of ids: its batches are the plan; batch_size= says the most samples of "
    "one where it has no batch_size of its own",
    "num_workers": "worker processes for a Python dataset, else loader threads; \"auto\" finds the number, 0 works in the "
    "calling thread",
    "collate_fn": "called with the list of a batch's samples, of plain pairs the (x, y) rows of the finished batch; what it "
    "returns is the batch's data, or of a pair data and target",
    "pin_memory": "with a CUDA device batches are always page-locked; without one True brings a warning, as in torch",
    "drop_last": "leaves out the batch that would be short",
    "timeout": "seconds to wait for a batch; 0 waits for ever",
    "generator": "the seed is drawn from it when no seed is given; without either, from torch's own generator",
    "prefetch_factor": "batches prepared ahead by each worker; None is 2",
    "persistent_workers": "True keeps nothing that would otherwise be lost: "
    "caches and scores live as long as the loader",
    "worker_init_fn": "called in each worker process; random numbers need none, since samples depend on (seed, epoch, id)",
    "multiprocessing_context": "how worker processes are started",
    "in_order": "batches always come in order, which in_order=False allows too",
}

#: Keyword -> why it cannot be honoured, and what to do instead.
REFUSED = {
    "pin_memory_device": "deprecated in torch too; use device='cuda:N'",
}


def refuse(name: str, value: Any) -> None:
    """Raises for a keyword that cannot be honoured."""
    raise SettingsError(f"{name}={value!r} is refused: {REFUSED[name]}")


def starts(worker_init_fn: Any, context: Any, num_workers: Any) -> None:
    """Checks how worker processes are to be started."""
    if worker_init_fn is not None and not callable(worker_init_fn):
        raise SettingsError(f"worker_init_fn={worker_init_fn!r} must be callable")
    known = multiprocessing.get_all_start_methods()
    if context is not None and num_workers == 0:
        raise SettingsError(f"multiprocessing_context={context!r} with num_workers=0: no process is started: remove it")
    if isinstance(context, str) and context not in known:
        raise SettingsError(f"multiprocessing_context={context!r} is unknown: use {', '.join(known)}")
    if context is not None and not isinstance(context, (str, multiprocessing.context.BaseContext)):
        raise SettingsError(f"multiprocessing_context={context!r} must be one of {', '.join(known)}, or a context of multiprocessing")


def workers(num_workers: Any, prefetch_factor: Any) -> tuple[int | None, int]:
    """(threads, or None for as many as the run needs; batches ahead per thread)."""
    found = num_workers is None or (isinstance(num_workers, str) and num_workers == "auto")
    count = None if found else whole("num_workers", num_workers, 0, 1024, ' or "auto"')
    if prefetch_factor is None:
        return count, 2
    if count == 0:
        raise SettingsError(
            f"prefetch_factor={prefetch_factor!r} with num_workers=0: the calling thread makes each batch on demand, "
            "so nothing is prefetched: remove it, or use num_workers=1 or more"
        )
    return count, whole("prefetch_factor", prefetch_factor, 1, 1024)


def sampler(value: Any, shuffle: Any) -> dict[str, Any]:
    """The engine's sampler settings, from a name or a dict with "name" and options; of whatever gives ids too."""
    if shuffle is not None:
        shuffle = flag("shuffle", shuffle)
    if value is None:
        return {"name": "uniform", "in_order": shuffle is not True}
    if isinstance(value, str):
        settings: dict[str, Any] = {"name": value}
    elif isinstance(value, dict):
        settings = dict(value)
        if not isinstance(settings.get("name"), str):
            raise SettingsError(f"sampler={value!r} has no name: write {{'name': 'cost-aware', 'kappa': 64}}")
    else:
        return {"name": "given"}
    if isinstance(settings.get("bytes"), str):
        settings["bytes"] = parse_bytes(f"sampler {settings['name']}: bytes", settings["bytes"])
    _check_sampler(settings)
    if shuffle is False:
        if settings["name"] != "uniform":
            raise SettingsError(
                f"shuffle=False with sampler {settings['name']!r}: it draws at random; leave one of them out"
            )
        settings.setdefault("in_order", True)
    return settings


def by_node(sampler: dict[str, Any], shuffle: Any) -> dict[str, Any]:
    """The engine's sampler settings where the shared cache's owner makes the order, in place of `sampler`."""
    if sampler["name"] != "uniform" or sampler.keys() - {"name", "in_order"}:
        raise SettingsError(f"order=\"node\" with sampler {sampler['name']!r}: the order is the sampler; leave one out")
    if shuffle is False:
        raise SettingsError('order="node" with shuffle=False: the order is shuffled; leave one out')
    return {"name": "uniform", "by_node": True}


#: What the engine's names of types mean to whoever sets an option.
_KINDS = {
    "u32": "a whole number from 0 on",
    "u64": "a whole number from 0 on",
    "usize": "a whole number from 0 on",
    "f32": "a number",
    "f64": "a number",
    "a boolean": "True or False",
    'a whole number or "auto"': "a whole number or 'auto'",
}


def _check_sampler(settings: dict[str, Any]) -> None:
    """Refuses names and options that no sampler has, and values of another kind."""
    name, known = settings["name"], dict(_native.sampler_options())
    if name not in known:
        raise SettingsError(f"sampler {name!r} is unknown{did_you_mean(name, known)}: use {', '.join(known)}")
    # `order="node"` sets the last one.
    options = sorted(set(known[name]) - {"by_node"})
    for option, setting in settings.items():
        if option != "name" and option not in options:
            has = f"it has {', '.join(options)}" if options else "it has none"
            raise SettingsError(f"sampler {name} has no option {option!r}{did_you_mean(option, options)}: {has}")
        if isinstance(setting, float) and not math.isfinite(setting):
            raise SettingsError(f"sampler {name}: {option}={setting} must be a finite number")
        if not isinstance(setting, (bool, int, float, str, type(None))):
            raise SettingsError(f"sampler {name}: {option}={setting!r} is neither a number, a bool nor text")
    problem = _native.sampler_problem(json.dumps(settings))
    if problem is not None:
        option, why = problem
        if not option:
            raise SettingsError(why)
        wanted = next((words for kind, words in _KINDS.items() if why.endswith(f"expected {kind}")), None)
        said = f"must be {wanted}" if wanted else f"is refused: {why}"
        raise SettingsError(f"sampler {name}: {option}={settings[option]!r} {said}")


def policy(value: Any) -> str | None:
    """The name of a policy that a training run can use."""
    if value is None:
        return None
    known = [name for name, *_ in _native.cache_policies()]
    if (name := str(value)) in known:
        return name
    if name.lower() in _native.policies_in_the_lab():
        raise SettingsError(
            f"policy={value!r} is in the program lossfeed-lab (`lossfeed-lab replay` compares it): use {', '.join(known)}"
        )
    raise SettingsError(f"policy={value!r} is unknown{did_you_mean(name, known, WORD)}: use {', '.join(known)}")


def seed(value: Any, generator: Any) -> int | None:
    """The seed as given; None if it is to be drawn, from `generator` or torch's own."""
    if value is not None and generator is None:
        return whole("seed", value, 0, 2**64 - 1)
    if generator is None:
        return None
    if value is not None:
        raise SettingsError("seed and generator both given: leave one out")
    torch = torch_loaded()
    if torch is None or not isinstance(generator, torch.Generator):
        raise SettingsError(f"generator={generator!r} must be a torch.Generator; with NumPy pass seed=")
    return None


def device(value: Any, pin_memory: Any) -> str:
    """The device as "cpu", "cuda" or "cuda:N"."""
    name = str(value)
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index not in ("", "0")):
        raise SettingsError(f"device={name!r} is unknown: use cpu, cuda or cuda:N")
    if flag("pin_memory", pin_memory) and kind == "cpu":
        warnings.warn(
            "pin_memory=True with device='cpu': CPU batches are not page-locked; with device='cuda' they are, and are "
            "delivered on the device",
            UserWarning,
            stacklevel=4,  # whoever makes the loader
        )
    return "cpu" if kind == "cpu" else name


def pin_memory_device(value: Any, on_device: str) -> None:
    """torch's former word for the device: nothing but a warning if it says what ``device=`` says."""
    if value and str(value) not in (on_device, on_device.partition(":")[0]):
        refuse("pin_memory_device", value)
    if value:
        warnings.warn(f"pin_memory_device={value!r} is deprecated: use device={on_device!r}", UserWarning, stacklevel=4)


def framework(value: Any, on_device: str) -> str:
    """"torch" or "numpy": asked for, or torch if this process has imported it."""
    name = choice("framework", value, "auto", "torch", "numpy")
    if on_device != "cpu":
        if name == "numpy":
            raise SettingsError(
                f"framework='numpy' with device={on_device!r}: NumPy arrays live in host memory; use device='cpu'"
            )
        name = "torch"
    if name == "auto":
        name = "torch" if torch_loaded() is not None else "numpy"
    try:
        __import__(name)
    except ImportError as cause:
        raise UsageError(
            f"batches as {name} need it installed: pip install {name}, or choose framework='torch' or "
            "'numpy'"
        ) from cause
    return name


def score(value: Any) -> str | None:
    """The name of a score; None suits policy and sampler."""
    if value is None:
        return None
    if isinstance(value, str) and value == "rank":
        former("score='rank'", "score='batch_rank'")
        return "batch_rank"
    known: tuple[str, ...] = get_args(literals.Score)
    return choice("score", value, *known)


def scores(value: Any, score: Any) -> Any:
    """What ``scores="batch"`` makes of ``score``: a control in one word."""
    if value is None:
        return score
    if score not in (None, "batch"):
        raise UsageError(f"scores={value!r} scores by the batch's mean loss and score={score!r} by another: remove one")
    if value != "batch":
        raise SettingsError(f"scores={value!r} is unknown: use 'batch', or leave it out")
    return value


def journal(given: Any, rank: int, ranks: int) -> str | None:
    """The journal's file of this rank."""
    if given is None:
        return None
    try:
        path = os.path.abspath(os.fsdecode(given))
    except (TypeError, ValueError) as cause:
        raise SettingsError(f"journal={given!r} is not a path: give the file for the run's journal") from cause
    if ranks > 1 and "{rank}" not in path:
        raise SettingsError(
            f"journal={given!r} is one file for {ranks} ranks: put {{rank}} into its name, each writes its own"
        )
    return path.replace("{rank}", str(rank))


def score_file(given: Any, every: Any, ranks: int, exchange: bool) -> dict[str, Any]:
    """The engine's settings for the file of beliefs."""
    if given is None:
        if differs(every, 60.0):
            raise SettingsError(f"score_file_every={every!r} without score_file=: there is no file to write; give one")
        return {}
    try:
        path = os.path.abspath(os.fsdecode(given))
    except (TypeError, ValueError) as cause:
        raise SettingsError(
            f"score_file={given!r} is not a path: give the file for the scores, which need not exist"
        ) from cause
    if ranks > 1 and not exchange and "{rank}" not in os.path.basename(path):
        raise SettingsError(
            f"score_file={given!r} is one file for {ranks} ranks: put {{rank}} into its name, each writes what it has "
            "learned itself"
        )
    return {"score_file": path, "score_file_every": real("score_file_every", every, 0.01, LONGEST_S)}

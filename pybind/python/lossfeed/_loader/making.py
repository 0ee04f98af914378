"""Making a loader: its keywords are checked one by one, then its engine and what goes with it are made."""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Any, Callable, NamedTuple

from .. import _native
from .._base import checks
from .._base.errors import ResumeWarning, SettingsError
from .._base.torch_imports import torch_half
from .._batch.courier import Courier
from .._batch.usage import Uses
from .._batch.views import Views
from .._data.data import Data
from .._data.pictured import Pictures
from .._data.random_items import refuse_random_items
from .._data.reopening import open_for
from .._loss.scoring import Account
from .._transform import beside, image, per_image
from .._transform.mixing import Mixer
from . import keywords, ranks, reading as _reading, user_order
from .epoch_pass import Line
from .options import Options
from .seeds import Seeds
from .torch_workers import TorchReading


class Made(NamedTuple):
    """What a loader is made of."""

    engine: _native.Engine
    data: Data
    #: The dataset as it was opened, before its items were left to worker processes; None if nobody opened it yet.
    opened: Data | None
    #: "torch" or "numpy".
    framework: str
    #: Loader threads.
    workers: int
    #: The engine's settings.
    settings: dict[str, Any]
    line: Line
    #: The user's own order; None where the engine draws.
    given: user_order.UserOrder | None
    #: Where the seed comes from; None if it was given.
    seeds: Seeds | None


class _Delivery(NamedTuple):
    """How batches come out."""

    device: str
    views: Views
    courier: Courier | None
    #: Whether chance changes every delivery of a sample.
    random: bool
    #: The transform's settings, for loader threads to apply; None where nobody does, or the device.
    transform: dict[str, Any] | None
    #: The settings of a crop of images of any size, for loader threads; None without.
    crop: dict[str, Any] | None
    #: Those of changes of colours, for loader threads; None without, or where the device makes them.
    jitter: dict[str, Any] | None
    #: Those of automatic augmentation, likewise.
    augment: dict[str, Any] | None
    #: Its native form; None without.
    fitted: _native.ImageTransform | None
    #: Those of masks and boxes, for loader threads; None without.
    beside: dict[str, Any] | None = None
    #: Where the user's ``collate_fn`` has made batches of samples in host memory, and they are to go to a device.
    move_to: str | None = None
    #: What the user does with a batch's data when it is handed out.
    of_batches: Callable[..., Any] | None = None


def make(asked: Options) -> Made:
    """A loader's parts, from what it was asked for."""
    _refuse(asked)
    device = keywords.device(asked.device, asked.pin_memory)
    keywords.pin_memory_device(asked.pin_memory_device, device)
    framework = keywords.framework(asked.framework, device)
    found = _reading.find(asked, framework, device)
    reading: TorchReading | None = None
    opened: Data | None = None
    if found is not None:
        reading, data = found
        alone = True
    else:
        names = asked.transform._named if isinstance(asked.transform, image.ImageTransform) else None
        named = None if names is None or not names.any else beside.asked(names)
        data = open_for(asked.source, asked.collate_fn is not None or asked.batch_sampler is not None, named)
        if asked.ids is not None:
            data = data.subset(asked.ids)
        opened = data
        data, collate_fn, alone = _reading.for_engine(asked, data, framework, _pictures_of(asked, data))
        asked = dataclasses.replace(asked, collate_fn=collate_fn)
    timeout_s = checks.seconds("timeout", asked.reading.timeout)
    world = ranks.find(asked.rank, asked.world_size)
    order = user_order.find(asked, len(data), world.size)
    # A rank that brings its own ids has no share that a process group could say otherwise about.
    watch = ranks.Watch(world if order is None else world._replace(source=None))
    delivery = _delivery(asked, data, device, framework, world.rank, reading is not None)
    settings = _settings(asked, data, world, delivery, order, alone)
    seeds = _seeds(asked, settings, framework)
    text = json.dumps(settings, allow_nan=False)
    cached = settings["cache_bytes"] > 0 or "node" in settings
    if cached and not asked.cache.frozen_augmentation:
        refuse_random_items(data)
    engine, courier = _native.Engine(data._native, text), delivery.courier
    damaged = engine.damaged_scores()
    if damaged is not None:
        warnings.warn(damaged, ResumeWarning, stacklevel=3)  # whoever makes the loader
    if settings["workers"] is None:
        _reading.tell_threads(data, engine.workers())
    reads = _reading.reads(reading, data)
    if reads is not None:
        engine.read_by(reads.processes)
    fitted = delivery.fitted
    mixer = Mixer(fitted, world.rank) if fitted is not None and fitted.mixes else None
    mixes = mixer is not None
    uses = Uses(settings["sampler"]["name"], engine.describe()[3], cached, reads, mixes)
    account = Account(engine, settings["batch_size"], uses)
    if framework == "torch":
        half = torch_half("framework='torch'")
        # At once, for a compiled step looks at them: it must not find something else after the first eager call.
        account.graph = half.graph.Graph(account)
        account.plans = None if courier is None else half.plans.Plans()
    if courier is not None:
        courier.start(engine)
    of_passes = timeout_s, settings["seed"], watch, engine.batches_per_epoch()
    spares = asked.reading.max_slots is None
    ways = delivery.move_to, delivery.of_batches, mixer
    line = Line(account, delivery.views, courier, asked.collate_fn, *of_passes, spares, *ways, reading)
    workers = engine.workers() if reading is None else reading.workers or 0
    return Made(engine, data, opened, framework, workers, settings, line, order, seeds)


def _seeds(asked: Options, settings: dict[str, Any], framework: str) -> Seeds | None:
    """Where the seed comes from, if it was not given. `settings` get what is known of it now."""
    if settings["seed"] is not None:
        return None
    settings["seed"] = 0
    # Ranks must draw by one seed: as torch's DistributedSampler has it, 0.
    alone = settings["world_size"] == 1 and not settings["exchange"]
    if asked.generator is None and framework != "torch":
        return None
    shuffles = asked.shuffle is True and settings["sampler"]["name"] != "given"
    if asked.generator is None and not alone:
        return Seeds(None, shuffles)
    if settings["world_size"] > 1 and settings["sampler"]["name"] != "given":
        # Another one on each rank is common where torch's DistributedSampler makes the orders: it has a seed of its own.
        raise SettingsError(
            f"generator= with {settings['world_size']} ranks: each rank would draw its own seed, so samples would "
            "repeat and be missing: pass the same seed= on every rank"
        )
    seeds = Seeds(asked.generator, shuffles)
    if alone and settings["journal"] is None:
        settings["open_seed"] = True
    else:
        # A journal's head has the seed.
        settings["seed"] = seeds.draw()
    return seeds


def _refuse(asked: Options) -> None:
    """Refuses what no loader can honour."""
    checks.flag("in_order", asked.in_order)
    if (asked.data is None) == (asked.dataset is None):
        raise SettingsError("give the dataset once: lf.Loader(data, …) or dataset=")
    if asked.batch_size is None:
        raise SettingsError(
            "batch_size=None is refused, because scoring needs batches. For single samples as in torch write "
            "batch_size=1, collate_fn=lambda items: items[0]; for a sampler that gives lists of ids, batch_sampler=sampler"
        )
    if asked.collate_fn is not None and not callable(asked.collate_fn):
        raise SettingsError(f"collate_fn={asked.collate_fn!r} must be callable")


def _delivery(
    asked: Options, data: Data, device: str, framework: str, rank: int, read: bool
) -> _Delivery:
    """How batches come out. `read`: the engine has numbers alone, and the items are read elsewhere."""
    of_batches = _of_batches(asked.transform, framework)
    transform = None if asked.transform is None or of_batches is not None else image.transform(asked.transform)
    structure = data._structure
    if transform is not None and structure is not None and not data._native.images:
        raise SettingsError(
            "an ImageTransform is for pairs (image, target) and for samples with a picture, and this dataset's "
            "samples are "
            "others: give a function of batch.data, transform=function"
        )
    made = None if transform is None else transform._fit(data._native)
    specs = data._native.fields if made is None else [made.spec]
    channels_last: tuple[int, ...] = (0,) if transform is not None and transform._layout == "channels_last" else ()
    if of_batches is not None:
        channels_last = _pictures(data)
    tails: dict[str, Any] | None = None
    if of_batches.moves if isinstance(of_batches, per_image.PerImage) else transform is not None and transform._alone:
        beside.notice_left(data, None if transform is None else transform._named.image)
    if transform is not None:
        tails, structure = beside.find(transform._named, data, transform._steps(data._native).settings)
    views = Views(framework, specs, data._native.target_spec, channels_last, structure, asked.pad)
    settings, crop, jitter, augment = (None, None, None, None) if transform is None else transform._steps(data._native)
    # What a function of the user's draws cannot be known.
    random = of_batches is not None or (made is not None and made.random)
    if made is not None and made.mixes and asked.collate_fn is not None:
        raise SettingsError(
            "mixup= and cutmix= do not work with collate_fn=: remove one of them, or mix in the collate_fn"
        )
    if asked.collate_fn is not None and views.packs:
        raise SettingsError("pad= does not work with collate_fn=: remove one of them")
    if read:
        move_to = None if device == "cpu" else device
        return _Delivery("cpu", views, None, random, None, None, None, None, None, None, move_to, of_batches)
    if device == "cpu":
        return _Delivery(device, views, None, random, settings, crop, jitter, augment, made, tails, None, of_batches)
    if structure is not None and asked.collate_fn is not None:
        return _Delivery("cpu", views, None, random, settings, crop, jitter, augment, made, tails, device, of_batches)
    courier = Courier(device, views, made, rank)
    by_threads = settings if courier.host_transforms else None
    if transform is not None and transform._retouch == "auto" and not courier.host_transforms:
        jitter = augment = None  # the device's work too
    by_host = by_threads, crop, jitter, augment, made, tails
    return _Delivery(courier.name, views, courier, random, *by_host, None, of_batches)


def _of_batches(transform: Any, framework: str) -> Callable[..., Any] | None:
    """A transform that is a function of a batch's data, or torchvision's."""
    if not callable(transform) or isinstance(transform, (type, image.ImageTransform)):
        return None
    return per_image.of_batches(transform, framework)


def _pictures_of(asked: Options, data: Data) -> Pictures | None:
    """The parts of a Python dataset's items that an image transform takes encoded, each picture of its own size."""
    transform = asked.transform
    if not isinstance(transform, image.ImageTransform):
        return None
    # The pictures of a cache that is a share of all of them have one size.
    return beside.pictures(transform._named, data, transform._one_size and not asked.cache.is_share)


def _pictures(data: Data) -> tuple[int, ...]:
    """Which fields are pictures, in memory with their channels last: those of files, and PIL's of a Python dataset."""
    if data._native.images:
        return (0,)
    structures = [data._structure] if data._structure is not None else [a.structure for a in data._adaptors]
    leaves = structures[0].leaves if structures else ()
    return tuple(leaf.number for leaf in leaves if leaf.given == "image" and leaf.place == "field")


def _settings(
    asked: Options, data: Data, world: ranks.World, delivery: _Delivery, order: user_order.UserOrder | None, alone: bool
) -> dict[str, Any]:
    """The engine's settings. `alone`: the calling thread reads, whatever the number of workers."""
    sampler = keywords.sampler(asked.sampling.sampler, asked.shuffle)
    if order is not None:
        sampler = {"name": "given", "batches": order.batches}
    if asked.sampling.order is not None:
        sampler = keywords.by_node(sampler, asked.shuffle)
    if sampler["name"] == "auto" and sampler.get("augmented") is None and asked.transform is not None:
        sampler["augmented"] = delivery.random
    batch_size, drop_last = checks.whole("batch_size", asked.batch_size, 1), checks.flag("drop_last", asked.drop_last)
    if order is not None:
        batch_size = order.batch_size
    elif not drop_last:
        # As in torch: what is larger than a rank's samples is one short batch, whose memory is that of its samples.
        batch_size = min(batch_size, -(-len(data) // world.size))
    return {
        "batch_size": batch_size,
        "drop_last": drop_last,
        "seed": keywords.seed(asked.seed, asked.generator),
        "rank": world.rank,
        "world_size": world.size,
        "local_ranks": ranks.on_this_machine(),
        "transform": delivery.transform,
        "crop": delivery.crop,
        "jitter": delivery.jitter,
        "augment": delivery.augment,
        "beside": delivery.beside,
        "sampler": sampler,
        "device": delivery.device,
        "job": None if asked.job is None else str(asked.job),
        "stats": checks.flag("stats", asked.stats),
        "journal": keywords.journal(asked.journal, world.rank, world.size),
        **asked.cache._settings(data),
        **asked.sampling._settings(world.size),
        **asked.reading._settings(alone),
    }

"""A loader's options by topic: the cache, the sampling, the reading. They check themselves and go to the engine."""

# Annotations are types here, not text: builders of command lines read those of dataclasses.
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from .._base import checks, literals
from .._base.errors import SettingsError
from .._base.sizes import parse_bytes, parse_cache
from .._base.spelling import Spelled
from . import keywords

if TYPE_CHECKING:
    from .._data.data import Data


class Topic(Spelled):
    """Options of one topic: frozen, equal by value, copied and pickled by their fields."""

    #: Field -> the keyword of ``lf.Loader``, where its name is another.
    LOADERS: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        self._check(lambda field: field)

    def _check(self, named: Callable[[str], str]) -> None:
        """Refuses wrong values. `named`: what the caller typed for a field."""
        raise NotImplementedError

    @classmethod
    def _of(cls, keyword: str, value: Any, **flat: Any) -> Self:
        """From ``keyword=value`` of ``lf.Loader`` if that is such an object, else from its flat keywords, by field."""
        fields = {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        first = next(iter(fields))
        named = {field: cls.LOADERS.get(field, field) for field in fields}
        if isinstance(value, cls):
            for field, said in flat.items():
                if checks.differs(said, fields[field]):
                    write = repr(said) if field == first else f"…, {field}={said!r}"
                    raise SettingsError(
                        f"{named[field]}={said!r} beside {keyword}=lf.{cls.__name__}(…), which says it: "
                        f"write {keyword}=lf.{cls.__name__}({write})"
                    )
            return value
        if first not in flat:
            flat = {first: value, **flat}
        elif value is not None:
            kind = cls.__name__
            raise SettingsError(f"{keyword}={value!r} must be a lossfeed.{kind}: write {keyword}=lf.{kind}(…)")
        made = object.__new__(cls)
        for field, said in flat.items():
            object.__setattr__(made, field, said)
        made._check(named.__getitem__)
        return made

    def _given(self) -> dict[str, Any]:
        """The fields that are not as by default, by the loader's flat keywords."""
        return {self.LOADERS.get(name, name): value for name, value in self._not_default().items()}

    def _not_default(self) -> dict[str, Any]:
        fields = {field.name: field.default for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, d in fields.items() if checks.differs(value := getattr(self, name), d)}

    def __repr__(self) -> str:
        first, *_ = dataclasses.fields(self)  # type: ignore[arg-type]
        given = self._not_default()
        said = [repr(value) if name == first.name else f"{name}={value!r}" for name, value in given.items()]
        return f"lossfeed.{type(self).__name__}({', '.join(said)})"


@dataclass(frozen=True, repr=False)
class Cache(Topic):
    """Samples kept in host memory: ``lf.Loader(data, cache=lf.Cache("32GiB", policy="lru"))``.

    Args:
        size: the limit in bytes (int), as text (``"2GiB"``), or as a share of the dataset (``"20%"``, or a float from 0
            to 1). It is never exceeded. None, the default, or 0: no cache. ``loader.resize_cache`` changes it later.
        form: ``"encoded"`` keeps the source's bytes, ``"decoded"`` pixels. ``"auto"``, the default, keeps pixels if
            ``lf.open(resize=…)`` made them fewer bytes. The loader's keyword is ``cache_form``.
        policy: which sample leaves when the cache is full, a word of :data:`lossfeed.typing.Policy`. None, the default,
            suits the sampler: minio for uniform (belady with several ranks) and ods, shade for pads and shade-as-coded,
            fifo for echo and replay, else importance. ``lossfeed replay --help`` describes each.
        copy_path: how cached rows get to a CUDA device: ``"gathered"`` (loader threads gather a batch, which is copied
            as a whole), ``"batched"`` (the driver copies each row from the cache, in one call; driver 570 or newer) or
            ``"mapped"`` (a kernel reads the rows over the bus). ``"auto"``, the default, takes the fastest, measured
            when the loader is made; see :meth:`lossfeed.Loader.copy_paths`. Samples that loader threads decode or
            transform are always gathered, and all under WSL 2.
        frozen_augmentation: True keeps each sample of a Python dataset as first read, although the dataset draws at
            random. False, the default, refuses such a dataset.
        share: ``"node"``: one cache for all loaders of this user on this machine, ranks and jobs alike, instead of one
            for each. The first loader starts the process that owns it; it ends a minute after the last one, and
            ``lossfeed node ls`` shows it. What all jobs together draw most stays; jobs whose pixels differ by
            ``resize=`` or ``form`` keep their own. None, the default: a cache of its own.

    Raises:
        SettingsError: a value is wrong; the message names it and the remedy.
    """

    LOADERS: ClassVar[Mapping[str, str]] = {"size": "cache", "form": "cache_form"}

    size: int | float | str | None = None
    _: KW_ONLY
    form: literals.CacheForm = "auto"
    policy: literals.Policy | None = None
    copy_path: literals.CopyPath = "auto"
    frozen_augmentation: bool = False
    share: literals.CacheShare | None = None

    def _check(self, named: Callable[[str], str]) -> None:
        parse_cache(self.size, lambda: 0, named("size"))
        checks.choice(named("form"), self.form, "auto", "encoded", "decoded")
        keywords.policy(self.policy)
        checks.choice("copy_path", self.copy_path, "auto", "gathered", "batched", "mapped")
        checks.flag("frozen_augmentation", self.frozen_augmentation)
        if self.share is not None:
            self._check_share()

    def _check_share(self) -> None:
        checks.choice("share", self.share, "node")
        if not self.is_on:
            raise SettingsError(f'share="node" with size={self.size!r}: give the size of the shared cache, as "32GiB"')
        for option, value, default in [("policy", self.policy, None), ("copy_path", self.copy_path, "auto")]:
            if value != default:
                raise SettingsError(
                    f'{option}={value!r} with share="node": what all jobs draw decides what the shared cache keeps, '
                    f"and its samples are gathered; remove {option}="
                )

    @staticmethod
    def _owner() -> list[str]:
        """The command that starts the shared cache's owner."""
        return [sys.executable, "-m", "lossfeed", "node", "serve", "--detach"]

    @property
    def is_on(self) -> bool:
        """Whether samples are kept at all."""
        return parse_cache(self.size, lambda: 1 << 62) > 0

    @property
    def is_share(self) -> bool:
        """True if the size is a share of the dataset."""
        return isinstance(self.size, float) or (isinstance(self.size, str) and self.size.strip().endswith("%"))

    def _settings(self, data: "Data") -> dict[str, Any]:
        """The engine's settings."""
        # The shared cache keeps no pixels of pictures that have something beside them.
        alone = self.share is None or data._structure is None
        form = data._cache_form(self.form if alone or self.form != "auto" else "encoded")
        size = parse_cache(self.size, lambda: data.cache_bytes(form))
        node = {} if self.share is None else {"node": {"bytes": size, "command": self._owner()}}
        return {
            **node,
            "cache_bytes": 0 if node else size,
            "cache_form": form,
            "copy_path": None if self.copy_path == "auto" else self.copy_path,
            "policy": None if self.policy is None else str(self.policy),
        }


@dataclass(frozen=True, repr=False)
class Sampling(Topic):
    """The order of the samples, and the scores that decide it: ``lf.Loader(data, sampling=lf.Sampling("auto"))``.

    Args:
        sampler: a name, or a dict of the name and options (``{"name": "cost-aware", "kappa": 64}``). Without scores:

            * ``"uniform"``: every id once an epoch, shuffled. None, the default: in order, unless ``shuffle``;
            * ``"ods"``: Seneca's, each id once; ``"echo"``: the cache as a buffer that turns over.

            By scores; ``batch.weight`` makes the loss unbiased again:

            * ``"auto"``, the one to use with a cache: ``"replay"`` where the transform is random, ``"cost-aware"``
              where it is not, ``"uniform"`` where there is nothing to gain. It goes by scores from the epoch after
              ``batch.weight`` was read, which :meth:`lossfeed.Loader.cross_entropy` does. Options: ``"augmented"``
              (True if your loop augments batches, False if nothing does), ``"fetches": 0.1`` (the part of the rows
              that may be read), ``"stall": 0.05`` (the part of the time that may be waited), ``"bytes": "200GB",
              "epochs": 90`` (a budget for so many epochs);
            * ``"cost-aware"``: least gradient variance per byte fetched; ``"importance"``; ``"replay"``: as ``"echo"``,
              with scores; ``"iis"``: iCACHE's; ``"infobatch"``;
            * biased: ``"pads"`` (SHADE's), ``"selective"``, ``"curriculum"``, ``"shade-as-coded"``.

            ``"block": 64`` has new samples of ``"echo"`` and ``"replay"`` come in runs of neighbours, ``"block": "auto"``
            in runs as long as requests are dear; ``"auto"`` does so by itself where neighbours' labels are mixed. Or a
            sampler object, torch's or whatever else gives ids: an epoch is taken from it whole when the epoch begins,
            as much as its ``len()``, and each rank gets what its own gives.
        score: the measurement that becomes a sample's importance: ``"gradient_norm"``, ``"loss"``, ``"entropy"`` or
            ``"batch_rank"`` (the place of its loss in its batch; formerly ``"rank"``), or ``"batch"``, the mean loss of
            its batch, a control (``scores="batch"`` means the same). None, the default, chooses by policy and sampler,
            or the loss if the first scores have nothing else. It stays fixed for the run.
        smoothing: weight of the old importance when a new score comes, at least 0 and below 1. None: 0 for batch ranks,
            else 0.5.
        ranks: ``"own"``, the default: each rank draws from its own share of the samples for the whole run.
            ``"exchange"``: all ranks draw one order by what all have learned, and each takes its part; see
            :meth:`lossfeed.Loader.exchange`.
        order: ``"node"``, with ``Cache(share="node")``: the shared cache's owner shuffles. Each epoch has every sample
            once; jobs that read the dataset at the same time get the same samples at about the same time, so that of J
            jobs each fetches about one of J samples that the cache does not keep. An epoch that begins beside another
            job's starts where that one is. One rank a job; not with another sampler. None, the default: an order of its
            own.
        score_file: a file that keeps importances; None, the default: none. A loader that is given it again begins with
            them, on any number of ranks. It is written by a thread and at ``close``; a killed process leaves the old
            file or the new one, whole. 12 bytes a scored sample, mode 600; links are not followed. With several ranks
            its name holds ``{rank}``: each writes its own and all read all (with ``ranks="exchange"`` the first rank's
            file is all ranks'). ``load_state_dict`` replaces what was read. A damaged file is a
            :class:`lossfeed.ResumeWarning` and is not used; one of another dataset or score is refused when the loader
            is made. A failed write is logged and tried again.
        score_file_every: seconds from one writing to the next, at least; 60 by default, 0.01 at least.

    Raises:
        SettingsError: a value is wrong; the message names it and the remedy.
    """

    sampler: literals.Sampler | dict[str, Any] | Iterable[int] | None = None
    _: KW_ONLY
    score: literals.Score | None = None
    smoothing: float | None = None
    ranks: literals.Ranks = "own"
    order: literals.Order | None = None
    score_file: str | os.PathLike[str] | None = None
    score_file_every: float = 60.0

    def _check(self, named: Callable[[str], str]) -> None:
        if isinstance(self.sampler, (str, dict)):
            keywords.sampler(self.sampler, None)
        if isinstance(self.sampler, dict):
            object.__setattr__(self, "sampler", dict(self.sampler))
        object.__setattr__(self, "score", keywords.score(self.score))
        if self.smoothing is not None and checks.real("smoothing", self.smoothing) >= 1.0:
            raise SettingsError(f"smoothing={self.smoothing!r} must be at least 0 and below 1: 0 keeps the newest score")
        checks.choice("ranks", self.ranks, "own", "exchange")
        if self.order is not None:
            checks.choice("order", self.order, "node")
        keywords.score_file(self.score_file, self.score_file_every, 1, False)

    def _settings(self, ranks: int) -> dict[str, Any]:
        """The engine's settings, but for the sampler's."""
        exchange = self.ranks == "exchange"
        return {
            "exchange": exchange,
            "score": self.score,
            "smoothing": None if self.smoothing is None else float(self.smoothing),
            **keywords.score_file(self.score_file, self.score_file_every, ranks, exchange),
        }


@dataclass(frozen=True, repr=False)
class Reading(Topic):
    """How samples are read ahead of their batches: ``lf.Loader(data, reading=lf.Reading(8, read_ahead="1GiB"))``.

    Args:
        num_workers: worker processes that read a Python dataset, as torch's; threads for files, arrays, lists and
            datasets with ``thread_safe = True``. 0: the calling thread reads, and a dataset draws from its random
            generators; with workers what it draws depends on (seed, epoch, id). ``"auto"``, the default, and None: a
            process for each processor of this rank, 8 at most, where processes are forked, else the calling thread; as
            many threads as the run needs. Batches do not depend on it. The logger ``lossfeed`` logs the number (INFO).
        prefetch_factor: batches that each worker prepares ahead, 1 to 1024. None, the default: 2. Not without workers.
        read_ahead: host memory in bytes or as text for samples that are read before their batch, the next epoch's
            too. None, the default, with workers: 128 MiB behind a network (1 GiB where answers come late), 8 batches of
            slow files.
        timeout: seconds to wait for a batch before :class:`lossfeed.TimeoutError`. 0, the default: no limit.
        on_error: what happens to bad samples: ``"raise"``, the default; ``"skip"``, a shorter batch; ``"substitute"``,
            another sample of the batch under its own id. They are counted and listed by ``loader.bad_samples()``.
        max_slots: bound on batch slots, those you hold included; holding them all is a
            :class:`lossfeed.MemoryLimitError`. None, the default: the prefetch depth + 64, and batches in host memory
            that you hold beyond 64 are copied.
        worker_init_fn, multiprocessing_context, persistent_workers: as torch's, for worker processes; those of
            ``"auto"`` persist.

    Raises:
        SettingsError: a value is wrong; the message names it and the remedy.
    """

    num_workers: int | literals.Workers | None = "auto"
    _: KW_ONLY
    prefetch_factor: int | None = None
    read_ahead: int | str | None = None
    timeout: float = 0.0
    on_error: literals.OnError = "raise"
    max_slots: int | None = None
    worker_init_fn: Callable[[int], Any] | None = None
    multiprocessing_context: Any = None
    persistent_workers: bool = False

    def _check(self, named: Callable[[str], str]) -> None:
        keywords.starts(self.worker_init_fn, self.multiprocessing_context, self.num_workers)
        checks.flag("persistent_workers", self.persistent_workers)
        keywords.workers(self.num_workers, self.prefetch_factor)
        if self.read_ahead is not None:
            parse_bytes("read_ahead", self.read_ahead)
        checks.seconds("timeout", self.timeout)
        checks.choice("on_error", self.on_error, "raise", "skip", "substitute")
        if self.max_slots is not None:
            checks.whole("max_slots", self.max_slots, 1)

    def _settings(self, alone: bool) -> dict[str, Any]:
        """The engine's settings. `alone`: the calling thread reads, whatever the number of workers."""
        workers, ahead = keywords.workers(*((0, None) if alone else (self.num_workers, self.prefetch_factor)))
        return {
            "workers": workers,
            "prefetch_factor": ahead,
            "read_ahead": None if self.read_ahead is None else parse_bytes("read_ahead", self.read_ahead),
            "on_error": self.on_error,
            "max_slots": None if self.max_slots is None else checks.whole("max_slots", self.max_slots, 1),
        }

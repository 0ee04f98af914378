"""The loader: epochs of batches, and the scores' way home."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from typing import Any, Callable, Iterable, Literal, Mapping

from .. import _native
from .._base import checks, literals
from .._base.errors import Error, ResumeWarning
from .._base.process import MadeAgain, Process
from .._base.ranges import ranged
from .._base.sizes import parse_cache
from .._base.torch_imports import torch_half
from .._batch.batch import Batch
from .._batch.generic import D, Of, Y
from .._batch.packed import Packed
from .._data import reader_threads, reopening
from .._data.data import Data
from .._data.process_pool import Processes
from .._loss.linear_cross_entropy import LinearLosses
from .._transform.image import ImageTransform
from . import closing, exchange as _exchange, keywords, making, reading as _reading, states, streams, user_order
from .attributes import TorchAttributes
from .epoch_pass import Pass
from .lightning_fit import take_up
from .options import Options
from .report import described
from .stats import Statistics
from .summary import tell
from .topics import Cache, Reading, Sampling


class Loader(Of[D, Y], TorchAttributes, Statistics, LinearLosses, MadeAgain):
    """Feeds a training run: each iteration is one epoch of :class:`Batch`, in an order that scores may steer.

    Example::

        pixels = lf.ImageTransform(crop=32, scale=(0.1, 1.0), flip=0.5)
        loader = lf.Loader("train/", batch_size=12, cache="2GiB", sampler="auto", transform=pixels)
        for epoch in range(3):
            loader.set_epoch(epoch)
            for batch in loader:
                loss = loader.cross_entropy(model(batch.data), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(loader.summary())

    The keywords up to ``in_order`` are torch's, in ``DataLoader``'s order. ``pybind/docs/batches.md`` has more on them.

    Samples:
        data: what :func:`lossfeed.open` takes or returns; a stream is read without ids, cache and scores.
        dataset: torch's name for ``data``.
        ids: the samples to load; batches count them from 0. None: all.
        transform: an :class:`ImageTransform`, torchvision's, or a function of a batch's data; after the cache.

    Batches:
        batch_size: samples a batch and rank, at least 1.
        drop_last: True leaves out a last batch that is short.
        collate_fn: gets the list of a batch's samples, returns its data, or a pair of data and target.
        pad: joins arrays of different length: a value, ``"nested"``, ``"packed"``, :class:`Packed`, or a dict of these.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``: the device of batches, ready on the current stream.
        framework: ``"torch"``, ``"numpy"``, or ``"auto"``: torch if this process has imported it.
        pin_memory: torch's; batches for a GPU are page-locked anyway.
        pin_memory_device: torch's; use ``device``.
        in_order: torch's; batches always come in order.

    Order:
        shuffle: True permutes by (seed, epoch). None or False: in order, unless ``sampler`` says otherwise.
        batch_sampler: gives lists of ids; without a ``batch_size`` of its own, ``batch_size=`` is the largest.
        weights: a number a sample; ids are drawn in proportion, with replacement.
        seed: reproduces every order; the same on every rank. None: 0 with several ranks, else from torch's generator.
        generator: what the seed is drawn from, on one rank.
        sampler: ``"auto"`` with a cache; another name, a dict of name and options, or an object that gives ids.
        score: the measurement that makes importance, as ``"loss"``; :class:`Sampling` has all. None chooses.
        scores: ``"batch"``: one score for a batch, the mean of its losses: a control.
        smoothing: weight of the old importance when a new score comes, from 0 to below 1.
        score_file: a file that keeps importances for the next run. Several ranks: ``{rank}`` in its name.
        score_file_every: seconds from one writing of it to the next.
        order: ``"node"``: the jobs of a machine that share a cache shuffle together; see :class:`Sampling`.
        sampling: a :class:`Sampling` holds ``sampler`` to ``score_file_every`` and ``ranks``; its help says more.

    Cache:
        cache: a size (``"32GiB"``, ``"20%"``) of host memory for samples, or a :class:`Cache`, for all of these.
        cache_form: ``"encoded"`` keeps the source's bytes, ``"decoded"`` pixels; ``"auto"`` the smaller.
        policy: which sample leaves a full cache: ``"lru"``, ``"minio"``, ``"importance"``, …. None suits the sampler.
        copy_path: how cached rows get to a GPU: ``"gathered"``, ``"batched"``, ``"mapped"``; ``"auto"`` measures.
        frozen_augmentation: True caches items of a dataset that draws at random, as they were first.

    Reading:
        num_workers: processes that read a Python dataset, threads for all else; 0: the calling thread; ``"auto"``.
        prefetch_factor: batches that each worker prepares ahead. None: 2.
        read_ahead: host memory for samples read before their batch, such as ``"1GiB"``.
        timeout: seconds to wait for a batch before :class:`lossfeed.TimeoutError`. 0: no limit.
        on_error: what becomes of bad samples: ``"raise"``, ``"skip"`` or ``"substitute"``.
        max_slots: bound on batches in memory, those you hold included.
        worker_init_fn: torch's, called in each worker process.
        multiprocessing_context: torch's: how worker processes are started.
        persistent_workers: torch's; worker processes of ``"auto"`` persist.
        reading: a :class:`Reading` holds all of these; its help says more.

    Ranks:
        rank: this process's number. None: torch.distributed's, else the environment's ``RANK``.
        world_size: number of processes. None: torch.distributed's, else the environment's ``WORLD_SIZE``.
        ranks: ``"own"``: each draws from its own share. ``"exchange"``: all share their scores and draw one order.

    Watching:
        job: name in ``lossfeed smi``.
        stats: False publishes no page for it.
        journal: a new CSV file (``.gz``: gzip) of decisions and scores for ``lossfeed replay``; ``{rank}`` in its name.
        record: the former name of ``journal``.

    A second pass ends the first. After ``fork`` a child makes its own loader. A pickled loader is made again where it
    arrives, with nothing scored or cached.

    Raises:
        SettingsError: a setting is wrong; the message has its value and a remedy.
        DeviceError: the device cannot be used.
        MemoryLimitError: the cache or the batch slots cannot be allocated.
    """

    def __init__(
        self,
        data: Any = None,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: literals.Sampler | dict[str, Any] | Iterable[int] | None = None,
        batch_sampler: Iterable[Iterable[int]] | None = None,
        num_workers: int | literals.Workers | None = "auto",
        collate_fn: Any = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0.0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        read_ahead: int | str | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        dataset: Any = None,
        ids: Any = None,
        weights: Any = None,
        pad: float | literals.Join | Packed | Mapping[str, float | literals.Join | Packed] | None = None,
        device: Any = "cpu",
        cache: int | float | str | Cache | None = None,
        sampling: Sampling | None = None,
        reading: Reading | None = None,
        cache_form: literals.CacheForm = "auto",
        copy_path: literals.CopyPath = "auto",
        transform: ImageTransform | Callable[[Any], Any] | None = None,
        policy: literals.Policy | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        ranks: literals.Ranks = "own",
        on_error: literals.OnError = "raise",
        score: literals.Score | None = None,
        scores: Literal["batch"] | None = None,
        smoothing: float | None = None,
        max_slots: int | None = None,
        job: str | None = None,
        stats: bool = True,
        framework: literals.Framework = "auto",
        frozen_augmentation: bool = False,
        journal: str | os.PathLike[str] | None = None,
        score_file: str | os.PathLike[str] | None = None,
        score_file_every: float = 60.0,
        order: literals.Order | None = None,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        cached: dict[str, Any] = {"form": cache_form, "policy": policy, "copy_path": copy_path}
        drawn: dict[str, Any] = {"sampler": sampler, "score": keywords.scores(scores, score), "ranks": ranks}
        drawn |= {"smoothing": smoothing, "score_file": score_file, "score_file_every": score_file_every}
        read: dict[str, Any] = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
        read |= {"read_ahead": read_ahead, "timeout": timeout, "on_error": on_error, "max_slots": max_slots}
        read |= {"multiprocessing_context": multiprocessing_context, "persistent_workers": persistent_workers}
        self._asked = Options(
            data=data, dataset=dataset, ids=ids, transform=transform,
            batch_size=batch_size, drop_last=drop_last, collate_fn=collate_fn, pad=pad, device=device,
            framework=framework, pin_memory=pin_memory, pin_memory_device=pin_memory_device, in_order=in_order,
            shuffle=shuffle, batch_sampler=batch_sampler, weights=weights, seed=seed, generator=generator,
            cache=Cache._of("cache", cache, frozen_augmentation=frozen_augmentation, **cached),
            sampling=Sampling._of("sampling", sampling, order=order, **drawn),
            reading=Reading._of("reading", reading, worker_init_fn=worker_init_fn, **read),
            rank=rank, world_size=world_size,
            job=job, stats=stats, journal=checks.renamed("record", record, "journal", journal),
        )  # fmt: skip
        if streams.takes(self, self._asked):
            return
        made = making.make(self._asked)
        self._engine: _native.Engine | None = made.engine
        self._closing: _native.Engine | None = None
        self._last_state: dict[str, Any] | None = None
        self._data, self._framework, self._workers = made.data, made.framework, made.workers
        self._settings, self._line, self._account = made.settings, made.line, made.line.account
        self._given, self._seeds = made.given, made.seeds
        #: The dataset as it was opened; None before anybody looks at one that worker processes read.
        self._opened: Data | None = made.opened
        self._pass: weakref.ref[Pass[D, Y]] | None = None
        self._resumed = False  # whether a state was loaded
        self._group: Any = None
        self._process = Process()
        closing.live.add(self)
        tell(self)

    # ---- epochs ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches an epoch and rank; the same on every rank, unless each brings its own sampler. A resumed pass has fewer
        left. TypeError where a sampler without a length was given."""
        return self._line.batches if self._given is None else len(self._given)

    @property
    def data(self) -> Data:
        """The dataset."""
        if self._opened is None:
            data = reopening.open_for(self.dataset, varying=True)
            self._opened = data if self._asked.ids is None else data.subset(self._asked.ids)
        return self._opened

    @property
    def copy_path(self) -> str:
        """How cached rows get to the device: ``"gathered"``, ``"batched"`` or ``"mapped"``."""
        return self._account.engine().copy_path()[0]

    def copy_paths(self) -> dict[str, dict[str, float]]:
        """What ``copy_path="auto"`` measured, for a batch of rows anywhere in the cache's memory (µs): ``gather_us`` of
        one loader thread, and ``copy_us`` from batch to batch on the device. A path's time is the longer of
        ``gather_us`` over the number of threads and ``copy_us``; a path other than ``"gathered"`` is chosen if it is
        more than 10 % faster. Empty if nothing was measured: no GPU, no cache, a named path, or rows that must be
        gathered."""
        costs = self._account.engine().copy_path()[1]
        return {path: {"gather_us": gather, "copy_us": copy} for path, gather, copy in costs}

    @property
    def epoch(self) -> int:
        """The current epoch, or the next one between epochs."""
        return self._account.engine().epoch()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next ``iter(loader)`` delivers. Without it epochs count up from 0.

        After :meth:`load_state_dict` the state's epoch continues at its position; any other starts from its beginning.
        Your own sampler's ``set_epoch`` is called too.
        """
        self._account.engine().set_epoch(checks.whole("epoch", epoch, 0))
        if self._given is not None:
            self._given.set_epoch(epoch)

    def resize_cache(self, cache: int | float | str) -> int:
        """Changes the cache's limit, up to the ``cache=`` it was made with, while batches go on; the policy chooses
        what to evict. Returns the bytes of memory freed: 0 if a GPU has page-locked them. Not with ``journal=``: a
        replay could not repeat it."""
        form = self._settings["cache_form"]
        return self._account.engine().resize_cache(parse_cache(cache, lambda: self._data.cache_bytes(form)))

    def __iter__(self) -> Pass[D, Y]:
        """One pass over the next epoch. It begins with its first batch: then the order is drawn, the workers run ahead,
        and an earlier pass ends. An iterator that nobody asks for a batch costs no epoch; its ``begin()`` begins at
        once."""
        return Pass(self._line, self._begin)

    def _begin(self, started: Pass[D, Y]) -> None:
        if self._given is not None:
            take_up(self, again=False)  # Lightning tells the user's sampler the epoch, and not this loader
        engine = self._account.engine()
        if self._settings["exchange"]:
            self.exchange(self._group)
        self._account.deliver()
        if self._seeds is not None:
            self._seeds.begin(engine)
            self._line.seed = engine.seed() or 0
        for adaptor in self._data._adaptors:
            if isinstance(adaptor, Processes):
                adaptor.seeded = engine.seed() or 0, engine.epoch()
        if self._given is None and not self._settings["exchange"] and not self._settings["sampler"].get("in_order"):
            self._line.world.draws(len(self._data), self._settings, engine.seed())
        given = None if self._given is None or engine.has_order() else self._given
        self._pass = weakref.ref(started)
        started.start(*(() if given is None else given.drawn(engine)))

    def _plan(self) -> tuple[memoryview, memoryview]:
        """The ids of the epoch under way, or of the next one, and the end of each batch among them. A sampler of the
        user's is asked for an epoch."""
        engine, order = self._account.engine(), self._given
        under_way = self._pass() if self._pass is not None else None
        ours = order is None or isinstance(order, user_order.Weighted)
        if self._seeds is not None and ours and not self._settings["sampler"].get("in_order"):
            self._seeds.settle(engine)
        if order is not None and not (under_way is not None and under_way.under_way) and not engine.has_order():
            drawn, cut = order.draw(engine)
            ids = user_order.numbers(drawn)
            return ids, user_order.numbers(order.ends(len(ids)) if cut is None else cut)
        planned, ends = engine.plan()
        return user_order.numbers(planned), user_order.numbers(ends)

    def exchange(self, group: Any = None) -> None:
        """Sends this rank's scores since the last exchange, and which samples it has in its cache, to all ranks and
        receives theirs: afterwards all ranks have the same importances. For ``ranks="exchange"``, which calls it at
        the start of every epoch: call it yourself only to use another process group than the default, also for later
        epochs. Ends the current pass. Every rank must call it.

        Cost: one ``all_gather`` of 12 bytes a score and one bit a sample, after one of a few hundred bytes a rank. A
        rank keeps 8 bytes and a bit a rank for each sample, and 12 for each score, and draws the whole epoch's order.

        Raises:
            SettingsError: on every rank, if ranks differ in dataset, epoch, seed, sampler or another setting that
                determines the order; the message names the difference. UsageError: on every rank, if one of them cannot
                take part, or there is no process group.
        """
        if self._settings["exchange"]:
            self._group = group
        _exchange.exchange(self._account, self._settings["rank"], self._settings["world_size"], group)

    # ---- scores ----------------------------------------------------------------------------------------------------

    @ranged("lossfeed.cross_entropy")
    def cross_entropy(
        self,
        logits: Any,
        batch: Batch[Any, Any],
        *,
        target: Any = None,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: literals.Reduction = "mean",
        label_smoothing: float = 0.0,
        weighted: bool = True,
        sequence: literals.Sequence = "mean",
        overwrite_logits: bool = False,
    ) -> Any:
        """The loss of a batch, with the keywords of :func:`torch.nn.functional.cross_entropy`, and records its scores.

        Where the transform mixes images (``mixup=``, ``cutmix=``) and no `target` is given, a row's loss is lam times that of
        its own target and 1 − lam times that of its partner's, and so is what it adds to the mean's denominator. Weight
        and score belong to the own sample, which is seen more: the score is the loss at the own target.

        Unbiased: with row losses l_i, class weights c_i and the batch's weights w_i, ``"mean"`` is sum(w_i c_i l_i) /
        sum(c_i) over rows that are not ignored, ``"sum"`` is sum(w_i c_i l_i), ``"none"`` is w_i c_i l_i.

        Args:
            logits: ``(B, C)`` or ``(B, C, d1, …)`` of this very batch; of a language model as for :meth:`score`.
            target: other targets than ``batch.target``, of the same samples: class indices, or probabilities in the
                shape of ``logits`` (mixing, distillation; their cross entropy is then the score). ``(B · T,)`` beside
                ``(B · T, C)`` logits too, where the samples are rows of T integers or more.
            weighted: False ignores the batch's weights: a biased mean, as in plain training on these draws.
            sequence: as for :meth:`score`; it steers the scores, not the loss.
            overwrite_logits: as for :func:`lossfeed.cross_entropy`.

        Under ``torch.compile`` it is part of the graph, without a break. A forward repeated to save memory
        (``torch.utils.checkpoint``) does not score again: it is counted as a repeat.

        Returns:
            A tensor like :func:`lossfeed.cross_entropy`'s. Scores are recorded once a batch, from the plain loss
            without class weights and smoothing.
        """
        settings = weight, ignore_index, reduction, label_smoothing, weighted, sequence, overwrite_logits
        hook = torch_half("cross_entropy").hook
        return hook.cross_entropy(self._account, logits, self._own(batch), target, *settings)

    @ranged("lossfeed.loss")
    def loss(
        self,
        kind: literals.LossKind,
        prediction: Any,
        batch: Batch[Any, Any],
        *,
        target: Any = None,
        reduction: literals.Reduction = "mean",
        weighted: bool = True,
        **options: Any,
    ) -> Any:
        """The elementwise loss of a batch, differentiable; records its scores.

        Args:
            kind: ``"bce_with_logits"`` (binary and multi-label; option ``pos_weight``), ``"mse"``, ``"l1"``,
                ``"huber"`` (option ``delta``) or ``"smooth_l1"`` (option ``beta``), each as in
                :mod:`torch.nn.functional`.
            prediction: ``(B, …)`` of this very batch, any float dtype; half precision is computed in float32.
            target: other targets than ``batch.target``, in the shape of ``prediction``.
            reduction: over the ``(B,)`` sample losses, each the mean over its elements: ``"mean"``, ``"sum"``,
                ``"none"``.
            weighted: multiply with the batch's weights, so that the mean is unbiased.

        Returns:
            A float32 tensor (float64 for float64). Scores are the sample losses and the norms of their gradients at the
            prediction, which ``score="gradient_norm"`` uses.
        """
        hook = torch_half("loss").hook
        return hook.loss(self._account, kind, prediction, self._own(batch), target, reduction, weighted, options)

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The run's state: epoch, delivered batches, importances of all samples, and the epoch's order if it depends on
        scores. Plain ints and bytes (8 bytes a sample, if anything was scored), for :func:`torch.save` or pickle.

        After a pass that ended early (``break``, an exception, Ctrl-C) this is the position, until another pass begins
        or :meth:`set_epoch` names another epoch. A batch counts as delivered once the iterator has returned it: after
        an interruption (Ctrl-C, a signal handler's exception) it comes again, from this state and from the same
        iterator, with ``collate_fn`` and ``transform`` called again. After :meth:`close` it is the state at the time of
        closing."""
        if self._engine is None and self._last_state is not None:
            return self._last_state
        return self._state(0)

    def _state(self, unseen: int) -> dict[str, Any]:
        """The state of `unseen` batches ago: they were handed out, and whoever has them has not passed them on."""
        engine = self._account.engine()
        self._account.deliver(wait=True)
        if self._account.mailboxes:
            torch_half("mail of a device").cuda.settle(self._account)
        if self._seeds is not None:
            self._seeds.settle(engine)
        return states.of_loader(engine.state(unseen))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from :meth:`state_dict`: the next ``iter(loader)`` delivers exactly the remaining batches of that
        epoch, in order. The loader must be made as the saved one was, over the same dataset: all settings that
        determine the order are compared, and an error names the differences. Threads, device, transform and
        ``on_error`` may change, and the cache too, which ``echo`` and ``replay`` need at the same size
        (:meth:`resize_cache`).

        The number of ranks may change too, and ``batch_size`` with it, also within an epoch: the remaining samples are
        dealt to the ranks that load it, with batches numbered so that the last one has its usual number. ``{"ranks":
        [state, …]}`` holds all ranks' states, in any order, of the same step. One rank's is enough where orders follow
        from the seed (``uniform``, with ``shuffle`` or without) and with ``ranks="exchange"``, which loses the other
        ranks' scores since the last exchange; other samplers need all states, except between epochs. A
        :class:`lossfeed.ResumeWarning` says which samples are skipped: the rest of an epoch of ``echo`` and ``replay``,
        and, at an epoch's very end, fewer samples than ranks (``drop_last`` drops them anyway).

        Raises:
            SettingsError: not a state, a state of another run, or one rank's state where all ranks' are needed.
        """
        note = (engine := self._account.engine()).load_states(states.of_engines(state))
        self._line.seed = engine.seed() or 0
        self._resumed = True
        if note is not None:
            warnings.warn(note, ResumeWarning, stacklevel=2)

    def close(self, timeout: float | None = 10.0) -> None:
        """Ends the workers and frees the memory. Batches you hold stay valid. Calling it again does nothing.

        Args:
            timeout: seconds to wait for reads in progress; None waits until they end. A read still running then is
                abandoned with a :class:`lossfeed.ThreadWarning` that says where it hangs; its memory is not freed.
                Dropping a loader does not wait; the interpreter's exit waits up to five seconds.
        """
        seconds = None if timeout is None else checks.seconds("timeout", timeout)
        engine = self._engine
        if engine is not None and self._process.is_this() and self._pass is not None:
            # While the memory is still there: a checkpoint may be written after the `with` statement. A device that is
            # lost must not keep the loader from closing; there is no state then.
            with contextlib.suppress(Error):
                self._last_state = self.state_dict()
        left = self._close(seconds)
        if left and engine is not None:
            left += [line for adaptor in self._data._adaptors for line in reader_threads.hanging(adaptor)]
            closing.warn_of(left, f"the loader was closed without them after {seconds:g} s")

    def _close(self, seconds: float | None) -> list[str]:
        """Ends everything, waits so long, and returns who has not come."""
        engine, self._engine = self._engine, None
        self._closing = engine = engine or self._closing
        if engine is None or not self._process.is_this():
            return []
        self._account.close()
        left = engine.close(seconds)
        _reading.end(self._line.reading, self._data, self._opened)
        if not left:
            self._closing = None
            closing.live.discard(self)
        return left

    def __enter__(self) -> Loader[D, Y]:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return described(self, self._settings, None if self._engine is None else self._engine.describe())

    def _recipe(self) -> tuple[Any, tuple[Any, ...]]:
        under_way = self._pass() if self._pass is not None else None
        return _again, (type(self), self._to_copy(under_way is not None and under_way.under_way))


def _again(kind: type[Loader[Any, Any]], keywords: dict[str, Any]) -> Loader[Any, Any]:
    """A loader that came out of a pickle."""
    made = kind.__new__(kind)
    Loader.__init__(made, **keywords)
    return made

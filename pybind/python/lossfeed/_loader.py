"""The loader: epochs of batches, and the scores' way home."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from typing import Any, Callable, Iterable, Mapping

from . import _closing, _exchange, _given, _keywords, _making, _native, _opened, _readers, _reading, _states, _streams, _words
from ._asked import Asked, Keywords
from ._batch import Batch
from ._errors import Error, ResumeWarning
from ._fitting import take_up
from ._generic import D, Of, Y
from ._half import torch_half
from ._images import ImageTransform
from ._data import Data
from ._own_losses import OwnLosses
from ._packed import Packed
from ._pass import Pass
from ._process import MadeAgain, Process
from ._processes import Processes
from ._report import described
from ._sizes import parse_cache
from ._told import Told


class Loader(Of[D, Y], Asked, Told, OwnLosses, MadeAgain):
    """Feeds a training run: iterating it gives one epoch of :class:`Batch`, in an order that scores may steer.

    ``data`` is what :func:`lossfeed.open` returns or takes, or a stream (``IterableDataset``), which torch's own loader reads:
    its batches are torch's, without ids, cache and scores. The keywords up to ``in_order`` are those of
    :class:`torch.utils.data.DataLoader` in its order; each is honoured, or refused with the reason:

    Args:
        batch_size: samples a batch and rank, at least 1. More than a rank has gives one short batch; with ``drop_last``
            it is refused, as no batch would be left.
        shuffle: True permutes by ``(seed, epoch)``; None or False walks the ids in order, unless ``sampler`` is given.
        sampler: torch's samplers, or whatever else gives ids: an epoch is taken from it whole when the epoch begins (as
            much as its ``len()``), and each rank gets what its own sampler gives. Or who comes next, by name or as a
            dict with options (``{"name": "cost-aware", "kappa": 64}``): ``"uniform"`` (every id once an epoch,
            shuffled); ``"auto"`` (the one to use with a cache: ``"replay"`` where ``transform`` draws chance,
            ``"cost-aware"`` where it does not, ``"uniform"`` where there is nothing to gain; ``{"name": "auto",
            "augmented": True}`` if your loop augments batches, ``False`` if nobody does, ``"fetches": 0.1`` for the part
            of the rows that may be read, ``"stall": 0.05`` for a wait of a twentieth of the time, ``"bytes": "200GB",
            "epochs": 90`` for a budget of so many epochs; it begins without scores, and goes by them from the epoch
            after ``batch.weight`` was read, as :meth:`cross_entropy` does); ``"cost-aware"`` (least gradient variance
            per byte fetched), ``"importance"``, ``"replay"`` and ``"echo"`` (the cache as a buffer that turns over,
            with scores and without; ``"block": 64`` has new samples come in runs of neighbours, ``"block": "auto"`` in
            runs as long as requests are dear), ``"pads"`` (SHADE's, biased); and others to compare with: ``"iis"``
            (iCACHE's), ``"infobatch"``, ``"ods"`` (Seneca's; each id once), and, biased, ``"selective"``,
            ``"curriculum"`` and ``"shade-as-coded"``. All but ``uniform``, ``ods`` and ``echo`` draw ids unevenly;
            ``batch.weight`` makes the loss unbiased again.
        batch_sampler: gives lists of ids: its batches are the plan. Where it has no ``batch_size``, pass
            ``batch_size=`` with the most samples of a batch.
        ids: the samples to load, each once, as :meth:`lossfeed.Data.subset` has it: ids of batches count from 0 anew, in
            this order. None: all.
        weights: one number a sample: ids are drawn with replacement, in proportion to them (torch's
            ``WeightedRandomSampler``). ``batch.weight`` stays 1: the mean is over what was drawn, as there.
        num_workers: worker processes that read a Python dataset, as torch's; for files, arrays, lists and datasets with
            ``thread_safe = True`` threads. 0 reads in the calling thread, and a dataset draws from its generators; else what
            it draws depends on (seed, epoch, id). ``"auto"``, the default and the same as None: a process for each
            processor of this rank, 8 at most, where processes are forked, else the calling thread; threads by what the run
            needs. Batches do not depend on it. :attr:`num_workers` tells it, and the logger ``lossfeed`` at INFO.
        collate_fn: called with the list of a batch's samples, equal in type and value to what a Python dataset returned: in
            the worker that read them, or, with a cache, in the loop's thread; of arrays with ``(x, y)`` rows. What it
            returns is the batch's data, or, of a pair, data and target. None: torch's ``default_collate``.
        worker_init_fn, multiprocessing_context, persistent_workers: as torch's, for worker processes; with ``"auto"``
            these persist.
        pad: how arrays that differ in length are joined: a number fills up to the longest of the batch, ``"nested"``
            makes nested tensors (``torch.jagged``), ``"packed"`` or a :class:`Packed` puts them end to end, a dict says
            it by path (``{"input_ids": 0, "labels": -100}``, ``{"x": 0}`` in pairs). None: lengths must be equal.
        timeout: seconds to wait for a batch before :class:`lossfeed.TimeoutError`; 0 waits for ever.
        generator: what the seed is drawn from, see ``seed``; of one rank.
        prefetch_factor: batches each worker prepares ahead, default 2.
        read_ahead: host memory for samples read before their batch, the next epoch's too, in bytes or as text. It changes
            nothing else. None, with workers: 128 MiB behind a network (late answers: 1 GiB), 8 batches of slow files.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``: where batches are, ready on the current stream.
        cache: host memory for samples: bytes, text (``"2GiB"``), or a share of the dataset (``"20%"`` or a float up
            to 1.0). None or 0: no cache. The limit is never exceeded.
        cache_form: ``"encoded"`` keeps the source's bytes, ``"decoded"`` pixels, ``"auto"`` these if ``resize=`` made them fewer.
        copy_path: how cached rows get to a CUDA device: ``"gathered"`` (loader threads gather a batch, which is
            copied as a whole), ``"batched"`` (the driver copies each row from where the cache has it, in one call;
            driver 570 or newer) or ``"mapped"`` (a kernel reads the rows there, over the bus). ``"auto"`` takes what
            is measured to be the fastest when the loader is made; see :meth:`copy_paths`. Samples that are decoded or
            transformed by the loader's threads are always gathered, and all under WSL 2.
        transform: an :class:`lossfeed.ImageTransform`: crop, flip and normalise, after the cache; None delivers pixels as
            they are. Or one of torchvision's, called with each sample of a batch; or a function of a batch's data. Either runs
            in the thread that takes batches, on a device after the copy, and returns ``batch.data``. It gets pictures of files
            and PIL's ``(…, channels, height, width)`` in uint8, all else as it is, and never a pair's target. It draws from
            torch's generator: a resumed run draws anew. ``sampler="auto"`` takes it to draw, but for ``"augmented": False``.
        policy: who stays: a word of :data:`lossfeed.typing.Policy` (``lossfeed replay --help`` says what each does).
            None takes the one that suits the sampler: for uniform minio, with several ranks belady; minio for ods, shade
            for pads and shade-as-coded, fifo for echo and replay, else importance.
        seed: reproduces every order, on any machine. Pass the same number on every rank: each draws its own share of one
            order, and ranks of a process group that differ are refused (without a group nobody compares them, and samples
            would be left out). None draws it from ``generator``, else from torch's own (so it follows
            ``torch.manual_seed``), when the first epoch begins, and a state that is loaded brings its own; 0 with several ranks, which must draw by one, and without torch. With ``num_workers=0`` always. With
            workers it does for samplers that look at nothing but the seed (``uniform``); the others draw by scores and
            residents, and which of them had come when an epoch was drawn is a matter of timing.
        rank, world_size: this rank of how many; None takes torch.distributed's where it is initialised, else RANK and
            WORLD_SIZE of the environment, which torchrun sets. A process group that says something else later is
            refused.
        ranks: ``"own"``: every rank draws from a share of the samples that is its own for the whole run. ``"exchange"``:
            all ranks draw one order together and each takes its part, by what all of them have learned; see
            :meth:`exchange`, which every epoch begins with. Not with samplers that look at the cache.
        frozen_augmentation: True lets a cache keep each sample of a Python dataset as first read, although it draws at random.
        on_error: bad samples: ``"raise"``, ``"skip"`` (the batch is shorter) or ``"substitute"`` (another sample of
            the batch, under its own id). Counted, and listed by :meth:`bad_samples`.
        score: what becomes importance: ``"gradient_norm"``, ``"loss"``, ``"entropy"`` or ``"rank"``; None suits
            policy and sampler, and takes losses where the run's first scores bring nothing else. A run keeps to one.
        smoothing: weight of the old belief when a new score comes, in [0, 1).
        max_slots: bound on batch slots, those you hold included; holding them all is a :class:`MemoryLimitError`. None is
            the prefetch depth + 64, and batches in host memory that you hold beyond 64 are copies.
        job: name shown by ``lossfeed smi``. stats: publish a page for it.
        record: a file that must not exist yet. What the cache decides and what is scored is written to it, in CSV, or
            gzip if its name ends in ``.gz``: ``lossfeed replay --trace`` gives the run's hits again, and those of
            other policies. With several ranks the name holds ``{rank}``. The run never waits for the disk: rows that
            it loses then are counted (``journal_lost_total`` of :meth:`stats`) and marked. Closed by :meth:`close`.
        score_file: a file that beliefs are kept in: a loader that is given it again begins with them, on any number of
            ranks. A thread writes it at most every ``score_file_every`` seconds (60) if anything was scored, and at
            :meth:`close`; training never waits for it, and a killed process leaves the old file or the new one, whole.
            12 bytes a scored sample, for its owner's eyes alone (mode 600); links are not followed. With several ranks
            the name holds ``{rank}``, each writes what it learned and all read all; with ``ranks="exchange"`` the first
            rank's file is all ranks'. :meth:`load_state_dict` replaces what was read. A file of another dataset or kind
            of score, or what is no such file, is a :class:`SettingsError`; a damaged one is a
            :class:`lossfeed.ResumeWarning`, and nothing of it is believed. What cannot be written is logged and tried again.
        framework: ``"torch"``, ``"numpy"``, or ``"auto"``: torch if this process has imported it.

    One pass at a time: a second one's first batch ends the first, whose next batch then raises :class:`UsageError`.
    Dropping an iterator in mid-epoch stops its work, between two samples. After ``fork`` a child must make a loader
    of its own. Waits release the interpreter lock and answer Ctrl-C within a tenth of a second. A loader is pickled
    (``spawn``, ``deepcopy``) as its keywords and its dataset, and made anew where it arrives, as that process's rank, with
    nothing scored, cached or delivered; take what it has learned along by :meth:`state_dict`.

    Raises:
        SettingsError: a setting is wrong, with its value and what to do.
        DeviceError: the device cannot be used.
        MemoryLimitError: the cache or the batch slots cannot be had.
    """

    def __init__(
        self,
        data: Any = None,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: _words.Sampler | dict[str, Any] | Iterable[int] | None = None,
        batch_sampler: Iterable[Iterable[int]] | None = None,
        num_workers: int | _words.Workers | None = "auto",
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
        pad: float | _words.Join | Packed | Mapping[str, float | _words.Join | Packed] | None = None,
        device: Any = "cpu",
        cache: int | float | str | None = None,
        cache_form: _words.CacheForm = "auto",
        copy_path: _words.CopyPath = "auto",
        transform: ImageTransform | Callable[[Any], Any] | None = None,
        policy: _words.Policy | None = None,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        ranks: _words.Ranks = "own",
        on_error: _words.OnError = "raise",
        score: _words.Score | None = None,
        smoothing: float | None = None,
        max_slots: int | None = None,
        job: str | None = None,
        stats: bool = True,
        framework: _words.Framework = "auto",
        frozen_augmentation: bool = False,
        record: str | os.PathLike[str] | None = None,
        score_file: str | os.PathLike[str] | None = None,
        score_file_every: float = 60.0,
    ) -> None:
        keywords = dict(locals())
        del keywords["self"]
        if _streams.takes(self, Loader.__init__, keywords):
            return
        self._asked = Keywords(**keywords)
        made = _making.make(self._asked)
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
        _closing.live.add(self)

    # ---- epochs ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Batches an epoch and rank; the same on every rank, unless each brings its own sampler. A resumed pass has fewer
        left. TypeError where a sampler without a length was given."""
        return self._line.batches if self._given is None else len(self._given)

    @property
    def data(self) -> Data:
        """The dataset."""
        if self._opened is None:
            data = _opened.open_for(self.dataset, varying=True)
            self._opened = data if self._asked.ids is None else data.subset(self._asked.ids)
        return self._opened

    @property
    def copy_path(self) -> str:
        """The way batches take to the device: ``"gathered"``, ``"batched"`` or ``"mapped"``."""
        return self._account.engine().copy_path()[0]

    def copy_paths(self) -> dict[str, dict[str, float]]:
        """What ``copy_path="auto"`` measured, for a batch of rows that lie anywhere in the cache's memory (µs):
        ``gather_us`` of one loader thread, and ``copy_us`` from batch to batch on the device. A path's time is the
        longer of ``gather_us`` over the number of threads and ``copy_us``; another path than ``"gathered"`` is taken if
        that is more than a tenth shorter. Empty if nothing was measured: no GPU, no cache, a named path, or rows that
        must be gathered."""
        costs = self._account.engine().copy_path()[1]
        return {path: {"gather_us": gather, "copy_us": copy} for path, gather, copy in costs}

    @property
    def epoch(self) -> int:
        """The epoch under way, or the next one if none is."""
        return self._account.engine().epoch()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next ``iter(loader)`` delivers. Without it epochs count up from 0 by themselves.

        After :meth:`load_state_dict` the epoch it names keeps its resumed position; any other starts from its
        beginning. A sampler of yours that has a ``set_epoch`` is told.
        """
        self._account.engine().set_epoch(_keywords.whole("epoch", epoch, 0))
        if self._given is not None:
            self._given.set_epoch(epoch)

    def resize_cache(self, cache: int | float | str) -> int:
        """Sets what the cache may hold, at most the ``cache=`` it was made with. Batches go on meanwhile; the policy
        chooses who leaves. Returns the bytes of memory that went back to the system: 0 where a GPU has page-locked
        them. Not with ``record=``: a replay could not repeat it."""
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
        ours = order is None or isinstance(order, _given.Weighted)
        if self._seeds is not None and ours and not self._settings["sampler"].get("in_order"):
            self._seeds.settle(engine)
        if order is not None and not (under_way is not None and under_way.under_way) and not engine.has_order():
            drawn, cut = order.draw(engine)
            ids = _given.numbers(drawn)
            return ids, _given.numbers(order.ends(len(ids)) if cut is None else cut)
        planned, ends = engine.plan()
        return _given.numbers(planned), _given.numbers(ends)

    def exchange(self, group: Any = None) -> None:
        """Gives what this rank has learned since the last exchange to all ranks, and takes theirs: all then believe the
        same of every sample, whoever delivered it. For ``ranks="exchange"``, where every epoch begins with it: call it
        yourself only for another process group than the default one, which later epochs then use too. Ends the pass
        under way. Every rank must call it.

        One ``all_gather`` of 12 bytes a score of all ranks, behind one of a few hundred bytes a rank. A rank keeps 8
        bytes a sample and 12 for each score until the next exchange, and draws the whole epoch's order, not a share.

        Raises:
            SettingsError: on every rank, if they differ in dataset, epoch, seed, sampler or another setting that shapes
                orders; what differs is named. UsageError: on every rank, if one of them cannot take part, or there is
                no process group.
        """
        if self._settings["exchange"]:
            self._group = group
        _exchange.exchange(self._account, self._settings["rank"], self._settings["world_size"], group)

    # ---- scores ----------------------------------------------------------------------------------------------------

    def cross_entropy(
        self,
        logits: Any,
        batch: Batch[Any, Any],
        *,
        target: Any = None,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: _words.Reduction = "mean",
        label_smoothing: float = 0.0,
        weighted: bool = True,
        sequence: _words.Sequence = "mean",
        overwrite_logits: bool = False,
    ) -> Any:
        """The loss of a batch, with the keywords of :func:`torch.nn.functional.cross_entropy`, and its scores for free.

        Where the transform mixes images (``mixup=``, ``cutmix=``) and no `target` is given, a row's loss is lam times that of
        its own target and 1 − lam times that of its partner's, and so is what it adds to the mean's denominator. Weights
        and scores are the own sample's: what is scored is the loss at the own target, of which a mixed image shows more.

        Unbiased: with row losses l_i, class weights c_i and the batch's weights w_i, ``"mean"`` is sum(w_i c_i l_i) /
        sum(c_i) over rows that are not ignored, ``"sum"`` is sum(w_i c_i l_i), ``"none"`` is w_i c_i l_i.

        Args:
            logits: ``(B, C)`` or ``(B, C, d1, …)`` of this very batch; of a language model as for :meth:`score`.
            target: other targets than ``batch.target``, of the same samples: class indices, or probabilities in the
                shape of ``logits`` (mixing, distillation; their cross entropy is then the score). ``(B · T,)`` beside
                ``(B · T, C)`` logits too, where the samples are rows of T integers or more.
            weighted: False leaves the batch's weights out: a biased mean, as plain training on these draws would have.
            sequence: as for :meth:`score`; it steers the scores, not the loss.
            overwrite_logits: as for :func:`lossfeed.cross_entropy`.

        Under ``torch.compile`` it is part of the graph, without a break. A forward that is run again to save memory
        (``torch.utils.checkpoint``) scores nothing more: it is counted as a repeat.

        Returns:
            A tensor like :func:`lossfeed.cross_entropy`'s. The batch's scores are taken up by the way, once a batch;
            scores are those of the plain loss, without class weights and smoothing.
        """
        settings = weight, ignore_index, reduction, label_smoothing, weighted, sequence, overwrite_logits
        hook = torch_half("cross_entropy").hook
        return hook.cross_entropy(self._account, logits, self._own(batch), target, *settings)

    def loss(
        self,
        kind: _words.LossKind,
        prediction: Any,
        batch: Batch[Any, Any],
        *,
        target: Any = None,
        reduction: _words.Reduction = "mean",
        weighted: bool = True,
        **options: Any,
    ) -> Any:
        """The elementwise loss of a batch, differentiable, and its scores for free.

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
            prediction, which are what ``score="gradient_norm"`` believes in.
        """
        hook = torch_half("loss").hook
        return hook.loss(self._account, kind, prediction, self._own(batch), target, reduction, weighted, options)

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the run is: epoch, batches handed out, beliefs about all samples, and the epoch's order if scores
        made it. Plain ints and bytes (8 bytes a sample, if anything was scored), for :func:`torch.save` or pickle.

        A pass that ended early (``break``, an exception, Ctrl-C) stays the position until another begins or
        :meth:`set_epoch` names another epoch. A batch counts as handed out once the iterator has returned it: what Ctrl-C
        or a signal handler's exception ends before that is still to come, from this state and from the same iterator,
        which calls an interrupted ``collate_fn`` or ``transform`` again. After :meth:`close` the state is that of the moment of closing."""
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
        return _states.of_loader(engine.state(unseen))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state_dict`: the next ``iter(loader)`` delivers exactly the batches that were left of
        that epoch, in their order. The loader must be made as the saved one was, over the same dataset: whatever
        shapes an order is compared, and a refusal names what differs. Threads, device, transform and ``on_error``
        may change, and the cache too, which ``echo`` and ``replay`` need as large as it was (:meth:`resize_cache`).

        The number of ranks may change too, and ``batch_size`` with it, also within an epoch: what was left is dealt to
        the ranks that load it, its batches numbered so that the last one has its usual number. ``{"ranks": [state,
        …]}`` holds all ranks' states, in any order, of the same step. One rank's is enough where orders follow from the
        seed (``uniform``, with ``shuffle`` or without) and with ``ranks="exchange"``, whose other ranks' scores since
        the last exchange are then lost; others need all, unless an epoch was over. A :class:`lossfeed.ResumeWarning`
        says what is not delivered: the rest of an epoch of ``echo`` and ``replay``, and, at an epoch's very end, fewer
        samples than ranks (``drop_last`` drops them anyway).

        Raises:
            SettingsError: it is no state, another run's, or one rank's where those of all are needed.
        """
        note = (engine := self._account.engine()).load_states(_states.of_engines(state))
        self._line.seed = engine.seed() or 0
        self._resumed = True
        if note is not None:
            warnings.warn(note, ResumeWarning, stacklevel=2)

    def close(self, timeout: float | None = 10.0) -> None:
        """Ends the workers and gives the memory back. Batches you hold stay valid. Calling it again does nothing.

        Args:
            timeout: seconds to wait for reads under way; None waits as long as they take. A read that has not ended
                by then is left behind with a :class:`lossfeed.ThreadWarning` that says where it hangs; what it writes
                to stays in memory. Dropping a loader waits for nothing, and the interpreter's exit for five seconds.
        """
        seconds = None if timeout is None else _keywords.seconds("timeout", timeout)
        engine = self._engine
        if engine is not None and self._process.is_this() and self._pass is not None:
            # While the memory is still there: a checkpoint may be written after the `with` statement. A device that is
            # lost must not keep the loader from closing; there is no state then.
            with contextlib.suppress(Error):
                self._last_state = self.state_dict()
        left = self._close(seconds)
        if left and engine is not None:
            left += [line for adaptor in self._data._adaptors for line in _readers.hanging(adaptor)]
            _closing.warn_of(left, f"the loader was closed without them after {seconds:g} s")

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
            _closing.live.discard(self)
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

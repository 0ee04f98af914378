"""One word of advice a loader where the training loop leaves out what the loader was made for."""

from __future__ import annotations

import sys
import time
import warnings
from typing import NamedTuple

from .. import _native
from .._base.errors import TrainingWarning
from .._base.memory import torch_loaded
from .._native import cache_policies

#: Policies that keep by score.
_SCORED_POLICIES = tuple(name for name, _, _, by_score in cache_policies() if by_score)


#: A wait for a Python dataset's items that is worth a word: in seconds, and as a share of the time.
SLOW_S, SLOW_SHARE = 1.0, 0.2
#: When it is looked at: after so many batches, and every so many seconds.
LOOK_BATCHES, LOOK_S = 20, 5.0


class Reads(NamedTuple):
    """Who reads a Python dataset."""

    #: The dataset's type.
    dataset: str
    #: In how many processes; 0 reads in this one.
    processes: int


class Uses:
    """What a training loop has done with a loader's batches so far. Set where it happens, looked at once an epoch."""

    __slots__ = (
        *("scored", "weight_read", "mix_read", "wrapped"),
        *("_asked", "_sampler", "_cached", "_reads", "_mixes", "_before", "_said", "_batches", "_looked"),
    )

    def __init__(self, asked: str, sampler: str, cached: bool, reads: Reads | None = None, mixes: bool = False) -> None:
        self.scored: bool = False
        self.weight_read: bool = False
        self.mix_read: bool = False
        #: Whether somebody passes the batches on who knows the trainer (:mod:`lossfeed.accelerate`, ``lf.Scores``).
        self.wrapped: bool = False
        #: What was asked for, and what is in force: they differ where the choice was left to the engine.
        self._asked = asked
        self._sampler = sampler
        self._cached = cached
        self._reads = reads
        #: Whether images are mixed, so that a row has two targets.
        self._mixes = mixes
        #: Counters when the waits were looked at last, how many batches have come, and the time of that look.
        self._before: dict[str, float] = {}
        self._batches, self._looked = 0, 0.0
        self._said: set[str] = set()

    def look_around(self) -> None:
        """Before an epoch. Accelerate prepares torch's loaders alone: it hands every other back as it is, and knows
        nothing of it."""
        state = sys.modules.get("accelerate.state")
        if self.wrapped or state is None or not getattr(state.GradientState, "_shared_state", None):
            return
        torch = torch_loaded()
        if torch is not None and torch.is_grad_enabled():
            self._say(
                "accelerate",
                "Accelerate knows nothing of this loader, prepared or not: accumulate does not see an epoch's end, and "
                "save_state leaves out where it stands. For training iterate lossfeed.accelerate.Batches(loader); an "
                "evaluation may go on as it is, under torch.no_grad()",
            )

    def look_along(self, engine: _native.Engine) -> None:
        """With every batch: whether the training starves for a Python dataset's items. Told once, soon."""
        if self._reads is None or "slow" in self._said:
            return
        self._batches += 1
        now = time.perf_counter()
        if self._batches == 1:
            # The first batch waits for processes to start.
            self._looked = now
            self._waits_for(dict(engine.stats()))
        elif self._batches == LOOK_BATCHES or now - self._looked >= LOOK_S:
            self._looked = now
            slow = self._waits_for(dict(engine.stats()))
            if slow is not None:
                self._say("slow", slow)

    def look_back(self, engine: _native.Engine) -> None:
        """After a whole epoch."""
        sampler, policy, stats = self._sampler, engine.describe()[0], dict(engine.stats())
        if self._mixes and not self.mix_read:
            self._say(
                "mix",
                "the transform mixes images, and a whole epoch has left batch.mix unread: its rows show two samples, and "
                "were trained on the target of one. Take the loss from loader.cross_entropy(logits, batch) or "
                "loader.loss(…), which mix it by themselves, or train on batch.soft_target(num_classes)",
            )
        scored = self.scored or stats.get("scores_total", 0) + stats.get("scores_unranked_total", 0) > 0
        wants = None
        if self._asked != sampler and sampler != "uniform" and not self.weight_read:
            self._say(
                "weights",
                f"sampler={self._asked!r} goes by the samples' scores only where the loss takes the weights that make "
                "up for it, and a whole epoch has left them unread. It goes on without scores, which costs accuracy "
                "or fetches: take the loss from loader.cross_entropy(logits, batch) or loader.loss(…), or multiply "
                "your per-sample losses with batch.weight",
            )
            return
        if sampler not in ("uniform", "given", "echo", "ods"):
            wants = f"sampler={self._asked!r}"
        elif self._cached and policy in _SCORED_POLICIES:
            wants = f"policy={policy!r}"
        if wants is not None and not scored:
            self._say(
                "scores",
                f"{wants} goes by the samples' scores, and a whole epoch has brought none: take the loss from "
                "loader.cross_entropy(logits, batch) or loader.loss(…), or call loader.score(logits, batch) beside "
                "your own",
            )
        if stats.get("scores_negative_total", 0) > 0:
            self._say(
                "negative",
                f"{stats['scores_negative_total']:.0f} scores were below 0, which is no importance, and were left out "
                "(scores_negative_total): add what makes them positive, give gradient norms beside them and "
                "score='gradient_norm', or score='batch_rank', which looks at their order alone",
            )
        if not self.weight_read and 0 < stats.get("ess_ppm", 0) < 999_000:  # 0: nothing was delivered
            self._say(
                "weights",
                f"sampler={sampler!r} draws some samples more often than others, and a whole epoch has left the "
                "weights unread that make up for it: take the loss from loader.cross_entropy(logits, batch) or "
                "loader.loss(…), or multiply your per-sample losses with batch.weight",
            )

    def _waits_for(self, stats: dict[str, float]) -> str | None:
        """What is to be said of the waits for a Python dataset's items since the last look."""
        names = "wait_source_us_total", "wait_us_total", "busy_us_total"
        source, waited, busy = (stats.get(name, 0) - self._before.get(name, 0) for name in names)
        self._before = {name: stats.get(name, 0) for name in names}
        if self._reads is None or source < SLOW_S * 1e6 or source < SLOW_SHARE * (waited + busy):
            return None
        name, processes = self._reads
        if processes == 0:
            who = "the training's own thread reads, one after the other: num_workers=4 reads them in 4 processes beside it"
        else:
            who = (
                f"{processes} worker processes read: num_workers={2 * processes} reads more at once, which helps where items wait "
                f"for a disk or network, or where this machine has more than {processes} processors to compute them"
            )
        return (
            f"training waited for {source / (waited + busy):.0%} of the last {(waited + busy) / 1e6:.1f} s for items of {name}, "
            f"which {who}; cache= keeps what was read"
        )

    def _say(self, what: str, words: str) -> None:
        if what not in self._said:
            self._said.add(what)
            # At the loop that asked for the next batch, which called Pass.__next__.
            warnings.warn(words, TrainingWarning, stacklevel=4)

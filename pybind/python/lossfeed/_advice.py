"""One word of advice a loader where the training loop leaves out what the loader was made for."""

from __future__ import annotations

import sys
import warnings

from . import _native
from ._errors import TrainingWarning
from ._memory import torch_loaded
from ._native import cache_policies

#: Policies that keep by score.
_SCORED_POLICIES = tuple(name for name, _, _, by_score in cache_policies() if by_score)


#: An epoch's wait for a Python dataset that is worth a word: in seconds, and as a share of the epoch.
SLOW_S, SLOW_SHARE = 2.0, 0.2


class Uses:
    """What a training loop has done with a loader's batches so far. Set where it happens, looked at once an epoch."""

    __slots__ = (
        *("scored", "weight_read", "mix_read", "wrapped"),
        *("_asked", "_sampler", "_cached", "_dataset", "_mixes", "_before", "_said"),
    )

    def __init__(self, asked: str, sampler: str, cached: bool, dataset: str | None = None, mixes: bool = False) -> None:
        self.scored: bool = False
        self.weight_read: bool = False
        self.mix_read: bool = False
        #: Whether somebody passes the batches on who knows the trainer (:mod:`lossfeed.accelerate`, ``lf.Scores``).
        self.wrapped: bool = False
        #: What was asked for, and what is in force: they differ where the choice was left to the engine.
        self._asked = asked
        self._sampler = sampler
        self._cached = cached
        #: The Python dataset whose items threads of this process read; None if there is none.
        self._dataset = dataset
        #: Whether images are mixed, so that a row has two targets.
        self._mixes = mixes
        #: Counters after the epoch before.
        self._before: dict[str, float] = {}
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

    def look_back(self, engine: _native.Engine) -> None:
        """After a whole epoch."""
        sampler, policy, stats = self._sampler, engine.describe()[0], dict(engine.stats())
        slow = self._waits_for(stats)
        if slow is not None:
            self._say("slow", slow)
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
                "score='gradient_norm', or score='rank', which looks at their order alone",
            )
        if not self.weight_read and 0 < stats.get("ess_ppm", 0) < 999_000:  # 0: nothing was delivered
            self._say(
                "weights",
                f"sampler={sampler!r} draws some samples more often than others, and a whole epoch has left the "
                "weights unread that make up for it: take the loss from loader.cross_entropy(logits, batch) or "
                "loader.loss(…), or multiply your per-sample losses with batch.weight",
            )

    def _waits_for(self, stats: dict[str, float]) -> str | None:
        """What is to be said of the epoch's waits for a Python dataset. Threads cannot run a dataset's Python side by
        side, however many there are: who comes from torch's worker processes is told what stands for them."""
        names = "wait_source_us_total", "wait_us_total", "busy_us_total"
        source, waited, busy = (stats.get(name, 0) - self._before.get(name, 0) for name in names)
        self._before = {name: stats.get(name, 0) for name in names}
        if self._dataset is not None and source > SLOW_S * 1e6 and source > SLOW_SHARE * (waited + busy):
            return (
                f"training waited {source / 1e6:.1f} s of an epoch's {(waited + busy) / 1e6:.1f} s for the items of "
                f"{self._dataset}: threads of this process read them, and Python runs one at a time. "
                "lf.open(dataset, processes=N) reads them in N processes, as torch's num_workers=N does; cache= keeps "
                "what was read"
            )
        return None

    def _say(self, what: str, words: str) -> None:
        if what not in self._said:
            self._said.add(what)
            # At the loop that asked for the next batch, which called Pass.__next__.
            warnings.warn(words, TrainingWarning, stacklevel=4)

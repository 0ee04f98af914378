"""What could make few fetches train better, tried in the small: a closed loop in torch, apart from the engine.

    python benches/scenarios/levers.py [FOLDER] --plans "uniform*10" "uniform,cost-aware:kappa=64*9" --seeds 3

Quick to change, so an idea is tried here before it is built, and ideas that came to nothing stay where they can be tried
again. The network, the optimiser and the schedule are those of ``lossfeed train``; a fifth of CIFAR-10 is cached. The
engine's own numbers come from ``cifar_table.py``.

A plan says how each epoch is drawn, separated by commas; ``*9`` repeats one nine times. ``lr=0.035@`` before it sets
another rate. Words at its end: ``+crop-flip`` augments; controls are ``+batch`` (the samples of a batch get one score,
the mean of its losses: BLS, arXiv 2604.04681), ``+noise`` (scores are random) and ``+linupper`` (the loss is weighted
within each batch by a softmax of the losses, scaled to ±1 and cut at 0: LinUpper, arXiv 2502.06733, r = 1). Ways to
draw an epoch:

``uniform``     every sample once; what is cached stays
``echo``        a buffer that turns over: ``phi`` of a batch is new, the rest passes over the buffer; ``by_score=1``: the
                rest is drawn by score and weighted; ``order_dp=1``: a pass over the buffer is as with ``order-dp``
``order-dp``    of a random 75 % of the samples the 85 % with the largest last losses, unweighted (OrderDP, arXiv
                2606.08574), so often that an epoch has as many steps
``cost-aware``  by score and what a fetch costs (``kappa``, or ``fetches``: the share that may miss), shuffled;
                ``strat=1``: each batch gets its part of each weight; ``norm=1``: weights of a batch have mean 1
``mixed``       the same with ``strat=1`` and a sample's draws far apart (``spread=0``: not so); ``carry=1``: what was
                missing of a draw counts in the next epoch; ``debt=1``: weighs what has passed since a sample last came;
                ``cls=1``: strata within classes of labels; ``age=0.7``: beliefs return to the mean while a sample is
                not met
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from record import Record, cifar_folder

BATCH = 128
Batches = Iterator[tuple[np.ndarray, np.ndarray]]


class Data:
    """CIFAR-10, decoded."""

    def __init__(self, folder: Path) -> None:
        self.train, self.target, names = _read(folder, "train", None)
        self.test, self.test_target, _ = _read(folder, "test", names)


def _read(folder: Path, part: str, names: list[str] | None) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    pictures, labels = [], []
    for shard in sorted(folder.glob(f"{part}-*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.isfile() and member.name.endswith((".jpg", ".png")):
                    data = tar.extractfile(member)
                    assert data is not None
                    pictures.append(np.asarray(Image.open(io.BytesIO(data.read())).convert("RGB")))
                    labels.append(member.name.split("/")[0])
    names = names or sorted(set(labels))
    target = np.array([names.index(label) for label in labels])
    return torch.from_numpy(np.stack(pictures)), torch.from_numpy(target), names


class Feed:
    """Who is cached, what is believed of whom, and the ways to draw an epoch."""

    def __init__(self, labels: np.ndarray, seed: int) -> None:
        self.rng = np.random.default_rng(1000 + seed)
        self.samples = len(labels)
        self.labels = labels.astype(np.float64)
        self.steps = self.samples // BATCH
        self.room = self.samples // 5
        self.cached: list[int] = []
        self.is_cached = np.zeros(self.samples, bool)
        self.fetched = 0
        self.belief = np.full(self.samples, np.nan, np.float32)
        # As OrderDP's code has it: 3 until a sample is met.
        self.loss = np.full(self.samples, 3, np.float32)
        self.stream: list[int] = []
        self.deck: list[int] = []
        self.due: np.ndarray | None = None
        self.owed = np.ones(self.samples)
        self.met = np.zeros(self.samples)
        self.epoch = 0

    def learn(self, ids: np.ndarray, norms: np.ndarray) -> None:
        old = self.belief[ids]
        self.belief[ids] = np.where(np.isnan(old), norms, 0.5 * old + 0.5 * norms)

    def gains(self, ids: np.ndarray, floor: float) -> np.ndarray:
        belief = self.belief[ids].copy()
        mean, most = np.nanmean(belief), np.nanmax(belief)
        belief[np.isnan(belief)] = most
        return floor + (1 - floor) * np.minimum(belief / mean, 100)

    def _hardest(self, ids: np.ndarray) -> np.ndarray:
        """OrderDP's choice of `ids`, shuffled."""
        some = self.rng.choice(ids, int(0.75 * len(ids)), replace=False)
        return self.rng.permutation(some[np.argsort(-self.loss[some])[: int(0.85 * len(some))]])

    def order_dp(self) -> Batches:
        order = self._hardest(np.arange(self.samples))
        while len(order) < self.steps * BATCH:
            order = np.concatenate([order, self._hardest(np.arange(self.samples))])
        yield from self._pass(order)

    def uniform(self) -> Batches:
        yield from self._pass(self.rng.permutation(self.samples))

    def _pass(self, order: np.ndarray) -> Batches:
        for step in range(self.steps):
            ids = order[step * BATCH : (step + 1) * BATCH]
            for i in ids[~self.is_cached[ids]]:
                self.fetched += 1
                if len(self.cached) < self.room:
                    self.cached.append(i)
                    self.is_cached[i] = True
            yield ids, np.ones(BATCH, np.float32)

    def echo(self, phi: float, by_score: bool = False, strat: bool = False, order_dp: bool = False) -> Batches:
        left_over = 0.0
        for _ in range(self.steps):
            fresh = BATCH
            if len(self.cached) >= self.room:
                left_over += phi * BATCH
                fresh = int(left_over)
                left_over -= fresh
            new = [self._next() for _ in range(fresh)]
            again, weights = [], np.ones(BATCH, np.float32)
            if by_score and fresh < BATCH:
                ids, count = np.array(self.cached), BATCH - fresh
                gains = self.gains(ids, 0.2)
                chance = gains / gains.sum()
                start = self.rng.random()
                order = np.argsort(chance) if strat else self.rng.permutation(len(ids))
                marks = np.searchsorted(np.cumsum(chance[order]) * count, start + np.arange(count))
                drawn = order[np.minimum(marks, len(ids) - 1)]
                again, weights[fresh:] = list(ids[drawn]), 1 / (len(ids) * chance[drawn])
            while len(again) < BATCH - fresh:
                cached = np.array(self.cached)
                self.deck = self.deck or list(self._hardest(cached) if order_dp else self.rng.permutation(cached))
                if self.is_cached[i := self.deck.pop()]:
                    again.append(i)
            for i in new:
                self._enter(i)
            yield np.array(new + again), weights

    def _next(self) -> int:
        self.stream = self.stream or list(self.rng.permutation(self.samples))
        return self.stream.pop()

    def _enter(self, i: int) -> None:
        if self.is_cached[i]:
            return
        self.fetched += 1
        self.cached.append(i)
        self.is_cached[i] = True
        if len(self.cached) > self.room:
            self.is_cached[self.cached.pop(0)] = False

    def _chances(self, kappa: float, fetches: float | None, floor: float) -> np.ndarray:
        gains = self.gains(np.arange(self.samples), floor).astype(np.float64)
        discount = kappa**-0.5
        if fetches is not None:
            cached, others = gains[self.is_cached].sum(), gains[~self.is_cached].sum()
            discount = min(1, max(1e-6, fetches * cached / ((1 - fetches) * others)))
        gains[~self.is_cached] *= discount
        return gains

    def cost_aware(
        self, kappa: float = 16, fetches: float | None = None, floor: float = 0.2, strat: bool = False, norm: bool = False
    ) -> Batches:
        gains, draws = self._chances(kappa, fetches, floor), self.steps * BATCH
        chance = gains / gains.sum()
        order = self.rng.permutation(self.samples)
        marks = np.searchsorted(np.cumsum(chance[order]) * draws, self.rng.random() + np.arange(draws))
        drawn = order[np.minimum(marks, self.samples - 1)]
        if strat:
            strata = drawn[np.argsort(gains[drawn] + 1e-9 * self.rng.random(draws))].reshape(BATCH, self.steps)
            drawn = np.stack([self.rng.permutation(stratum) for stratum in strata]).T.reshape(-1)
        else:
            drawn = self.rng.permutation(drawn)
        yield from self._deliver(drawn, 1 / (self.samples * chance), norm)

    def mixed(
        self,
        kappa: float = 64,
        fetches: float | None = None,
        floor: float = 0.2,
        norm: bool = False,
        spread: bool = True,
        carry: bool = False,
        debt: bool = False,
        cls: bool = False,
        age: float = 0.0,
    ) -> Batches:
        n, draws = self.samples, self.steps * BATCH
        if self.due is None:
            self.due = self.rng.random(n)
        believed = self.belief.copy()
        if age > 0:
            kept = age ** np.maximum(0, self.epoch - self.met)
            self.belief = (kept * believed + (1 - kept) * np.nanmean(believed)).astype(np.float32)
        gains = self._chances(kappa, fetches, floor)
        self.belief = believed
        chance = gains / gains.sum()
        if carry:
            self.due += draws * chance
            times = np.maximum(np.floor(self.due).astype(int), 0)
        else:
            times = np.floor(draws * chance + self.rng.random(n)).astype(int)
        self.due -= times
        over = times.sum() - draws
        if over > 0:
            back = self.rng.choice(np.repeat(np.arange(n), times), over, replace=False)
            np.subtract.at(times, back, 1)
            np.add.at(self.due, back, 1)
        elif over < 0:
            more = np.argsort(-self.due)[:-over]
            times[more] += 1
            self.due[more] -= 1
        weights = 1 / (n * chance)
        if debt:
            weights = np.where(times > 0, self.owed / np.maximum(times, 1), 0)
            self.owed = np.where(times > 0, 0, self.owed) + 1
        drawn = np.repeat(np.arange(n), times)
        which = np.concatenate([np.arange(k) for k in times[times > 0]])
        start = np.repeat(self.rng.random(n), times)
        when = (start + which) / np.repeat(np.maximum(times, 1), times) if spread else self.rng.random(draws)
        key = (self.labels[drawn] * 1e6 if cls else 0) + np.argsort(np.argsort(gains))[drawn]
        strata = np.argsort(key + self.rng.random(draws), kind="stable").reshape(BATCH, self.steps)
        strata = np.stack([s[np.argsort(when[s] + 1e-6 * self.rng.random(self.steps))] for s in strata])
        yield from self._deliver(drawn[strata].T.reshape(-1), weights, norm)
        self.epoch += 1

    def _deliver(self, drawn: np.ndarray, weight_of: np.ndarray, norm: bool) -> Batches:
        """The draws as batches. Then those stay cached that matter most, of the cached and of the fetched."""
        new: set[int] = set()
        for step in range(self.steps):
            ids = drawn[step * BATCH : (step + 1) * BATCH]
            weights = weight_of[ids].astype(np.float32)
            for i in ids[~self.is_cached[ids]]:
                self.fetched += 1
                new.add(i)
            self.met[ids] = self.epoch
            yield ids, weights / weights.mean() if norm else weights
        candidates = np.array(list(set(self.cached) | new))
        best = candidates[np.argsort(-np.nan_to_num(self.belief[candidates], nan=9))[: self.room]]
        self.cached = list(self.rng.permutation(best))
        self.is_cached[:] = False
        self.is_cached[best] = True


def epochs(plan: str) -> list[tuple[str, dict[str, Any]]]:
    """``"uniform,echo:phi=0.2*9"`` as ten ways to draw an epoch with their options."""
    ways = []
    for item in plan.split(","):
        item, _, times = item.partition("*")
        way, *options = item.split(":")
        if way not in ("uniform", "echo", "cost-aware", "mixed", "order-dp"):
            raise SystemExit(f"{plan}: there is no way to draw an epoch called {way!r}")
        given = dict(option.split("=") for option in options)
        ways += [(way.replace("-", "_"), {name: float(value) for name, value in given.items()})] * int(times or 1)
    return ways


def augmented(pictures: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Each shifted by up to 4 pixels and mirrored half of the time."""
    mirrored = rng.random(len(pictures)) < 0.5
    pictures = pictures.clone()
    pictures[mirrored] = pictures[mirrored].flip(2)
    wide = torch.zeros(len(pictures), 40, 40, 3, dtype=torch.uint8)
    wide[:, 4:36, 4:36] = pictures
    corners = rng.integers(0, 9, (len(pictures), 2))
    return torch.stack([wide[i, y : y + 32, x : x + 32] for i, (y, x) in enumerate(corners)])


def linupper(losses: torch.Tensor) -> torch.Tensor:
    """LinUpper's weights of a batch, with a mean of 1."""
    least, most = losses.min(), losses.max()
    scaled = (2 * losses - most - least) / (most - least).clamp_min(1e-6)
    return torch.softmax((scaled + 1).clamp_max(1), 0) * len(losses)


def train(data: Data, plan: str, seed: int, width: int, depth: int) -> dict[str, Any]:
    """Trains by a plan and says how it went, epoch by epoch."""
    from lossfeed.train import model

    options, _, ways_text = plan.rpartition("@")
    ways_text, *added = ways_text.split("+")
    if unknown := {*added} - {"crop-flip", "batch", "noise", "linupper"}:
        raise SystemExit(f"{plan}: nothing is called {'+'.join(sorted(unknown))}")
    augment, ways = "crop-flip" in added, epochs(ways_text)
    lr = float(options.removeprefix("lr=") or 0.05)
    torch.manual_seed(seed)
    sample = data.train[::50].float()
    net = model.build((32, 32, 3), 10, width, sample.mean((0, 1, 2)), sample.std((0, 1, 2)), depth)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    feed = Feed(data.target.numpy(), seed)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=len(ways) * feed.steps, pct_start=0.2)
    began, accuracies, fetched, losses = time.time(), [], [], []
    for way, given in ways:
        total = 0.0
        for ids, weights in getattr(feed, way)(**given):
            pictures, target = data.train[ids], data.target[ids]
            logs = torch.log_softmax(net(augmented(pictures, feed.rng) if augment else pictures), 1)
            each = -logs.gather(1, target[:, None]).squeeze(1)
            given_weights = linupper(each.detach()) if "linupper" in added else torch.from_numpy(weights)
            loss = (each * given_weights).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                error = logs.exp()
                error[torch.arange(len(target)), target] -= 1
                scores = each.mean().expand(BATCH) if "batch" in added else error.norm(dim=1)
                feed.learn(ids, (torch.rand(BATCH) if "noise" in added else scores).numpy())
                feed.loss[ids] = each.numpy()
            total += float(loss.detach())
        accuracies.append(accuracy(net, data))
        fetched.append(feed.fetched)
        losses.append(round(total / feed.steps, 3))
    last = {"accuracy": accuracies[-1], "fetched_samples": feed.fetched}
    by_epoch = {"accuracies": accuracies, "fetched": fetched, "losses": losses}
    return {"plan": plan, "seed": seed, **last, "seconds": round(time.time() - began), **by_epoch}


def accuracy(net: torch.nn.Module, data: Data) -> float:
    net.eval()
    right = 0
    with torch.inference_mode():
        for first in range(0, len(data.test), 500):
            target = data.test_target[first : first + 500]
            right += int((net(data.test[first : first + 500]).argmax(1) == target).sum())
    net.train()
    return right / len(data.test)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="CIFAR-10 as train-*.tar and test-*.tar (default: $LOSSFEED_CIFAR)")
    parser.add_argument("--plans", nargs="+", default=["uniform*10", "uniform,cost-aware:kappa=64*9", "uniform,mixed*9"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--pictures", type=int, help="train on the first so many (default: all)")
    parser.add_argument("--width", type=int, default=24, help="channels of the network's first stage")
    parser.add_argument("--depth", type=int, default=1, help="convolutions in each stage of the network")
    parser.add_argument("--name", default="levers", help="name of the record")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; several of these may run side by side")
    parser.add_argument("--date", help="name of the record, if not today's date")
    args = parser.parse_args()
    folder = cifar_folder(args.folder)
    if folder is None:
        return 0
    torch.set_num_threads(args.threads)
    settings: dict[str, Any] = {"batch_size": BATCH, "width": args.width, "cached": "20%"}
    if args.depth > 1 or args.pictures:
        settings |= {"depth": args.depth, "pictures": args.pictures}
    record = Record(args.name, settings, args.date)
    data = Data(folder)
    data.train, data.target = data.train[: args.pictures], data.target[: args.pictures]
    for seed in range(args.first_seed, args.seeds):
        for plan in args.plans:
            with record.locked(f"{plan} {seed}", wait=False) as mine:
                if not mine or any((r["plan"], r["seed"]) == (plan, seed) for r in record.runs()):
                    continue
                run = train(data, plan, seed, args.width, args.depth)
                record.add(run)
                print(f"{plan} seed {seed}: {100 * run['accuracy']:.2f} %, {run['fetched_samples']:,} fetched", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Training scripts with one bottleneck each, and healthy ones: what `lossfeed why` must tell apart.

    python benches/scenarios/why/planted.py CASE [--set NAME=VALUE …]

Each case is an ordinary loop. ``--set`` changes what the case plants (``num_workers=4``, ``item_ms=2``, ``steps=60``),
so that the advice of a report can be tried, and so that rules are not fitted to one set of numbers.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


@dataclass
class Case:
    """A script, and the verdicts that are right for it."""

    run: Callable[[dict[str, Any]], None]
    verdicts: tuple[str, ...]
    causes: tuple[str | None, ...] = (None,)
    settings: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1

    @property
    def foretold(self) -> bool:
        """True if a setting changes the step, so that a report is to foretell the step after it."""
        return bool({*self.causes} & {"source", "decode", "python", "hand-over"}) and self.ranks == 1


class Items(Dataset[Any]):
    """Samples of 32 numbers; each takes as long as `prepare` does."""

    def __init__(self, count: int, prepare: Callable[[int], Any]) -> None:
        self.count, self.prepare = count, prepare

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        self.prepare(i)
        return torch.full((32,), i / self.count), i % 4


def sleeping(ms: float) -> Callable[[int], Any]:
    return lambda i: time.sleep(ms / 1000)


def interpreting(rounds: int) -> Callable[[int], Any]:
    def work(i: int) -> int:
        total = 0
        for k in range(rounds):
            total += k * i % 7
        return total

    return work


def decoding(side: int) -> Callable[[int], Any]:
    import numpy as np
    from PIL import Image

    body = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (side // 8, side // 8, 3), np.uint8)
    Image.fromarray(noise).resize((side, side)).save(body, "JPEG", quality=90)
    jpeg = body.getvalue()

    def work(i: int) -> Any:
        with Image.open(io.BytesIO(jpeg)) as picture:
            return picture.resize((64, 64))

    return work


def train(loader: Any, s: dict[str, Any], ours: bool = False, each: Callable[[], Any] = lambda: None) -> None:
    """The loop of all cases: a small model, and `step_ms` in place of a larger one."""
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(4))
    optimizer = None
    for epoch in range(s["epochs"]):
        if ours:
            loader.set_epoch(epoch)
        for batch in loader:
            x, y = (batch.data, batch.target) if ours else batch
            logits = model(x.float())
            optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
            loss = loader.cross_entropy(logits, batch) if ours else nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(s["step_ms"] / 1000)
            each()


def torchs(prepare: Callable[[dict[str, Any]], Callable[[int], Any]], **more: Any) -> Callable[[dict[str, Any]], None]:
    def run(s: dict[str, Any]) -> None:
        data = Items(s["batch_size"] * s["steps"] // s["epochs"], prepare(s))
        workers = s["num_workers"]
        persistent = bool(s.get("persistent_workers", 0)) and workers > 0
        more.update(num_workers=workers, persistent_workers=persistent)
        train(DataLoader(data, s["batch_size"], shuffle=True, **more), s)

    return run


def pieces(s: dict[str, Any]) -> None:
    """Samples of many small tensors that nothing puts together: each crosses to the loop by itself."""

    class Pieces(Dataset[Any]):
        def __len__(self) -> int:
            return s["batch_size"] * s["steps"]

        def __getitem__(self, i: int) -> list[torch.Tensor]:
            return [torch.ones(4) for _ in range(s["pieces"])]

    for _ in DataLoader(Pieces(), s["batch_size"], num_workers=s["num_workers"], collate_fn=list):
        time.sleep(s["step_ms"] / 1000)


def starting(s: dict[str, Any]) -> None:
    """Short passes whose workers start again each time."""
    data = Items(s["batch_size"] * s["steps"] // s["epochs"], sleeping(0.1))
    persistent = bool(s.get("persistent_workers", 0))
    loader = DataLoader(
        data, s["batch_size"], num_workers=s["num_workers"], worker_init_fn=_slow_start, persistent_workers=persistent
    )
    train(loader, s)


def _slow_start(_: int) -> None:
    time.sleep(0.6)


def ours(make: Callable[[dict[str, Any], Path], Any], **keywords: Any) -> Callable[[dict[str, Any]], None]:
    def run(s: dict[str, Any]) -> None:
        import lossfeed as lf

        with tempfile.TemporaryDirectory() as folder:
            data = make(s, Path(folder))
            given = {name: s[name] for name in ("num_workers", "cache", "sampler", "read_ahead") if name in s}
            if "side" in s:
                given["transform"] = lf.ImageTransform("float32", crop=32)
            with lf.Loader(data, s["batch_size"], device="cpu", seed=0, **given, **keywords) as loader:
                train(loader, s, ours=True)

    return run


def store(s: dict[str, Any], folder: Path) -> Any:
    """Pictures, each an object, slowed by the engine's own throttle."""
    import lossfeed as lf

    pictures(folder, s["samples"], s["side"])
    limits = {"latency": s["latency_ms"] / 1000} | ({"bandwidth": s["bandwidth"]} if "bandwidth" in s else {})
    return lf.open(folder, **limits)


def pictures(folder: Path, samples: int, side: int) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in range(4):
        (folder / str(label)).mkdir()
    for n in range(samples):
        small = rng.integers(0, 255, (max(1, side // 4), max(1, side // 4), 3), np.uint8)
        Image.fromarray(small).resize((side, side)).save(folder / str(n % 4) / f"{n:05d}.jpg", quality=90)


def items_of_ours(s: dict[str, Any], folder: Path) -> Any:
    prepare = interpreting(s["rounds"]) if "rounds" in s else sleeping(s["item_ms"])
    return Items(s["samples"], prepare)


def late(s: dict[str, Any]) -> None:
    """Scores that come after the sampler has drawn without them."""
    import numpy as np

    import lossfeed as lf

    x, y = np.random.default_rng(0).random((s["samples"], 32), np.float32), np.arange(s["samples"]) % 4
    sampler = {"name": "replay", "lag": s["lag"]}
    model = nn.Linear(32, 4)
    held: deque[Any] = deque()
    given = {"cache": "50%", "sampler": sampler, "num_workers": 1}
    with lf.Loader((x, y), s["batch_size"], device="cpu", seed=0, **given) as loader:
        for epoch in range(s["epochs"]):
            loader.set_epoch(epoch)
            for batch in loader:
                held.append((model(batch.data), batch))
                if len(held) > s["held"]:
                    loader.cross_entropy(*held.popleft()).backward()
                time.sleep(s["step_ms"] / 1000)


def late_rank(s: dict[str, Any]) -> None:
    """Two ranks that step together; one has the planted part."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    slow = dist.get_rank() == s["slow_rank"]
    data = Items(s["batch_size"] * s["steps"], sleeping(s["item_ms"] if slow else 0.05))
    loader = DataLoader(data, s["batch_size"], num_workers=s["num_workers"])
    model = DistributedDataParallel(nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        time.sleep((s["step_ms"] + (s["more_ms"] if slow else 0)) / 1000)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


def busy(s: dict[str, Any]) -> None:
    """Real computing, an input that keeps up."""
    count, width = s["batch_size"] * s["steps"], s["width"]
    data = TensorDataset(torch.rand(count, 256), torch.zeros(count, dtype=torch.int64))
    layers = nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(data, s["batch_size"], num_workers=s["num_workers"]):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if s.get("item"):
            float(loss.item())


def tiny(s: dict[str, Any]) -> None:
    """A model so small that indexing its samples costs as much as a step."""
    count = s["batch_size"] * s["steps"]
    data = TensorDataset(torch.rand(count, 16), torch.zeros(count, dtype=torch.int64))
    model = nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(data, s["batch_size"], num_workers=s["num_workers"], shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def paused(s: dict[str, Any]) -> None:
    """A run that is stopped for some seconds, by a signal and by a sleep of its own."""
    import signal
    import subprocess

    seen = [0]

    def pause() -> None:
        seen[0] += 1
        if seen[0] == s["steps"] // 3:
            subprocess.Popen(["sh", "-c", f"sleep {s['pause']}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        if seen[0] == s["steps"] // 2:
            time.sleep(s["pause"])

    data = Items(s["batch_size"] * s["steps"] // s["epochs"], lambda i: None)
    train(DataLoader(data, s["batch_size"], num_workers=s["num_workers"]), s, each=pause)


THRICE = {"epochs": 3}
USUAL = {"batch_size": 16, "steps": 80, "epochs": 1, "step_ms": 10, "num_workers": 0}
CASES = {
    "source, no workers": Case(torchs(lambda s: sleeping(s["item_ms"])), ("input-bound",), ("source",), {"item_ms": 2}),
    "source, two workers": Case(
        torchs(lambda s: sleeping(s["item_ms"])), ("input-bound",), ("source",), {"item_ms": 5, "num_workers": 2}
    ),
    "decode, no workers": Case(torchs(lambda s: decoding(s["side"])), ("input-bound",), ("decode",), {"side": 640}),
    "decode, one worker": Case(
        torchs(lambda s: decoding(s["side"])), ("input-bound",), ("decode",), {"side": 800, "num_workers": 1}
    ),
    "python, one worker": Case(
        torchs(lambda s: interpreting(s["rounds"])), ("input-bound",), ("python",), {"rounds": 40_000, "num_workers": 1}
    ),
    "hand-over": Case(
        pieces, ("input-bound",), ("hand-over",), {"pieces": 8, "num_workers": 1, "batch_size": 32, "step_ms": 2}
    ),
    "pass start": Case(starting, ("input-bound",), ("pass-start",), {"epochs": 5, "num_workers": 2}),
    "ours, slow store": Case(
        ours(store), ("input-bound",), ("source",),
        {"samples": 480, "side": 64, "latency_ms": 20, "bandwidth": 600_000, "step_ms": 5, "num_workers": 2}
        | {"read_ahead": 1 << 16} | THRICE,
    ),
    "ours, slow decode": Case(
        ours(store), ("input-bound",), ("decode",),
        {"samples": 960, "side": 640, "latency_ms": 0, "num_workers": 1, "step_ms": 2, "epochs": 2},
    ),
    "ours, slow Python": Case(
        ours(items_of_ours), ("input-bound",), ("python",),
        {"samples": 1280, "rounds": 40_000, "cache": "10%", "step_ms": 5},
    ),
    "ours, tiny cache": Case(
        ours(store), ("cache-small",), ("source",),
        {"samples": 640, "side": 64, "latency_ms": 20, "bandwidth": 600_000, "cache": "10%", "sampler": "uniform"}
        | {"epochs": 4},
    ),
    "late scores": Case(late, ("scores-late",), (None,), {"samples": 640, "epochs": 4, "lag": 4, "held": 12}),
    "rank-behind, input": Case(
        late_rank, ("rank-behind",), ("source",), {"slow_rank": 1, "item_ms": 2, "more_ms": 0}, ranks=2
    ),
    "rank-behind, computing": Case(
        late_rank, ("rank-behind",), ("compute",), {"slow_rank": 0, "item_ms": 0.05, "more_ms": 20}, ranks=2
    ),
    "busy": Case(busy, ("ok", "compute-bound"), (None,), {"width": 1024, "batch_size": 64}),
    "item every step": Case(
        busy, ("ok", "compute-bound"), (None,), {"width": 512, "batch_size": 64, "item": 1, "num_workers": 1}
    ),
    "tiny model": Case(tiny, ("ok", "compute-bound"), (None,), {"batch_size": 64, "steps": 1500}),
    "paused": Case(paused, ("ok", "compute-bound"), (None,), {"pause": 3, "num_workers": 1, "step_ms": 30}),
}  # fmt: skip


def settings(case: Case, changes: list[str]) -> dict[str, Any]:
    """A case's settings with changes."""
    found = USUAL | case.settings
    for change in changes:
        name, _, value = change.partition("=")
        try:
            found[name] = int(value)
        except ValueError:
            try:
                found[name] = float(value)
            except ValueError:
                found[name] = value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    case = CASES[args.case]
    case.run(settings(case, args.set))


if __name__ == "__main__":
    main()

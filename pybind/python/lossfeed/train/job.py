"""What every run of a comparison shares: the data, its shape and constants, the held-out set, the number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lossfeed as lf
import torch

from .data import Splits
from .options import OptionError, Options

# Defaults that depend on the data. The digits job is sized so that fifteen runs take two minutes on two cores. Its
# store is as slow for 140-byte images as a remote one is for photographs: bytes, not arithmetic, are what a step
# waits for. Torch gets one thread there: on batches this small, more of them only wait for each other.
# Pictures are augmented as real trainings do it; digits are not, because a mirrored digit is none and a shift by a
# pixel is an eighth of the picture.
_DIGITS = {
    "epochs": 12,
    "batch_size": 32,
    "width": 16,
    "augment": "none",
    "latency_s": 0.005,
    "bandwidth_bytes_per_s": 200_000,
    "threads": 1,
}
_OTHERS = {
    "epochs": 10,
    "batch_size": 128,
    "width": 24,
    "augment": "crop-flip",
    "latency_s": 0.0,
    "bandwidth_bytes_per_s": 0,
    "threads": 0,
}

_NORMALISE_BATCHES = 8
_EVALUATION_BATCH = 500


class HeldOut:
    """The held-out set, decoded once. It judges; nothing that steers a run ever sees it."""

    def __init__(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._batches = batches
        self.samples: int = sum(len(target) for _, target in batches)

    @classmethod
    def read(cls, dataset: Any) -> HeldOut:
        """Reads and decodes every sample of ``dataset`` once (it stays in host memory, one byte a pixel channel)."""
        size = min(_EVALUATION_BATCH, len(dataset))
        loader = lf.Loader(dataset, batch_size=size, drop_last=False, sampler="uniform", device="cpu")
        # A batch's memory goes back to the loader when the batch does: keep a copy.
        return cls([(batch.data.clone(), batch.target.clone()) for batch in loader])

    def accuracy(self, model: torch.nn.Module, device: str) -> float:
        """Share of held-out samples the model gets right, in 0 … 1. Leaves the model in training mode."""
        model.eval()
        right = 0
        with torch.inference_mode():
            for images, target in self._batches:
                right += int((model(images.to(device)).argmax(1) == target.to(device)).sum())
        model.train()
        return right / self.samples


@dataclass(frozen=True)
class Job:
    """Everything that is the same for all recipes and seeds."""

    splits: Splits
    samples: int
    shape: tuple[int, int, int]
    classes: int
    mean: torch.Tensor
    std: torch.Tensor
    held_out: HeldOut
    steps: int
    steps_per_epoch: int
    batch_size: int
    width: int
    depth: int
    wrong_labels: float
    """The share of training samples whose label is wrong."""
    lr: float
    cache: float | int
    """A share of the decoded data as a float, or bytes as an int: what :class:`lossfeed.Loader` takes."""
    latency_s: float
    bandwidth_bytes_per_s: int
    """0 is unlimited."""
    chaos: int | None
    """The seed of the store's faults; None: it has none."""
    workers: int | None
    device: str
    resize: tuple[int, int] | None
    augment: str
    journal: Path | None
    """The folder of the runs' journals."""

    @property
    def epochs(self) -> int:
        """Epochs begun; the last may end early, at ``steps``."""
        return -(-self.steps // self.steps_per_epoch)

    def open_train(self) -> Any:
        """The training set behind its (possibly throttled) store, opened afresh so that every run starts cold."""
        return open_set(self.splits.train, self.resize, self.latency_s, self.bandwidth_bytes_per_s, self.chaos)

    def transform(self) -> lf.ImageTransform | None:
        """What is drawn anew for every delivery: a shift by up to an eighth of the shorter side (4 pixels of 32), and
        for ``crop-flip`` a mirror image half of the time. Pixels stay bytes: the network normalises."""
        if self.augment == "none":
            return None
        shift = max(1, min(self.shape[:2]) // 8)
        return lf.ImageTransform("uint8", layout="NHWC", padding=shift, flip=0.5 if self.augment == "crop-flip" else 0.0)

    def label_shifts(self, seed: int) -> torch.Tensor | None:
        """By sample, what is added to its label modulo the number of classes; None where all labels are right."""
        if not self.wrong_labels:
            return None
        chance = torch.Generator().manual_seed(seed)
        wrong = torch.rand(self.samples, generator=chance) < self.wrong_labels
        others = torch.randint(1, max(self.classes, 2), (self.samples,), generator=chance)
        return torch.where(wrong, others, torch.zeros_like(others)).to(self.device)

    def describe(self) -> dict[str, Any]:
        """The settings a reader needs beside the results."""
        return {
            "data": self.splits.name,
            "train_samples": self.samples,
            "held_out_samples": self.held_out.samples,
            "shape": list(self.shape),
            "classes": self.classes,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "steps": self.steps,
            "width": self.width,
            "depth": self.depth,
            "wrong_labels": self.wrong_labels,
            "lr": self.lr,
            "cache": self.cache,
            "augment": self.augment,
            "latency_s": self.latency_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "chaos": self.chaos,
            "device": self.device,
        }


def open_set(
    url: str, resize: tuple[int, int] | None = None, latency_s: float = 0, bandwidth: int = 0, chaos: int | None = None
) -> Any:
    """Opens a set through the engine; with a latency or a bandwidth the store behaves like a remote one. Under chaos every
    sample has a checksum, so that wrong bits are found, and an answer that does not come is waited for a second."""
    given: dict[str, Any] = {"resize": resize, "latency": latency_s or None, "bandwidth": bandwidth or None}
    if chaos is not None:
        given |= {"chaos": chaos, "checksums": True, "timeout": 1.0}
    return lf.open(url, **{name: value for name, value in given.items() if value is not None})


def prepare(options: Options, splits: Splits) -> Job:
    """Opens both sets, decodes the held-out one, and settles what the options left to the data.

    Raises :class:`OptionError` where the data and the options contradict each other, and the engine's own errors where
    the data cannot be read.
    """
    usual = _DIGITS if options.data is None else _OTHERS

    def settled(name: str) -> Any:
        value = getattr(options, name)
        return usual[name] if value is None else value

    if threads := settled("threads"):
        torch.set_num_threads(threads)
    train, test = open_set(splits.train, options.resize), open_set(splits.test, options.resize)
    if list(train.classes) != list(test.classes):
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise OptionError(
            f"--data: the training and the held-out set differ in their classes; in only one of them: {odd[:5]}"
        )
    if train.spec != test.spec:
        raise OptionError(
            f"--data: training samples are {_words(train.spec)}, held-out ones {_words(test.spec)}; make them alike "
            "with --resize"
        )
    if train.spec[0] != "uint8" or len(train.spec[1]) != 3:
        raise OptionError(f"--data: samples are {_words(train.spec)}; the demonstration job trains on images")
    samples, batch_size = len(train), settled("batch_size")
    if batch_size > samples:
        raise OptionError(f"--batch-size {batch_size} is above the {samples} training samples; use at most {samples}")
    if options.journal is not None:
        try:
            options.journal.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise OptionError(f"--journal {options.journal}: the folder cannot be made: {cause.strerror}") from cause
    held_out = HeldOut.read(test)
    mean, std = channel_constants(train, batch_size)
    # Every sampler draws as many samples an epoch as there are, and short batches are dropped: epochs are equally long.
    steps_per_epoch = samples // batch_size
    return Job(
        splits=splits,
        samples=samples,
        shape=train.spec[1],
        # Shards with numbers for labels name no classes.
        classes=len(train.classes) or 1 + int(max(train.labels)),
        mean=mean,
        std=std,
        held_out=held_out,
        steps=options.steps or settled("epochs") * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        batch_size=batch_size,
        width=settled("width"),
        depth=options.depth,
        wrong_labels=options.wrong_labels,
        lr=options.lr,
        cache=(options.cache_fraction or 0.0) if options.cache_bytes is None else options.cache_bytes,
        latency_s=settled("latency_s"),
        bandwidth_bytes_per_s=settled("bandwidth_bytes_per_s"),
        chaos=options.chaos,
        workers=options.workers,
        device=_device(options.device) or ("cuda" if torch.cuda.is_available() else "cpu"),
        resize=options.resize,
        augment=settled("augment"),
        journal=options.journal,
    )


def _device(asked: str | None) -> str | None:
    kind, _, index = (asked or "cpu").partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise OptionError(f"--device {asked}: use cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionError(
            f"--device {asked}: this PyTorch ({torch.__version__}) finds no CUDA device; remove it to train on the CPU, "
            "or look at `lossfeed doctor`"
        )
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise OptionError(f"--device {asked}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    return asked


def _words(spec: tuple[str, tuple[int, ...]]) -> str:
    return f"{spec[0]} {'×'.join(map(str, spec[1])) or 'scalars'}"


def channel_constants(train: Any, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation per channel (0 … 255) over the first shuffled batches of the training set."""
    loader = lf.Loader(train, batch_size=batch_size, drop_last=True, sampler="uniform", seed=0, device="cpu")
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for batch, _ in zip(loader, range(_NORMALISE_BATCHES)):
        pixels = batch.data.flatten(0, 2).double()
        count, total, squares = count + len(pixels), total + pixels.sum(0), squares + (pixels * pixels).sum(0)
    mean = total / count
    return mean.float(), (squares / count - mean * mean).clamp_min(1.0).sqrt().float()

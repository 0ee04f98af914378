"""How each loader reads the same pictures from the store, a dozen lines each: to be checked and improved.

A feed gives batches of 128 without end, pass after pass in random order: (pixels, labels) as uint8 (B, H, W, C) and
int64, or for lossfeed a batch. Peers that can keep files on a disk of this machine may keep a fifth of their bytes
there, as lossfeed may in memory.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pictures import Kind

BATCH = 128
CACHE = 0.2


@dataclass(frozen=True)
class Place:
    """What a feed is told: the store's address, a folder of its own, and the pictures that exist."""

    url: str
    scratch: Path
    names: list[str]
    form_bytes: int
    seed: int
    kind: Kind

    @property
    def environment(self) -> dict[str, str]:
        """How clients of S3 find the store."""
        keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
        return {"AWS_ENDPOINT_URL": self.url, **keys}

    @property
    def cache_bytes(self) -> int:
        return int(CACHE * self.form_bytes)


@dataclass(frozen=True)
class Feed:
    name: str
    form: str
    package: str
    make: Callable[[Place], Any]


FEEDS: dict[str, Feed] = {}


def feed(name: str, form: str, package: str) -> Callable[[Callable[[Place], Any]], Any]:
    def register(make: Callable[[Place], Any]) -> Callable[[Place], Any]:
        FEEDS[name] = Feed(name, form, package, make)
        return make

    return register


def again(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def label(name: str) -> int:
    """Of a picture that is an object: it stands in its name."""
    return int(name.removesuffix(".jpg").split("-")[1])


def pixels(jpeg: bytes, resize: int | None) -> Any:
    """By torchvision's decoder, the quickest that torch's users have; channels last, as the network wants them.

    What is to be reduced is decoded by Pillow, which can decode at an eighth of the size: 1.0 ms a picture where
    torchvision takes 1.8.
    """
    import torch

    if resize is not None:
        from PIL import Image

        picture = Image.open(io.BytesIO(jpeg))
        picture.draft("RGB", (resize, resize))
        return torch.from_numpy(np.array(picture.resize((resize, resize), Image.Resampling.BILINEAR)))
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB).permute(1, 2, 0)


def stacked(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
    import torch

    return torch.stack([x for x, _ in samples]), torch.tensor([int(y) for _, y in samples])


class Objects:
    """An object a picture: a request a sample, over connections that are kept."""

    def __init__(self, place: Place) -> None:
        self.place, self.local = place, threading.local()

    def __len__(self) -> int:
        return len(self.place.names)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        import urllib3

        # A pool for each process and thread: connections do not survive a fork.
        if getattr(self.local, "pid", None) != os.getpid():
            self.local.pid, self.local.pool = os.getpid(), urllib3.PoolManager(maxsize=1)
        name = self.place.names[row]
        answer = self.local.pool.request("GET", f"{self.place.url}/bucket/objects/{name}")
        if answer.status != 200:
            raise RuntimeError(f"{name}: {answer.status}")
        return pixels(answer.data, self.place.kind.resize), label(name)


def torch_loader(place: Place, workers: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    generator = torch.Generator().manual_seed(place.seed)
    return again(
        DataLoader(
            Objects(place), BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True,
            prefetch_factor=8, collate_fn=stacked, generator=generator,
        )
    )  # fmt: skip


for count in (2, 4, 8):
    feed(f"torch-{count}", "objects", "torch")(partial(torch_loader, workers=count))


@feed("webdataset-2", "tars", "webdataset")
def webdataset(place: Place) -> Iterator[Any]:
    import webdataset as wds

    def sample(given: dict[str, Any]) -> tuple[Any, int]:
        return pixels(given["jpg"], place.kind.resize), int(given["__key__"].split("/")[0])

    shards = -(-len(place.names) // place.kind.shard)
    urls = [f"{place.url}/bucket/tars/train-{k:03d}.tar" for k in range(shards)]
    cache = place.scratch / "wds"
    cache.mkdir()
    dataset = (
        wds.WebDataset(
            urls, shardshuffle=shards, cache_dir=str(cache), cache_size=place.cache_bytes, seed=place.seed,
            workersplitter=wds.split_by_worker, empty_check=False,
        )
        .shuffle(2 * place.kind.shard)
        .map(sample)
        .batched(BATCH, collation_fn=stacked, partial=False)
    )  # fmt: skip
    return again(wds.WebLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True, prefetch_factor=16))


def _decoded(sample: dict[str, Any], resize: int | None) -> tuple[Any, int]:
    return pixels(sample["jpg"], resize), int(sample["label"])


@feed("mosaicml-streaming-2", "mds", "mosaicml-streaming")
def mosaicml_streaming(place: Place) -> Iterator[Any]:
    import streaming

    class Dataset(streaming.StreamingDataset):
        def __getitem__(self, row: int) -> tuple[Any, int]:
            return _decoded(super().__getitem__(row), place.kind.resize)

    os.environ["S3_ENDPOINT_URL"] = place.url
    # Its default shuffles over everything: where a fifth may be kept shards are read again and again, and an epoch had
    # not ended after 100 s behind a store without a limit.
    dataset = Dataset(
        remote="s3://bucket/mds", local=str(place.scratch / "mds"), shuffle=True, shuffle_seed=place.seed,
        batch_size=BATCH, cache_limit=place.cache_bytes, predownload=min(4 * BATCH, 2 * place.kind.shard),
        shuffle_block_size=place.kind.shard,
    )  # fmt: skip
    return again(
        streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, drop_last=True, collate_fn=stacked, prefetch_factor=8)
    )


@feed("litdata-2", "litdata", "litdata")
def litdata(place: Place) -> Iterator[Any]:
    import litdata as lit
    from litdata.streaming import downloader

    # It takes https alone otherwise. max_pre_download is its default: with 4 it evicted what it needed, and read each
    # chunk 20 times.
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}
    dataset = lit.StreamingDataset(
        "s3://bucket/litdata", cache_dir=str(place.scratch / "lit"), shuffle=True, drop_last=True,
        transform=partial(_decoded, resize=place.kind.resize),
        max_cache_size=place.cache_bytes, max_pre_download=2, seed=place.seed, storage_options={"endpoint_url": place.url},
    )  # fmt: skip
    return again(
        lit.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, drop_last=True, collate_fn=stacked, prefetch_factor=8)
    )


@feed("spdl-16", "objects", "spdl")
def spdl(place: Place) -> Iterator[Any]:
    from spdl.pipeline import PipelineBuilder

    rows = Objects(place)
    order = np.random.default_rng(place.seed)

    def passes() -> Iterator[int]:
        while True:
            yield from order.permutation(len(rows)).tolist()

    stages = PipelineBuilder().add_source(passes()).pipe(rows.__getitem__, concurrency=16).aggregate(BATCH).pipe(stacked)
    pipeline = stages.add_sink(16).build(num_threads=17)

    def batches() -> Iterator[Any]:
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return batches()


class Lossfeed:
    """lossfeed's loader and how its batches go on."""

    @staticmethod
    def open(place: Place) -> Any:
        import lossfeed as lf

        os.environ |= place.environment
        return lf.open("s3://bucket/tars/", index_cache=place.scratch.parent / "index", resize=place.kind.resize)

    def __init__(self, place: Place, **keywords: Any) -> None:
        import lossfeed as lf

        data = self.open(place)
        transform = lf.ImageTransform("uint8", layout="NHWC", padding=4, flip=0.5)
        # By default it reads 128 MiB ahead: more than all of these pictures, which would then be read once.
        given = {"read_ahead": place.form_bytes // 20, "transform": transform, "device": "cpu", **keywords}
        self.loader = lf.Loader(data, BATCH, drop_last=True, num_workers=2, seed=place.seed, **given)

    def __iter__(self) -> Iterator[Any]:
        epoch = 0
        while True:
            self.loader.set_epoch(epoch)
            yield from self.loader
            epoch += 1


feed("lossfeed-shuffle", "tars", "lossfeed")(partial(Lossfeed, shuffle=True))
feed("lossfeed-uniform-cache", "tars", "lossfeed")(partial(Lossfeed, sampler="uniform", policy="minio", cache=CACHE, cache_form="encoded"))


@feed("lossfeed-auto", "tars", "lossfeed")
def lossfeed_auto(place: Place) -> Lossfeed:
    """What it does by itself in a cache as large as the others': of large pictures, which are reduced, it keeps pixels,
    and these have room for all."""
    return Lossfeed(place, sampler="auto", cache=place.cache_bytes)


# What is left where pixels do not fit: a fifth of the pictures as they are stored.
feed("lossfeed-encoded", "tars", "lossfeed")(partial(Lossfeed, sampler="auto", cache=CACHE, cache_form="encoded"))
# The control: the same cache and as many bytes, without scores.
feed("lossfeed-echo", "tars", "lossfeed")(partial(Lossfeed, sampler="echo", cache=CACHE, cache_form="encoded"))


@feed("in-memory", "objects", "torch")
def in_memory(place: Place) -> Iterator[Any]:
    """No store at all: what the steps take by themselves."""
    import torch

    folder = place.scratch.parent.parent / "bucket" / "objects"
    x, y = stacked([(pixels((folder / n).read_bytes(), place.kind.resize), label(n)) for n in place.names])
    generator = torch.Generator().manual_seed(place.seed)
    while True:
        order = torch.randperm(len(y), generator=generator)
        for rows in order[: len(y) - len(y) % BATCH].view(-1, BATCH):
            yield x[rows], y[rows]

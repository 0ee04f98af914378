"""The loaders that are compared. Each is a function (place, workers) that returns a function giving one epoch of (x, y)
batches.

All deliver uint8 pictures and integer labels, in random order, batches of 256, the short last batch dropped. Packages
are imported by the loader that needs them, so that one that is missing costs one line of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from formats import items, pixels

BATCH = 256
#: Reused batch buffers of the bounds: a loader's own ring has several too, and one alone would stay in the processor's
#: cache.
RING = 4

Epoch = Callable[[], Iterator[tuple[Any, Any]]]


@dataclass(frozen=True)
class Place:
    """Where the forms lie."""

    work: Path
    group: str
    rows_gib: float

    def form(self, name: str) -> Path:
        return self.work / "cifar" / name

    def arrays(self, in_memory: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The decoded rows of the group and their labels."""
        folder = self.work / "rows" / f"{self.rows_gib:g}" if self.group == "rows" else self.form("arrays")
        return np.load(folder / "x.npy", None if in_memory else "r"), np.load(folder / "y.npy")

    def tensors(self) -> tuple[Any, Any]:
        import torch

        x, y = self.arrays()
        return torch.from_numpy(x), torch.from_numpy(y)


@dataclass(frozen=True)
class Peer:
    name: str
    groups: tuple[str, ...]
    workers: tuple[int, ...]
    form: str
    packages: tuple[str, ...]
    make: Callable[[Place, int], Epoch]


PEERS: dict[str, Peer] = {}


def peer(name: str, groups: str, workers: tuple[int, ...], form: str, packages: str) -> Callable[[Callable[[Place, int], Epoch]], Any]:
    def register(make: Callable[[Place, int], Epoch]) -> Callable[[Place, int], Epoch]:
        PEERS[name] = Peer(name, tuple(groups.split()), workers, form, tuple(packages.split()), make)
        return make

    return register


def orders(count: int) -> Iterator[list[np.ndarray]]:
    """A new permutation an epoch, cut into batches."""
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(count)
        yield [order[i : i + BATCH] for i in range(0, count - BATCH + 1, BATCH)]


# ---- torch -----------------------------------------------------------------------------------------------------------


class Pictures:
    """JPEG files one by one, the way most people write it."""

    def __init__(self, place: Place) -> None:
        self.listed = items(place.work)

    def __len__(self) -> int:
        return len(self.listed)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        import torch

        path, label = self.listed[row]
        return torch.from_numpy(pixels(path)), label


class TorchvisionPictures(Pictures):
    """The same with torchvision's decoder; pictures come channels first."""

    def __getitem__(self, row: int) -> tuple[Any, int]:
        from torchvision.io import ImageReadMode, decode_jpeg, read_file

        path, label = self.listed[row]
        return decode_jpeg(read_file(path), mode=ImageReadMode.RGB), label


class WholeBatches:
    """Rows in memory behind ``__getitems__``: one indexed copy a batch instead of one a row and a collation."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, rows: Any) -> tuple[Any, Any]:
        import torch

        # Several times as fast as x[rows].
        rows = torch.as_tensor(rows)
        return torch.index_select(self.x, 0, rows), torch.index_select(self.y, 0, rows)


def _as_it_is(batch: Any) -> Any:
    return batch


def data_loader(dataset: Any, workers: int, **keywords: Any) -> Epoch:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0, **keywords)
    return lambda: iter(loader)


@peer("torch-pillow", "cold", (0, 2), "files", "torch pillow")
def torch_pillow(place: Place, workers: int) -> Epoch:
    return data_loader(Pictures(place), workers)


@peer("torch-torchvision", "cold", (0, 2), "files", "torch torchvision")
def torch_torchvision(place: Place, workers: int) -> Epoch:
    return data_loader(TorchvisionPictures(place), workers)


@peer("torch-tensordataset", "warm rows", (0, 2), "arrays", "torch")
def torch_tensordataset(place: Place, workers: int) -> Epoch:
    from torch.utils.data import TensorDataset

    return data_loader(TensorDataset(*place.tensors()), workers)


@peer("torch-getitems", "warm rows", (0, 2), "arrays", "torch")
def torch_getitems(place: Place, workers: int) -> Epoch:
    return data_loader(WholeBatches(*place.tensors()), workers, collate_fn=_as_it_is)


# ---- other loaders ---------------------------------------------------------------------------------------------------


@peer("webdataset", "cold", (0, 2), "tar", "webdataset torch pillow")
def webdataset(place: Place, workers: int) -> Epoch:
    import io

    import torch
    import webdataset as wds

    def stacked(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        return torch.from_numpy(np.stack([s[0] for s in samples])), torch.tensor([s[1] for s in samples])

    urls = sorted(str(p) for p in place.form("tar").glob("*.tar"))
    dataset = (
        wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False, workersplitter=wds.split_by_worker)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(lambda content: pixels(io.BytesIO(content)), int)
        .batched(BATCH, collation_fn=stacked, partial=False)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda: iter(loader)


def _decoded(sample: dict[str, Any]) -> tuple[Any, int]:
    import io

    import torch

    return torch.from_numpy(pixels(io.BytesIO(sample["jpg"]))), int(sample["label"])


@peer("litdata", "cold", (0, 2), "litdata", "litdata torch pillow")
def litdata(place: Place, workers: int) -> Epoch:
    import litdata as lit

    dataset = lit.StreamingDataset(str(place.form("litdata")), shuffle=True, drop_last=True, transform=_decoded)
    loader = lit.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, drop_last=True, persistent_workers=workers > 0)
    return lambda: iter(loader)


@peer("mosaicml-streaming", "cold", (0, 2), "mds", "mosaicml-streaming torch pillow")
def mosaicml_streaming(place: Place, workers: int) -> Epoch:
    import streaming
    from streaming.base.util import clean_stale_shared_memory

    class Dataset(streaming.StreamingDataset):
        def __getitem__(self, row: int) -> tuple[Any, int]:
            return _decoded(super().__getitem__(row))

    clean_stale_shared_memory()
    dataset = Dataset(local=str(place.form("mds")), shuffle=True, batch_size=BATCH)
    loader = streaming.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, drop_last=True, persistent_workers=workers > 0)
    return lambda: iter(loader)


@peer("dali", "cold", (1, 2), "files", "nvidia-dali-cuda120 torch")
def dali(place: Place, workers: int) -> Epoch:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    listed = items(place.work)

    @pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None, prefetch_queue_depth=2)
    def pipeline() -> Any:
        content, label = fn.readers.file(
            files=[p for p, _ in listed], labels=[y for _, y in listed], random_shuffle=True, initial_fill=1000, name="reader"
        )
        return fn.decoders.image(content, device="cpu", output_type=types.RGB), label

    batches = DALIGenericIterator(pipeline(), ["x", "y"], reader_name="reader", auto_reset=True, last_batch_policy=LastBatchPolicy.DROP)
    return lambda: ((b[0]["x"], b[0]["y"]) for b in batches)


def ffcv(place: Place, workers: int, form: str) -> Epoch:
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Squeeze, ToTensor

    loader = Loader(
        str(place.form(form)),
        batch_size=BATCH,
        num_workers=workers,
        order=OrderOption.RANDOM,
        drop_last=True,
        os_cache=True,
        pipelines={"image": [SimpleRGBImageDecoder(), ToTensor()], "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return lambda: iter(loader)


peer("ffcv-jpeg", "cold", (1, 2), "beton-jpg", "ffcv torch")(partial(ffcv, form="beton-jpg"))
peer("ffcv-raw", "warm", (1, 2), "beton-raw", "ffcv torch")(partial(ffcv, form="beton-raw"))


def spdl_batches(fetch: Callable[[Any], tuple[Any, Any]], count: int, workers: int) -> Epoch:
    """Batches of row numbers, made batches by ``fetch`` in ``workers`` threads."""
    from spdl.pipeline import PipelineBuilder

    epochs = orders(count)

    def epoch() -> Iterator[tuple[Any, Any]]:
        stages = PipelineBuilder().add_source(next(epochs)).pipe(fetch, concurrency=workers, output_order="input").add_sink(4)
        pipeline = stages.build(num_threads=workers)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return epoch


def _collated(pictures: Pictures, rows: Any) -> tuple[Any, Any]:
    import torch

    samples = [pictures[row] for row in rows]
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])


@peer("spdl-torchvision", "cold", (1, 2), "files", "spdl torch torchvision")
def spdl_torchvision(place: Place, workers: int) -> Epoch:
    pictures = TorchvisionPictures(place)
    return spdl_batches(partial(_collated, pictures), len(pictures), workers)


@peer("spdl-ffmpeg", "cold", (2,), "files", "spdl torch")
def spdl_ffmpeg(place: Place, workers: int) -> Epoch:
    """SPDL's own decoder, which needs FFmpeg's shared libraries."""
    import spdl.io
    import torch

    listed = items(place.work)
    rgb = spdl.io.get_video_filter_desc(pix_fmt="rgb24")

    def fetch(rows: Any) -> tuple[Any, Any]:
        frames = [spdl.io.decode_packets(spdl.io.demux_image(listed[row][0]), filter_desc=rgb) for row in rows]
        return spdl.io.to_torch(spdl.io.convert_frames(frames)), torch.tensor([listed[row][1] for row in rows])

    # A pipeline drops the batches that fail; without FFmpeg this says so.
    fetch([0])
    return spdl_batches(fetch, len(listed), workers)


@peer("spdl-arrays", "warm rows", (1, 2), "arrays", "spdl torch")
def spdl_arrays(place: Place, workers: int) -> Epoch:
    rows = WholeBatches(*place.tensors())
    return spdl_batches(rows.__getitems__, len(rows), workers)


# ---- lossfeed --------------------------------------------------------------------------------------------------------


def lossfeed(place: Place, workers: int, source: str, **keywords: Any) -> Epoch:
    import torch  # noqa: F401  batches are tensors where torch is loaded, as everybody else's here
    import lossfeed as lf

    if source == "tar":
        data = lf.open(str(place.form("tar") / "cifar-*.tar"))
    elif source == "folder":
        data = lf.open(place.form("root").read_text())
    else:
        data = lf.open(place.arrays())
    loader = lf.Loader(data, BATCH, shuffle=True, num_workers=workers, drop_last=True, seed=0, **keywords)
    warm = False

    def epoch() -> Iterator[tuple[Any, Any]]:
        nonlocal warm
        before = loader.stats()
        for batch in loader:
            yield batch.data, batch.target
        after = loader.stats()
        missed = (after["requests_total"] - before["requests_total"]) - (after["hits_total"] - before["hits_total"])
        # Samples that every epoch so far left in its short last batch have not been seen.
        if warm and "cache" in keywords and missed > len(data) % BATCH:
            raise RuntimeError(f"{missed:.0f} requests of a warm epoch missed the cache")
        warm = True

    return epoch


WHOLE_CACHE: dict[str, Any] = {"cache": "100%", "cache_form": "decoded"}
peer("lossfeed-tar", "cold", (1, 2), "tar", "lossfeed torch")(partial(lossfeed, source="tar"))
peer("lossfeed-folder", "cold", (1, 2), "files", "lossfeed torch")(partial(lossfeed, source="folder"))
peer("lossfeed-cache", "warm", (0, 1, 2), "tar", "lossfeed torch")(partial(lossfeed, source="tar", **WHOLE_CACHE))
peer("lossfeed-arrays-cache", "rows", (0, 1, 2), "arrays", "lossfeed torch")(partial(lossfeed, source="arrays", **WHOLE_CACHE))
peer("lossfeed-arrays", "warm rows", (0, 1, 2), "arrays", "lossfeed torch")(partial(lossfeed, source="arrays"))


# ---- bounds: no loader, only the bytes
# --------------------------------------------------------------------------------


def bound(place: Place, threads: int, random: bool) -> Epoch:
    """Rows into reused buffers: by NumPy on one thread, by torch on several (NumPy has no parallel copy)."""
    import torch

    x, y = place.tensors()
    ring = [torch.zeros((BATCH, *x.shape[1:]), dtype=x.dtype) for _ in range(RING)]
    arrays, array_ring, torch_rows = x.numpy(), [b.numpy() for b in ring], torch.from_numpy
    torch.set_num_threads(threads)
    epochs = orders(len(y))

    def epoch() -> Iterator[tuple[Any, Any]]:
        for number, rows in enumerate(next(epochs)):
            out, start = number % RING, number * BATCH
            if random and threads == 1:
                np.take(arrays, rows, axis=0, out=array_ring[out], mode="clip")
            elif random:
                torch.index_select(x, 0, torch_rows(rows), out=ring[out])
            elif threads == 1:
                np.copyto(array_ring[out], arrays[start : start + BATCH])
            else:
                ring[out].copy_(x[start : start + BATCH])
            yield ring[out], y[torch_rows(rows)] if random else y[start : start + BATCH]

    return epoch


peer("bound-gather", "warm rows", (1, 2), "arrays", "torch")(partial(bound, random=True))
peer("bound-memcpy", "rows", (1, 2), "arrays", "torch")(partial(bound, random=False))

"""The CUDA half of the Python package, run on the driver double of ``tests/driver``: the real loader, courier and
engine, with a stand-in for the few pieces of torch that need a GPU. Run as a program by ``test_on_the_double.py``, with
the double in the driver's place.

The stand-in's allocator does what torch's does: memory that dies is handed out again at once to work of the stream it
was allocated on, and to nobody before the streams it was recorded on have passed. So a missing wait or record shows as
wrong bytes.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import io
import math
import os
import shutil
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from driver_double import call, violations
from handed_out import HANDED_OUT

import lossfeed as lf
from lossfeed._batch import courier
from lossfeed._torch import cuda as _cuda
from lossfeed._loader.epoch_pass import Pass

class Stream:
    def __init__(self, handle):
        self.cuda_stream = handle

    def __eq__(self, other):
        return self.cuda_stream == other.cuda_stream

    def synchronize(self):
        if not call("synchronize", self.cuda_stream):
            gone.append(self.cuda_stream)


CONSUMER, SIDE = Stream(call("stream")), Stream(call("stream"))
records = True
#: Streams that work was asked of after their end: torch records an event on every stream of a tensor's when the tensor
#: dies.
gone: list[int] = []
#: (bytes, stream) -> addresses to hand out again.
free: dict[tuple[int, int], list[int]] = {}


class Memory:
    """An allocation, as torch's caching allocator keeps books of it."""

    def __init__(self, size):
        self.size, self.owner, self.used_on = size, Torch.current.cuda_stream, []
        known = free.get((size, self.owner), [])
        self.address = known.pop() if known else call("allocate", size)

    def __del__(self):
        for stream in self.used_on:
            stream.synchronize()
        free.setdefault((self.size, self.owner), []).append(self.address)


class Tensor:
    """A contiguous piece of an allocation."""

    def __init__(self, memory, start, dtype, shape):
        self.memory, self.start, self.dtype, self.shape = memory, start, dtype, tuple(shape)

    def data_ptr(self):
        return self.memory.address + self.start

    def record_stream(self, stream):
        if records:
            self.memory.used_on.append(stream)

    def __getitem__(self, piece):
        assert self.dtype == torch.uint8 and len(self.shape) == 1 and 0 <= piece.start <= piece.stop <= self.shape[0]
        return Tensor(self.memory, self.start + piece.start, torch.uint8, (piece.stop - piece.start,))

    def flip(self, dimension):
        return self.read().flip(dimension)

    def new_full(self, shape, value):
        return torch.full(shape, value, dtype=self.dtype)

    def view(self, as_what):
        if isinstance(as_what, torch.dtype):
            size = math.prod(self.shape) * self.dtype.itemsize
            assert size % as_what.itemsize == 0 and self.start % as_what.itemsize == 0
            return Tensor(self.memory, self.start, as_what, (size // as_what.itemsize,))
        assert math.prod(as_what) == math.prod(self.shape)
        return Tensor(self.memory, self.start, self.dtype, as_what)

    def read(self):
        """What work of the current stream sees there."""
        size = math.prod(self.shape) * self.dtype.itemsize
        host = (ctypes.c_ubyte * max(size, 1))()
        assert call("read", Torch.current.cuda_stream, self.data_ptr(), host, size)
        return torch.frombuffer(host, dtype=self.dtype, count=math.prod(self.shape)).view(self.shape).clone()


class Torch:
    """What the courier uses of torch."""

    current = CONSUMER
    uint8, float16, float32, float64, bfloat16, int64, device, __version__ = (
        getattr(torch, name)
        for name in ("uint8", "float16", "float32", "float64", "bfloat16", "int64", "device", "__version__")
    )

    @staticmethod
    def empty(shape, *, dtype, device):
        assert device == torch.device("cuda:0")
        shape = (shape,) if isinstance(shape, int) else shape
        return Tensor(Memory(math.prod(shape) * dtype.itemsize), 0, dtype, shape)

    class cuda:
        is_available = staticmethod(lambda: True)
        current_device = staticmethod(lambda: 0)
        current_stream = staticmethod(lambda device=None: Torch.current)
        device = staticmethod(lambda device: contextlib.nullcontext())

        @staticmethod
        def ExternalStream(handle, device):
            return Stream(handle)

        @staticmethod
        @contextlib.contextmanager
        def stream(stream):
            Torch.current, before = stream, Torch.current
            yield
            Torch.current = before


courier.require_torch = lambda what: Torch
# What is joined on the host stays there: the double has no tensors of torch's own on a device.
courier._brought = lambda part, device: part
_cuda.torch.version.cuda = _cuda.torch.version.cuda or "12.8"
_cuda.torch.cuda.is_current_stream_capturing = lambda: False

SAMPLES, BATCH = 96, 8
PATHS = "gathered", "batched", "mapped"
pixels = np.random.default_rng(0).integers(0, 256, (SAMPLES, 7, 9, 3), dtype=np.uint8)
data = (pixels, np.arange(SAMPLES) * 3)


def deliver(transform, delay_us, on=CONSUMER, epochs=3, astray=False, data=data, **keywords):
    """Epochs on the double beside the same epochs on the CPU; the number of batches with a wrong byte. `astray`: they
    are read on a stream that was never made to wait."""
    call("set", b"delay_us", delay_us)
    wrong = 0
    keywords = {"batch_size": BATCH, "seed": 5, "shuffle": True, "transform": transform, "framework": "torch", "stats": False, **keywords}
    plain = {**keywords, "num_workers": 0, "prefetch_factor": None, "max_slots": None, "copy_path": "auto"}
    with lf.Loader(data, device="cuda:0", **keywords) as there, lf.Loader(data, **plain) as here:
        by_threads = transform is not None and _cuda._loaded[0] is None
        assert (there._settings["transform"] is not None) == by_threads, "who transforms"
        path = keywords.get("copy_path", "auto")
        here_and_there = transform is not None and not by_threads and transform._retouch == "auto"
        retouching = ("jitter", "augment")
        assert not (here_and_there and any(there._settings[step] for step in retouching)), "who retouches"
        early = transform is not None and (transform._crop is not None or any(there._settings[step] for step in retouching))
        # Pictures in files may be cached as they are stored.
        as_delivered = isinstance(data, tuple) or there._settings["cache_form"] == "decoded"
        measured = path == "auto" and "cache" in keywords and not by_threads and not early and as_delivered
        assert set(there.copy_paths()) == (set(PATHS) if measured else set())
        assert path in (there.copy_path, "auto")
        for _ in range(epochs):
            held = []
            passing = iter(there)
            for k, b in enumerate(here):
                # A batch is ready on the stream that is current when it is handed out.
                Torch.current = on if k % 3 else CONSUMER
                a = next(passing)
                Torch.current = SIDE if astray else Torch.current
                if k % 4 == 3:
                    held.append((Torch.current, a, b.data.clone(), b.ids.clone()))  # looked at when others have come and gone
                else:
                    fields = ("data", "target", "ids", "weight")
                    wrong += any(not torch.equal(getattr(a, f).read(), getattr(b, f)) for f in fields)
                    wrong += (a.mix is None) != (b.mix is None) or (b.mix is not None and not _same_mix(a.mix, b.mix))
                del a
            assert next(passing, None) is None
            for Torch.current, a, expected, ids in held:
                wrong += not (torch.equal(a.data.read(), expected) and torch.equal(a.ids.read(), ids))
            Torch.current = CONSUMER
            held.clear()
            del a
        abandoned = iter(there)
        next(abandoned)
        del abandoned
        stats = there.stats()
    assert stats["slots_total"] <= (keywords.get("max_slots") or 99), stats
    if path != "auto":
        assert (stats["in_place_samples_total"] > 0) == (path != "gathered"), stats
    gc.collect()
    return wrong


def _same_mix(a, b):
    return a.kind == b.kind and torch.equal(a.lam, b.lam) and torch.equal(a.target, b.target)


@functools.cache
def pictures():
    """A folder of PNGs of several sizes."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    os.mkdir(os.path.join(folder, "all"))
    for i in range(SAMPLES):
        image = np.random.default_rng(i).integers(0, 256, (9 + i % 7, 8 + i % 11, 3), dtype=np.uint8)
        PIL.Image.fromarray(image).save(os.path.join(folder, "all", f"{i:03}.png"))
    return folder


class Structured:
    """Dicts of arrays, numbers, text and arrays that differ in length."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return {"pixels": pixels[i], "level": i / 4, "tokens": np.arange(i % 5), "name": f"sample {i}", "label": i % 3}


def structured(delay_us, **keywords):
    """The same of samples that are no pairs; fields come with the block, what has no fixed size is joined on the host."""
    call("set", b"delay_us", delay_us)
    wrong = 0
    dataset = lf.open(Structured(), varying=True)
    keywords = {"seed": 5, "shuffle": True, "framework": "torch", "stats": False, "pad": {"tokens": -1, "pixels": 0}, **keywords}
    with lf.Loader(dataset, BATCH, device="cuda:0", **keywords) as there, lf.Loader(dataset, BATCH, **keywords) as here:
        for _ in range(3):
            for a, b in zip(there, here, strict=True):
                assert list(a) == list(b) and a["name"] == b["name"] and a.target is a["label"]
                fields = [(a[key], b[key]) for key in ("level", "label")] + [(a.ids, b.ids), (a.weight, b.weight)]
                wrong += any(not torch.equal(x.read(), y) for x, y in fields)
                wrong += any(not torch.equal(a[key], b[key]) for key in ("tokens", "pixels"))
    return wrong


def changed(delay_us, **keywords):
    """A function of the user's gets each batch on the device, behind its copy: what it reads there at once is whole."""
    call("set", b"delay_us", delay_us)
    keywords = {"batch_size": BATCH, "seed": 5, "shuffle": True, "framework": "torch", "stats": False, **keywords}
    there = lf.Loader(data, device="cuda:0", transform=lambda images: images.read(), **keywords)
    with there, lf.Loader(data, transform=torch.clone, **keywords) as here:
        pairs = [(a.data, b.data) for _ in range(3) for a, b in zip(there, here, strict=True)]
    return sum(not torch.equal(a, b) for a, b in pairs)


@functools.cache
def shard():
    """A tar shard of PNGs of one size, each with a text and a class."""
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    with tarfile.open(os.path.join(place, "shard.tar"), "w") as archive:
        for i, image in enumerate(pixels):
            out = io.BytesIO()
            PIL.Image.fromarray(image).save(out, "PNG")
            for name, body in ("png", out.getvalue()), ("txt", b"text " * (i % 7)), ("cls", b"%d" % (i % 3)):
                entry = tarfile.TarInfo(f"{i:03}.{name}")
                entry.size = len(body)
                archive.addfile(entry, io.BytesIO(body))
    return os.path.join(place, "shard.tar")


def membered(transform, delay_us, **keywords):
    """The same of pictures with texts: the kernel makes images of the former, beside what comes from the host."""
    call("set", b"delay_us", delay_us)
    wrong = 0
    dataset = lf.open(shard(), fields={"image": "png", "text": "txt", "label": "cls"})
    keywords = {"seed": 5, "shuffle": True, "transform": transform, "framework": "torch", "stats": False, **keywords}
    with lf.Loader(dataset, BATCH, device="cuda:0", **keywords) as there, lf.Loader(dataset, BATCH, **keywords) as here:
        for _ in range(3):
            for a, b in zip(there, here, strict=True):
                assert a["text"] == b["text"] == ["text " * (i % 7) for i in b.ids.tolist()]
                wrong += any(not torch.equal(x.read(), y) for x, y in ((a["image"], b["image"]), (a.target, b.target), (a.ids, b.ids)))
    return wrong


@functools.cache
def masked():
    """A tar shard of PNGs of several sizes, each with its mask and boxes."""
    place = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, place)
    with tarfile.open(os.path.join(place, "shard.tar"), "w") as archive:
        for i, image in enumerate(pixels):
            image = np.pad(image, ((i % 3, 2), (i % 5, 1), (0, 0)), "wrap")
            out, mask = io.BytesIO(), io.BytesIO()
            PIL.Image.fromarray(image).save(out, "PNG")
            PIL.Image.fromarray(np.ascontiguousarray(image[..., 1])).save(mask, "PNG")
            for name, body in ("png", out), ("mask.png", mask), ("json", io.BytesIO(b"[[1, 1, 6, 5], [1, 1, 6, 5]]")):
                entry = tarfile.TarInfo(f"{i:03}.{name}")
                entry.size = len(body.getvalue())
                archive.addfile(entry, io.BytesIO(body.getvalue()))
    return os.path.join(place, "shard.tar")


def beside(transform, delay_us, **keywords):
    """The same of pictures with masks and boxes, which loader threads make: by the draws of the kernel that mirrors the
    pictures."""
    call("set", b"delay_us", delay_us)
    wrong = 0
    dataset = lf.open(masked(), fields={"image": "png", "mask": "mask.png", "boxes": "json"})
    keywords = {"transform": transform, "pad": {"boxes": 0}, "framework": "torch", "stats": False, **keywords}
    keywords |= {"seed": 5, "shuffle": True}
    with lf.Loader(dataset, BATCH, device="cuda:0", **keywords) as there, lf.Loader(dataset, BATCH, **keywords) as here:
        for _ in range(3):
            for a, b in zip(there, here, strict=True):
                image = a["image"].read()
                wrong += any(not torch.equal(x, b[k]) for k, x in (("image", image), ("mask", a["mask"]), ("boxes", a["boxes"])))
                wrong += transform._crop is None and not torch.equal(image[:, 1], b["mask"])
    return wrong


def abandon_a_copy(delay_us=20_000):
    """Lets go of a pass whose next batch is on its way, and takes its memory for something else: whether that stays as
    written."""
    call("set", b"delay_us", delay_us)
    with lf.Loader(data, BATCH, device="cuda:0", num_workers=1, framework="torch", stats=False) as loader:
        passing = iter(loader)
        passing.begin()
        while (ahead := passing._native.look_ahead()) is None or ahead.sent is None:  # it is sent if it is ready by then
            batch = next(passing, None)
            if batch is None:
                passing = iter(loader)
                passing.begin()
        size = ahead.sent[0][0].memory.size
        del batch, ahead
        del passing  # its memory is the next to be handed out
        mine = Torch.empty(size, dtype=torch.uint8, device=torch.device("cuda:0"))
        assert call("write", CONSUMER.cuda_stream, mine.data_ptr(), b"\x55" * size, size)
        for stream in (CONSUMER, Stream(loader._line.courier._native.stream)):
            stream.synchronize()
        return bool((mine.read() == 0x55).all())


def interrupted(transform, every):
    """Ctrl-C at some of the instructions of the batches' way to the device, in turn: how many batches, over all passes,
    were not the CPU's, or did not come exactly once."""
    wrong = 0
    for at in range(every, 100_000, every):
        left = at

        def fall(frame, event, _):
            nonlocal left
            if Path(frame.f_code.co_filename).name not in ("epoch_pass.py", "courier.py", "views.py") or frame.f_code.co_name == "__del__":
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode" and not (frame.f_code is Pass.__next__.__code__ and frame.f_lasti in HANDED_OUT):
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return fall

        keywords = {"transform": transform, "framework": "torch", "stats": False, "seed": 3, "shuffle": True}
        with lf.Loader(data, BATCH, num_workers=0, **keywords) as here, lf.Loader(
            data, BATCH, device="cuda:0", num_workers=1, **keywords
        ) as there:
            passing, got = iter(there), []
            while True:
                batch = None
                sys.settrace(fall if len(got) < 3 else None)
                try:
                    batch = passing.__next__()
                except KeyboardInterrupt:
                    continue
                except StopIteration:
                    break
                finally:
                    sys.settrace(None)
                got.append((batch.ids.read(), batch.data.read()))
            expected = [(batch.ids, batch.data) for batch in here]
            same = len(got) == len(expected) and all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(got, expected))
            wrong += not same
        if left > 0:
            return wrong
    return wrong


def outlive(transform, closed):
    """Batches that live longer than their loader, whichever way it ends; whether they stay what they are."""
    loader = lf.Loader(data, BATCH, device="cuda:0", transform=transform, num_workers=1, framework="torch", stats=False)
    batches = iter(loader)
    held = [next(batches) for _ in range(3)]
    before = [(batch.data.read(), batch.ids.read()) for batch in held]
    if closed:
        loader.close()
    del loader, batches
    gc.collect()
    same = all(torch.equal(b.data.read(), x) and torch.equal(b.ids.read(), ids) for b, (x, ids) in zip(held, before, strict=True))
    held.clear()
    gc.collect()
    return same


def main():
    """Everything that must hold; then a planted mistake, which must not go unseen."""
    global records
    gc.freeze()  # what was imported stays: collecting is for tensors, and torch's modules take a tenth of a second
    made = [
        lf.ImageTransform("float32", mean=0.4, std=(0.2, 0.3, 0.4), padding=2, flip=0.5),
        lf.ImageTransform("float16", layout="NHWC", crop=(6, 5), flip=0.5),
        lf.ImageTransform("uint8", layout="NHWC", padding=1),
    ]
    for transform in (None, *made):
        for workers, slots in ((0, None), (1, 3), (2, 8)):
            keywords = {"num_workers": workers, "max_slots": slots, **({"prefetch_factor": 1} if workers else {})}
            found = deliver(transform, 200, on=SIDE, **keywords)
            assert found == 0, f"{found} wrong batches: {transform}, {keywords}"
            for path in (*PATHS, "auto"):
                cache = {"cache": "60%", "policy": "lru", "copy_path": path}
                found = deliver(transform, 200, on=SIDE, **keywords, **cache)
                assert found == 0, f"{found} wrong batches: {transform}, {keywords}, {cache}"
    # Cropped by the loader's threads, coloured and augmented by a kernel or by them, the rest by a kernel.
    parts = lf.ImageTransform("float16", mean=0.4, std=0.3, crop=(6, 5), scale=(0.2, 1.0), flip=0.5)
    middle = lf.ImageTransform("uint8", layout="NHWC", resize=9, crop=8, random_crop=False, flip=0.5)
    colours = lf.ImageTransform(
        "float16", mean=0.4, std=0.3, crop=(6, 5), scale=(0.2, 1.0), flip=0.5, brightness=0.4, hue=0.2, grayscale=0.2
    )
    augmented = lf.ImageTransform("float32", mean=0.4, std=0.3, crop=(6, 5), padding=2, flip=0.5, hue=0.2, augment="trivial")
    both = lf.ImageTransform("float16", crop=(6, 5), scale=(0.2, 1.0), flip=0.5, augment={"name": "rand", "fill": (9, 8, 7)})
    by_threads = lf.ImageTransform("float16", crop=(6, 5), flip=0.5, contrast=0.4, grayscale=0.3, augment="rand", retouch="threads")
    for cropping in (parts, middle, colours, augmented, both, by_threads):
        of_one_size = data, lf.open(pictures(), resize=16, crop=12)
        for keywords in ({"num_workers": 2}, {"num_workers": 1, "cache": "60%"}, {"num_workers": 0, "cache": "60%", "copy_path": "gathered"}):
            for of in (*of_one_size, *([] if cropping._crop is None else [lf.open(pictures())])):
                found = deliver(cropping, 200, on=SIDE, data=of, **keywords)
                assert found == 0, f"{found} wrong batches: {cropping}, {keywords}"
    for path in ("batched", "mapped"):
        try:
            lf.Loader(data, BATCH, device="cuda:0", transform=parts, cache="60%", copy_path=path, framework="torch")
            raise AssertionError(f"copy_path={path!r} takes rows as they lie in the cache")
        except lf.SettingsError as refusal:
            assert "loader threads transform them" in str(refusal), refusal
    # Retouched bytes that lie in the cache as they are: every way to the device.
    strong = {"name": "rand", "ops": 5, "magnitude": 30, "fill": (9, 8, 7)}
    larger = lf.ImageTransform("uint8", layout="NHWC", crop=(9, 10), padding=2, flip=0.5, saturation=(0, 3), augment=strong)
    grey = lf.ImageTransform("float32", mean=0.4, padding=2, flip=0.5, contrast=0.5, hue=0.5, jitter=0.5, grayscale=0.5)
    alone = lf.ImageTransform("uint8", layout="NHWC", augment={"name": "trivial", "bins": 1000})
    for retouching in (larger, grey, alone):
        for path in (*PATHS, "auto"):
            for keywords in ({"num_workers": 2, "max_slots": 8, "prefetch_factor": 1}, {"num_workers": 0}):
                found = deliver(retouching, 200, on=SIDE, **keywords, cache="60%", policy="lru", copy_path=path)
                assert found == 0, f"{found} wrong batches: {retouching}, {path}, {keywords}"
    # Finished by kernels behind the one that makes the images.
    erasing = lf.ImageTransform("float32", mean=0.4, std=0.3, erase=0.5)
    mixing = lf.ImageTransform("float16", layout="NHWC", crop=(6, 5), flip=0.5, erase=0.25, mixup=0.4, cutmix=1.0)
    cutting = lf.ImageTransform("uint8", cutmix=1.0, mix_chance=0.7)
    late = lf.ImageTransform("bfloat16", mean=0.4, std=0.3, crop=(6, 5), scale=(0.2, 1.0), augment="trivial", erase=0.5, mixup=1.0)
    for finishing in (erasing, mixing, cutting, late):
        for keywords in ({"num_workers": 2}, {"num_workers": 1, "cache": "60%"}, {"num_workers": 0, "drop_last": True, "batch_size": 7}):
            found = deliver(finishing, 200, on=SIDE, **keywords)
            assert found == 0, f"{found} wrong batches: {finishing}, {keywords}"
    for path in PATHS:
        found = deliver(mixing, 200, on=SIDE, num_workers=2, cache="60%", policy="lru", copy_path=path)
        assert found == 0, f"{found} wrong batches: {mixing}, {path}"
    odd = tuple(part[: SAMPLES - 3] for part in data)
    assert deliver(mixing, 200, num_workers=1, data=odd) == 0, "a last batch of five"
    for keywords in ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 1, "cache": "1MiB", "policy": "lru"}):
        assert changed(200, **keywords) == 0, f"a transform that came before the copy: {keywords}"
        assert structured(200, **keywords) == 0, f"wrong batches of dicts: {keywords}"
        for transform in (None, *made, augmented, larger, mixing):
            assert membered(transform, 200, **keywords) == 0, f"wrong batches of pictures with texts: {transform}, {keywords}"
    names = {"image": "image", "masks": ("mask",), "boxes": ("boxes",), "flip": 0.5}
    for ways in ({"crop": (6, 5)}, {"crop": (6, 5), "scale": (0.2, 1.0)}, {"crop": 6, "resize": 8}):
        for keywords in ({"num_workers": 0}, {"num_workers": 2, "cache": "1MiB", "policy": "lru"}):
            transform = lf.ImageTransform("uint8", **names, **ways)
            assert beside(transform, 200, **keywords) == 0, f"wrong masks: {transform}, {keywords}"
    with warnings.catch_warnings(action="ignore"):
        _cuda._loaded[0], kernels = None, _cuda._loaded[0]  # as where the driver refuses them: the loader's threads transform
        assert deliver(made[0], 200, num_workers=1, cache="60%") == 0
        for by_hand in (parts, erasing, mixing, colours, larger):
            assert deliver(by_hand, 200, num_workers=1, cache="60%") == 0
        _cuda._loaded[0] = kernels
    assert all(outlive(transform, closed) for transform in (None, made[0]) for closed in (False, True))
    found = [interrupted(transform, every) for transform, every in ((None, 13), (made[0], 29))]
    assert found == [0, 0], f"{found} passes that an interruption has changed"
    assert not gone, f"tensors died after the streams {gone} that they were used on"
    assert violations() == "", violations()
    assert all(abandon_a_copy() for _ in range(3)), "a copy wrote into memory that had another owner"
    # Long delays here too: on a busy machine shorter copies are through before the batch is looked at.
    assert deliver(None, 50_000, astray=True, num_workers=1, epochs=1) > 0, "streams that wait for nothing must read what is not there yet"
    records = False
    # On a busy machine, too, this program is through with its part before the copy begins.
    assert not all(abandon_a_copy(200_000) for _ in range(20)), "memory without recorded streams must be written over"
    print("as the CPU's, to the byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What Python does while a CUDA graph is being captured, run on the driver double of ``tests/driver``. Run as a program
by ``test_on_the_double.py``, with the double in the driver's place.

A real driver answers a mistake here by ending the capture, or by a graph that reads memory which is somebody else's by
then.
"""

import contextlib
import ctypes
import gc
import sys
import time
import weakref

import numpy as np
import torch
from driver_double import call, driver, violations
from torch_on_the_double import CUDA, STREAM, Stream, capture, kept, on_the_double

import lossfeed as lf
from lossfeed import _native
from lossfeed._torch import cuda, mail as _mail, plans

ROWS = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32), np.arange(48) % 4
OTHER = call("stream")


def made():
    loader = lf.Loader(ROWS, 8, shuffle=True, seed=3, num_workers=1, framework="torch", stats=False, score="loss")
    loader._account.plans = plans.Plans()  # as a loader of a device has them
    return loader


def warmed(loader):
    """The batches left of an epoch whose first was scored outside of a capture, as a graph's user does."""
    batches = iter(loader)
    first = next(batches)
    loader.score_losses(first.ids.float(), first)
    return batches


def forget():
    """What has no owner but the device's queue goes, as a stream-ordered allocator has it."""
    call("synchronize", STREAM)
    kept.clear()
    gc.collect()


def refused(work, said):
    """The words of the UsageError that `work` must raise."""
    try:
        work()
    except lf.UsageError as error:
        assert said in str(error), error
        return
    raise AssertionError(f"{said}: not refused")


def a_captured_score_goes_to_the_ids_it_finds():
    """What a replayed graph does: no ticket, the ids that lie in the batch; by every way that there is."""
    for way in ("score_losses", "score", "cross_entropy"):
        with on_the_double(), made() as loader:
            batches = warmed(loader)
            ids, expected = [], []
            with capture(STREAM):
                for batch in batches:
                    logits = torch.sin(batch.data.repeat(1, 2)[:, :4] + batch.target[:, None])
                    row = torch.nn.functional.cross_entropy(logits, batch.target, reduction="none")
                    loss = getattr(loader, way)(row if way == "score_losses" else logits, batch)
                    if way == "cross_entropy":
                        torch.testing.assert_close(loss, row.mean())
                    ids.append(batch.ids.clone())
                    expected.append(row)
                    batch.ids.copy_(batch.ids)  # in the stream's order: not before the kernel has read them
            loader.state_dict()
            assert len(torch.cat(ids)) == 40
            torch.testing.assert_close(loader.importance()[torch.cat(ids)], torch.cat(expected), rtol=1e-5, atol=1e-6)
            assert not plans._scratch or STREAM not in {stream for _, stream in plans._scratch}, "a graph would write to scratch that is not its own"


def what_a_graph_reads_outlives_the_callers_batch():
    """A graph knows ids and targets by their addresses alone, and may be replayed until its loader takes no more
    scores."""
    for way in ("score", "cross_entropy", "score_losses"):
        for end in ("close", "collect", "collect in a capture", "no answer"):
            with on_the_double():
                loader = made()
                batch = next(warmed(loader))
                logits = torch.randn(8, 4)
                with capture(STREAM):
                    getattr(loader, way)(logits[:, 0].exp() if way == "score_losses" else logits, batch)
                read = weakref.ref(batch.ids), weakref.ref(batch.target)
                del batch, logits
                forget()
                assert all(tensor() is not None for tensor in read), f"{way}: a replay would read what is somebody else's"
                loader.state_dict()
                if end.startswith("collect"):
                    with capture(OTHER) if end == "collect in a capture" else contextlib.nullcontext():
                        del loader
                else:
                    # Where the device cannot be told that there is no more mail, a graph may still read: then it stays
                    # for ever.
                    call("fail", b"cuLaunchKernel", 0, 719 if end == "no answer" else 0)
                    loader.close()
                # A thread reads the last mail before what was read on the device goes.
                for _ in range(1 if end == "no answer" else 100):
                    forget()
                    _native.scratch_bytes(1, 1)  # what that thread let go of ends with the next call of native code
                    if all(tensor() is None for tensor in read):
                        break
                    time.sleep(0.02)
                assert [tensor() is not None for tensor in read] == [end == "no answer"] * 2, (way, end)


def what_would_end_a_capture_is_refused_by_name():
    with on_the_double():
        loaded = dict(cuda._loaded)
        cuda._loaded.clear()
        with capture(STREAM):
            refused(lambda: lf.cross_entropy(torch.randn(4, 3), torch.arange(4) % 3), "would break this CUDA graph capture")
        cuda._loaded.update(loaded)
        lf.cross_entropy(torch.randn(4, 3), torch.arange(4) % 3)
        with made() as loader:
            batch = next(iter(loader))
            with capture(STREAM):
                refused(lambda: loader.score(torch.randn(8, 4), batch), "mailbox")
            loader.score(torch.randn(8, 4), batch)
            with capture(STREAM):
                refused(loader.state_dict, "outside of the capture")
            # Without kernels, the way home is a page-locked copy and an event.
            mail = _mail.Mail(loader._account)
            with capture(STREAM):
                post = lambda: mail.post(batch._ticket, torch.zeros(1, 8), torch.zeros(8), False)  # noqa: E731
                refused(post, "outside of the capture")


class Event:
    def record(self, stream):
        pass


@contextlib.contextmanager
def torchs_copies():
    """What :func:`lossfeed.stage` needs of torch, with the calls of the driver that end other threads' captures."""
    host, device = ctypes.c_void_p(), ctypes.c_uint64()

    def pin_memory(tensor):
        driver("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(64), 0)
        return tensor.clone()

    def to(tensor, where, non_blocking):
        assert where == CUDA and non_blocking
        driver("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(64))
        return tensor.clone()

    stream = type("Side", (), {"wait_event": lambda self, event: None})
    stands_in = [
        (torch.Tensor, "is_pinned", lambda tensor: False),
        (torch.Tensor, "pin_memory", pin_memory),
        (torch.Tensor, "to", to),
        (torch.Tensor, "record_stream", lambda tensor, stream: None),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device", lambda device: contextlib.nullcontext()),
        (torch.cuda, "stream", lambda stream: contextlib.nullcontext()),
        (torch.cuda, "Stream", lambda device: stream()),
        (torch.cuda, "current_stream", lambda device: stream()),
        (torch.cuda, "Event", Event),
    ]
    before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in stands_in]
    for owner, name, mine in stands_in:
        setattr(owner, name, mine)
    try:
        yield
    finally:
        for owner, name, theirs in before:
            delattr(owner, name) if theirs is None else setattr(owner, name, theirs)


def a_staging_thread_disturbs_no_capture():
    batches = [{"x": torch.full((4,), float(number))} for number in range(12)]
    with torchs_copies():
        # The planted mistake: a thread in the mode that threads begin with cannot page-lock beside a capture.
        with capture(OTHER):
            try:
                batches[0]["x"].pin_memory()
            except RuntimeError as error:
                assert "900" in str(error)
            else:
                raise AssertionError("the double lets a thread page-lock beside a capture")
            staged = [batch["x"][0].item() for batch in lf.stage(batches, "cuda:0", depth=2)]
        assert staged == list(range(12)), staged
        # Nor can a graph wait for a copy that was queued outside of it; the batch is not lost.
        passing = iter(lf.stage(batches, "cuda:0"))
        with capture(Stream.cuda_stream):
            refused(lambda: next(passing), "outside of the capture")
        assert [batch["x"][0].item() for batch in passing] == list(range(12))


def main():
    call("set", b"delay_us", 200)
    for scenario in (
        a_captured_score_goes_to_the_ids_it_finds,
        what_a_graph_reads_outlives_the_callers_batch,
        what_would_end_a_capture_is_refused_by_name,
        a_staging_thread_disturbs_no_capture,
    ):
        scenario()
    assert violations() == "", violations()
    print("no capture was harmed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Shared pieces of the Python tests."""

import gc
import os
import signal

import numpy as np
import pytest
import torch

import lossfeed as lf

# A shell that starts something in the background has it ignore Ctrl-C, and all that it starts in turn. Tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart():
    # `make gpu` sets it: there, tests that find no GPU must not pass by being skipped.
    if os.environ.get("LOSSFEED_REQUIRE_GPU") and not torch.cuda.is_available():
        raise pytest.UsageError("LOSSFEED_REQUIRE_GPU is set, and torch finds no GPU")


def pytest_collection_finish():
    # What was imported stays. Each collection, and those in worker processes, would look through all of torch's modules.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _two_threads():
    torch.set_num_threads(2)


@pytest.fixture
def numbers():
    """64 samples whose data tell their id: x[i] = [i, i + 0.5, …], y[i] = i mod 4."""
    n = 64
    x = np.arange(n, dtype=np.float32)[:, None] + np.array([0.0, 0.5, 0.25], dtype=np.float32)
    return x, np.arange(n, dtype=np.int64) % 4


def epoch_ids(loader):
    """The ids of one pass, batch by batch."""
    return [np.asarray(batch.ids).copy() for batch in loader]


def logits_with_loss(losses, classes=4, target=None):
    """Logits (B, C) float32 whose cross entropy at `target` is exactly what was planted, to float precision."""
    losses = np.asarray(losses, dtype=np.float64)
    target = np.zeros(len(losses), dtype=np.int64) if target is None else np.asarray(target)
    p = np.exp(-losses)
    rest = (1.0 - p) / (classes - 1)
    logits = np.repeat(np.log(rest)[:, None], classes, axis=1)
    logits[np.arange(len(losses)), target] = np.log(p)
    return torch.from_numpy(logits.astype(np.float32))


@pytest.fixture
def native_calls(monkeypatch):
    """Counts calls of the native forward, so that a test cannot pass by falling back to torch."""
    from lossfeed import _native

    calls = []
    real = _native.forward_rows
    monkeypatch.setattr(_native, "forward_rows", lambda *a: (calls.append(a[1]), real(*a))[1])
    return calls


__all__ = ["epoch_ids", "lf", "logits_with_loss"]

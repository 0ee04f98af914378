"""The same journeys with batches on a CUDA device; skipped, in one line, where there is none."""

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def test_batches_arrive_on_the_device_unchanged_while_the_consumers_stream_is_busy(numbers):
    x, y = numbers
    loader = lf.Loader((x, y), 8, device="cuda", seed=1)
    busy = torch.randn(1024, 1024, device="cuda")
    for _ in range(3):
        for batch in loader:
            busy = (busy @ busy).clamp(-1, 1)
            assert batch.data.is_cuda and batch.weight.is_cuda
            ids = batch.ids.cpu().numpy()
            np.testing.assert_array_equal(batch.data.cpu().numpy(), x[ids])
            np.testing.assert_array_equal(batch.target.cpu().numpy(), y[ids])


def test_the_order_is_the_cpus(numbers):
    on_cpu = lf.Loader(numbers, 8, seed=3)
    on_gpu = lf.Loader(numbers, 8, seed=3, device="cuda")
    assert [b.ids.tolist() for b in on_gpu] == [i.tolist() for i in epoch_ids(on_cpu)]


def test_scores_come_home_without_a_wait_and_equal_the_cpus(numbers):
    def importance(device):
        loader = lf.Loader(numbers, 8, seed=3, device=device)
        for batch in loader:
            logits = torch.sin(batch.data.repeat(1, 2)[:, :4] + batch.target[:, None])
            loader.cross_entropy(logits.requires_grad_(), batch).backward()
        loader.state_dict()  # waits for the scores under way
        return loader.importance()

    torch.testing.assert_close(importance("cuda"), importance("cpu"), rtol=1e-4, atol=1e-5)


def test_resuming_at_every_step_delivers_exactly_the_rest(numbers):
    for stop in range(1, 8):
        loader = lf.Loader(numbers, 8, seed=3, device="cuda")
        it = iter(loader)
        before = [next(it).ids.tolist() for _ in range(stop)]
        resumed = lf.Loader(numbers, 8, seed=3, device="cuda")
        resumed.load_state_dict(loader.state_dict())
        rest = [b.ids.tolist() for b in resumed]
        assert sorted(sum(before + rest, [])) == list(range(64))


def test_any_iterable_is_staged_on_the_device():
    batches = [{"x": torch.full((1000,), float(i)), "y": (np.arange(i + 1), "text")} for i in range(20)]
    for i, batch in enumerate(lf.stage(batches, "cuda")):
        assert batch["x"].is_cuda and batch["y"][0].is_cuda and batch["y"][1] == "text"
        assert batch["x"].sum().item() == 1000.0 * i and len(batch["y"][0]) == i + 1


def test_cross_entropy_and_scores_on_the_device_equal_the_cpus():
    logits, target = torch.randn(50, 9), torch.randint(9, (50,))
    torch.testing.assert_close(lf.cross_entropy(logits.cuda(), target.cuda()).cpu(), lf.cross_entropy(logits, target))
    for a, b in zip(lf.sample_scores(logits.cuda(), target.cuda()), lf.sample_scores(logits, target)):
        assert a.is_cuda
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5, equal_nan=True)

"""The hook on what it should not be given, and on what is odd but right."""

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf


@pytest.fixture
def batch_of_eight():
    data = (np.arange(32, dtype=np.float32)[:, None], np.arange(32) % 4)
    with lf.Loader(data, 8, seed=0, score="loss", framework="torch") as loader:
        yield loader, next(iter(loader))


def test_what_does_not_fit_the_batch_is_refused_with_its_numbers(batch_of_eight):
    loader, batch = batch_of_eight
    logits = torch.randn(8, 4)
    for call, error, message in [
        (lambda: loader.score(logits[:7], batch), lf.SettingsError, r"shape \(7, 4\) for a batch of 8 samples"),
        (lambda: loader.score(logits.long(), batch), lf.SettingsError, "torch.int64 cannot be scored"),
        (lambda: loader.score(logits[:, :0], batch), lf.SettingsError, "no classes"),
        (lambda: loader.score(logits[:, :, None], batch), lf.SettingsError, r"it must be \(8, 1\)"),
        (lambda: loader.score(logits[:, :2], batch), lf.SampleError, r"target [23] of row \d is outside 0\.\.2"),
        (lambda: loader.cross_entropy(logits[:, :2], batch), lf.SampleError, r"target [23] of row \d is outside 0\.\.2"),
        (lambda: loader.cross_entropy(logits, batch, reduction="median"), lf.SettingsError, "reduction='median'"),
        (lambda: loader.cross_entropy(logits.numpy(), batch), lf.SettingsError, "must be a torch tensor"),
        (lambda: loader.score("logits", batch), lf.SettingsError, "not str"),
        (lambda: loader.score(logits, (logits, batch.target)), lf.UsageError, "tuple is not a batch of this loader"),
        (lambda: loader.score_losses(torch.rand(8, 1), batch), lf.SettingsError, r"shape \(8, 1\)"),
        (lambda: loader.score_losses(torch.arange(8), batch), lf.SettingsError, "give floats"),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert torch.isnan(loader.importance()).all(), "nothing was scored on the way"


def test_a_closed_loader_says_so(batch_of_eight):
    loader, batch = batch_of_eight
    loader.close()
    for call in (
        lambda: loader.score(torch.randn(8, 4), batch),
        lambda: loader.cross_entropy(torch.randn(8, 4), batch),
        lambda: loader.score_losses(torch.rand(8), batch),
        lambda: loader.loss("mse", torch.rand(8), batch),
    ):
        with pytest.raises(lf.UsageError, match="closed: make a new one"):
            call()


def test_scores_from_another_thread_reach_their_samples(batch_of_eight):
    loader, batch = batch_of_eight
    thread = threading.Thread(target=lambda: loader.score(torch.randn(8, 4), batch))
    thread.start()
    thread.join()
    assert (~torch.isnan(loader.importance())[batch.ids]).all()


def test_one_row_one_class_and_no_rows():
    for shape in ((1, 1), (1, 5), (6, 1)):
        logits, target = torch.randn(shape, requires_grad=True), torch.zeros(shape[0], dtype=torch.long)
        loss = lf.cross_entropy(logits, target)
        loss.backward()
        torch.testing.assert_close(loss, F.cross_entropy(logits, target))
        assert lf.sample_scores(logits, target).loss.shape == (shape[0],)
    empty, none = torch.randn(0, 5), torch.zeros(0, dtype=torch.long)
    assert torch.isnan(lf.cross_entropy(empty, none))
    assert lf.cross_entropy(empty, none, reduction="none").shape == (0,)
    assert lf.sample_scores(empty, none).loss.shape == (0,)


def test_rows_more_than_two_to_the_31_elements_apart_are_read_in_place():
    far = torch.empty(2**31 + 16, dtype=torch.float16)  # never touched but where the rows are
    rows = far.as_strided((2, 10), (2**31, 1))
    rows.copy_(torch.randn(2, 10))
    target = torch.tensor([3, 9])
    ours, theirs = lf.sample_scores(rows, target), lf.sample_scores(rows.clone(), target)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(ours.loss, F.cross_entropy(rows.float(), target, reduction="none"))


def test_a_row_repeated_without_memory_has_a_gradient_for_each():
    row = torch.randn(1, 7, requires_grad=True)
    target = torch.arange(7)
    lf.cross_entropy(row.expand(7, 7), target, reduction="sum").backward()
    twin = row.detach().clone().requires_grad_()
    F.cross_entropy(twin.expand(7, 7).contiguous(), target, reduction="sum").backward()
    torch.testing.assert_close(row.grad, twin.grad)


def test_a_batch_that_took_over_another_scores_the_others_samples(batch_of_eight):
    loader, _ = batch_of_eight
    batches = iter(loader)
    static, other = next(batches), next(batches)
    before = static.ids.tolist()
    assert static.copy_(other) is static
    assert static.ids.tolist() == other.ids.tolist() != before and torch.equal(static.data, other.data)
    loader.score_losses(static.ids.float(), static)
    scored = (~torch.isnan(loader.importance())).nonzero().squeeze(1)
    assert sorted(scored.tolist()) == sorted(other.ids.tolist())
    with lf.Loader((np.zeros((8, 1), np.float32), np.zeros(8, np.int64)), 4, framework="torch") as smaller:
        with pytest.raises(lf.SettingsError, match=r"shape \(4, 1\) does not fit this batch's \(8, 1\)"):
            static.copy_(next(iter(smaller)))

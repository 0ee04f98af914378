"""A run's beliefs are one measurement: losses and gradient norms are never in one table."""

import numpy as np
import pytest
import torch

import lossfeed as lf


def made(**keywords):
    data = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32), np.arange(48) % 4
    return lf.Loader(data, 8, num_workers=0, framework="torch", stats=False, smoothing=0.0, **keywords)


def measurement(loader):
    return loader._account.engine().describe()[1]


def test_losses_after_gradient_norms_are_refused_with_the_remedy():
    with made() as loader:
        passing = iter(loader)
        batch = next(passing)
        logits = torch.randn(8, 4)
        loader.score(logits, batch)
        expected = lf.sample_scores(logits, batch.target).grad_norm
        torch.testing.assert_close(loader.importance()[batch.ids], expected)
        later = next(passing)
        for losses in (torch.ones(8), np.ones(8, np.float32)):
            with pytest.raises(lf.UsageError, match="gradient_norm.*score=\"loss\""):
                loader.score_losses(losses, later)
        assert torch.isnan(loader.importance()[later.ids]).all(), "a refusal leaves no belief behind"
        assert loader.stats()["scores_total"] == 8 and loader.stats()["scores_repeated_total"] == 0
        # It was not scored: what fits is still taken, and of a batch that was scored nothing is.
        loader.score_losses(torch.ones(8), later, grad_norms=torch.full((8,), 3.0))
        assert (loader.importance()[later.ids] == 3.0).all()
        loader.score_losses(torch.ones(8), later)
        assert loader.stats()["scores_repeated_total"] > 0 and (loader.importance()[later.ids] == 3.0).all()


def test_a_run_that_begins_with_losses_goes_on_with_losses():
    with made() as loader:
        assert measurement(loader) == "gradient_norm"
        passing = iter(loader)
        batch = next(passing)
        loader.score_losses(torch.arange(8.0), batch)
        assert torch.equal(loader.importance()[batch.ids], torch.arange(8.0)) and measurement(loader) == "loss"
        batch, logits = next(passing), torch.randn(8, 4)
        loader.cross_entropy(logits, batch)
        expected = torch.nn.functional.cross_entropy(logits, batch.target, reduction="none")
        torch.testing.assert_close(loader.importance()[batch.ids], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score", ["gradient_norm", "entropy"])
def test_a_measurement_asked_for_by_name_is_not_replaced(score):
    with made(score=score) as loader:
        batch = next(iter(loader))
        with pytest.raises(lf.UsageError, match=score):
            loader.score_losses(torch.ones(8), batch)
        assert torch.isnan(loader.importance()).all() and measurement(loader) == score


@pytest.mark.parametrize("positions", [(), (3,)], ids=str)
def test_targets_that_are_probabilities_bring_the_same_measurements_as_indices(positions):
    """Mixed targets in some batches and plain ones in others are one run on one scale."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 4, *positions, generator=generator) * 3
    target = torch.randint(4, (8, *positions), generator=generator)
    sure = torch.nn.functional.one_hot(target, 4).movedim(-1, 1).to(logits.dtype)
    found = {}
    for score in ("gradient_norm", "entropy", "loss"):
        for name, labels in (("indices", target), ("probabilities", sure)):
            with made(score=score) as loader:
                batch = next(iter(loader))
                loader.cross_entropy(logits, batch, target=labels)
                found[name] = loader.importance()[batch.ids]
        torch.testing.assert_close(found["probabilities"], found["indices"], rtol=1e-4, atol=1e-5)
    # The norm is that of torch's own gradient.
    soft = torch.rand(8, 4, generator=generator).softmax(1)
    z = torch.randn(8, 4, generator=generator).requires_grad_()
    torch.nn.functional.cross_entropy(z, soft, reduction="sum").backward()
    with made() as loader:
        batch = next(iter(loader))
        loader.cross_entropy(z.detach(), batch, target=soft)
        torch.testing.assert_close(loader.importance()[batch.ids], z.grad.norm(dim=1))


def test_a_resumed_run_keeps_its_measurement():
    with made() as loader:
        passing = iter(loader)
        loader.score_losses(torch.arange(8.0), next(passing))
        state = loader.state_dict()
    with made() as resumed:
        resumed.load_state_dict(state)
        assert measurement(resumed) == "loss"
        batch, logits = next(iter(resumed)), torch.randn(8, 4)
        resumed.cross_entropy(logits, batch)
        expected = torch.nn.functional.cross_entropy(logits, batch.target, reduction="none")
        torch.testing.assert_close(resumed.importance()[batch.ids], expected, rtol=1e-5, atol=1e-6)
    with made(score="gradient_norm") as other:
        with pytest.raises(lf.SettingsError, match="holds scores by loss.*score=\"loss\""):
            other.load_state_dict(state)
        assert measurement(other) == "gradient_norm" and torch.isnan(other.importance()).all()


def test_a_state_without_scores_settles_nothing():
    with made() as loader:
        next(iter(loader))
        state = loader.state_dict()
    with made() as used:
        used.score_losses(torch.arange(8.0), next(iter(used)))
        assert measurement(used) == "loss"
        used.load_state_dict(state)
        assert measurement(used) == "gradient_norm"


@pytest.mark.parametrize("word", [{"scores": "batch"}, {"score": "batch"}], ids=str)
def test_a_batch_may_have_one_score_the_mean_of_its_losses(word):
    data = (np.zeros((12, 2), np.float32), np.zeros(12, np.int64))
    loader = lf.Loader(data, 4, shuffle=True, seed=1, smoothing=0.0, framework="numpy", num_workers=0, **word)
    expected = {}
    for batch in loader:
        losses = np.asarray(batch.ids).astype(np.float32) ** 2
        if not expected:
            losses[1] = np.nan  # has no loss, so no score, and counts for none
        loader.score_losses(losses, batch)
        means = np.where(np.isnan(losses), np.nan, np.nanmean(losses))
        expected |= zip(np.asarray(batch.ids).tolist(), means, strict=True)
    found = np.asarray(loader.importance())
    assert np.allclose(found, [expected[id] for id in range(12)], equal_nan=True) and len(np.unique(found)) == 4


def test_one_score_for_a_batch_and_another_kind_are_refused():
    with pytest.raises(lf.UsageError, match="batch's mean loss and score='loss' by another: remove one"):
        lf.Loader((np.zeros((4, 2), np.float32), np.zeros(4)), 2, scores="batch", score="loss")

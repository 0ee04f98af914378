"""What an epoch delivered, and losses of one's own made unbiased."""

from collections import Counter

import numpy as np
import pytest
import torch

import lossfeed as lf


def test_an_epochs_report_is_what_counting_its_batches_gives(numbers):
    loader = lf.Loader(numbers, 8, sampler="importance", num_workers=0, seed=1)
    assert loader.epoch_report()["delivered"] == 0 and loader.epoch_report()["unscored"] == 64
    for _ in range(3):
        ids, weights, labels = [], [], []
        for batch in loader:
            loader.weighted_mean(0.1 + (batch.ids % 9).float() ** 2, batch)
            ids += batch.ids.tolist()
            weights += batch.weight.tolist()
            labels += batch.target.tolist()
    found, times, w = loader.epoch_report(), Counter(ids), np.asarray(weights, np.float64)
    assert found["epoch"] == 2 and found["delivered"] == 64 and found["distinct"] == len(times)
    assert found["weight_mean"] == pytest.approx(w.mean()) and found["weight_max"] == pytest.approx(w.max())
    assert found["ess_fraction"] == pytest.approx(w.sum() ** 2 / (w**2).sum() / 64)
    assert found["ess_fraction"] == pytest.approx(loader.stats()["ess_fraction"], abs=1e-5)
    assert found["uses"]["1"] == sum(n == 1 for n in times.values()) and found["uses"]["2"] == sum(n == 2 for n in times.values())
    assert found["most_used"] == dict(sorted(times.items(), key=lambda t: (-t[1], t[0])))
    assert found["unscored"] == 0 and sum(found["score_ages"].values()) == 64
    for label, (rows, weight) in found["classes"].items():
        mine = np.asarray(labels) == label
        assert rows == pytest.approx(mine.mean()) and weight == pytest.approx(w[mine].sum() / w.sum())
    assert sorted(found["classes"]) == sorted(set(labels))


def test_a_buffers_weights_show_in_the_effective_sample_size(numbers):
    loader = lf.Loader(numbers, 8, cache="25%", sampler={"name": "replay", "lag": 3}, num_workers=0)
    for _ in range(4):
        for batch in loader:
            loader.score_losses(0.1 + (batch.ids % 9).float() ** 2, batch)
    assert loader.stats()["ess_fraction"] < 0.99


def test_a_weighted_mean_is_the_loss_and_brings_the_scores(numbers):
    loader = lf.Loader(numbers, 8, sampler="importance", num_workers=0)
    batch = next(iter(loader))
    prediction = torch.randn(8, 3, requires_grad=True)
    losses = torch.nn.functional.mse_loss(prediction, batch.data, reduction="none")
    mean = loader.weighted_mean(losses, batch)
    expected = (losses.mean(1) * batch.weight).mean()
    assert torch.equal(mean, expected)
    mean.backward()
    slope = (2 * (prediction - batch.data) / 3 * batch.weight[:, None] / 8).detach()
    torch.testing.assert_close(prediction.grad, slope)
    believed = loader.importance()[batch.ids]
    torch.testing.assert_close(believed, losses.detach().mean(1))
    with pytest.raises(lf.SettingsError, match="before any reduction"):
        loader.weighted_mean(losses.mean(), batch)
    with pytest.raises(lf.SettingsError, match="before any reduction"):
        loader.weighted_mean([1.0] * 8, batch)

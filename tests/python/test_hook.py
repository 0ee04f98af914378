"""The loss hook: scores go to exactly the samples that were delivered, and the weighted loss is unbiased."""

import itertools
import threading

import numpy as np
import pytest
import torch
from conftest import logits_with_loss

import lossfeed as lf


def spearman(a, b):
    ranks = [np.argsort(np.argsort(v)) for v in (a, b)]
    return np.corrcoef(*ranks)[0, 1]


@pytest.mark.parametrize("sampler,policy", [("uniform", "minio"), ("cost-aware", None), ("importance", None), ("pads", "shade")])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_planted_difficulty_comes_back_by_id_and_permuted_ids_do_not_pass(sampler, policy, workers):
    n, ranks, classes = 400, 2, 4
    rng = np.random.default_rng(0)
    difficulty = rng.permutation(np.linspace(0.05, 3.0, n))
    x, y = np.arange(n, dtype=np.float32)[:, None], rng.integers(classes, size=n)

    def recovered(permute):
        found = np.full(n, np.nan)
        for rank in range(ranks):
            loader = lf.Loader(
                (x, y), 20, sampler=sampler, policy=policy, num_workers=workers, cache="20%", seed=9, rank=rank, world_size=ranks, score="loss"
            )
            for _ in range(3):
                for batch in loader:
                    ids = batch.ids.numpy()
                    np.testing.assert_array_equal(batch.data.numpy()[:, 0], ids)
                    # The run that must fail credits each row's difficulty to another sample of the batch.
                    planted = difficulty[np.roll(ids, 1)] if permute else difficulty[ids]
                    loader.cross_entropy(logits_with_loss(planted, classes, batch.target.numpy()), batch)
            importance = loader.importance().numpy()
            seen = ~np.isnan(importance)
            found[seen] = importance[seen]
            loader.close()
        seen = ~np.isnan(found)
        assert seen.mean() > 0.9
        return spearman(found[seen], difficulty[seen])

    assert recovered(permute=False) >= 0.95
    assert recovered(permute=True) < 0.95


def test_the_three_ways_in_agree(numbers):
    logits_of = lambda batch: torch.sin(batch.data.repeat(1, 2)[:, :4] + batch.target[:, None])  # noqa: E731
    results = []
    for way in ("score", "cross_entropy", "losses"):
        loader = lf.Loader(numbers, 8, seed=4, score="loss")
        for batch in loader:
            logits = logits_of(batch)
            if way == "score":
                loader.score(logits, batch)
            elif way == "cross_entropy":
                loader.cross_entropy(logits, batch)
            else:
                loader.score_losses(torch.nn.functional.cross_entropy(logits, batch.target, reduction="none"), batch)
        results.append(loader.importance().numpy())
    np.testing.assert_allclose(results[0], results[1])
    np.testing.assert_allclose(results[0], results[2], rtol=1e-5, atol=1e-6)


def test_logits_over_positions_score_a_sample_by_the_mean_over_those_that_count():
    n, classes, length = 12, 5, 6
    x = torch.randn(n, classes, length)
    y = torch.randint(classes, (n, length))
    y[:, 4:] = -100
    y[3] = -100
    losses = torch.nn.functional.cross_entropy(x, y, reduction="none")[:, :4].mean(1)
    for kind in ("cross_entropy", "score", "numpy"):
        loader = lf.Loader((x, y), 4, score="loss")
        for batch in loader:
            if kind == "cross_entropy":
                loader.cross_entropy(batch.data, batch)
            elif kind == "score":
                loader.score(batch.data, batch)
            else:
                loader.score(batch.data.numpy(), batch)
        importance = loader.importance()
        assert torch.isnan(importance[3]), "a sample without a position that counts has no score"
        keep = torch.arange(n) != 3
        torch.testing.assert_close(importance[keep], losses[keep])
        assert loader.stats()["scores_unranked_total"] == 1


def test_a_batch_is_scored_once_and_repeats_are_counted(numbers):
    loader = lf.Loader(numbers, 16, score="loss")
    batch = next(iter(loader))
    loader.score_losses(torch.ones(16), batch)
    before = loader.importance()
    loss = loader.cross_entropy(torch.randn(16, 4), batch)
    loader.score(torch.randn(16, 4), batch)
    assert torch.isfinite(loss)
    assert torch.equal(before.nan_to_num(-1), loader.importance().nan_to_num(-1))
    stats = loader.stats()
    assert stats["scores_repeated_total"] == 2 * 16 and stats["scores_total"] == 16, "samples, not batches"


def test_losses_that_are_no_numbers_are_no_scores(numbers):
    loader = lf.Loader(numbers, 8, score="loss")
    batch = next(iter(loader))
    losses = torch.arange(8.0)
    losses[2], losses[5] = float("nan"), float("inf")
    loader.score_losses(losses, batch)
    importance = loader.importance()[batch.ids]
    assert torch.isnan(importance).tolist() == [False, False, True, False, False, True, False, False]
    assert loader.stats()["scores_unranked_total"] == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_logits_of_any_float_type_score(numbers, dtype):
    loader = lf.Loader(numbers, 8, score="loss")
    batch = next(iter(loader))
    logits = torch.randn(8, 4).to(dtype)
    loss = loader.cross_entropy(logits, batch)
    assert loss.dtype == dtype
    expected = torch.nn.functional.cross_entropy(logits.float(), batch.target, reduction="none")
    torch.testing.assert_close(loader.importance()[batch.ids], expected, rtol=1e-4, atol=1e-4)


def reference_loss(logits, target, w, weight, ignore_index, reduction, smoothing):
    rows = torch.nn.functional.cross_entropy(
        logits, target, weight=weight, ignore_index=ignore_index, reduction="none", label_smoothing=smoothing
    )
    valid = target != ignore_index
    share = valid.to(rows.dtype) if weight is None else torch.where(valid, weight[target.clamp(min=0)], 0.0)
    w = w.reshape(-1, *[1] * (rows.dim() - 1))
    if reduction == "none":
        return rows * w
    return (rows * w).sum() / (share.sum() if reduction == "mean" else 1.0)


@pytest.mark.parametrize("shape", [(8, 4), (8, 4, 3)], ids=str)
def test_the_loaders_cross_entropy_weighs_rows_and_averages_over_those_that_count(shape):
    x = torch.randn(64, *shape[1:])
    y = torch.randint(4, (64, *shape[2:]))
    y.view(-1)[::5] = 1
    for reduction, smoothing, weighted, ignore in itertools.product(["mean", "sum", "none"], [0.0, 0.1], [False, True], [-100, 1]):
        loader = lf.Loader((x, y), 8, num_workers=0)
        batch = next(iter(loader))
        batch.weight.copy_(torch.linspace(0.5, 2.0, 8))
        logits = torch.randn(shape, requires_grad=True)
        weight = torch.rand(4) + 0.5 if weighted else None
        keywords = dict(weight=weight, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing)
        found = loader.cross_entropy(logits, batch, **keywords)
        wanted = reference_loss(logits, batch.target, batch.weight, weight, ignore, reduction, smoothing)
        torch.testing.assert_close(found, wanted)
        seed = torch.ones_like(found)
        torch.testing.assert_close(
            torch.autograd.grad(found, logits, seed)[0], torch.autograd.grad(wanted, logits, seed)[0], rtol=1e-4, atol=1e-6
        )
        plain = loader.cross_entropy(logits, batch, weighted=False, **keywords)
        torch.testing.assert_close(plain, torch.nn.functional.cross_entropy(logits, batch.target, **keywords))


def test_probability_targets_and_other_targets_than_the_batchs_work(numbers):
    loader = lf.Loader(numbers, 8, score="loss")
    it = iter(loader)
    batch, logits = next(it), torch.randn(8, 4)
    soft = torch.rand(8, 4).softmax(1)
    found = loader.cross_entropy(logits, batch, target=soft)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(logits, soft))
    expected = torch.nn.functional.cross_entropy(logits, soft, reduction="none")
    torch.testing.assert_close(loader.importance()[batch.ids], expected)
    batch = next(it)
    other = (batch.target + 1) % 4
    loader.cross_entropy(logits, batch, target=other)
    expected = torch.nn.functional.cross_entropy(logits, other, reduction="none")
    torch.testing.assert_close(loader.importance()[batch.ids], expected)


@pytest.mark.parametrize("sampler", ["uniform", {"name": "uniform", "replacement": True}, "importance", "cost-aware", {"name": "pads", "corrected": True, "repeats": 1.5}], ids=str)
def test_weighted_means_are_unbiased_for_every_sampler_that_says_so(sampler):
    n, epochs = 200, 60
    rng = np.random.default_rng(3)
    value = rng.normal(2.0, 1.0, n)
    difficulty = np.exp(rng.normal(0.0, 1.0, n)) + 0.5 * value
    x, y = np.arange(n, dtype=np.float32), np.zeros(n, dtype=np.int64)
    loader = lf.Loader((x, y), 20, sampler=sampler, cache="20%", seed=21, num_workers=1, score="loss")
    means, skewed = [], []
    for epoch in range(epochs):
        weighted, plain, count = 0.0, 0.0, 0
        for batch in loader:
            ids, w = batch.ids.numpy(), batch.weight.numpy().astype(np.float64)
            weighted += (w * value[ids]).sum()
            plain += value[ids].sum()
            count += len(ids)
            loader.score_losses(torch.from_numpy(np.abs(difficulty[ids])), batch)
        if epoch > 0:
            means.append(weighted / count)
            skewed.append(plain / count)
    means, skewed = np.array(means), np.array(skewed)
    error = means.std(ddof=1) / np.sqrt(len(means)) + 1e-6
    assert abs(means.mean() - value.mean()) < 4 * error, (means.mean(), value.mean(), error)
    if sampler in ("importance", "cost-aware"):
        bias = skewed.std(ddof=1) / np.sqrt(len(skewed)) + 1e-6
        assert abs(skewed.mean() - value.mean()) > 4 * bias, "without weights it would be biased, so the weights did the work"


def test_inside_of_torch_func_the_hook_names_what_works_there(numbers):
    loader = lf.Loader(numbers, 8, stats=False)
    batch = next(iter(loader))
    logits, target = torch.randn(8, 10), torch.arange(8)
    for way in (
        lambda of: loader.cross_entropy(of, batch, target=target),
        lambda of: loader.weighted_mean(torch.nn.functional.cross_entropy(of, target, reduction="none"), batch),
    ):
        with pytest.raises(lf.SettingsError, match=r"has_aux=True"):
            torch.func.grad(way)(logits)

    def loss(of):
        losses = lf.cross_entropy(of, target, reduction="none")
        return losses.mean(), losses

    gradient, losses = torch.func.grad(loss, has_aux=True)(logits)
    loader.score_losses(losses, batch)
    assert loader.stats()["scores_total"] == 8 and gradient.shape == logits.shape


def test_two_threads_take_up_no_mail_that_has_not_arrived():
    """Mail whose event has passed is looked at and taken in one go: another thread may come in between."""
    from lossfeed._torch.mail import Mail

    class Event:
        def __init__(self, passed):
            self.passed, self.others = passed, []

        def query(self):
            if self.passed and not self.others:
                other = threading.Thread(target=mail.deliver)
                self.others.append(other)
                other.start()
                other.join(0.2)
            return self.passed

    class Engine:
        def apply_scores(self, ticket, *columns):
            credited.append(ticket)

    class Account:
        def engine(self):
            return Engine()

    credited = []
    mail = Mail(Account())
    first = Event(True)
    for event, ticket in ((first, "arrived"), (Event(False), "under way")):
        mail._waiting.append((event, torch.zeros(1, 4), torch.zeros(4, dtype=torch.int32), ticket, False))
    mail.deliver()
    first.others[0].join()
    assert credited == ["arrived"] and len(mail._waiting) == 1

"""Losses over elements: torch's values and gradients, one score a sample, and the norm of the gradient with it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf

CASES = {
    "bce_with_logits": ({}, F.binary_cross_entropy_with_logits),
    "bce_with_logits, weighted": ({"pos_weight": torch.tensor([0.5, 2.0, 1.0])}, F.binary_cross_entropy_with_logits),
    "mse": ({}, F.mse_loss),
    "l1": ({}, F.l1_loss),
    "huber": ({"delta": 0.7}, F.huber_loss),
    "smooth_l1": ({"beta": 0.4}, F.smooth_l1_loss),
    "smooth_l1 that is l1": ({"beta": 0.0}, F.smooth_l1_loss),
}


def batches(score):
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    y = np.random.default_rng(1).integers(2, size=(24, 3)).astype(np.float32)
    return lf.Loader((x, y), 8, seed=1, score=score, framework="torch")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("score", ["loss", "gradient_norm"])
def test_the_loss_is_torchs_and_the_scores_are_each_samples_own(case, score):
    options, reference = CASES[case]
    kind = case.split()[0].rstrip(",")
    with batches(score) as loader:
        expected = torch.full((24,), torch.nan)
        for batch in loader:
            prediction = (batch.data * 2).requires_grad_()
            ours = loader.loss(kind, prediction, batch, **options)
            (gradient,) = torch.autograd.grad(ours, prediction)
            twin = (batch.data * 2).requires_grad_()
            rows = reference(twin, batch.target, reduction="none", **options).mean(1)
            (expected_gradient,) = torch.autograd.grad((rows * batch.weight).mean(), twin)
            torch.testing.assert_close(ours, (rows * batch.weight).mean())
            torch.testing.assert_close(gradient, expected_gradient)
            # The gradient of a sample's own loss: undo the mean over the batch and the weight.
            own = expected_gradient.norm(dim=1) * len(batch) / batch.weight
            expected[batch.ids] = rows.detach() if score == "loss" else own
        torch.testing.assert_close(loader.importance(), expected)


def test_reductions_half_precision_and_one_dimension():
    with batches("loss") as loader:
        batch = next(iter(loader))
        z, y = batch.data[:, 0].to(torch.bfloat16), batch.target[:, 0]
        rows = F.mse_loss(z.float(), y, reduction="none")
        for reduction, expected in (("none", rows), ("sum", rows.sum()), ("mean", rows.mean())):
            found = loader.loss("mse", z, batch, target=y, reduction=reduction)
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected)


def test_what_does_not_fit_is_refused_with_the_remedy():
    with batches("loss") as loader:
        batch = next(iter(loader))
        for call, message in [
            (lambda: loader.loss("hinge", batch.data, batch), "loss 'hinge' is unknown: use bce_with_logits, mse"),
            (lambda: loader.loss("mse", batch.data, batch, delta=1.0), "mse has no option 'delta': it takes none"),
            (lambda: loader.loss("huber", batch.data, batch, beta=1.0), "huber has no option 'beta': it takes delta"),
            (lambda: loader.loss("mse", batch.data[:, :1], batch), r"target of shape \(8, 3\) does not fit predictions of shape \(8, 1\)"),
            (lambda: loader.loss("mse", batch.data[:4], batch), "batch of 8 samples"),
            (lambda: loader.loss("mse", batch.data.numpy(), batch), "must be a torch tensor"),
            (lambda: loader.loss("mse", batch.data, batch, reduction="median"), "reduction='median'"),
            (lambda: loader.score_losses(torch.rand(8), batch, torch.rand(7)), r"grad_norms have shape \(7,\)"),
        ]:
            with pytest.raises(lf.SettingsError, match=message):
                call()


def test_gradient_norms_of_your_own_become_the_importance():
    for convert in (torch.from_numpy, lambda a: a):
        with batches("gradient_norm") as loader:
            for batch in loader:
                ids = np.asarray(batch.ids)
                loader.score_losses(convert((ids * 2.0).astype(np.float32)), batch, convert((ids / 4).astype(np.float32)))
            np.testing.assert_allclose(np.asarray(loader.importance()), np.arange(24) / 4)


def test_sequences_become_one_loss_a_sample():
    x, y = np.zeros((12, 1), np.float32), np.random.default_rng(2).integers(5, size=(12, 7))
    y[:, 4:] = np.where(np.random.default_rng(3).random((12, 3)) < 0.5, -100, y[:, 4:])
    y[5] = -100
    for sequence in ("mean", "max", "sum"):
        for numpy in (False, True):
            with lf.Loader((x, y), 4, seed=2, score="loss", framework="torch") as loader:
                expected = torch.full((12,), torch.nan)
                for batch in loader:
                    logits = torch.randn(len(batch), 7, 5)  # (B, T, V), as a language model gives them
                    rows = F.cross_entropy(logits.transpose(1, 2), batch.target, reduction="none")
                    kept = batch.target != -100
                    for i, (row, keep) in enumerate(zip(rows, kept, strict=True)):
                        if keep.any():
                            expected[batch.ids[i]] = getattr(row[keep], sequence)()
                    turned = logits.transpose(1, 2)
                    if numpy:
                        loader.score(turned.numpy(), batch, sequence=sequence)
                    else:
                        loader.cross_entropy(turned, batch, sequence=sequence)
                torch.testing.assert_close(loader.importance(), expected, equal_nan=True)
    with lf.Loader((x, y), 4, framework="torch") as loader, pytest.raises(lf.SettingsError, match="sequence='last' is unknown"):
        loader.score(torch.randn(4, 5, 7), next(iter(loader)), sequence="last")

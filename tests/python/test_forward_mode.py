"""Forward-mode derivatives (torch.autograd.forward_ad) through every loss: torch's own tangents."""

import itertools

import pytest
import torch
import torch.autograd.forward_ad as ad
import torch.nn.functional as F

import lossfeed as lf

N, C = 12, 5


def tangent(loss, *at):
    """The loss and its tangent where each of `at` moves by itself, turned about."""
    with ad.dual_level():
        found = loss(*(ad.make_dual(z, z.flip(0) * 0.7 + 0.1) for z in at))
        return ad.unpack_dual(found)


def same(ours, theirs):
    for mine, its in zip(ours, theirs, strict=True):
        assert its is not None and mine is not None and mine.dtype == its.dtype
        bound = {torch.bfloat16: 4e-2, torch.float16: 5e-3}.get(mine.dtype, 1e-5)
        torch.testing.assert_close(mine, its, rtol=bound, atol=bound, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(C,), (N, C), (N, C, 3), (2, C, 3, 2)], ids=str)
def test_cross_entropys_tangent_is_torchs_over_every_keyword(shape, dtype):
    z = torch.randn(shape).to(dtype)
    wanted = () if len(shape) == 1 else (shape[0], *shape[2:])
    y = torch.randint(C, wanted)
    if y.dim():
        y.view(-1)[::3] = -100
    weight = (torch.rand(C) + 0.5).to(dtype)
    for reduction, smoothing, w, ignored in itertools.product(["mean", "sum", "none"], [0.0, 0.2], [None, weight], [-100, 1]):
        target = torch.where(y == -100, ignored, y)
        keywords = {"reduction": reduction, "label_smoothing": smoothing, "weight": w, "ignore_index": ignored}
        same(tangent(lambda z: lf.cross_entropy(z, target, **keywords), z), tangent(lambda z: F.cross_entropy(z, target, **keywords), z))
    same(
        tangent(lambda z: lf.cross_entropy(z, target, overwrite_logits=True, ignore_index=1), z),
        tangent(lambda z: F.cross_entropy(z, target, ignore_index=1), z),
    )


def test_weights_and_probabilities_may_move_too():
    z, w, q = torch.randn(N, C), torch.rand(C) + 0.5, torch.rand(N, C).softmax(1)
    y = torch.randint(C, (N,))
    same(tangent(lambda q: lf.cross_entropy(z, q), q), tangent(lambda q: F.cross_entropy(z, q), q))
    same(tangent(lambda z, q: lf.cross_entropy(z, q), z, q), tangent(lambda z, q: F.cross_entropy(z, q), z, q))
    same(tangent(lambda z, w: lf.cross_entropy(z, y, weight=w), z, w), tangent(lambda z, w: F.cross_entropy(z, y, weight=w), z, w))


def test_gradcheck_passes_forwards_and_forwards_over_backwards():
    y = torch.tensor([0, 3, -100, 1, 1])
    weight = torch.rand(4, dtype=torch.float64) + 0.5
    for smoothing, reduction, w in [(0.0, "mean", None), (0.1, "sum", weight), (0.3, "none", weight)]:
        z = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)

        def loss(z):
            return lf.cross_entropy(z, y, weight=w, reduction=reduction, label_smoothing=smoothing)

        assert torch.autograd.gradcheck(loss, z, check_forward_ad=True, check_batched_forward_grad=True)
        assert torch.autograd.gradgradcheck(loss, z, check_fwd_over_rev=True)


@pytest.fixture
def loader():
    data = torch.randn(N, 3), torch.randint(C, (N,))
    with lf.Loader(data, N, num_workers=0, score="loss", framework="torch") as made:
        yield made


def test_the_loaders_cross_entropy_has_torchs_tangent_and_scores(loader):
    batch = next(iter(loader))
    batch._weight = torch.linspace(0.5, 2.0, N)
    z = torch.randn(N, C)
    rows = lambda z: F.cross_entropy(z, batch.target, reduction="none") * batch.weight  # noqa: E731
    for reduction, of in (("mean", lambda r: r.mean()), ("sum", lambda r: r.sum()), ("none", lambda r: r)):
        same(tangent(lambda z: loader.cross_entropy(z, batch, reduction=reduction), z), tangent(lambda z: of(rows(z)), z))
    torch.testing.assert_close(loader.importance(), F.cross_entropy(z, batch.target, reduction="none"))


LOSSES = {
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "smooth_l1": F.smooth_l1_loss,
}


@pytest.mark.parametrize("kind", LOSSES)
def test_elementwise_losses_have_torchs_tangents(loader, kind):
    batch, z, y = next(iter(loader)), torch.randn(N, 2), torch.rand(N, 2)
    same(tangent(lambda z: loader.loss(kind, z, batch, target=y), z), tangent(lambda z: LOSSES[kind](z, y), z))


def test_losses_of_ones_own_and_scores_beside_them_have_tangents_too(loader):
    batch, z = next(iter(loader)), torch.randn(N, 2)
    same(tangent(lambda z: loader.weighted_mean(z.square(), batch), z), tangent(lambda z: z.square().mean(), z))

    def beside(z):
        loader.score(z, batch)
        loader.score_losses(z.square().mean(1), batch)
        lf.sample_scores(z, batch.target)
        return F.cross_entropy(z, batch.target)

    logits = torch.randn(N, C)
    same(tangent(beside, logits), tangent(lambda z: F.cross_entropy(z, batch.target), logits))


def test_without_a_tangent_the_native_forward_stays(native_calls):
    z, y = torch.randn(N, C, requires_grad=True), torch.randint(C, (N,))
    with ad.dual_level():
        lf.cross_entropy(z, y).backward()
    assert len(native_calls) == 1

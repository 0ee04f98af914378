"""A softmax does not depend on an offset of its logits: losses, scores and gradients far from 0 are as good as torch's
and as those at 0. What would spoil them is a log-sum-exp, which is rounded to the last place of the offset (a sixteenth
at 1e6 in float32)."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# The last ones hold no differences at all: every class is as likely as the others.
OFFSETS = [0.0, 1e3, -1e3, 1e6, -1e6, 1e30, -1e30, 3e38, -3e38]


def far(offset, dtype, classes, rows=12):
    """Logits that `dtype` holds exactly, and targets of which some are ignored."""
    generator = torch.Generator().manual_seed(classes)
    most = torch.finfo(dtype).max * 0.9
    logits = torch.randn(rows, classes, generator=generator, dtype=torch.float64) * 3 + max(-most, min(most, offset))
    target = torch.randint(classes, (rows,), generator=generator)
    target[::5] = -100
    weight = torch.rand(classes, generator=generator, dtype=torch.float64) + 0.5
    return logits.to(dtype), target, weight.to(dtype)


def brought_near(logits):
    """The same softmaxes around 0, exactly: a double holds the differences of any two of these logits."""
    wide = logits.double()
    return wide - wide.amax(1, keepdim=True)


def loss_and_gradient(loss, logits, target, weight, smoothing, **keywords):
    logits = logits.clone().requires_grad_()
    value = loss(logits * 1.0, target, weight=weight, label_smoothing=smoothing, reduction="none", **keywords)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach().double(), gradient.double()


def error(values, truth):
    """The largest error, beside the larger of the value and 1."""
    return ((values - truth).abs() / truth.abs().clamp(min=1.0)).max().item()


def settings():
    return itertools.product((0.0, 0.1, 1.0), (False, True))


@pytest.mark.parametrize("classes", [1, 2, 10, 5000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_loss_and_gradient_are_as_good_as_torchs_at_any_offset(dtype, classes):
    for offset in OFFSETS if classes <= 10 else OFFSETS[::3]:
        logits, target, weight = far(offset, dtype, classes)
        for smoothing, weighted in settings():
            w = weight if weighted else None
            truth = loss_and_gradient(F.cross_entropy, brought_near(logits), target, w if w is None else w.double(), smoothing)
            theirs = loss_and_gradient(F.cross_entropy, logits, target, w, smoothing)
            for overwrite in (False, True):
                ours = loss_and_gradient(lf.cross_entropy, logits, target, w, smoothing, overwrite_logits=overwrite)
                for name, a, b, exact in zip(("loss", "gradient"), ours, theirs, truth, strict=True):
                    # The truth of a double is no wider than a double.
                    bound = 3 * error(b, exact) + (64 if dtype == torch.float64 else 8) * torch.finfo(dtype).eps
                    assert error(a, exact) <= bound, (name, offset, smoothing, weighted, error(a, exact), error(b, exact))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("native", [True, False])
def test_scores_do_not_depend_on_the_offset(dtype, native):
    from lossfeed._torch.operators import device_rows

    measured = (lambda z, y: lf.sample_scores(z, y)) if native else (lambda z, y: device_rows(z, y, -100))
    for offset, classes in itertools.product(OFFSETS, (2, 10, 1000)):
        logits, target, _ = far(offset, dtype, classes)
        kept = target != -100
        here, there = measured(logits, target), measured(brought_near(logits), target)
        for name in ("loss", "grad_norm", "entropy"):
            a, b = getattr(here, name)[kept].double(), getattr(there, name)[kept].double()
            # Here the bound of device_rows: a difference of squares keeps half of the digits.
            bound = 8 * torch.finfo(dtype).eps if native or name != "grad_norm" else torch.finfo(dtype).eps ** 0.5
            assert error(a, b) <= bound, (name, offset, classes, error(a, b))
        assert torch.equal(here.correct[kept] == 1, there.correct[kept] == 1)


def test_a_compiled_loss_and_a_retained_graph_keep_the_precision():
    compiled = torch.compile(lf.cross_entropy, backend="aot_eager", fullgraph=True)
    for offset in (1e6, 3e38):
        logits, target, _ = far(offset, torch.float32, 10)
        _, exact = loss_and_gradient(F.cross_entropy, brought_near(logits), target, None, 0.1)
        _, gradient = loss_and_gradient(compiled, logits, target, None, 0.1)
        assert error(gradient, exact) <= 1e-6
        z = logits.clone().requires_grad_()
        loss = lf.cross_entropy(z, target, label_smoothing=0.1, reduction="sum")
        for _ in range(2):
            (gradient,) = torch.autograd.grad(loss, z, retain_graph=True)
            assert error(gradient.double(), exact) <= 1e-6


def test_differences_beyond_the_largest_number_are_infinite_losses_and_sound_gradients():
    largest = torch.finfo(torch.float32).max
    logits = torch.tensor([[largest, -largest, 0.0], [-largest, largest, largest]])
    for smoothing in (0.0, 0.1):
        z = logits.clone().requires_grad_()
        loss = lf.cross_entropy(z, torch.tensor([1, 0]), label_smoothing=smoothing, reduction="none")
        assert torch.equal(loss, torch.full((2,), float("inf")))
        (gradient,) = torch.autograd.grad(loss.sum(), z)
        expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]) - smoothing / 3
        expected -= (1 - smoothing) * torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)

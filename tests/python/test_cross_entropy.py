"""lf.cross_entropy equals torch's, in value, gradient and gradient of the gradient."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SHAPES = [(7,), (6, 7), (6, 7, 3), (2, 7, 3, 2), (1, 1), (5, 300)]
# torch rounds every step of a half-precision loss to half precision, we round once: the bound is torch's error.
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-6, torch.float64: 1e-13}


def both(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(dtype)
    return logits.clone().requires_grad_(), logits.clone().requires_grad_(), generator


def targets(shape, generator, ignored=None):
    classes = shape[0] if len(shape) == 1 else shape[1]
    wanted = () if len(shape) == 1 else (shape[0], *shape[2:])
    target = torch.randint(classes, wanted, generator=generator)
    if ignored is not None and target.dim() > 0:
        target.view(-1)[:: 3] = ignored
    return target


def compare(ours, theirs, a, b, dtype, scale=1.0):
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound * scale, equal_nan=True)
    if torch.isnan(theirs).any():
        return
    seed = torch.linspace(0.5, 1.5, max(1, ours.numel()), dtype=torch.float64).to(dtype).reshape(ours.shape)
    (ga,) = torch.autograd.grad(ours, a, seed)
    (gb,) = torch.autograd.grad(theirs, b, seed)
    assert ga.dtype == gb.dtype and ga.shape == gb.shape
    torch.testing.assert_close(ga, gb, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_class_indices_equal_torch_over_every_keyword(shape, dtype, native_calls):
    cases = itertools.product(["none", "mean", "sum"], [-100, 2], [0.0, 0.1, 1.0], [False, True])
    count = 0
    for reduction, ignore_index, smoothing, weighted in cases:
        a, b, generator = both(shape, dtype, seed=count)
        target = targets(shape, generator, ignored=ignore_index)
        classes = shape[0] if len(shape) == 1 else shape[1]
        if classes <= 2 and ignore_index == 2:
            target = target.clamp(max=ignore_index)
        weight = (torch.rand(classes, generator=generator) + 0.5).to(dtype) if weighted else None
        keywords = dict(weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing)
        compare(lf.cross_entropy(a, target, **keywords), F.cross_entropy(b, target, **keywords), a, b, dtype, scale=100.0 if reduction == "sum" else 10.0)
        count += 1
    assert len(native_calls) == count, "the native forward must have been at work, not torch's"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7,), (6, 7), (2, 7, 3, 2)], ids=str)
def test_class_probabilities_equal_torch(shape, dtype):
    for reduction, smoothing, weighted in itertools.product(["none", "mean", "sum"], [0.0, 0.2], [False, True]):
        a, b, generator = both(shape, dtype)
        target = torch.rand(shape, generator=generator).softmax(0 if len(shape) == 1 else 1).to(dtype)
        weight = torch.rand(7, generator=generator).to(dtype) if weighted else None
        keywords = dict(weight=weight, reduction=reduction, label_smoothing=smoothing)
        compare(lf.cross_entropy(a, target, **keywords), F.cross_entropy(b, target, **keywords), a, b, dtype, scale=100.0)


def test_the_gradient_has_a_gradient():
    for smoothing, reduction in [(0.0, "mean"), (0.1, "sum"), (0.0, "none")]:
        logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        target = torch.tensor([0, 3, -100, 1, 1])
        weight = torch.rand(4, dtype=torch.float64) + 0.5

        def loss(z):
            return lf.cross_entropy(z, target, weight=weight, reduction=reduction, label_smoothing=smoothing)

        assert torch.autograd.gradcheck(loss, logits)
        assert torch.autograd.gradgradcheck(loss, logits)


@pytest.mark.parametrize(
    "layout",
    ["transposed", "strided_rows", "strided_classes", "expanded", "offset", "negated_view"],
)
def test_any_layout_of_the_logits_works(layout):
    base = torch.randn(12, 10)
    logits = {
        "transposed": lambda: torch.randn(10, 6).t(),
        "strided_rows": lambda: base[::2],
        "strided_classes": lambda: base[:6, ::2],
        "expanded": lambda: base[:1].expand(6, 10),
        "offset": lambda: base[3:9, 1:8],
        "negated_view": lambda: torch.view_as_complex(torch.randn(6, 5, 2)).conj().imag,
    }[layout]()
    assert len(logits) == 6
    target = torch.randint(logits.shape[1], (6,))
    torch.testing.assert_close(lf.cross_entropy(logits, target), F.cross_entropy(logits, target))


def test_an_ignored_row_of_nan_has_no_loss_and_no_gradient():
    logits = torch.randn(3, 4)
    logits[1] = float("nan")
    logits.requires_grad_()
    loss = lf.cross_entropy(logits, torch.tensor([1, -100, 2]), label_smoothing=0.1)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all() and (logits.grad[1] == 0).all()


def test_every_row_ignored_is_nan_for_the_mean_and_zero_for_the_sum_as_in_torch():
    logits, target = torch.randn(3, 4), torch.full((3,), -100)
    assert torch.isnan(lf.cross_entropy(logits, target)) and torch.isnan(F.cross_entropy(logits, target))
    assert lf.cross_entropy(logits, target, reduction="sum") == 0


def test_a_target_outside_the_classes_is_named_with_its_row_and_the_number_of_classes():
    with pytest.raises(lf.SampleError, match=r"target 4 of row 1 is outside 0\.\.4"):
        lf.cross_entropy(torch.randn(3, 4), torch.tensor([0, 4, 1]))
    with pytest.raises(ValueError, match="-1"):
        lf.cross_entropy(torch.randn(3, 4), torch.tensor([0, -1, 1]))


def test_wrong_calls_get_torchs_own_errors():
    logits, target = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    for arguments, keywords in [
        ((logits, torch.zeros(2, dtype=torch.long)), {}),
        ((logits, target), {"reduction": "median"}),
        ((logits, target), {"label_smoothing": 1.5}),
        ((logits, target), {"weight": torch.ones(3)}),
    ]:
        with pytest.raises((ValueError, RuntimeError)) as theirs:
            F.cross_entropy(*arguments, **keywords)
        with pytest.raises(type(theirs.value)):
            lf.cross_entropy(*arguments, **keywords)


def test_autocast_promotes_the_loss_as_torch_does():
    logits, target = torch.randn(4, 5).bfloat16(), torch.randint(5, (4,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = lf.cross_entropy(logits, target), F.cross_entropy(logits, target)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_function_transforms_reach_torchs_own():
    logits, target = torch.randn(4, 5), torch.randint(5, (4,))
    gradient = torch.func.grad(lambda z: lf.cross_entropy(z, target))(logits)
    expected = torch.func.grad(lambda z: F.cross_entropy(z, target))(logits)
    torch.testing.assert_close(gradient, expected)
    per_row = torch.func.vmap(lf.cross_entropy)(logits, target)
    torch.testing.assert_close(per_row, F.cross_entropy(logits, target, reduction="none"))


def test_no_gradient_is_recorded_where_none_is_wanted():
    logits, target = torch.randn(4, 5), torch.randint(5, (4,))
    assert not lf.cross_entropy(logits, target).requires_grad
    with torch.no_grad():
        assert not lf.cross_entropy(logits.requires_grad_(), target).requires_grad


def test_the_gradient_takes_the_logits_place_when_asked_and_whoever_saved_them_is_told():
    target = torch.randint(5, (4,))
    expected = torch.randn(4, 5, requires_grad=True)
    hidden = expected.detach().clone().requires_grad_()
    logits = hidden * 1.0
    before = logits.data_ptr()
    logits.retain_grad()
    lf.cross_entropy(logits, target, overwrite_logits=True).backward()
    F.cross_entropy(expected, target).backward()
    torch.testing.assert_close(hidden.grad, expected.grad)
    torch.testing.assert_close(logits.detach(), expected.grad)
    assert logits.data_ptr() == before

    logits = hidden * 1.0
    square = (logits * logits).sum()  # saves the logits, and its backward runs after that of what was made later
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (square + lf.cross_entropy(logits, target, overwrite_logits=True)).backward()
    logits = (hidden * 1.0).t().contiguous().t()
    lf.cross_entropy(logits, target, overwrite_logits=True).backward()
    torch.testing.assert_close(logits.detach(), expected.detach())

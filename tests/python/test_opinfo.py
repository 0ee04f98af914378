"""torch's own sample inputs for cross_entropy: values, gradients, gradcheck; and torch's own checks of our
operators."""

import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf

opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations", reason="this torch ships without its test data")

OP = next(op for op in opinfo.op_db if op.name == "nn.functional.cross_entropy")
# torch rounds every step of a half-precision loss to half precision, we round once.
TOLERANCE = {torch.float16: (1e-2, 1e-2), torch.bfloat16: (6e-2, 6e-2), torch.float32: (2e-5, 2e-5), torch.float64: (1e-11, 1e-11)}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_sample_input_of_torch_gives_torchs_value_and_gradient(device, dtype):
    rtol, atol = TOLERANCE[dtype]
    count = 0
    for sample in OP.sample_inputs(device, dtype, requires_grad=True):
        logits, (target,), keywords = sample.input, sample.args, sample.kwargs
        results = []
        for function in (lf.cross_entropy, F.cross_entropy):
            z = logits.detach().clone().requires_grad_()
            # Also where torch returns a view or a scalar.
            value = function(z, target, **keywords)
            (gradient,) = torch.autograd.grad(value.sum(), z)
            results.append((value.detach(), gradient))
        (ours, our_gradient), (theirs, their_gradient) = results
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        torch.testing.assert_close(our_gradient, their_gradient, rtol=rtol, atol=atol, equal_nan=True)
        count += 1
    assert count > 20


def test_gradcheck_passes_on_every_double_sample():
    for sample in OP.sample_inputs("cpu", torch.float64, requires_grad=True):
        logits, (target,), keywords = sample.input, sample.args, sample.kwargs
        if torch.isnan(lf.cross_entropy(logits, target, **keywords)).any():
            continue  # every row ignored: NaN over NaN
        assert torch.autograd.gradcheck(lambda z: lf.cross_entropy(z, target, **keywords), logits.detach().clone().requires_grad_())


def test_opcheck_passes_for_every_operator():
    import lossfeed._torch.graph  # noqa: F401
    import lossfeed._torch.rows as rows

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        logits = torch.randn(6, 7).to(dtype).requires_grad_()
        target = torch.tensor([0, 6, 2, 3, 3, 1])  # none ignored: opcheck takes the NaN of such a score for a difference
        weight = torch.rand(7).to(rows.real_dtype(logits))
        for w, smoothing in ((None, 0.0), (weight, 0.1)):
            torch.library.opcheck(torch.ops.lossfeed.rows_forward, (logits, target, w, -100, smoothing))
            softmax = rows.forward(logits, target, w, -100, smoothing).softmax
            grad = torch.rand(6, dtype=weight.dtype, requires_grad=True)
            torch.library.opcheck(torch.ops.lossfeed.rows_backward, (logits, target, w, -100, smoothing, softmax, grad))


def test_the_native_gradient_is_the_composite_one():
    import lossfeed._torch.rows as rows

    for dtype in TOLERANCE:
        logits = (torch.randn(40, 33) * 4).to(dtype)
        target = torch.randint(33, (40,))
        target[::5] = -100
        weight = torch.rand(33)
        for smoothing in (0.0, 0.2):
            found = rows.forward(logits, target, weight, -100, smoothing)
            for upstream in (torch.rand(40), torch.rand(1).expand(40)):
                ours = rows.backward(logits, target, weight, -100, smoothing, found.softmax, upstream)
                theirs = rows.composite_gradient(logits, target, weight, -100, smoothing, upstream)
                rtol = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(dtype, 1e-5)
                torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-6)

"""lf.sample_scores: what one read of the logits tells, against the definitions in plain torch."""

import numpy as np
import pytest
import torch

import lossfeed as lf


def by_definition(logits, target):
    z = logits.double()
    logp = z.log_softmax(-1)
    p = logp.exp()
    hot = torch.nn.functional.one_hot(target, z.shape[1]).double()
    return {
        "loss": -(logp * hot).sum(-1),
        "grad_norm": (p - hot).norm(dim=-1),
        "entropy": -(p * logp).sum(-1),
        "correct": z.argmax(-1) == target,
    }


def naive_counts(losses):
    finite = [x for x in losses if np.isfinite(x)]
    return [sum(o < x for o in finite) if np.isfinite(x) else -1 for x in losses]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_scores_equal_their_definitions(dtype):
    logits = (torch.randn(40, 11) * 2).to(dtype)
    target = torch.randint(11, (40,))
    scores, wanted = lf.sample_scores(logits, target), by_definition(logits, target)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    for name in ("loss", "grad_norm", "entropy"):
        found = getattr(scores, name)
        assert found.dtype == real and found.shape == (40,)
        torch.testing.assert_close(found.double(), wanted[name], rtol=1e-5, atol=1e-5)
    assert scores.correct.dtype == torch.bool and torch.equal(scores.correct, wanted["correct"])
    assert scores.rank_count.dtype == torch.int32 and scores.rank_score.dtype == torch.float32
    assert scores.rank_count.tolist() == naive_counts(scores.loss.float().numpy())
    torch.testing.assert_close(scores.rank_score, torch.log(scores.rank_count + 10.0))


def test_numpy_in_numpy_out_with_the_same_numbers():
    logits, target = torch.randn(9, 2, 5), torch.randint(2, (9, 5))
    ours, theirs = lf.sample_scores(logits.numpy(), target.numpy()), lf.sample_scores(logits, target)
    for a, b in zip(ours, theirs):
        assert isinstance(a, np.ndarray) and a.shape == (9, 5)
        np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.parametrize("order", [np.array, lambda x: np.asfortranarray(x), lambda x: np.repeat(x, 2, 1)[:, ::2], lambda x: x.astype(">f4")])
def test_arrays_of_any_layout_and_byte_order_work(order):
    logits = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    target = np.array([0, 1, 2, 3, 0, 1], dtype=np.int32)
    np.testing.assert_allclose(lf.sample_scores(order(logits), target).loss, lf.sample_scores(logits, target).loss)


def test_rank_counts_are_a_naive_count_bit_for_bit():
    from lossfeed import _native
    from lossfeed._torch.operators import rank_counts

    rng = np.random.default_rng(1)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, np.nextafter(np.float32(1), np.float32(2)), 1e-45, 3.4e38]
    for size in [1, 2, 3, 17, 64, 513]:
        for trial in range(20):
            losses = rng.choice(special, size) if trial % 2 else np.round(rng.normal(size=size), trial % 3)
            losses = losses.astype(np.float32)
            counts = np.frombuffer(_native.rank_counts(memoryview(losses).cast("B")), dtype=np.int32)
            assert counts.tolist() == naive_counts(losses)
            # The torch twin is what a GPU runs.
            assert rank_counts(torch.from_numpy(losses)).tolist() == naive_counts(losses)


def test_rows_without_a_rank_take_no_part():
    logits = torch.tensor([[0.0, 1.0], [float("nan"), 0.0], [2.0, 0.0], [float("-inf"), 0.0], [5.0, 1.0]])
    scores = lf.sample_scores(logits, torch.tensor([0, 0, 0, 0, -100]))
    assert scores.rank_count.tolist() == [1, -1, 0, -1, -1]
    assert torch.isnan(scores.rank_score).tolist() == [False, True, False, True, True]
    assert scores.loss[4] == 0 and torch.isnan(scores.grad_norm[4]) and not scores.correct[4]
    assert scores.loss[3] == float("inf")


def test_shades_two_text_examples_have_their_second_samples_on_top_with_equal_scores():
    from conftest import logits_with_loss

    tops = []
    for losses in ([0.3, 0.5, 0.4], [0.6, 1.2, 0.8]):
        scores = lf.sample_scores(logits_with_loss(losses), torch.zeros(3, dtype=torch.long))
        np.testing.assert_allclose(scores.loss.numpy(), losses, rtol=1e-5)
        assert scores.rank_count.tolist() == [0, 2, 1]
        tops.append(scores.rank_score[1].item())
    assert tops[0] == tops[1] == pytest.approx(np.log(12.0))


def test_the_torch_twin_for_devices_agrees_with_the_kernels():
    from lossfeed._torch.operators import device_rows
    from lossfeed._torch import rows

    logits = torch.randn(50, 9)
    logits[3], logits[4, 2], logits[5] = float("nan"), float("-inf"), float("-inf")
    target = torch.randint(9, (50,))
    target[::7] = -100
    target[4] = 2
    native, twin = rows.forward(logits, target, None, -100, 0.0).scores(), device_rows(logits, target, -100)
    keep = target != -100
    torch.testing.assert_close(native.loss[keep], twin.loss[keep], equal_nan=True, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(native.grad_norm, twin.grad_norm, equal_nan=True, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(native.entropy[keep], twin.entropy[keep], equal_nan=True, rtol=1e-5, atol=1e-6)
    assert torch.equal(native.correct[keep][:3], twin.correct[keep][:3])
    assert torch.equal(native.rank_count, rank_of(native.loss, keep)) and torch.equal(twin.rank_count < 0, native.rank_count < 0)


def rank_of(losses, keep):
    losses = [x if k else float("nan") for x, k in zip(losses.tolist(), keep.tolist())]
    return torch.tensor(naive_counts(losses), dtype=torch.int32)


def test_shapes_and_dtypes_that_do_not_fit_are_refused_with_both():
    logits, target = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    for bad, message in [
        ((logits, target[:2]), r"\(2,\).*\(3, 4\)"),
        ((logits, target.float()), "integer"),
        ((logits.long(), target), "int64 cannot be scored"),
        ((torch.randn(3, 0), target), "no classes"),
        (([1.0, 2.0], target), "tensor or NumPy array"),
    ]:
        with pytest.raises(lf.SettingsError, match=message):
            lf.sample_scores(*bad)
    with pytest.raises(lf.SampleError, match="target 9 of row 2"):
        lf.sample_scores(logits, torch.tensor([0, 0, 9]))


def test_no_gradient_flows_and_none_is_needed():
    logits = torch.randn(3, 4, requires_grad=True)
    assert not lf.sample_scores(logits, torch.zeros(3, dtype=torch.long)).loss.requires_grad

"""lf.linear_cross_entropy beside F.cross_entropy of F.linear: values, gradients, derivatives of every kind, memory,
refusals."""

import itertools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import lossfeed as lf
import lossfeed._torch.linear as linear
import lossfeed._torch.rows as rows

R, H, V = 23, 5, 11
#: Where torch rounds each step of half precision, we round once.
BOUND = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}


@pytest.fixture(params=["one chunk", "many chunks"], autouse=True)
def chunks(request, monkeypatch):
    if request.param == "many chunks":
        monkeypatch.setattr(linear, "CHUNK_BYTES", 4 * V * 4)


def made(dtype=torch.float64, bias=True, ignored=-100):
    x, w = torch.randn(R, H).to(dtype), torch.randn(V, H).to(dtype)
    y = torch.randint(V, (R,))
    y[::4] = ignored
    return x, w, (torch.randn(V).to(dtype) if bias else None), y


def leaves(*tensors):
    return [None if t is None else t.clone().requires_grad_() for t in tensors]


def eager(x, w, y, *, linear_bias=None, row_weight=None, reduction="mean", ignore_index=-100, label_smoothing=0.0):
    """The loss of whole logits."""
    losses = F.cross_entropy(
        F.linear(x, w, linear_bias), y, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    losses = losses if row_weight is None else losses * row_weight
    if reduction == "none":
        return losses
    return losses.sum() / (y != ignore_index).sum() if reduction == "mean" else losses.sum()


def same(ours, theirs, bound):
    """Each to `bound` of the largest."""
    for mine, its in zip(ours, theirs, strict=True):
        assert (mine is None) is (its is None)
        if mine is not None:
            assert mine.dtype == its.dtype and mine.shape == its.shape
            torch.testing.assert_close(mine, its, rtol=bound, atol=bound * max(1e-30, float(its.detach().abs().max())))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients_are_those_of_whole_logits(reduction, dtype, native_calls):
    for smoothing, bias, weighted, ignored in itertools.product([0.0, 0.1], [True, False], [True, False], [-100, 2]):
        x, w, b, y = made(dtype, bias, ignored)
        q = torch.rand(R, dtype=dtype) * 3 if weighted else None
        settings = {"reduction": reduction, "ignore_index": ignored, "label_smoothing": smoothing, "row_weight": q}
        a, c = leaves(x, w, b), leaves(x, w, b)
        before = len(native_calls)
        ours = lf.linear_cross_entropy(a[0], a[1], y, linear_bias=a[2], **settings)
        assert len(native_calls) > before, "the native forward must run"
        theirs = eager(c[0], c[1], y, linear_bias=c[2], **settings)
        upstream = torch.rand_like(ours)
        ours.backward(upstream), theirs.backward(upstream)
        found = [ours, *(t.grad for t in a if t is not None)]
        same(found, [theirs, *(t.grad for t in c if t is not None)], BOUND[dtype])


def test_non_uniform_upstream_gradients_reach_their_rows():
    x, w, _, y = made()
    a, c = leaves(x, w), leaves(x, w)
    upstream = torch.arange(R, dtype=torch.float64) ** 2
    lf.linear_cross_entropy(*a, y, reduction="none").backward(upstream)
    eager(*c, y, reduction="none").backward(upstream)
    same([t.grad for t in a], [t.grad for t in c], 1e-10)


def test_it_is_torchs_own_function():
    x, w, b, y = made()
    for reduction in ("mean", "sum", "none"):
        ours = lf.linear_cross_entropy(x, w, y, linear_bias=b, reduction=reduction)
        same([ours], [F.linear_cross_entropy(x, w, y, linear_bias=b, reduction=reduction)], 1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradcheck_passes_twice(reduction):
    x, w, b, y = made()
    q = torch.rand(R, dtype=torch.float64)

    def loss(x, w, b):
        return lf.linear_cross_entropy(x, w, y, linear_bias=b, label_smoothing=0.1, row_weight=q, reduction=reduction)

    assert torch.autograd.gradcheck(loss, leaves(x, w, b))
    assert torch.autograd.gradgradcheck(loss, leaves(x, w, b))


def test_leading_dimensions_are_rows():
    x, w = torch.randn(2, 3, H, dtype=torch.float64), torch.randn(V, H, dtype=torch.float64)
    y, q = torch.randint(V, (2, 3)), torch.rand(2, 3, dtype=torch.float64)
    flat = eager(x.flatten(0, 1), w, y.flatten(), row_weight=q.flatten(), reduction="none")
    ours = lf.linear_cross_entropy(x, w, y, row_weight=q, reduction="none")
    same([ours, ours.sum()], [flat.view(2, 3), lf.linear_cross_entropy(x, w, y, row_weight=q, reduction="sum")], 1e-10)
    one = lf.linear_cross_entropy(x[0, 0], w, y[0, 0], reduction="none")
    assert one.shape == ()
    same([one], [eager(x[0, :1], w, y[0, :1])], 1e-10)


def test_turned_and_partial_memory_is_read_as_it_lies():
    x, w = torch.randn(H, R, dtype=torch.float64).t(), torch.randn(H, 2 * V, dtype=torch.float64)[:, ::2].t()
    y = torch.randint(V, (2 * R,))[::2]
    a, c = leaves(x, w), leaves(x, w)
    ours, theirs = lf.linear_cross_entropy(*a, y.to(torch.int32)), eager(*c, y)
    ours.backward(), theirs.backward()
    same([ours, *(t.grad for t in a)], [theirs, *(t.grad for t in c)], 1e-10)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2)], ids=str)
def test_frozen_parts_get_no_gradient_and_the_others_the_same(frozen, reduction):
    x, w, b, y = made()
    grads = []
    for loss in (lf.linear_cross_entropy, eager):
        parts = leaves(x, w, b)
        for i in frozen:
            parts[i].requires_grad_(False)
        found = loss(parts[0], parts[1], y, linear_bias=parts[2], reduction=reduction).sum()
        assert found.requires_grad is (len(frozen) < 3)
        if found.requires_grad:
            found.backward()
        grads.append([part.grad for part in parts])
    same(*grads, 1e-10)


def test_a_head_tied_to_the_embedding_gets_both_gradients():
    w, y = torch.randn(V, H, dtype=torch.float64), torch.randint(V, (R,))
    tokens, grads = torch.randint(V, (R,)), []
    for loss in (lf.linear_cross_entropy, eager):
        (tied,) = leaves(w)
        found = loss(F.embedding(tokens, tied).tanh(), tied, y)
        (first,) = torch.autograd.grad(found, tied, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), tied)
        grads.append([first, second])
    same(*grads, 1e-9)


def test_gradients_accumulate_and_a_kept_graph_gives_them_again():
    x, w, b, y = made()
    a, c = leaves(x, w, b), leaves(x, w, b)
    for (one, two, three), loss in ((a, lf.linear_cross_entropy), (c, eager)):
        found = loss(one, two, y, linear_bias=three)
        (3 * found).backward(retain_graph=True)
        (5 * found).backward()
        loss(one, two, y, linear_bias=three).backward()
        with pytest.raises(RuntimeError, match="second time"):
            found.backward()
    same([t.grad for t in a], [t.grad for t in c], 1e-10)


def test_the_heads_gradient_becomes_grad_without_a_copy(monkeypatch):
    x, w, _, y = made()
    a, w = x.requires_grad_(), w.requires_grad_()
    loss = lf.linear_cross_entropy(a, w, y)
    waiting = [t.data_ptr() for t in loss.grad_fn.saved_tensors if t is not None and t.shape == w.shape]
    (2 * loss).backward()
    assert w.grad.data_ptr() in waiting


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_under_autocast_it_has_autocasts_dtypes(dtype, bias):
    x, w, b, y = made(torch.float32, bias)
    x = x.to(dtype)
    kind = torch.bfloat16 if dtype == torch.float32 else dtype
    for reduction in ("mean", "none"):
        a, c = leaves(x, w, b), leaves(x, w, b)
        with torch.autocast("cpu", kind):
            ours = lf.linear_cross_entropy(a[0], a[1], y, linear_bias=a[2], reduction=reduction)
            theirs = eager(c[0], c[1], y, linear_bias=c[2], reduction=reduction)
        ours.sum().backward(), theirs.sum().backward()
        assert ours.dtype == torch.float32
        same([ours, *(t.grad for t in a if t is not None)], [theirs, *(t.grad for t in c if t is not None)], 4e-2)


def test_many_small_gradients_of_float16_do_not_vanish():
    # Each row's gradient is 1e-4 / 4096 of a number: nothing in float16, unless the mean's divisor waits.
    many = 4096
    x, w = torch.ones(many, H).half(), torch.zeros(V, H).half()
    w[0] = 1.8
    a, c = leaves(x, w), leaves(x.double(), w.double())
    y = torch.zeros(many, dtype=torch.int64)
    scale = 2.0**15
    (lf.linear_cross_entropy(*a, y, reduction="mean").float() * scale).backward()
    (eager(*c, y) * scale).backward()
    for mine, its in zip(a, c, strict=True):
        torch.testing.assert_close(mine.grad.double(), its.grad, rtol=2e-2, atol=2e-2 * float(its.grad.abs().max()))


def test_gradients_of_bfloat16_are_summed_in_float32(monkeypatch):
    # 4096 equal contributions: in bfloat16 the sum would stop growing at 256 of them.
    monkeypatch.setattr(linear, "CHUNK_BYTES", 8 * V * 6)
    many = 4096
    x, w = torch.ones(many, H).bfloat16(), torch.zeros(V, H).bfloat16()
    a = leaves(x, w)
    y = torch.zeros(many, dtype=torch.int64)
    lf.linear_cross_entropy(*a, y, reduction="sum").backward()
    torch.testing.assert_close(a[1].grad[1, 0].double(), torch.tensor(many / V, dtype=torch.float64), rtol=1e-2, atol=0)


def test_rows_that_do_not_count_change_nothing_and_none_that_count_give_nan():
    x, w, b, y = made()
    y[:] = -100
    a = leaves(x, w, b)
    loss = lf.linear_cross_entropy(a[0], a[1], y, linear_bias=a[2])
    loss.backward()
    assert loss.isnan() and all(not t.grad.any() for t in a)
    assert lf.linear_cross_entropy(x, w, y, reduction="sum") == 0
    empty = x[:0], w, y[:0]
    assert lf.linear_cross_entropy(*empty).isnan() and lf.linear_cross_entropy(*empty, reduction="sum") == 0


def test_without_gradients_one_product_is_all(monkeypatch):
    x, w, _, y = made()
    monkeypatch.setattr(rows, "backward", lambda *_, **__: pytest.fail("a backward without a gradient"))
    with torch.no_grad():
        loss = lf.linear_cross_entropy(*leaves(x, w), y)
    assert not loss.requires_grad
    lf.linear_cross_entropy(x, w, y)


def test_forward_mode_vmap_and_functional_gradients_are_torchs():
    x, w, b, y = made()
    y = y.clamp(min=0)

    def ours(x, w, b):
        return lf.linear_cross_entropy(x, w, y, linear_bias=b)

    def theirs(x, w, b):
        return eager(x, w, y, linear_bias=b)

    tangents = torch.rand_like(x), torch.rand_like(w), torch.rand_like(b)
    same(torch.func.jvp(ours, (x, w, b), tangents), torch.func.jvp(theirs, (x, w, b), tangents), 1e-10)
    same(torch.func.grad(ours, (0, 1, 2))(x, w, b), torch.func.grad(theirs, (0, 1, 2))(x, w, b), 1e-10)
    each = torch.func.vmap(lambda x, y: lf.linear_cross_entropy(x, w, y))(x, y)
    same([each], [eager(x, w, y, reduction="none")], 1e-10)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_checkpointed_forwards_give_the_same_gradients(reduction, reentrant):
    x, w, b, y = made()
    grads = []
    for loss in (lf.linear_cross_entropy, eager):
        parts = leaves(x, w, b)

        def run(x, w, b, loss=loss):
            return loss(x.tanh(), w, y, linear_bias=b, reduction=reduction).sum()

        checkpoint(run, *parts, use_reentrant=reentrant).backward()
        grads.append([part.grad for part in parts])
    same(*grads, 1e-10)


def test_saved_gradients_may_wait_elsewhere():
    x, w, b, y = made()
    grads = []
    for loss in (lf.linear_cross_entropy, eager):
        parts = leaves(x, w, b)
        with torch.autograd.graph.save_on_cpu():
            found = loss(parts[0], parts[1], y, linear_bias=parts[2]) * 3
        found.backward()
        grads.append([part.grad for part in parts])
    same(*grads, 1e-10)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_compiled_step_has_no_break_and_the_same_gradients(reduction, backend, native_calls):
    torch._dynamo.reset()
    if backend == "inductor" and linear.CHUNK_BYTES > 1000:
        pytest.skip("compiled for real once")

    def step(x, w, b, y, q):
        settings = {"label_smoothing": 0.1, "row_weight": q, "reduction": reduction}
        return lf.linear_cross_entropy(x.tanh(), w, y, linear_bias=b, **settings)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for frozen in ([], [1], [0, 2]):
        x, w, b, y = made(torch.float32)
        q, grads = torch.rand(R), []
        for run in (compiled, step):
            parts = leaves(x, w, b)
            for i in frozen:
                parts[i].requires_grad_(False)
            before = len(native_calls)
            loss = run(*parts, y, q)
            assert len(native_calls) > before
            loss.backward(torch.ones_like(loss) * 1.5)
            grads.append([loss, *(part.grad for part in parts)])
        same(*grads, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_compiled_step_under_autocast(dtype):
    torch._dynamo.reset()

    def step(x, w, b, y):
        with torch.autocast("cpu", dtype):
            return lf.linear_cross_entropy(x, w, y, linear_bias=b)

    compiled, grads = torch.compile(step, fullgraph=True, backend="aot_eager"), []
    x, w, b, y = made(torch.float32)
    for run in (compiled, step):
        parts = leaves(x, w, b)
        loss = run(*parts, y)
        loss.backward()
        grads.append([loss, *(part.grad for part in parts)])
    same(*grads, 1e-5)


def test_opcheck_passes_for_its_operators():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, w, b, _ = made(dtype)
        y = torch.randint(V, (R,))  # none ignored: opcheck takes the NaN of such a score for a difference
        q = torch.rand(R)
        for bias, weight, reduction in ((b, q, "mean"), (None, None, "sum"), (b, q, "none")):
            parts = leaves(x, w, bias)
            call = (*parts, y, weight, dtype, -100, 0.1, reduction, True, True, bias is not None)
            torch.library.opcheck(torch.ops.lossfeed.linear_forward, call)
            softmax = torch.ops.lossfeed.linear_forward(*call)[1][2:4].detach()
            parts = [None if part is None else part.detach() for part in parts]
            back = (*parts, y, weight, dtype, -100, 0.1, True, True, bias is not None, torch.rand(R), softmax)
            torch.library.opcheck(torch.ops.lossfeed.linear_backward, back)


MEMORY = """
import sys, torch, lossfeed as lf
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024
R, H, V = map(int, sys.argv[1:4])
x, w = torch.randn(R, H, requires_grad=True), torch.randn(V, H, requires_grad=True)
y, q = torch.randint(V, (R,)), torch.rand(R)
for reduction in ("mean", "mean", "none"):
    x.grad = w.grad = None
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    (2 * lf.linear_cross_entropy(x, w, y, row_weight=q, reduction=reduction).mean()).backward()
    grown = status("VmHWM") - before - (x.numel() + w.numel()) * 4 / 2**20
print(grown, R * V * 4 / 2**20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks of resident memory are Linux's")
@pytest.mark.parametrize("shape", [(3000, 16, 32768), (60000, 8, 5000)], ids=str)
def test_the_logits_never_exist_together(shape, chunks):
    if linear.CHUNK_BYTES < 1 << 20:
        pytest.skip("of the real chunks")
    command = [sys.executable, "-c", MEMORY, *map(str, shape)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if "clear_refs" in ended.stderr:
        pytest.skip("this kernel does not reset a process's peak")
    grown, logits = map(float, ended.stdout.split())
    assert logits > 300 and grown < max(64, logits / 8), (grown, logits)


def refusal(*args, **keywords):
    with pytest.raises(lf.SettingsError) as caught:
        lf.linear_cross_entropy(*args, **keywords)
    return str(caught.value)


def test_what_does_not_fit_is_refused_by_name():
    x, w, b, y = made(torch.float32)
    assert "linear_weight of shape (11, 4) does not fit input of shape (23, 5)" in refusal(x, w[:, :4], y)
    assert "linear_weight of shape (11, 5, 1)" in refusal(x, w[..., None], y)
    assert "linear_bias of shape (3,)" in refusal(x, w, y, linear_bias=b[:3])
    assert "target of shape (4,) does not fit input" in refusal(x, w, y[:4])
    assert "class probabilities need whole logits" in refusal(x, w, torch.rand(R, V))
    assert "linear_weight has dtype torch.float64, input torch.float32" in refusal(x, w.double(), y)
    assert "input has dtype torch.int64: give floats" in refusal(y[:, None], w, y)
    assert "input must be a torch tensor, not list" in refusal([[0.0] * H], w, y)
    assert "target must be a torch tensor, not list" in refusal(x, w, [0] * R)
    assert "row_weight of shape (2,) must be (23,)" in refusal(x, w, y, row_weight=torch.rand(2))
    assert "pass row_weight.detach()" in refusal(x, w, y, row_weight=torch.rand(R, requires_grad=True))
    assert "reduction" in refusal(x, w, y, reduction="avg")
    assert "label_smoothing" in refusal(x, w, y, label_smoothing=1.5)
    assert "ignore_index" in refusal(x, w, y, ignore_index=0.5)
    assert "sparse" in refusal(x, w.to_sparse(), y)


def test_a_target_outside_the_classes_is_named_with_its_row_among_all():
    x, w, _, y = made()
    for row, target in ((22, V), (1, -1), (13, 2**40)):
        wrong = y.clone()
        wrong[row] = target
        compiled = torch.compile(lf.linear_cross_entropy, backend="aot_eager", fullgraph=True)
        for call in (lf.linear_cross_entropy, compiled):
            with pytest.raises(lf.SampleError, match=f"target {target} of row {row} is outside 0..11"):
                call(*leaves(x, w), wrong)
    assert lf.linear_cross_entropy(x, w, torch.full((R,), 12), ignore_index=12).isnan()

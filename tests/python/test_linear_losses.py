"""loader.linear_cross_entropy beside loader.cross_entropy of whole logits: losses, gradients, and the same scores of
the same samples."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import lossfeed as lf
import lossfeed._torch.linear as linear
from lossfeed._batch.packed import Packed

N, B, T, H, V = 24, 6, 5, 4, 7


@pytest.fixture(params=["one chunk", "many chunks"], autouse=True)
def chunks(request, monkeypatch):
    if request.param == "many chunks":
        monkeypatch.setattr(linear, "CHUNK_BYTES", 4 * V * 4)


def tokens(i, length):
    drawn = np.random.default_rng(i)
    labels = drawn.integers(0, V, length)
    labels[drawn.random(length) < 0.25] = -100
    if i == 3:
        labels[:] = -100
    return {"input_ids": drawn.integers(0, V, length), "labels": labels}


def made(score="loss", items=None, **keywords):
    """Pairs of a loader and its batch, with weights that differ."""
    items = [tokens(i, T) for i in range(N)] if items is None else items
    keywords = {"seed": 3, "num_workers": 0, "score": score, "smoothing": 0.0, "sampler": "importance"} | keywords
    loader = lf.Loader(items, B, **keywords)
    for batch in loader:
        batch._weight = torch.linspace(0.25, 3.0, N)[batch.ids]
        yield loader, batch


def scored(loader, batch):
    return loader.importance()[batch.ids]


def parts(*shape):
    """Hidden states of `shape` and a head, in float64."""
    return [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((*shape, H), (V, H), (V,))]


def twins(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def same(ours, theirs, bound=1e-10):
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=bound, atol=bound, equal_nan=True)


#: Hidden states and targets as scripts write them.
FORMS = {
    "(B, T, H)": (lambda h: h, lambda y: y),
    "(B * T, H) of (B, T)": (lambda h: h.flatten(0, 1), lambda y: y),
    "(B * T, H) of (B * T,)": (lambda h: h.flatten(0, 1), lambda y: y.reshape(-1)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("score", ["loss", "gradient_norm", "entropy"])
def test_losses_gradients_and_scores_are_those_of_whole_logits(form, score):
    lay, of_target = FORMS[form]
    words = ["mean", "sum", "none"], [-100, 1], [0.0, 0.2], [False, True], ["mean", "max", "sum"]
    settings = list(itertools.product(*words))
    batches = itertools.chain.from_iterable(zip(made(score), made(score), strict=True) for _ in itertools.count())
    for ((one, mine), (other, twin)), (reduction, ignored, smoothing, weighted, sequence) in zip(batches, settings):
        a = parts(B, T)
        c = twins(*a)
        target = mine.target.clone()
        target[target == -100] = ignored
        keywords = {"ignore_index": ignored, "reduction": reduction, "label_smoothing": smoothing}
        keywords |= {"weighted": weighted, "sequence": sequence, "target": of_target(target)}
        ours = one.linear_cross_entropy(lay(a[0]), a[1], mine, linear_bias=a[2], **keywords)
        theirs = other.cross_entropy(lay(F.linear(*c)), twin, **keywords)
        same([ours, scored(one, mine)], [theirs, scored(other, twin)], 1e-6)
        upstream = torch.rand_like(ours)
        ours.backward(upstream), theirs.backward(upstream)
        same([t.grad for t in a], [t.grad for t in c])
        assert one.stats()["scores_total"] == other.stats()["scores_total"] > 0


def test_a_mean_weighs_rows_as_their_samples_are_weighed():
    """Liger-Kernel multiplied every row by the first one's gradient until 2026-07."""
    for loader, batch in made():
        a = parts(B, T)
        c = twins(*a)
        loader.linear_cross_entropy(*a[:2], batch, linear_bias=a[2]).backward()
        losses = F.cross_entropy(F.linear(*c).flatten(0, 1), batch.target.flatten(), reduction="none").view(B, T)
        ((losses * batch.weight[:, None]).sum() / (batch.target != -100).sum()).backward()
        same([t.grad for t in a], [t.grad for t in c], 1e-7)


def test_rows_of_classes_are_scored_too_and_every_measure_is_the_batchs():
    x, y = np.random.default_rng(0).normal(size=(N, H)).astype(np.float32), np.arange(N) % V
    w = torch.randn(V, H)
    for score in ("loss", "gradient_norm", "entropy", "batch_rank"):
        keywords = {"num_workers": 0, "score": score, "smoothing": 0.0, "sampler": "importance", "seed": 3}
        loader, other = (lf.Loader((x, y), B, framework="torch", **keywords) for _ in range(2))
        for batch, twin in zip(loader, other, strict=True):
            ours = loader.linear_cross_entropy(batch.data, w, batch)
            theirs = other.cross_entropy(batch.data @ w.t(), twin)
            same([ours, scored(loader, batch)], [theirs, scored(other, twin)], 1e-5)


@pytest.mark.parametrize("pad", ["packed", Packed(32), Packed(16, long="split")], ids=str)
def test_packed_rows_score_their_samples(pad):
    items = [tokens(i, [1, 5, 12, 3, 30, 2][i % 6]) for i in range(N)]

    def batches():
        return made(items=lf.open(items, varying=True), pad=pad)

    for (one, mine), (other, twin) in zip(batches(), batches(), strict=True):
        assert mine.ids.tolist() == twin.ids.tolist()
        a = parts(*mine.documents.samples.shape)
        c = twins(*a)
        for flat, reduction in ((False, "mean"), (True, "none")):
            hidden, target = (a[0].flatten(0, 1), mine.target.flatten()) if flat else (a[0], None)
            ours = one.linear_cross_entropy(hidden, a[1], mine, linear_bias=a[2], target=target, reduction=reduction)
            theirs = other.cross_entropy(F.linear(*c), twin, reduction=reduction)
            assert ours.shape == (hidden.shape[:-1] if reduction == "none" else ())
            same([ours.reshape(theirs.shape), scored(one, mine)], [theirs, scored(other, twin)], 1e-6)
            ours.sum().backward(), theirs.sum().backward()
        same([t.grad for t in a], [t.grad for t in c], 1e-7)


def test_next_tokens_are_shifted_hidden_states():
    rows = np.random.default_rng(0).integers(0, V, (N, T + 1))
    for loader, batch in made(items=rows, framework="torch"):
        h, w, _ = parts(B, T + 1)
        y = batch.data[:, 1:]
        ours = loader.linear_cross_entropy(h[:, :-1], w, batch, target=y, weighted=False)
        losses = F.cross_entropy(F.linear(h[:, :-1], w).transpose(1, 2), y, reduction="none")
        same([ours], [losses.mean()])
        same([scored(loader, batch)], [losses.mean(1).float().detach()], 1e-6)
        flat = h[:, :-1].flatten(0, 1)
        same([ours], [loader.linear_cross_entropy(flat, w, batch, target=y.flatten(), weighted=False)])


def test_functional_gradients_are_scored_beside_it():
    for loader, batch in made():
        h, w, b = (part.detach() for part in parts(B, T))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(h, torch.rand_like(h))
            loss = loader.linear_cross_entropy(dual, w, batch, linear_bias=b)
            assert torch.autograd.forward_ad.unpack_dual(loss).tangent is not None
        other, twin = next(made())
        other.cross_entropy(F.linear(h, w, b), twin)
        if mine := batch.ids.tolist() == twin.ids.tolist():
            same([scored(loader, batch)], [scored(other, twin)], 1e-6)
        assert mine
        break


def test_a_checkpointed_step_scores_once():
    for loader, batch in made():
        a = parts(B, T)
        run = lambda h: loader.linear_cross_entropy(h, a[1], batch)  # noqa: B023, E731
        checkpoint(run, a[0], use_reentrant=False).backward()
        assert a[0].grad is not None and a[1].grad is not None
    stats = loader.stats()
    # One sample has no position that counts, and no score.
    assert stats["scores_total"] == N - 1


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_step_has_no_break_and_the_same_scores(form):
    torch._dynamo.reset()
    lay, of_target = FORMS[form]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(loader, h, w, batch):
        return loader.linear_cross_entropy(lay(h), w, batch, target=of_target(batch.target))

    for (one, mine), (other, twin) in zip(made(), made(), strict=True):
        a = parts(B, T)[:2]
        c = twins(*a)
        ours, theirs = step(one, *a, mine), other.linear_cross_entropy(*c, twin)
        ours.backward(), theirs.backward()
        same([ours, scored(one, mine), *(t.grad for t in a)], [theirs, scored(other, twin), *(t.grad for t in c)], 1e-6)
    torch._dynamo.reset()


@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_under_autocast_the_scores_are_those_of_its_logits(form):
    torch._dynamo.reset()

    def step(loader, h, w, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loader.linear_cross_entropy(h, w, batch)

    run = torch.compile(step, fullgraph=True, backend="aot_eager") if form == "compiled" else step
    for (one, mine), (other, twin) in zip(made(), made(), strict=True):
        a = [part.detach().float().requires_grad_() for part in parts(B, T)[:2]]
        ours = run(one, *a, mine)
        with torch.autocast("cpu", torch.bfloat16):
            theirs = other.cross_entropy(F.linear(*a), twin)
        assert ours.dtype == theirs.dtype == torch.float32
        same([ours, scored(one, mine)], [theirs, scored(other, twin)], 1e-5)


def test_what_does_not_fit_the_batch_is_refused():
    loader, batch = next(made())
    h, w, b = parts(B, T)

    def refused(*args, **keywords):
        with pytest.raises(lf.SettingsError) as caught:
            loader.linear_cross_entropy(*args, **keywords)
        return str(caught.value)

    assert "for a batch of 6 samples" in refused(h[:4], w, batch, target=batch.target[:4])
    assert "for a batch of 6 samples" in refused(h[:, :3], w, batch)
    assert "for a batch of 6 samples" in refused(h.flatten(0, 1)[:8], w, batch, target=batch.target.flatten()[:8])
    # Tokens first: rows of one sample would go to others.
    assert "for a batch of 6 samples" in refused(h.transpose(0, 1), w, batch, target=batch.target.T)
    assert "holds no class indices" in refused(h, w, batch, target=torch.rand(B, T, V))
    assert "hidden of shape (6, 5, 3)" in refused(h[..., :3], w, batch)
    assert "weighted=1 must be True or False" in refused(h, w, batch, weighted=1)
    assert "sequence" in refused(h, w, batch, sequence="median")
    with pytest.raises(lf.UsageError, match="not a batch of this loader"):
        loader.linear_cross_entropy(h, w, {"labels": batch.target})
    images = np.zeros((8, 8, 8, 3), np.uint8), np.arange(8) % 3
    mixing = lf.Loader(images, 4, transform=lf.ImageTransform(mixup=0.4), num_workers=0, framework="torch")
    mixed = next(iter(mixing))
    with pytest.raises(lf.SettingsError, match=r"mixes images .* use loader.cross_entropy\(logits, batch\)"):
        mixing.linear_cross_entropy(torch.zeros(4, H), torch.zeros(3, H), mixed)
    mixing.linear_cross_entropy(torch.zeros(4, H), torch.zeros(3, H), mixed, target=mixed.target)


RANKS = """
import sys, torch, torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor, Shard
from torch.nn.parallel import DistributedDataParallel
import lossfeed as lf

way = sys.argv[1]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (ranks,))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 5), torch.nn.Linear(5, 7)
    def forward(self, x, loss=None):
        h = self.body(x).tanh()
        return h if loss is None else loss(h, self.head.weight, self.head.bias)

torch.manual_seed(0)
data = torch.randn(32, 4), torch.randint(7, (32,))
models = [Model() for _ in range(2)]
models[1].load_state_dict(models[0].state_dict())
keywords = {"seed": 0, "sampler": "importance", "num_workers": 0, "framework": "torch", "score": "loss"}
loaders = [lf.Loader(tuple(v.numpy() for v in data), 4, **keywords) for _ in range(2)]
if way == "ddp":
    run = [DistributedDataParallel(model) for model in models]
elif way == "fsdp":
    for model in models:
        fully_shard(model, mesh=mesh)
    run = models
else:
    sharded = distribute_tensor(models[0].head.weight.detach(), mesh, [Shard(0)])
    for call in (lambda: lf.linear_cross_entropy(torch.randn(3, 5), sharded, torch.zeros(3).long()),
                 lambda: loaders[0].linear_cross_entropy(torch.randn(4, 5), sharded, next(iter(loaders[0])))):
        try:
            call()
        except lf.SettingsError as error:
            print("refused:", error)
    dist.destroy_process_group()
    sys.exit()
steps = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
for one, two in zip(*loaders, strict=True):
    losses = [
        run[0](one.data, lambda h, w, b: loaders[0].linear_cross_entropy(h, w, one, linear_bias=b)),
        run[1](two.data, lambda h, w, b: loaders[1].cross_entropy(F.linear(h, w, b), two)),
    ]
    torch.testing.assert_close(*losses)
    for loss, step in zip(losses, steps):
        step.zero_grad(), loss.backward(), step.step()
for mine, its in zip(models[0].parameters(), models[1].parameters(), strict=True):
    torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)
whole = [getattr(p, "full_tensor", lambda p=p: p)().detach().flatten() for p in models[0].parameters()]
torch.testing.assert_close(loaders[0].importance(), loaders[1].importance(), equal_nan=True)
print(f"rank {rank}: {loaders[0].stats()['scores_total']:.0f} scores, {torch.cat(whole).sum():.6f}")
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("way", ["ddp", "fsdp", "tensor-parallel"])
def test_two_ranks_train_one_model_and_a_tensor_parallel_head_is_refused_by_name(tmp_path, way, chunks):
    if linear.CHUNK_BYTES < 1 << 20:
        pytest.skip("once is enough")
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), way]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    if way == "tensor-parallel":
        refused = re.findall(r"refused: linear_weight is a DTensor, of a tensor-parallel or sharded", ended.stdout)
        assert len(refused) == 4, ended.stdout
        return
    found = re.findall(r"rank \d: (\d+) scores, (-?\d+\.\d{6})", ended.stdout)
    assert sorted(int(scores) for scores, _ in found) == [16, 16] and found[0][1] == found[1][1], ended.stdout

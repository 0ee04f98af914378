"""Logits and losses of language models in the shapes that their scripts have: (B, T, V), (B · T, V), (B, T) and (B · T,)
give torch's losses, gradients and the scores of (B, V, T)."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf
from lossfeed._batch.packed import Packed

N, B = 24, 6
#: Tolerances of a loss whose steps torch rounds to its dtype, and we once.
BOUND = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-6, torch.float64: 1e-12}


def tokens(i, length, vocabulary):
    drawn = np.random.default_rng(i)
    labels = drawn.integers(0, vocabulary, length)
    labels[drawn.random(length) < 0.25] = -100
    if i == 3:
        labels[:] = -100
    return {"input_ids": drawn.integers(0, vocabulary, length), "labels": labels}


def made(length=5, vocabulary=7, **keywords):
    items = [tokens(i, length, vocabulary) for i in range(N)]
    loader = lf.Loader(items, B, **{"seed": 3, "num_workers": 0, "score": "loss", "smoothing": 0.0, "sampler": "importance"} | keywords)
    for batch in loader:
        if loader._framework == "torch":
            batch._weight = torch.linspace(0.25, 3.0, N)[batch.ids]
        yield loader, batch


#: Logits (B, T, V) and targets (B, T) as scripts write them.
FORMS = {
    "(B, T, V)": (lambda z: z, lambda y: y),
    "(B * T, V) of (B, T)": (lambda z: z.view(-1, z.shape[2]) if z.is_contiguous() else z.flatten(0, 1), lambda y: y),
    "(B * T, V) of (B * T,)": (lambda z: z.flatten(0, 1), lambda y: y.reshape(-1)),
    "(B, V, T)": (lambda z: z.transpose(1, 2), lambda y: y),
}
#: As what: laid out in memory, of a larger tensor, or with its axes turned.
LAYOUTS = {
    "contiguous": lambda z: z,
    "part": lambda z: torch.stack([z, z], 3)[..., 0],
    "turned": lambda z: z.transpose(1, 2).contiguous().transpose(1, 2),
}


def scored(loader, batch):
    return loader.importance()[batch.ids]


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (7, 5), (1, 9), (6, 4), (24, 3)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_losses_and_gradients_are_torchs_of_the_flat_call(form, shape, dtype):
    lay, of_target = FORMS[form]
    length, vocabulary = shape
    settings = list(itertools.product(["mean", "sum", "none"], [-100, 1], [0.0, 0.2], [False, True], [False, True]))
    generator = torch.Generator().manual_seed(1)
    batches = itertools.islice(itertools.chain.from_iterable(made(length, vocabulary) for _ in itertools.count()), len(settings))
    for (loader, batch), (reduction, ignored, smoothing, classes, weighted), layout in zip(
        batches, settings, itertools.cycle(LAYOUTS.values())
    ):
        target = batch.target.clone()
        target[target == -100] = ignored
        weight = torch.rand(vocabulary, generator=generator).to(dtype) + 0.5 if classes else None
        values = (torch.randn(B, length, vocabulary, generator=generator) * 3).to(dtype)
        a, b = values.clone().requires_grad_(), values.clone().requires_grad_()
        keywords = {"ignore_index": ignored, "label_smoothing": smoothing, "weight": weight}
        ours = loader.cross_entropy(
            lay(layout(a)), batch, target=of_target(target), reduction=reduction, weighted=weighted, **keywords
        )
        flat = F.cross_entropy(b.flatten(0, 1).double(), target.flatten(), reduction="none", **{**keywords, "weight": None if weight is None else weight.double()})
        # A sample's weight multiplies its tokens.
        flat = flat * batch.weight.double().repeat_interleave(length) if weighted else flat
        share = (target != ignored).double() if weight is None else torch.where(target == ignored, 0.0, weight.double()[target.clamp(min=0)])
        theirs = flat.reshape(ours.shape) if reduction == "none" else flat.sum() / (share.sum() if reduction == "mean" else 1)
        assert ours.dtype == dtype
        if reduction == "none":
            assert ours.shape == ((B * length,) if lay(values).dim() == 2 else (B, length))
        bound = BOUND[dtype]
        torch.testing.assert_close(ours.double(), theirs, rtol=bound, atol=100 * bound)
        upstream = torch.linspace(0.5, 1.5, ours.numel()).reshape(ours.shape)
        (ours.double() * upstream).sum().backward(), (theirs * upstream).sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=bound, atol=10 * bound)


@pytest.mark.parametrize("sequence", ["mean", "max", "sum"])
@pytest.mark.parametrize("form", [form for form in FORMS if form != "(B, V, T)"])
def test_scores_are_those_of_logits_with_their_classes_second(form, sequence):
    lay, of_target = FORMS[form]
    ways = {
        "cross_entropy": lambda loader, z, batch: loader.cross_entropy(z, batch, sequence=sequence),
        "given a target": lambda loader, z, batch: loader.cross_entropy(z, batch, target=of_target(batch.target), sequence=sequence),
        "score": lambda loader, z, batch: loader.score(z, batch, sequence=sequence),
        "arrays": lambda loader, z, batch: loader.score(z.numpy(), batch, sequence=sequence),
    }
    for name, score in ways.items():
        for (one, mine), (other, twin) in zip(made(), made(), strict=True):
            z = torch.randn(B, 5, 7)
            score(one, lay(z), mine)
            other.score(z.transpose(1, 2), twin, sequence=sequence)
            assert mine.ids.tolist() == twin.ids.tolist()
            torch.testing.assert_close(scored(one, mine), scored(other, twin), equal_nan=True, msg=name)


def test_arrays_of_a_loader_without_torch_are_scored_alike():
    for _, batch in made(framework="numpy"):
        z = np.random.default_rng(0).normal(size=(B, 5, 7)).astype(np.float32)
        found = []
        for logits in (z, z.reshape(-1, 7), z.swapaxes(1, 2)):
            loader, twin = next(made(framework="numpy"))
            loader.score(logits, twin)
            found.append(loader.importance()[twin.ids])
        np.testing.assert_allclose(found[0], found[2], rtol=1e-6)
        np.testing.assert_allclose(found[1], found[2], rtol=1e-6)
        loader, twin = next(made(framework="numpy"))
        with pytest.raises(lf.SettingsError, match="may be"):
            loader.score(np.zeros((B, 5, 5), np.float32), twin)
        break


@pytest.mark.parametrize("form", ["(B, T)", "(B * T,)"])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_losses_of_tokens_are_scores_by_those_that_count(form, framework):
    for loader, batch in made(framework=framework):
        target = torch.as_tensor(batch.target)
        losses = torch.rand(B, 5, requires_grad=framework == "torch")
        wanted = torch.stack([row[mine != -100].mean() for row, mine in zip(losses, target)]).detach()
        given = losses if form == "(B, T)" else losses.flatten()
        loader.score_losses(given if framework == "torch" else given.numpy(), batch)
        torch.testing.assert_close(torch.as_tensor(loader.importance()[batch.ids]), wanted, equal_nan=True)
        if framework == "torch":
            mean = loader.weighted_mean(given, batch)
            torch.testing.assert_close(mean, (losses.mean(1) * batch.weight).mean())
            mean.backward()
            torch.testing.assert_close(losses.grad, batch.weight[:, None].expand(B, 5) / (5 * B))


def test_weighted_mean_scores_tokens_too():
    for loader, batch in made():
        losses = torch.rand(B, 5)
        loader.weighted_mean(losses.flatten(), batch)
        wanted = torch.stack([row[mine != -100].mean() for row, mine in zip(losses, batch.target)])
        torch.testing.assert_close(scored(loader, batch), wanted, equal_nan=True)


@pytest.mark.parametrize("form", ["(B, T)", "(B * T,)", "(B,)"])
@pytest.mark.parametrize("way", ["arrays", "tensors", "compiled", "weighted_mean"])
def test_entropies_of_tokens_are_scores_without_gradient_norms(form, way):
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(loader, losses, batch, entropies):
        loader.score_losses(losses, batch, entropies=entropies)
        return losses.sum()

    for loader, batch in made(score="entropy", framework="numpy" if way == "arrays" else "torch"):
        target = torch.as_tensor(batch.target)
        losses, entropies = torch.rand(B, 5), torch.rand(B, 5)
        wanted = torch.stack([row[mine != -100].mean() for row, mine in zip(entropies, target)])
        given = {"(B, T)": entropies, "(B * T,)": entropies.flatten(), "(B,)": wanted}[form]
        if way == "arrays":
            loader.score_losses(losses.numpy(), batch, entropies=given.numpy())
        elif way == "compiled":
            compiled(loader, losses, batch, given)
        else:
            score = loader.weighted_mean if way == "weighted_mean" else loader.score_losses
            score(losses, batch, entropies=given)
        torch.testing.assert_close(torch.as_tensor(loader.importance()[batch.ids]), wanted, equal_nan=True)
        short = torch.rand(3)
        if way == "arrays":
            losses, short = losses.numpy(), short.numpy()
        with pytest.raises(lf.SettingsError, match=r"entropies have shape \(3,\): give one number a sample"):
            loader.score_losses(losses, batch, entropies=short)
    torch._dynamo.reset()


@pytest.mark.parametrize("score", ["gradient_norm", "loss"])
def test_entropies_alone_are_no_gradient_norms(score):
    loader, batch = next(made(score=score))
    losses = torch.rand(B)
    if score == "loss":
        loader.score_losses(losses, batch, entropies=torch.rand(B))
        return torch.testing.assert_close(scored(loader, batch), losses)
    with pytest.raises(lf.UsageError, match="no gradient_norm"):
        loader.score_losses(losses, batch, entropies=torch.rand(B))


def test_next_tokens_without_a_target_in_the_samples():
    """As nanoGPT has it: one array of tokens, of which the targets are a part."""
    rows = np.random.default_rng(0).integers(0, 11, (N, 9))
    loader = lf.Loader(rows, B, num_workers=0, score="loss", framework="torch")
    for batch in loader:
        x = batch.data
        z = torch.randn(B, 8, 11)
        a = loader.cross_entropy(z.view(-1, 11), batch, target=x[:, 1:].reshape(-1))
        b = loader.cross_entropy(z, batch, target=x[:, 1:])
        torch.testing.assert_close(a, F.cross_entropy(z.view(-1, 11), x[:, 1:].flatten()))
        torch.testing.assert_close(a, b)
        losses = F.cross_entropy(z.transpose(1, 2), x[:, 1:], reduction="none")
        torch.testing.assert_close(scored(loader, batch), losses.mean(1))


@pytest.mark.parametrize("pad", ["packed", Packed(32), Packed(16, long="split")], ids=str)
def test_packed_rows_too(pad):
    lengths = [1, 5, 12, 3, 30, 2]
    items = [tokens(i, lengths[i % 6], 7) for i in range(N)]

    def batches():
        return lf.Loader(lf.open(items, varying=True), B, pad=pad, num_workers=0, score="loss")

    for one, other in zip(batches(), batches(), strict=True):
        mine, twin = batches(), batches()
        one, other = next(iter(mine)), next(iter(twin))
        z = torch.randn(*one.documents.samples.shape, 7)
        for logits, target in ((z, one.target), (z, None), (z.flatten(0, 1), one.target.flatten()), (z.flatten(0, 1), None)):
            ours = mine.cross_entropy(logits, one, target=target, reduction="none")
            theirs = twin.cross_entropy(z.transpose(1, 2), other, reduction="none")
            torch.testing.assert_close(ours.reshape(theirs.shape), theirs)
            assert ours.shape == logits.shape[:-1]
            torch.testing.assert_close(scored(mine, one), scored(twin, other), equal_nan=True)
        losses = torch.rand(one.documents.samples.shape)
        mine, twin = batches(), batches()
        mine.score_losses(losses.flatten(), one := next(iter(mine)))
        twin.score_losses(losses, other := next(iter(twin)))
        torch.testing.assert_close(scored(mine, one), scored(twin, other), equal_nan=True)
        torch.testing.assert_close(mine.weighted_mean(losses.flatten(), one), twin.weighted_mean(losses, other))


def test_what_two_shapes_fit_and_rows_of_nobody_are_refused_with_the_remedy():
    loader, batch = next(made(length=5, vocabulary=5))
    z = torch.randn(B, 5, 5)
    for call in (loader.cross_entropy, loader.score):
        with pytest.raises(lf.SettingsError, match=r"may be \(B, C, T\) and \(B, T, C\).*logits.transpose\(1, 2\).flatten\(0, 1\)"):
            call(z, batch)
    for logits, dim in ((z.flatten(0, 1), 2), (z.transpose(1, 2).flatten(0, 1), 1)):
        ours = loader.cross_entropy(logits, batch, weighted=False)
        torch.testing.assert_close(ours, F.cross_entropy(z.movedim(dim, 1), batch.target))
    one, single = next(made(length=1, vocabulary=1))
    assert one.cross_entropy(torch.zeros(B, 1, 1), single, target=torch.zeros(B, 1).long()) == 0
    loader, batch = next(made())
    with pytest.raises(lf.SettingsError, match=r"must be \(6, 7\), or \(6, 5\) with logits.transpose\(1, 2\)"):
        loader.cross_entropy(torch.randn(B, 5, 7), batch, target=batch.target[:, 1:])
    with pytest.raises(lf.SettingsError, match=r"must be \(2, 4\), or \(2, 3\) with logits.transpose\(1, 2\)"):
        lf.sample_scores(torch.randn(2, 3, 4), torch.zeros(2, 3).long())
    # Two views of each image, end to end: which rows are whose is not known.
    images = lf.Loader((np.zeros((8, 3, 4, 4), np.float32), np.arange(8) % 3), 4, num_workers=0, framework="torch")
    batch = next(iter(images))
    with pytest.raises(lf.SettingsError, match=r"logits of shape \(8, 3\) .* or 8 tokens with target= of shape \(4, 2\)"):
        images.cross_entropy(torch.zeros(8, 3), batch, target=batch.target.repeat(2))
    for losses in (torch.rand(8), torch.rand(4, 4)):
        with pytest.raises(lf.SettingsError):
            images.score_losses(losses, batch)
    said = images.cross_entropy(torch.zeros(8, 3), batch, target=batch.target.repeat_interleave(2).view(4, 2))
    torch.testing.assert_close(said, torch.tensor(3.0).log())


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_step_takes_them(form):
    torch._dynamo.reset()
    lay, of_target = FORMS[form]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(loader, z, batch):
        return loader.cross_entropy(lay(z), batch, target=of_target(batch.target))

    for (one, mine), (other, twin) in zip(made(), made(), strict=True):
        z = torch.randn(B, 5, 7)
        torch.testing.assert_close(step(one, z, mine), other.cross_entropy(z.transpose(1, 2), twin))
        torch.testing.assert_close(scored(one, mine), scored(other, twin), equal_nan=True)

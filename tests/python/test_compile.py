"""Compiled steps: no graph break, the eager values, and scores of exactly the batch's samples."""

import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf

# Tracing, autograd of the trace and functionalisation without a C++ compiler's time; one test below compiles for real.
BACKEND = "aot_eager"


@pytest.fixture
def loader():
    torch._dynamo.reset()
    x = torch.randn(96, 5, generator=torch.Generator().manual_seed(0))
    with lf.Loader((x.numpy(), torch.arange(96).remainder(4).numpy()), 16, seed=3, num_workers=0, score="loss", framework="torch") as made:
        yield made


def test_cross_entropy_alone_compiles_whole_and_keeps_value_and_gradient(native_calls):
    torch._dynamo.reset()
    step = torch.compile(lambda z, y, w: lf.cross_entropy(z, y, weight=w, label_smoothing=0.1), fullgraph=True, backend=BACKEND)
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
        z = torch.randn(8, 6).to(dtype)
        y, w = torch.randint(6, (8,)), torch.rand(6).to(dtype)
        a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
        before = len(native_calls)
        ours, theirs = step(a, y, w), F.cross_entropy(b, y, weight=w, label_smoothing=0.1)
        assert len(native_calls) > before, "the compiled step must run the native forward"
        ours.backward(), theirs.backward()
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)
        torch.testing.assert_close(a.grad, b.grad, rtol=bound, atol=bound)


def test_a_training_step_with_the_hook_has_no_graph_break_and_scores_its_samples(loader):
    model = torch.nn.Linear(5, 4)

    @torch.compile(fullgraph=True, backend=BACKEND)
    def step(batch):
        return loader.cross_entropy(model(batch.data), batch)

    expected = {}
    for batch in loader:
        loss = step(batch)
        loss.backward()
        with torch.no_grad():
            row = F.cross_entropy(model(batch.data), batch.target, reduction="none")
        torch.testing.assert_close(loss.detach(), (row * batch.weight).mean())
        expected.update(zip(batch.ids.tolist(), row.tolist(), strict=True))
    importance = loader.importance()
    assert len(expected) == 96
    torch.testing.assert_close(importance, torch.tensor([expected[i] for i in range(96)]), rtol=1e-5, atol=1e-6)
    assert int(loader._account.graph.credited) == len(loader)


def test_score_and_loss_compile_too(loader):
    model = torch.nn.Linear(5, 4)

    @torch.compile(fullgraph=True, backend=BACKEND)
    def classify(batch):
        logits = model(batch.data)
        loader.score(logits, batch)
        return F.cross_entropy(logits, batch.target)

    @torch.compile(fullgraph=True, backend=BACKEND)
    def regress(batch, y):
        return loader.loss("mse", model(batch.data), batch, target=y)

    for number, batch in enumerate(loader):
        if number % 2:
            classify(batch).backward()
        else:
            regress(batch, torch.zeros(len(batch), 4)).backward()
    assert not torch.isnan(loader.importance()).any()


def test_a_batch_scored_twice_counts_once_and_a_strangers_batch_is_refused(loader):
    @torch.compile(fullgraph=True, backend=BACKEND)
    def score(logits, batch):
        loader.score(logits, batch)
        return logits.sum()

    batch = next(iter(loader))
    score(torch.randn(16, 4), batch)
    first = loader.importance()
    score(torch.randn(16, 4), batch)
    torch.testing.assert_close(loader.importance(), first, equal_nan=True)
    assert loader.stats()["scores_repeated_total"] == 16
    with lf.Loader((torch.randn(32, 5).numpy(), torch.zeros(32, dtype=torch.long).numpy()), 16, framework="torch") as other:
        with pytest.raises(lf.UsageError, match="batch that the loop delivered"):
            score(torch.randn(16, 4), next(iter(other)))


def test_a_target_outside_the_classes_is_named_from_compiled_code():
    torch._dynamo.reset()
    step = torch.compile(lambda z, y: lf.cross_entropy(z, y), fullgraph=True, backend=BACKEND)
    with pytest.raises(lf.SampleError, match="target 9 of row 1"):
        step(torch.randn(3, 4), torch.tensor([0, 9, 1]))


def test_the_default_compiler_keeps_the_scores(loader):
    model = torch.nn.Linear(5, 4)
    step = torch.compile(lambda batch: loader.cross_entropy(model(batch.data), batch), fullgraph=True)
    batch = next(iter(loader))
    step(batch).backward()
    assert (~torch.isnan(loader.importance())).sum() == len(batch)


def test_recomputed_activations_do_not_score_twice(loader):
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Linear(5, 4)
    for batch in loader:
        loss = checkpoint(lambda x: loader.cross_entropy(model(x), batch), batch.data, use_reentrant=False)  # noqa: B023
        loss.backward()
    stats = loader.stats()
    assert stats["scores_total"] == 96
    assert stats["scores_repeated_total"] == 96


def test_validation_does_not_score_unless_asked_and_does_not_mix(loader):
    with lf.Loader((torch.randn(32, 5).numpy(), torch.zeros(32, dtype=torch.long).numpy()), 16, framework="torch", score="loss") as validation:
        model = torch.nn.Linear(5, 4)
        train, held_out = iter(loader), iter(validation)
        for _ in range(2):
            a, b = next(train), next(held_out)
            loader.cross_entropy(model(a.data), a)
            lf.cross_entropy(model(b.data), b.target)
            with pytest.raises(lf.UsageError):
                loader.score(model(b.data), b)
        assert (~torch.isnan(loader.importance())).sum() == 32
        assert torch.isnan(validation.importance()).all()

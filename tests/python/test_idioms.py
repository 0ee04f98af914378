"""The hook inside what training loops are made of: autocast, accumulated gradients, DistributedDataParallel."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import lossfeed as lf


@pytest.fixture
def data():
    return np.random.default_rng(0).normal(size=(48, 6)).astype(np.float32), np.arange(48) % 5


def test_under_autocast_the_loss_is_float32_and_scores_are_those_of_the_half_precision_logits(data):
    with lf.Loader(data, 16, seed=1, score="loss", framework="torch") as loader:
        model = torch.nn.Linear(6, 5)
        for batch in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(batch.data)
                loss = loader.cross_entropy(logits, batch)
            assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
            loss.backward()
            expected = F.cross_entropy(logits.detach().float(), batch.target, reduction="none")
            torch.testing.assert_close(loader.importance()[batch.ids], expected, rtol=1e-5, atol=1e-6)
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_accumulated_gradients_are_those_of_the_whole(data):
    with lf.Loader(data, 16, seed=1, num_workers=0, framework="torch") as loader:
        model, twin = torch.nn.Linear(6, 5), torch.nn.Linear(6, 5)
        twin.load_state_dict(model.state_dict())
        losses = []
        for batch in loader:
            (loader.cross_entropy(model(batch.data), batch) / len(loader)).backward()
            losses.append(F.cross_entropy(twin(batch.data), batch.target, reduction="none"))
        torch.cat(losses).mean().backward()
        torch.testing.assert_close(model.weight.grad, twin.weight.grad)
        assert loader.stats()["scores_total"] == 48


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_a_distributed_model_trains_and_scores_its_ranks_samples(data, tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with lf.Loader(data, 16, seed=1, score="loss", framework="torch") as loader:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 5))
            for batch in loader:
                loader.cross_entropy(model(batch.data), batch).backward()
            assert (~torch.isnan(loader.importance())).all()
            assert torch.isfinite(model.module.weight.grad).all()
    finally:
        torch.distributed.destroy_process_group()

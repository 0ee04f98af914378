"""Whole training steps as frameworks make them (compiled, under autocast, with recomputed activations, on several
ranks), with the loss on the driver double of ``tests/driver``. Run as a program by ``test_on_the_double.py``, with the
double in the driver's place.
"""

import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from driver_double import call, violations
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch_on_the_double import on_the_double

import lossfeed as lf
from lossfeed._batch import batch as _batch
from lossfeed._torch import graph as _graph, plans, rows as _rows

ROWS = np.random.default_rng(0).normal(size=(48, 5)).astype(np.float32), np.arange(48) % 4
RANKS = 2


def made(**keywords):
    loader = lf.Loader(ROWS, 8, shuffle=True, seed=3, num_workers=0, framework="torch", stats=False, score="loss", **keywords)
    loader._account.plans = plans.Plans()  # as a loader of a device has them
    return loader


def model(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.nn.Linear(5, 4, dtype=dtype)


def expected(net, loader, scale=1.0):
    """What torch's own loss says: a loss a row, by id, and the gradient of one epoch's losses."""
    net.zero_grad()
    rows = {}
    for batch in loader:
        row = torch.nn.functional.cross_entropy(net(batch.data), batch.target, reduction="none")
        (row.mean() * scale).backward()
        rows.update(zip(batch.ids.tolist(), row.tolist(), strict=True))
    return rows, net.weight.grad.clone()


def agree(loader, rows):
    importance = loader.importance()
    ids = sorted(rows)
    torch.testing.assert_close(importance[ids], torch.tensor([rows[i] for i in ids]), rtol=1e-5, atol=1e-6)
    assert int((~torch.isnan(importance)).sum()) == len(ids)


def a_step_traced_for_a_cuda_device_is_one_graph():
    """The branches that a compiler sees with CUDA tensors, on its own stand-ins for them; what autocast makes of the
    result's type."""
    loader = made()
    first = next(iter(loader))
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    for wide in (False, True):
        for hook in ("cross_entropy", "score", "lf"):
            torch._dynamo.reset()
            graphs.clear()
            with FakeTensorMode(allow_non_fake_inputs=True):
                logits = torch.empty(8, 4, device="cuda:0", dtype=torch.bfloat16, requires_grad=True)
                target, ids = (torch.empty(8, device="cuda:0", dtype=torch.int64) for _ in range(2))
                batch = _batch.Batch(logits, target, ids, torch.empty(8, device="cuda:0"), first._ticket, loader._account.uses)

                def step(batch, logits, target):
                    if hook == "lf":  # noqa: B023
                        return lf.cross_entropy(logits, target, label_smoothing=0.1)
                    return getattr(loader, hook)(logits, batch)  # noqa: B023

                torch.set_autocast_enabled("cuda", wide)
                loss = torch.compile(step, fullgraph=True, backend=backend)(batch, logits, target)
                torch.set_autocast_enabled("cuda", False)
            calls = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
            assert len(graphs) == 1 and sum("lossfeed.rows_forward" in c for c in calls) == 1, (hook, calls)
            assert sum("lossfeed.credit" in c for c in calls) == (hook != "lf"), (hook, calls)
            if hook != "score":
                assert loss.device.type == "cuda" and loss.dim() == 0 and loss.requires_grad
                assert loss.dtype == (torch.float32 if wide else torch.bfloat16), (hook, wide, loss.dtype)
    loader.close()


def a_compiled_step_scores_and_descends_as_torchs():
    """The operators of a compiled graph, at run time: each finds its tensors on the device."""

    def there(whole):
        def body(*args, **keywords):
            ran.append(whole.__name__)
            with on_the_double():
                return whole(*args, **keywords)

        return body

    ran = []
    bodies = [(_rows, "forward"), (_rows, "backward"), (_graph, "_take_home")]
    before = [getattr(module, name) for module, name in bodies]
    net = model()
    with made() as plain:
        rows, gradient = expected(net, plain)
    for (module, name), whole in zip(bodies, before, strict=True):
        setattr(module, name, there(whole))
    torch._dynamo.reset()
    with made() as loader:
        step = torch.compile(lambda batch: loader.cross_entropy(net(batch.data), batch), fullgraph=True, backend="aot_eager")
        net.zero_grad()
        for batch in loader:
            step(batch).backward()
        loader.state_dict()
        agree(loader, rows)
        torch.testing.assert_close(net.weight.grad, gradient)
        assert int(loader._account.graph.credited) == len(loader)
        assert {name: ran.count(name) for name in ("forward", "backward", "_take_home")} == dict.fromkeys(("forward", "backward", "_take_home"), 6)
    for (module, name), whole in zip(bodies, before, strict=True):
        setattr(module, name, whole)


def a_recomputed_forward_scores_nothing_more():
    """A batch is credited once. What the recomputation finds is mailed again, counted as a repeat, and changes no
    belief."""
    for reentrant in (False, True):
        net = model()
        with made() as plain:
            rows, gradient = expected(net, plain)
        net.zero_grad()
        with made() as loader:
            for batch in loader:

                def forward(x):
                    with on_the_double():
                        runs.append(1)  # noqa: B023
                        return loader.cross_entropy(net(x), batch)  # noqa: B023

                runs = []
                x = batch.data.clone().requires_grad_()
                loss = checkpoint(forward, x, use_reentrant=reentrant)
                with on_the_double():
                    loss.backward()
                assert len(runs) == 2, "the forward was to be recomputed"
            loader.state_dict()
            agree(loader, rows)
            stats = loader.stats()
            assert stats["scores_total"] == stats["scores_repeated_total"] == 48, stats
            torch.testing.assert_close(net.weight.grad, gradient)


def a_rank_of_a_distributed_step(folder, rank):
    """One process of a data-parallel run: its own batches, its own scores, everybody's gradient."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    net = torch.nn.parallel.DistributedDataParallel(model())
    parts = [made(rank=r, world_size=RANKS) for r in range(RANKS)] if rank == 0 else []
    truth = [expected(model(), part) for part in parts]
    with made() as loader:
        assert loader._settings["rank"] == rank and loader._settings["world_size"] == RANKS
        for batch in loader:
            logits = net(batch.data)
            with on_the_double():
                loss = loader.cross_entropy(logits, batch)
                loss.backward()
        loader.state_dict()
        everyones = [None] * RANKS
        torch.distributed.all_gather_object(everyones, (loader.importance(), net.module.weight.grad, loader.stats()["scores_total"]))
        torch.distributed.barrier()
    if rank == 0:
        scored = [set(np.flatnonzero(~np.isnan(np.asarray(importance)))) for importance, _, _ in everyones]
        assert [total for *_, total in everyones] == [24, 24] and scored[0] | scored[1] == set(range(48)), "each rank scores its own samples"
        for (importance, gradient, _), (rows, _) in zip(everyones, truth, strict=True):
            ids = sorted(rows)
            torch.testing.assert_close(importance[ids], torch.tensor([rows[i] for i in ids]), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(gradient, sum(g for _, g in truth) / RANKS)
    torch.distributed.destroy_process_group()


def ranks_score_their_own_samples_and_share_the_gradient():
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, folder, str(rank)]) for rank in range(RANKS)]
        try:
            assert [rank.wait(120) for rank in ranks] == [0] * RANKS
        finally:
            for rank in ranks:
                rank.kill()


def main():
    if len(sys.argv) > 1:
        a_rank_of_a_distributed_step(sys.argv[1], int(sys.argv[2]))
        assert violations() == "", violations()
        return 0
    call("set", b"delay_us", 200)
    for variable in ("RANK", "WORLD_SIZE"):
        os.environ.pop(variable, None)
    for scenario in (
        a_step_traced_for_a_cuda_device_is_one_graph,
        a_compiled_step_scores_and_descends_as_torchs,
        a_recomputed_forward_scores_nothing_more,
        ranks_score_their_own_samples_and_share_the_gradient,
    ):
        scenario()
        print(scenario.__name__, flush=True)
    assert violations() == "", violations()
    print("as frameworks make them")
    return 0


if __name__ == "__main__":
    sys.exit(main())

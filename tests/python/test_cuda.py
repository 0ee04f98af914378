"""The same journeys with batches on a CUDA device; skipped, in one line, where there is none."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf

sys.path.append(str(Path(__file__).resolve().parents[2] / "benches" / "gpu"))
import checking
import correct

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def test_batches_arrive_on_the_device_unchanged_while_the_consumers_stream_is_busy(numbers):
    x, y = numbers
    loader = lf.Loader((x, y), 8, device="cuda", seed=1)
    busy = torch.randn(1024, 1024, device="cuda")
    for _ in range(3):
        for batch in loader:
            busy = (busy @ busy).clamp(-1, 1)
            assert batch.data.is_cuda and batch.weight.is_cuda
            ids = batch.ids.cpu().numpy()
            np.testing.assert_array_equal(batch.data.cpu().numpy(), x[ids])
            np.testing.assert_array_equal(batch.target.cpu().numpy(), y[ids])


def test_a_device_as_far_behind_as_there_are_slots_is_waited_for(numbers):
    x, _ = numbers
    loader = lf.Loader(numbers, 4, device="cuda", num_workers=1, prefetch_factor=1, max_slots=3)
    busy, sums = torch.randn(2048, 2048, device="cuda"), []
    for batch in loader:
        # Copies wait for what is queued here, and this loop waits for nothing: soon every slot is under a copy.
        for _ in range(40):
            busy = (busy @ busy).clamp(-1, 1)
        sums.append(batch.data.sum())
    assert float(torch.stack(sums).sum()) == pytest.approx(float(x.sum()))
    assert loader.stats()["slots_lent"] == 0


def test_the_order_is_the_cpus(numbers):
    on_cpu = lf.Loader(numbers, 8, seed=3)
    on_gpu = lf.Loader(numbers, 8, seed=3, device="cuda")
    assert [b.ids.tolist() for b in on_gpu] == [i.tolist() for i in epoch_ids(on_cpu)]


def test_scores_come_home_without_a_wait_and_equal_the_cpus(numbers):
    def importance(device):
        loader = lf.Loader(numbers, 8, seed=3, device=device)
        for batch in loader:
            logits = torch.sin(batch.data.repeat(1, 2)[:, :4] + batch.target[:, None])
            loader.cross_entropy(logits.requires_grad_(), batch).backward()
        loader.state_dict()  # waits for the scores under way
        return loader.importance()

    torch.testing.assert_close(importance("cuda"), importance("cpu"), rtol=1e-4, atol=1e-5)


def test_resuming_at_every_step_delivers_exactly_the_rest(numbers):
    for stop in range(1, 8):
        loader = lf.Loader(numbers, 8, seed=3, device="cuda")
        it = iter(loader)
        before = [next(it).ids.tolist() for _ in range(stop)]
        resumed = lf.Loader(numbers, 8, seed=3, device="cuda")
        resumed.load_state_dict(loader.state_dict())
        rest = [b.ids.tolist() for b in resumed]
        assert sorted(sum(before + rest, [])) == list(range(64))


def test_any_iterable_is_staged_on_the_device():
    batches = [{"x": torch.full((1000,), float(i)), "y": (np.arange(i + 1), "text")} for i in range(20)]
    for i, batch in enumerate(lf.stage(batches, "cuda")):
        assert batch["x"].is_cuda and batch["y"][0].is_cuda and batch["y"][1] == "text"
        assert batch["x"].sum().item() == 1000.0 * i and len(batch["y"][0]) == i + 1


def test_cross_entropy_and_scores_on_the_device_equal_the_cpus():
    logits, target = torch.randn(50, 9), torch.randint(9, (50,))
    torch.testing.assert_close(lf.cross_entropy(logits.cuda(), target.cuda()).cpu(), lf.cross_entropy(logits, target))
    for a, b in zip(lf.sample_scores(logits.cuda(), target.cuda()), lf.sample_scores(logits, target)):
        assert a.is_cuda
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dtype", correct.DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (7, 10), (600, 33), (3, 50257), (5000, 3), (20000, 2)], ids=str)
def test_loss_and_gradient_equal_torchs_and_nothing_falls_back(dtype, shape):
    from lossfeed._torch import cuda

    device = torch.device("cuda", torch.cuda.current_device())
    assert cuda.kernels(device) is not None
    check, (z, y) = checking.Check(), correct.batch(*shape, dtype, device)
    for keywords in [*correct.VARIANTS, {"weight": True, "reduction": "sum", "overwrite_logits": True}]:
        correct.gradient_case(check, f"{shape} {keywords}", z, y, keywords)
    assert check.failed == 0, check.failures
    assert torch.isnan(lf.cross_entropy(z, torch.full_like(y, checking.IGNORE))), "a mean of nothing"


@pytest.mark.parametrize("sequence", ["mean", "max", "sum"])
def test_sequences_score_a_sample_as_on_the_cpu(sequence):
    x, y = np.zeros((24, 1), np.float32), np.random.default_rng(2).integers(5, size=(24, 7))
    y[:, 5:] = -100

    def importance(device):
        with lf.Loader((x, y), 8, seed=2, score="loss", device=device, framework="torch") as loader:
            for batch in loader:
                logits = torch.sin(torch.arange(len(batch) * 35).view(len(batch), 7, 5) * 0.7 + batch.ids.cpu().view(-1, 1, 1)).to(device)
                loader.cross_entropy(logits.transpose(1, 2), batch, sequence=sequence)
            loader.state_dict()
            return loader.importance()

    torch.testing.assert_close(importance("cuda"), importance("cpu"), rtol=1e-5, atol=1e-6)


def test_losses_over_elements_and_losses_of_your_own_come_home(numbers):
    with lf.Loader(numbers, 8, seed=3, device="cuda", score="loss") as loader:
        for number, batch in enumerate(loader):
            if number % 2:
                loader.score_losses(batch.ids.float(), batch)
            else:
                loader.loss("mse", batch.ids.float().sqrt(), batch, target=torch.zeros(len(batch), device="cuda"))
        loader.state_dict()
        torch.testing.assert_close(loader.importance(), torch.arange(64.0), rtol=1e-5, atol=1e-5)


def test_a_replayed_graph_credits_the_ids_it_finds(numbers):
    with lf.Loader(numbers, 8, seed=3, device="cuda", score="loss", drop_last=True) as loader:
        batches = iter(loader)
        static = next(batches)
        # Outside of a capture first: it loads the kernels and makes the mailbox.
        loader.score_losses(static.ids.float(), static)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loader.score_losses(static.ids.float() + 100.0, static)
        for batch in batches:
            static.copy_(batch)
            graph.replay()
        loader.state_dict()
        importance = loader.importance()
        scored = ~torch.isnan(importance)
        assert scored.all()
        assert ((importance - torch.arange(64.0) == 100.0).sum()) == 56


@pytest.mark.parametrize("layout", [None, "NHWC"])
def test_batches_outlive_their_loader(layout):
    x = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)
    transform = None if layout is None else lf.ImageTransform("uint8", layout=layout)
    for closed in (False, True):
        loader = lf.Loader((x, np.arange(64)), 8, device="cuda", transform=transform, framework="torch")
        batches = iter(loader)
        held = [next(batches) for _ in range(3)]
        if closed:
            loader.close()
        del loader, batches
        for batch in held:
            np.testing.assert_array_equal(batch.data.cpu().numpy(), x[batch.ids.cpu().numpy()])
        # torch's allocator records an event on the stream that they were copied on, which must still be there.
        del held, batch
        torch.cuda.synchronize()
        torch.empty(1 << 20, device="cuda")


def test_a_graph_credits_its_batch_when_nobody_else_holds_it(numbers):
    with lf.Loader(numbers, 8, seed=3, device="cuda", score="loss") as loader:
        batches = iter(loader)
        first, batch = next(batches), next(batches)
        logits = torch.randn(8, 4, device="cuda")
        loader.score(logits, first)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loader.score(logits, batch)
        ids = batch.ids.tolist()
        expected = torch.nn.functional.cross_entropy(logits, batch.target, reduction="none").cpu()
        del batch
        # Whatever the allocator would hand out next is written over.
        junk = [torch.full((64,), -1, dtype=torch.int64, device="cuda") for _ in range(64)]
        graph.replay()
        loader.state_dict()
        torch.testing.assert_close(loader.importance()[ids], expected, rtol=1e-4, atol=1e-5)
        del junk


def test_staging_goes_on_while_a_graph_is_captured():
    work = torch.randn(512, 512, device="cuda")
    work @ work  # loads what a capture must not
    staged = iter(lf.stage([torch.full((1 << 20,), float(i)) for i in range(24)], "cuda", depth=2))
    seen = []
    for _ in range(12):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(200):
                work @ work
        seen += [next(staged)[0].item() for _ in range(2)]
    assert seen == list(range(24))


def test_a_bad_target_is_told_by_a_later_call(numbers):
    with lf.Loader(numbers, 8, seed=3, device="cuda") as loader:
        batches = iter(loader)
        batch = next(batches)
        target = batch.target.clone()
        target[5] = 99
        loss = loader.cross_entropy(torch.randn(8, 4, device="cuda"), batch, target=target)
        assert torch.isnan(loss)
        loader.state_dict()
        with pytest.raises(lf.SampleError, match="row 5"):
            loader.score(torch.randn(8, 4, device="cuda"), next(batches))


def test_a_compiled_step_on_the_device_has_no_break_and_scores(numbers):
    torch._dynamo.reset()
    with lf.Loader(numbers, 8, seed=3, device="cuda", score="loss") as loader:
        model = torch.nn.Linear(3, 4, device="cuda")
        step = torch.compile(lambda batch: loader.cross_entropy(model(batch.data), batch), fullgraph=True, backend="aot_eager")
        for batch in loader:
            step(batch).backward()
        loader.state_dict()
        assert not torch.isnan(loader.importance()).any()


def whole_step(loader, batch, logits):
    loader.score(logits, batch)
    loader.cross_entropy(logits.requires_grad_(), batch).backward()


def test_the_hook_does_not_wait_for_the_device(numbers):
    with lf.Loader(numbers, 8, seed=3, device="cuda") as loader:
        batches = iter(loader)
        # A whole step first: what is loaded once, torch's own kernels too, may wait for the device.
        whole_step(loader, next(batches), torch.randn(8, 4, device="cuda"))
        batch = next(batches)
        logits = torch.randn(8, 4, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # about a second of cycles
        behind = torch.cuda.Event()
        behind.record()
        whole_step(loader, batch, logits)
        assert not behind.query(), "the hook waited for work that was queued before it"
        torch.cuda.synchronize()


def test_probability_targets_equal_torchs():
    check = checking.Check()
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        for shape in ((7,), (9, 33), (4, 5000), (2, 7, 3)):
            logits = (torch.randn(shape, device="cuda") * 3).to(dtype)
            target = torch.rand(shape, device="cuda").softmax(0 if len(shape) == 1 else 1).to(dtype)
            weight = torch.rand(shape[0] if len(shape) == 1 else shape[1], device="cuda").to(dtype)
            for keywords in ({}, {"label_smoothing": 0.2}, {"weight": weight, "reduction": "none"}, {"reduction": "sum"}):
                a, b = logits.clone().requires_grad_(), logits.double().requires_grad_()
                wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in keywords.items()}
                ours, theirs = lf.cross_entropy(a, target, **keywords), torch.nn.functional.cross_entropy(b, target.double(), **wide)
                ours.sum().backward(), theirs.sum().backward()
                check.value(f"{shape} {dtype} {keywords}", ours, theirs, "value")
                rows = [g.movedim(1, -1).flatten(0, -2) if g.dim() > 1 else g.unsqueeze(0) for g in (a.grad, b.grad)]
                check.gradient(f"{shape} {dtype} {keywords}", *rows, 4 * rows[1].abs().amax().expand_as(rows[1]), "gradient")
    assert check.failed == 0, check.failures


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "uint8"])
def test_images_made_on_the_gpu_are_the_cpus_to_the_bit(layout, dtype):
    x = np.random.default_rng(0).integers(0, 256, (96, 20, 17, 3), dtype=np.uint8)
    moments = {} if dtype == "uint8" else {"mean": (0.4, 0.5, 0.6), "std": 0.25}
    transform = lf.ImageTransform(dtype, layout=layout, crop=(16, 15), padding=2, flip=0.5, **moments)
    loaders = [lf.Loader((x, np.arange(96)), 16, device=d, transform=transform, seed=4, framework="torch") for d in ("cuda", "cpu")]
    for _ in range(2):
        for there, here in zip(*loaders, strict=True):
            assert there.data.is_cuda and there.data.stride() == here.data.stride()
            assert torch.equal(there.data.cpu(), here.data) and torch.equal(there.target.cpu(), here.target)
            assert torch.equal(there.ids.cpu(), here.ids) and torch.equal(there.weight.cpu(), here.weight)


@pytest.mark.parametrize("side", [5, 32, 96])
@pytest.mark.parametrize("path", ["auto", "gathered", "batched", "mapped"])
def test_every_copy_path_brings_the_same_bytes_while_the_cache_turns_over(path, side):
    x = np.random.default_rng(1).integers(0, 256, (600, side, side, 3), dtype=np.uint8)
    transform = lf.ImageTransform("float16", layout="NHWC", flip=0.5)
    for policy, made in (("minio", None), ("lru", None), ("lru", transform)):
        keywords = {"cache": "60%", "policy": policy, "transform": made, "seed": 2, "framework": "torch", "stats": False}
        there = lf.Loader((x, np.arange(600)), 64, device="cuda", copy_path=path, num_workers=3, **keywords)
        here = lf.Loader((x, np.arange(600)), 64, num_workers=0, **keywords)
        assert path in ("auto", there.copy_path) and (len(there.copy_paths()) > 1) == (path == "auto")
        for _ in range(4):
            for a, b in zip(there, here, strict=True):
                assert torch.equal(a.data.cpu(), b.data) and torch.equal(a.ids.cpu(), b.ids)
                assert torch.equal(a.target.cpu(), b.target) and torch.equal(a.weight.cpu(), b.weight)
        assert (there.stats()["in_place_samples_total"] > 0) == (there.copy_path != "gathered")
        there.close(), here.close()


def test_batches_used_on_other_streams_keep_their_bytes():
    x = np.arange(512 * 4096, dtype=np.int32).reshape(512, 4096)
    side, busy = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    sums = []
    with lf.Loader((x, np.arange(512)), 32, device="cuda", max_slots=16, num_workers=2) as loader:
        for _ in range(4):
            for batch in loader:
                data, ids = batch.data, batch.ids
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(4):
                        busy = (busy @ busy).clamp(-1, 1)
                    sums.append((ids.clone(), data.double().sum(1)))
                data.record_stream(side)
                ids.record_stream(side)
                del batch, data, ids
        torch.cuda.synchronize()
    for ids, seen in sums:
        np.testing.assert_array_equal(seen.cpu().numpy(), x[ids.cpu().numpy()].sum(1, dtype=np.float64))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device here")
def test_loaders_on_two_devices_at_once(numbers):
    loaders = [lf.Loader(numbers, 8, device=f"cuda:{d}", seed=3) for d in (0, 1)]
    for a, b in zip(*loaders, strict=True):
        assert (a.data.device.index, b.data.device.index) == (0, 1)
        assert torch.equal(a.data.cpu(), b.data.cpu())


def test_other_frameworks_take_the_batch_where_it_lies(numbers):
    with lf.Loader(numbers, 8, device="cuda") as loader:
        batch = next(iter(loader))
        again = torch.utils.dlpack.from_dlpack(batch.data.__dlpack__())
        assert again.data_ptr() == batch.data.data_ptr()
        cupy = pytest.importorskip("cupy")
        taken = cupy.from_dlpack(batch.data)
        assert taken.data.ptr == batch.data.data_ptr()

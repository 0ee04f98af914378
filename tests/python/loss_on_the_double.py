"""The loss's CUDA path in Python (``lossfeed._torch.cuda`` and those who call it), run on the driver double of
``tests/driver``: real kernels' text, real mailboxes, real autograd. Run as a program by ``test_on_the_double.py``, with
the double in the driver's place.

What a call does wrong with addresses, strides, arguments or tickets shows against the CPU's own path.
"""

import collections
import itertools
import sys
import tempfile

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad
from driver_double import call, violations
from test_walk import documented
from torch_on_the_double import Operators, on_device, on_the_double
from walks import walk

import lossfeed as lf
from lossfeed._torch import cross_entropy, cuda, plans, probabilities as _probabilities

#: How often each function of the CUDA path ran.
launches = collections.Counter()


def counted(module, name):
    """Counts what a function of the CUDA path did: a test that goes another way would prove nothing."""
    whole = getattr(module, name)

    def counting(*args, **kwargs):
        made = whole(*args, **kwargs)
        launches[name] += made is not False
        return made

    setattr(module, name, counting)


for function in ((plans, "_launch_loss"), (plans, "_composite"), (cuda, "forward"), (plans.Plans, "score"), (cuda, "backward"), (cuda, "mail_sequences"), (cuda, "mail_columns"), (cuda, "settle"), (_probabilities, "takes")):
    counted(*function)


def far(logits, offset, dtype):
    """Logits that far from 0, or as far as `dtype` reaches."""
    return (logits.double() + max(-6e4, min(6e4, offset)) if dtype == torch.float16 else logits.double() + offset).to(dtype)


def losses():
    """Losses and gradients of every dtype and setting, near 0 and far from it."""
    found = []
    shapes = (((1, 1), 0.0), ((7, 10), 0.0), ((7, 10), 1e6), ((65, 257), 0.0), ((3, 5000), 0.0), ((3, 5000), -1e6), ((6, 5, 4), 3e38))
    for dtype, (shape, offset) in itertools.product((torch.float16, torch.bfloat16, torch.float32, torch.float64), shapes):
        random = torch.Generator().manual_seed(3)
        logits = far(torch.randn(shape, generator=random) * 3, offset, dtype)
        target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=random)
        target.view(-1)[2::3] = -100
        weight = (torch.rand(shape[1], generator=random) + 0.5).to(dtype)
        for keywords in ({}, {"label_smoothing": 0.1, "reduction": "none"}, {"weight": weight, "reduction": "sum"}, {"weight": weight, "label_smoothing": 0.3}):
            for overwrite in (False, True):
                z = logits.clone().requires_grad_()
                loss = lf.cross_entropy(z * 1.0, target, overwrite_logits=overwrite, **keywords)
                loss.sum().backward()
                found += [loss.detach(), z.grad]
        strided = torch.stack([logits, logits], -1)[..., 0] if len(shape) == 2 else logits
        found += lf.sample_scores(strided, target)[:3] if len(shape) == 2 else [lf.cross_entropy(strided, target)]
    return found


def hooks():
    """The losses that the hook returns, and their gradients, the second ones too, with weights of samples that are not
    1."""
    found = []
    for dtype, reduction, smoothing in itertools.product((torch.bfloat16, torch.float32, torch.float64), ("mean", "sum", "none"), (0.0, 0.1)):
        with made(ROWS) as loader:
            for number, batch in enumerate(loader):
                batch.weight.copy_(torch.linspace(0.5, 2.0, len(batch)))
                target = batch.target.clone()
                target[number % 8] = -100
                z = far(torch.sin(batch.data.repeat(1, 2)[:, :4] * (number + 1)), 100.0 * (number % 2), dtype).requires_grad_()
                keywords = {"target": target, "reduction": reduction, "label_smoothing": smoothing, "weighted": number % 3 != 2}
                # What autocast does to half-precision logits: a loss in single precision.
                torch.set_autocast_enabled("cuda", number % 2 == 1)
                torch.set_autocast_enabled("cpu", number % 2 == 1)
                loss = loader.cross_entropy(z * 1.0, batch, overwrite_logits=number == 3, **keywords)
                torch.set_autocast_enabled("cuda", False)
                torch.set_autocast_enabled("cpu", False)
                if dtype != torch.bfloat16 and number == 4:
                    (slope,) = torch.autograd.grad(loss.sum(), z, create_graph=True)
                    slope.square().sum().backward()
                    found.append(slope.detach())
                else:
                    loss.sum().backward()
                found += [loss.detach(), z.grad]
    return found


def probabilities():
    """Targets that are probabilities: torch's own loss on the CPU."""
    found = []
    shapes = (((7,), 0.0), ((9, 33), 0.0), ((9, 33), 1e6), ((4, 3000), 0.0), ((2, 7, 3), -3e38))
    for dtype, (shape, offset) in itertools.product((torch.bfloat16, torch.float32, torch.float64), shapes):
        random = torch.Generator().manual_seed(5)
        logits = far(torch.randn(shape, generator=random) * 3, offset, dtype)
        target = torch.rand(shape, generator=random).softmax(0 if len(shape) == 1 else 1).to(dtype)
        weight = torch.rand(shape[0] if len(shape) == 1 else shape[1], generator=random).to(dtype)
        for keywords in ({}, {"label_smoothing": 0.2}, {"weight": weight, "reduction": "none"}, {"reduction": "sum"}):
            z = logits.clone().requires_grad_()
            loss = lf.cross_entropy(z, target, **keywords)
            loss.sum().backward()
            found += [loss.detach(), z.grad]
    return found


def made(data, **keywords):
    """A loader whose batches lie on the host, and play on the device: as one of a device it has plans."""
    loader = lf.Loader(data, 8, shuffle=True, seed=3, num_workers=1, framework="torch", stats=False, **keywords)
    loader._account.plans = plans.Plans() if on_device() else None
    return loader


ROWS = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32), np.arange(48) % 4
SEQUENCES = np.zeros((24, 1), np.float32), np.where(np.arange(7) < 5, np.random.default_rng(2).integers(5, size=(24, 7)), -100)


def beliefs():
    """What the engine believes after scores have come home by every way there is."""
    found = []
    for score in ("loss", "gradient_norm", "entropy", "batch_rank"):
        for way in range(3):
            with made(ROWS, score=score) as loader:
                for batch in loader:
                    logits = torch.sin(batch.data.repeat(1, 2)[:, :4] + batch.target[:, None])
                    if way == 0:
                        loader.cross_entropy(logits.requires_grad_(), batch).backward()
                    elif way == 1:
                        loader.score(logits, batch)
                    else:
                        loader.cross_entropy(logits, batch, weight=torch.arange(1.0, 5.0), label_smoothing=0.1)
                loader.state_dict()
                found.append(loader.importance())
    laid = (lambda z: z.transpose(1, 2)), (lambda z: z), (lambda z: z.view(-1, 5))
    for sequence, hook, lay in itertools.product(("mean", "max", "sum"), ("cross_entropy", "score"), laid):
        with made(SEQUENCES, score="loss") as loader:
            for batch in loader:
                logits = torch.sin(torch.arange(len(batch) * 35).view(len(batch), 7, 5) * 0.7 + batch.ids.view(-1, 1, 1))
                getattr(loader, hook)(lay(logits), batch, sequence=sequence)
            loader.state_dict()
            found.append(loader.importance())
    with made(ROWS, score="loss") as loader:
        for number, batch in enumerate(loader):
            if number % 2:
                loader.score_losses(batch.ids.float(), batch)
            else:
                loader.loss("mse", batch.ids.float().sqrt(), batch, target=torch.zeros(len(batch)))
        loader.state_dict()
        found.append(loader.importance())
    return found


def no_launch_takes_a_tangent():
    """Forward mode is for torch's own operators: a launch would lose the tangent without a word."""
    z, target, q = torch.randn(8, 4), torch.arange(8) % 4, torch.rand(8, 4).softmax(1)
    settings = -100, "mean", 0.0, False
    with forward_ad.dual_level():
        for logits, taken in ((z, True), (forward_ad.make_dual(z, z), False)):
            assert plans.FREE.cross_entropy(logits, target, *settings) is None
            assert cross_entropy.takes(logits, target, None, 0.0) == _probabilities.takes(logits, q, None, 0.0) == taken


def native_calls(work):
    """The names of the native methods that `work` calls."""
    called = []

    def watch(frame, event, what):
        if event == "c_call" and type(getattr(what, "__self__", None)).__module__ == "lossfeed._native":
            called.append(what.__name__)

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return called


def a_hook_is_one_native_call():
    """From the second call of a shape on, and no operator of torch but the memory of what is returned."""
    logits, ops = torch.randn(8, 4, requires_grad=True), []
    with made(ROWS) as loader:
        batches = iter(loader)
        for again in (False, True):
            batch, losses = next(batches), []
            target = batch.target.clone()
            ways = {
                "launch": lambda: loader.score(logits, batch),  # noqa: B023
                "forward": lambda: losses.append(loader.cross_entropy(logits, batch)),  # noqa: B023
                "backward": lambda: losses[0].backward(),  # noqa: B023
                "forward ": lambda: lf.cross_entropy(logits, target),  # noqa: B023
            }
            for name, way in ways.items():
                ops.clear()
                with Operators(ops):
                    called = native_calls(way)
                if again:
                    assert called == [name.strip()], (name, called)
                    # A backward runs where the mode that notes is off.
                    wanted = {"launch": [], "backward": ["backward"]}.get(name, ["empty", "empty"])
                    assert ops == wanted, (name, ops)


def the_walk_is_the_documented_one():
    """From the second call of a shape on, a logits tensor makes the stops that pybind/ARCHITECTURE.md names."""
    with made(ROWS) as loader:
        batches = iter(loader)
        for _ in range(2):
            batch, logits = next(batches), torch.randn(8, 4, requires_grad=True)
            stops = walk(lambda: loader.cross_entropy(logits, batch), logits, "forward")  # noqa: B023
    wanted = [stop for stop in documented("On a CUDA device") if not stop[0].endswith(".rs")]
    assert stops == wanted, stops


def losses_alone():
    """What needs the losses alone takes the kernel of losses alone, and everything else the one it had."""
    families = ("loss_f32", "score_f32", "smooth_f32")

    def launched(work):
        before = [call("get", f"lossfeed_{name}".encode()) for name in families]
        made = work()
        call("synchronize", 0)
        return {name for name, n in zip(families, before, strict=True) if call("get", f"lossfeed_{name}".encode()) > n}, made

    z, target, weight = torch.randn(8, 4, requires_grad=True), torch.arange(8) % 4, torch.arange(1.0, 5.0)
    for keywords in ({}, {"reduction": "none"}, {"weight": weight}, {"weight": weight, "reduction": "none"}):
        assert launched(lambda: lf.cross_entropy(z, target, **keywords))[0] == {"loss_f32"}, keywords  # noqa: B023
    assert launched(lambda: lf.cross_entropy(z, target, label_smoothing=0.1))[0] == {"smooth_f32"}
    assert launched(lambda: lf.sample_scores(z, target))[0] == {"score_f32"}
    with tempfile.TemporaryDirectory() as folder:
        journal = {"score": "loss", "journal": f"{folder}/journal"}
        runs = (({"score": "loss"}, "loss_f32"), ({"score": "batch_rank"}, "loss_f32"), ({}, "score_f32"), ({"score": "entropy"}, "score_f32"), (journal, "score_f32"))
        seen = collections.defaultdict(list)
        for settings, wanted in runs:
            with made(ROWS, **settings) as loader:
                for batch, keywords in zip(loader, ({}, {"weight": weight}, {"reduction": "none"}), strict=False):
                    logits = torch.sin(batch.data.repeat(1, 2)[:, :4])
                    kernel, loss = launched(lambda: loader.cross_entropy(logits, batch, **keywords))  # noqa: B023
                    assert kernel == {wanted}, (settings, keywords, kernel)
                    seen[str(settings)].append(loss.sum())
                assert launched(lambda: loader.score(logits, batch))[0] == {wanted}  # noqa: B023
        assert len({str(losses) for losses in seen.values()}) == 1, "the same losses"
    for score, wanted in (("loss", "loss_f32"), ("gradient_norm", "score_f32")):
        with made(SEQUENCES, score=score) as loader:
            batch = next(iter(loader))
            tokens = torch.sin(torch.arange(len(batch) * 35.0).view(len(batch), 5, 7))
            assert launched(lambda: loader.cross_entropy(tokens, batch))[0] == {wanted}  # noqa: B023


def a_bad_target_is_told_later():
    with made(ROWS) as loader:
        batches = iter(loader)
        batch = next(batches)
        target = batch.target.clone()
        target[5] = 99
        assert torch.isnan(loader.cross_entropy(torch.randn(8, 4), batch, target=target))
        loader.state_dict()
        try:
            loader.score(torch.randn(8, 4), next(batches))
        except lf.SampleError as error:
            assert "row 5" in str(error), error
            return True
    return False


def arguments_go_by_name():
    """A kernel refuses names that it does not have, and says which are missing, before anything runs."""
    native = cuda.kernels(torch.device("cuda", 0))
    for launch, missing in (
        (lambda **more: native.forward(0, "float32", 0, 1, 1, 1, 0, 0, **more), "loss"),
        (lambda **more: native.backward(0, "float32", 1, 1, 1, 0, 0, **more), "upstream_stride"),
        (lambda **more: native.probabilities(0, "float32", 0, 1, 1, 1, 0, 0, 1, **more), "loss"),
        (lambda **more: native.backward_probabilities(0, "float32", 1, 1, 1, 0, 0, 1, **more), "mass"),
        (lambda **more: native.sequences(0, False, "mean", 0, 1, 1, 0, 0, **more), "mean"),
        (lambda **more: native.ranks(0, 1, 0, **more), "loss"),
    ):
        for more, said in (({}, missing), ({"rowz": 1}, "rowz")):
            try:
                launch(**more)
            except TypeError as error:
                assert said in str(error), (said, error)
            else:
                raise AssertionError(f"{more} was taken, without {missing}")


def main():
    for scenario, ways in (
        (losses, ("forward", "backward", "_launch_loss")),
        (hooks, ("forward", "_launch_loss", "_composite")),
        (probabilities, ("takes",)),
        (beliefs, ("forward", "score", "mail_sequences", "mail_columns", "settle")),
    ):
        expected = scenario()
        for delay_us in (0, 300):
            call("set", b"delay_us", delay_us)
            launches.clear()
            with on_the_double():
                got = scenario()
            assert all(launches[way] > 0 for way in ways), (scenario.__name__, launches)
            assert len(got) == len(expected)
            for number, (a, e) in enumerate(zip(got, expected, strict=True)):
                bound = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-10}.get(e.dtype, 2e-5)
                torch.testing.assert_close(a, e, rtol=bound, atol=bound, equal_nan=True, msg=lambda m, n=number: f"{scenario.__name__} {n}: {m}")
    with on_the_double():
        assert a_bad_target_is_told_later()
        a_hook_is_one_native_call()
        the_walk_is_the_documented_one()
        no_launch_takes_a_tangent()
        losses_alone()
        arguments_go_by_name()
    assert violations() == "", violations()
    # A planted mistake: launches on a stream that nobody waits for.
    cuda.raw_stream, ours = lambda index: 0, cuda.raw_stream
    with on_the_double():
        call("set", b"delay_us", 20_000)
        logits, target = torch.randn(64, 10), torch.arange(64) % 10
        early = [lf.cross_entropy(logits, target).clone() for _ in range(6)]
        call("synchronize", 0)
    cuda.raw_stream = ours
    truth = torch.nn.functional.cross_entropy(logits, target)
    assert not all(torch.allclose(seen, truth) for seen in early), "work on another stream must not be seen"
    print("as the CPU's path")
    return 0


if __name__ == "__main__":
    sys.exit(main())

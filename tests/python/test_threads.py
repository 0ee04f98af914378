"""The loss on torch's own threads: as many as torch is told to use, the same bits with any number, from any thread."""

import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import lossfeed as lf  # noqa: E402
from lossfeed import _native  # noqa: E402, F401  (the rows ask for torch's threads)
from lossfeed._torch import rows as _rows  # noqa: E402, F401  (the rows ask for torch's threads)


def batch(rows=512, classes=1000):
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(rows, classes, generator=generator, requires_grad=True)
    return z, torch.randint(0, classes, (rows,), generator=generator)


def step(z, y):
    (gradient,) = torch.autograd.grad(lf.cross_entropy(z, y), z)
    scores = lf.sample_scores(z.detach(), y)
    return [gradient, scores.loss, scores.grad_norm, scores.entropy, scores.rank_count]


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings GCC's OpenMP runtime on Linux only")
def test_torch_brings_a_runtime_and_the_loss_takes_it():
    if "OpenMP" not in torch.__config__.parallel_info():
        pytest.skip("this torch was built without OpenMP")
    assert _native.use_torch_threads()
    assert _native.use_torch_threads(), "asking twice is no error"


def test_any_number_of_torch_threads_gives_the_same_bits():
    before = torch.get_num_threads()
    z, y = batch()
    try:
        found = []
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            found.append(step(z, y))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for first, again in zip(found[0], other):
            assert torch.equal(first, again)


def test_several_python_threads_at_once_get_what_one_gets():
    z, y = batch(256, 300)
    expected = step(z, y)
    wrong = []

    def work():
        for _ in range(20):
            mine = z.detach().clone().requires_grad_()
            if not all(torch.equal(a, b) for a, b in zip(step(mine, y), expected)):
                wrong.append(threading.current_thread().name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []

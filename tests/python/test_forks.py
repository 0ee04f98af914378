"""A forked child makes datasets and loaders of its own, whatever the parent's threads were doing."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import lossfeed as lf
from test_store_faults import tar

#: Loaders in the parent that read, decode and keep all the time, and others whose threads wait; then children, one after
#: another. Each says by its exit code what became of it; one that hangs is ended by its alarm.
SCRIPT = """
import os, signal, sys, threading, time, warnings
import numpy as np
import lossfeed as lf
{imports}
warnings.simplefilter("ignore")
folder = sys.argv[1]
shards = folder + "/train-*.tar"
rows = (np.arange(800, dtype=np.float32).repeat(8).reshape(800, 8), np.arange(800))

class Dataset:
    def __len__(self): return 64
    def __getitem__(self, k): return np.full(4, k, np.float32), k

dataset = Dataset()
opened = lf.open(shards)
on_disk = lf.open(shards, disk=folder + "/disk", disk_bytes="64MiB")
far = lf.open(shards, latency=0.001)
asked = lf.open(dataset)

def logits(batch): return np.zeros((len(batch), 4), np.float32)

def again_and_again(data, workers):
    loader = lf.Loader(data, 10, framework="numpy", num_workers=workers, cache="30%", stats=False)
    while True:
        for batch in loader: pass

def rest(data, workers):
    loader = lf.Loader(data, 10, framework="numpy", num_workers=workers, cache="30%", stats=False)
    batches = iter(loader)
    return loader, batches, next(batches)

for data, workers in ((rows, 4), (opened, 4), (on_disk, 2), (far, 4), (asked, 2)):
    threading.Thread(target=again_and_again, args=(data, workers), daemon=True).start()
waiting = [rest(data, 8) for data in (rows, opened, on_disk, far)]
{parent}
time.sleep(0.3)

def delivered(data, **keywords):
    with lf.Loader(data, 10, framework="numpy", num_workers=4, cache="30%", **keywords) as loader:
        return [sum(len(batch) for batch in loader) for _ in range(2)]

def child():
{child}

codes = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            child()
            code = 0
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(code)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
assert codes == [0] * len(codes), codes
print("all of them", flush=True)
os._exit(0)
"""

CHILDREN = {
    "rows": "assert delivered(rows, stats=False) == [800, 800]",
    "shards": "assert delivered(lf.open(shards)) == [80, 80]",
    "the parent's shards": "assert delivered(opened) == [80, 80]",
    "the parent's disk tier": "assert delivered(on_disk) == [80, 80]",
    "a disk tier": "assert delivered(lf.open(shards, disk=folder + '/disk', disk_bytes='64MiB')) == [80, 80]",
    "a store": "assert delivered(lf.open(shards, latency=0.001)) == [80, 80]",
    "a Python dataset": "assert delivered(dataset) == delivered(asked) == [64, 64]",
    "processes": "assert delivered(lf.open(dataset, processes=2)) == [64, 64]",
    "a journal": "assert delivered(opened, journal=f'{folder}/{os.getpid()}', score_file=f'{folder}/{os.getpid()}.s') == [80, 80]",
    "one sample": "assert [int(opened[k][1]) for k in range(80)] == [int(lf.open(shards)[k][1]) for k in range(80)]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("forks")
    for k in range(4):
        (made / f"train-{k}.tar").write_bytes(tar(20 * k, 20))
    return made


def run(folder, child, *, imports="", parent="", times=12):
    script = SCRIPT.format(imports=imports, parent=textwrap.dedent(parent), child=textwrap.indent(textwrap.dedent(child), "    "))
    done = subprocess.run([sys.executable, "-c", script, str(folder), str(times)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and "all of them" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_child_reads(folder, kind):
    run(folder, CHILDREN[kind])


def test_a_child_is_told_that_a_parents_connections_are_not_its_own(folder):
    run(folder, """
        try:
            delivered(far)
            raise AssertionError("it was read")
        except lf.UsageError as error:
            assert "opened before a fork" in str(error) and "open it again in the child" in str(error)
    """)  # fmt: skip


@pytest.mark.parametrize("torch_first", [True, False])
def test_a_child_computes_losses_after_its_parent_did(folder, torch_first):
    """On torch's threads in the parent, which a child does not have; without torch's on a pool's, likewise."""
    work = """
        logits, target = torch.randn(4096, 128), torch.arange(4096) % 128
        loss = lf.cross_entropy(logits, target)
    """
    run(folder, work + "    assert abs(float(loss) - float(parents)) < 1\n", imports="import torch", times=6,
        parent=("x = torch.randn(600, 600) @ torch.randn(600, 600)\n" if torch_first else "") + textwrap.dedent(work) + "parents = loss\n")  # fmt: skip


@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_of_a_child_reads(numbers):
    def once():
        with lf.Loader(numbers, 8, num_workers=2, stats=False) as loader:
            return sum(len(batch) for batch in loader)

    loader = lf.Loader(numbers, 8, num_workers=8, stats=False)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = iter(lf.Loader(numbers, 8, num_workers=8, stats=False))
            next(own)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if once() == 64 else 1)
            code = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) or (0 if once() == 64 else 1)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sum(len(batch) for batch in batches) == 56
    assert np.asarray(numbers[1]).size == 64

"""Which rank a loader reads for: said, or the process group's, or torchrun's; and a world that turns out to be another
one."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch.distributed as dist
from conftest import epoch_ids

import lossfeed as lf


@pytest.fixture(autouse=True)
def no_world(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def world(loader):
    return loader._settings["rank"], loader._settings["world_size"]


def test_torchruns_environment_gives_rank_and_world_size(numbers, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert world(lf.Loader(numbers, 8)) == (0, 1), "LOCAL_RANK alone says nothing"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = lf.Loader(numbers, 8)
    assert world(loader) == (1, 4) and len(loader) == 2
    assert world(lf.Loader(numbers, 8, rank=0, world_size=2)) == (0, 2), "what is said counts first"
    shares = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        shares += [i for ids in epoch_ids(lf.Loader(numbers, 8)) for i in ids.tolist()]
    assert sorted(shares) == list(range(64))


@pytest.mark.parametrize("rank,size", [("1", None), (None, "2"), ("2", "2"), ("-1", "2"), ("one", "2"), ("", ""), ("0", "0")])
def test_an_environment_that_names_no_rank_is_refused_with_what_it_says(numbers, monkeypatch, rank, size):
    for name, text in (("RANK", rank), ("WORLD_SIZE", size)):
        if text is not None:
            monkeypatch.setenv(name, text)
    with pytest.raises(lf.SettingsError, match=r"RANK is .* and WORLD_SIZE is .*pass rank= and world_size="):
        lf.Loader(numbers, 8)
    assert world(lf.Loader(numbers, 8, rank=0, world_size=1)) == (0, 1)


def test_a_world_of_one_needs_no_rank(numbers, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert world(lf.Loader(numbers, 8)) == (0, 1)


TWO = """
import sys, os, torch.distributed as dist, numpy as np, lossfeed as lf
rank, store = int(sys.argv[1]), sys.argv[2]
x, y = np.arange(64, dtype=np.float32), np.arange(64)

def group():
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

def refused(call):
    try:
        call()
    except lf.UsageError as error:
        assert "made as rank 0 of 1 (no process group was there)" in str(error) and f"says rank {rank} of 2" in str(error), error
        assert "train_dataloader()" in str(error) and "rank= and world_size=" in str(error), error
        return
    raise AssertionError("not refused")
"""


def run_two(tmp_path, body):
    """Two processes that run `body` as ranks 0 and 1; what they print."""
    code = TWO + textwrap.dedent(body) + "\ndist.destroy_process_group()\n"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    return said


def test_a_loader_made_before_its_process_group_is_refused_and_one_that_knew_its_rank_is_not(tmp_path):
    said = run_two(
        tmp_path,
        """
        between, within = lf.Loader((x, y), 8), lf.Loader((x, y), 8)
        next(iter(between))                      # alone so far: nothing to refuse
        passing = iter(within)
        next(passing)
        told = lf.Loader((x, y), 8, rank=rank, world_size=2)
        mirrored = lf.Loader((x, y), 8, rank=0, world_size=1)      # ranks that share their data, on purpose
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        torchruns = lf.Loader((x, y), 8)
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
        group()
        refused(lambda: iter(between))
        refused(lambda: next(passing))
        refused(lambda: iter(within))
        for loader in (told, mirrored, torchruns, lf.Loader((x, y), 8)):
            print(sorted(i for batch in loader for i in batch.ids.tolist()))
        """,
    )
    first, second = ([eval(line) for line in lines.splitlines()] for lines in said)
    everything = list(range(64))
    assert first.pop(1) == second.pop(1) == everything, "the mirrored one"
    assert [sorted(a + b) for a, b in zip(first, second, strict=True)] == [everything] * 3


def test_a_group_of_one_and_a_group_that_is_gone_change_nothing(numbers, tmp_path):
    loader = lf.Loader(numbers, 8)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert len(epoch_ids(loader)) == 8
        inside = lf.Loader(numbers, 8)
    finally:
        dist.destroy_process_group()
    assert len(epoch_ids(loader)) == len(epoch_ids(inside)) == 8


def test_the_question_costs_no_import_of_torch_distributed():
    script = "import sys, numpy as np, lossfeed as lf\nlist(lf.Loader((np.zeros(4), np.zeros(4)), 2))\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)



MANY = """
import sys, time, torch.distributed as dist, numpy as np, lossfeed as lf
from datetime import timedelta
rank, store, ranks = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
x, y = np.arange(240, dtype=np.float32), np.arange(240)
server = dist.TCPStore("127.0.0.1", int(sys.argv[4]), ranks, rank == 0, timedelta(seconds=120))
dist.init_process_group("gloo", store=server, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))

def train(loader, epochs=2):
    seen = []
    try:
        for _ in range(epochs):
            for batch in loader:
                seen += batch.ids.tolist()
    except lf.SettingsError as error:
        print("refused", error)
    return seen
"""


def run_many(tmp_path, ranks, body):
    """As many processes; what each prints, once all have ended well."""
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    # The store must outlive the last question.
    code = MANY + textwrap.dedent(body) + "\ndist.barrier()\ntime.sleep(0.5 * (rank == 0))\n"
    arguments = [str(tmp_path / "store"), str(ranks), str(port)]
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), *arguments], stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks, said
    return said


@pytest.mark.parametrize("ranks", [2, 4])
def test_seeds_that_differ_between_ranks_are_refused_on_every_rank(tmp_path, ranks):
    said = run_many(
        tmp_path,
        ranks,
        """
        same = train(lf.Loader((x, y), 10, shuffle=True, seed=5), 1)
        print(same)
        loader = lf.Loader((x, y), 10, shuffle=True, seed=1234 + rank)
        train(loader)
        dist.barrier()
        train(loader)       # whoever had been too early to know
        told = dict(rank=rank, world_size=ranks)
        other = lf.Loader((x, y), 10, sampler="importance", seed=1234 + rank, **told)
        train(other)
        dist.barrier()
        train(other)
        dist.barrier()
        """,
    )
    shares = [eval(one.splitlines()[0]) for one in said]
    assert sorted(sum(shares, [])) == list(range(240))
    for rank, one in enumerate(said):
        words = [line for line in one.splitlines() if line.startswith("refused seed= differs between ranks: rank ")]
        assert len(words) >= 2, (rank, one)
        assert all(" has 123" in line and "rank=0, world_size=1" in line for line in words)


def test_seeds_are_not_compared_where_they_may_differ_and_a_rank_alone_waits_for_nobody(tmp_path):
    said = run_many(
        tmp_path,
        2,
        """
        for keywords in (
            dict(shuffle=True, seed=7),                                # training, and its validation below
            dict(shuffle=False, seed=7 + rank),                        # walks in order
            dict(shuffle=True, seed=7 + rank, rank=0, world_size=1),   # data of its own
            dict(sampler=list(range(rank, 240, 2)), seed=7 + rank),    # an order of its own
            dict(weights=np.ones(240), seed=7 + rank),
        ):
            train(lf.Loader((x, y), 10, **keywords))
        train(lf.Loader((x, y), 12, shuffle=True, seed=8))
        if rank == 0:
            train(lf.Loader((x[:60], y[:60]), 10, shuffle=True, seed=9))
        train(lf.Loader((x, y), 10, shuffle=True, seed=10))
        print("done")
        """,
    )
    assert said == ["done\n"] * 2


class Half:
    """Behind the first, which says what all are made of, many are bad."""

    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 160

    def __getitem__(self, i):
        if 0 < i < self.bad:
            raise ValueError("torn")
        return np.full(3, i, np.float32), i


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("read", ["by the engine", "by torch's workers", "here"])
def test_more_wholly_bad_batches_in_a_row_than_eight_are_stood_in_for(world_size, read):
    """Every rank steps as often as the others, and trains on good samples alone."""
    dataset = Half(120)
    data = lf.open(dataset, thread_safe=True) if read == "by the engine" else dataset
    for rank in range(world_size):
        keywords = {"cache": "1MiB"} if read == "by the engine" else {}
        workers = 0 if read == "here" else 1
        with lf.Loader(
            data, 2, rank=rank, world_size=world_size, num_workers=workers, on_error="skip", stats=False, framework="numpy", **keywords
        ) as loader:
            batches = [batch.ids.tolist() for batch in loader]
            assert len(batches) == len(loader) == 160 // world_size // 2
            assert all(ids and not set(ids) & set(range(1, 120)) for ids in batches), batches

"""Which rank a loader reads for: said, or the process group's, or torchrun's; and a world that turns out to be another
one."""

import subprocess
import sys
import textwrap

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


"""The examples that need nothing but torch: a plain loop, and processes that torchrun starts. The other trainers are in
``tests/integrations``, which has the examples themselves."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import lossfeed as lf
from lossfeed.lightning import Batches

EXAMPLES = Path(__file__).parents[1] / "integrations"
sys.path.insert(0, str(EXAMPLES))

import train_plain  # noqa: E402
from watch import Torchs, delivered  # noqa: E402


def test_a_plain_loop_makes_the_losses_of_torchs_loader(tmp_path, monkeypatch):
    ours = train_plain.train(tmp_path / "none", epochs=2, sampler=None)
    monkeypatch.setattr(lf, "Loader", Torchs)
    theirs = train_plain.train(tmp_path / "none", epochs=2)
    assert len(ours) == 2 * 23 and ours[-1] < 0.5 * ours[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize("stop", [1, 22, 23, 30])
def test_a_plain_loop_goes_on_where_it_stood(tmp_path, stop):
    with delivered(64) as whole:
        losses = train_plain.train(tmp_path / "none")
    with delivered(64) as parts:
        before = train_plain.train(tmp_path / "checkpoint", stop=stop)
        after = train_plain.train(tmp_path / "checkpoint")
    assert [(epoch, number) for epoch, number, _ in whole] == [(e, n) for e in range(4) for n in range(23)]
    assert parts == whole, "the same samples in the same places"
    np.testing.assert_allclose(before + after, losses, rtol=1e-4)


def test_a_state_of_all_ranks_is_loaded_as_that_of_one(numbers):
    def made():
        return lf.Loader(numbers, 8, shuffle=True, seed=1, num_workers=0)

    batches = Batches(made())
    assert len(batches) == 8
    passing = iter(batches)
    for _ in range(3):
        next(passing)
    state, alone = batches.state_dict(), batches.loader.state_dict()
    rest = [batch.ids.tolist() for batch in passing]
    for saved in (state, alone):
        resumed = Batches(made())
        resumed.load_state_dict(saved)
        assert [batch.ids.tolist() for batch in resumed] == rest
    with pytest.raises(lf.SettingsError, match=r"2 states given, of ranks \[0, 0\] of 1"):
        batches.load_state_dict({"ranks": state["ranks"] * 2})


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_torchruns_ranks_share_the_samples_and_train_one_model(tmp_path, way):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(EXAMPLES / "train_torchrun.py"), way, str(tmp_path / "loader")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = r"rank \d: loss (\S+) to (\S+), (\d+) scores, parameters sum to (\S+)"
    found = [tuple(map(float, ranks)) for ranks in re.findall(said, ended.stdout)]
    assert len(found) == 2 and all(last < 0.2 * first for first, last, _, _ in found), ended.stdout
    assert sum(scores for _, _, scores, _ in found) == 3 * 1797, "every delivered sample is scored, by its rank"
    assert found[0][3] == found[1][3], "one model"
    assert "1797 samples, 1797 in the shares" in ended.stdout
    states = [torch.load(tmp_path / f"loader.{rank}", weights_only=True) for rank in range(2)]
    pixels, labels = load_digits(return_X_y=True)
    digits = pixels.astype("float32") / 16, labels
    for rank in range(2):
        other = lf.Loader(digits, 64, sampler="importance", cache="30%", rank=1 - rank, world_size=2, seed=0)
        with pytest.raises(lf.SettingsError, match=f"is of rank {rank} of 2, and this is rank {1 - rank} of 2"):
            other.load_state_dict(states[rank])
    alone = lf.Loader(digits, 64, sampler="importance", cache="30%", rank=0, world_size=1, seed=0)
    alone.load_state_dict({"ranks": states})
    assert alone.epoch == 3 and not alone.importance().isnan().any(), "one rank knows what two have learned"

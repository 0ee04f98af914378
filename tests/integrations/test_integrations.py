"""Every trainer's example, run with the real package: epochs count as the trainer's, a resumed run gets exactly what
was left, scores arrive, and losses are those of torch's own loader where both walk in order."""

import functools
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import accelerate
import numpy as np
import pytest
import ray
import torch
import train_accelerate
import train_datasets
import train_lightning
import train_ray
import train_timm
import train_transformers
from datasets import Dataset
from transformers import BertConfig, Trainer
from watch import Torchs, delivered

import lossfeed as lf
from lossfeed.accelerate import Batches


def places(seen):
    return [(epoch, number) for epoch, number, _ in seen]


@pytest.fixture
def torchs(monkeypatch):
    """A call that puts torch's loader in the place of ours."""
    return lambda: monkeypatch.setattr(lf, "Loader", Torchs)


def on_two_ranks(tmp_path, body):
    """What `body` prints under torchrun with two processes."""
    head = "import numpy as np, torch.distributed as dist\nfrom watch import delivered\n"
    (tmp_path / "ranks.py").write_text(head + textwrap.dedent(body) + "\ndist.destroy_process_group()\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [*torchrun, "ranks.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


# ---- Lightning -----------------------------------------------------------------------------------------------------


def test_lightnings_losses_are_those_of_torchs_loader(tmp_path, torchs, monkeypatch):
    ours, _ = train_lightning.train(tmp_path, train_lightning.Digits(sampler=None), max_epochs=2)
    torchs()
    monkeypatch.setattr(train_lightning, "Batches", lambda loader: loader)
    theirs, _ = train_lightning.train(tmp_path / "torch", max_epochs=2)
    assert len(ours) == 2 * 23 and ours[-1] < 0.5 * ours[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize("sampler", ["importance", "replay", {"name": "echo"}])
def test_lightnings_epochs_are_ours_and_its_checkpoints_hold_where_the_loader_stands(tmp_path, sampler):
    def data():
        return train_lightning.Digits(sampler=sampler)

    with delivered(64) as whole:
        losses, trainer = train_lightning.train(tmp_path, data())
    assert places(whole) == [(epoch, number) for epoch in range(3) for number in range(23)]
    assert trainer.train_dataloader.loader.stats()["scores_total"] == sum(len(ids) for _, _, ids in whole)
    with delivered(64) as rest:
        after, trainer = train_lightning.train(tmp_path / "again", data(), resume=tmp_path / "step=30.ckpt")
    assert rest == whole[30:], "the same samples in the same places"
    np.testing.assert_allclose(after, losses[30:], rtol=1e-4)
    assert trainer.global_step == 69


def test_lightnings_epochs_are_ours_where_loaders_are_made_anew_or_end_early(tmp_path):
    for options in ({"reload_dataloaders_every_n_epochs": 1}, {"limit_train_batches": 5}):
        with delivered(64) as seen:
            train_lightning.train(tmp_path, **options)
        batches = options.get("limit_train_batches", 23)
        assert places(seen) == [(epoch, number) for epoch in range(3) for number in range(batches)], options


class AsItIs(train_lightning.Digits):
    """The loader itself, with nothing around it."""

    def train_dataloader(self):
        loader = super().train_dataloader().loader
        loader.loader = loader  # where the example's module looks for it
        return loader


@pytest.mark.parametrize("options", [{}, {"reload_dataloaders_every_n_epochs": 1}, {"limit_train_batches": 5}], ids=str)
def test_lightning_takes_a_loader_as_it_is(tmp_path, options):
    """It finds a sampler with a `set_epoch`, and the state."""
    with delivered(64) as whole:
        losses, trainer = train_lightning.train(tmp_path, AsItIs(), **options)
    batches = options.get("limit_train_batches", 23)
    assert places(whole) == [(epoch, number) for epoch in range(3) for number in range(batches)]
    assert isinstance(trainer.train_dataloader, lf.Loader)
    if not options:
        with delivered(64) as rest:
            after, _ = train_lightning.train(tmp_path / "again", AsItIs(), resume=tmp_path / "step=30.ckpt")
        assert rest == whole[30:], "the same samples in the same places"
        np.testing.assert_allclose(after, losses[30:], rtol=1e-4)


def test_lightnings_checkpoint_holds_where_every_rank_stands(tmp_path):
    body = """
        import train_lightning
        options = {"strategy": "ddp", "devices": 2, "enable_progress_bar": False}
        with delivered(64) as whole:
            losses, _ = train_lightning.train("saved", **options)
        with delivered(64) as rest:
            after, _ = train_lightning.train("again", resume="saved/step=30.ckpt", **options)
        assert len(whole) == 3 * 12 and rest == whole[30:]
        np.testing.assert_allclose(after, losses[30:], rtol=1e-4)
        ids = set(sum((ids for _, _, ids in whole), []))
        shares = [None] * 2
        dist.all_gather_object(shares, ids)
        assert not shares[0] & shares[1] and len(shares[0] | shares[1]) == 1438
        print("went on", flush=True)
    """
    assert on_two_ranks(tmp_path, body).count("went on") == 2


def test_lightning_spawns_its_ranks_too(tmp_path):
    """The DataModule goes to new processes by pickle; what ranks share is found there."""
    script = tmp_path / "spawned.py"
    script.write_text("""
import train_lightning

if __name__ == "__main__":
    _, trainer = train_lightning.train("saved", strategy="ddp_spawn", devices=2, enable_progress_bar=False)
    print("accurate", bool(trainer.callback_metrics["accuracy"] > 0.8))
""")
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": here, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "accurate True" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "saved" / "step=30.ckpt").exists()


# ---- Accelerate ----------------------------------------------------------------------------------------------------


def test_accelerates_losses_and_steps_are_those_of_a_loader_that_it_prepared(tmp_path, torchs, monkeypatch):
    ours, stepped = train_accelerate.train(tmp_path, epochs=2, sampler=None)
    torchs()
    monkeypatch.setattr(train_accelerate, "Batches", accelerate.Accelerator(cpu=True).prepare_data_loader)
    theirs, their_steps = train_accelerate.train(tmp_path, epochs=2)
    assert stepped == their_steps == [*range(3, 28, 3), 29, *range(32, 57, 3), 58], "a group ends with the epoch"
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize("stop", [12, 29, 41])
def test_accelerates_state_holds_where_the_loader_stands(tmp_path, stop):
    with delivered(64) as whole:
        losses, _ = train_accelerate.train(tmp_path / "none")
    with delivered(64) as parts:
        before, _ = train_accelerate.train(tmp_path / "state", stop=stop)
        after, _ = train_accelerate.train(tmp_path / "none", resume=tmp_path / "state")
    assert places(whole) == [(epoch, number) for epoch in range(3) for number in range(29)]
    assert parts == whole, "the same samples in the same places"
    np.testing.assert_allclose(before + after, losses, rtol=1e-4)


def test_accelerates_state_holds_where_every_rank_stands(tmp_path):
    """And one rank goes on where two left off."""
    body = """
        import train_accelerate
        with delivered(64) as whole:
            losses, _ = train_accelerate.train("none")
        with delivered(64) as parts:
            before, _ = train_accelerate.train("state", stop=21)
            after, _ = train_accelerate.train("none", resume="state")
        assert parts == whole and len(whole) == 3 * 15
        np.testing.assert_allclose(before + after, losses, rtol=1e-4)
        print("went on", flush=True)
    """
    assert on_two_ranks(tmp_path, body).count("went on") == 2
    with delivered(64) as rest:
        train_accelerate.train(tmp_path / "none", resume=tmp_path / "state")
    # Two ranks delivered six batches each of the second epoch's 29.
    assert places(rest) == [(1, number) for number in range(12, 29)] + [(2, number) for number in range(29)]


def test_skip_first_batches_counts_from_the_epochs_start():
    numbers = np.arange(40, dtype=np.float32), np.arange(40)
    accelerate.Accelerator(cpu=True)
    for stood in (0, 3, 5):
        loader = lf.Loader(numbers, 4, shuffle=True, seed=1, num_workers=0)
        whole = [batch.ids.tolist() for batch in loader]
        loader.set_epoch(0)
        passing = iter(loader)
        for _ in range(stood):
            next(passing)
        resumed = lf.Loader(numbers, 4, shuffle=True, seed=1, num_workers=0)
        resumed.load_state_dict(loader.state_dict() if stood else resumed.state_dict())
        batches = Batches(resumed)
        skipped = accelerate.skip_first_batches(batches, 5)
        assert [batch.ids.tolist() for batch in skipped] == whole[5:]
        assert [batch.epoch for batch in batches] == [1] * len(batches)


def test_accelerate_is_told_of_a_plain_loader_where_it_is_used():
    """It prepares torch's loaders alone, and hands ours back."""
    numbers = np.arange(40, dtype=np.float32), np.arange(40)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)

    def plain():
        loader = lf.Loader(numbers, 4, shuffle=True, seed=1)
        assert accelerator.prepare(loader) is loader
        return loader

    loader = plain()
    with pytest.warns(lf.TrainingWarning, match="iterate lossfeed.accelerate.Batches") as said:
        assert len(list(loader)) == len(list(loader)) == 10
    assert len(said) == 1 and said[0].filename == __file__, "once, at the loop"
    for skipped in (accelerate.skip_first_batches(loader, 3), accelerator.skip_first_batches(loader, 3)):
        with pytest.raises(lf.UsageError, match="would read these batches with its own DataLoader, without this loader"):
            next(iter(skipped))
    with pytest.raises(lf.UsageError, match="list is no batch .* that of lossfeed.accelerate.Batches"):
        loader.score_losses(torch.zeros(2), [torch.zeros(2), torch.zeros(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():  # an evaluation
            list(plain())
        list(Batches(plain()))
        scores = lf.Scores(40, 4)
        list(scores.beside(accelerator.prepare(torch.utils.data.DataLoader(range(40), batch_sampler=scores))))


# ---- transformers --------------------------------------------------------------------------------------------------


def joined(rows):
    """Sentences of several lengths, padded to the longest."""
    pad = functools.partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: pad(some) if some[0].ndim else torch.stack(some) for name, some in columns.items()}


class InOrder(Trainer):
    """The Trainer with a loader of its own, in order."""

    def __init__(self, *args, loader, **keywords):
        rows = train_transformers.sentences()
        super().__init__(*args, train_dataset=rows, data_collator=joined, **keywords | {"callbacks": None})

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        # This model's own loss is a batch's mean, however many are accumulated.
        logits = model(**inputs).logits
        return torch.nn.functional.cross_entropy(logits, inputs["labels"], reduction="sum") / num_items_in_batch

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def logged(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_trainers_losses_are_those_of_a_loader_of_its_own(tmp_path, monkeypatch, accumulated):
    # torch's loader draws from the generator that dropout draws from.
    still = functools.partial(BertConfig, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    monkeypatch.setattr(train_transformers, "BertConfig", still)
    options = {"num_train_epochs": 1, "logging_steps": 1, "gradient_accumulation_steps": accumulated}
    ours = train_transformers.train(tmp_path, sampler=None, **options)
    monkeypatch.setattr(train_transformers, "Scored", InOrder)
    theirs = train_transformers.train(tmp_path / "torch", **options)
    assert len(logged(ours)) == 19 // accumulated + (accumulated - 1)
    np.testing.assert_allclose(logged(ours), logged(theirs), rtol=1e-3)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_trainer_resumes_with_exactly_what_was_left(tmp_path, accumulated):
    options = {"logging_steps": 1, "num_train_epochs": 3, "gradient_accumulation_steps": accumulated}
    with delivered(32) as whole:
        trainer = train_transformers.train(tmp_path, **options)
    assert places(whole) == [(epoch, number) for epoch in range(3) for number in range(19)]
    assert trainer.loader.stats()["scores_total"] == 3 * 600
    losses = logged(trainer)
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    with delivered(32) as rest:
        resumed = train_transformers.train(tmp_path / "again", resume=str(tmp_path / "checkpoint-13"), **options)
    left = 13 if accumulated == 1 else 19 + 2 * 3
    assert rest == whole[left:], "the same samples in the same places"
    assert resumed.state.global_step == trainer.state.global_step and resumed.state.epoch == trainer.state.epoch
    np.testing.assert_allclose(logged(resumed)[-len(losses) + 13 :], losses[13:], rtol=1e-3)


# ---- Ray -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster():
    """Ray on this machine, as small as it goes."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, runtime_env={"env_vars": environment})
    yield
    ray.shutdown()


def test_rays_workers_share_the_samples_and_a_checkpoint_holds_where_each_stands(tmp_path, cluster):
    whole = train_ray.train(tmp_path, epochs=2).metrics
    assert len(whole["losses"]) == 2 * 15 and whole["scores"] == len(whole["seen"])
    first = whole["seen"][: 899]
    assert len(set(first)) == 899 and max(whole["seen"]) > 1000, "a share of all samples, each once in the first epoch"
    stopped = train_ray.train(tmp_path, epochs=2, stop=20)
    rest = train_ray.train(tmp_path, epochs=2, resume=stopped.checkpoint).metrics
    assert stopped.metrics["seen"] + rest["seen"] == whole["seen"], "the same samples in the same places"
    np.testing.assert_allclose(stopped.metrics["losses"] + rest["losses"], whole["losses"], rtol=1e-4)


# ---- timm, datasets ------------------------------------------------------------------------------------------------


def test_timms_recipe_trains_and_scores():
    losses, average, loader = train_timm.train()
    assert len(losses) == 12 and np.mean(losses[-3:]) < np.mean(losses[:3])
    assert loader.stats()["scores_total"] == 3 * 256
    assert all(torch.isfinite(p).all() for p in average.module.parameters())


def test_a_streamed_dataset_is_read_as_torch_reads_it_and_goes_on_where_it_stood():
    rows = Dataset.from_dict({"n": list(range(40)), "text": [f"row {i}" for i in range(40)]})

    def made(**keywords):
        stream = rows.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=8)
        with pytest.warns(lf.TrainingWarning, match="IterableDataset is a stream"):
            return lf.Loader(stream, 8, **keywords)

    def plain(batches):
        return [(batch["n"].tolist(), batch["text"]) for batch in batches]

    for workers in (0, 2):
        ours, stream = made(num_workers=workers), rows.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=8)
        for epoch in range(2):
            ours.set_epoch(epoch), stream.set_epoch(epoch)
            assert plain(ours) == plain(torch.utils.data.DataLoader(stream, 8, num_workers=workers))
    straight = rows.to_iterable_dataset()
    with pytest.warns(lf.TrainingWarning):
        loader = lf.Loader(straight, 8)
    passing = iter(loader)
    next(passing)
    state = loader.state_dict()
    with pytest.warns(lf.TrainingWarning):
        resumed = lf.Loader(rows.to_iterable_dataset(), 8)
    resumed.load_state_dict(state)
    assert plain(resumed) == plain(passing)
    splits = rows.train_test_split(0.2, seed=0)
    with pytest.raises(lf.SettingsError, match="DatasetDict has 'train', 'test': choose a split, splits.'train'"):
        lf.Loader(splits, 8)


def test_a_dataset_of_dicts_arrives_row_by_row():
    losses, loader, rows = train_datasets.train()
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert loader.stats()["scores_total"] == 3 * len(rows) and loader.stats()["hits_total"] > 0
    batch = next(iter(loader))
    assert set(batch.keys()) == {"pixels", "label"} and batch.target is batch["label"]
    for i, id in enumerate(batch.ids.tolist()):
        assert torch.equal(batch["pixels"][i], rows[id]["pixels"]) and batch["label"][i] == rows[id]["label"]

"""One warning where scores never come or weights are never read, and none where they are."""

import re
import time
import warnings

import numpy as np
import pytest
import torch
from conftest import epoch_ids

import lossfeed as lf
from lossfeed._batch import usage

SCORES, WEIGHTS = "a whole epoch has brought none", "left the weights unread"


def said(loader, step, epochs=3):
    """What a training loop is told."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for batch in loader:
                step(batch)
    assert all(w.category is lf.TrainingWarning and w.filename == __file__ for w in found)
    return [str(w.message) for w in found]


def losses(batch):
    """Some samples matter more than others, so that weights differ after the first epoch."""
    return 0.1 + (batch.ids % 7).float() ** 2


def logits(batch):
    z = torch.zeros(len(batch), 4)
    z[:, 0] = batch.ids.float() / 8
    return z.requires_grad_()


@pytest.mark.parametrize("sampler", ["cost-aware", "importance", "pads"])
def test_a_loop_that_brings_no_score_is_told_once(numbers, sampler):
    loader = lf.Loader(numbers, 8, sampler=sampler, num_workers=1)
    found = said(loader, lambda b: torch.nn.functional.cross_entropy(logits(b), b.target) * b.weight.mean())
    assert len(found) == 1 and found[0].startswith(f"sampler='{sampler}'") and SCORES in found[0] and "loader.cross_entropy" in found[0]


def test_a_policy_that_goes_by_scores_is_told_too_if_there_is_a_cache(numbers):
    assert SCORES in said(lf.Loader(numbers, 8, policy="importance", cache="50%"), lambda b: None)[0]
    assert said(lf.Loader(numbers, 8, policy="importance"), lambda b: None) == []
    assert said(lf.Loader(numbers, 8, policy="lru", cache="50%"), lambda b: None) == []


def test_weights_that_nobody_reads_are_told_once(numbers):
    loader = lf.Loader(numbers, 8, sampler={"name": "importance", "floor": 0.05}, num_workers=1)
    found = said(loader, lambda b: loader.score_losses(losses(b), b))
    assert len(found) == 1 and WEIGHTS in found[0] and "batch.weight" in found[0]
    loader = lf.Loader(numbers, 8, sampler="importance", num_workers=1)
    found = said(loader, lambda b: loader.cross_entropy(logits(b), b, weighted=False))
    assert len(found) == 1 and WEIGHTS in found[0]


def test_an_epoch_without_a_batch_draws_nobody_more_often(numbers):
    assert said(lf.Loader(numbers, 8, sampler=[1, 2, 3], drop_last=True), lambda b: None) == []


STEPS = {
    "cross_entropy": lambda loader, b: loader.cross_entropy(logits(b), b),
    "loss": lambda loader, b: loader.loss("mse", logits(b)[:, 0], b, target=b.target.float()),
    "score and weight": lambda loader, b: (loader.score(logits(b), b), b.weight.sum()),
    "score_losses and weight": lambda loader, b: (loader.score_losses(losses(b), b), b.weight),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("sampler", ["cost-aware", "importance"])
def test_a_loop_that_uses_both_hears_nothing(numbers, step, sampler):
    loader = lf.Loader(numbers, 8, sampler=sampler, cache="50%", num_workers=1)
    assert said(loader, lambda b: step(loader, b)) == []


def test_uniform_passes_and_the_biased_sampler_hear_nothing_of_weights(numbers):
    assert said(lf.Loader(numbers, 8), lambda b: None) == said(lf.Loader(numbers, 8, sampler="ods"), lambda b: None) == []
    loader = lf.Loader(numbers, 8, sampler="pads", num_workers=1)
    assert said(loader, lambda b: loader.score_losses(losses(b), b)) == []


def test_a_pass_that_ends_early_says_nothing(numbers):
    loader = lf.Loader(numbers, 8, sampler="cost-aware")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))
    with pytest.warns(lf.TrainingWarning):
        epoch_ids(loader)


def test_a_compiled_step_counts(numbers):
    loader = lf.Loader(numbers, 8, sampler="importance", num_workers=1, drop_last=True)

    @torch.compile(backend="eager", fullgraph=True)
    def step(z, batch):
        return loader.cross_entropy(z, batch)

    assert said(loader, lambda b: step(logits(b), b)) == []

    @torch.compile(backend="eager", fullgraph=True)
    def weighing(z, batch):
        return (z.sum(1) * batch.weight).mean()

    other = lf.Loader(numbers, 8, sampler="importance", num_workers=1, drop_last=True)
    assert said(other, lambda b: (weighing(logits(b), b), other.score_losses(losses(b), b))) == []


@pytest.fixture
def images():
    """Sixteen pictures of 4 by 4 pixels, with the classes 0 to 3."""
    pixels = np.arange(16 * 4 * 4 * 3, dtype=np.uint8).reshape(16, 4, 4, 3)
    return pixels, np.arange(16, dtype=np.int64) % 4


def test_auto_goes_by_scores_once_weights_are_read_and_says_where_they_are_not(images):
    """With unread weights it is echo, batch for batch; a loss that takes them turns it into replay."""

    def run(sampler, step):
        random = lf.ImageTransform("float32", padding=1, flip=0.5)
        loader = lf.Loader(images, 4, cache="50%", sampler=sampler, transform=random, num_workers=0, seed=3)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            seen = [(b.ids.tolist(), b._weight.tolist()) for _ in range(24) for b in loader if step(loader, b) or True]
        return loader, seen, [str(w.message) for w in found]

    def cross_entropy(weighted):
        return lambda loader, b: loader.cross_entropy(logits(b), b, weighted=weighted)

    _, echoed, _ = run("echo", cross_entropy(False))
    loader, unread, told = run("auto", cross_entropy(False))
    assert "auto (replay)" in repr(loader) and "fifo" in repr(loader)
    assert unread == echoed and len(told) == 1 and "sampler='auto'" in told[0] and "without scores" in told[0]
    loader, read, told = run("auto", cross_entropy(True))
    assert told == [] and read != echoed and any(w != 1.0 for _, weights in read[len(read) // 2 :] for w in weights)


def test_auto_looks_at_the_transform_and_at_what_it_is_told(images):
    def chosen(sampler, **keywords):
        return lf.Loader(images, 4, **{"cache": "50%", **keywords}, sampler=sampler)._account.engine().describe()[3]

    still, moving = lf.ImageTransform("float32", mean=0.5), lf.ImageTransform("float32", flip=0.5)
    assert chosen("auto") == chosen("auto", transform=still) == "cost-aware"
    assert chosen("auto", transform=moving) == chosen({"name": "auto", "augmented": True}) == "replay"
    assert chosen({"name": "auto", "augmented": False}, transform=moving) == "cost-aware"
    assert chosen("auto", transform=moving, cache=None) == chosen("auto", cache="100%") == "uniform"
    def kappa(sampler, **keywords):
        state = lf.Loader(images, 4, cache="50%", sampler=sampler, **keywords).state_dict()["engine"]
        return float(re.search(rb'"sampler.kappa":"([0-9.]+)"', state)[1])

    # Where nobody says whether the loop augments, fetches are saved with more care.
    assert kappa("auto") == 16.0
    assert kappa("auto", transform=still) == kappa({"name": "auto", "augmented": False}) == kappa("cost-aware") == 100.0
    with pytest.raises(lf.SettingsError, match="chooses the cache policy itself"):
        lf.Loader(images, 4, cache="50%", sampler="auto", policy="lru")
    with pytest.raises(lf.SettingsError, match="agumented"):
        lf.Loader(images, 4, cache="50%", sampler={"name": "auto", "agumented": True})


def test_new_samples_come_in_blocks_where_that_is_asked_for(numbers):
    """The first epoch is all new: runs of eight neighbours, each of them whole."""
    loader = lf.Loader(numbers, 16, cache="25%", sampler={"name": "echo", "block": 8}, num_workers=0)
    first = np.concatenate(epoch_ids(loader))[:16]
    begins = np.flatnonzero(np.diff(first) != 1) + 1
    assert len(begins) <= 2 and (first[begins] % 8 == 0).all(), "a pass begins anywhere in its first block"
    with pytest.raises(lf.SettingsError, match="block is 0"):
        lf.Loader(numbers, 16, cache="25%", sampler={"name": "replay", "block": 0})


def test_a_stall_target_is_checked_shown_and_part_of_the_state(images):
    random = lf.ImageTransform("float32", padding=1, flip=0.5)

    def loader(sampler):
        return lf.Loader(images, 4, cache="50%", sampler=sampler, transform=random, num_workers=0, seed=3)

    with pytest.raises(lf.SettingsError, match="stall is 0"):
        loader({"name": "auto", "stall": 0.0})
    target = {"name": "auto", "stall": 0.5}
    first = loader(target)
    for batch in (b for _ in range(4) for b in first):
        first.cross_entropy(logits(batch), batch)
    assert 0 < first.stats()["fetches_ppm"] <= 1e6
    again = loader(target)
    again.load_state_dict(first.state_dict())
    assert epoch_ids(again)
    with pytest.raises(lf.SettingsError, match=r"sampler\.pace"):
        loader("auto").load_state_dict(first.state_dict())

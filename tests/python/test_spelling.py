"""A keyword or a word that is misspelt, or another call's, is named with the one that was meant."""

import inspect

import numpy as np
import pytest

import lossfeed as lf
from lossfeed import _native

DATA = np.zeros((8, 3), np.float32), np.arange(8) % 2

KEYWORDS = [
    (lambda: lf.Loader(DATA, suffle=True), "lf.Loader has no keyword 'suffle': did you mean 'shuffle'?"),
    (lambda: lf.Loader(DATA, batchsize=2), "lf.Loader has no keyword 'batchsize': did you mean 'batch_size'?"),
    (lambda: lf.Loader(DATA, Num_Workers=2), "lf.Loader has no keyword 'Num_Workers': did you mean 'num_workers'?"),
    (lambda: lf.Loader(DATA, quux=1), "lf.Loader has no keyword 'quux': see help(lf.Loader)"),
    (lambda: lf.Loader(DATA, proceses=2), "lf.Loader has no keyword 'proceses': did you mean 'processes' of lf.open?"),
    (
        lambda: lf.Loader(DATA, target="y"),
        "target= is a keyword of lf.open, not of lf.Loader: write lf.Loader(lf.open(data, target='y'), …)",
    ),
    (
        lambda: lf.Loader(DATA, mixup=0.2),
        "mixup= is a keyword of lf.ImageTransform, not of lf.Loader: write lf.Loader(data, "
        "transform=lf.ImageTransform(mixup=0.2))",
    ),
    (lambda: lf.open(DATA, batch_size=32), "batch_size= is a keyword of lf.Loader, not of lf.open: write lf.Loader(data, batch_size=32)"),
    (lambda: lf.open(DATA, cache=np.ones(3)), "cache= is a keyword of lf.Loader, not of lf.open: write lf.Loader(data, cache=…)"),
    (lambda: lf.open(DATA, varing=True), "lf.open has no keyword 'varing': did you mean 'varying'?"),
    (lambda: lf.Scores(8, cache="1MB"), "cache= is a keyword of lf.Loader, not of lf.Scores: write lf.Loader(data, cache='1MB')"),
    (lambda: lf.Scores(8, smothing=0.5), "lf.Scores has no keyword 'smothing': did you mean 'smoothing'?"),
    (lambda: lf.ImageTransform(padings=4), "lf.ImageTransform has no keyword 'padings': did you mean 'padding'?"),
    (lambda: lf.Packed(lenght=4), "lf.Packed has no keyword 'lenght': did you mean 'length'?"),
    (lambda: lf.stage([1], devise="cpu"), "lf.stage has no keyword 'devise': did you mean 'device'?"),
]


@pytest.mark.parametrize("call, says", KEYWORDS, ids=[says for _, says in KEYWORDS])
def test_a_keyword_that_is_not_taken_is_named_with_the_one_that_was_meant(call, says):
    for kind in (TypeError, ValueError, lf.SettingsError, lf.KeywordError):
        with pytest.raises(kind) as error:
            call()
        assert str(error.value) == says


WORDS = [
    ({"policy": "lruu"}, r"policy='lruu' is unknown \(did you mean 'lru'\?\): use lru, fifo"),
    ({"policy": "LFU"}, r"policy='LFU' is unknown \(did you mean 'lfu'\?\)"),
    ({"policy": "nopfs"}, "policy='nopfs' needs the whole run's order, so only the replay command has it: use lru"),
    ({"score": "los"}, r"score='los' is unknown \(did you mean 'loss'\?\)"),
    ({"score": "xyz"}, "score='xyz' is unknown: use gradient_norm"),
    ({"on_error": "skipp"}, r"did you mean 'skip'\?"),
    ({"cache_form": "decode"}, r"did you mean 'decoded'\?"),
    ({"sampler": "Importance"}, r"did you mean 'importance'\?"),
    ({"framework": "pytorch"}, r"did you mean 'torch'\?"),
]


@pytest.mark.parametrize("given, says", WORDS, ids=str)
def test_a_word_too(given, says):
    with pytest.raises(lf.SettingsError, match=says):
        lf.Loader(DATA, 4, cache="50%", **given)


def test_no_word_is_offered_that_no_loader_takes():
    with pytest.raises(lf.SettingsError) as error:
        lf.Loader(DATA, 4, cache="50%", policy="nopf")
    offered = str(error.value).partition(": use ")[2].split(", ")
    assert offered == [name for name, _, live, _ in _native.cache_policies() if live]
    assert "did you mean" not in str(error.value) or "'nopfs'" not in str(error.value)


def test_signatures_are_shown_and_classes_of_users_take_their_own():
    assert "shuffle" in inspect.signature(lf.Loader).parameters and "varying" in inspect.signature(lf.open).parameters
    assert list(inspect.signature(lf.stage).parameters) == ["iterable", "device", "depth"]

    class Mine(lf.Loader):
        def __init__(self, data, *, batches=4, **keywords):
            super().__init__(data, batches, **keywords)

    assert len(Mine(DATA, batches=2)) == 4
    with pytest.raises(TypeError, match="suffle"):
        Mine(DATA, suffle=True)

"""Options by topic (lf.Cache, lf.Sampling, lf.Reading), against the flat keywords that they stand for."""

import copy
import dataclasses
import inspect
import pickle
import typing

import numpy as np
import pytest

import lossfeed as lf
from lossfeed._loader.options import Options
from lossfeed._loader.topics import Topic

TOPICS = lf.Cache, lf.Sampling, lf.Reading
#: The loader's keywords that no field has: another name of one, and the two that hold others.
ALONE = {"record", "scores", "sampling", "reading"}
#: Fields that only their topic has.
OF_TOPICS = {"share"}


def defaults():
    """Flat keyword of the loader -> its default, by the fields."""
    found = {}
    for field in dataclasses.fields(Options):
        topic = field.default if isinstance(field.default, Topic) else None
        for one in dataclasses.fields(topic) if topic is not None else [field]:
            if one.name in OF_TOPICS:
                continue
            found[topic.LOADERS.get(one.name, one.name) if topic is not None else one.name] = one.default
    return found


def test_every_keyword_of_the_loader_is_a_field_with_the_same_default():
    signature = inspect.signature(lf.Loader).parameters
    assert {name: one.default for name, one in signature.items() if name not in ALONE} == defaults()
    for topic in TOPICS:
        first, *others = inspect.signature(topic).parameters.values()
        assert first.kind is first.POSITIONAL_OR_KEYWORD and {one.kind for one in others} == {first.KEYWORD_ONLY}


@pytest.mark.parametrize("topic", TOPICS)
def test_every_field_is_typed_and_told(topic):
    hints = typing.get_type_hints(topic)
    for field in dataclasses.fields(topic):
        assert field.name in hints and f"{field.name}:" in topic.__doc__ or f"{field.name}, " in topic.__doc__ or f", {field.name}" in topic.__doc__


MADE = [
    (lf.Cache("50%", form="encoded", policy="lru", copy_path="gathered"), "lossfeed.Cache('50%', form='encoded', policy='lru', copy_path='gathered')"),
    (lf.Cache(), "lossfeed.Cache()"),
    (lf.Sampling({"name": "cost-aware", "kappa": 64}, score="loss"), "lossfeed.Sampling({'name': 'cost-aware', 'kappa': 64}, score='loss')"),
    (lf.Reading(2, read_ahead="1MiB", max_slots=20), "lossfeed.Reading(2, read_ahead='1MiB', max_slots=20)"),
]


@pytest.mark.parametrize("made,shown", MADE, ids=[shown for _, shown in MADE])
def test_they_are_equal_by_value_pickled_shown_and_frozen(made, shown):
    assert repr(made) == shown
    again = eval(shown, {"lossfeed": lf})
    assert again == made == pickle.loads(pickle.dumps(made)) == copy.deepcopy(made)
    assert made != dataclasses.replace(made, **{dataclasses.fields(made)[0].name: None}) or made == lf.Cache()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(made)[0].name, None)


def test_options_of_a_sampler_are_copied():
    options = {"name": "cost-aware", "kappa": 64}
    made = lf.Sampling(options)
    options["kappa"] = -1
    assert made.sampler == {"name": "cost-aware", "kappa": 64}


def test_a_loader_made_of_topics_is_the_one_made_of_flat_keywords():
    data = np.zeros((64, 4), np.float32), np.arange(64) % 2
    flat = {
        **{"cache": "50%", "cache_form": "encoded", "policy": "lru", "copy_path": "gathered", "frozen_augmentation": True},
        **{"sampler": {"name": "cost-aware", "kappa": 64}, "score": "loss", "smoothing": 0.25},
        **{"num_workers": 2, "prefetch_factor": 3, "read_ahead": "1MiB", "timeout": 5, "on_error": "skip", "max_slots": 30},
    }
    topics = {
        "cache": lf.Cache("50%", form="encoded", policy="lru", copy_path="gathered", frozen_augmentation=True),
        "sampling": lf.Sampling({"name": "cost-aware", "kappa": 64}, score="loss", smoothing=0.25),
        "reading": lf.Reading(2, prefetch_factor=3, read_ahead="1MiB", timeout=5, on_error="skip", max_slots=30),
    }
    with lf.Loader(data, 8, seed=0, **flat) as one, lf.Loader(data, 8, seed=0, **topics) as other:
        assert one._settings == other._settings
        assert (other.num_workers, other.prefetch_factor, other.timeout) == (2, 3, 5)
        assert {"data", "batch_size", "seed", *flat} == other._asked.given().keys()
        with copy.deepcopy(other) as again:
            assert again._asked.given().keys() == other._asked.given().keys() and again._settings == one._settings


def test_former_names_work_and_warn_where_they_are_written(tmp_path):
    data = np.zeros((64, 4), np.float32), np.arange(64) % 2
    with pytest.warns(FutureWarning, match="^record= is now journal=: .*write journal=$") as told:
        lf.Loader(data, 8, record=tmp_path / "run.csv", num_workers=0).close()
    assert (tmp_path / "run.csv").exists() and [one.filename for one in told] == [__file__]
    with pytest.warns(FutureWarning, match="^score='rank' is now score='batch_rank': ") as told:
        loader = lf.Loader(data, 8, score="rank", num_workers=0)
    assert loader._settings["score"] == "batch_rank" and [one.filename for one in told] == [__file__]
    with pytest.warns(FutureWarning, match="score='batch_rank'") as told:
        assert lf.Sampling(score="rank") == lf.Sampling(score="batch_rank")
    assert [one.filename for one in told] == [__file__]
    with pytest.warns(FutureWarning, match="score='batch_rank'") as told:
        lf.Scores(64, 8, score="rank")
    assert [one.filename for one in told] == [__file__]
    (tmp_path / "a.bin").write_bytes(bytes(range(8)))
    with pytest.warns(FutureWarning, match="^record= is now dtype=: ") as told:
        assert len(lf.open(tmp_path / "a.bin", record="u1")) == len(lf.open(tmp_path / "a.bin", dtype="u1")) == 8
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize("kind", [*TOPICS, lf.Packed, lf.SampleScores])
def test_tools_that_read_types_can_read_these(kind):
    assert kind.__module__ == "lossfeed" and typing.get_type_hints(kind)

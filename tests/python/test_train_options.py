"""`lossfeed train`: what it can be asked for, and what it answers to what it cannot."""

import json

import lossfeed as lf
import pytest
from lossfeed import _native
from lossfeed.train import main
from lossfeed.train.options import DEFAULT_COMPARE, OptionError, Options, Recipe


def test_nothing_given_compares_five_ways_with_one_seed():
    options = Options.from_mapping({})
    assert ",".join(r.label for r in options.compare) == DEFAULT_COMPARE
    assert (options.seeds, options.cache_fraction, options.cache_bytes) == (1, 0.2, None)


def test_none_means_the_default():
    names = ("epochs", "cache", "seeds", "latency", "bandwidth", "compare", "work_dir", "data")
    assert Options.from_mapping(dict.fromkeys(names)) == Options.from_mapping({})


@pytest.mark.parametrize(
    ("text", "sampler", "policy", "sampler_options", "loader_options"),
    [
        ("uniform", "uniform", "minio", {}, {}),
        ("uniform+lru", "uniform", "lru", {}, {}),
        ("shade", "pads", "shade", {}, {}),
        ("shade:repeats=2", "pads", "shade", {"repeats": 2.0}, {}),
        ("pads+minio:interleave=0:miss_quota=0.3", "pads", "minio", {"interleave": False, "miss_quota": 0.3}, {}),
        ("importance:floor=0.5", "importance", "importance", {"floor": 0.5}, {}),
        ("cost-aware:kappa=64", "cost-aware", "importance", {"kappa": 64.0}, {}),
        ("cost-aware+lru:random_scores=1:smoothing=0", "cost-aware", "lru", {"random_scores": True}, {"smoothing": 0.0}),
        ("echo", "echo", "fifo", {}, {}),
        ("replay:fresh=0.125:lag=32", "replay", "fifo", {"fresh": 0.125, "lag": 32}, {}),
        ("iis+icache:beta=2:corrected=0", "iis", "icache", {"beta": 2.0, "corrected": False}, {}),
        ("infobatch:epochs=10:ratio=0.5", "infobatch", "importance", {"epochs": 10, "ratio": 0.5}, {}),
        ("selective:stale=2", "selective", "importance", {"stale": 2}, {}),
        ("curriculum:start=0.1", "curriculum", "importance", {"start": 0.1}, {}),
        ("shade-as-coded:misplaced=1", "shade-as-coded", "shade", {"misplaced": True}, {}),
        ("ods+lru", "ods", "lru", {}, {}),
        ("uniform+lobster", "uniform", "lobster", {}, {}),
    ],
)
def test_a_recipe_reads_as_sampler_policy_and_settings(text, sampler, policy, sampler_options, loader_options):
    recipe = Recipe.parse(text)
    assert (recipe.label, recipe.sampler, recipe.policy) == (text, sampler, policy)
    assert (recipe.sampler_options, recipe.loader_options) == (sampler_options, loader_options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"compare": "unifrom"}, "no sampler is called 'unifrom'"),
        ({"compare": "uniform+lfru"}, "--compare: policy='lfru' is unknown (did you mean 'lru'?)"),
        ({"compare": "uniform+quiver"}, "--compare: policy='quiver' is in the program lossfeed-lab"),
        ({"compare": "uniform:kappa=4"}, "'kappa=4' is not KEY=VALUE"),
        ({"compare": "cost-aware:kappa=many"}, "kappa: 'many' is not a finite number"),
        ({"compare": "cost-aware:kappa=nan"}, "kappa: 'nan' is not a finite number"),
        ({"compare": "iis:short=1"}, "iis:short=1: short=1 ends epochs early, and runs take equal steps: remove it"),
        ({"compare": "cost-aware:random_scores=maybe"}, "random_scores: 'maybe' is not 1 or 0"),
        ({"compare": "shade,shade"}, "shade more than once"),
        ({"compare": ""}, "names no sampler"),
        ({"epochs": 0}, "--epochs: 0 must be a whole number of at least 1"),
        ({"seeds": 1.5}, "--seeds: 1.5 must be a whole number"),
        ({"batch_size": 1}, "--batch-size: 1 must be a whole number of at least 2"),
        ({"lr": -1}, "--lr: -1 must be above 0"),
        ({"lr": float("nan")}, "not a finite number"),
        ({"cache": "0%"}, "outside 0 … 100 %"),
        ({"cache": "120%"}, "outside 0 … 100 %"),
        ({"cache": "-5"}, "negative"),
        ({"cache": "lots"}, "not a number of bytes"),
        ({"latency": "soon"}, "not a duration"),
        ({"latency": 61.0}, "outside 0 … 60 s"),
        ({"bandwidth": "-1"}, "not a number of bytes"),
        ({"resize": "8x8x8"}, "not HEIGHTxWIDTH"),
        ({"compare": "echo:lag=2.5"}, "lag: '2.5' is not a whole number"),
        ({"wrong_labels": "120%"}, "120% is no share"),
        ({"wrong_labels": "-0.1"}, "-0.1 is no share"),
        ({"wrong_labels": "some"}, "'some' is not a number"),
        ({"depth": 0}, "--depth"),
        ({"augment": "flip"}, "'flip' is none of none, crop, crop-flip"),
        ({"epoch": 3}, "unknown option 'epoch'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(given, said, capsys):
    with pytest.raises(OptionError) as refusal:
        Options.from_mapping(given)
    assert said in str(refusal.value)
    assert main(given) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "fraction", "size"),
    [("20%", 0.2, None), ("0.5", 0.5, None), (1, 1.0, None), ("64MiB", None, 64 << 20), ("3kB", None, 3000), (5000, None, 5000)],
)
def test_a_cache_is_a_share_or_a_size(text, fraction, size):
    options = Options.from_mapping({"cache": text})
    assert (options.cache_fraction, options.cache_bytes) == (fraction, size)


def test_times_and_rates_have_units():
    options = Options.from_mapping({"latency": "150us", "bandwidth": "2MB/s"})
    assert options.latency_s == pytest.approx(150e-6)
    assert options.bandwidth_bytes_per_s == 2_000_000
    assert Options.from_mapping({"latency": 0.25, "bandwidth": 0}).latency_s == 0.25
    assert Options.from_mapping({"bandwidth": 0}).bandwidth_bytes_per_s == 0


def test_policies_are_the_engines_own():
    policies = {name: by_score for name, _, by_score in _native.cache_policies()}
    assert {name for name, by_score in policies.items() if by_score} == {"shade", "importance", "icache"}
    assert {Recipe.parse(f"uniform+{name}").policy for name in policies} == set(policies)
    for name, _ in _native.sampler_options():
        assert f'``"{name}"``' in lf.Sampling.__doc__, f"the sampling's help does not name {name}"


def test_every_option_of_every_sampler_can_be_typed():
    for sampler, options in _native.sampler_options():
        name = "shade" if sampler == "pads" else sampler
        for option in set(options) - {"short"}:  # refused: runs take equal steps
            (given,) = Recipe.parse(f"{name}:{option}=1").sampler_options.values()
            # A problem without an option is a value out of range, which the loader refuses.
            problem = _native.sampler_problem(json.dumps({"name": sampler, option: given}))
            assert problem is None or not problem[0], f"{sampler}:{option}={given}"
            assert given == 1 and isinstance(given, (bool, int, float))


def test_a_text_is_what_its_option_takes():
    read = Recipe.parse("cost-aware:kappa=16:random_scores=yes").sampler_options
    assert read == {"kappa": 16, "random_scores": True} and read["random_scores"] is True
    assert Recipe.parse("replay:block=auto").sampler_options == {"block": "auto"}
    assert Recipe.parse("auto:bytes=20MB:epochs=9:block=16").sampler_options == {"bytes": 20_000_000, "epochs": 9, "block": 16}
    for gone in ("iis:history=1024", "selective:history=1024"):
        with pytest.raises(OptionError, match="'history=1024' is not KEY=VALUE with one of the keys beta, "):
            Recipe.parse(gone)

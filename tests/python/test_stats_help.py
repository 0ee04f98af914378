"""Every number of ``loader.stats()`` is explained where users ask: ``loader.stats.help`` and pybind/docs/counters.md."""

import re
from pathlib import Path

import lossfeed as lf
import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / "pybind" / "docs" / "counters.md"


@pytest.fixture(scope="module")
def loader():
    with lf.Loader(np.zeros((8, 2), np.float32), 4, framework="numpy") as loader:
        yield loader


def test_every_number_has_help_in_the_loader_and_on_the_page(loader):
    page = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    names = list(loader.stats())
    assert names and set(page) == set(names)
    for name in names:
        told = loader.stats.help(name)
        assert told.startswith(f"{name} (") and len(told) > len(name) + 25, told
        assert f"\n\n{told}" in f"\n\n{loader.stats.help()}"


def test_values_that_stand_for_words_are_listed(loader):
    assert "\n    1: open" in loader.stats.help("disk_circuit")
    assert "\n    3: fewer threads are enough" in loader.stats.help("workers_reason")
    assert lf.Scores(8, 4).stats.help("epoch").startswith("epoch (epochs)")


def test_an_unknown_name_is_refused_with_the_near_one(loader):
    for kind in (KeyError, ValueError, lf.CounterError):
        with pytest.raises(kind) as refused:
            loader.stats.help("hit_total")
    assert str(refused.value) == "stats() has no 'hit_total': did you mean 'hits_total'?"
    with pytest.raises(lf.CounterError, match="lists all"):
        loader.stats.help("zebra")


def test_the_table_of_symptoms_names_numbers_that_exist(loader):
    table = PAGE.read_text().partition("<!--")[0]
    known = set(loader.stats())
    for name in re.findall(r"`(\w+_(?:total|bytes|ratio|fraction|reason|circuit|epoch|lent|copying|share))`", table):
        assert name in known, name

"""The page that says what becomes of each part of a DataLoader: it says what its data say, of everything that torch has,
and the tests that it names are there."""

import ast
import importlib.util
import inspect
from collections.abc import MutableMapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lossfeed as lf
from lossfeed._loader import keywords

HERE = Path(__file__).parent
FOLDER = HERE.parent / "integrations"


@pytest.fixture(scope="module")
def migration():
    spec = importlib.util.spec_from_file_location("migration", FOLDER / "migration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(migration):
    return migration.rows()


def names(rows):
    """What rows are about; one may be about several, and about a value of a keyword."""
    return [name.split("=")[0] for row in rows for name in row["name"].split(", ") if " " not in name.split("=")[0]]


def test_the_page_is_what_its_data_say(migration):
    assert (FOLDER / "migration.md").read_text() == migration.page(), "run migration.py and commit the page"


def test_every_row_is_complete_and_there_once(migration, rows):
    assert set(rows) == set(migration.SECTIONS)
    for section, found in rows.items():
        assert len({row["name"] for row in found}) == len(found) > 0, section
        for row in found:
            assert set(row) <= {"name", "is", "says", "test"} and row["is"] in migration.OUTCOMES, row
            assert row["test"] and (row.get("says") or row["is"] == "honoured"), row


def test_every_keyword_of_torchs_loader_is_there_in_its_order(rows):
    torchs = list(inspect.signature(DataLoader.__init__).parameters)[1:]
    assert list(dict.fromkeys(names(rows["keyword"]))) == torchs
    outcomes = {row["name"]: row["is"] for row in rows["keyword"]}
    assert all(outcomes[name] == "refused" for name in keywords.REFUSED)
    assert all(outcomes[name] != "refused" for name in keywords.HONOURED)


def test_every_attribute_of_torchs_loader_is_there(rows):
    torchs = {name for name in dir(DataLoader([0])) if not name.startswith("_")}
    assert torchs == set(names(rows["attribute"]))
    ours = lf.Loader([(np.float32(0), 0)])
    for row in rows["attribute"]:
        for name in names([row]):
            assert hasattr(ours, name) == (row["is"] != "refused"), name


def test_every_sampler_of_torchs_is_there(rows):
    classes = {name: getattr(torch.utils.data, name) for name in torch.utils.data.__all__}
    torchs = {name for name, kind in classes.items() if isinstance(kind, type) and issubclass(kind, torch.utils.data.Sampler)}
    assert "RandomSampler" in torchs and torchs == {row["name"] for row in rows["sampler"] if row["name"].endswith("Sampler")}


def test_the_tests_that_are_named_are_there(rows):
    there = {}
    for folder, prefix in ((HERE, ""), (FOLDER, "integrations/")):
        for file in folder.glob("test_*.py"):
            body = ast.parse(file.read_text()).body
            there[prefix + file.name] = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    named = {test for found in rows.values() for row in found for test in row["test"]}
    assert len(named) > 40
    for test in sorted(named):
        file, _, function = test.partition("::")
        assert function.startswith("test_") and function in there.get(file, ()), test


def test_a_batch_of_dicts_is_a_mapping_as_long_as_its_samples_and_its_data_is_a_dict():
    samples = [{"a": torch.tensor([float(i)]), "b": i, "label": i} for i in range(8)]
    batch = next(iter(lf.Loader(samples, 5)))
    assert isinstance(batch, MutableMapping) and len(batch) == 5 and len(batch.keys()) == len(list(batch)) == 3
    assert not isinstance(batch, dict) and isinstance(batch.data, dict)
    assert dict(batch) == batch.data and {**batch} == batch.data
    assert (lambda **given: sorted(given))(**batch) == ["a", "b", "label"]

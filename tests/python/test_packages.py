"""What wheels say of themselves; `make packages` builds, audits and tries them."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import lossfeed as lf

ROOT = Path(__file__).parents[2]
LICENCES = ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE-THIRD-PARTY.txt"]


def manifest(path):
    return tomllib.loads((ROOT / path).read_text())


def test_the_metadata_name_the_pythons_and_the_licences():
    project = manifest("pybind/pyproject.toml")["project"]
    named = [c.removeprefix("Programming Language :: Python :: ") for c in project["classifiers"]]
    assert [c for c in named if c.startswith("3.")] == ["3.11", "3.12", "3.13"]
    oldest = project["requires-python"].removeprefix(">=")
    assert oldest == "3.11"
    assert f"abi3-py{oldest.replace('.', '')}" in manifest("Cargo.toml")["workspace"]["dependencies"]["pyo3"]["features"]
    assert project["license-files"] == ["LICENSE-*"]
    assert sorted(file.name for file in (ROOT / "pybind").glob("LICENSE-*")) == LICENCES
    for name in LICENCES[:2]:
        assert (ROOT / "pybind" / name).read_text() == (ROOT / name).read_text()


def test_the_metadata_say_what_users_look_for():
    project = manifest("pybind/pyproject.toml")["project"]
    assert project["dependencies"] == ["numpy>=1.26"], "what a batch needs"
    assert set(project["optional-dependencies"]) == {"torch", "train", "all"}
    assert project["authors"] and any(c.startswith("Development Status") for c in project["classifiers"])
    page = (ROOT / "pybind" / project["readme"]).read_text()
    assert "pip install" in page and not re.findall(r"\]\((?!https?://)", page), "a link into the repository leads nowhere there"


def test_the_metadata_name_no_address():
    """None of ours is known to be there, and cargo's go into the wheel's when a manifest has them."""
    project = manifest("pybind/pyproject.toml")["project"]
    assert "urls" not in project and "://" not in str(project)
    paths = [ROOT / "Cargo.toml", *(ROOT / member / "Cargo.toml" for member in manifest("Cargo.toml")["workspace"]["members"])]
    for path in paths:
        said = tomllib.loads(path.read_text())
        for table in (said.get("package", {}), said.get("workspace", {}).get("package", {})):
            assert not {"repository", "homepage", "documentation"} & set(table), path


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo says which crates are inside")
def test_the_licences_of_the_crates_are_those_that_the_wheel_brings():
    asked = subprocess.run([ROOT / ".ci" / "licences", "--check"], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr


def test_the_installed_package_brings_them():
    place = Path(lf.__file__).parents[1]
    found = list(importlib.metadata.distributions(name="lossfeed", path=[str(place)]))
    if not found:
        pytest.skip("imported from its sources")
    fields = found[0].metadata
    assert sorted(fields.get_all("License-File")) == LICENCES
    assert not fields.get_all("Project-URL") and not fields.get_all("Home-page")
    for name in LICENCES:
        assert found[0].read_text(f"licenses/{name}")


def test_operators_have_their_schemas_written_out():
    """PyTorch 2.4, the oldest that the metadata name, reads none from annotations that are text."""
    for path in Path(lf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.library.custom_op":
                assert "schema" in {keyword.arg for keyword in node.keywords}, f"{path.name}:{node.lineno}"

"""What type checkers say of the package, from inside and from outside: the trainers' examples, README's, and calls that
must and must not type-check. pyright is there in `make test-integrations`, and so are all the trainers."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "tests" / "integrations"
SETTINGS = EXAMPLES / "pyproject.toml"
#: What an example leaves to its reader.
READERS = "import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters())\n"

pyright = pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None, reason="pyright is there in `make test-integrations`"
)


def readmes(folder):
    """The Python examples of the READMEs, each a file in `folder`."""
    for name in ("README.md", "pybind/README.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
        assert blocks, name
        for number, block in enumerate(blocks):
            file = folder / f"{name.partition('/')[0].lower().removesuffix('.md')}_{number}.py"
            file.write_text(block if "model " in block else READERS + block)
            yield file


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """Every file that is to type-check, beside the settings."""
    folder = tmp_path_factory.mktemp("typed")
    for file in (SETTINGS, EXAMPLES / "typed_calls.py", *EXAMPLES.glob("train_*.py")):
        (folder / file.name).write_text(file.read_text())
    files = [*folder.glob("*.py"), *readmes(folder)]
    assert len(files) >= 10
    return folder, [file.name for file in files]


def said(folder, *command):
    """What a checker says of the package that this process imports."""
    paths = os.pathsep.join(str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)
    # pyright takes the packages of the first python.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PYTHONPATH": paths, "PATH": programs}
    ended = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True)
    return ended.stdout or ended.stderr


def test_mypy_finds_nothing_in_what_uses_it(checked):
    folder, files = checked
    assert said(folder, "mypy", "--no-error-summary", "--config-file", SETTINGS.name, *files) == ""


def test_mypy_finds_nothing_in_the_package(checked):
    folder, _ = checked
    assert said(folder, "mypy", "--no-error-summary", "--config-file", SETTINGS.name, "-p", "lossfeed") == ""


@pyright
def test_pyright_finds_nothing(checked):
    folder, files = checked
    found = json.loads(said(folder, "pyright", "--outputjson", *files))
    assert found["summary"]["filesAnalyzed"] == len(files)
    assert not found["generalDiagnostics"], json.dumps(found["generalDiagnostics"], indent=1)


@pyright
def test_every_public_name_has_a_type(tmp_path):
    command = ["--verifytypes", "lossfeed", "--ignoreexternal", "--outputjson"]
    found = json.loads(said(tmp_path, "pyright", *command))["typeCompleteness"]
    unknown = [symbol for symbol in found["symbols"] if symbol["isExported"] and not symbol["isTypeKnown"]]
    assert found["completenessScore"] == 1 and not unknown, json.dumps(unknown, indent=1)

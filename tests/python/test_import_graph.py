"""Who imports whom in the Python package: no circle, no arrow up between folders, and no import hidden in a function.

An import in a function hides an arrow from the reader, and lets modules import each other in a circle. Two things may
stand there: packages that need not be installed, and the doors below, which keep torch from being loaded before
somebody uses it.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import lossfeed

#: Packages that need not be installed.
OPTIONAL = {"numpy", "PIL", "sklearn", "torch"}
#: (who, whom): what imports torch at its head, and the half of the demonstration job that trains.
DOORS = {("_base.torch_imports", "_torch"), ("train", "train.compare")}
#: Folders; each imports only itself and those before it. What is in no folder may import all of them.
FLOORS = ["_base", "_data", "_transform", "_batch", "_loss", "_torch", "_loader"]
#: Where torch may be imported at a module's head.
WITH_TORCH = {"_torch", "train", "accelerate"}


def modules(folder):
    """Name within the package -> source file; a package goes by its own name, the whole by the empty one."""
    names = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(name, path, known):
    """What a module imports, in order: (module of the package or None, top-level name of another or None, inside a
    function)."""
    inside = set()
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inside |= {id(node) for node in ast.walk(function)}
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
            stem = ".".join(["lossfeed", *base, *([node.module] if node.module else [])])
            targets = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            first, _, rest = target.partition(".")
            if first != "lossfeed":
                yield None, first, id(node) in inside
                continue
            while rest and rest not in known:
                rest = rest.rpartition(".")[0]
            yield rest, None, id(node) in inside


def floor(name):
    """The place of a module's folder among :data:`FLOORS`; -1 for what is in none."""
    folder = name.partition(".")[0]
    return FLOORS.index(folder) if folder in FLOORS else -1


def faults(folder):
    """What is wrong with the package in `folder`, a line each."""
    known = modules(folder)
    graph, found, doors = {name: set() for name in known}, [], set()
    for name, path in known.items():
        head = ast.unparse([node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))])
        if re.search(r"^(import|from) torch\b", head, re.MULTILINE) and name.partition(".")[0] not in WITH_TORCH:
            found.append(f"{path.name}: imports torch at its head")
        for mine, other, inside in imports(name, path, known):
            if mine is not None and mine != name and known[mine].name != "__init__.py":
                graph[name].add(mine)
            elif mine is not None and mine != name and not name.startswith(mine):
                graph[name].add(mine)
            if mine is not None and (name, mine) not in DOORS and 0 <= floor(name) < floor(mine):
                found.append(f"{path.name}: {name.partition('.')[0]} imports {mine}, which is above it")
            if not inside or other in OPTIONAL:
                continue
            if (name, mine) in DOORS:
                doors.add((name, mine))
            else:
                found.append(f"{path.name}: imports {other or mine or 'lossfeed'} inside a function")
    found += [f"{who} -> {whom} is no door any more" for who, whom in DOORS - doors]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        found.append("a circle: " + " <- ".join(circle.args[1]))
    return found


def test_no_module_imports_in_a_circle_or_inside_a_function():
    assert faults(Path(lossfeed.__file__).parent) == []


def test_a_planted_circle_and_planted_imports_are_found(tmp_path):
    def put(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    put("_base/torch_imports.py", "def torch_half():\n    from .. import _torch\n")
    put("_torch/__init__.py", "from . import hook\n")
    put("_torch/hook.py", "import torch\nfrom .._base.a import a\n")
    put("train/__init__.py", "def main():\n    from .compare import compare\n    import numpy\n")
    put("train/compare.py", "import torch\nfrom .._base import a\n")
    put("_base/a.py", "import os\n")
    assert faults(tmp_path) == []
    put("_base/a.py", "def a():\n    from .b import b\n")
    put("_base/b.py", "import typing\nif typing.TYPE_CHECKING:\n    from .torch_imports import torch_half\n")
    hidden, circle = faults(tmp_path)
    assert hidden == "a.py: imports _base.b inside a function"
    assert all(name in circle for name in ("circle", "torch_imports", "_torch", "_base.a", "_base.b")), circle
    put("_base/a.py", "from .._loss import c\nimport torch\n")
    put("_base/b.py", "")
    put("_loss/c.py", "from .._base import b\n")
    assert faults(tmp_path) == ["a.py: imports torch at its head", "a.py: _base imports _loss.c, which is above it"]

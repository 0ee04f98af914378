"""Who imports whom in the Python package: no circle, and no import hidden in a function.

An import in a function hides an arrow from the reader, and lets modules import each other in a circle. Two things may
stand there: packages that need not be installed, and the doors below, which keep torch from being loaded before
somebody uses it.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import lossfeed

#: Packages that need not be installed.
OPTIONAL = {"numpy", "PIL", "sklearn", "torch"}
#: (who, whom): the torch half of the package, and the half of the demonstration job that trains.
DOORS = {("_half", "_torch"), ("train", "train.compare")}


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


def faults(folder):
    """What is wrong with the package in `folder`, a line each."""
    known = modules(folder)
    graph, found, doors = {name: set() for name in known}, [], set()
    for name, path in known.items():
        for mine, other, inside in imports(name, path, known):
            if mine is not None and mine != name and known[mine].name != "__init__.py":
                graph[name].add(mine)
            elif mine is not None and mine != name and not name.startswith(mine):
                graph[name].add(mine)
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


def test_a_planted_circle_and_a_planted_import_are_found(tmp_path):
    (tmp_path / "_half.py").write_text("def half():\n    from . import _torch\n")
    (tmp_path / "_torch.py").write_text("from ._a import a\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").write_text("def main():\n    from .compare import compare\n    import numpy\n")
    (tmp_path / "train" / "compare.py").write_text("from .. import _a\n")
    (tmp_path / "_a.py").write_text("import os\n")
    assert faults(tmp_path) == []
    (tmp_path / "_a.py").write_text("def a():\n    from ._b import b\n")
    (tmp_path / "_b.py").write_text("import typing\nif typing.TYPE_CHECKING:\n    from ._half import half\n")
    hidden, circle = faults(tmp_path)
    assert hidden == "_a.py: imports _b inside a function"
    assert all(name in circle for name in ("circle", "_half", "_torch", "_a", "_b")), circle

"""``_native.pyi`` names what the native module has: no more, no less."""

import ast
from pathlib import Path

import lossfeed
from lossfeed import _native

STUBS = Path(lossfeed.__file__).with_name("_native.pyi")


def public(names):
    """Names without underscores at their ends, and the few of Python's own that a class here defines."""
    return {name for name in names if not name.startswith("_")}


def stubbed():
    """Class -> its members in the stubs; the empty name has what the module itself holds."""
    found = {"": set()}
    for node in ast.parse(STUBS.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            found[node.name] |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
        elif isinstance(node, ast.FunctionDef):
            found[""].add(node.name)
    return {name: public(members) for name, members in found.items() if not name.startswith("_")}


def test_the_stubs_name_what_the_module_has():
    found = stubbed()
    classes = {name for name in public(dir(_native)) if isinstance(getattr(_native, name), type)}
    assert set(found) - {""} == classes
    assert found.pop("") == public(dir(_native)) - classes
    for name, members in found.items():
        assert members == public(vars(getattr(_native, name))), name

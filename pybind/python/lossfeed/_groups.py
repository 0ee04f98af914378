"""Samples of several members of a tar shard: what ``fields=`` of :func:`lossfeed.open` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _native
from ._errors import SettingsError
from ._structure import Leaf, Structure

#: What members hold, by what follows the dot of their names; anything else is bytes.
CODECS = {"json": "json", "txt": "text", "text": "text", "transcript": "text", "npy": "npy"}


def names(fields: Any) -> list[str]:
    """The members that ``fields=`` names, in its order.

    Raises:
        SettingsError: it is no sequence of names, and no dict of them.
    """
    if fields is None:
        return []
    given = list(fields.values()) if isinstance(fields, Mapping) else fields
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(name, str) for name in given):
        raise SettingsError(
            f"fields={fields!r}: give the members of a sample, as ('jpg;png', 'json', 'cls'), or a dict of them, as "
            "{'image': 'jpg;png', 'caption': 'txt'}"
        )
    if isinstance(fields, Mapping) and not all(isinstance(key, str) for key in fields):
        raise SettingsError(f"fields={fields!r}: keys are text")
    found = [name.removeprefix(".") for name in given]
    if not isinstance(fields, Mapping) and "cls" in found[:-1]:
        raise SettingsError(f"fields={fields!r}: the class number comes last, as targets do; or give a dict")
    for name in found:
        _codec(name)
    return found


def structure_of(fields: Any, source: _native.Source) -> Structure | None:
    """What samples of the members `fields` are made of; None for pairs of a picture and a class number."""
    members = names(fields)
    keys = list(fields) if isinstance(fields, Mapping) else [str(at) for at in range(len(members))]
    pictures = [tuple(shape) for _, shape in source.fields]
    leaves = []
    for path, member, (kind, number) in zip(keys, members, _native.member_parts(members), strict=True):
        if kind == "picture":
            leaves.append(Leaf("field", 0, "uint8", pictures[0], "array", path))
        elif kind == "label":
            leaves.append(Leaf("target", 0, "int64", (), "int", path))
        else:
            leaves.append(Leaf("object", number, "uint8", (0,), _codec(member), path))
    label = next((leaf.path for leaf in leaves if leaf.place == "target"), None)
    if not isinstance(fields, Mapping):
        structure = Structure(tuple(leaves))
    else:
        structure = Structure(dict(zip(keys, leaves)), target=label)
    return None if structure.plain else structure


def _codec(member: str) -> str:
    codecs = {CODECS.get(name.rsplit(".", 1)[-1].lower(), "bytes") for name in member.split(";")}
    if len(codecs) > 1:
        raise SettingsError(f"fields: {member!r} would be {' or '.join(sorted(codecs))}: alternatives must be of one kind")
    return codecs.pop()

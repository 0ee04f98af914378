"""Every attack by name; imported when it is asked for."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from .case import Attack

#: Attack -> its module, in the order in which a campaign starts them: the longest first.
MODULES = {
    "fuzz": "fuzz",
    "ptx": "ptx",
    "kills": "kills",
    "faults": "outages",
    "datasets": "hostile_datasets",
    "losses": "losses",
    "processes": "processes",
    "surroundings": "surroundings",
    "files": "files",
    "formats": "formats",
    "memory": "memory",
    "pool": "pools",
    "node": "nodes",
}
NAMES = tuple(MODULES)
#: A round of these takes longer than a short campaign; the cargo tests have a small part of each.
LONG = ("fuzz", "ptx")


def attack(name: str) -> Attack:
    """The attack of that name."""
    if name not in MODULES:
        raise SystemExit(f"there is no attack {name!r}: choose from {', '.join(NAMES)}")
    return import_module(f"{__package__}.{MODULES[name]}").ATTACK


def chosen(names: list[str]) -> list[Attack]:
    """The attacks that `names` name, all of them if there are none; "attack/trait" keeps to that trait."""
    found: dict[str, Attack] = {}
    for name in names or NAMES:
        whole, _, trait = name.partition("/")
        full = attack(whole)
        if trait and trait not in full.traits:
            raise SystemExit(f"{whole} has no trait {trait!r}: choose from {', '.join(full.traits)}")
        before = found[whole].traits if whole in found else {}
        found[whole] = replace(full, traits=before | ({trait: full.traits[trait]} if trait else full.traits))
    return list(found.values())

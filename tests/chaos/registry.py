"""Every attack by name; imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from .case import Attack

#: Attack -> its module, in the order in which a campaign starts them.
MODULES = {
    "kills": "kills",
    "faults": "outages",
    "datasets": "datasets",
    "losses": "losses",
    "processes": "processes",
    "files": "files",
    "memory": "memory",
    "fuzz": "fuzz",
}
NAMES = tuple(MODULES)


def attack(name: str) -> Attack:
    """The attack of that name."""
    if name not in MODULES:
        raise SystemExit(f"there is no attack {name!r}: choose from {', '.join(NAMES)}")
    return import_module(f"{__package__}.{MODULES[name]}").ATTACK

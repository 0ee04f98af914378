"""Every attack by name; imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

from .case import Attack

#: In the order in which a campaign starts them.
NAMES = ("kills", "faults", "datasets", "losses", "processes", "files", "memory", "fuzz")


def attack(name: str) -> Attack:
    """The attack of that name."""
    if name not in NAMES:
        raise SystemExit(f"there is no attack {name!r}: choose from {', '.join(NAMES)}")
    return import_module(f"{__package__}.{name}").ATTACK

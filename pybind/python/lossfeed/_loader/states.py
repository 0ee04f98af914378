"""The states of loaders, as they lie in checkpoints."""

from __future__ import annotations

from typing import Any

from .._base.errors import SettingsError

_VERSION = 1


def of_loader(engine: bytes) -> dict[str, Any]:
    """A loader's state, with its engine's."""
    return {"version": _VERSION, "engine": engine}


def of_engines(state: Any) -> list[bytes]:
    """The engines' states in a loader's, or in those of all ranks.

    Raises:
        SettingsError: it is none, or of another version.
    """
    states = state.get("ranks", [state]) if isinstance(state, dict) else None
    if not isinstance(states, (list, tuple)) or not all(map(_is_one, states)):
        raise SettingsError("this is not a loader state: pass the result of state_dict()")
    for one in states:
        if one.get("version") != _VERSION:
            raise SettingsError(
                f"the state has version {one.get('version')!r}, this lossfeed reads {_VERSION}: load it with the "
                "version that saved it"
            )
    return [one["engine"] for one in states]


def _is_one(state: Any) -> bool:
    return isinstance(state, dict) and isinstance(state.get("engine"), bytes)

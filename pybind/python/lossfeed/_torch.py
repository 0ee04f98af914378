"""The torch half of the package, as :mod:`lossfeed._half` hands it out."""

from __future__ import annotations

from . import _cuda as cuda
from . import _graph as graph
from . import _hook as hook
from . import _losses as losses
from . import _plans as plans
from . import _tree as tree
from . import _ways as ways

__all__ = ["cuda", "graph", "hook", "losses", "plans", "tree", "ways"]

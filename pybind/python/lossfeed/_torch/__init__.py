"""The loss and its scores on torch tensors. Only :mod:`lossfeed._base.torch_imports` imports this folder."""

from . import cross_entropy, cuda, graph, hook, plans, pytree, routes

__all__ = ["cross_entropy", "cuda", "graph", "hook", "plans", "pytree", "routes"]

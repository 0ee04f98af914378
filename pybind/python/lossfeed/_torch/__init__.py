"""The loss and its scores on torch tensors. Only :mod:`lossfeed._base.torch_imports` imports this folder."""

from . import cross_entropy, cuda, graph, hook, linear_cross_entropy, linear_operators, plans, pytree, routes

__all__ = [
    "cross_entropy", "cuda", "graph", "hook", "linear_cross_entropy", "linear_operators", "plans", "pytree", "routes",
]  # fmt: skip

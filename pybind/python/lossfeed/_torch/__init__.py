"""What imports torch at its head: the loss and its scores on tensors. Only :mod:`lossfeed._base.torch_imports` imports it."""

from . import cross_entropy, cuda, graph, hook, plans, pytree, routes

__all__ = ["cross_entropy", "cuda", "graph", "hook", "plans", "pytree", "routes"]

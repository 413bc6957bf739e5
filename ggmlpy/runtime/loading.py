"""Loading weights: each one once, onto the device of its layer."""

from __future__ import annotations

from ggmlpy.backends.base import Backend, Weight
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.models import Model
from ggmlpy.sched.placement import Placement


def load_weights(model: Model, placement: Placement, graph: Graph) -> None:
    """Hand the weights of a model to the backends of their layers, in the order of the file.

    `graph` is a graph of the model; it tells which ops read each weight. Raises FileError,
    AllocationError.
    """
    readers: dict[Tensor, set[str]] = {}
    for node in graph.nodes:
        assert node.op is not None
        for source in node.src:
            if Flag.WEIGHT in source.root.flags:
                readers.setdefault(source.root, set()).add(node.op.name)
    by_backend: dict[Backend, list[Weight]] = {}
    for name, leaf in model.weights.leaves.items():
        weight = Weight(leaf, frozenset(readers.get(leaf, ())))
        by_backend.setdefault(placement.backend_of(name), []).append(weight)
    for backend, weights in by_backend.items():
        backend.load_weights(weights)

"""Loading weights: each one once, onto the device of its layer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from weakref import WeakKeyDictionary

from ggmlpy.backends.base import Backend, Weight
from ggmlpy.errors import ArgumentError
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.models import Model
from ggmlpy.sched.placement import Placement

_HOLDERS: WeakKeyDictionary[Tensor, Backend] = WeakKeyDictionary()  # of the weights of any model


def check_placement(model: Model, placement: Placement) -> None:
    """Raise ArgumentError if a context has loaded a weight of the model where a context with this
    placement does not read it."""
    for name, leaf in model.weights.leaves.items():
        holder = _HOLDERS.get(leaf)
        if holder is None:
            continue
        backend = placement.backend_of(name)
        assert leaf.place is not None
        if holder is not backend and not backend.supports_buffer_type(leaf.place.buffer.type):
            raise ArgumentError(
                f'"{name}" is to lie on {backend.name}, but another context of this model has'
                f" loaded it onto {holder.name}: contexts of one model need one placement, and the"
                " same backend objects; for another placement load the model a second time"
            )


def load_weights(model: Model, placement: Placement, graphs: Iterable[Graph]) -> None:
    """Hand the weights of a model to the backends of their layers, in the order of the file.

    `graphs` are those of the model's parts; they tell which ops read each weight. Contexts of one
    model share its weights: what another one has loaded stays where it is. Raises FileError,
    AllocationError, and ArgumentError as `check_placement` does.
    """
    check_placement(model, placement)
    readers: dict[Tensor, set[str]] = {}
    for node in chain.from_iterable(graph.nodes for graph in graphs):
        assert node.op is not None
        for source in node.src:
            if Flag.WEIGHT in source.root.flags:
                readers.setdefault(source.root, set()).add(node.op.name)
    by_backend: dict[Backend, list[Weight]] = {}
    for name, leaf in model.weights.leaves.items():
        backend = placement.backend_of(name)
        if _HOLDERS.get(leaf) is not backend:
            weight = Weight(leaf, frozenset(readers.get(leaf, ())))
            by_backend.setdefault(backend, []).append(weight)
    for backend, weights in by_backend.items():
        backend.load_weights(weights)
        for weight in weights:
            _HOLDERS.setdefault(weight.leaf, backend)

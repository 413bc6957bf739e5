"""The graph of a range of a model's layers, to look at by itself."""

from __future__ import annotations

from collections.abc import Mapping

from ggmlpy.graph.graph import Graph
from ggmlpy.graph.layers import layers_of
from ggmlpy.graph.tensor import Tensor


def layer_range(graph: Graph, start: int, stop: int) -> Graph:
    """The nodes of layers `start` to `stop` - 1, copied into a new graph.

    Nodes outside these layers that are read become leafs of the same name. Nodes that no other node
    of these layers reads become outputs.
    """
    layers = layers_of(graph)
    kept = [n for n in graph.nodes if (layer := layers[n]) is not None and start <= layer < stop]
    copies: dict[Tensor, Tensor] = {}
    for node in kept:
        for source in node.src:
            if source not in copies:
                copies[source] = _as_leaf(source, graph) if source.op is not None else source
        copies[node] = _copy(node, copies)
    read = {source for node in kept for source in node.src}
    return Graph(*(copies[node] for node in kept if node not in read))


def _as_leaf(tensor: Tensor, graph: Graph) -> Tensor:
    return Tensor(tensor.spec, name=graph.name_of(tensor), flags=tensor.flags)


def _copy(node: Tensor, copies: Mapping[Tensor, Tensor]) -> Tensor:
    """A copy of the node, which reads the copies of its sources."""
    assert node.op is not None
    view_src, view_offs = None, 0
    if node.op.view_of is not None:
        shared, copied = node.src[node.op.view_of], copies[node.src[node.op.view_of]]
        view_src = copied.root
        view_offs = node.view_offs - shared.view_offs + copied.view_offs
    return Tensor(
        node.spec,
        op=node.op,
        src=tuple(copies[s] for s in node.src),
        name=node.name,
        flags=node.flags,
        view_src=view_src,
        view_offs=view_offs,
    )

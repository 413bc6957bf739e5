"""Layers of a model's graph: the layer of each tensor, and the graph of a range of layers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor

# `blk.3.attn_q`; `cache_k_l3`; `Qcur-3`, and `Qcur-3 (reshaped)` of its views
_LAYER = re.compile(
    r"blk\.(?P<weight>\d+)\..*|cache_[kvr]_l(?P<cache>\d+)\b.*|.*-(?P<node>\d+)(?: \(\w+\))*",
    re.DOTALL,
)


def layers_of(graph: Graph) -> dict[Tensor, int | None]:
    """The layer of every tensor, None outside of layers.

    Names contain the layer: `…-3` for nodes, as in llama.cpp; `blk.3.…` for weights, as in GGUF;
    `cache_k_l3` for caches and states. A view without a layer in its name has that of the first
    node that reads it.
    """
    layers = {t: _named_layer(t) for t in (*graph.leafs, *graph.nodes)}
    for node in reversed(graph.nodes):
        for source in node.src:
            is_view = source.op is not None and not source.op.computes
            if is_view and _named_layer(source) is None and layers[node] is not None:
                layers[source] = layers[node]  # in reversed order, the first reader comes last
    return layers


def _named_layer(tensor: Tensor) -> int | None:
    match = _LAYER.fullmatch(tensor.name)
    return None if match is None else int(match[match.lastgroup or 0])


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

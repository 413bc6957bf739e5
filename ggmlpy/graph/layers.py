"""The layer of each tensor of a model's graph, by its name."""

from __future__ import annotations

import re

from ggmlpy.graph.nodes import Nodes
from ggmlpy.graph.tensor import Tensor

# `blk.3.attn_q`; `cache_k_l3`; `Qcur-3`, and `Qcur-3 (reshaped)` of its views
_LAYER = re.compile(
    r"blk\.(?P<weight>\d+)\..*|cache_[kvr]_l(?P<cache>\d+)\b.*|.*-(?P<node>\d+)(?: \(\w+\))*",
    re.DOTALL,
)


def layers_of(graph: Nodes) -> dict[Tensor, int | None]:
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

"""Run a model's graph on two backends and show, node by node, how far apart they are.

python examples/where_two_backends_differ.py [model.gguf]
"""

import sys

import numpy as np

import ggmlpy
from ggmlpy.context import SegmentShape, Shape, make_inputs
from ggmlpy.kv_cache import KVCache
from ggmlpy.models import load_model
from ggmlpy.models.memory import AttentionLayers
from ggmlpy.types import F32

path = sys.argv[1] if len(sys.argv) > 1 else ggmlpy.packaged_model()
model = load_model(ggmlpy.GGUFFile.open(path))
layers = next(m for m in model.memory if isinstance(m, AttentionLayers))
cache = KVCache(layers, n_ctx=256, type_k=F32, type_v=F32)
inputs = make_inputs(
    Shape((SegmentShape(n_tokens=4),), n_outputs=1, n_kv=256), cache, flash_attn=False
)

tokens, positions = np.array([1, 5, 9, 13]), np.arange(4)
for leaf, values in (
    (inputs.tokens, tokens),
    (inputs.positions, positions),
    (inputs.out_ids, [3]),
    (inputs.kvs[0].rows, positions),
):
    leaf.array()[:] = values
cache.occupy(positions, positions.astype(np.int32))
cache.fill_mask(inputs.kvs[0].segments[0].mask.array().reshape(4, 256), positions.astype(np.int32))

graph = ggmlpy.Graph(model.build(inputs))
nodes = [node for node in graph.nodes if node.op is not None and node.op.computes]
exact = ggmlpy.compute(*nodes, backend="reference")
fast = ggmlpy.compute(*nodes, backend="cpu")
for node, a, b in zip(nodes, exact, fast, strict=True):
    error = ((a - b) ** 2).sum() / max((a**2).sum(), 1e-30)
    print(f"{graph.name_of(node):28s} {node.op!s:60.60s} NMSE {error:.1e}")

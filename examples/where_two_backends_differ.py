"""Run a model's graph on two backends and show, node by node, how far apart they are.

python examples/where_two_backends_differ.py [model.gguf]
"""

import os
import sys

import ggmlpy
from ggmlpy.models import load_model
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for

path = sys.argv[1] if len(sys.argv) > 1 else ggmlpy.packaged_model()
model = load_model(ggmlpy.GGUFFile.open(path))
context = Context(model, backends_for("reference"), n_ctx=64, flash_attn=False)
context.decode([1, 5, 9, 13])

graph = context.last_graph  # its inputs still hold what was decoded
nodes = [node for node in graph.nodes if node.op is not None and node.op.computes]
exact = ggmlpy.compute(*nodes, backend="reference")
fast = ggmlpy.compute(*nodes, backend="cpu")
try:
    for node, a, b in zip(nodes, exact, fast, strict=True):
        error = ((a - b) ** 2).sum() / max((a**2).sum(), 1e-30)
        print(f"{graph.name_of(node):28s} {node.op!s:60.60s} NMSE {error:.1e}")
    sys.stdout.flush()
except BrokenPipeError:  # whoever read the lines has seen enough, as `| head`
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

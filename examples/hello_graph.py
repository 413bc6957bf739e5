"""A lazy graph by hand: build it, look at it, run it on two backends.

python examples/hello_graph.py
"""

import numpy as np

import ggmlpy
from ggmlpy import ops

rng = np.random.default_rng(0)
w = ggmlpy.from_numpy(rng.standard_normal((8, 64), dtype=np.float32), name="w")  # [64, 8]
x = ggmlpy.from_numpy(rng.standard_normal((3, 64), dtype=np.float32), name="x")  # [64, 3]

y = ops.silu(ops.mul_mat(w, ops.rms_norm(x, 1e-5))).named("y")  # [8, 3]; nothing is computed yet
print(ggmlpy.Graph(y))

fast = ggmlpy.compute(y, backend="cpu", n_threads=2)
exact = ggmlpy.compute(y, backend="reference")
print(f"shape {fast.shape}, largest difference {np.abs(fast - exact).max():.1e}")

"""An op of your own in a graph: a Python function between nodes that a backend runs.

python examples/a_custom_op.py
"""

from typing import Any

import numpy as np

import ggmlpy
from ggmlpy import ops


def top_only(dst: Any, scores: Any, ith: int, n_tasks: int, share: float) -> None:
    """Keeps scores near the largest of their row. Task `ith` of `n_tasks` has every n-th row."""
    rows, kept = scores[:, :, ith::n_tasks], dst[:, :, ith::n_tasks]  # numpy order: columns last
    largest = rows.max(axis=-1, keepdims=True)
    kept[...] = np.where(rows >= share * largest, rows, 0)


rng = np.random.default_rng(0)
w = ggmlpy.from_numpy(rng.standard_normal((8, 64), dtype=np.float32))  # [64, 8]
x = ggmlpy.from_numpy(rng.standard_normal((3, 64), dtype=np.float32))  # [64, 3]

scores = ops.soft_max(ops.mul_mat(w, x))  # [8, 3]
kept = ops.map_custom1(scores, top_only, 2, 0.5).named("kept")  # [8, 3]
total = ops.sum_rows(kept)  # [1, 3]

values, totals = ggmlpy.compute(kept, total, backend="cpu")
print(f"{np.count_nonzero(values)} of {values.size} scores kept, with {totals.ravel().round(2)}")

"""Importance matrices from a text: the squares of what weights are multiplied with.

The text is cut into chunks, as for perplexity. Of every product with a weight `blk.*` (and of
`output.weight`, if that is wanted) the inputs are read after a graph has run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import WeightError
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32
from ggmlpy.llama import Llama
from ggmlpy.quantize.imatrix import Imatrix, Squares
from ggmlpy.sched.executable import Executable

_LEAST_ROWS = 16  # products with fewer are not counted

OnChunk = Callable[[int, NDArray[np.float32]], None]
"""Called with the number of a chunk and the logits of its tokens [n, n_vocab]."""


class Collector:
    """Sums of squares of the inputs of weights, in f64."""

    def __init__(self, *, with_output: bool = False) -> None:
        """`with_output`: also those of output.weight."""
        self._with_output = with_output
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}

    def wanted(self, graph: Graph) -> list[Tensor]:
        """The inputs of the products that count, and the ids of experts."""
        products = [node for node in graph.nodes if self._counts_in(node)]
        return list(dict.fromkeys(source for node in products for source in node.src[1:]))

    def _counts_in(self, node: Tensor) -> bool:
        if node.op is None or node.op.name not in ("mul_mat", "mul_mat_id"):
            return False
        weight, x = node.src[0], node.src[1]
        if node.op.name == "mul_mat_id":
            return weight.is_leaf
        is_wanted = weight.name.startswith("blk.") or (
            self._with_output and weight.name == "output.weight"
        )
        return weight.is_leaf and is_wanted and x.type is F32

    def ran(self, executable: Executable) -> None:
        """Add what a graph had. Raises WeightError for values that are not finite."""
        values: dict[Tensor, NDArray[Any]] = {}

        def read(tensor: Tensor) -> NDArray[Any]:
            if tensor not in values:
                values[tensor] = executable.array(tensor)
            return values[tensor]

        for node in executable.graph.nodes:
            if not self._counts_in(node):
                continue
            weight, x = node.src[0], read(node.src[1])
            if node.op is not None and node.op.name == "mul_mat_id":
                self._add_experts(weight, x, read(node.src[2]))
            elif x.shape[2] >= _LEAST_ROWS:
                self._add(weight, x)

    def _entry(
        self, weight: Tensor, n_matrices: int, n_counts: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        sums = self._sums.setdefault(weight.name, np.zeros((n_matrices, weight.ne[0])))
        counts = self._counts.setdefault(weight.name, np.zeros(n_counts, np.int64))
        return sums, counts

    def _add(self, weight: Tensor, x: NDArray[Any]) -> None:
        """x [ne3, ne2, rows, n]; all matrices have one count."""
        n_2, n_3 = int(weight.ne[2]), int(weight.ne[3])
        sums, counts = self._entry(weight, n_2 * n_3, 1)
        for i_3, plane in enumerate(x):
            for i_2, rows in enumerate(plane):
                sums[i_3 % n_3 * n_2 + i_2 % n_2] += _squares(weight, rows)
        counts += x.size // x.shape[-1] // (n_2 * n_3)

    def _add_experts(self, weight: Tensor, x: NDArray[Any], ids: NDArray[Any]) -> None:
        """x [1, tokens, 1 or used, n], ids [1, 1, tokens, used]."""
        n = int(weight.ne[2])
        sums, counts = self._entry(weight, n, n)
        for j in range(ids.shape[-1]):
            experts, rows = ids[0, 0, :, j], x[0, :, j % x.shape[2]]
            for expert in np.unique(experts):
                chosen = experts == expert
                sums[expert] += _squares(weight, rows[chosen])
                counts[expert] += int(chosen.sum())

    def imatrix(self, dataset: str, chunk_size: int) -> Imatrix:
        """What was added so far, of the text in the file `dataset`; "" for none."""
        entries = {
            name: Squares(_per_count(sums, self._counts[name]), self._counts[name].copy())
            for name, sums in self._sums.items()
        }
        most = max((int(counts.max()) for counts in self._counts.values()), default=0)
        datasets = (dataset,) if dataset else ()
        return Imatrix(entries, datasets, most // chunk_size, chunk_size)


def _per_count(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """[matrices, n], or [1, matrices * n] where there is one count."""
    return sums.astype(np.float32).reshape(len(counts), -1)


def _squares(weight: Tensor, rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    squares: NDArray[np.float64] = np.einsum("ij,ij->j", wide, wide)
    if not np.isfinite(squares).all():
        raise WeightError(f"the inputs of {quoted(weight.name)} are not finite")
    return squares


def collect(
    llm: Llama, chunks: Sequence[Sequence[int]], collector: Collector, on_chunk: OnChunk
) -> None:
    """Run chunks of tokens, each as a text of its own. Raises BadBatch for chunks longer than the
    context, WeightError for values that are not finite."""
    plans = llm.engine.context.plans
    plans.watch(collector)
    try:
        for i, chunk in enumerate(chunks):
            on_chunk(i, llm.logits(chunk))
    finally:
        plans.watch(None)


def losses(logits: NDArray[np.float32], tokens: Sequence[int], first: int) -> NDArray[np.float64]:
    """Negative log-probabilities of the tokens after position `first`, given the logits [n,
    n_vocab] of each position."""
    rows = logits[first:-1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    drawn = rows[np.arange(len(rows)), np.asarray(tokens[first + 1 :])]
    found: NDArray[np.float64] = np.log(np.exp(rows).sum(axis=1)) - drawn
    return found

"""The KV cache: what some layers keep of past tokens.

It has two parts: `cells` (which cell holds which position of which sequence) and `store` (K and V
of each cell). A token's K and V go to one cell by `set_rows`; the cell's number is an input of the
graph, so the graph does not depend on which cell a token gets.
"""

from __future__ import annotations

from ggmlpy.graph.types import TensorType
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.pages import PagedCells
from ggmlpy.memory.store import BufferTypes, KVStore
from ggmlpy.models.memory import AttentionLayers, size_of


class KVCache:
    """The cells and the store of some layers.

    Raises Unsupported for a type that rows cannot be written in.
    """

    def __init__(
        self,
        spec: AttentionLayers,
        n_ctx: int,
        type_k: TensorType,
        type_v: TensorType,
        n_seq_max: int = 1,
        layout: KVLayout = "unified",
        buffer_types: BufferTypes = {},  # noqa: B006  (never written to)
    ) -> None:
        self.cells = (
            PagedCells(n_ctx, n_seq_max, size_of(spec.window))
            if layout == "paged"
            else KVCells(n_ctx, n_seq_max, layout == "unified", size_of(spec.window))
        )
        n_stream = self.cells.n_stream
        self.store = KVStore(spec, self.cells.n_ctx, n_stream, type_k, type_v, buffer_types)

"""The KV cache: what some layers keep of past tokens.

It has two parts: `cells` (which cell holds which position of which sequence) and `store` (K and V
of each cell). A token's K and V go to one cell by `set_rows`; the cell's number is an input of the
graph, so the graph does not depend on which cell a token gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from ggmlpy.graph.types import TensorType
from ggmlpy.memory.cells import KVCells
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.pages import PagedCells
from ggmlpy.memory.store import BufferTypes, KVStore
from ggmlpy.memory.window import Sight
from ggmlpy.models.memory import AttentionLayers


class KVCache:
    """The cells and the store of some layers. Names of its input leaves end with `suffix`.

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
        suffix: str = "",
        kv_rotation: bool | None = None,
    ) -> None:
        self.suffix = suffix
        sight = Sight(spec.window, spec.is_causal, spec.needs_positions, spec.buckets)
        name = f"attn_inp_cells{suffix}"
        self.cells = (
            PagedCells(n_ctx, n_seq_max, sight, name)
            if layout == "paged"
            else KVCells(n_ctx, n_seq_max, layout == "unified", sight, name)
        )
        n_stream = self.cells.n_stream
        self.store = KVStore(
            spec, self.cells.n_ctx, n_stream, type_k, type_v, buffer_types, kv_rotation
        )


def suffixes(specs: Sequence[AttentionLayers]) -> list[str]:
    """What names of input leaves end with, of each cache: "" and "_swa", as in llama.cpp, of the
    first one with full attention and the first one with a window; further ones are numbered."""
    found: list[str] = []
    for spec in specs:
        base, n = "" if spec.window is None else "_swa", 1
        suffix = base
        while suffix in found:
            n += 1
            suffix = f"{base}_{n}"
        found.append(suffix)
    return found

"""What a model would run, and where: graphs to look at, without loading or running anything."""

from __future__ import annotations

import numpy as np

from ggmlpy.graph.buffer import Place, UnallocatedBuffer
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.types import F16, TensorType
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import decide_sizes
from ggmlpy.memory.ubatch import SegmentShape
from ggmlpy.models import Model
from ggmlpy.runtime.inputs import Shape, declare
from ggmlpy.sched.placement import Placement


def build_graph(
    model: Model,
    n_tokens: int,
    n_past: int = 0,
    *,
    type_k: TensorType = F16,
    type_v: TensorType = F16,
    flash_attn: bool = True,
    placement: Placement | None = None,
) -> Graph:
    """A model's graph for `n_tokens` after `n_past`, which outputs the last one's logits.

    To look at, not to run: its inputs are empty. With a `placement` its K, V and recurrent state
    lie where those of a context would, and so do its weights, without their bytes.
    """
    n_all = n_past + n_tokens
    buffer_types = {} if placement is None else placement.buffer_types
    memory = SequenceMemory(
        model.memory, decide_sizes(n_all, 1, False, n_tokens), type_k, type_v, buffer_types
    )
    n_kv = []
    for cache in memory.caches:
        slot = cache.cells.find_slot(min(n_all, cache.cells.n_ctx))
        cache.cells.occupy(slot, slot.astype(np.int32))
        n_kv.append(cache.cells.n_kv())
    runs = ((n_tokens, 1),) if memory.recurrent is not None else ()
    shape = Shape((SegmentShape(n_tokens),), 1, tuple(n_kv), runs)
    inputs = declare(shape, memory, flash_attn)
    logits = model.build(inputs)
    if placement is not None:
        _place_weights(model, placement)
    return Graph(*inputs.writes, logits)


def _place_weights(model: Model, placement: Placement) -> None:
    for name, leaf in model.weights.leaves.items():
        memory = placement.backend_of(name).buffer_type
        if not memory.is_host:
            leaf.place = Place(UnallocatedBuffer(memory, memory.tensor_bytes(leaf.spec)))

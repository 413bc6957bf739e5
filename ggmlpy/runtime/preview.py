"""What a model would run, and where: graphs to look at, without loading or running anything."""

from __future__ import annotations

from ggmlpy.graph.buffer import Place, UnallocatedBuffer
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.types import F16, TensorType
from ggmlpy.memory.cell_table import padded
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import decide_sizes
from ggmlpy.models import Model
from ggmlpy.runtime.gathered import Group
from ggmlpy.runtime.inputs import declare
from ggmlpy.runtime.shape import Shape
from ggmlpy.sched.placement import Placement


def build_graph(
    model: Model,
    n_tokens: int,
    n_past: int = 0,
    *,
    n_seqs: int = 1,
    type_k: TensorType = F16,
    type_v: TensorType = F16,
    flash_attn: bool = True,
    placement: Placement | None = None,
) -> Graph:
    """A model's graph for `n_tokens` after `n_past` of each of `n_seqs` sequences, which outputs
    the logits of each one's last token.

    The sequences are streams, dimension 3 of attention. To look at, not to run: its inputs are
    empty. With a `placement` its K, V and recurrent state lie where those of a context would, and
    so do its weights, without their bytes.
    """
    n_all = n_past + n_tokens
    buffer_types = {} if placement is None else placement.buffer_types
    sizes = decide_sizes(n_all * n_seqs, n_seqs, False, n_tokens * n_seqs)
    memory = SequenceMemory(model.memory, sizes, type_k, type_v, buffer_types)
    groups: tuple[Group, ...] = ()
    if not flash_attn:
        n_kv = (min(padded(n_all), cache.cells.kv_size) for cache in memory.caches)
        groups = (Group(n_seqs, n_tokens, tuple(n_kv)),)
    n_stream = n_seqs if flash_attn else 1
    shape = Shape(n_tokens * n_seqs, n_seqs, n_seqs, n_stream, is_exact=True, groups=groups)
    inputs, _ = declare(shape, memory)
    logits = model.build(inputs)
    if placement is not None:
        _place_weights(model, placement)
    return Graph(*inputs.writes, logits)


def _place_weights(model: Model, placement: Placement) -> None:
    for name, leaf in model.weights.leaves.items():
        memory = placement.backend_of(name).buffer_type
        if not memory.is_host:
            leaf.place = Place(UnallocatedBuffer(memory, memory.tensor_bytes(leaf.spec)))

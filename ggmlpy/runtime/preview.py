"""What a model would run, and where: graphs to look at, without loading or running anything."""

from __future__ import annotations

from ggmlpy.errors import Unsupported
from ggmlpy.graph.buffer import Place, UnallocatedBuffer
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.types import F16, TensorType
from ggmlpy.memory.sequences import SequenceMemory
from ggmlpy.memory.sizes import decide_sizes
from ggmlpy.models import Model, whole_memory
from ggmlpy.runtime.gathered import Group, gathered_length
from ggmlpy.runtime.inputs import declare
from ggmlpy.runtime.shape import Shape, Shapes, Streams, can_fuse
from ggmlpy.sched.placement import Placement


def build_graph(
    model: Model,
    n_tokens: int,
    n_past: int = 0,
    *,
    n_seqs: int = 1,
    mixture: bool = False,
    type_k: TensorType = F16,
    type_v: TensorType = F16,
    kv_rotation: bool | None = None,
    flash_attn: bool = True,
    placement: Placement | None = None,
) -> Graph:
    """A model's graph for `n_tokens` after `n_past` of each of `n_seqs` sequences, which outputs
    the logits of each one's last token.

    The sequences are streams, dimension 3 of attention. With `mixture` it is the graph for up to
    `n_tokens` tokens of up to `n_seqs` sequences, in any numbers: the symbols T, O and R are the
    tokens, outputs and sequences of a run. To look at, not to run: its inputs are empty. With a
    `placement` its K, V and recurrent state lie where those of a context would, and
    so do its weights, without their bytes.
    """
    n_all = n_past + n_tokens
    buffer_types = {} if placement is None else placement.buffer_types(whole_memory(model))
    sizes = decide_sizes(n_all * n_seqs, n_seqs, "split", n_tokens * (1 if mixture else n_seqs))
    source = None
    if model.encoder is not None:
        source = SequenceMemory(
            model.encoder.memory, sizes, type_k, type_v, buffer_types, kv_rotation
        )
    memory = SequenceMemory(model.memory, sizes, type_k, type_v, buffer_types, kv_rotation, source)
    gathers_source = not flash_attn
    gathers_by_buckets = flash_attn and not can_fuse(memory)
    flash_attn = flash_attn and not gathers_by_buckets
    shape = _streams(memory, n_tokens, n_all, flash_attn, gathers_source)
    if mixture:
        if gathers_by_buckets:
            raise Unsupported(
                "there is no graph for any mixture of sequences: attention with a bias for each"
                " bucket of distances needs a graph for each combination of lengths"
            )
        if not flash_attn:
            raise Unsupported(
                "the graph for any mixture of sequences needs flash attention (-fa on): without"
                " it each combination of lengths is a graph of its own"
            )
        shape = Shapes(memory, flash_attn=True, takes_counts=True).mixture
    inputs, _ = declare(shape, memory, n_pos_per_embd=model.n_pos_per_embd)
    logits = model.build(inputs)
    if placement is not None:
        _place_weights(model, placement)
    return Graph(*inputs.writes, logits)


def _streams(
    memory: SequenceMemory, n_tokens: int, n_all: int, flash_attn: bool, gathers_source: bool
) -> Shape:
    """`n_tokens` of each sequence, which has `n_all` then, and a source as long."""
    n_seqs = memory.sizes.n_seq_max
    groups: tuple[Group, ...] = ()
    if not flash_attn:
        n_kv = [min(gathered_length(n_all), cache.cells.kv_size) for cache in memory.caches]
        if memory.source is not None:
            n_kv.append(gathered_length(n_all) if gathers_source else 0)
        groups = (Group(n_seqs, n_tokens, tuple(n_kv)),)
    streams = Streams.SEQUENCES if flash_attn else Streams.ONE
    return Shape(n_tokens * n_seqs, n_seqs, n_seqs, streams, is_exact=True, groups=groups)


def _place_weights(model: Model, placement: Placement) -> None:
    for name, leaf in model.weights.leaves.items():
        memory = placement.backend_of(name).buffer_type
        if not memory.is_host:
            leaf.place = Place(UnallocatedBuffer(memory, memory.tensor_bytes(leaf.spec)))

"""How much a memory of sequences holds: tokens of each and of all, and the bytes they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ggmlpy.common.system_memory import check_memory
from ggmlpy.errors import AllocationError, ArgumentError
from ggmlpy.graph.buffer import HOST, BufferType
from ggmlpy.graph.types import F32, I32, TensorType
from ggmlpy.memory.cell_table import padded
from ggmlpy.memory.layouts import KVLayout
from ggmlpy.memory.lists import list_length
from ggmlpy.memory.pages import cells_of_window, page_size
from ggmlpy.memory.recurrent_state import layer_bytes
from ggmlpy.memory.rotation import rotation_of
from ggmlpy.memory.store import BufferTypes, cell_bytes
from ggmlpy.models.memory import AttentionLayers, KVSizes, Memory, RecurrentLayers


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a memory."""

    n_ctx: int  # tokens of all sequences together
    n_ctx_seq: int  # tokens that one sequence may have
    n_seq_max: int
    layout: KVLayout
    n_ubatch: int

    @property
    def one_stream(self) -> bool:
        """Whether all sequences share the cells: any may take those that others do not use."""
        return self.layout != "split"

    @property
    def page_size(self) -> int:
        """Cells that a sequence takes at a time."""
        return page_size() if self.layout == "paged" else 1


def decide_sizes(
    n_ctx: int, n_seq_max: int, layout: KVLayout, n_ubatch: int, n_ctx_seq: int | None = None
) -> Sizes:
    """The sizes that follow from those that a user gives.

    Unified or paged, a sequence may use all of `n_ctx`, or `n_ctx_seq` tokens of it; split, each
    sequence has an equal part of its own. Raises ArgumentError for less than one token a sequence.
    """
    shares = layout != "split"
    if n_seq_max < 1:
        raise ArgumentError(f"n_seq_max is {n_seq_max}: it must be at least 1")
    share = n_ctx if shares else n_ctx // n_seq_max
    n_ctx_seq = share if n_ctx_seq is None else n_ctx_seq
    if n_ctx > share * (1 if shares else n_seq_max) and share > 0:
        raise ArgumentError(
            f"n_ctx is {n_ctx}, of which {n_seq_max} sequences cannot have equal parts: it must be"
            ' a multiple of n_seq_max, or kv_layout "unified" or "paged"'
        )
    if share < 1:
        raise ArgumentError(
            f"n_ctx is {n_ctx}: less than one token for each of {n_seq_max} sequences"
        )
    if not 1 <= n_ctx_seq <= share:
        raise ArgumentError(f"n_ctx_seq is {n_ctx_seq}: it must be 1 to {share}, what one can have")
    return Sizes(n_ctx, n_ctx_seq, n_seq_max, layout, n_ubatch)


def cache_size(spec: AttentionLayers, sizes: Sizes) -> int:
    """Tokens that one stream of a cache must hold: with a window only what can still be seen."""
    n_tokens = sizes.n_ctx if sizes.one_stream else sizes.n_ctx_seq
    if spec.window is None:
        return n_tokens
    n_seqs = sizes.n_seq_max if sizes.one_stream else 1
    size = max(2, spec.window.size)  # the last token is kept, which tells where a sequence ends
    n_each = cells_of_window(size) if sizes.layout == "paged" else size
    return min(n_tokens, padded(n_each * n_seqs + sizes.n_ubatch))


def memory_bytes(
    spec: Memory,
    sizes: Sizes,
    type_k: TensorType,
    type_v: TensorType,
    buffer_types: BufferTypes | None = None,
    kv_rotation: bool | None = None,
) -> dict[BufferType, int]:
    """Bytes of a SequenceMemory of these sizes: K, V, the matrices that rotate them and states, in
    the memory of their layers, and the lists of cells, on the host.

    Memory that the host can address is counted together, as HOST. Raises Unsupported for types of K
    and V that it cannot have.
    """
    n_stream = 1 if sizes.one_stream else sizes.n_seq_max
    types = buffer_types or {}
    found: dict[BufferType, int] = {HOST: 0}
    by_layer: list[tuple[int, int]] = []
    for part in cached_parts(spec):
        found[HOST] += _lists_bytes(part, sizes)
        n_cells = n_stream * padded(cache_size(part, sizes))
        for layer, size in part.layers.items():
            by_layer.append((layer, n_cells * cell_bytes(size, type_k, type_v)))
        for layer, n in _matrices(part, types, type_k, type_v, kv_rotation):
            by_layer.append((layer, F32.row_bytes(n * n)))
    for states in (part.states for part in spec if isinstance(part, RecurrentLayers)):
        for layer, lengths in states.items():
            by_layer.append((layer, layer_bytes(lengths, sizes.n_seq_max)))
    for layer, n_bytes in by_layer:
        at = types.get(layer, HOST)
        at = HOST if at.is_host else at
        found[at] = found.get(at, 0) + n_bytes
    return found


def cached_parts(spec: Memory) -> list[AttentionLayers]:
    """The parts of a model's memory that are kept token by token, each in a cache of its own.

    Without attention it is one whose layer stores nothing: its cells keep the positions of
    sequences, and so n_ctx limits how many tokens they may have.
    """
    parts = [part for part in spec if isinstance(part, AttentionLayers)]
    return parts or [AttentionLayers({0: KVSizes(0, 0, 0)})]


def _matrices(
    part: AttentionLayers,
    types: BufferTypes,
    type_k: TensorType,
    type_v: TensorType,
    kv_rotation: bool | None,
) -> list[tuple[int, int]]:
    """The rows of each matrix of a cache that rotates, and a layer in whose memory it lies."""
    found: dict[tuple[BufferType, int], int] = {}
    for layer, size in part.layers.items():
        by = rotation_of(size, type_k, type_v, kv_rotation)
        found |= {(types.get(layer, HOST), n): layer for n in (by.k, by.v) if n}
    return [(layer, n) for (_, n), layer in found.items()]


def _lists_bytes(spec: AttentionLayers, sizes: Sizes) -> int:
    n_max = list_length(padded(cache_size(spec, sizes)), spec.window)
    return I32.row_bytes(n_max) * sizes.n_seq_max


def check_free(needed: Mapping[BufferType, int]) -> None:
    """Raise AllocationError for more bytes than the machine has, or a device says that it has."""
    for memory, n_bytes in needed.items():
        has = None if memory.is_host else memory.free_bytes()
        if memory.is_host:
            check_memory(n_bytes)
        elif has is not None and n_bytes > has:
            raise AllocationError(f"{n_bytes} bytes of {memory.name} cannot be had, it has {has}")

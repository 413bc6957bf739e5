"""The memory of past tokens that architectures declare: K and V, recurrent states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ggmlpy.models.blocks.basic import Rope

WindowKind = Literal["standard", "chunked", "symmetric"]


@dataclass(frozen=True, slots=True)
class Window:
    """Which tokens one at position p attends to, of its own sequence.

    "standard": those at positions p - size + 1 to p. "chunked": those of its chunk, positions
    p // size * size to p. "symmetric": those at a distance of at most size // 2, for encoders.
    """

    size: int
    kind: WindowKind = "standard"

    def __str__(self) -> str:
        return str(self.size) if self.kind == "standard" else f"{self.size} ({self.kind})"


MAX_DISTANCE = 128  # longer ones are in the last bucket


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of distances as in T5 (Raffel et al., 2020), of both signs: those behind a token have
    the second half. With `is_causal` those before it have all, as there is nothing behind it.

    The nearest distances have a bucket each, those up to MAX_DISTANCE buckets of growing width.
    """

    n: int
    is_causal: bool = False

    def of(self, distances: NDArray[np.int32]) -> NDArray[np.int32]:
        """The bucket of each distance, the position of a cell less that of a token."""
        half = self.n if self.is_causal else self.n // 2
        near = half // 2
        known = np.arange(MAX_DISTANCE + 1)
        # In f32 where llama.cpp has it, which decides at the borders.
        grown = np.log((np.maximum(known, 1) / near).astype(np.float32)) * np.float32(half - near)
        far = np.floor((near + grown / np.log(MAX_DISTANCE / near)).astype(np.float32))
        table = np.where(known < near, known, np.minimum(far, half - 1)).astype(np.int32)
        found: NDArray[np.int32] = table[np.minimum(np.abs(distances), MAX_DISTANCE)]
        if self.is_causal:
            return np.where(distances > 0, 0, found)
        return found + np.where(distances > 0, half, 0).astype(np.int32)


@dataclass(frozen=True, slots=True)
class KVSizes:
    """What a layer stores of a token: n_head_kv heads of K and V.

    With n_embd_head_v 0 it stores no V: that is the first elements of K (latent attention).
    """

    n_embd_head_k: int
    n_embd_head_v: int
    n_head_kv: int

    @property
    def n_embd_k(self) -> int:
        """Elements of K of a token."""
        return self.n_embd_head_k * self.n_head_kv

    @property
    def n_embd_v(self) -> int:
        """Elements of V of a token."""
        return self.n_embd_head_v * self.n_head_kv


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Layers that keep K and V of all past tokens, or of those in a window.

    The keys of `layers` are slots of the cache: the layers' numbers, or more where a layer runs
    several times, or where an encoder stores what a decoder's layers attend to. Without `is_causal`
    every token attends to all tokens of its sequence. With `needs_positions` attention reads the
    positions of cells, for ALiBi. With `buckets` it has a bias for each bucket of distances, which
    needs separate ops.
    """

    layers: Mapping[int, KVSizes]
    window: Window | None = None
    is_causal: bool = True
    needs_positions: bool = False
    buckets: Buckets | None = None


@dataclass(frozen=True, slots=True)
class RecurrentLayers:
    """Layers that keep states for each sequence, independent of its length.

    `states` has for each layer the numbers of f32 of its state tensors. A state tensor may be what
    a layer keeps of the last `n_taps` - 1 tokens, as short convolutions and token shifts do.
    """

    states: Mapping[int, tuple[int, ...]]
    n_taps: int = 1


Memory = tuple[AttentionLayers | RecurrentLayers, ...]


def slots_of(memory: Memory) -> Iterator[int]:
    """The slots of K and V, and the layers that keep recurrent states."""
    for part in memory:
        yield from part.layers if isinstance(part, AttentionLayers) else part.states


# --- what one layer keeps ---


@dataclass(frozen=True, slots=True)
class LayerKV:
    """K and V of one layer, see AttentionLayers."""

    slot: int
    sizes: KVSizes
    window: Window | None = None
    is_causal: bool = True
    needs_positions: bool = False
    buckets: Buckets | None = None
    rope: Rope | None = None  # of the keys that are stored; None: they have no positions


@dataclass(frozen=True, slots=True)
class LayerState:
    """The recurrent states of one layer, see RecurrentLayers."""

    layer: int
    sizes: tuple[int, ...]
    n_taps: int = 1


LayerMemory = LayerKV | LayerState


_Kind = tuple[Window | None, bool, bool, Buckets | None]


@dataclass(slots=True)
class _Groups:
    attention: dict[_Kind, dict[int, KVSizes]] = field(default_factory=dict)
    states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    n_taps: int = 1


def memory_of(parts: Iterable[LayerMemory]) -> Memory:
    """The memory of a model, whose layers keep `parts`: full attention first, then windows."""
    groups = _Groups()
    for part in parts:
        if isinstance(part, LayerKV):
            kind = (part.window, part.is_causal, part.needs_positions, part.buckets)
            groups.attention.setdefault(kind, {})[part.slot] = part.sizes
        else:
            assert groups.n_taps in (1, part.n_taps) or part.n_taps == 1
            groups.states[part.layer] = part.sizes
            groups.n_taps = max(groups.n_taps, part.n_taps)
    kinds = sorted(groups.attention, key=lambda kind: kind[0] is not None)
    memory = [AttentionLayers(groups.attention[kind], *kind) for kind in kinds]
    if not groups.states:
        return tuple(memory)
    return (*memory, RecurrentLayers(groups.states, groups.n_taps))

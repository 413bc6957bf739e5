"""The memory of past tokens that architectures declare: K and V, recurrent states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Layers that keep K and V of all past tokens, or of the last `window` only.

    With a window a token at position p attends to positions p - window + 1 to p.
    """

    layers: tuple[int, ...]
    n_embd_head_k: int
    n_embd_head_v: int
    n_head_kv: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class RecurrentLayers:
    """Layers that keep a state of `n_embd_r` f32 for each sequence, independent of its length.

    The state is what a layer keeps of the last `n_taps` - 1 tokens.
    """

    layers: tuple[int, ...]
    n_embd_r: int
    n_taps: int


Memory = tuple[AttentionLayers | RecurrentLayers, ...]

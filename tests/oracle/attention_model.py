"""A model of one attention layer whose logits are the results of attention, and what they must be.

q, k and v of a token are rows of tables, so that a result follows from the tokens that are seen and
from their positions.

Letters in shapes: D head size of q and k, Dv of v, H heads, Hk K/V heads, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor, from_numpy
from ggmlpy.models.blocks.attention import Scores, attend, attend_latent, attend_stored
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.hparams import RopeParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import AttentionLayers, KVSizes, Memory, Window
from ggmlpy.ops.rope import RopeMode
from tests.oracle.model_defaults import ModelDefaults

N_NAMES = 24  # different tokens
SCALE = 0.4
FREQ_BASE = 50.0

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of attention."""

    H: int = 4
    Hk: int = 2
    D: int = 8
    Dv: int = 8
    window: Window | None = None
    is_causal: bool = True
    softcap: float = 0.0
    max_bias: float = 0.0
    has_sinks: bool = False
    is_latent: bool = False  # v is the first Dv elements of k
    is_read_twice: bool = False  # attention over what is stored, by queries of the next token
    n_rot: int = 0  # the last elements of k and q, which are rotated
    sections: tuple[int, int, int, int] | None = None  # with M-RoPE


class AttentionModel(ModelDefaults):
    """What a context needs of a model."""

    weights: Any = SimpleNamespace(leaves={}, of_output=frozenset())

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        rng = np.random.default_rng(3)
        n_v = 0 if kind.is_latent else kind.Dv
        sizes = KVSizes(kind.D, n_v, kind.Hk)
        self.memory: Memory = (
            AttentionLayers({0: sizes}, kind.window, kind.is_causal, kind.max_bias > 0),
        )
        self.hparams: Any = SimpleNamespace(
            architecture="attention", n_vocab=kind.Dv * kind.H, n_layer=1
        )
        self.n_pos_per_embd = 1 if kind.sections is None else 4
        self.q = rng.standard_normal((N_NAMES, kind.D * kind.H), dtype=np.float32)
        self.k = rng.standard_normal((N_NAMES, kind.D * kind.Hk), dtype=np.float32)
        self.v = rng.standard_normal((N_NAMES, kind.Dv * kind.Hk), dtype=np.float32)
        self.sinks = rng.standard_normal(kind.H, dtype=np.float32)
        self._leaves = {name: from_numpy(getattr(self, name)) for name in ("q", "k", "v", "sinks")}

    def rope_of(self, layer: int) -> Rope | None:
        """The rotation of keys."""
        kind = self.kind
        if not kind.n_rot:
            return None
        params = RopeParams(kind.n_rot, 4096, FREQ_BASE, 1.0, 0.0, 1.0, 32.0, 1.0)
        mode = RopeMode.NEOX if kind.sections is None else RopeMode.MROPE
        return Rope(params, mode, None, kind.sections, kind.D - kind.n_rot)

    def build(self, inputs: GraphInputs) -> Tensor:
        """[Dv*H, O]"""
        kind, T = self.kind, inputs.tokens.ne[0]

        def rows(name: str, heads: int) -> Tensor:
            taken = ops.get_rows(self._leaves[name], inputs.tokens)
            return ops.reshape_3d(taken, taken.ne[0] // heads, heads, T)

        q, k = rows("q", kind.H), rows("k", kind.Hk)  # [D, H, T], [D, Hk, T]
        rope = self.rope_of(0)
        if rope is not None:
            q, k = rope(q, inputs), rope(k, inputs)
        sinks = self._leaves["sinks"] if kind.has_sinks else None
        scores = Scores(SCALE, kind.softcap, kind.max_bias, sinks)
        if kind.is_latent:
            out = attend_latent(q, k, kind.Dv, inputs, 0, scores)  # [Dv*H, T]
        else:
            out = attend(q, k, rows("v", kind.Hk), inputs, 0, scores)  # [Dv*H, T]
        if kind.is_read_twice:
            out = ops.add(out, attend_stored(ops.scale(q, -0.5), inputs, 0, scores))
        return ops.get_rows(out, inputs.out_ids)

    # --- what it must be ---

    def expected(self, tokens: list[int], positions: list[int]) -> F64:
        """The logits of all tokens of a sequence, [tokens, Dv*H]."""
        kind, n = self.kind, len(tokens)
        q = self.q[tokens].reshape(n, kind.H, kind.D).astype(np.float64)
        k = self.k[tokens].reshape(n, kind.Hk, kind.D).astype(np.float64)
        v = self.v[tokens].reshape(n, kind.Hk, kind.Dv).astype(np.float64)
        if kind.is_latent:
            v = k[..., : kind.Dv]
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        y = self._attend(q, k, v, np.array(positions))
        if kind.is_read_twice:
            y += self._attend(-0.5 * q, k, v, np.array(positions))
        return y.reshape(n, -1)

    def _attend(self, q: F64, k: F64, v: F64, p: NDArray[np.int64]) -> F64:
        kind, (n, H, _) = self.kind, q.shape
        y = np.zeros((n, H, kind.Dv))
        for i, h in np.ndindex(n, H):
            at = np.flatnonzero(self._sees(int(p[i]), p))
            s = SCALE * (k[at, h // (H // kind.Hk)] @ q[i, h])
            if kind.softcap:
                s = kind.softcap * np.tanh(s / kind.softcap)
            if kind.max_bias:  # ALiBi of a number of heads that is a power of 2
                s = s - 2.0 ** (-kind.max_bias / H * (h + 1)) * np.abs(p[i] - p[at])
            sink = float(self.sinks[h]) if kind.has_sinks else -np.inf
            e = np.exp(s - s.max())
            y[i, h] = e @ v[at, h // (H // kind.Hk)] / (e.sum() + np.exp(sink - s.max()))
        return y

    def _sees(self, position: int, others: NDArray[np.int64]) -> NDArray[np.bool_]:
        kind = self.kind
        shown = others <= position if kind.is_causal else np.ones(len(others), np.bool_)
        match kind.window:
            case Window(size, "standard"):
                shown &= position - others < size
            case Window(size, "chunked"):
                shown &= others >= position // size * size
            case Window(size, "symmetric"):
                shown &= np.abs(position - others) <= size // 2
        return shown

    def _rotated(self, x: F64, positions: list[int]) -> F64:
        """Rows [n, heads, D], of which the last n_rot elements are rotated in pairs of two halves;
        with M-RoPE pairs of the fourth section have position 0."""
        n, half = self.kind.n_rot, self.kind.n_rot // 2
        if not n:
            return x
        theta = np.array(positions)[:, None] * FREQ_BASE ** (-2.0 * np.arange(half) / n)
        if self.kind.sections is not None:
            theta[:, sum(self.kind.sections[:3]) :] = 0
        first = x.shape[2] - n
        z = x[..., first : first + half] + 1j * x[..., first + half :]
        z = z * np.exp(1j * theta)[:, None]
        return np.concatenate([x[..., :first], z.real, z.imag], axis=2)

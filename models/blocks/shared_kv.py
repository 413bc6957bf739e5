"""Attention whose K and V may be those that an earlier layer stored (Gemma 3n, Gemma 4).

Letters in shapes: E n_embd, D head size, H heads, Hk K/V heads, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.attention import Scores, attend, attend_stored
from ggmlpy.models.blocks.basic import Linear, Norm, Rope
from ggmlpy.models.blocks.self_attention import heads
from ggmlpy.models.hparams import HParams, LayerParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerKV, LayerMemory
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class OwnKV:
    """What a layer stores: normed K, rotated, and V normed without a weight."""

    k: Linear  # [E, D*Hk]
    v: Linear | None  # [E, D*Hk]; None: V is K before its norm
    k_norm: Norm  # [D]
    v_norm: Norm


@dataclass(frozen=True, slots=True)
class SharedKVAttention:
    """Attention over what the layer `slot` stores, without scaling of q k^T."""

    layer: int
    slot: int
    params: LayerParams
    q: Linear  # [E, D*H]
    q_norm: Norm  # [D]
    own: OwnKV | None  # None: the layer `slot` is an earlier one
    rope: Rope
    output: Linear  # [D*H, E]
    is_causal: bool = True

    @classmethod
    def take(
        cls, weights: Weights, layer: int, h: HParams, rope: Rope, slot: int
    ) -> SharedKVAttention:
        """A layer's attention; it stores K and V if `slot` is its own number.

        K, V and the norm of K that other layers have in the file have no effect.
        """
        blk, E, p = f"blk.{layer}", h.n_embd, h.layers[layer]
        D, own = p.n_embd_head_k, None
        if slot == layer:
            has_v = weights.has(f"{blk}.attn_v.weight")
            own = OwnKV(
                k=Linear.take(weights, f"{blk}.attn_k", E, p.n_embd_k, node="Kcur"),
                v=Linear.take(weights, f"{blk}.attn_v", E, p.n_embd_v, node="Vcur")
                if has_v
                else None,
                k_norm=Norm.take(weights, f"{blk}.attn_k_norm", D, h, node="Kcur_normed"),
                v_norm=Norm.plain("Vcur_normed", h),
            )
        else:
            for name in ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight"):
                weights.without_effect(f"{blk}.{name}")
        return cls(
            layer=layer,
            slot=slot,
            params=p,
            q=Linear.take(weights, f"{blk}.attn_q", E, p.n_embd_q, node="Qcur"),
            q_norm=Norm.take(weights, f"{blk}.attn_q_norm", D, h, node="Qcur_normed"),
            own=own,
            rope=rope,
            output=Linear.take(weights, f"{blk}.attn_output", p.n_embd_out, E, node="kqv_wo"),
            is_causal=h.is_causal,
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """K and V, if the layer stores its own."""
        p = self.params
        if self.own is None:
            return ()
        return (LayerKV(self.slot, p.kv, p.window, self.is_causal, rope=self.rope),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        p = self.params
        q = self.q_norm(heads(self.q(x), p.n_head))  # [D, H, T]
        q = self.rope(q, inputs).named("Qcur_rope")
        if self.own is None:
            out = attend_stored(q, inputs, self.slot, Scores(1.0))  # [D*H, T]
        else:
            k = heads(self.own.k(x), p.n_head_kv)  # [D, Hk, T]
            v = k if self.own.v is None else heads(self.own.v(x), p.n_head_kv)  # [D, Hk, T]
            k = self.rope(self.own.k_norm(k), inputs).named("Kcur_rope")
            v = self.own.v_norm(v)
            out = attend(q, k, v, inputs, self.slot, Scores(1.0))  # [D*H, T]
        return self.output(out).named("attn_out")  # [E, T]


def kv_slot(h: HParams, layer: int, n_own: int) -> int:
    """Whose K and V a layer reads, where the first `n_own` store them: its own, or those of the
    last of the first that is of its kind; they alternate at that place."""
    if layer < n_own:
        return layer
    slot = n_own - (1 if h.layers[layer].window is None else 2)
    own, stored = h.layers[layer], h.layers[slot]
    if (own.window, own.n_embd_k, own.n_embd_v) != (
        stored.window,
        stored.n_embd_k,
        stored.n_embd_v,
    ):
        raise h.keys.error(
            "attention.sliding_window_pattern",
            f"one by which layer {layer} would read K and V of layer {slot}, of another kind",
            f"one whose layers before {n_own} end with one of each kind",
        )
    return slot

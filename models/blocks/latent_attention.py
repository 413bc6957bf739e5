"""Multi-head latent attention: K and V of all heads are linear maps of one small vector.

Source: DeepSeek-V2 (2024). A layer stores the vector c of each token, and the rotated part of its
keys, which all heads share. With absorption q is mapped into the space of c, so that attention has
one K/V head whose V is the first part of K; without it K and V of every head are stored.

Letters in shapes: E n_embd, H heads, D head size of q and k, of which R are rotated, Dv of v,
C size of c, L size of the vector that q is made of, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.attention import Scores, attend, attend_latent
from ggmlpy.models.blocks.basic import Linear, Norm, Rope
from ggmlpy.models.blocks.self_attention import Temperature, gated, heads
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import KVSizes, LayerKV, LayerMemory, Window
from ggmlpy.models.weights import Weights


@dataclass(frozen=True, slots=True)
class LowRankQ:
    """q = b(norm(a(x)))."""

    a: Linear  # [E, L]
    norm: Norm  # [L]
    b: Linear  # [L, D*H]

    def __call__(self, x: Tensor) -> Tensor:
        """x [E, T] -> [D*H, T]"""
        return self.b(self.norm(self.a(x)))


def take_q(
    weights: Weights, layer: int, h: HParams, n_out: int, *, scaled: bool = True
) -> Linear | LowRankQ:
    """The map to q, of low rank where the file has `attn_q_a`."""
    blk, E = f"blk.{layer}", h.n_embd
    if not weights.has(f"{blk}.attn_q_a.weight"):
        return Linear.take(weights, f"{blk}.attn_q", E, n_out, node="q_heads", scaled=scaled)
    n = h.keys.count("attention.q_lora_rank")
    return LowRankQ(
        Linear.take(weights, f"{blk}.attn_q_a", E, n, node="q_a", scaled=scaled),
        Norm.take(weights, f"{blk}.attn_q_a_norm", n, h, node="q_normed"),
        Linear.take(weights, f"{blk}.attn_q_b", n, n_out, node="q_heads", scaled=scaled),
    )


@dataclass(frozen=True, slots=True)
class Absorbed:
    """The maps of q into the space of c, and from there to v."""

    k_b: Tensor  # [D-R, C, H]
    v_b: Tensor  # [C, Dv, H]


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Sizes of a layer's heads."""

    n_head: int
    n_embd_head_k: int  # D
    n_embd_head_v: int  # Dv
    n_rot: int  # R
    n_lora_kv: int  # C

    @property
    def n_plain(self) -> int:
        """Elements of a head of q and k that are not rotated."""
        return self.n_embd_head_k - self.n_rot


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention of one layer, absorbed or not as the file has it."""

    layer: int
    sizes: LatentSizes
    q: Linear | LowRankQ  # [E, D*H]
    kv_a: Linear  # [E, C + R]
    kv_norm: Norm  # [C]
    kv_b: Linear | Absorbed  # [C, (D-R+Dv)*H]
    output: Linear  # [Dv*H, E]
    scale: float
    rope: Rope | None  # of R elements; None: no positions
    temperature: Temperature | None = None
    k_norm: Norm | None = None  # [R]: of the rotated part of the keys
    gate: Linear | None = None  # [E, H] or [E, Dv*H], see SelfAttention
    window: Window | None = None
    sinks: Tensor | None = None  # [H], see SelfAttention
    is_causal: bool = True

    @classmethod
    def take(
        cls,
        weights: Weights,
        layer: int,
        h: HParams,
        rope: Rope | None,
        *,
        scale: float | None = None,
        temperature: Temperature | None = None,
        suffix: str = "",
        scaled: bool = True,
        output_scaled: bool = True,
    ) -> LatentAttention:
        """A layer's attention: absorbed where the file has `attn_k_b` and `attn_v_b`.

        Then `attention.key_length` is that of the one head that is stored, and the heads' own sizes
        are `attention.{key,value}_length_mla`. The default scale is 1 / sqrt(D). With a suffix the
        keys of these sizes and of the latent's have it. Scales of weights are left unused unless
        `scaled`, and that of the map back unless `output_scaled`, as llama.cpp does in some.
        """
        blk, E, p, keys = f"blk.{layer}", h.n_embd, h.layers[layer], h.keys
        is_absorbed = weights.has(f"{blk}.attn_k_b.weight")
        D, Dv = p.n_embd_head_k, p.n_embd_head_v
        if is_absorbed:
            D = keys.count(f"attention.key_length_mla{suffix}")
            Dv = keys.count(f"attention.value_length_mla{suffix}")
        C, R, H = keys.count(f"attention.kv_lora_rank{suffix}"), p.rope.n_dims, p.n_head
        if D - is_absorbed < R:
            must_be = f"below {D}, the size of a head" if is_absorbed else f"at most {D}"
            raise keys.error("rope.dimension_count", R, must_be)
        sizes = LatentSizes(H, D, Dv, R, C)
        kv_b: Linear | Absorbed
        if is_absorbed:
            kv_b = Absorbed(
                weights.take(f"{blk}.attn_k_b.weight", D - R, C, H),
                weights.take(f"{blk}.attn_v_b.weight", C, Dv, H),
            )
        else:
            kv_b = Linear.take(weights, f"{blk}.attn_kv_b", C, (D - R + Dv) * H, node="kv")
        return cls(
            layer=layer,
            sizes=sizes,
            q=take_q(weights, layer, h, D * H, scaled=scaled),
            kv_a=Linear.take(
                weights, f"{blk}.attn_kv_a_mqa", E, C + R, node="kv_cmpr_pe", scaled=scaled
            ),
            kv_norm=Norm.take(weights, f"{blk}.attn_kv_a_norm", C, h, node="kv_cmpr"),
            kv_b=kv_b,
            output=Linear.take(
                weights, f"{blk}.attn_output", Dv * H, E, node="kqv_wo", scaled=output_scaled
            ),
            scale=1.0 / math.sqrt(D) if scale is None else scale,
            rope=None if rope is None or not R else rope.at(C if is_absorbed else D - R),
            temperature=temperature,
            k_norm=Norm.maybe(weights, f"{blk}.attn_k_norm", R, h, node="k_pe_normed"),
            gate=_take_gate(weights, layer, E, H, Dv),
            window=p.window,
            sinks=weights.maybe(f"{blk}.attn_sinks.weight", H),
            is_causal=h.is_causal,
        )

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        """c and the rotated part of the keys; not absorbed K and V of all heads."""
        s = self.sizes
        kv = KVSizes(s.n_embd_head_k, s.n_embd_head_v, s.n_head)
        if isinstance(self.kv_b, Absorbed):
            kv = KVSizes(s.n_lora_kv + s.n_rot, 0, 1)
        return (LayerKV(self.layer, kv, self.window, self.is_causal, rope=self.rope),)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        s = self.sizes
        q = heads(self.q(x), s.n_head)  # [D, H, T]
        kv = self.kv_a(x)  # [C + R, T]
        c = ops.view_2d(kv, s.n_lora_kv, kv.ne[1], kv.nb[1], 0)
        c = self.kv_norm(c)  # [C, T]
        k_pe = self._shared(kv, inputs)  # [R, 1, T]
        if isinstance(self.kv_b, Absorbed):
            out = self._absorbed(q, c, k_pe, self.kv_b, inputs)  # [Dv*H, T]
        else:
            out = self._by_head(q, self.kv_b(c), k_pe, inputs)  # [Dv*H, T]
        if self.gate is not None:
            out = gated(out, self.gate(x))
        return self.output(out).named("attn_out")  # [E, T]

    def _shared(self, kv: Tensor, inputs: GraphInputs) -> Tensor | None:
        """The part of the keys that all heads share: kv [C + R, T] -> [R, 1, T]; None if R is 0."""
        if not self.sizes.n_rot:
            return None
        k_pe = part(heads(kv, 1), self.sizes.n_lora_kv, self.sizes.n_rot)
        if self.k_norm is not None:
            k_pe = self.k_norm(k_pe)
        return self._rotated(k_pe, inputs, "k_pe")

    def _rotated(self, x: Tensor, inputs: GraphInputs, name: str) -> Tensor:
        """x [R, heads, T], rotated; without positions it is x."""
        return x if self.rope is None else self.rope.at(0)(x, inputs).named(name)

    def _absorbed(
        self, q: Tensor, c: Tensor, k_pe: Tensor | None, maps: Absorbed, inputs: GraphInputs
    ) -> Tensor:
        """q [D, H, T], c [C, T], k_pe [R, 1, T] -> [Dv*H, T]"""
        s = self.sizes
        q_plain = part(q, 0, s.n_plain).named("q_nope")  # [D-R, H, T]
        q_plain = ops.permute(q_plain, 0, 2, 1, 3)  # [D-R, T, H]
        q_c = ops.mul_mat(maps.k_b, q_plain).named("q_nope_absorbed")  # [C, T, H]
        q_c = ops.permute(q_c, 0, 2, 1, 3)  # [C, H, T]
        k = ops.reshape_3d(c, s.n_lora_kv, 1, c.ne[1])  # [C, 1, T]
        if k_pe is not None:
            q_pe = part(q, s.n_plain, s.n_rot).named("q_pe_before")  # [R, H, T]
            q_pe = self._rotated(q_pe, inputs, "q_pe")
            q_c = ops.concat(q_c, q_pe, 0)  # [C + R, H, T]
            k = ops.concat(k, k_pe, 0)  # [C + R, 1, T]
        elif not q_c.contiguous:
            q_c = ops.cont(q_c)
        q_c = self._warmed(q_c.named("Qcur"), inputs)
        scores = Scores(self.scale, sinks=self.sinks)
        k = k.named("Kcur")
        out = attend_latent(q_c, k, s.n_lora_kv, inputs, self.layer, scores)  # [C*H, T]
        out = ops.reshape_3d(out, s.n_lora_kv, s.n_head, c.ne[1])  # [C, H, T]
        v = ops.mul_mat(maps.v_b, ops.permute(out, 0, 2, 1, 3)).named("fattn_mla")  # [Dv, T, H]
        v = ops.cont(ops.permute(v, 0, 2, 1, 3)).named("fattn_mla_cont")  # [Dv, H, T]
        return ops.reshape_2d(v, s.n_embd_head_v * s.n_head, c.ne[1])

    def _by_head(self, q: Tensor, kv: Tensor, k_pe: Tensor | None, inputs: GraphInputs) -> Tensor:
        """q [D, H, T], kv [(D-R+Dv)*H, T], k_pe [R, 1, T] -> [Dv*H, T]"""
        s, T = self.sizes, q.ne[2]
        kv = heads(kv, s.n_head)  # [D-R+Dv, H, T]
        v = part(kv, s.n_plain, s.n_embd_head_v).named("v_part")
        v = ops.cont(v).named("Vcur")  # [Dv, H, T]
        k = k_pe
        if k_pe is not None:
            k = ops.repeat_4d(k_pe, s.n_rot, s.n_head, T, 1).named("k_pe_repeated")  # [R, H, T]
        if s.n_plain:
            plain = part(kv, 0, s.n_plain).named("k_nope")  # [D-R, H, T]
            k = ops.cont(plain) if k is None else ops.concat(plain, k, 0)  # [D, H, T]
        assert k is not None
        if self.rope is not None:
            q = self.rope(q, inputs).named("Qcur_rope")
        q = self._warmed(q, inputs)
        k = k.named("Kcur")
        return attend(q, k, v, inputs, self.layer, Scores(self.scale, sinks=self.sinks))

    def _warmed(self, q: Tensor, inputs: GraphInputs) -> Tensor:
        return q if self.temperature is None else self.temperature(q, inputs)


def _take_gate(weights: Weights, layer: int, E: int, H: int, Dv: int) -> Linear | None:
    """A layer's `attn_gate`: of each head, or of each element."""
    name = f"blk.{layer}.attn_gate"
    if not weights.has(f"{name}.weight"):
        return None
    n = H if weights.ne(f"{name}.weight")[1] == H else Dv * H
    return Linear.take(weights, name, E, n, scaled=False)


def part(x: Tensor, first: int, n: int) -> Tensor:
    """Elements first .. first + n - 1 of every head of x [D, H, T]: [n, H, T]"""
    return ops.view_3d(x, n, x.ne[1], x.ne[2], x.nb[1], x.nb[2], first * x.type.row_bytes(1))


def yarn_scale(rope: Rope, log_multiplier: float, n_embd_head: int) -> float:
    """The scale of q k^T where YaRN's factor of the magnitude counts for all elements of a head."""
    r = rope.params
    growth = math.log(1.0 / r.freq_scale)
    mscale = r.attn_factor * (1.0 + 0.1 * growth) * (1.0 + 0.1 * log_multiplier * growth)
    return mscale * mscale / math.sqrt(n_embd_head)

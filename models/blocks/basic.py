"""The smallest blocks of architectures: linear maps, norms, rotary embeddings.

Each is a dataclass of its tensors. `take` looks them up in the file and checks them; calling the
block adds it to the graph.

Nodes have llama.cpp's names. Where it gives one name to several nodes in a row, the first one has
it here, and the others have a suffix: Qcur, Qcur_b with the bias, Qcur_rope with the position.

Letters in shapes: E n_embd, D head size of q and k, H heads, Hk K/V heads, V n_vocab, T tokens.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.adapted import add_lora
from ggmlpy.models.hparams import HParams, RopeParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode


@dataclass(frozen=True, slots=True)
class Linear:
    """scale * W x + bias. Some quantised weights are stored relative to a scale.

    LoRA adapters add to scale * W, or where the bias comes first to W, as in llama.cpp.
    """

    name: str  # of the product's node
    weight: Tensor  # [n_in, n_out]
    bias: Tensor | None  # [n_out]
    scale: Tensor | None  # [1]
    bias_first: bool = False  # scale * (W x + bias)

    @classmethod
    def take(
        cls,
        weights: Weights,
        name: str,
        n_in: int,
        n_out: int,
        *,
        node: str | None = None,
        scaled: bool = True,
        biased: bool = True,
        bias_first: bool = False,
    ) -> Linear:
        """The tensor `name.weight`, and `name.bias` and `name.scale` where the file has them.

        The product's node is called `node`, or else after the weight. A scale has no effect unless
        `scaled`, nor has that of inputs quantised to nvfp4, nor a bias unless `biased`: llama.cpp,
        which loads them, leaves them unused too.
        """
        weights.without_effect(f"{name}.input_scale")
        if not scaled:
            weights.without_effect(f"{name}.scale")
        if not biased:
            weights.without_effect(f"{name}.bias")
        return cls(
            name=node or _within_layer(name),
            weight=weights.take(f"{name}.weight", n_in, n_out),
            bias=weights.maybe(f"{name}.bias", n_out) if biased else None,
            scale=weights.maybe(f"{name}.scale", 1) if scaled else None,
            bias_first=bias_first,
        )

    @classmethod
    def take_output(
        cls, weights: Weights, h: HParams, *, biased: bool = True, of_some: bool = False
    ) -> Linear:
        """The map to logits [E, V]: `output.weight`, or the token embedding if it is missing.

        `of_some` if `output.weight` may have fewer rows than V.
        """
        V = h.n_vocab
        if of_some and weights.has("output.weight"):
            V = min(V, weights.ne("output.weight")[1])
        weight = weights.maybe("output.weight", h.n_embd, V)
        if weight is None:
            weights.take("token_embd.weight", h.n_embd, h.n_vocab)
            weight = weights.duplicate("token_embd.weight", "output.weight")
        weights.without_effect("output.input_scale")
        if not biased:
            weights.without_effect("output.bias")
        return cls(
            name="output",
            weight=weight,
            bias=weights.maybe("output.bias", weight.ne[1]) if biased else None,
            scale=weights.maybe("output.scale", 1),
        )

    def __call__(self, x: Tensor) -> Tensor:
        y = ops.mul_mat(self.weight, x).named(self.name)  # [n_out, T]
        if self.bias_first:
            y = self._biased(add_lora(y, self.weight, x, self.name))
        if self.scale is not None:
            y = ops.mul(y, self.scale).named(f"{self.name}_s")
        return y if self.bias_first else self._biased(add_lora(y, self.weight, x, self.name))

    def _biased(self, y: Tensor) -> Tensor:
        return y if self.bias is None else ops.add(y, self.bias).named(f"{self.name}_b")


NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm (Zhang and Sennrich, 2019) or LayerNorm (Ba et al., 2016) over dimension 0, times
    the weight as stored, plus the bias."""

    name: str  # of the result's node
    kind: NormKind
    weight: Tensor | None  # [n], or [n, n_head] with one for each head
    bias: Tensor | None
    eps: float

    @classmethod
    def take(
        cls,
        weights: Weights,
        name: str,
        ne: int | tuple[int, int],
        h: HParams,
        kind: NormKind = "rms",
        *,
        node: str | None = None,
    ) -> Norm:
        """The tensor `name.weight` of shape `ne`, and `name.bias` where the file has it.

        Files of Falcon-H1 have `name` without a suffix. The result's node is called `node`, or else
        after the weight.
        """
        shape = (ne,) if isinstance(ne, int) else ne
        weight = weights.take(name if weights.has(name) else f"{name}.weight", *shape)
        return cls(
            node or _within_layer(name), kind, weight, weights.maybe(f"{name}.bias", *shape),
            _eps(h, kind),
        )  # fmt: skip

    @classmethod
    def maybe(
        cls,
        weights: Weights,
        name: str,
        ne: int | tuple[int, int],
        h: HParams,
        kind: NormKind = "rms",
        *,
        node: str | None = None,
    ) -> Norm | None:
        """As `take`, but None if the file does not have the weight."""
        if not weights.has(f"{name}.weight"):
            return None
        return cls.take(weights, name, ne, h, kind, node=node)

    @classmethod
    def plain(cls, name: str, h: HParams, kind: NormKind = "rms") -> Norm:
        """A norm without weights, whose node is called `name`."""
        return cls(name, kind, None, None, _eps(h, kind))

    def spans(self, n: int) -> bool:
        """Whether the weight is of rows of n elements."""
        return self.weight is not None and self.weight.ne[0] == n

    def __call__(self, x: Tensor) -> Tensor:
        y = (ops.rms_norm if self.kind == "rms" else ops.norm)(x, self.eps)
        if self.weight is None:
            return y.named(self.name)
        y = ops.mul(y.named(f"{self.name}.norm"), self.weight)
        if self.bias is None:
            return y.named(self.name)
        return ops.add(y.named(f"{self.name}_w"), self.bias).named(self.name)


def _eps(h: HParams, kind: NormKind) -> float:
    return h.rms_norm_eps if kind == "rms" else h.layer_norm_eps


def _within_layer(name: str) -> str:
    """`blk.3.ffn_up` -> `ffn_up`"""
    return re.sub(r"^blk\.\d+\.", "", name)


@dataclass(frozen=True, slots=True)
class RopeFactors:
    """Factors that divide the frequencies: one set, or two of longrope (Ding et al., 2024)."""

    short: Tensor  # [n_dims/2]
    long: Tensor  # [n_dims/2]: for contexts of more than n_ctx_orig positions

    @classmethod
    def maybe(cls, weights: Weights, n_dims: int) -> RopeFactors | None:
        """The file's factors; None if it has none."""
        n = n_dims // 2
        both = weights.maybe("rope_freqs.weight", n)
        if both is not None:
            return cls(both, both)
        if not weights.has("rope_factors_long.weight"):
            return None
        return cls(
            weights.take("rope_factors_short.weight", n),
            weights.take("rope_factors_long.weight", n),
        )


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding, with the parameters of an architecture.

    M-RoPE (Wang et al., 2024) has `sections`: how many pairs are rotated by each of a token's four
    positions. Those of text are its position three times, and 0.
    """

    params: RopeParams
    mode: RopeMode
    factors: RopeFactors | None = None
    sections: tuple[int, int, int, int] | None = None
    offset: int = 0  # the first element of a head that is rotated

    def at(self, offset: int) -> Rope:
        """The same from another element on."""
        return replace(self, offset=offset)

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """Rotate x [D, H, T] by the positions of its tokens."""
        long = inputs.n_ctx_seq > self.params.n_ctx_orig
        if self.sections is None:
            return self._rotate(x, inputs.positions, self._chosen(long), self.params.attn_factor)
        assert inputs.positions4 is not None
        return self._rotate(x, inputs.positions4, self._chosen(long), self.params.attn_factor)

    def shift(self, keys: Tensor, deltas: Tensor, n_ctx_seq: int) -> Tensor:
        """Rotate stored keys [D, Hk, n] by position deltas [n] (KV shift); no magnitude scaling.

        With M-RoPE deltas are [4*n], as positions are.
        """
        r = self.params
        # With YaRN rope_ext multiplies by this factor, which stored keys already contain.
        yarn = 1.0 + 0.1 * math.log(1.0 / r.freq_scale) if r.ext_factor else 1.0
        return self._rotate(keys, deltas, self._chosen(n_ctx_seq > r.n_ctx_orig), 1.0 / yarn)

    def _chosen(self, long: bool) -> Tensor | None:
        if self.factors is None:
            return None
        return self.factors.long if long else self.factors.short

    def _rotate(
        self, x: Tensor, positions: Tensor, factors: Tensor | None, attn_factor: float
    ) -> Tensor:
        r = self.params
        if self.sections is not None:
            y = ops.rope_multi(
                x, positions, factors, r.n_dims, self.sections, self.mode, r.n_ctx_orig,
                r.freq_base, r.freq_scale, r.ext_factor, attn_factor, r.beta_fast, r.beta_slow,
            )  # fmt: skip
        else:
            y = ops.rope_ext(
                x, positions, factors, r.n_dims, self.mode, r.n_ctx_orig,
                r.freq_base, r.freq_scale, r.ext_factor, attn_factor, r.beta_fast, r.beta_slow,
            )  # fmt: skip
        return ops.rope_set_offset(y, self.offset) if self.offset else y

"""Attention of a decoder to what an encoder has made of a sequence's source.

K and V follow from the source alone: the encoder's graph stores them once, for every layer of the
decoder, and a token of the decoder reads them.

Letters in shapes: E n_embd, D head size of q and k, Dv of v, H heads, Hk K/V heads, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ggmlpy.common.scopes import scope
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.attention import Scores, attend_source
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.self_attention import heads
from ggmlpy.models.hparams import LayerParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import KVSizes


@dataclass(frozen=True, slots=True)
class SourceKV:
    """K and V of the source for one layer of the decoder, in the slot `slot`."""

    slot: int
    sizes: KVSizes
    k: Linear  # [E, D*Hk]
    v: Linear  # [E, Dv*Hk]

    def store(self, x: Tensor, inputs: GraphInputs) -> None:
        """Write those of the encoder's results x [E, T]."""
        n_head_kv = self.sizes.n_head_kv
        k, v = heads(self.k(x), n_head_kv), heads(self.v(x), n_head_kv)  # [D, Hk, T], [Dv, Hk, T]
        with scope("cross"):
            for stored in inputs.kv_of(self.slot).store(self.slot, k, v):
                inputs.write(stored)


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """softmax(scale q k^T) v over all of the source, mapped back. Positions have no effect."""

    slot: int
    params: LayerParams
    q: Linear  # [E, D*H]
    output: Linear  # [Dv*H, E]
    scale: float

    def __call__(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        """x [E, T] -> [E, T]"""
        p = self.params
        q = heads(self.q(x), p.n_head)  # [D, H, T]
        with scope("cross"):
            out = attend_source(q, p.n_head_kv, inputs, self.slot, Scores(self.scale))
        return self.output(out).named("cross_out")

"""BERT and its descendants: LayerNorm after the sum of each block, learned or rotary positions.

BERT (Devlin et al., 2018), among them XLM-RoBERTa's embeddings and rerankers; Nomic Embed
(Nussbaum et al., 2024), whose second version has experts in every other layer; Jina v2 (Günther et
al., 2023) with ALiBi, and Jina v3 (Sturua et al., 2024) with rotary positions.

Letters in shapes: E n_embd, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.adapted import lookup
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.classifier import Classifier
from ggmlpy.models.blocks.experts import Experts, take_router
from ggmlpy.models.blocks.feed_forward import Activation
from ggmlpy.models.blocks.layers import Mixer, PerToken, output_rows
from ggmlpy.models.encoder import Encoder
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerMemory

MAX_ALIBI_BIAS = 8.0


@dataclass(frozen=True, slots=True)
class PostNormLayer:
    """norm(x + mixer(x)), then norm(x + ffn(x)). With a second norm after the mixer the layer's
    input is added once more before it."""

    mixer: Mixer
    attn_norm: Norm
    attn_norm_2: Norm | None
    ffn: PerToken
    ffn_norm: Norm

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        h = self.mixer(x, inputs)  # [E, T]
        if is_last:
            x, h = output_rows(inputs, x, h)  # [E, O]
        h = self.attn_norm(ops.add(h, x).named("attn_sum"))
        if self.attn_norm_2 is not None:
            h = self.attn_norm_2(ops.add(h, x).named("attn_sum_2"))
        return self.ffn_norm(ops.add(self.ffn(h), h).named("ffn_sum"))


class Bert(Encoder):
    """A bert model."""

    norms = "layer"
    output_norm_name = None
    rotary = False
    rope_factored = False
    activation: ClassVar[Activation] = "gelu"
    learned_positions = True
    n_dense: int | None = None  # of the classifier

    def set_up(self) -> None:
        """The embeddings of positions and of the first type of token, the norm of the sum."""
        h, weights = self.hparams, self.weights
        self.type_embd: Tensor | None = None
        if weights.has("token_types.weight"):
            n_types = weights.ne("token_types.weight")[1]
            self.type_embd = weights.take("token_types.weight", h.n_embd, n_types)
        if self.learned_positions:
            self.take_positions()
        self.embd_norm = Norm.take(
            weights, "token_embd_norm", h.n_embd, h, "layer", node="inp_norm"
        )
        self.classifier = Classifier.maybe(weights, h, n_dense=self.n_dense)

    def layer(self, i: int) -> PostNormLayer:
        """Layer i."""
        return PostNormLayer(
            mixer=self.mixer(i),
            attn_norm=self.norm(i, "attn_output_norm"),
            attn_norm_2=self.attn_norm_2(i),
            ffn=self.ffn(i),
            ffn_norm=self.norm(i, "layer_output_norm", node="l_out"),
        )

    def attn_norm_2(self, i: int) -> Norm | None:
        """A second norm after attention, if layer i has one."""
        return None

    def embed(self, inputs: GraphInputs) -> Tensor:
        """The embeddings of tokens, plus those of their type (all are of the first text) and of
        their position, normed: [E, T]"""
        x = lookup(self.token_embd, inputs.tokens, "inp_embd")
        if self.type_embd is not None:
            x = ops.add(x, ops.view_1d(self.type_embd, self.hparams.n_embd, 0)).named("inp_typed")
        if self.pos_embd is not None:
            positions = ops.get_rows(self.pos_embd, inputs.positions).named("pos_embd")
            x = ops.add(positions, x).named("inp_positioned")
        assert self.embd_norm is not None
        return self.embd_norm(x)

    def embeddings(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output, which is normed: [E, O]"""
        return self.hidden(inputs).named("result_embd")


class NomicBert(Bert):
    """A nomic-bert model: SwiGLU without biases."""

    rotary = True
    learned_positions = False
    activation = "silu"
    ffn_biased = False


class JinaBert3(Bert):
    """A jina-bert-v3 model."""

    rotary = True
    learned_positions = False


class NomicBertMoE(JinaBert3):
    """A nomic-bert-moe model: experts in the second layer of every `moe_every_n_layers`."""

    def ffn(self, i: int) -> PerToken:
        """Experts, whose weights do not sum to one, or a dense block."""
        h = self.hparams
        period = h.keys.whole("moe_every_n_layers", 0)
        if not period or i % period != 1:
            return super().ffn(i)
        router = take_router(self.weights, i, h, normalise=False)
        n_ff = h.layers[i].n_ff
        return Experts.take(self.weights, i, h, router, activation="gelu", n_ff=n_ff, scaled=False)


class JinaBert2(Bert):
    """A jina-bert-v2 model: ALiBi (Press et al., 2021) and GEGLU; some norm q and k over all heads,
    and some norm twice after attention."""

    learned_positions = False
    max_bias = MAX_ALIBI_BIAS
    qk_norm = "layer"
    n_dense = 1

    def attn_norm_2(self, i: int) -> Norm | None:
        """A second norm after attention, if layer i has one."""
        h = self.hparams
        return Norm.maybe(self.weights, f"blk.{i}.attn_norm_2", h.n_embd, h, "layer")

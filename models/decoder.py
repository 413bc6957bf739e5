"""The part that all decoders share: embedding, layers in sequence, norm, logits.

An architecture's own file defines its layers, and what it does differently.

Letters in shapes: E n_embd, V n_vocab, T tokens, O outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.errors import ShapeError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.count import same_counts
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.adapted import lookup
from ggmlpy.models.blocks.basic import Linear, Norm, NormKind, Rope, RopeFactors
from ggmlpy.models.blocks.classifier import Classifier
from ggmlpy.models.blocks.layers import HasMemory, Layer
from ggmlpy.models.hparams import HParams, rope_sections
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerKV, LayerState, Memory, memory_of
from ggmlpy.models.weights import Weights
from ggmlpy.ops.rope import RopeMode


class Decoder:
    """The graph of a model: `build(inputs)` gives the logits [V, O].

    A subclass reads its hyper-parameters, makes its layers by `make_layers`, and may override
    `embed`, `hidden` and `logits`.
    """

    n_pos_per_embd = 1  # 4 for M-RoPE
    n_ctx_limit: int | None = None  # the longest context that is supported
    limited_by = ""  # why
    position_limited = False  # True: positions must be below that limit too
    fixed_by = ""  # why the positions of stored keys cannot be moved
    can_generate = True  # False: an encoder, or a diffusion model
    output_biased = True  # False: a bias of the logits is left unused, as llama.cpp does in some
    output_of_some = False  # True: there may be logits of the last tokens only
    rope_factored = True  # False: factors of frequencies are left unused, likewise
    has_logits = True  # False: an encoder, whose graph gives embeddings
    encoder: Decoder | None = None  # of an encoder-decoder model, see `ggmlpy.models.Model`
    start_token: int | None = None  # where the vocabulary's BOS does not begin what it decodes
    embedding_scale = 1.0
    logit_scale = 1.0
    softcap = 0.0  # softcap * tanh(y / softcap) of the logits y

    def __init__(
        self,
        file: GGUFFile,
        hparams: HParams,
        *,
        output_norm: str | None = "output_norm",
        norm: NormKind = "rms",
        weights: Weights | None = None,
    ) -> None:
        """`norm` is the kind of all norms, unless a layer says otherwise. An `output_norm` of None
        has no weights. `weights` are those of a model of which this is a part."""
        self.hparams = h = hparams
        self.norm_kind = norm
        self.weights = Weights(file) if weights is None else weights
        self.weights.ignore_layers(range(h.n_layer, h.keys.n_layer_all))
        if not self.rope_factored:
            self.weights.without_effect("rope_freqs.weight")
        self.token_embd = self.weights.take("token_embd.weight", h.n_embd, h.n_vocab)
        self.pos_embd: Tensor | None = None
        self.embd_norm: Norm | None = None
        if output_norm is not None:
            self.weights.declare_output(output_norm)
        self.output_norm: Norm = (
            Norm.plain("result_norm", h, norm)
            if output_norm is None
            else Norm.take(self.weights, output_norm, h.n_embd, h, norm, node="result_norm")
        )
        if self.has_logits:
            self.output = Linear.take_output(
                self.weights, h, biased=self.output_biased, of_some=self.output_of_some
            )
        self.classifier: Classifier | None = None
        self.layers: list[Layer] = []
        self.memory: Memory = ()
        self.ropes: dict[int, Rope | None] = {}  # by slot

    @property
    def n_block(self) -> int:
        """Layers by which weights and memory are placed."""
        return self.hparams.n_layer

    def norm(self, layer: int, name: str, *, node: str | None = None) -> Norm:
        """A layer's norm over E: the tensor `blk.{layer}.{name}`."""
        h = self.hparams
        full = f"blk.{layer}.{name}"
        return Norm.take(self.weights, full, h.n_embd, h, self.norm_kind, node=node)

    def take_positions(self) -> None:
        """Add the embeddings of positions, which the training has learned up to its length."""
        h = self.hparams
        self.pos_embd = self.weights.take("position_embd.weight", h.n_embd, h.n_ctx_train)
        self.n_ctx_limit = h.n_ctx_train
        self.limited_by = "it has embeddings of that many positions"
        self.position_limited = True
        self.fixed_by = "those of the model are learned, and part of its embeddings"

    def leave_indexer(self, n_ctx: int | None) -> None:
        """Leave the indexer unused, which chooses what is attended to in contexts of more than
        `n_ctx` tokens: those are refused."""
        self.n_ctx_limit = n_ctx
        self.limited_by = "longer ones need its sparse attention, which is not supported"
        self.weights.without_effect_where(re.compile(r"blk\.\d+\.indexer[._]"))

    def rope(self, layer: int, mode: RopeMode) -> Rope:
        """A layer's rotary embedding, with the factors and sections of the file if it has any."""
        params = self.hparams.layers[layer].rope
        factors = None
        if self.rope_factored:
            factors = RopeFactors.maybe(self.weights, params.n_dims)
        if mode.n_axes == 1:
            return Rope(params, mode, factors)
        self.n_pos_per_embd = mode.n_axes
        return Rope(params, mode, factors, rope_sections(self.hparams.keys))

    def make_layers(self, make: Callable[[int], Layer]) -> None:
        """Set `layers`, one for each number, and the memory that they need."""
        self.layers = [make(i) for i in range(self.hparams.n_layer)]
        self.remember(self.layers)

    def remember(self, layers: Iterable[HasMemory]) -> None:
        """Set the memory that layers need, and the rotary embeddings of their keys."""
        parts = [part for layer in layers for part in layer.memory]
        self.memory = memory_of(parts)
        if any(isinstance(part, LayerState) for part in parts):
            # Their heads or tensors tell which layers are recurrent.
            self.hparams.keys.without_effect("attention.recurrent_layers")
        self.ropes = {part.slot: part.rope for part in parts if isinstance(part, LayerKV)}

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary embedding of the keys that an attention layer stores; None if it has none."""
        return self.ropes[layer]

    def build(self, inputs: GraphInputs) -> Tensor:
        """Logits [V, O] of the tokens that are output."""
        return self.logits(self.embeddings(inputs)).named("result_output")

    def embeddings(self, inputs: GraphInputs) -> Tensor:
        """What `hidden` gives, normed: [E, O]

        Raises ShapeError for layers that give something of the other tokens too.
        """
        x, n_outputs = self.hidden(inputs), inputs.out_ids.ne[0]
        if x.ne[1] != n_outputs or not same_counts(x.ne[1:2], (n_outputs,)):
            raise ShapeError(
                f"the last layer gives {x.spec.shape_text}: it must give [{x.ne[0]}, {n_outputs}]:"
                " a Layer takes `output_rows` where `is_last`"
            )
        return self.output_norm(x)

    def hidden(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output: [E, O]"""
        x = self.embed(inputs)  # [E, T]
        for i, layer in enumerate(self.layers):
            with scope(layer=i):
                x = layer(x, inputs, is_last=i == len(self.layers) - 1)  # [E, T], in the end [E, O]
                x = inputs.steer(i, x)
        return x

    def embed(self, inputs: GraphInputs) -> Tensor:
        """The embeddings of the tokens: [E, T]"""
        x = lookup(self.token_embd, inputs.tokens, "inp_embd")
        if self.embedding_scale != 1.0:
            x = ops.scale(x, self.embedding_scale).named("inp_scaled")
        if self.pos_embd is not None:
            positions = ops.get_rows(self.pos_embd, inputs.positions).named("pos_embd")
            x = ops.add(x, positions).named("inpL")
        return x if self.embd_norm is None else self.embd_norm(x)

    def logits(self, x: Tensor) -> Tensor:
        """x [E, O], normed -> [V, O]"""
        y = self.output(x)
        if self.logit_scale != 1.0:
            y = ops.scale(y, self.logit_scale).named("output_scaled")
        if not self.softcap:
            return y
        with scope("softcap"):
            return ops.scale(ops.tanh(ops.scale(y, 1.0 / self.softcap)), self.softcap)

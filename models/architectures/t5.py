"""T5: an encoder of a source, and a decoder whose tokens attend to all of it.

Raffel et al., 2020. The layers of the decoder have attention among its tokens, with a learned bias
for each bucket of distances, then attention to the source, then the feed-forward block.

Letters in shapes: E n_embd, V n_vocab, T tokens, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.architectures.t5_encoder import RelativeAttention, Stack, T5Encoder, n_buckets
from ggmlpy.models.blocks.basic import Norm
from ggmlpy.models.blocks.cross_attention import CrossAttention, SourceKV
from ggmlpy.models.blocks.feed_forward import FeedForward
from ggmlpy.models.blocks.layers import output_rows
from ggmlpy.models.decoder import Decoder
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import LayerKV, LayerMemory, memory_of


@dataclass(frozen=True, slots=True)
class CrossLayer:
    """x + attention(norm(x)), then x + cross(norm(x)), then x + ffn(norm(x))."""

    attn_norm: Norm
    mixer: RelativeAttention
    cross_norm: Norm
    cross: CrossAttention
    ffn_norm: Norm
    ffn: FeedForward

    @property
    def memory(self) -> tuple[LayerMemory, ...]:
        return self.mixer.memory

    def __call__(self, x: Tensor, inputs: GraphInputs, *, is_last: bool) -> Tensor:
        h = self.mixer(self.attn_norm(x), inputs)  # [E, T]
        x = ops.add(x, h).named("cross_inp")
        h = self.cross(self.cross_norm(x), inputs)  # [E, T]
        if is_last:
            x, h = output_rows(inputs, x, h)  # [E, O]
        x = ops.add(x, h).named("ffn_inp")
        return ops.add(x, self.ffn(self.ffn_norm(x))).named("l_out")


class SourceEncoder(T5Encoder):
    """T5's encoder, whose graph also stores K and V for the layers of the decoder."""

    def __init__(self, file: GGUFFile, decoder: T5, hparams: HParams) -> None:
        """`hparams` are those of the file, which describe the encoder."""
        super().__init__(file, hparams=replace(hparams, is_causal=False), weights=decoder.weights)
        self._n_block = decoder.n_block
        self.sources = [self._source_kv(i, decoder.stack) for i in range(decoder.hparams.n_layer)]
        parts = [part for layer in self.layers for part in layer.memory]
        assert isinstance(parts[0], LayerKV)
        for source in self.sources:
            parts.append(replace(parts[0], slot=source.slot, sizes=source.sizes))
        self.memory = memory_of(parts)

    @property
    def n_block(self) -> int:
        return self._n_block

    def _source_kv(self, i: int, stack: Stack) -> SourceKV:
        """K and V for layer i of the decoder, whose layers are `stack`."""
        E, p = self.hparams.n_embd, stack.hparams.layers[i]
        return SourceKV(
            slot=self.n_block + i,
            sizes=p.kv,
            k=stack.linear(i, "cross_attn_k", E, p.n_embd_k, "Kcur_cross"),
            v=stack.linear(i, "cross_attn_v", E, p.n_embd_v, "Vcur_cross"),
        )

    def build(self, inputs: GraphInputs) -> Tensor:
        """The embeddings [E, O] of the tokens that are output. K and V of all tokens are stored."""
        x = self.embed(inputs)  # [E, T]
        for i, layer in enumerate(self.layers):
            with scope(layer=i):
                x = layer(x, inputs, is_last=False)  # [E, T]
        x = self.output_norm(x)
        for i, source in enumerate(self.sources):
            with scope(layer=i):
                source.store(x, inputs)
        return ops.get_rows(x, inputs.out_ids).named("result_norm_outputs")


class T5(Decoder):
    """A t5 model: the decoder, with its `encoder`."""

    def __init__(self, file: GGUFFile) -> None:
        of_encoder = read_hparams(file)
        keys = of_encoder.keys
        n_layer = keys.layers("decoder_block_count", of_encoder.n_layer)
        # As llama.cpp: all layers of the decoder are like the first one of the encoder.
        hparams = replace(of_encoder, layers=of_encoder.layers[:1] * n_layer)
        super().__init__(file, hparams, output_norm="dec.output_norm")
        self.stack = Stack("dec", self.weights, hparams, n_buckets(keys, is_causal=True))
        self._n_block = max(n_layer, of_encoder.n_layer)
        self.start_token = self._read_start_token()
        self.make_layers(self.layer)
        self.encoder = SourceEncoder(file, self, of_encoder)

    @property
    def n_block(self) -> int:
        return self._n_block

    def _read_start_token(self) -> int | None:
        h, key = self.hparams, "decoder_start_token_id"
        if not h.keys.has(key):
            return None
        token = h.keys.whole(key, 0)
        if token >= h.n_vocab:
            raise h.keys.error(key, token, f"below {h.n_vocab}, the size of the vocabulary")
        return token

    def layer(self, i: int) -> CrossLayer:
        """Layer i."""
        stack, E, p = self.stack, self.hparams.n_embd, self.hparams.layers[i]
        self.weights.without_effect(f"dec.blk.{i}.cross_attn_rel_b.weight")  # some files have it
        return CrossLayer(
            attn_norm=stack.norm(i, "attn_norm"),
            mixer=stack.attention(i, is_causal=True),
            cross_norm=stack.norm(i, "cross_attn_norm", "attn_norm_cross"),
            cross=CrossAttention(
                slot=self.n_block + i,
                params=p,
                q=stack.linear(i, "cross_attn_q", E, p.n_embd_q, "Qcur_cross"),
                output=stack.linear(i, "cross_attn_o", p.n_embd_out, E, "cross_wo"),
                scale=1.0,
            ),
            ffn_norm=stack.norm(i, "ffn_norm"),
            ffn=stack.ffn(i),
        )

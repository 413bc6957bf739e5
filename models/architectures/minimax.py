"""MiniMax-M2: experts weighed by a sigmoid, with a selection bias; norms over all heads of q and k;
partial rope. MiniMax, 2025.

MiniMax-M3 (2026) has dense layers first, shared experts, and norms of every head. Its layers with
experts attend to blocks of positions that an indexer chooses. Up to `attention.indexer.top_k` of
them it chooses all, and the result is that of full attention; longer contexts are refused, and so
are positions behind that many blocks.
"""

from __future__ import annotations

from ggmlpy.models.expert_decoder import ExpertDecoder, SharedExpertDecoder


class MiniMaxM2(ExpertDecoder):
    """A minimax-m2 model."""

    qk_norm = "rms"
    output_bias = False
    gating = None

    def n_ff_expert(self, i: int) -> int:
        """Of a dense block's size, which the file gives."""
        return self.hparams.layers[i].n_ff


class MiniMaxM3(SharedExpertDecoder):
    """A minimax-m3 model."""

    qk_norm = "rms"
    output_bias = False
    output_biased = False
    rope_factored = False
    gating = None
    ffn_biased = False
    activation = "swiglu_oai"
    expert_activation = "swiglu_oai"

    def set_up(self) -> None:
        """The longest context for which the indexer need not be asked."""
        super().set_up()
        keys = self.hparams.keys
        n_blocks = keys.count("attention.indexer.top_k")
        self.leave_indexer(n_blocks * keys.count("attention.indexer.block_size"))
        self.position_limited = True

"""HRM-Text: two stacks of layers that run in turn, one slow and one fast, over the same tokens.

After the Hierarchical Reasoning Model (Wang et al., 2025). The fast stack runs several times on the
sum of its state and the slow one's, then the slow stack once, and that in cycles. Each run of a
layer keeps K and V of its own. Norms have no weights; attention is gated.

Letters in shapes: E n_embd, T tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ggmlpy import ops
from ggmlpy.common.scopes import scope
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.basic import Linear, Norm
from ggmlpy.models.blocks.layers import Layer, SequentialLayer
from ggmlpy.models.blocks.self_attention import FusedQKV, Projection, SelfAttention, SeparateQKV
from ggmlpy.models.hparams import HParams, read_hparams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.keys import Keys
from ggmlpy.models.pre_norm import PreNormDecoder

MAX_RUNS = 512  # of layers, as in llama.cpp
_IGNORED_SCALES = re.compile(r"blk\.\d+\.((ffn_\w+|attn_gate)\.scale|\w+\.input_scale)")


class HrmText(PreNormDecoder):
    """An hrm_text model. The fast stack's layers come first in the file."""

    output_norm_name = None
    attn_gate = "attn_gate"
    output_bias = False
    ffn_biased = False
    rope_factored = False
    output_biased = False

    def read(self, file: GGUFFile) -> HParams:
        """With the layers of both stacks; `block_count` are their runs."""
        return read_hparams(file, Keys(file, size="hrm.layers_per_stack", n_of=2))

    def set_up(self) -> None:
        """How often the stacks run, and the fast one's first state."""
        h, keys = self.hparams, self.hparams.keys
        self.n_slow, self.n_fast = keys.count("hrm.h_cycles"), keys.count("hrm.l_cycles")
        self.n_each = h.n_layer // 2
        n_runs, found = self.n_each * self.n_slow * (self.n_fast + 1), keys.count("block_count")
        if found != n_runs or found > MAX_RUNS:
            must_be = f"{n_runs}, the runs of layers, and at most {MAX_RUNS}"
            raise keys.error("block_count", found, must_be)
        self.order = ([False] * self.n_fast + [True]) * self.n_slow  # whether it is the slow one
        self.embedding_scale = keys.real("embedding_scale", 0.0) or 1.0
        self.first_state = self.weights.take("hrm.z_l_init", h.n_embd)
        self.stack_norm = Norm.plain("stack_norm", h)
        keys.without_effect("hrm.prefix_lm")
        self.weights.without_effect_where(_IGNORED_SCALES)

    def make_layers(self, make: Callable[[int], Layer]) -> None:
        """A layer with its own slot for each run."""
        once, n = [self.layer(i) for i in range(self.hparams.n_layer)], self.n_each
        runs = [once[i + n * is_slow] for is_slow in self.order for i in range(n)]
        looped = [self._in_slot(layer, slot) for slot, layer in enumerate(runs)]
        self.layers = [*looped]
        self.remember(looped)

    def layer(self, i: int) -> SequentialLayer:
        """Layer i of both stacks."""
        return SequentialLayer(
            attn_norm=Norm.plain("attn_norm", self.hparams),
            mixer=self.mixer(i),
            ffn_norm=Norm.plain("ffn_norm", self.hparams),
            ffn=self.ffn(i),
        )

    def hidden(self, inputs: GraphInputs) -> Tensor:
        """What the last layer gives of the tokens that are output: [E, O]"""
        slow, fast, n = self.embed(inputs), self.first_state, self.n_each  # [E, T], [E]
        for run, is_slow in enumerate(self.order):
            x = ops.add(slow, fast).named(f"stack_inp_{run}")  # [E, T]
            for slot in range(run * n, run * n + n):
                is_last = slot == len(self.layers) - 1
                with scope(layer=slot):
                    x = self.layers[slot](x, inputs, is_last=is_last)
                    if slot % n == n - 1 and not is_last:
                        x = self.stack_norm(x)
            slow, fast = (x, fast) if is_slow else (slow, x)
        return slow

    def _in_slot(self, layer: SequentialLayer, slot: int) -> SequentialLayer:
        """The layer with a slot for K and V.

        Its weights' scales are those of block `slot`, where llama.cpp reads and writes them.
        """
        mixer = layer.mixer
        assert isinstance(mixer, SelfAttention)
        qkv: Projection
        if isinstance(mixer.qkv, FusedQKV):
            qkv = replace(mixer.qkv, qkv=self._scaled(mixer.qkv.qkv, slot, "attn_qkv"))
        else:
            assert isinstance(mixer.qkv, SeparateQKV)
            q, k, v = mixer.qkv.q, mixer.qkv.k, mixer.qkv.v
            qkv = SeparateQKV(
                self._scaled(q, slot, "attn_q"),
                self._scaled(k, slot, "attn_k"),
                self._scaled(v, slot, "attn_v"),
            )
        output = self._scaled(mixer.output, slot, "attn_output")
        return replace(layer, mixer=replace(mixer, layer=slot, qkv=qkv, output=output))

    def _scaled(self, linear: Linear, slot: int, name: str) -> Linear:
        return replace(linear, scale=self.weights.maybe(f"blk.{slot}.{name}.scale", 1))

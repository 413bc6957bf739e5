"""Architectures by the name that a file gives: `general.architecture`.

In: a GGUF file; then the input leaves of a ubatch. Out: a model with its hyper-parameters and
weights; then the graph of that ubatch, up to its logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks import Rope
from ggmlpy.models.gemma3 import Gemma3
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.lfm2 import Lfm2
from ggmlpy.models.llama import Llama
from ggmlpy.models.memory import Memory
from ggmlpy.models.qwen2 import Qwen2
from ggmlpy.models.qwen3 import Qwen3
from ggmlpy.models.weights import Weights


@runtime_checkable
class Model(Protocol):
    """What an architecture provides: sizes, weights, and the graph of a ubatch."""

    hparams: HParams
    weights: Weights
    memory: Memory  # what each layer keeps of past tokens

    n_pos_per_embd: int  # positions of a token: 1, or 4 with M-RoPE
    can_generate: bool  # False: logits and embeddings only

    def build(self, inputs: GraphInputs) -> Tensor:
        """Logits [n_vocab, n_outputs]."""
        ...

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary embedding of the keys of an attention layer; None if it has none."""
        ...


ARCHITECTURES: dict[str, Callable[[GGUFFile], Model]] = {
    "gemma3": Gemma3,
    "lfm2": Lfm2,
    "llama": Llama,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
}


def load_model(file: GGUFFile) -> Model:
    """The model in a file, its weights checked.

    Raises Unsupported for an unknown architecture, WeightError for a key or tensor that is missing
    or wrong. A WeightWarning names tensors of the file that the model does not use.
    """
    arch = file.metadata.str("general.architecture")
    if arch not in ARCHITECTURES:
        raise Unsupported(
            f"{file.name}: architecture {quoted(arch)} is not supported;"
            f" supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    model = ARCHITECTURES[arch](file)
    model.weights.warn_of_unused()
    return model

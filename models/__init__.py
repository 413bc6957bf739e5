"""Architectures by the name that a file gives: `general.architecture`.

In: a GGUF file; then the input leaves of a ubatch. Out: a model with its hyper-parameters and
weights; then the graph of that ubatch, up to its logits.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Protocol, runtime_checkable

from ggmlpy.common.callers import warn_caller
from ggmlpy.common.quoting import quoted
from ggmlpy.errors import Unsupported
from ggmlpy.gguf import GGUFFile, LazyArray
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.architectures import REFUSED, REGISTRY
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.blocks.classifier import Classifier
from ggmlpy.models.hparams import HParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import Memory
from ggmlpy.models.other_files import refuse_other_files
from ggmlpy.models.weights import Weights, WeightWarning


@runtime_checkable
class Model(Protocol):
    """What an architecture provides: sizes, weights, and the graph of a ubatch."""

    hparams: HParams
    weights: Weights
    memory: Memory  # what each layer keeps of past tokens

    n_pos_per_embd: int  # positions of a token: 1, or 4 with M-RoPE
    n_ctx_limit: int | None  # the longest context that is supported
    limited_by: str  # why
    position_limited: bool  # whether positions must be below that limit too
    fixed_by: str  # why the positions of stored keys cannot be moved; empty if they can
    can_generate: bool  # False: logits and embeddings only
    has_logits: bool  # False: an encoder
    classifier: Classifier | None  # of a reranker
    start_token: int | None  # of an encoder-decoder model: what it decodes first; None: BOS

    @property
    def encoder(self) -> Model | None:
        """Of an encoder-decoder model: the encoder, a model of the same weights.

        Its graph also stores, in the memory of the sources that it encodes, K and V that layers of
        the decoder attend to: `GraphInputs.source`.
        """
        ...

    @property
    def n_block(self) -> int:
        """Layers by which weights and memory are placed: the larger number where an encoder and a
        decoder have different ones. Slots of the memory from there on lie with those of layer
        slot % n_block."""
        ...

    def build(self, inputs: GraphInputs) -> Tensor:
        """Logits [n_vocab, n_outputs]; of an encoder the same as `embeddings`."""
        ...

    def embeddings(self, inputs: GraphInputs) -> Tensor:
        """What logits are computed from, [n_embd, n_outputs]."""
        ...

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary embedding of the keys of an attention layer; None if it has none."""
        ...


def whole_memory(model: Model) -> Memory:
    """What all layers of a model keep, those of its encoder too."""
    return model.memory if model.encoder is None else model.memory + model.encoder.memory


ARCHITECTURES = tuple(sorted(REGISTRY))
_N_SHOWN = 8  # elements of a list in a warning


def model_class(arch: str) -> Callable[[GGUFFile], Model]:
    """The class of an architecture's models. Raises KeyError for an unknown one."""
    module, name = REGISTRY[arch]
    found: Callable[[GGUFFile], Model] = getattr(
        import_module(f"ggmlpy.models.architectures.{module}"), name
    )
    return found


def load_model(file: GGUFFile) -> Model:
    """The model in a file, its weights checked.

    Raises Unsupported for an unknown architecture, WeightError for a file that is no model, and for
    a key or tensor that is missing or wrong. A WeightWarning names tensors of the file that the
    model does not use, another one keys that change what a model computes and that this
    architecture does not read.
    """
    refuse_other_files(file)
    arch = file.metadata.str("general.architecture")
    if arch in REFUSED:
        raise Unsupported(
            f"{file.name}: architecture {quoted(arch)} is not supported: {REFUSED[arch]}"
        )
    if arch not in REGISTRY:
        alike = get_close_matches(arch, ARCHITECTURES, n=2)
        raise Unsupported(
            f"{file.name}: architecture {quoted(arch)} is not supported; docs/models.md and"
            f" ggmlpy.models.ARCHITECTURES list the {len(ARCHITECTURES)} that are"
            f"{', such as ' if alike else ''}{' and '.join(map(quoted, alike))}"
        )
    model = model_class(arch)(file)
    model.weights.warn_of_unused()
    warn_of_ignored(file, model)
    return model


def _shown(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if not isinstance(value, LazyArray):
        return str(value)
    first = ", ".join(_shown(value[i]) for i in range(min(len(value), _N_SHOWN)))
    return f"[{first}, …]" if len(value) > _N_SHOWN else f"[{first}]"


def warn_of_ignored(file: GGUFFile, model: Model) -> None:
    """Issue one WeightWarning that names the keys which should have an effect and have none."""
    names = model.hparams.keys.ignored()
    if not names:
        return
    shown = ", ".join(f"{quoted(name)} = {_shown(file.metadata[name])}" for name in names)
    warn_caller(
        f"{file.name}: the architecture does not read {shown}: results may differ from those that"
        " the file was made for",
        WeightWarning,
    )

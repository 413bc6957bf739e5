"""Opens a drafter for a model: loads a draft model, and checks that both go together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from ggmlpy.common.arguments import kind_of
from ggmlpy.draft.base import Drafter, FunctionDrafter
from ggmlpy.draft.lookup import LookupDrafter, PromptLookup
from ggmlpy.draft.model import DraftModel, ModelDrafter
from ggmlpy.errors import ArgumentError, Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F16
from ggmlpy.memory.sizes import Sizes, decide_sizes
from ggmlpy.models import Model, load_model
from ggmlpy.runtime.context import Context
from ggmlpy.runtime.opening import ContextOpener
from ggmlpy.text.tokenizer import Tokenizer

DraftSource = PromptLookup | DraftModel | str | bytes | PathLike[str] | Callable[..., Any]

# Vocabularies may differ in the first tokens, which are special ones, and in how many tokens pad
# them: the rules of llama.cpp.
_N_SPECIAL = 5
_MOST_PADDING = 128


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is used of a model that is loaded already."""

    model: Model
    tokenizer: Tokenizer
    name: str  # of its file
    opener: ContextOpener  # of contexts of it


def open_drafter(
    source: DraftSource,
    context: Context,
    opener: ContextOpener,
    tokenizer: Tokenizer,
    loaded: Loaded | None = None,
) -> Drafter:
    """What proposes tokens for a model that runs in `context`, which `opener` opened; `loaded` is
    the model that a DraftModel names, if that is not a file.

    Raises ArgumentError for a source of another kind, Unsupported for a model whose memory cannot
    remove tokens, or a draft model that does not go with it, and what loading that raises.
    """
    if context.memory.recurrent is not None:
        raise Unsupported(
            "draft_model: the model has recurrent layers, whose states cannot go back where a draft"
            " is not accepted"
        )
    n_vocab = tokenizer.n_vocab if tokenizer.vocab.has_tokens else context.model.hparams.n_vocab
    if isinstance(source, str | bytes | PathLike):
        source = DraftModel(source)
    if isinstance(source, PromptLookup):
        return LookupDrafter(source)
    if isinstance(source, DraftModel):
        return _open_model(source, context.sizes, opener, tokenizer, n_vocab, loaded)
    if callable(source) and not isinstance(source, type):
        return FunctionDrafter(source, n_vocab)
    what = f"the class {source.__name__}" if isinstance(source, type) else kind_of(source)
    raise ArgumentError(
        f"draft_model is {what}: it must be a PromptLookup, a DraftModel, a model file,"
        " a Llama or a function"
    )


def _open_model(
    spec: DraftModel,
    sizes: Sizes,
    opener: ContextOpener,
    tokenizer: Tokenizer,
    n_vocab: int,
    loaded: Loaded | None,
) -> ModelDrafter:
    file: GGUFFile | None = None
    if isinstance(spec.model, str | bytes | PathLike):
        file = GGUFFile.open(spec.model)
        model, name = load_model(file), file.name
        drafts_with = Tokenizer.from_metadata(file.metadata, name)
        opener = replace(
            opener,
            model=model,
            type_k=F16,
            type_v=F16,
            kv_rotation=None,
            n_gpu_layers=spec.n_gpu_layers,
            override_tensors={},
        )
    elif loaded is not None:
        model, name = loaded.model, loaded.name
        drafts_with, opener = loaded.tokenizer, loaded.opener
    else:
        raise ArgumentError(
            f"DraftModel: model is {kind_of(spec.model)}: it must be a model file or a Llama"
        )
    _check_vocabulary(drafts_with, tokenizer, name)
    context = replace(opener, sizes=_sizes(model, sizes), fitted=None).open()
    if (
        not context.can_generate
        or context.encoder is not None
        or context.memory.recurrent is not None
    ):
        raise Unsupported(
            f"{name} cannot be a draft model: its architecture, {model.hparams.architecture}, has"
            f" {'an encoder' if context.memory.recurrent is None else 'recurrent layers'}"
        )
    context.warm_up()
    eog_ids = tokenizer.eog_ids
    return ModelDrafter(spec, context, min(n_vocab, drafts_with.n_vocab), eog_ids, name, file)


def _sizes(model: Model, sizes: Sizes) -> Sizes:
    """Those of the model that drafts are for, as far as the draft model can have as long
    sequences."""
    limit = model.n_ctx_limit
    if limit is None or limit >= sizes.n_ctx_seq:
        return sizes
    n_ctx = min(sizes.n_ctx, limit * sizes.n_seq_max)
    return decide_sizes(n_ctx, sizes.n_seq_max, sizes.layout, sizes.n_ubatch, limit)


def _check_vocabulary(draft: Tokenizer, target: Tokenizer, name: str) -> None:
    """Raise Unsupported unless the tokens of both mean the same."""
    asked = f"{name} cannot be the draft model: its vocabulary"
    if draft.n_vocab == 0 or target.n_vocab == 0:
        return
    if abs(draft.n_vocab - target.n_vocab) > _MOST_PADDING:
        raise Unsupported(f"{asked} has {draft.n_vocab} tokens, that of the model {target.n_vocab}")
    if not (draft.vocab.has_tokens and target.vocab.has_tokens):
        return
    pairs = zip(draft.vocab.texts, target.vocab.texts, strict=False)
    for token, (theirs, ours) in enumerate(pairs):
        if theirs != ours and token >= _N_SPECIAL:
            raise Unsupported(f"{asked} has {theirs!r} as token {token}, the model has {ours!r}")

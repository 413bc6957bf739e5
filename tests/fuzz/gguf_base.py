"""Sound tiny models of every architecture, weight type, tokenizer and byte order, to be damaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.cases.sizes import QUANTIZED
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.types import TYPES
from tests.gguf_builder import TENSOR_TYPES, Tensor, gguf_bytes
from tests.models.tiny import Tiny, metadata_of, stored_type, weights
from tests.unit.vocabularies import bpe_metadata, spm_metadata, wpm_metadata


@dataclass
class Source:
    """One GGUF file before it is written; a model may have several."""

    name: str
    pairs: list[tuple[str | bytes, Any]]
    tensors: list[tuple[str | bytes, Tensor]]
    byte_order: str = "little"
    version: int = 3
    offsets: dict[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return gguf_bytes(self.pairs, self.tensors, self.version, self.byte_order)

    def copy(self) -> Source:
        return replace(self, pairs=list(self.pairs), tensors=list(self.tensors))


_TINY = Tiny(n_layer=1, n_embd=32, n_head=2, n_head_kv=1, n_ff=32, n_rot=16, n_ctx=64)
_WIDE = Tiny(n_layer=1, n_embd=256, n_head=4, n_head_kv=2, n_ff=256, n_rot=64, n_ctx=64)
_MODELS = {
    "llama": Tiny(),
    "llama-small": _TINY,
    "llama-tied": replace(_TINY, tied=True, biases=True),
    "llama-scales": replace(_TINY, scales=True, freq_factors=True, yarn_factor=4.0),
    "llama-linear": replace(_TINY, linear_factor=4.0, n_rot=8),
    "llama-experts": replace(_TINY, n_expert=4, n_expert_used=2),
    "qwen2": replace(_TINY, architecture="qwen2", neox=True, biases=True),
    "qwen3": replace(_TINY, architecture="qwen3", neox=True, qk_norm=True),
    "gemma3": replace(
        _TINY, architecture="gemma3", n_layer=3, neox=True, qk_norm=True, post_norms=True,
        gelu=True, window=5, windowed=(0, 1), tied=True, softcap=30.0,
    ),
    "lfm2": replace(
        _TINY, architecture="lfm2", n_layer=3, neox=True, qk_norm=True, convolutions=(0, 2),
        tied=True,
    ),
}  # fmt: skip
_MODELS |= {f"llama-{t}": replace(_WIDE, weight_type=t) for t in ("f16", "bf16", *QUANTIZED)}
_VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {
    "llama-bpe": bpe_metadata,
    "llama-spm": spm_metadata,
    "llama-wpm": wpm_metadata,
}
NAMES = (*_MODELS, *_VOCABULARIES, "llama-v2", "llama-big-endian", "llama-split")


def sources(name: str) -> list[Source]:
    """The files of a base, to be changed."""
    return [source.copy() for source in _made(name)]


@cache
def _made(name: str) -> list[Source]:
    if name in _VOCABULARIES:
        vocabulary = _VOCABULARIES[name]()
        n_vocab = len(vocabulary["tokenizer.ggml.tokens"])
        return [_source(replace(_TINY, n_vocab=n_vocab), vocabulary)]
    if name == "llama-v2":
        return [replace(_source(_TINY), version=2)]
    if name == "llama-big-endian":
        return [_swapped(_source(_TINY))]
    if name == "llama-split":
        return _split(_source(_TINY), 3)
    return [_source(_MODELS[name])]


def _source(m: Tiny, vocabulary: dict[str, Any] | None = None) -> Source:
    metadata = metadata_of(m)
    if vocabulary is not None:
        kept = {k: v for k, v in metadata.items() if not k.startswith("tokenizer.")}
        metadata = kept | vocabulary
    rng = np.random.default_rng(1)
    tensors: list[tuple[str | bytes, Tensor]] = []
    for name, values in weights(m).items():
        type = stored_type(m, name, values)
        if type.is_quantized:
            rows = random_rows(rng, type, values.size // values.shape[-1], values.shape[-1])
        else:
            rows = from_float(values, type)
        tensors.append((name, (type.id, values.shape[::-1], rows.tobytes())))
    return Source("model.gguf", list(metadata.items()), tensors)


def _swapped(source: Source) -> Source:
    tensors: list[tuple[str | bytes, Tensor]] = []
    for name, (type, ne, data) in source.tensors:
        swapped = np.frombuffer(data, np.uint32).byteswap().tobytes()
        tensors.append((name, (type, ne, swapped)))
    return replace(source, tensors=tensors, byte_order="big")


def _split(source: Source, n: int) -> list[Source]:
    """The tensors shared out among n files."""
    files = []
    for i in range(n):
        about = {"split.no": i, "split.count": n, "split.tensors.count": len(source.tensors)}
        pairs = [*about.items(), *(source.pairs if i == 0 else [])]
        name = f"model-{i + 1:05}-of-{n:05}.gguf"
        files.append(Source(name, list(pairs), source.tensors[i::n]))
    return files


def type_ids() -> list[int]:
    """Ids of all tensor types."""
    return sorted({type.id for type in TYPES.values()} | set(TENSOR_TYPES.values()))

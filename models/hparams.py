"""Hyper-parameters that architectures share, as GGUF metadata names them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ggmlpy.errors import WeightError
from ggmlpy.gguf_file import GGUFFile, LazyArray
from ggmlpy.models.memory import AttentionLayers


@dataclass(frozen=True, slots=True)
class RopeParams:
    """What rope_ext needs beside the tensor: RoPE (Su et al., 2021), YaRN (Peng et al., 2023)."""

    n_dims: int  # how many leading elements of a head are rotated
    n_ctx_orig: int  # the context that the model was trained with, before scaling
    freq_base: float
    freq_scale: float  # 1 / scaling factor
    ext_factor: float  # 1 with YaRN, else 0
    attn_factor: float  # beside YaRN's own 1 + 0.1 ln(factor), which rope_ext applies
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class HParams:
    """Sizes of a transformer. Names and defaults are llama.cpp's."""

    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_embd_head_k: int
    n_embd_head_v: int
    norm_eps: float
    n_expert: int
    n_expert_used: int
    rope: RopeParams

    @property
    def n_embd_k_gqa(self) -> int:
        """Elements of K that one token stores in one layer."""
        return self.n_embd_head_k * self.n_head_kv

    @property
    def n_embd_v_gqa(self) -> int:
        return self.n_embd_head_v * self.n_head_kv


def attention_layers(
    h: HParams, layers: Iterable[int] | None = None, window: int | None = None
) -> AttentionLayers:
    """Some layers (by default all), with full attention or a window."""
    chosen = tuple(range(h.n_layer) if layers is None else layers)
    return AttentionLayers(chosen, h.n_embd_head_k, h.n_embd_head_v, h.n_head_kv, window)


class Keys:
    """A file's `<architecture>.…` keys. Errors name the file and the key."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file.path.name
        self._metadata = file.metadata
        self.architecture = file.metadata.str("general.architecture")

    def count(self, key: str, default: int | None = None, *, in_some_layers: bool = False) -> int:
        """A whole number of at least one; a per-layer list of it must be the same number.

        With `in_some_layers` zeros in such a list are passed over: those layers have none.
        """
        name = f"{self.architecture}.{key}"
        value = self._metadata.get(name)
        if isinstance(value, LazyArray):
            numbers = set(self._metadata.array(name, of="int").tolist())
            if in_some_layers:
                numbers.discard(0)
            if len(numbers) != 1:
                raise self.error(key, sorted(numbers), "the same number for every layer")
            found = int(numbers.pop())
        elif default is None:
            found = self._metadata.int(name)
        else:
            found = self._metadata.int(name, default)
        if found < 1:
            raise self.error(key, found, "at least 1")
        return found

    def per_layer(self, key: str, n_layer: int) -> list[int] | None:
        """A whole number for each layer; None where the key is missing or one number for all."""
        name = f"{self.architecture}.{key}"
        value = self._metadata.get(name)
        if not isinstance(value, LazyArray):
            return None
        kind: Literal["bool", "int"] = "bool" if value.type == "bool" else "int"
        numbers = [int(n) for n in self._metadata.array(name, of=kind)]
        if len(numbers) != n_layer:
            raise self.error(key, f"a list of {len(numbers)}", f"one of {n_layer}, the block_count")
        return numbers

    def whole(self, key: str, default: int) -> int:
        return self._metadata.int(f"{self.architecture}.{key}", default)

    def real(self, key: str, default: float | None = None) -> float:
        name = f"{self.architecture}.{key}"
        if default is None:
            return self._metadata.float(name)
        return self._metadata.float(name, default)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite float above zero."""
        found = self.real(key, default)
        if not 0 < found < math.inf:
            raise self.error(key, found, "a finite number above 0")
        return found

    def text(self, key: str, default: str) -> str:
        return self._metadata.str(f"{self.architecture}.{key}", default)

    def error(self, key: str, found: object, must_be: str) -> WeightError:
        name = f'"{self.architecture}.{key}"'
        return WeightError(f"{self._file}: key {name} is {found}, must be {must_be}")


def read_hparams(file: GGUFFile, *, attention_in_some_layers: bool = False) -> HParams:
    """The hyper-parameters of the file's architecture.

    With `attention_in_some_layers` counts of heads are those of the layers that have any. Raises
    WeightError for a key that is missing, of the wrong type, or out of range.
    """
    keys, some = Keys(file), attention_in_some_layers
    n_embd = keys.count("embedding_length")
    n_head = keys.count("attention.head_count", in_some_layers=some)
    n_head_kv = keys.count("attention.head_count_kv", n_head, in_some_layers=some)
    if n_head % n_head_kv:
        raise keys.error("attention.head_count_kv", n_head_kv, f"a divisor of {n_head} heads")
    n_expert = keys.whole("expert_count", 0)
    n_expert_used = keys.whole("expert_used_count", 0)
    if not (n_expert == n_expert_used == 0 or 1 <= n_expert_used <= n_expert):
        raise keys.error("expert_used_count", n_expert_used, f"1 to {n_expert}, the expert_count")
    n_embd_head_k = keys.count("attention.key_length", max(1, n_embd // n_head))
    return HParams(
        architecture=keys.architecture,
        n_vocab=_read_n_vocab(file),
        n_ctx_train=keys.count("context_length"),
        n_embd=n_embd,
        n_layer=keys.count("block_count"),
        n_ff=keys.count("feed_forward_length"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        n_embd_head_k=n_embd_head_k,
        n_embd_head_v=keys.count("attention.value_length", n_embd_head_k),
        norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        rope=_read_rope(keys, n_embd_head_k),
    )


def _read_n_vocab(file: GGUFFile) -> int:
    """Rows of the token embedding: files agree on it more than on a vocab_size key."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightError(f'{file.path.name}: tensor "token_embd.weight" is missing')
    return embedding.ne[1]


def _read_rope(keys: Keys, n_embd_head: int) -> RopeParams:
    n_dims = keys.whole("rope.dimension_count", n_embd_head)
    if not 0 < n_dims <= n_embd_head or n_dims % 2:
        must_be = f"even and at most {n_embd_head}, the size of a head"
        raise keys.error("rope.dimension_count", n_dims, must_be)
    older_factor = keys.real("rope.scale_linear", 0.0)  # before scaling had a type
    scaling = keys.text("rope.scaling.type", "linear" if older_factor else "none")
    if scaling not in ("none", "linear", "yarn"):
        raise keys.error("rope.scaling.type", scaling, "none, linear or yarn")
    factor = keys.real("rope.scaling.factor", older_factor)
    if not 0 <= factor < math.inf:  # 0 is how converters write "none"
        raise keys.error("rope.scaling.factor", factor, "a finite number, not negative")
    freq_base = keys.positive("rope.freq_base", 10_000.0)
    if scaling == "yarn" and freq_base <= 1:  # YaRN divides by its logarithm
        raise keys.error("rope.freq_base", freq_base, "above 1 with YaRN")
    return RopeParams(
        n_dims=n_dims,
        n_ctx_orig=keys.count("rope.scaling.original_context_length", keys.count("context_length")),
        freq_base=freq_base,
        freq_scale=1.0 / factor if factor and scaling != "none" else 1.0,
        ext_factor=1.0 if scaling == "yarn" else 0.0,
        attn_factor=keys.positive("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
    )

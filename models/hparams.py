"""Hyper-parameters that architectures share, read from GGUF metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile, LazyArray
from ggmlpy.models.memory import AttentionLayers

MAX_COUNT = 2**31 - 1  # positions, tokens and indices of a graph are i32
# Parameters of nodes are f32, and some are the reciprocal of the file's value.
MIN_REAL, MAX_REAL = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Parameters of rope_ext: RoPE (Su et al., 2021), YaRN (Peng et al., 2023)."""

    n_dims: int  # how many leading elements of a head are rotated
    n_ctx_orig: int  # the context size of the training, before scaling
    freq_base: float
    freq_scale: float  # 1 / scaling factor
    ext_factor: float  # 1 with YaRN, else 0
    attn_factor: float  # in addition to YaRN's 1 + 0.1 ln(factor), which rope_ext applies
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
    """The layers' K and V: of all layers by default, with full attention or a window in tokens."""
    chosen = tuple(range(h.n_layer) if layers is None else layers)
    return AttentionLayers(chosen, h.n_embd_head_k, h.n_embd_head_v, h.n_head_kv, window)


class Keys:
    """A file's `<architecture>.…` keys. Errors name the file and the key.

    Raises WeightError where `block_count` is more than the layers whose tensors the file holds.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._file = file.name
        self._metadata = file.metadata
        self.architecture = file.metadata.str("general.architecture")
        n_layer = file.metadata.int(f"{self.architecture}.block_count")
        self.n_layer = self._within("block_count", n_layer, 1)
        n_held = len({found[1] for name in file.tensors if (found := _LAYER.match(name))})
        if self.n_layer > n_held:
            raise self.error(
                "block_count", self.n_layer, f"at most {n_held}, the layers with tensors blk.*"
            )

    def count(self, key: str, default: int | None = None, *, in_some_layers: bool = False) -> int:
        """An integer of at least 1. A list of it per layer must hold the same number throughout.

        With `in_some_layers` zeros in such a list are ignored: those layers have none.
        """
        name = f"{self.architecture}.{key}"
        if isinstance(self._metadata.get(name), LazyArray):
            numbers = set(self._per_layer(key, "int"))
            if in_some_layers:
                numbers.discard(0)
            if len(numbers) != 1:
                listed = ", ".join(map(str, sorted(numbers)[:8]))
                raise self.error(key, f"a list of {listed}", "the same number for every layer")
            found = numbers.pop()
        elif default is None:
            found = self._metadata.int(name)
        else:
            found = self._metadata.int(name, default)
        return self._within(key, found, 1)

    def per_layer(self, key: str) -> list[int] | None:
        """An integer per layer; None if the key is missing or holds one number for all."""
        name = f"{self.architecture}.{key}"
        value = self._metadata.get(name)
        if not isinstance(value, LazyArray):
            return None
        return self._per_layer(key, "bool" if value.type == "bool" else "int")

    def _per_layer(self, key: str, kind: Literal["bool", "int"]) -> list[int]:
        listed = self._metadata.array(f"{self.architecture}.{key}", of=kind)
        if len(listed) != self.n_layer:
            must_be = f"one of {self.n_layer}, the block_count"
            raise self.error(key, f"a list of {len(listed)}", must_be)
        return [int(n) for n in listed]

    def whole(self, key: str, default: int) -> int:
        """An integer of at least 0."""
        return self._within(key, self._metadata.int(f"{self.architecture}.{key}", default), 0)

    def _within(self, key: str, found: int, least: int) -> int:
        if not least <= found <= MAX_COUNT:
            raise self.error(key, found, f"at least {least} and below 2^31")
        return found

    def real(self, key: str, default: float) -> float:
        """A float that is 0, or positive and a normal f32."""
        found = self._metadata.float(f"{self.architecture}.{key}", default)
        if found != 0 and not MIN_REAL <= found <= MAX_REAL:
            raise self.error(key, found, "0, or a finite number above 0 that is normal in f32")
        return found

    def positive(self, key: str, default: float | None = None) -> float:
        """A float that is positive and a normal f32."""
        name = f"{self.architecture}.{key}"
        found = (
            self._metadata.float(name) if default is None else self._metadata.float(name, default)
        )
        if not MIN_REAL <= found <= MAX_REAL:
            raise self.error(key, found, "a finite number above 0 that is normal in f32")
        return found

    def text(self, key: str, default: str) -> str:
        return self._metadata.str(f"{self.architecture}.{key}", default)

    def error(self, key: str, found: object, must_be: str) -> WeightError:
        name = quoted(f"{self.architecture}.{key}")
        return WeightError(f"{self._file}: key {name} is {found}, must be {must_be}")


def read_hparams(file: GGUFFile, *, attention_in_some_layers: bool = False) -> HParams:
    """The hyper-parameters of the file's architecture.

    With `attention_in_some_layers` the numbers of heads are those of the layers that have any.
    Raises WeightError for a key that is missing, of the wrong type, or out of range.
    """
    n_vocab, keys, some = _read_n_vocab(file), Keys(file), attention_in_some_layers
    n_embd = keys.count("embedding_length")
    n_head = keys.count("attention.head_count", in_some_layers=some)
    n_head_kv = keys.count("attention.head_count_kv", n_head, in_some_layers=some)
    if n_head % n_head_kv:
        raise keys.error("attention.head_count_kv", n_head_kv, f"a divisor of {n_head} heads")
    n_expert = keys.whole("expert_count", 0)
    n_expert_used = keys.whole("expert_used_count", 0)
    if not min(n_expert, 1) <= n_expert_used <= n_expert:
        must_be = f"1 to {n_expert}, the expert_count" if n_expert else "0 without an expert_count"
        raise keys.error("expert_used_count", n_expert_used, must_be)
    n_embd_head_k = keys.count("attention.key_length", max(1, n_embd // n_head))
    return HParams(
        architecture=keys.architecture,
        n_vocab=n_vocab,
        n_ctx_train=keys.count("context_length"),
        n_embd=n_embd,
        n_layer=keys.n_layer,
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
    """Rows of the token embedding: more reliable than the vocab_size key, which may be missing."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightError(f'{file.name}: tensor "token_embd.weight" is missing')
    return embedding.ne[1]


def _read_rope(keys: Keys, n_embd_head: int) -> RopeParams:
    n_dims = keys.whole("rope.dimension_count", n_embd_head)
    if not 0 < n_dims <= n_embd_head or n_dims % 2:
        must_be = f"even and at most {n_embd_head}, the size of a head"
        raise keys.error("rope.dimension_count", n_dims, must_be)
    older_factor = keys.real(
        "rope.scale_linear", 0.0
    )  # the key of files that predate scaling types
    scaling = keys.text("rope.scaling.type", "linear" if older_factor else "none")
    if scaling not in ("none", "linear", "yarn"):
        raise keys.error("rope.scaling.type", quoted(scaling), "none, linear or yarn")
    factor = keys.real("rope.scaling.factor", older_factor)  # converters write 0 for "none"
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

"""Hyper-parameters that architectures share, read from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ggmlpy.common.quoting import quoted
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.models.keys import Keys
from ggmlpy.models.memory import KVSizes, Window, WindowKind


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Parameters of rope_ext: RoPE (Su et al., 2021), YaRN (Peng et al., 2023)."""

    n_dims: int  # how many leading elements of a head are rotated; 0 for none
    n_ctx_orig: int  # the context size of the training, before scaling
    freq_base: float
    freq_scale: float  # 1 / scaling factor
    ext_factor: float  # how much of YaRN's extrapolation is mixed in: 1 with YaRN, else 0
    attn_factor: float  # in addition to YaRN's 1 + 0.1 ln(factor), which rope_ext applies
    beta_fast: float
    beta_slow: float

    def unscaled(self, freq_base: float | None = None) -> RopeParams:
        """The same without context scaling, and with another base if one is given."""
        base = self.freq_base if freq_base is None else freq_base
        return replace(self, freq_base=base, freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)

    def with_log_multiplier(self, own: float, all_dims: float) -> RopeParams:
        """The same where YaRN's factor of the magnitude has multipliers of its logarithm: that of
        what is rotated, over that of all elements of a head."""
        if not self.ext_factor or self.freq_scale >= 1.0:
            return self
        growth = math.log(1.0 / self.freq_scale)
        factor = (1.0 + 0.1 * own * growth) / (1.0 + 0.1 * all_dims * growth)
        factor /= 1.0 + 0.1 * growth  # which rope_ext applies
        return replace(self, attn_factor=self.attn_factor * factor)


@dataclass(frozen=True, slots=True)
class LayerParams:
    """What may differ between the layers of a model. A layer without attention has no heads."""

    n_head: int
    n_head_kv: int
    n_embd_head_k: int  # of q too
    n_embd_head_v: int
    n_ff: int
    rope: RopeParams
    window: Window | None = None  # None: full attention

    @property
    def n_embd_q(self) -> int:
        """Elements of q of one token."""
        return self.n_embd_head_k * self.n_head

    @property
    def kv(self) -> KVSizes:
        """What attention stores of one token."""
        return KVSizes(self.n_embd_head_k, self.n_embd_head_v, self.n_head_kv)

    @property
    def n_embd_k(self) -> int:
        """Elements of k of one token."""
        return self.kv.n_embd_k

    @property
    def n_embd_v(self) -> int:
        """Elements of v of one token."""
        return self.kv.n_embd_v

    @property
    def n_embd_out(self) -> int:
        """Elements of attention's result of one token."""
        return self.n_embd_head_v * self.n_head


@dataclass(frozen=True, slots=True)
class HParams:
    """Sizes of a transformer. Names and defaults are llama.cpp's."""

    keys: Keys  # for what only one architecture reads
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    layers: tuple[LayerParams, ...]
    is_causal: bool
    n_expert: int
    n_expert_used: int

    @property
    def architecture(self) -> str:
        return self.keys.architecture

    @property
    def n_layer(self) -> int:
        """Layers that are run: without those that predict further tokens (nextn)."""
        return len(self.layers)

    @property
    def rms_norm_eps(self) -> float:
        """Raises WeightError if the file does not say."""
        return self.keys.real("attention.layer_norm_rms_epsilon")

    @property
    def layer_norm_eps(self) -> float:
        """Raises WeightError if the file does not say."""
        return self.keys.real("attention.layer_norm_epsilon")

    def replaced(self, change: Callable[[int, LayerParams], LayerParams]) -> HParams:
        """The same with `change` of each layer's number and sizes."""
        return replace(self, layers=tuple(change(i, p) for i, p in enumerate(self.layers)))

    def with_windows(
        self,
        windowed: Iterable[bool],
        rope: RopeParams | None = None,
        *,
        kind: WindowKind = "standard",
        default: int = 0,
    ) -> HParams:
        """The same where some layers have a window of `attention.sliding_window` tokens, or of
        `default` if the file does not say.

        Those layers have the rotary embedding `rope` if it is given, and the head sizes and
        dimensions that the keys with the suffix `_swa` say. A window of 0 means none.
        """
        keys, size = self.keys, self.keys.whole("attention.sliding_window", default)
        if not size:
            return self
        window = Window(size, kind)

        def change(p: LayerParams) -> LayerParams:
            k = keys.count("attention.key_length_swa", max(1, p.n_embd_head_k))
            v = keys.count("attention.value_length_swa", max(1, p.n_embd_head_v))
            r = p.rope if rope is None else rope
            n_dims = keys.whole("rope.dimension_count_swa", r.n_dims)
            r = replace(r, n_dims=_rotated(keys, "rope.dimension_count_swa", n_dims, k))
            return replace(p, n_embd_head_k=k, n_embd_head_v=v, rope=r, window=window)

        flags = list(windowed)
        return self.replaced(lambda i, p: change(p) if flags[i] else p)


def read_hparams(file: GGUFFile, keys: Keys | None = None) -> HParams:
    """The hyper-parameters of the file's architecture, by default of its `Keys(file)`.

    Raises WeightError for a key that is missing, of the wrong type, or out of range.
    """
    n_vocab, keys = _read_n_vocab(file), keys or Keys(file)
    n_embd = keys.count("embedding_length")
    n_head = keys.per_layer("attention.head_count", 0)
    n_head_kv = keys.per_layer("attention.head_count_kv", n_head)
    for heads, shared in zip(n_head, n_head_kv, strict=True):
        if shared and heads % shared:
            raise keys.error("attention.head_count_kv", shared, f"a divisor of {heads} heads")
    n_expert, n_expert_used = _read_experts(keys)
    size = n_embd // max(1, *n_head)
    head_k = keys.count("attention.key_length", max(1, size))
    head_v = keys.count("attention.value_length", max(1, size))
    rope = _read_rope(keys, head_k)
    n_ff = keys.per_layer("feed_forward_length", 0)
    return HParams(
        keys=keys,
        n_vocab=n_vocab,
        n_ctx_train=keys.count("context_length"),
        n_embd=n_embd,
        layers=tuple(
            LayerParams(n_head[i], n_head_kv[i], head_k, head_v, n_ff[i], rope)
            for i in range(keys.n_layer)
        ),
        is_causal=keys.flag("attention.causal", True),
        n_expert=n_expert,
        n_expert_used=n_expert_used,
    )


def _read_n_vocab(file: GGUFFile) -> int:
    """Rows of the token embedding: more reliable than the vocab_size key, which may be missing."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise WeightError(f'{file.name}: tensor "token_embd.weight" is missing')
    return embedding.ne[1]


def _read_experts(keys: Keys) -> tuple[int, int]:
    """The number of experts, and how many of them each token selects."""
    n_expert = keys.whole("expert_count", 0)
    n_used = max(keys.per_layer("expert_used_count", 0))
    if not min(n_expert, 1) <= n_used <= n_expert:
        must_be = f"1 to {n_expert}, the expert_count" if n_expert else "0 without an expert_count"
        raise keys.error("expert_used_count", n_used, must_be)
    return n_expert, n_used


def _rotated(keys: Keys, key: str, n_dims: int, n_embd_head: int) -> int:
    if n_dims > n_embd_head or n_dims % 2:
        raise keys.error(key, n_dims, f"even and at most {n_embd_head}, the size of a head")
    return n_dims


def _read_rope(keys: Keys, n_embd_head: int) -> RopeParams:
    n_dims = keys.whole("rope.dimension_count", n_embd_head)
    older_factor = keys.real("rope.scale_linear", 0.0)  # of files that predate scaling types
    scaling = keys.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        must_be = "none, linear, yarn or longrope"
        raise keys.error("rope.scaling.type", quoted(scaling), must_be)
    factor = keys.real("rope.scaling.factor", older_factor)  # converters write 0 for "none"
    freq_base = keys.positive("rope.freq_base", 10_000.0)
    if scaling == "yarn" and freq_base <= 1:  # YaRN divides by its logarithm
        raise keys.error("rope.freq_base", freq_base, "above 1 with YaRN")
    return RopeParams(
        n_dims=_rotated(keys, "rope.dimension_count", n_dims, n_embd_head),
        n_ctx_orig=keys.count("rope.scaling.original_context_length", keys.count("context_length")),
        freq_base=freq_base,
        freq_scale=1.0 / factor if factor and scaling != "none" else 1.0,
        ext_factor=_ext_factor(keys, scaling),
        attn_factor=keys.positive("rope.scaling.attn_factor", 1.0),
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", 1.0),
    )


def _ext_factor(keys: Keys, scaling: str) -> float:
    """How much of YaRN's extrapolation is mixed in; below 0 in the file: by the type of scaling."""
    found = keys.signed("rope.scaling.yarn_ext_factor", -1.0)
    return found if found >= 0 else float(scaling == "yarn")


def rope_sections(keys: Keys) -> tuple[int, int, int, int]:
    """The sections of M-RoPE: how many pairs each of a token's four positions rotates."""
    key = "rope.dimension_sections"
    listed = keys.integers(key)
    sections = (*listed, *[0] * (4 - len(listed)))
    if len(sections) != 4 or not sum(sections):
        raise keys.error(key, f"a list of {len(listed)}", "up to four numbers, not all 0")
    time, height, width, extra = sections
    return time, height, width, extra


def has_mrope(keys: Keys) -> bool:
    """Whether a file of an architecture that may have M-RoPE has it, as llama.cpp decides."""
    listed = keys.integers("rope.dimension_sections")
    return len(listed) > 1 and listed[0] > 0 and listed[1] > 0

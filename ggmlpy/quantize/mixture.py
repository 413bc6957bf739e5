"""Which type each tensor gets: llama.cpp's mixtures.

Of sensitive tensors (attention's values, the second linear map of feed-forward layers, the output)
mixtures store some with more bits; which ones depends on the layer, counted as they are visited.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ggmlpy.errors import Unsupported, WeightError
from ggmlpy.gguf import GGUFFile, LazyArray, Metadata
from ggmlpy.graph.types import TYPES, TensorType
from ggmlpy.quantize.file_types import FileType

_SMALLEST = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
_EIGHT_EXPERT_Q5 = (
    "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S",
    "IQ3_M", "IQ4_XS",
)  # fmt: skip


class Category(Enum):
    """What a tensor is in a layer, by its name."""

    OUTPUT = auto()
    TOKEN_EMBD = auto()
    ATTN_QKV = auto()
    ATTN_KV_B = auto()
    ATTN_V = auto()
    ATTN_K = auto()
    ATTN_Q = auto()
    ATTN_OUTPUT = auto()
    FFN_UP = auto()
    FFN_GATE = auto()
    FFN_DOWN = auto()
    OTHER = auto()


_PARTS = (
    ("attn_qkv.weight", Category.ATTN_QKV),
    ("attn_kv_b.weight", Category.ATTN_KV_B),
    ("attn_v.weight", Category.ATTN_V),
    ("attn_k.weight", Category.ATTN_K),
    ("attn_q.weight", Category.ATTN_Q),
    ("attn_output.weight", Category.ATTN_OUTPUT),
    ("ffn_up", Category.FFN_UP),
    ("ffn_gate", Category.FFN_GATE),
    ("ffn_down", Category.FFN_DOWN),
)
_LIKE_V = (Category.ATTN_V, Category.ATTN_QKV, Category.ATTN_KV_B)


def is_token_embedding(name: str) -> bool:
    return name in ("token_embd.weight", "per_layer_token_embd.weight")


def category_of(name: str) -> Category:
    """The category of the tensor with this name."""
    if name == "output.weight":
        return Category.OUTPUT
    if is_token_embedding(name):
        return Category.TOKEN_EMBD
    return next((category for part, category in _PARTS if part in name), Category.OTHER)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What mixtures depend on in a model."""

    architecture: str
    n_layer: int
    n_gqa: int  # query heads of a KV head, in the first layer
    n_expert: int
    is_70b: bool

    @classmethod
    def of(cls, file: GGUFFile) -> ModelShape:
        """Raises WeightError if the file is not of a model."""
        metadata = file.metadata
        architecture = metadata.str("general.architecture")
        n_layer = metadata.int(f"{architecture}.block_count", 0)
        n_head = _first(metadata, f"{architecture}.attention.head_count", 0)
        n_head_kv = _first(metadata, f"{architecture}.attention.head_count_kv", n_head)
        is_70b = architecture in ("qwen2", "deci", "olmo") or (
            architecture == "llama" and n_head != n_head_kv
        )
        return cls(
            architecture,
            n_layer,
            n_head // n_head_kv if n_head_kv else 0,
            metadata.int(f"{architecture}.expert_count", 0),
            (n_layer == 80 and is_70b) or (n_layer == 68 and architecture == "jais2"),
        )


def _first(metadata: Metadata, key: str, default: int) -> int:
    """An integer, or the first of an array."""
    value = metadata.get(key, default)
    if isinstance(value, LazyArray):
        value = value[0] if len(value) else default
    if not isinstance(value, int):
        raise WeightError(f'key "{key}" is {value!r}, must be an integer')
    return value


@dataclass(slots=True)
class Mixture:
    """Chooses types for the tensors of one model, in the order in which they are stored."""

    file_type: FileType
    shape: ModelShape
    names: Sequence[str]
    has_imatrix: bool
    output_type: TensorType | None = None
    _is_tied: bool = field(init=False)
    _n_v: int = field(init=False)
    _counts: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        categories = [category_of(name) for name in self.names]
        self._is_tied = Category.OUTPUT not in categories
        self._n_v = sum(category in _LIKE_V for category in categories)

    def type_of(self, name: str, ne: Sequence[int]) -> TensorType:
        """The type of a tensor that may be quantised. Raises WeightError for a bad layer."""
        category, kind = category_of(name), self.file_type.name
        default = self.file_type.type.name
        if self.shape.architecture == "glm5-next" and _GLM5_SENSITIVE.search(name):
            return TYPES["q8_0"]
        if category is Category.OUTPUT or (self._is_tied and category is Category.TOKEN_EMBD):
            return self._output(ne, kind, default)
        if kind == "MXFP4_MOE":
            chosen: str | None = self._mxfp4(category, ne)
        elif category is Category.TOKEN_EMBD:
            chosen = _token_embedding(kind)
        elif kind in _SMALLEST:
            chosen = self._smallest(category, kind)
        elif category in _LIKE_V:
            chosen = self._like_v(kind, default)
        elif category in (Category.ATTN_K, Category.ATTN_Q):
            chosen = self._query_or_key(category, kind)
        elif category is Category.FFN_DOWN:
            i, n = self._layer(name, "ffn_down")
            chosen = self._ffn_down(kind, i, n)
        elif category is Category.ATTN_OUTPUT:
            chosen = self._attn_output(kind)
        elif category in (Category.FFN_GATE, Category.FFN_UP):
            i, n = self._layer(name, category.name)
            is_middle = n // 8 <= i < 7 * n // 8
            chosen = "iq3_xxs" if kind == "IQ3_XS" and is_middle else None
        else:
            chosen = None
        return TYPES[chosen or default]

    def _output(self, ne: Sequence[int], kind: str, default: str) -> TensorType:
        if self.output_type is not None:
            return self.output_type
        whole = ne[0] % TYPES[default].block_size == 0
        if kind == "MXFP4_MOE" or self.shape.architecture == "falcon" or not whole:
            return TYPES["q8_0"]
        if kind in (*_SMALLEST, "IQ3_XXS"):
            return TYPES["q5_K"]
        return TYPES["q8_0" if default == "q8_0" else "q6_K"]

    def _mxfp4(self, category: Category, ne: Sequence[int]) -> str:
        is_ffn = category in (Category.FFN_UP, Category.FFN_GATE, Category.FFN_DOWN)
        is_expert = ne[2] > 1 and (self.shape.architecture != "bailingmoe3" or is_ffn)
        return "mxfp4" if is_expert else "q8_0"

    def _next(self, what: str) -> int:
        """How many tensors of a kind came before."""
        i = self._counts.get(what, 0)
        self._counts[what] = i + 1
        return i

    def _layer(self, name: str, what: str) -> tuple[int, int]:
        """(layer, layers): counted, or for experts as the name has it."""
        i, n = self._next(what), self.shape.n_layer
        if self.shape.n_expert > 1:
            match = re.match(r"blk\.(\d+)\.", name)
            if match is None or int(match[1]) >= n:
                raise WeightError(f'tensor "{name}" names no layer from 0 to {n - 1}')
            i = int(match[1])
        return i, n

    def _smallest(self, category: Category, kind: str) -> str | None:
        larger = kind in ("IQ2_S", "IQ2_M")
        n_expert = self.shape.n_expert
        if category in _LIKE_V:
            self._next("v")
            if self.shape.n_gqa >= 4 or n_expert >= 4:
                return "q4_K"
            return "iq3_s" if larger else "q2_K"
        if n_expert == 8 and category is Category.ATTN_K:
            return "q4_K"
        if category is Category.FFN_DOWN:
            is_first = self._next("ffn_down") < self.shape.n_layer // 8
            return ("iq3_s" if larger else "q2_K") if is_first else None
        if category is Category.ATTN_OUTPUT:
            if n_expert == 8:
                return "q5_K"
            return "iq2_xxs" if kind in ("IQ1_S", "IQ1_M") else "iq3_s" if larger else None
        return None

    def _like_v(self, kind: str, default: str) -> str | None:
        i, many = self._next("v"), self.shape.n_gqa >= 4
        chosen = self._v_type(kind, i, many)
        if self.shape.is_70b and (chosen or default) in ("q3_K", "q4_K"):
            chosen = "q5_K"
        return "q8_0" if self.shape.n_expert == 8 else chosen

    def _v_type(self, kind: str, i: int, many: bool) -> str | None:
        match kind:
            case "Q2_K":
                return "q4_K" if many else "q3_K"
            case "Q2_K_S" | "IQ3_XS" | "IQ3_S":
                return "q4_K" if many else None
            case "IQ3_XXS":
                return "q4_K" if many else "iq3_xxs" if self.has_imatrix else "iq3_s"
            case "IQ3_M":
                return "q4_K"
            case "Q3_K_M":
                return "q5_K" if i < 2 else "q4_K"
            case "Q3_K_L":
                return "q5_K"
            case "IQ4_NL" | "IQ4_XS":
                return "q5_K" if many else None
            case "Q4_K_M" | "Q5_K_M":
                return "q6_K" if _uses_more_bits(i, self._n_v) else None
            case "Q4_K_S":
                return "q5_K" if i < 4 else None
        return None

    def _query_or_key(self, category: Category, kind: str) -> str | None:
        if category is Category.ATTN_K and self.shape.n_expert == 8:
            return "q8_0"
        return {"IQ3_XS": "iq3_xxs", "IQ3_XXS": "iq2_s"}.get(kind)

    def _ffn_down(self, kind: str, i: int, n: int) -> str | None:
        falcon = self.shape.architecture == "falcon"
        more = _uses_more_bits(i, n)
        is_first = i < n // 8
        match kind:
            case "Q2_K":
                return "q3_K"
            case "Q2_K_S":
                return "q4_K" if is_first else None
            case "IQ3_XXS":
                return None if self.has_imatrix else "q4_K" if is_first else "q3_K"
            case "Q3_K_M":
                if i < n // 16:
                    return "q5_K"
                return "q4_K" if not falcon or more else "q3_K"
            case "IQ3_M":
                return "q4_K" if is_first or (self.shape.n_expert == 8 and more) else None
            case "Q3_K_L":
                return "q4_K" if falcon else "q5_K"
            case "Q4_K_M":
                if falcon:
                    return "q6_K" if i < n // 16 else "q5_K" if more else "q4_K"
                return "q6_K" if more else None
            case "IQ4_NL" | "IQ4_XS":
                return "q5_K" if is_first and not self.has_imatrix else None
            case "Q5_K_M":
                return "q6_K" if more else None
            case "Q4_K_S":
                return "q5_K" if is_first and not falcon else None
            case "Q4_0" | "Q5_0":
                affine = {"Q4_0": "q4_1", "Q5_0": "q5_1"}[kind]
                return affine if is_first and self.has_imatrix else None
        return None

    def _attn_output(self, kind: str) -> str | None:
        if self.shape.architecture == "falcon":
            return "q4_K" if kind == "Q3_K_L" else None
        if self.shape.n_expert == 8:
            return "q5_K" if kind in _EIGHT_EXPERT_Q5 else None
        more = {"Q2_K": "q3_K", "IQ3_XXS": "iq3_s", "Q3_K_M": "q4_K", "Q3_K_L": "q5_K"}
        return (more | {"IQ3_M": "q4_K"}).get(kind)


_GLM5_SENSITIVE = re.compile(r"attn_q_a|attn_q_b|nextn\.eh_proj")


def _token_embedding(kind: str) -> str | None:
    if kind in ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"):
        return "q2_K"
    if kind in ("IQ2_S", "IQ2_M", "IQ3_XXS"):
        return "iq3_s"
    return "q4_K" if kind in ("TQ1_0", "TQ2_0", "Q2_0") else None


def _uses_more_bits(i: int, n: int) -> bool:
    """The first and last eighth of the layers, and every third between them."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


_SMALLER_BLOCKS = {
    "iq1_s": "iq4_nl", "iq1_m": "iq4_nl", "iq2_xxs": "iq4_nl", "iq2_xs": "iq4_nl",
    "iq2_s": "iq4_nl", "iq3_xxs": "iq4_nl", "iq3_s": "iq4_nl", "iq4_xs": "iq4_nl",
    "q2_0": "q4_0", "q2_K": "q4_0", "q3_K": "q4_0", "tq1_0": "q4_0", "tq2_0": "q4_0",
    "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0",
}  # fmt: skip


def fitting(type: TensorType, n: int) -> TensorType:
    """`type`, or if rows of n elements are not whole blocks of it one with smaller blocks: f16 in
    the end. Raises Unsupported for q1_0, which has no such type."""
    if n % type.block_size:
        if type.block_size > 32 and type.name not in _SMALLER_BLOCKS:
            raise Unsupported(
                f"{type.name} has blocks of {type.block_size} elements, rows have {n}, and no "
                "type takes its place"
            )
        type = TYPES[_SMALLER_BLOCKS.get(type.name, type.name)]
    return TYPES["f16"] if n % type.block_size else type

"""Tiny seeded models of every architecture, as GGUF files.

A specification has the keys of a file and says which optional tensors it holds. The others follow
from the architecture itself: it is asked for its tensors once, and each gets seeded values. So a
shape that the architecture has wrong is wrong in the file too, and llama.cpp, whose logits for the
files are recorded, refuses it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.arch_models import AskedWeights
from benchmarks.models import random_rows
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.quants import from_float, has_quantizer
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F32, TensorType
from ggmlpy.models import decoder, model_class
from tests.gguf_builder import Typed, build_gguf

N_VOCAB = 72
RECORDED = Path(__file__).with_name("seeded_logits.npz")  # by tests/tools/record_seeded.py
KEPT_ROWS = (0, 1, 7, 16, 25, 36, 37, 38, 39, 40)  # of the tokens of benchmarks/peer_logits.py
# Matrices that stay f32 in files with quantised weights, as llama-quantize has it.
KEPT_F32 = re.compile(
    r".*(norm|ffn_gate_inp|altup|laurel|position_embd|token_types|rel_b|conv1d|\.conv|time_mix_).*"
)
ALWAYS = r"output\.weight|.*\.ffn_gate(_exps|_shexp)?\.weight"


@dataclass(frozen=True)
class Seeded:
    """One file: `keys` without the architecture's prefix, `optional` tensors as a pattern.

    `shapes` are of optional tensors whose shape the architecture reads from the file, by pattern.
    `extra` tensors are not asked for by ours, but by llama.cpp; `{i}` in a name is every layer.
    Each alternative of a pattern must match a tensor that the architecture looks for.
    """

    architecture: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    optional: str = ""
    without: str = ""  # of those that most have
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    extra: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)  # tensors, by pattern, in the file
    types: Mapping[str, str] = field(default_factory=dict)  # of keys that are not u32 or f32
    unprefixed: Mapping[str, Any] = field(default_factory=dict)  # further keys, of no architecture
    n_vocab: int = N_VOCAB
    seed: int = 0
    has_gelu: bool = False  # which llama.cpp has as a table of f16: see test_architectures.py

    def has(self, name: str) -> bool:
        """Whether the file holds a tensor that it need not."""
        if self.without and re.fullmatch(self.without, name):
            return False
        pattern = f"{ALWAYS}|{self.optional}" if self.optional else ALWAYS
        return re.fullmatch(pattern, name) is not None


class _Asked(AskedWeights):
    """Weights that note what a model looks for too, whether the file holds it or not, and of which
    tensors it reads the shape."""

    looked_for: set[str]
    measured: set[str]

    def take(self, name: str, *ne: int) -> Tensor:
        self.looked_for.add(name)
        return super().take(name, *ne)

    def has(self, name: str) -> bool:
        self.looked_for.add(name)
        return super().has(name)

    def ne(self, name: str) -> tuple[int, ...]:
        self.measured.add(name)
        return super().ne(name)


def write_seeded(
    folder: Path, name: str, spec: Seeded, weight_type: TensorType = F32, *, strict: bool = False
) -> Path:
    """The file `name.gguf` of a specification. Matrices whose rows are whole blocks of the type
    have it; where there is no quantiser they are random blocks.

    Raises ValueError, if `strict`, for a pattern of the specification that matches no tensor.
    """
    path = folder / f"{name}.gguf"
    metadata = metadata_of(spec)
    n_embd, n_layer = spec.keys["embedding_length"], spec.keys["block_count"]
    n_layer = max(n_layer, spec.keys.get("decoder_block_count", 0))
    stub = {"token_embd.weight": np.zeros((spec.n_vocab, n_embd), np.float32)}
    stub |= {f"blk.{i}.stub": np.zeros(1, np.float32) for i in range(n_layer)}
    build_gguf(path, metadata, _tensors(stub))
    shapes: dict[str, tuple[int, ...]] = {}
    asked = {"shape": spec, "asked": shapes, "looked_for": set(), "measured": set()}
    weights = type("AskedOf", (_Asked,), asked)
    with mock.patch.object(decoder, "Weights", weights):
        model_class(spec.architecture)(GGUFFile.open(path))
    if strict:
        _check_patterns(name, spec, weights)
    for pattern, ne in spec.extra.items():
        shapes |= {pattern.format(i=i): ne for i in range(n_layer)}
    tensors = {_stored(spec, name): _values(spec, name, ne) for name, ne in shapes.items()}
    build_gguf(path, metadata, _tensors(tensors, weight_type))
    return path


def _check_patterns(name: str, spec: Seeded, asked: type[_Asked]) -> None:
    """Raise ValueError for a pattern of a tensor that the architecture does not look for, and for
    a shape that it does not read from the file."""
    known, arch = asked.looked_for, spec.architecture
    for where, patterns, tensors, what in (
        ("optional", _alternatives(spec.optional), known, f"no tensor that {arch} looks for"),
        ("without", _alternatives(spec.without), known, f"no tensor that {arch} looks for"),
        ("renamed", spec.renamed, known, f"no tensor that {arch} looks for"),
        ("shapes", spec.shapes, asked.measured, f"no tensor whose shape {arch} reads"),
    ):
        for pattern in patterns:
            if not any(re.fullmatch(pattern, tensor) for tensor in tensors):
                raise ValueError(f"specification {name}: {where} has {pattern!r}: {what}")


def _alternatives(pattern: str) -> list[str]:
    """The parts of `a|b(c|d)|e`: a, b(c|d), e."""
    parts, depth = [""], 0
    for piece in re.findall(r"\\.|.", pattern):
        depth += (piece in "([") - (piece in ")]")
        if piece == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part for part in parts if part]


def check_recorded(path: Path, name: str, digest: str) -> None:
    """Raise AssertionError if the file is another one than that whose results are recorded."""
    assert digest_of(path) == digest, (
        f"{name}: the file is not the one recorded. If the page or the specification was meant to"
        f" change: python -m tests.tools.record_seeded --only '^{re.escape(name)}$'; else compare"
        " its tensors with those before"
    )


def digest_of(path: Path) -> str:
    """What a recording belongs to."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _stored(spec: Seeded, name: str) -> str:
    for pattern, stored in spec.renamed.items():
        name = re.sub(f"^{pattern}$", stored, name)
    return name


def metadata_of(spec: Seeded) -> dict[str, Any]:
    """The keys of a specification's file."""
    arch = spec.architecture
    metadata: dict[str, Any] = {"general.architecture": arch}
    for key, value in spec.keys.items():
        kind = spec.types.get(key)
        metadata[f"{arch}.{key}"] = value if kind is None else Typed(kind, value)
    metadata |= spec.unprefixed
    metadata.setdefault("tokenizer.ggml.model", "none")
    metadata[f"{arch}.vocab_size"] = spec.n_vocab
    return metadata


def _tensors(
    values: dict[str, NDArray[np.float32]], weight_type: TensorType = F32
) -> dict[str, Any]:
    return {name: _tensor(name, array, weight_type) for name, array in values.items()}


def _tensor(name: str, array: NDArray[np.float32], weight_type: TensorType) -> tuple[Any, ...]:
    """Type, shape and bytes."""
    ne = array.shape[::-1] or (1,)
    is_matrix = name.endswith(".weight") and len(ne) > 1 and ne[1] > 1
    if not is_matrix or ne[0] % weight_type.block_size or KEPT_F32.match(name):
        return "f32", ne, array.tobytes()
    if has_quantizer(weight_type):
        return weight_type.id, ne, from_float(array, weight_type).tobytes()
    rng = np.random.default_rng(len(name))
    rows = random_rows(rng, weight_type, array.size // ne[0], ne[0], float(array.std()))
    return weight_type.id, ne, rows.tobytes()


def _values(spec: Seeded, name: str, ne: tuple[int, ...]) -> NDArray[np.float32]:
    """Seeded values of a tensor, in numpy's order of dimensions."""
    digest = hashlib.sha256(f"{spec.architecture} {spec.seed} {name}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
    shape = ne[::-1]
    if "norm" in name and not name.endswith(".bias"):
        return rng.uniform(0.7, 1.3, shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -rng.uniform(0.5, 2.0, shape).astype(np.float32)
    if name.startswith("rope_") or name.endswith((".scale", ".scales", "ssm_d", "_scale.weight")):
        return rng.uniform(0.6, 1.6, shape).astype(np.float32)
    drawn = rng.standard_normal(shape, np.float32)
    if name.endswith(".bias"):
        return drawn * np.float32(0.3)
    return drawn / np.float32(np.sqrt(ne[0]))

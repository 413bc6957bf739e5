"""Seeded LoRA adapters and control vectors as GGUF files, and models with adapters merged in."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.types import type_of
from ggmlpy.models import load_model
from tests.gguf_builder import build_gguf

F64 = NDArray[np.float64]
# Weights whose scale multiplies what an adapter adds too, or that is not one of the product.
UNSCALED = r"\.ffn_(gate|up|down|gate_inp)(_shexp)?\.weight"
UNSCALED_IN = {"talkie": r"\.ffn_(gate|up)\.weight"}
LINEAR = r"blk\.\d+\.(attn_(q|k|v|qkv|output)|ffn_(gate|up|down))\.weight"


@dataclass(frozen=True)
class Adapter:
    """A file, and what it says in float64: of each weight A [.., r, n_in], B [.., n_out, r]."""

    path: Path
    alpha: float
    pairs: Mapping[str, tuple[F64, F64]]

    def delta(self, name: str, scale: float) -> F64:
        """What is added to a weight, in numpy's order of dimensions."""
        a, b = self.pairs[name]
        r = b.shape[-1]
        is_lookup = name == "token_embd.weight"  # A [n_vocab, r], B [n_embd, r]
        product = a @ b.T if is_lookup else b @ a
        return scale * (self.alpha / r if self.alpha else 1.0) * product


def write_adapter(
    path: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8.0,
    names: str = LINEAR,
    types: tuple[str, str] = ("f32", "f32"),
    size: float = 0.2,
    **metadata: Any,
) -> Adapter:
    """An adapter of the model's weights whose names match, of a size in proportion to theirs."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    pairs = {}
    with GGUFFile.open(model) as file:
        keys = {
            "general.type": "adapter",
            "general.architecture": file.metadata.str("general.architecture"),
            "adapter.type": "lora",
            "adapter.lora.alpha": float(alpha),
        } | metadata
        for name, info in file.tensors.items():
            if not re.fullmatch(names, name):
                continue
            n_in, n_out, n_experts, _ = info.ne
            experts = (n_experts,) if n_experts > 1 else ()
            a_shape, b_shape = (*experts, rank, n_in), (*experts, n_out, rank)
            if name == "token_embd.weight":
                a_shape, b_shape = (n_out, rank), (n_in, rank)
            norm = float(
                np.std(to_float(info.data.reshape(-1, info.type.row_bytes(n_in)), info.type))
            )
            stored = []
            for suffix, shape, type in zip("ab", (a_shape, b_shape), types, strict=True):
                std = 1.0 if suffix == "b" else size * norm / np.sqrt(rank)
                values = (rng.standard_normal(shape) * std).astype(np.float32)
                raw = from_float(values, type_of(type))
                stored.append(to_float(raw, type_of(type)).reshape(shape).astype(np.float64))
                tensors[f"{name}.lora_{suffix}"] = (type_of(type).id, shape[::-1], raw.tobytes())
            pairs[name] = stored[0], stored[1]
    assert pairs, f"no weight of {model.name} matches {names}"
    return Adapter(build_gguf(path, keys, tensors), alpha, pairs)


def write_merged(path: Path, model: Path, adapters: Sequence[tuple[Adapter, float]]) -> Path:
    """The model with all matrices in f32, and adapters added to them."""
    tensors: dict[str, Any] = {}
    with GGUFFile.open(model) as file:
        leaves = load_model(file).weights.leaves
        for name, info in file.tensors.items():
            rows = info.data.reshape(-1, info.type.row_bytes(info.ne[0]))
            values = to_float(rows, info.type).astype(np.float64)
            values = values.reshape(info.ne[: info.n_dims][::-1])
            for adapter, scale in adapters:
                if name in adapter.pairs:
                    values = values + adapter.delta(name, scale) / _scale_of(file, leaves, name)
            ne = info.ne[: info.n_dims]
            tensors[name] = ("f32", ne, values.astype(np.float32).tobytes())
        keys = [(key, plain(file.metadata[key])) for key in file.metadata]
    return build_gguf(path, keys, tensors)


def _scale_of(file: GGUFFile, leaves: Container[str], name: str) -> Any:
    """What a weight is multiplied by before an adapter is added to it, if the model does that."""
    scale = name.replace(".weight", ".scale")
    unscaled = UNSCALED_IN.get(file.metadata.str("general.architecture"), UNSCALED)
    if scale not in leaves or re.search(unscaled, name):
        return 1.0
    values = file.tensors[scale].data.view(np.float32).astype(np.float64)
    return values[0] if len(values) == 1 else values[:, None, None]


def plain(value: Any) -> Any:
    """A value as `build_gguf` takes it: an array of large numbers as one of numpy."""
    if isinstance(value, str | int | float | bool):
        return value
    items = list(value)
    if not items or type(items[0]) is not int or max(items) < 2**31:
        return items
    return np.array(items, np.uint64)


def write_control_vector(
    path: Path, model: Path, *, seed: int = 0, layers: Sequence[int] | None = None, **metadata: Any
) -> NDArray[np.float32]:
    """A control vector of all layers but the first, or of some. Returns its directions by layer
    from 1 on, [n_layer - 1, n_embd]; those that the file does not have are 0."""
    with GGUFFile.open(model) as file:
        arch = file.metadata.str("general.architecture")
        n_layer = file.metadata.int(f"{arch}.block_count")
        n_embd = file.metadata.int(f"{arch}.embedding_length")
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n_layer - 1, n_embd)).astype(np.float32)
    keys = {"general.architecture": "controlvector", "controlvector.model_hint": arch} | metadata
    tensors = {}
    for layer in range(1, n_layer):
        if layers is not None and layer not in layers:
            values[layer - 1] = 0
        else:
            raw = values[layer - 1].tobytes()
            tensors[f"direction.{layer}"] = ("f32", (n_embd,), raw)
    build_gguf(path, keys, tensors)
    return values

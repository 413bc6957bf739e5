"""Model files of architectures that benchmarks/models.py has no shape of: experts, state spaces.

    python benchmarks/arch_models.py Qwen3-30B-A3B out.gguf
    python benchmarks/vs_llama_cpp.py --model out.gguf --only prompt,decode

The layers have the sizes of the models that they are named after, but there are fewer of them, so
that a file has one or two GB. Which tensors a file has follows from the architecture itself, which
is asked for them. Values are random, and there is no vocabulary: tokens are numbers.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks.models import Bytes, TensorPlan, random_rows
from ggmlpy.errors import WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import F32, type_of
from ggmlpy.models import decoder, model_class
from ggmlpy.models.weights import Weights

ALWAYS = r"output\.weight|.*\.ffn_gate(_exps|_shexp)?\.weight"


@dataclass(frozen=True)
class ArchShape:
    """A file: `keys` without the prefix, `optional` tensors by a pattern, types of matrices."""

    architecture: str
    keys: Mapping[str, Any]
    n_vocab: int
    optional: str = ""
    type: str = "q4_0"
    types: Mapping[str, str] = field(default_factory=dict)  # others, by pattern
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of optional tensors

    def has(self, name: str) -> bool:
        """Whether the file holds a tensor that it need not."""
        return (
            re.fullmatch(f"{ALWAYS}|{self.optional}" if self.optional else ALWAYS, name) is not None
        )

    def type_of(self, name: str, ne: tuple[int, ...]) -> str:
        """The type that a tensor is stored in: f32 unless it is a matrix of whole blocks."""
        for pattern, type in self.types.items():
            if re.fullmatch(pattern, name):
                return type
        is_matrix = name.endswith(".weight") and len(ne) > 1 and "norm" not in name
        small = "conv1d" in name or "gate_inp" in name
        return self.type if is_matrix and not small and not ne[0] % 32 else "f32"


COMMON: dict[str, Any] = {
    "context_length": 32_768,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6,
}
SHAPES: dict[str, ArchShape] = {
    "Qwen3-30B-A3B": ArchShape(
        "qwen3moe",
        COMMON
        | {
            "embedding_length": 2048,
            "block_count": 4,
            "feed_forward_length": 6144,
            "attention.head_count": 32,
            "attention.head_count_kv": 4,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 768,
        },
        151_936,
        r".*\.attn_[qk]_norm\.weight",
        shapes={r".*_norm\.weight": (128,)},
    ),
    "gpt-oss-20b": ArchShape(
        "gpt-oss",
        COMMON
        | {
            "embedding_length": 2880,
            "block_count": 4,
            "feed_forward_length": 2880,
            "attention.head_count": 64,
            "attention.head_count_kv": 8,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.sliding_window": 128,
            "expert_count": 32,
            "expert_used_count": 4,
            "expert_feed_forward_length": 2880,
            "rope.freq_base": 150_000.0,
        },
        201_088,
        r".*\.attn_(q|k|v|output)\.bias|.*\.ffn_gate_inp\.bias|.*_exps\.bias|.*\.attn_sinks\.weight",
        type="q8_0",
        types={r".*_exps\.weight": "mxfp4"},
    ),
    "Mamba-2-2.7B": ArchShape(
        "mamba2",
        COMMON
        | {
            "embedding_length": 2560,
            "block_count": 24,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 5120,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 80,
            "ssm.group_count": 1,
        },
        50_288,
        r".*\.ssm_conv1d\.bias|.*\.ssm_norm\.weight",
        type="q8_0",
    ),
    "Qwen3.5-2B": ArchShape(
        "qwen35",
        COMMON
        | {
            "embedding_length": 2048,
            "block_count": 12,
            "feed_forward_length": 6144,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": 4,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 2048,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 16,
            "ssm.group_count": 16,
        },
        151_936,
    ),
    "Falcon-H1-1.5B": ArchShape(
        "falcon-h1",
        COMMON
        | {
            "embedding_length": 2048,
            "block_count": 12,
            "feed_forward_length": 4096,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 3072,
            "ssm.state_size": 256,
            "ssm.time_step_rank": 48,
            "ssm.group_count": 1,
        },
        65_536,
        r".*\.ssm_conv1d\.bias|.*\.ffn_norm",
    ),
}


class AskedWeights(Weights):
    """Weights that note what a model takes, and have whatever it asks for."""

    shape: ArchShape
    asked: dict[str, tuple[int, ...]]

    def take(self, name: str, *ne: int) -> Tensor:
        self.asked[name] = ne
        leaf = Tensor(Spec(ne + (1,) * (4 - len(ne)), F32), name=name, flags=Flag.WEIGHT)
        self._taken[name] = leaf
        return leaf

    def maybe(self, name: str, *ne: int) -> Tensor | None:
        return self.take(name, *ne) if self.has(name) else None

    def has(self, name: str) -> bool:
        return name in self.asked or self.shape.has(name)

    def ne(self, name: str) -> tuple[int, ...]:
        for pattern, ne in self.shape.shapes.items():
            if re.fullmatch(pattern, name):
                return ne + (1,) * (4 - len(ne))
        raise WeightError(f'"{name}": the model depends on its shape, which `shapes` must give')


def write_model(path: Path, shape: ArchShape, seed: int = 0) -> None:
    """Write a file of the shape."""
    keys = {f"{shape.architecture}.{key}": value for key, value in shape.keys.items()}
    keys[f"{shape.architecture}.vocab_size"] = shape.n_vocab
    keys["tokenizer.ggml.model"] = "none"
    tensors = _tensors(shape, keys)
    writer = _writer(path, shape, keys)
    for tensor in tensors:
        of_bytes = [*tensor.numpy_shape[:-1], tensor.type.row_bytes(tensor.n)]
        gguf_type = gguf.GGMLQuantizationType(tensor.type.id)
        writer.add_tensor_info(tensor.name, of_bytes, np.dtype(np.uint8), tensor.n_bytes, gguf_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(seed))
    for tensor in tensors:
        writer.write_tensor_data(_values(rng, tensor, shape.keys["block_count"]))
    writer.close()


def _writer(path: Path, shape: ArchShape, keys: Mapping[str, Any]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, shape.architecture)
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    return writer


def _tensors(shape: ArchShape, keys: Mapping[str, Any]) -> list[TensorPlan]:
    """Those that the architecture asks a file of these keys for."""
    asked: dict[str, tuple[int, ...]] = {}
    n_embd, n_layer = shape.keys["embedding_length"], shape.keys["block_count"]
    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder) / "stub.gguf"
        writer = _writer(stub, shape, keys)
        rows = np.zeros((shape.n_vocab, n_embd // 32 * 18), np.uint8)
        writer.add_tensor("token_embd.weight", rows, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        for i in range(n_layer):
            writer.add_tensor(f"blk.{i}.stub", np.zeros(1, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made = type("AskedOf", (AskedWeights,), {"shape": shape, "asked": asked})
        with mock.patch.object(decoder, "Weights", made):
            model_class(shape.architecture)(GGUFFile.open(stub))
    return [
        TensorPlan(name, type_of(shape.type_of(name, ne)), ne[::-1]) for name, ne in asked.items()
    ]


def _values(rng: np.random.Generator, tensor: TensorPlan, n_layer: int) -> Bytes:
    if tensor.name.endswith("ssm_a"):
        return -rng.uniform(0.5, 2, tensor.numpy_shape).astype(np.float32).view(np.uint8)
    if "norm" in tensor.name or tensor.name.endswith("ssm_d"):
        return rng.uniform(0.7, 1.3, tensor.numpy_shape).astype(np.float32).view(np.uint8)
    if tensor.type.name == "mxfp4":
        raw = rng.integers(
            256, size=(tensor.n_rows, tensor.type.row_bytes(tensor.n)), dtype=np.uint8
        )
        raw.reshape(-1, 17)[:, 0] = 119  # exponents of blocks: 2^-8, about 1 / sqrt(n) with E2M1
        return raw
    scale = 1.0 if tensor.name == "token_embd.weight" else tensor.n**-0.5
    if re.search(r"\.(ssm_out|attn_output|ffn_down)\.weight$", tensor.name):
        scale *= (2 * n_layer) ** -0.5  # as GPT-2 starts: else layers amplify what is rounded
    return random_rows(rng, tensor.type, tensor.n_rows, tensor.n, scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, help="the file to write")
    options = parser.parse_args()
    write_model(options.out, SHAPES[options.shape])


if __name__ == "__main__":
    main()

"""Model files of real shapes with random weights: to measure speed without a download.

    python benchmarks/models.py Llama-3.2-1B q4_0 out.gguf

Every tensor, key and type is what a converted and quantised checkpoint would have, so that other
engines load the file too; only what the model says is nonsense. The vocabulary has as many tokens
and merges as the real one, so that opening the file is as much work. Weights are about
1 / sqrt(n_in) in size, which keeps activations in the range that they have in trained models.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it would not find its neighbours

from benchmarks.vocabularies import vocabulary
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.types import TYPES, TensorType, type_of

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model. Every one here uses its token embedding as the output matrix too."""

    architecture: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    n_ff: int
    n_vocab: int
    n_ctx: int
    freq_base: float
    norm_eps: float
    biases: bool = False  # of q, k and v
    qk_norm: bool = False
    post_norms: bool = False
    llama3_factors: bool = False  # frequency factors of rope
    linear_scaling: float = 1.0
    window: int = 0
    attention_layers: tuple[int, ...] | None = None  # the others are short convolutions
    n_taps: int = 3  # of these convolutions
    pre: str | None = None  # how its BPE vocabulary cuts words; None for SentencePiece
    n_merges: int = 0  # of that vocabulary; one for each token at least


def _qwen2(n_layer: int, n_embd: int, n_head: int, n_ff: int, head: int) -> ModelShape:
    return ModelShape(
        "qwen2", n_layer, n_embd, n_head, 2, head, n_ff, 151_936, 32_768, 1e6, 1e-6, biases=True,
        pre="qwen2",
    )  # fmt: skip


def _gemma3(
    n_layer: int, n_embd: int, n_head: int, n_head_kv: int, n_ff: int, n_vocab: int, **more: Any
) -> ModelShape:
    return ModelShape(
        "gemma3", n_layer, n_embd, n_head, n_head_kv, 256, n_ff, n_vocab,
        freq_base=1e6, norm_eps=1e-6, qk_norm=True, post_norms=True, **more,
    )  # fmt: skip


SHAPES: dict[str, ModelShape] = {
    "tiny": ModelShape("llama", 2, 256, 4, 2, 64, 512, 512, 4096, 1e4, 1e-5),
    "Llama-3.2-1B": ModelShape(
        "llama", 16, 2048, 32, 8, 64, 8192, 128_256, 131_072, 5e5, 1e-5, llama3_factors=True,
        pre="llama-bpe", n_merges=280_147,
    ),
    "Qwen2.5-0.5B": _qwen2(24, 896, 14, 4864, 64),
    "Qwen2.5-1.5B": _qwen2(28, 1536, 12, 8960, 128),
    "Qwen2.5-3B": _qwen2(36, 2048, 16, 11_008, 128),
    "Gemma-3-1B": _gemma3(26, 1152, 4, 1, 6912, 262_144, n_ctx=32_768, window=512),
    "Gemma-3-4B": _gemma3(
        34, 2560, 8, 4, 10_240, 262_208, n_ctx=131_072, window=1024, linear_scaling=8.0
    ),
    "LFM2-1.2B": ModelShape(
        "lfm2", 16, 2048, 32, 8, 64, 8192, 65_536, 128_000, 1e6, 1e-5,
        qk_norm=True, attention_layers=(2, 5, 8, 10, 12, 14), pre="lfm2",
    ),
}  # fmt: skip

# The f16 scales of a block: their places, and what each is in units of the first for values whose
# mean is about 0. All other bytes of these formats may hold anything.
_SCALES: dict[str, dict[int, float]] = {
    "q4_0": {0: 1},
    "q4_1": {0: 1, 2: -7.5},
    "q5_0": {0: 1},
    "q5_1": {0: 1, 2: -15.5},
    "q8_0": {0: 1},
    "iq4_nl": {0: 1},
    "q2_K": {80: 1, 82: 1.5},
    "q3_K": {108: 1},
    "q4_K": {0: 1, 2: 7.5},
    "q5_K": {0: 1, 2: 15.5},
    "q6_K": {208: 1},
}
# What llama.cpp takes where a row is not whole blocks of 256.
_FALLBACK = {"q2_K": "iq4_nl", "q3_K": "iq4_nl", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0"}
# Mixed file types: the type of most matrices. About half of the v and down matrices are q6_K.
_MIXED = {"q4_K_M": "q4_K", "q5_K_M": "q5_K"}
FILE_TYPES = ("f32", "f16", "bf16", *(name for name in _SCALES if name != "iq4_nl"), *_MIXED)


def kept_model(
    folder: Path, name: str, file_type: str, tell: Callable[[str], None] = lambda text: None
) -> Path:
    """The file of a shape and type in `folder`, made if it is not there yet.

    It gets its name when it is complete: one that was broken off is not taken for a model.
    """
    path = folder / f"{name}-{file_type}.gguf"
    if not path.exists():
        tell(f"making {path}")
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        write_model(unfinished, name, SHAPES[name], file_type)
        unfinished.replace(path)
    return path


# --- what is in a file --------------------------------------------------------------------------


def write_model(
    path: Path,
    name: str,
    shape: ModelShape,
    file_type: str,
    *,
    pure: bool = False,
    hollow: bool = False,
    seed: int = 0,
) -> None:
    """Write a model whose matrices are of `file_type`, one of FILE_TYPES.

    As in llama.cpp's files the token embedding, which is the output matrix too, is q6_K where
    others are smaller; `pure` makes it `file_type` as well. A `hollow` one has holes for weights:
    to look at, not to run.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    writer = gguf.GGUFWriter(path, shape.architecture)
    for key, value in _metadata(name, shape, file_type).items():
        kind = gguf.GGUFValueType.UINT32 if isinstance(value, int) else None  # gguf would take i32
        writer.add_key_value(key, value, kind or gguf.GGUFValueType.get_type(value))
    tensors = list(planned_tensors(shape, file_type, pure=pure))
    for tensor in tensors:
        of_bytes = [*tensor.numpy_shape[:-1], tensor.type.row_bytes(tensor.n)]
        gguf_type = gguf.GGMLQuantizationType(tensor.type.id)
        writer.add_tensor_info(tensor.name, of_bytes, np.dtype(np.uint8), tensor.n_bytes, gguf_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if not hollow:
        for tensor in tensors:
            writer.write_tensor_data(_values(rng, tensor, shape))
    writer.close()
    if hollow:
        with path.open("r+b") as file:
            n_header = -(-file.seek(0, os.SEEK_END) // writer.data_alignment)
            n_data = sum(-(-tensor.n_bytes // writer.data_alignment) for tensor in tensors)
            file.truncate((n_header + n_data) * writer.data_alignment)


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor to write: rows of `n` elements."""

    name: str
    type: TensorType
    numpy_shape: tuple[int, ...]

    @property
    def n(self) -> int:
        return self.numpy_shape[-1]

    @property
    def n_rows(self) -> int:
        return math.prod(self.numpy_shape[:-1])

    @property
    def n_bytes(self) -> int:
        return self.n_rows * self.type.row_bytes(self.n)


def planned_tensors(
    shape: ModelShape, file_type: str, *, pure: bool = False
) -> Iterator[TensorPlan]:
    """Every tensor of the model, in the order of the file."""
    main = type_of(_MIXED.get(file_type, file_type))
    E, F = shape.n_embd, shape.n_ff
    large = type_of("q6_K") if main.is_quantized and main.name != "q8_0" and not pure else main
    yield _matrix("token_embd", large, shape.n_vocab, E)
    if shape.llama3_factors:
        yield _vector("rope_freqs", shape.n_embd_head // 2)
    for i in range(shape.n_layer):
        blk = f"blk.{i}"
        better = file_type in _MIXED and _deserves_more(i, shape.n_layer)
        yield _vector(f"{blk}.attn_norm", E)
        if _has_attention(shape, i):
            yield from _attention(blk, shape, main, type_of("q6_K") if better else main)
        else:
            yield _matrix(f"{blk}.shortconv.in_proj", main, 3 * E, E)
            yield TensorPlan(f"{blk}.shortconv.conv.weight", type_of("f32"), (E, shape.n_taps))
            yield _matrix(f"{blk}.shortconv.out_proj", main, E, E)
        yield _vector(f"{blk}.ffn_norm", E)
        yield _matrix(f"{blk}.ffn_gate", main, F, E)
        yield _matrix(f"{blk}.ffn_up", main, F, E)
        yield _matrix(f"{blk}.ffn_down", type_of("q6_K") if better else main, E, F)
        if shape.post_norms:
            yield _vector(f"{blk}.post_attention_norm", E)
            yield _vector(f"{blk}.post_ffw_norm", E)
    yield _vector("token_embd_norm" if shape.architecture == "lfm2" else "output_norm", E)


def _attention(
    blk: str, shape: ModelShape, main: TensorType, v: TensorType
) -> Iterator[TensorPlan]:
    E, D = shape.n_embd, shape.n_embd_head
    n_q, n_kv = D * shape.n_head, D * shape.n_head_kv
    for name, type, n in (("attn_q", main, n_q), ("attn_k", main, n_kv), ("attn_v", v, n_kv)):
        yield _matrix(f"{blk}.{name}", type, n, E)
        if shape.biases:
            yield _vector(f"{blk}.{name}", n, "bias")
    yield _matrix(f"{blk}.attn_output", main, E, n_q)
    if shape.qk_norm:
        yield _vector(f"{blk}.attn_q_norm", D)
        yield _vector(f"{blk}.attn_k_norm", D)


def _matrix(name: str, type: TensorType, n_out: int, n_in: int) -> TensorPlan:
    if n_in % type.block_size:
        type = TYPES[_FALLBACK[type.name]]
    return TensorPlan(f"{name}.weight", type, (n_out, n_in))


def _vector(name: str, n: int, kind: str = "weight") -> TensorPlan:
    return TensorPlan(f"{name}.{kind}", type_of("f32"), (n,))


def _has_attention(shape: ModelShape, layer: int) -> bool:
    return shape.attention_layers is None or layer in shape.attention_layers


def _deserves_more(i: int, n: int) -> bool:
    """llama.cpp's choice for the better type: the first and last eighth, a third of the rest."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _metadata(name: str, shape: ModelShape, file_type: str) -> dict[str, Any]:
    with_attention = [_has_attention(shape, i) for i in range(shape.n_layer)]
    per_layer = [shape.n_head_kv * has for has in with_attention]
    keys: dict[str, Any] = {
        "vocab_size": shape.n_vocab,
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv if all(with_attention) else per_layer,
        "attention.key_length": shape.n_embd_head,
        "attention.value_length": shape.n_embd_head,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        "rope.dimension_count": shape.n_embd_head,
        "rope.freq_base": shape.freq_base,
    }
    if shape.linear_scaling != 1:
        keys["rope.scaling.type"] = "linear"
        keys["rope.scaling.factor"] = shape.linear_scaling
    if shape.window:
        keys["attention.sliding_window"] = shape.window
    if not all(with_attention):
        keys["shortconv.l_cache"] = shape.n_taps
    return {
        "general.name": f"{name}, random weights",
        "general.file_type": _file_type_id(file_type),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
        **{f"{shape.architecture}.{key}": value for key, value in keys.items()},
        **vocabulary(shape.n_vocab, shape.pre, shape.n_merges),
    }


def _file_type_id(file_type: str) -> int:
    """The number of llama.cpp's file type; of a K-quant by itself, that of its small mix."""
    upper = file_type.upper()
    known = {kind.name: int(kind) for kind in gguf.LlamaFileType}
    names = (f"MOSTLY_{upper}", f"ALL_{upper}", f"MOSTLY_{upper}_S")
    return next(known[name] for name in names if name in known)


# --- values -------------------------------------------------------------------------------------


def _values(rng: np.random.Generator, tensor: TensorPlan, shape: ModelShape) -> Bytes:
    """The bytes of a tensor, [n_rows, row_bytes]."""
    if tensor.name == "rope_freqs.weight":
        return _llama3_factors(shape).view(np.uint8)
    if tensor.name.endswith("_norm.weight"):
        return rng.uniform(0.7, 1.3, tensor.n).astype(np.float32).view(np.uint8)
    if tensor.name.endswith(".bias"):
        return (rng.standard_normal(tensor.n, np.float32) / 4).view(np.uint8)
    raw = np.empty((tensor.n_rows, tensor.type.row_bytes(tensor.n)), np.uint8)
    rows_at_a_time = max(1, 2**24 // tensor.n)
    for at in range(0, tensor.n_rows, rows_at_a_time):
        part = raw[at : at + rows_at_a_time]
        part[:] = random_rows(rng, tensor.type, len(part), tensor.n, 1 / math.sqrt(tensor.n))
    return raw


def random_rows(
    rng: np.random.Generator, type: TensorType, n_rows: int, n: int, size: float
) -> Bytes:
    """`n_rows` rows of `n` random values whose root mean square is about `size`."""
    if type.is_float:
        return from_float(rng.standard_normal((n_rows, n), np.float32) * np.float32(size), type)
    blocks = _random_blocks(rng, type, n_rows * n // type.block_size)
    unit = to_float(_scaled(_random_blocks(rng, type, 1024), type, 1.0), type)
    return _scaled(blocks, type, size / float(np.sqrt(np.square(unit).mean()))).reshape(n_rows, -1)


def _random_blocks(rng: np.random.Generator, type: TensorType, n: int) -> Bytes:
    return np.frombuffer(bytearray(rng.bytes(n * type.type_size)), np.uint8).reshape(n, -1)


def _scaled(blocks: Bytes, type: TensorType, d: float) -> Bytes:
    """The blocks with scales that fit `d`, written in place."""
    for place, factor in _SCALES[type.name].items():
        blocks[:, place : place + 2] = np.array([d * factor], np.float16).view(np.uint8)
    return blocks


def _llama3_factors(shape: ModelShape) -> NDArray[np.float32]:
    """Llama 3.2's frequency factors: 32 for slow ones, 1 for fast ones, a ramp between.

    Slow and fast are less than 1 and more than 4 rotations in 8192 tokens.
    """
    exponents = np.arange(0, shape.n_embd_head, 2) / shape.n_embd_head
    rotations = 8192 / (2 * math.pi * shape.freq_base**exponents)
    ramp = np.clip((rotations - 1) / (4 - 1), 0, 1)
    return (1 / ((1 - ramp) / 32 + ramp)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("shape", choices=SHAPES, metavar="shape", help=", ".join(SHAPES))
    parser.add_argument("type", choices=FILE_TYPES, metavar="type", help=", ".join(FILE_TYPES))
    parser.add_argument("file", type=Path)
    parser.add_argument("--pure", action="store_true", help="the token embedding in this type too")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.perf_counter()
    shape = SHAPES[options.shape]
    write_model(
        options.file, options.shape, shape, options.type, pure=options.pure, seed=options.seed
    )
    size, spent_s = options.file.stat().st_size, time.perf_counter() - started
    print(f"{options.file}: {size / 1e6:.1f} MB in {spent_s:.1f} s")


if __name__ == "__main__":
    main()

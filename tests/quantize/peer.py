"""What llama.cpp made of seeded rows and models, in recorded.json; and the rows and models.

`tests/tools/record_quantize.py` writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.quantize.rows import NEED_IMPORTANCE
from tests.gguf_builder import build_gguf

RECORDED = Path(__file__).with_name("recorded.json")
Floats = NDArray[np.float32]

TYPES = (
    "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
    "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4", "q1_0", "q2_0", "iq1_s", "iq1_m", "iq2_xxs",
    "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s",
)  # fmt: skip
N_ROWS, N = 12, 768  # three superblocks: pairs of them, and one alone


def uniform(seed: int, shape: tuple[int, ...]) -> Floats:
    """Numbers from -0.5 to 0.5, the same with every version of numpy."""
    n = int(np.prod(shape))
    raw = np.random.PCG64(seed).random_raw(n)  # type: ignore[no-untyped-call,unused-ignore]
    return ((raw >> 40).astype(np.float32) / np.float32(2**24) - np.float32(0.5)).reshape(shape)


def rows(kind: str) -> Floats:
    """[N_ROWS, N]: bell-shaped, of many magnitudes, flat, or with all that is special."""
    x = sum((uniform(seed, (N_ROWS, N)) for seed in range(1, 4)), np.zeros((), np.float32))
    x = np.asarray(x * np.float32(0.05), np.float32)
    if kind == "wide":
        exponents = np.rint(uniform(4, x.shape) * 24).astype(np.int32)
        return np.ldexp(x, exponents).astype(np.float32)
    if kind == "flat":  # in these, iq2_xxs fits the scale of an element with the wrong sign
        return uniform(13, (N_ROWS, N))
    if kind == "special":
        x[:, :280] = 0
        x[0], x[1], x[2] = 0, 1, -2
        x[3, ::7] = 100
        x[4], x[5] = np.abs(x[4]), -np.abs(x[5])
        x[6, 300:364] = 0.5
        x[7] *= np.float32(1e-7)
        x[8] *= np.float32(1e-20)
        x[9] = np.rint(x[9] * 60)
    return x


KINDS = ("bell", "wide", "special", "flat")


def importance(kind: str) -> Floats | None:
    """[N]: positive, with zeros, or none."""
    u = uniform(9, (N,)) + np.float32(0.5)
    if kind == "zeros":
        return np.where(u < 0.3, np.float32(0), u * u)
    return u * u * u + np.float32(1e-3) if kind == "positive" else None


IMPORTANCES = ("none", "positive", "zeros")


def importances_of(name: str) -> tuple[str, ...]:
    """Those that a type can be quantised with."""
    return IMPORTANCES[1:] if name in NEED_IMPORTANCE else IMPORTANCES


TEXT = (
    "Once upon a time there was a little dog that lived near a big tree. One day the dog saw a bird"
    " in the tree. The bird was sad, and the dog wanted to help. They looked for a friend. "
) * 6
N_CTX = 48  # tokens of a chunk of it


def digest(data: bytes | NDArray[np.uint8]) -> str:
    return sha256(bytes(data)).hexdigest()[:16]


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


_N_LAYERS = 24
_SKELETONS: dict[str, tuple[str, int, int, int, int, dict[str, int]]] = {
    # architecture, n_layer, heads, KV heads, embedding size, other keys
    "llama": ("llama", _N_LAYERS, 8, 2, 256, {}),
    "same-heads": ("llama", _N_LAYERS, 4, 4, 256, {}),
    "70b": ("llama", 80, 8, 1, 256, {}),
    "eight-experts": ("llama", _N_LAYERS, 4, 4, 256, {"expert_count": 8, "expert_used_count": 2}),
    "sixty-experts": ("llama", _N_LAYERS, 4, 4, 256, {"expert_count": 60, "expert_used_count": 4}),
    "falcon": ("falcon", 32, 4, 4, 256, {}),
    "small-rows": ("llama", _N_LAYERS, 4, 4, 96, {}),
    "odd-rows": ("llama", _N_LAYERS, 4, 4, 80, {}),
    "tied": ("llama", _N_LAYERS, 8, 8, 256, {}),
}
SKELETONS = tuple(_SKELETONS)


def write_skeleton(folder: Path, name: str) -> Path:
    """A model of zeros with the tensors of a whole one, in which only shapes and names count."""
    architecture, n_layer, n_head, n_head_kv, n, more = _SKELETONS[name]
    keys: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": n_layer,
        f"{architecture}.context_length": 64,
        f"{architecture}.embedding_length": n,
        f"{architecture}.feed_forward_length": 2 * n,
        f"{architecture}.attention.head_count": n_head,
        f"{architecture}.attention.head_count_kv": n_head_kv,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.attention.layer_norm_epsilon": 1e-5,
        **{f"{architecture}.{key}": value for key, value in more.items()},
        "tokenizer.ggml.model": "no_vocab",
        f"{architecture}.vocab_size": 32,
    }
    n_expert = more.get("expert_count", 0)
    ffn = ("ffn_up", "ffn_gate", "ffn_down")
    attn = ("attn_qkv",) if architecture == "falcon" else ("attn_q", "attn_k", "attn_v")
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (n, 32), "output_norm.weight": (n,)}
    if name != "tied":
        shapes["output.weight"] = (n, 32)
    for i in range(n_layer):
        for part in (*attn, "attn_output"):
            shapes[f"blk.{i}.{part}.weight"] = (n, 2)
        shapes[f"blk.{i}.attn_norm.weight"] = (n,)
        for part in ffn:
            if n_expert:
                shapes[f"blk.{i}.{part}_exps.weight"] = (n, 2, n_expert)
            else:
                shapes[f"blk.{i}.{part}.weight"] = (n, 2)
        if n_expert:
            shapes[f"blk.{i}.ffn_gate_inp.weight"] = (n, n_expert)
    tensors = [(tensor, ("f32", ne, bytes(4 * int(np.prod(ne))))) for tensor, ne in shapes.items()]
    path = folder / f"{name}.gguf"
    build_gguf(path, keys, tensors)
    return path


def digest_of(types: Iterable[str]) -> str:
    """Of the types of a model's tensors."""
    return digest(" ".join(types).encode())

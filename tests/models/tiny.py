"""Tiny random llama models as GGUF files, and the same forward pass in plain numpy float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.quants import from_float, to_float
from ggmlpy.types import type_of
from tests.gguf_builder import build_gguf

F64 = NDArray[np.float64]
Product = Callable[[F64, F64], F64]  # x [n, n_in], weight [n_out, n_in]


@dataclass(frozen=True)
class Tiny:
    """Sizes and options of a model; every combination must load."""

    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 96
    n_vocab: int = 288
    n_ctx: int = 128
    n_rot: int = 16
    n_expert: int = 0
    n_expert_used: int = 0
    tied: bool = False
    biases: bool = False
    freq_factors: bool = False
    yarn_factor: float = 0.0
    linear_factor: float = 0.0
    weight_type: str = "f32"
    eps: float = 1e-5
    freq_base: float = 10_000.0
    seed: int = 0

    @property
    def n_embd_head(self) -> int:
        return self.n_embd // self.n_head


def weights(m: Tiny) -> dict[str, NDArray[np.float32]]:
    """Tensors in numpy order, matrices [n_out, n_in]."""
    rng = np.random.default_rng(m.seed)
    E, F, D = m.n_embd, m.n_ff, m.n_embd_head
    n_q, n_kv = D * m.n_head, D * m.n_head_kv

    def matrix(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(shape[-1]))

    def near_one(n: int) -> NDArray[np.float32]:
        return rng.uniform(0.7, 1.3, n).astype(np.float32)

    w = {"token_embd.weight": matrix(m.n_vocab, E) * 4, "output_norm.weight": near_one(E)}
    if not m.tied:
        w["output.weight"] = matrix(m.n_vocab, E)
    if m.freq_factors:
        w["rope_freqs.weight"] = rng.uniform(1, 8, m.n_rot // 2).astype(np.float32)
    for i in range(m.n_layer):
        b = f"blk.{i}"
        w[f"{b}.attn_norm.weight"] = near_one(E)
        w[f"{b}.ffn_norm.weight"] = near_one(E)
        for name, n in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
            w[f"{b}.{name}.weight"] = matrix(n, E) * 2
            if m.biases:
                w[f"{b}.{name}.bias"] = matrix(n)
        w[f"{b}.attn_output.weight"] = matrix(E, n_q)
        if m.biases:
            w[f"{b}.attn_output.bias"] = matrix(E)
        if m.n_expert:
            w[f"{b}.ffn_gate_inp.weight"] = matrix(m.n_expert, E) * 3
            w[f"{b}.ffn_gate_exps.weight"] = matrix(m.n_expert, F, E)
            w[f"{b}.ffn_up_exps.weight"] = matrix(m.n_expert, F, E)
            w[f"{b}.ffn_down_exps.weight"] = matrix(m.n_expert, E, F)
        else:
            w[f"{b}.ffn_gate.weight"] = matrix(F, E)
            w[f"{b}.ffn_up.weight"] = matrix(F, E)
            w[f"{b}.ffn_down.weight"] = matrix(E, F)
    return w


def write_model(path: Path, m: Tiny, **changes: Any) -> Path:
    """Write the model as a GGUF file; `changes` replace or (None) drop metadata keys."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": m.n_ctx,
        "llama.embedding_length": m.n_embd,
        "llama.block_count": m.n_layer,
        "llama.feed_forward_length": m.n_ff,
        "llama.attention.head_count": m.n_head,
        "llama.attention.head_count_kv": m.n_head_kv,
        "llama.attention.layer_norm_rms_epsilon": float(m.eps),
        "llama.rope.dimension_count": m.n_rot,
        "llama.rope.freq_base": float(m.freq_base),
        **byte_vocabulary(m.n_vocab),
    }
    if m.n_expert:
        metadata["llama.expert_count"] = m.n_expert
        metadata["llama.expert_used_count"] = m.n_expert_used
    if m.yarn_factor or m.linear_factor:
        metadata["llama.rope.scaling.type"] = "yarn" if m.yarn_factor else "linear"
        metadata["llama.rope.scaling.factor"] = float(m.yarn_factor or m.linear_factor)
        metadata["llama.rope.scaling.original_context_length"] = 32
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            metadata.pop(name, None)
        else:
            metadata[name] = value
    tensors = {}
    for name, values in weights(m).items():
        type = type_of(m.weight_type if values.ndim > 1 else "f32")
        tensors[name] = (type.name, values.shape[::-1], from_float(values, type).tobytes())
    build_gguf(path, metadata, tensors)
    return path


def byte_vocabulary(n_vocab: int) -> dict[str, Any]:
    """An SPM vocabulary of the control tokens, 256 bytes, and letters to fill it up."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    types = [2, 3, 3, *[6] * 256]
    letters = ["\u2581", *map(chr, range(97, 123)), "\u2581a", "\u2581b"]
    tokens += letters[: n_vocab - len(tokens)]
    tokens += [f"<fill{i}>" for i in range(n_vocab - len(tokens))]
    types += [1] * (n_vocab - len(types))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [float(-i) for i in range(n_vocab)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def forward(m: Tiny, tokens: list[int], *, int8_activations: bool = False) -> F64:
    """Logits [n_tokens, n_vocab] of the stored weights, everything else exact.

    With `int8_activations` what enters a product is rounded to 127 steps per block of 32 first, as
    kernels for quantised weights do.
    """
    stored = {}
    for name, values in weights(m).items():
        type = type_of(m.weight_type if values.ndim > 1 else "f32")
        stored[name] = to_float(from_float(values, type), type).astype(np.float64)
    product = _rounded_product if int8_activations else _product
    x = stored["token_embd.weight"][tokens]
    for i in range(m.n_layer):
        w = {k.removeprefix(f"blk.{i}."): v for k, v in stored.items()}
        x = x + _attention(m, w, _norm(m, x, w["attn_norm.weight"]), product)
        h = _norm(m, x, w["ffn_norm.weight"])
        x = x + (_experts(m, w, h, product) if m.n_expert else _swiglu(h, w, product))
    x = _norm(m, x, stored["output_norm.weight"])
    return product(x, stored["token_embd.weight" if m.tied else "output.weight"])


def _product(x: F64, weight: F64) -> F64:
    y: F64 = x @ weight.T
    return y


def _rounded_product(x: F64, weight: F64) -> F64:
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(-1, keepdims=True) / 127
    return _product((np.rint(blocks / np.where(d == 0, 1, d)) * d).reshape(x.shape), weight)


def _norm(m: Tiny, x: F64, weight: F64) -> F64:
    y: F64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + m.eps) * weight
    return y


def _swiglu(x: F64, w: dict[str, F64], product: Product, expert: int | None = None) -> F64:
    names = [f"ffn_{n}{'' if expert is None else '_exps'}.weight" for n in ("gate", "up", "down")]
    gate, up, down = (w[n] if expert is None else w[n][expert] for n in names)
    g = product(x, gate)
    return product(g / (1 + np.exp(-g)) * product(x, up), down)


def _experts(m: Tiny, w: dict[str, F64], x: F64, product: Product) -> F64:
    scores = product(x, w["ffn_gate_inp.weight"])
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for t, row in enumerate(p):
        best = np.argsort(-row)[: m.n_expert_used]
        for e in best:
            out[t] += row[e] / row[best].sum() * _swiglu(x[t], w, product, int(e))
    return out


def _attention(m: Tiny, w: dict[str, F64], x: F64, product: Product) -> F64:
    T, D = len(x), m.n_embd_head

    def project(name: str, n_head: int) -> F64:
        y = product(x, w[f"{name}.weight"]) + w.get(f"{name}.bias", 0.0)
        return y.reshape(T, n_head, D)

    q = _rope(m, w, project("attn_q", m.n_head))
    k = _rope(m, w, project("attn_k", m.n_head_kv))
    v = project("attn_v", m.n_head_kv)
    out = np.zeros((T, m.n_head, D))
    for head in range(m.n_head):
        kv = head // (m.n_head // m.n_head_kv)
        s = q[:, head] @ k[:, kv].T / math.sqrt(D)
        s[np.triu_indices(T, 1)] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
    return product(out.reshape(T, -1), w["attn_output.weight"]) + w.get("attn_output.bias", 0.0)


def _rope(m: Tiny, w: dict[str, F64], x: F64) -> F64:
    """Pairs (2i, 2i+1), as complex numbers turned by theta."""
    n = m.n_rot // 2
    i = np.arange(n)
    theta = np.arange(len(x))[:, None] * m.freq_base ** (-2.0 * i / m.n_rot)
    theta = theta / w.get("rope_freqs.weight", np.ones(n))
    magnitude = 1.0
    if m.linear_factor:
        theta = theta / m.linear_factor
    if m.yarn_factor:
        corrections = [
            m.n_rot * math.log(32 / (beta * 2 * math.pi)) / (2 * math.log(m.freq_base))
            for beta in (32.0, 1.0)
        ]
        low = max(0, math.floor(corrections[0]))
        high = min(m.n_rot - 1, math.ceil(corrections[1]))
        keep = 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)
        theta = theta / m.yarn_factor * (1 - keep) + theta * keep
        magnitude = 1 + 0.1 * math.log(m.yarn_factor)
    out = x.copy()
    pairs = x[..., : 2 * n].reshape(*x.shape[:-1], n, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * theta)[:, None] * magnitude
    out[..., 0 : 2 * n : 2], out[..., 1 : 2 * n : 2] = turned.real, turned.imag
    return out

"""Tiny random models as GGUF files, and the same forward pass in plain numpy float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.types import TensorType, type_of
from tests.gguf_builder import build_gguf

F64 = NDArray[np.float64]
Product = Callable[[F64, F64], F64]  # x [n, n_in], weight [n_out, n_in]


@dataclass(frozen=True)
class Tiny:
    """Sizes and options of a model; every combination that its architecture knows must load."""

    architecture: str = "llama"
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
    head_size: int = 0  # 0: n_embd / n_head
    tied: bool = False
    biases: bool = False
    output_bias: bool = False
    scales: bool = False
    qk_norm: bool = False
    neox: bool = False
    post_norms: bool = False
    gelu: bool = False
    embedding_scale: float = 1.0
    attention_scale: float = 0.0  # 0: 1 / sqrt(head size)
    softcap: float = 0.0
    window: int = 0
    windowed: tuple[int, ...] = ()  # layers
    convolutions: tuple[int, ...] = ()  # layers
    n_taps: int = 3
    freq_factors: bool = False
    yarn_factor: float = 0.0
    linear_factor: float = 0.0
    weight_type: str = "f32"
    eps: float = 1e-5
    freq_base: float = 10_000.0
    freq_base_swa: float = 10_000.0
    seed: int = 0

    @property
    def n_embd_head(self) -> int:
        return self.head_size or self.n_embd // self.n_head

    @property
    def output_norm(self) -> str:
        return "token_embd_norm" if self.architecture == "lfm2" else "output_norm"

    @property
    def ffn_scaled(self) -> bool:
        """Whether the scales of the feed-forward count: llama.cpp leaves them out in some."""
        return self.architecture in ("llama", "qwen3")


def weights(m: Tiny) -> dict[str, NDArray[np.float32]]:
    """Tensors in numpy order, matrices [n_out, n_in]."""
    rng = np.random.default_rng(m.seed)
    E, F = m.n_embd, m.n_ff

    def matrix(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(shape[-1]))

    def near_one(n: int) -> NDArray[np.float32]:
        return rng.uniform(0.7, 1.3, n).astype(np.float32)

    w = {"token_embd.weight": matrix(m.n_vocab, E) * 4, f"{m.output_norm}.weight": near_one(E)}
    if not m.tied:
        w["output.weight"] = matrix(m.n_vocab, E)
    if m.output_bias:
        w["output.bias"] = matrix(m.n_vocab) * 4
    if m.freq_factors:
        w["rope_freqs.weight"] = rng.uniform(1, 8, m.n_rot // 2).astype(np.float32)
    for i in range(m.n_layer):
        b = f"blk.{i}"
        norms = ["attn_norm", "ffn_norm"]
        norms += ["post_attention_norm", "post_ffw_norm"] if m.post_norms else []
        w |= {f"{b}.{name}.weight": near_one(E) for name in norms}
        if i in m.convolutions:
            w[f"{b}.shortconv.in_proj.weight"] = matrix(3 * E, E)
            w[f"{b}.shortconv.conv.weight"] = matrix(E, m.n_taps)
            w[f"{b}.shortconv.out_proj.weight"] = matrix(E, E)
        else:
            w |= {f"{b}.{name}": v for name, v in _attention_weights(m, matrix, near_one).items()}
        if m.n_expert:
            w[f"{b}.ffn_gate_inp.weight"] = matrix(m.n_expert, E) * 3
            w[f"{b}.ffn_gate_exps.weight"] = matrix(m.n_expert, F, E)
            w[f"{b}.ffn_up_exps.weight"] = matrix(m.n_expert, F, E)
            w[f"{b}.ffn_down_exps.weight"] = matrix(m.n_expert, E, F)
            if m.scales:
                names = ("gate", "up", "down")
                w |= {f"{b}.ffn_{n}_exps.scale": near_one(m.n_expert) * 2 for n in names}
        else:
            w[f"{b}.ffn_gate.weight"] = matrix(F, E)
            w[f"{b}.ffn_up.weight"] = matrix(F, E)
            w[f"{b}.ffn_down.weight"] = matrix(E, F)
            if m.biases and m.architecture == "llama":
                w |= {f"{b}.ffn_{n}.bias": matrix(F) for n in ("gate", "up")}
                w[f"{b}.ffn_down.bias"] = matrix(E)
            if m.scales:
                w |= {f"{b}.ffn_{n}.scale": near_one(1) * 2 for n in ("gate", "up", "down")}
    return w


def _attention_weights(
    m: Tiny, matrix: Callable[..., NDArray[np.float32]], near_one: Callable[..., Any]
) -> dict[str, NDArray[np.float32]]:
    w = {}
    E, D = m.n_embd, m.n_embd_head
    n_q, n_kv = D * m.n_head, D * m.n_head_kv
    for name, n in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
        w[f"{name}.weight"] = matrix(n, E) * 2
        if m.biases:
            w[f"{name}.bias"] = matrix(n)
    w["attn_output.weight"] = matrix(E, n_q)
    if m.biases:
        w["attn_output.bias"] = matrix(E)
    if m.scales:
        w |= {f"attn_{name}.scale": near_one(1) * 0.7 for name in ("q", "k", "v", "output")}
    if m.qk_norm:
        w |= {f"attn_{name}_norm.weight": near_one(D) for name in "qk"}
    return w


def write_model(path: Path, m: Tiny, **changes: Any) -> Path:
    """Write the model as a GGUF file; `changes` replace or (None) drop metadata keys."""
    metadata = metadata_of(m)
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            metadata.pop(name, None)
        else:
            metadata[name] = value
    tensors = {}
    for name, values in weights(m).items():
        type = stored_type(m, name, values)
        tensors[name] = (type.name, values.shape[::-1], from_float(values, type).tobytes())
    build_gguf(path, metadata, tensors)
    return path


def metadata_of(m: Tiny) -> dict[str, Any]:
    """All keys of the model's file."""
    return {
        "general.architecture": m.architecture,
        "general.name": "tiny",
        **{f"{m.architecture}.{key}": value for key, value in _hparams(m).items()},
        **byte_vocabulary(m.n_vocab),
    }


def stored_type(m: Tiny, name: str, values: NDArray[np.float32]) -> TensorType:
    """Vectors, and the short kernels of convolutions, are always f32."""
    plain = values.ndim == 1 or name.endswith("shortconv.conv.weight")
    return type_of("f32" if plain else m.weight_type)


def _hparams(m: Tiny) -> dict[str, Any]:
    """Metadata keys after the architecture's name."""
    has_attention = [int(i not in m.convolutions) for i in range(m.n_layer)]
    per_layer = [m.n_head_kv * has for has in has_attention]
    keys: dict[str, Any] = {
        "context_length": m.n_ctx,
        "embedding_length": m.n_embd,
        "block_count": m.n_layer,
        "feed_forward_length": m.n_ff,
        "attention.head_count": m.n_head,
        "attention.head_count_kv": per_layer if m.convolutions else m.n_head_kv,
        "attention.layer_norm_rms_epsilon": float(m.eps),
        "rope.dimension_count": m.n_rot,
        "rope.freq_base": float(m.freq_base),
    }
    if m.head_size:
        keys["attention.key_length"] = keys["attention.value_length"] = m.head_size
    if m.n_expert:
        keys["expert_count"] = m.n_expert
        keys["expert_used_count"] = m.n_expert_used
    if m.yarn_factor or m.linear_factor:
        keys["rope.scaling.type"] = "yarn" if m.yarn_factor else "linear"
        keys["rope.scaling.factor"] = float(m.yarn_factor or m.linear_factor)
        keys["rope.scaling.original_context_length"] = 32
    if m.window:
        keys["attention.sliding_window"] = m.window
        keys["attention.sliding_window_pattern"] = [int(i in m.windowed) for i in range(m.n_layer)]
        keys["rope.freq_base_swa"] = float(m.freq_base_swa)
    if m.softcap:
        keys["final_logit_softcapping"] = float(m.softcap)
    if m.convolutions:
        keys["shortconv.l_cache"] = m.n_taps
    return keys


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


def forward(
    m: Tiny,
    tokens: list[int],
    *,
    int8_activations: bool = False,
    stored: dict[str, F64] | None = None,
) -> F64:
    """Logits [n_tokens, n_vocab] of the stored weights, everything else exact.

    With `int8_activations` what enters a product is rounded to 127 steps per block of 32 first, as
    kernels for quantised weights do. `stored` are weights of another file of these sizes.
    """
    stored = stored or _stored_weights(m)
    product = _rounded_product if int8_activations else _product
    x = stored["token_embd.weight"][tokens] * m.embedding_scale
    for i in range(m.n_layer):
        w = {k.removeprefix(f"blk.{i}."): v for k, v in stored.items()}
        mix = _short_convolution if i in m.convolutions else _attention
        h = mix(m, w, _norm(m, x, w["attn_norm.weight"]), product, i)
        x = x + (_norm(m, h, w["post_attention_norm.weight"]) if m.post_norms else h)
        h = _norm(m, x, w["ffn_norm.weight"])
        h = _experts(m, w, h, product) if m.n_expert else _gated(m, h, w, product)
        x = x + (_norm(m, h, w["post_ffw_norm.weight"]) if m.post_norms else h)
    x = _norm(m, x, stored[f"{m.output_norm}.weight"])
    logits = product(x, stored["token_embd.weight" if m.tied else "output.weight"])
    logits = logits + stored.get("output.bias", 0.0)
    return m.softcap * np.tanh(logits / m.softcap) if m.softcap else logits


def _stored_weights(m: Tiny) -> dict[str, F64]:
    """The weights as the file gives them back."""
    stored = {}
    for name, values in weights(m).items():
        type = stored_type(m, name, values)
        stored[name] = to_float(from_float(values, type), type).astype(np.float64)
    return stored


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


def _gated(m: Tiny, x: F64, w: dict[str, F64], product: Product, expert: int | None = None) -> F64:
    def linear(x: F64, name: str) -> F64:
        if expert is not None:
            scales = w.get(f"ffn_{name}_exps.scale", np.ones(m.n_expert))
            return product(x, w[f"ffn_{name}_exps.weight"][expert]) * float(scales[expert])
        scale = w.get(f"ffn_{name}.scale", 1.0) if m.ffn_scaled else 1.0
        y: F64 = (product(x, w[f"ffn_{name}.weight"]) + w.get(f"ffn_{name}.bias", 0.0)) * scale
        return y

    g = linear(x, "gate")
    if m.gelu:
        g = g / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    else:
        g = g / (1 + np.exp(-g))
    return linear(g * linear(x, "up"), "down")


def _experts(m: Tiny, w: dict[str, F64], x: F64, product: Product) -> F64:
    scores = product(x, w["ffn_gate_inp.weight"])
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    for t, row in enumerate(p):
        best = np.argsort(-row)[: m.n_expert_used]
        for e in best:
            out[t] += row[e] / row[best].sum() * _gated(m, x[t], w, product, int(e))
    return out


def _short_convolution(m: Tiny, w: dict[str, F64], x: F64, product: Product, layer: int) -> F64:
    b, c, x = np.split(product(x, w["shortconv.in_proj.weight"]), 3, axis=-1)
    kernel = w["shortconv.conv.weight"]  # [E, n_taps], the last tap for the token itself
    before = np.zeros((m.n_taps - 1, m.n_embd))
    steps = np.concatenate([before, b * x])
    y = np.zeros_like(x)
    for t in range(len(x)):
        for tap in range(m.n_taps):
            y[t] += kernel[:, tap] * steps[t + tap]
    return product(c * y, w["shortconv.out_proj.weight"])


def _attention(m: Tiny, w: dict[str, F64], x: F64, product: Product, layer: int) -> F64:
    T, D = len(x), m.n_embd_head

    def linear(x: F64, name: str) -> F64:
        scale = w.get(f"attn_{name}.scale", 1.0)
        return product(x, w[f"attn_{name}.weight"]) * scale + w.get(f"attn_{name}.bias", 0.0)

    def heads(name: str, n_head: int) -> F64:
        y = linear(x, name).reshape(T, n_head, D)
        norm = w.get(f"attn_{name}_norm.weight")
        return y if norm is None else _norm(m, y, norm)

    q = _rope(m, w, heads("q", m.n_head), layer)
    k = _rope(m, w, heads("k", m.n_head_kv), layer)
    v = heads("v", m.n_head_kv)
    apart = np.arange(T)[:, None] - np.arange(T)
    hidden = (apart < 0) | (apart >= (m.window if layer in m.windowed else T))
    out = np.zeros((T, m.n_head, D))
    for head in range(m.n_head):
        kv = head // (m.n_head // m.n_head_kv)
        s = q[:, head] @ k[:, kv].T * (m.attention_scale or 1 / math.sqrt(D))
        s[hidden] = -np.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        out[:, head] = p / p.sum(-1, keepdims=True) @ v[:, kv]
    return linear(out.reshape(T, -1), "output")


def _rope(m: Tiny, w: dict[str, F64], x: F64, layer: int) -> F64:
    """Pairs (2i, 2i+1), or (i, i + n_rot/2), as complex numbers turned by theta."""
    n = m.n_rot // 2
    near = m.architecture == "gemma3" and layer in m.windowed
    base = m.freq_base_swa if near else m.freq_base
    theta = np.arange(len(x))[:, None] * base ** (-2.0 * np.arange(n) / m.n_rot)
    theta = theta / w.get("rope_freqs.weight", np.ones(n))
    magnitude = 1.0
    if m.linear_factor and not near:
        theta = theta / m.linear_factor
    if m.yarn_factor and not near:
        keep = _yarn_keep(m)
        theta = theta / m.yarn_factor * (1 - keep) + theta * keep
        magnitude = 1 + 0.1 * math.log(m.yarn_factor)
    out = x.copy()
    first = slice(0, n) if m.neox else slice(0, 2 * n, 2)
    second = slice(n, 2 * n) if m.neox else slice(1, 2 * n, 2)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * theta)[:, None] * magnitude
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def _yarn_keep(m: Tiny) -> F64:
    """How much of its own angle each pair keeps."""
    corrections = [
        m.n_rot * math.log(32 / (beta * 2 * math.pi)) / (2 * math.log(m.freq_base))
        for beta in (32.0, 1.0)
    ]
    low = max(0, math.floor(corrections[0]))
    high = min(m.n_rot - 1, math.ceil(corrections[1]))
    keep: F64 = 1 - np.clip((np.arange(m.n_rot // 2) - low) / max(0.001, high - low), 0, 1)
    return keep

"""The llama architecture in PyTorch, with the conventions of llama.cpp's GGUF files.

Weights are named after the GGUF tensors they become. Rotary embedding rotates the pairs
(2i, 2i + 1) of a head ("normal" mode), so Q and K are written without any permutation. The
output matrix is the token embedding: the file then holds no ``output.weight``.

Shapes in comments are in torch order: B rows, T tokens, E embedding, H heads, K KV heads, D head.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyper-parameters in llama.cpp's words.

    Every row length is a multiple of 256, so the file can be requantised to any GGUF type.
    """

    n_vocab: int = 2048
    n_ctx: int = 512
    n_embd: int = 256
    n_layer: int = 5
    n_head: int = 8
    n_head_kv: int = 4
    n_ff: int = 512
    norm_eps: float = 1e-5
    rope_freq_base: float = 10000.0

    @property
    def n_embd_head(self) -> int:
        return self.n_embd // self.n_head

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def rope_table(config: ModelConfig, n_tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles, each [T, D / 2]."""
    half = torch.arange(0, config.n_embd_head, 2, dtype=torch.float32) / config.n_embd_head
    angle = torch.outer(torch.arange(n_tokens, dtype=torch.float32), config.rope_freq_base**-half)
    return angle.cos(), angle.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of every head: x [B, H, T, D]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)  # [B, H, T, D / 2] each
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Scale each row to unit root mean square, then by a learned weight."""

    def __init__(self, n_embd: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_embd))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Block(nn.Module):  # type: ignore[misc]
    """One layer: grouped-query attention, then SwiGLU, each after an RMS norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        n_embd, n_embd_kv = config.n_embd, config.n_embd_head * config.n_head_kv
        self.config = config
        self.attn_norm = RMSNorm(n_embd, config.norm_eps)
        self.attn_q = nn.Linear(n_embd, n_embd, bias=False)
        self.attn_k = nn.Linear(n_embd, n_embd_kv, bias=False)
        self.attn_v = nn.Linear(n_embd, n_embd_kv, bias=False)
        self.attn_output = nn.Linear(n_embd, n_embd, bias=False)
        self.ffn_norm = RMSNorm(n_embd, config.norm_eps)
        self.ffn_gate = nn.Linear(n_embd, config.n_ff, bias=False)
        self.ffn_up = nn.Linear(n_embd, config.n_ff, bias=False)
        self.ffn_down = nn.Linear(config.n_ff, n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attn_norm(x), cos, sin)
        h = self.ffn_norm(x)  # [B, T, E]
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))

    def attention(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n_rep = self.config.n_head // self.config.n_head_kv
        q = self.split_heads(self.attn_q(h))  # [B, H, T, D]
        k = self.split_heads(self.attn_k(h))  # [B, K, T, D]
        v = self.split_heads(self.attn_v(h))  # [B, K, T, D]
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        k, v = k.repeat_interleave(n_rep, dim=1), v.repeat_interleave(n_rep, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, D]
        return self.attn_output(out.transpose(1, 2).flatten(-2))  # [B, T, E]

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.n_embd_head)).transpose(1, 2)


class Llama(nn.Module):  # type: ignore[misc]
    """Token ids [B, T] to logits [B, T, n_vocab]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.n_vocab, config.n_embd)
        self.blk = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.output_norm = RMSNorm(config.n_embd, config.norm_eps)
        cos, sin = rope_table(config, config.n_ctx)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Small normal weights; what writes into the residual stream starts smaller still."""
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            residual = name.endswith(("attn_output.weight", "ffn_down.weight"))
            scale = 0.04 / (2 * self.config.n_layer) ** 0.5 if residual else 0.04
            nn.init.normal_(parameter, std=scale)

    def forward(self, ids: Tensor) -> Tensor:
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.token_embd(ids)  # [B, T, E]
        for block in self.blk:
            x = block(x, cos, sin)
        return F.linear(self.output_norm(x), self.token_embd.weight)

    def loss(self, ids: Tensor) -> Tensor:
        """Mean cross entropy of each next token in rows of T + 1 ids."""
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

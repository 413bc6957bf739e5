"""T5 in numpy, in f64: an encoder of a source, and a decoder that attends to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class T5:
    """The tensors of a file, of H heads and `n_layer` layers of each stack."""

    tensors: dict[str, Array]
    n_head: int
    n_layer: dict[str, int]  # of "enc" and "dec"
    eps: float = 1e-5

    @classmethod
    def of(cls, path: Path, n_head: int) -> T5:
        tensors = {
            t.name: t.data.astype(np.float64).reshape(t.shape[::-1])
            for t in GGUFReader(path).tensors
        }
        n_layer = {
            stack: 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith(stack))
            for stack in ("enc.blk", "dec.blk")
        }
        return cls(tensors, n_head, {stack[:3]: n for stack, n in n_layer.items()})

    def logits(self, source: list[int], target: list[int]) -> Array:
        """Of every token of the target: [n, V]."""
        memory = self._norm(self._stack("enc", source, None), "enc.output_norm")
        x = self._norm(self._stack("dec", target, memory), "dec.output_norm")
        found: Array = x @ self.tensors.get("output.weight", self.tensors["token_embd.weight"]).T
        return found

    def embeddings(self, source: list[int]) -> Array:
        """What the encoder gives: [n, E]."""
        return self._norm(self._stack("enc", source, None), "enc.output_norm")

    def _stack(self, stack: str, tokens: list[int], memory: Array | None) -> Array:
        x = self.tensors["token_embd.weight"][tokens]  # [n, E]
        n = len(tokens)
        # As the original has it: by the position of what is seen less that of who sees.
        distances = np.arange(n)[None, :] - np.arange(n)[:, None]
        hidden = np.where(distances > 0, -np.inf, 0.0) if stack == "dec" else np.zeros((n, n))
        for i in range(self.n_layer[stack]):
            blk = f"{stack}.blk.{i}"
            own = f"{blk}.attn_rel_b.weight"
            first = f"{stack}.blk.0.attn_rel_b.weight"
            relative = self.tensors.get(own, self.tensors[first])  # [buckets, H]
            buckets = bucket(distances, len(relative), both=stack == "enc")
            bias = relative[buckets].transpose(2, 0, 1) + hidden  # [H, n, n]
            h = self._norm(x, f"{blk}.attn_norm")
            x = x + self._attention(h, h, f"{blk}.attn", bias)
            if memory is not None:
                h = self._norm(x, f"{blk}.cross_attn_norm")
                x = x + self._attention(h, memory, f"{blk}.cross_attn", np.zeros(1))
            x = x + self._ffn(self._norm(x, f"{blk}.ffn_norm"), blk)
        return x

    def _attention(self, x: Array, seen: Array, name: str, bias: Array) -> Array:
        def heads(of: Array, part: str) -> Array:
            y = of @ self.tensors[f"{name}_{part}.weight"].T
            return y.reshape(len(of), self.n_head, -1).transpose(1, 0, 2)

        q, k, v = heads(x, "q"), heads(seen, "k"), heads(seen, "v")  # [H, n, D]
        scores = q @ k.transpose(0, 2, 1) + bias
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
        mapped: Array = out @ self.tensors[f"{name}_o.weight"].T
        return mapped

    def _ffn(self, x: Array, blk: str) -> Array:
        up = x @ self.tensors[f"{blk}.ffn_up.weight"].T
        found: Array = np.maximum(up, 0.0) @ self.tensors[f"{blk}.ffn_down.weight"].T
        return found

    def _norm(self, x: Array, name: str) -> Array:
        scaled = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        normed: Array = scaled * self.tensors[f"{name}.weight"]
        return normed


def bucket(distances: NDArray[np.int64], n: int, *, both: bool) -> NDArray[np.int64]:
    """The buckets of Raffel et al., 2020, number by number."""

    def one(distance: int) -> int:
        half, first = (n // 2, n // 2 if distance > 0 else 0) if both else (n, 0)
        far = abs(distance) if both else max(0, -distance)
        near = half // 2
        if far < near:
            return first + far
        grown = near + math.log(far / near) / math.log(128 / near) * (half - near)
        return first + min(half - 1, math.floor(grown))

    found: NDArray[np.int64] = np.vectorize(one, otypes=[np.int64])(distances)
    return found

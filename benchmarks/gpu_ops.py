"""Single ops on a device: products by type and number of columns, attention by its shape.

An executable has several nodes of the op, over weights that together are larger than any cache, so
that neither the launch of a graph nor the L2 cache of the GPU is what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gpu_device import Device
from ggmlpy import ops
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.tensor import Flag, Tensor
from ggmlpy.graph.types import type_of
from ggmlpy.sched.executable import Executable

PAST_CACHE_BYTES = 256 << 20  # several times the L2 cache of an H100 or H200, 50 and 60 MB
MAX_NODES = 16


def node_seconds(device: Device, nodes: Sequence[Tensor]) -> float:
    """The mean time of some nodes that run one after another."""
    executable = Executable(Graph(*nodes), [device.backend], passes="none")
    for _ in range(2):  # as launches, then as a graph that is captured
        executable.run()
    return device.seconds(executable.submit) / len(nodes)


# --- products -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices of one type, [n_out, n_in], more bytes in all than caches hold."""

    leaves: list[Tensor]
    n_in: int
    n_out: int

    @classmethod
    def on(cls, device: Device, type: str, n_in: int, n_out: int, past_bytes: int) -> Weights:
        n_bytes = type_of(type).row_bytes(n_in) * n_out
        n = min(MAX_NODES, max(1, -(-past_bytes // n_bytes)))
        leaves = [
            device.leaf(type, (n_in, n_out), n_in**-0.5, Flag.WEIGHT) for _ in range(n)
        ]  # several: see PAST_CACHE_BYTES
        return cls(leaves, n_in, n_out)

    def seconds(self, device: Device, n: int) -> float:
        """Of one product with `n` columns of activations."""
        x = device.leaf("f32", (self.n_in, n))  # [n_in, n]
        return node_seconds(device, [ops.mul_mat(w, x) for w in self.leaves])

    def n_bytes(self, n: int) -> int:
        """That one product reads and writes at least."""
        return self.leaves[0].spec.n_bytes + 4 * n * (self.n_in + self.n_out)

    def n_flops(self, n: int) -> float:
        return 2.0 * self.n_in * self.n_out * n


# --- attention ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention as models run it, over lists of cells.

    n_query  tokens of each sequence; several are the last ones of it, and see those before
    n_kv     cells of each sequence
    """

    head: int
    n_head: int
    n_head_kv: int
    n_query: int
    n_kv: int
    n_seqs: int
    type: str = "f16"

    def nodes(self, device: Device, n_nodes: int) -> list[Tensor]:
        """Letters: D head size, H heads, Hk K/V heads, T queries and C cells of S sequences."""
        D, H, Hk, T, C, S = (
            self.head, self.n_head, self.n_head_kv, self.n_query, self.n_kv, self.n_seqs
        )  # fmt: skip
        q = ops.permute(device.leaf("f32", (D, H, T, S)), 0, 2, 1, 3)  # [D, T, H, S]
        k, v = (
            ops.permute(device.leaf(self.type, (D, Hk, C, S)), 0, 2, 1, 3) for _ in range(2)
        )  # [D, C, Hk, S]
        cells = device.index_leaf(np.arange(S * C, dtype=np.int32).reshape(S, C))  # [C, S]
        seen = np.zeros((S, T, 3), np.int32)
        seen[:, :, 0] = np.arange(S)[:, None]
        seen[:, :, 2] = C - T + 1 + np.arange(T)
        lists: dict[str, Any] = {"cells": cells, "seen": device.index_leaf(seen)}
        return [
            ops.flash_attn_ext(q, k, v, None, D**-0.5, 0.0, 0.0, **lists) for _ in range(n_nodes)
        ]

    def seconds(self, device: Device) -> float:
        """Of one node. More of them run one after another where one is short."""
        n_nodes = max(1, min(8, PAST_CACHE_BYTES // self.n_bytes))
        return node_seconds(device, self.nodes(device, n_nodes))

    @property
    def n_bytes(self) -> int:
        """Of K and V, once."""
        return (
            2 * self.n_seqs * self.n_kv * self.n_head_kv * type_of(self.type).row_bytes(self.head)
        )

    @property
    def n_flops(self) -> float:
        """Of the pairs that are seen."""
        n_pairs = self.n_seqs * self.n_query * (self.n_kv - (self.n_query - 1) / 2)
        return 4.0 * self.head * self.n_head * n_pairs

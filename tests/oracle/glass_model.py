"""A transparent model: the visible tokens can be read from its logits, and tokens from its caches.

A layer's V is the token's name (one of N_NAMES unit vectors), its K a random vector of the token,
rotated by the position. So a token's logits are, for every attention layer, the softmax weights of
the tokens that it attends to, by name. They differ if a token is missing, visible by mistake,
replaced by another one or at another position. The recurrent layer's state has the names of the
last TAPS - 1 tokens of its sequence, in order.

Letters in shapes: N names, D head size, T tokens, O outputs, R sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor, from_numpy
from ggmlpy.models.blocks.attention import Scores, attend
from ggmlpy.models.blocks.basic import Rope
from ggmlpy.models.hparams import RopeParams
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import AttentionLayers, KVSizes, Memory, RecurrentLayers, Window
from ggmlpy.ops.rope import RopeMode
from tests.oracle.model_defaults import ModelDefaults

N_NAMES = 64
D = 4
TAPS = 4
SCALE = 0.7
FREQ_BASE = 100.0

F64 = NDArray[np.float64]
_ROPE = RopeParams(D, 4096, FREQ_BASE, 1.0, 0.0, 1.0, 32.0, 1.0)
_RNG = np.random.default_rng(1)
KEYS = _RNG.standard_normal((N_NAMES, D), dtype=np.float32)
QUERIES = _RNG.standard_normal((N_NAMES, D), dtype=np.float32)


class Glass(ModelDefaults):
    """One attention layer for each of `windows` (None: full attention), and a recurrent one."""

    weights: Any = SimpleNamespace(leaves={}, of_output=frozenset())

    def __init__(self, windows: tuple[int | Window | None, ...], recurrent: bool = False) -> None:
        n_layer = len(windows) + recurrent
        groups: list[AttentionLayers | RecurrentLayers] = [
            AttentionLayers({i: KVSizes(D, N_NAMES, 1)}, window)
            for i, window in enumerate(map(_window, windows))
        ]
        if recurrent:
            groups.append(RecurrentLayers({len(windows): ((TAPS - 1) * N_NAMES,)}, TAPS))
        self.windows = windows
        self.recurrent = recurrent
        self.memory: Memory = tuple(groups)
        n_vocab = N_NAMES * len(windows)
        self.hparams: Any = SimpleNamespace(
            architecture="glass", n_vocab=n_vocab, n_layer=n_layer, is_causal=True
        )
        self._names = from_numpy(np.eye(N_NAMES, dtype=np.float32))  # [N, N]
        self._keys = from_numpy(KEYS)  # [D, N]
        self._queries = from_numpy(QUERIES)  # [D, N]

    def rope_of(self, layer: int) -> Rope:
        return Rope(_ROPE, RopeMode.NORMAL)

    def build(self, inputs: GraphInputs) -> Tensor:
        """Softmax weights by name, layer after layer: [N*layers, O]"""
        outs = [self._attention(inputs, layer) for layer in range(len(self.windows))]
        if self.recurrent:
            self._remember(inputs, len(self.windows))
        all_weights = reduce(lambda a, b: ops.concat(a, b, 0), outs)  # [N*layers, T]
        return ops.get_rows(all_weights, inputs.out_ids)  # [N*layers, O]

    def _attention(self, inputs: GraphInputs, layer: int) -> Tensor:
        T = inputs.tokens.ne[0]
        rope = self.rope_of(layer)
        k = ops.reshape_3d(ops.get_rows(self._keys, inputs.tokens), D, 1, T)  # [D, 1, T]
        q = ops.reshape_3d(ops.get_rows(self._queries, inputs.tokens), D, 1, T)  # [D, 1, T]
        v = ops.reshape_3d(ops.get_rows(self._names, inputs.tokens), N_NAMES, 1, T)  # [N, 1, T]
        k, q = rope(k, inputs), rope(q, inputs)
        return attend(q, k, v, inputs, layer, Scores(SCALE))  # [N, T]

    def _remember(self, inputs: GraphInputs, layer: int) -> None:
        recurrent = inputs.recurrent
        assert recurrent is not None
        names = ops.get_rows(self._names, inputs.tokens)  # [N, T]
        R = recurrent.rows.ne[0]
        before = ops.reshape_2d(recurrent.load(layer), N_NAMES, R * (TAPS - 1))  # [N, 3*R]
        columns = ops.concat(before, names, 1)  # [N, 3*R + T]
        assert recurrent.taps_out is not None
        after = ops.get_rows(columns, recurrent.taps_out)  # [N, 3*R]
        state = ops.reshape_2d(after, (TAPS - 1) * N_NAMES, R)  # [3*N, R]
        inputs.write(recurrent.store(layer, state))


def _window(window: int | Window | None) -> Window | None:
    return Window(window) if isinstance(window, int) else window


def rotated(x: NDArray[np.float32], positions: Iterable[int]) -> F64:
    """Rows [n, D] after rope at these positions, computed with pairs as complex numbers."""
    pairs = x.astype(np.float64).reshape(len(x), D // 2, 2)
    theta = np.array(list(positions))[:, None] * FREQ_BASE ** (-2.0 * np.arange(D // 2) / D)
    out = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * theta)
    return np.stack([out.real, out.imag], -1).reshape(len(x), D)


def attention_weights(token: int, position: int, seen: Iterable[tuple[int, int]]) -> F64:
    """The expected logits [N] of one layer: softmax weights of (token, position), by name."""
    tokens, positions = map(list, zip(*seen, strict=True))
    q = rotated(QUERIES[[token]], [position])[0]
    s = SCALE * (rotated(KEYS[tokens], positions) @ q)
    p = np.exp(s - s.max())
    out = np.zeros(N_NAMES)
    np.add.at(out, tokens, p / p.sum())
    return out

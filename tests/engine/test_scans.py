"""Models of recurrent layers alone: scans over mixtures, and the memory of a model without
attention, in which cells keep positions only."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.errors import CacheFull, StateError, Unsupported
from ggmlpy.graph.op import OPS
from ggmlpy.graph.tensor import Tensor, from_numpy
from ggmlpy.memory.batch import Batch
from ggmlpy.memory.state import put_state, take_state
from ggmlpy.memory.state_file import from_bytes, to_bytes
from ggmlpy.models.blocks.recurrent import (
    convolve,
    load_states,
    previous_columns,
    recurrent_of,
    scanned,
    state_rows,
)
from ggmlpy.models.inputs import GraphInputs
from ggmlpy.models.memory import RecurrentLayers
from ggmlpy.runtime.context import Context
from ggmlpy.sched.compute import backends_for
from tests.oracle.model_defaults import ModelDefaults

N_VOCAB, D, H, N, K = 40, 5, 3, 7, 3  # N: rows of a state of ssm_scan; K: taps
C = D * H
_RNG = np.random.default_rng(3)
EMBD = _RNG.uniform(-1, 1, (N_VOCAB, C)).astype(np.float32)
CONV = _RNG.uniform(-1, 1, (C, K)).astype(np.float32)
RATES = _RNG.uniform(-1, -0.1, (H, 1)).astype(np.float32)
SHARED = _RNG.uniform(-1, 1, (N, C)).astype(np.float32)  # of B and C
HEADS = _RNG.uniform(-1, 1, (H, C)).astype(np.float32)

Logits = NDArray[np.float32]
OPS_OF_SCANS = ("ssm_scan", "gated_delta_net", "gated_linear_attn", "rwkv_wkv6", "rwkv_wkv7")


@dataclass(eq=False)
class Scanner(ModelDefaults):
    """x, mixed with the tokens before it in two layers, then scanned; the logits are the products
    with EMBD. Where it `shifts`, the token before is added; else the last K are convolved."""

    op: str
    shifts: bool = False

    def __post_init__(self) -> None:
        columns, size = C if self.shifts else (K - 1) * C, (N if self.op == "ssm_scan" else D) * C
        n_taps = 2 if self.shifts else K
        self.memory = (RecurrentLayers({0: (columns, size), 1: (columns,)}, n_taps),)
        self.weights: Any = SimpleNamespace(leaves={}, of_output=frozenset())
        self.hparams: Any = SimpleNamespace(
            architecture="scanner", n_vocab=N_VOCAB, n_layer=2, is_causal=True
        )
        self.embd, self.conv = from_numpy(EMBD), from_numpy(CONV)
        self.shared, self.heads, self.rates = map(from_numpy, (SHARED, HEADS, RATES))

    def rope_of(self, layer: int) -> None:
        return None

    def build(self, inputs: GraphInputs) -> Tensor:
        x = ops.get_rows(self.embd, inputs.tokens)  # [C, T]
        for layer in (1, 0):
            if self.shifts:
                x = ops.tanh(ops.add(x, previous_columns(x, inputs, layer)))
            else:
                x = ops.tanh(convolve(x, self.conv, inputs, layer))
        y = scanned(self._scan(x, inputs), C, inputs, 0, 1)  # [C, T]
        return ops.mul_mat(self.embd, ops.get_rows(y, inputs.out_ids))  # [V, O]

    def _scan(self, x: Tensor, inputs: GraphInputs) -> Tensor:
        T, spans = x.ne[1], recurrent_of(inputs).spans
        h = ops.reshape_3d(x, D, H, T)
        gate = ops.sigmoid(h)
        of_heads = ops.mul_mat(self.heads, x)  # [H, T]
        match self.op:
            case "ssm_scan":
                shared = ops.reshape_3d(ops.mul_mat(self.shared, x), N, 1, T)
                state = state_rows(inputs, 0, 1, N, D, H)
                return ops.ssm_scan(
                    state, h, of_heads, self.rates, shared, shared,
                    recurrent_of(inputs).rows, spans=spans,
                )  # fmt: skip
            case "gated_delta_net":
                beta = ops.reshape_3d(ops.sigmoid(of_heads), 1, H, T)
                key, decay = ops.scale(h, 0.4), ops.scale(beta, -1)
                state = load_states(inputs, 0, 1, D, D, H)
                return ops.gated_delta_net(key, key, h, decay, beta, state, spans=spans)
            case "gated_linear_attn":
                state = load_states(inputs, 0, 1, D * C)
                return ops.gated_linear_attn(h, h, h, gate, state, 0.5, spans=spans)
            case "rwkv_wkv6":
                state = load_states(inputs, 0, 1, D * C)
                bonus = ops.reshape_2d(ops.view_1d(self.embd, C, 0), D, H)
                return ops.rwkv_wkv6(h, h, h, bonus, gate, state, spans=spans)
        a, b = ops.scale(h, 0.3), ops.scale(h, -0.3)
        state = load_states(inputs, 0, 1, D * C)
        return ops.rwkv_wkv7(h, gate, h, h, a, b, state, spans=spans)

    def expected(self, tokens: list[int]) -> NDArray[np.float64]:
        """Logits of one sequence from its beginning, [tokens, N_VOCAB]."""
        x = EMBD[tokens].astype(np.float64)
        T = len(x)
        for _ in range(2):
            before = np.concatenate([np.zeros((K - 1, C)), x])
            if self.shifts:
                x = np.tanh(x + before[K - 2 : K - 2 + T])
            else:
                x = np.tanh(sum(before[k : k + T] * CONV[:, k] for k in range(K)))
        h, gate, of_heads = x.reshape(1, T, H, D), _sigmoid(x.reshape(1, T, H, D)), x @ HEADS.T
        state = np.zeros((1, 1, 1, D * C))
        sources: tuple[NDArray[Any], ...]
        params: dict[str, Any] = {}
        match self.op:
            case "ssm_scan":
                shared, ids = (x @ SHARED.T).reshape(1, T, 1, N), np.zeros((1, 1, 1, 1), np.int32)
                states = np.zeros((1, H, D, N))
                sources = (states, h, of_heads[None, None], RATES[None, None], shared, shared, ids)
            case "gated_delta_net":
                beta = _sigmoid(of_heads).reshape(1, T, H, 1)
                sources = (0.4 * h, 0.4 * h, h, -beta, beta, np.zeros((1, H, D, D)))
            case "gated_linear_attn":
                sources, params = (h, h, h, gate, state), {"scale": 0.5}
            case "rwkv_wkv6":
                sources = (h, h, h, EMBD[0].reshape(1, 1, H, D), gate, state)
            case _:
                sources = (h, gate, h, h, 0.3 * h, -0.3 * h, state)
        y = OPS[self.op](**params).reference(*sources).reshape(-1)[: T * C].reshape(T, C)
        return y @ EMBD.T.astype(np.float64)


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-x))


def context_of(model: Any, **options: Any) -> Context:
    given: dict[str, Any] = {"n_ctx": 96, "n_ubatch": 16, "n_seq_max": 4, "backend": "cpu"}
    given |= options
    return Context(model, backends_for(given.pop("backend"), 2), **given)


TOKENS = _RNG.integers(0, N_VOCAB, (4, 23)).tolist()


def mixed(context: Context, cuts: list[list[int]]) -> list[Logits]:
    """The logits of four sequences, whose tokens come in as `cuts` say: a batch for each row of
    numbers, how many of each sequence."""
    found: list[list[Logits]] = [[] for _ in TOKENS]
    at = [0] * len(TOKENS)
    for numbers in cuts:
        batch = Batch()
        for seq, n in enumerate(numbers):
            batch.extend(seq, TOKENS[seq][at[seq] : at[seq] + n], at[seq], all_outputs=True)
            at[seq] += n
        logits = context.decode_batch(batch).copy()
        ends = np.cumsum(numbers)
        for seq, (end, n) in enumerate(zip(ends.tolist(), numbers, strict=True)):
            found[seq].append(logits[end - n : end])
    return [np.concatenate(parts) for parts in found]


CUTS = [[11, 1, 2, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 7, 1, 20], [1, 1, 1, 1], [9, 12, 17, 0]]


@pytest.mark.parametrize("layout", ["split", "unified", "paged"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("op", OPS_OF_SCANS)
def test_logits_of_a_mixture_are_those_of_each_sequence(op: str, backend: str, layout: str) -> None:
    model = Scanner(op)
    got = mixed(context_of(model, backend=backend, kv_layout=layout), CUTS)
    for logits, tokens in zip(got, TOKENS, strict=True):
        want = model.expected(tokens[: len(logits)])
        assert np.abs(logits - want).max() < 2e-5 * np.abs(want).max()


def test_shifted_columns() -> None:
    model = Scanner("rwkv_wkv7", shifts=True)
    for logits, tokens in zip(mixed(context_of(model), CUTS), TOKENS, strict=True):
        want = model.expected(tokens[: len(logits)])
        assert np.abs(logits - want).max() < 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("op", OPS_OF_SCANS)
def test_bits_do_not_depend_on_the_mixture(op: str) -> None:
    """Alone, a token at a time, in other ubatches, in other shapes."""
    model = Scanner(op)
    got = mixed(context_of(model), CUTS)
    for other in (
        [[len(logits) if seq == s else 0 for s in range(4)] for seq, logits in enumerate(got)],
        [[1] * 4] * 21 + [[2, 2, 2, 1], [0, 0, 0, 1]],
    ):
        again = mixed(context_of(model, n_ubatch=7), other)
        for logits, same in zip(got, again, strict=True):
            n = min(len(logits), len(same))
            assert logits[:n].tobytes() == same[:n].tobytes()


def test_memory_without_attention() -> None:
    model = Scanner("gated_linear_attn")
    context = context_of(model, n_ctx=40, n_seq_max=2, kv_unified=True)
    first = context.decode(TOKENS[0][:10]).copy()
    assert (context.n_past(), context.memory.n_used()) == (10, 10)
    with pytest.raises(Unsupported, match="recurrent layers, whose state holds all of it"):
        context.seq_rm(0, 5)
    context.seq_cp(0, 1)
    a = context.decode(TOKENS[1][:3], seq=0).copy()
    b = context.decode(TOKENS[1][:3], seq=1).copy()
    assert a.tobytes() == b.tobytes()
    with pytest.raises(CacheFull):
        context.decode([1] * 30, seq=1)
    context.seq_rm(0)
    assert context.decode(TOKENS[0][:10]).tobytes() == first.tobytes()


@pytest.mark.parametrize("layout", ["split", "unified", "paged"])
def test_saved_states_of_a_model_without_attention(layout: str) -> None:
    model = Scanner("rwkv_wkv6")
    context, other = context_of(model), context_of(model, kv_layout=layout)
    context.decode(TOKENS[0][:10], seq=2)
    states, _ = from_bytes(to_bytes({2: take_state(context.memory, 2, TOKENS[0][:10])}))
    put_state(other.memory, 1, states[2])
    assert other.n_past(1) == 10
    want = context.decode(TOKENS[0][10:15], seq=2)
    assert other.decode(TOKENS[0][10:15], seq=1).tobytes() == want.tobytes()
    with pytest.raises(StateError, match="the state's recurrent layers are"):
        put_state(context_of(Scanner("ssm_scan")).memory, 0, states[2])

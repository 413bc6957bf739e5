"""Graphs with the ops of models, whose numbers of tokens, outputs and sequences are counts.

    check_bits("experts", backend, "all", "q4_0", bound=33, n_tokens=[5, 33])

Built with symbols or with plain numbers, a graph has the same nodes. Every tensor of a run has
memory of its own, full of a pattern, and inputs have it past their counts: as a number it is NaN,
as an index it is out of range, so whatever works on more than the counts is found out.

Letters in shapes: E columns, T tokens, O outputs, S sequences, N cells, D head size, H heads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ggmlpy import ops
from ggmlpy.backends.base import Backend, Plan
from ggmlpy.graph.arrays import element_view
from ggmlpy.graph.buffer import HostBuffer, Place, aligned_bytes
from ggmlpy.graph.count import Counts, Symbol
from ggmlpy.graph.graph import Graph
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.spec import Spec
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, zeros
from ggmlpy.graph.types import type_of
from ggmlpy.models.blocks.attention import Scores, attend
from ggmlpy.models.blocks.basic import Linear
from ggmlpy.models.blocks.experts import ExpertLinear, Experts, Router
from ggmlpy.models.inputs import Gathered, GraphInputs, KVView
from ggmlpy.ops.rope import RopeMode
from ggmlpy.sched.executable import scheduled

PATTERN = 0xFF  # NaN as f32, f16 and bf16, -1 as an index
N_VOCAB, E, N = 40, 64, 64
N_LISTED = 300  # cells of each list: more than a chunk of attention


@dataclass
class Numbers:
    """The counts of a graph: plain numbers, or symbols and the values of a run."""

    T: int
    O: int  # noqa: E741  (as in the docstrings of models)
    S: int
    counts: Counts = field(default_factory=dict)

    @staticmethod
    def plain(n_tokens: int) -> Numbers:
        return Numbers(n_tokens, -(-n_tokens // 3), -(-n_tokens // 2))

    @staticmethod
    def bounded(bound: int) -> Numbers:
        at = Numbers.plain(bound)
        return Numbers(Symbol("T", at.T).count, Symbol("O", at.O).count, Symbol("S", at.S).count)

    def having(self, n_tokens: int) -> Numbers:
        """The same symbols, with the values of a run."""
        at = Numbers.plain(n_tokens)
        values = {"T": at.T, "O": at.O, "S": at.S}
        symbols = Graph(zeros("f32", (self.T, self.O, self.S))).symbols
        return Numbers(self.T, self.O, self.S, {s: values[s.name] for s in symbols})


class Leaves:
    """Makes the leaves of a graph: those of one name have the same values in all graphs."""

    def __init__(self, weight_type: str) -> None:
        self.weight_type = weight_type
        self.inputs: dict[str, tuple[Tensor, Callable[..., object]]] = {}
        self.states: list[Tensor] = []

    def floats(self, name: str, *ne: int, type: str = "f32") -> Tensor:
        return self._input(name, type, ne, lambda rng, shape: rng.uniform(-2, 2, shape))

    def ids(self, name: str, limit: int, *ne: int, type: str = "i32") -> Tensor:
        return self._input(name, type, ne, lambda rng, shape: rng.integers(0, limit, shape))

    def rows(self, name: str, *ne: int) -> Tensor:
        """Different rows of N to write to."""
        return self._input(name, "i64", ne, lambda rng, shape: np.arange(shape[-1])[::-1])

    def spans(self, name: str, n_seqs: int) -> Tensor:
        """Of 2 * n_seqs tokens 1 and 3 by turns, and 2 of the last of an odd number."""

        def values(rng: np.random.Generator, shape: tuple[int, ...]) -> object:
            n = np.where(np.arange(shape[-2]) % 2, 3, 1)
            n[-1] = 2 * shape[-2] - n[:-1].sum()
            return np.stack([np.cumsum(n) - n, n], -1)

        return self._input(name, "i32", (2, n_seqs), values)

    def seen(self, name: str, *ne: int) -> Tensor:
        """For each query a list, its first entry and the number of them, of N_LISTED."""

        def values(rng: np.random.Generator, shape: tuple[int, ...]) -> object:
            query = np.arange(shape[-2])
            first = query % 7
            return np.stack([query // 2, first, (N_LISTED - first) // (1 + query % 3)], -1)

        return self._input(name, "i32", ne, values)

    def mask(self, name: str, *ne: int) -> Tensor:
        """About half of the cells are hidden, never all."""

        def values(rng: np.random.Generator, shape: tuple[int, ...]) -> object:
            hidden = rng.integers(0, 2, shape).astype(bool)
            hidden[..., 0] = False
            return np.where(hidden, -np.inf, 0.0)

        return self._input(name, "f16", ne, values)

    def _input(
        self, name: str, type: str, ne: tuple[int, ...], values: Callable[..., object]
    ) -> Tensor:
        leaf = zeros(type, ne, name=name, flags=Flag.INPUT)
        self.inputs[name] = leaf, values
        return leaf

    def state(self, name: str, type: str, *ne: int) -> Tensor:
        leaf = zeros(type, ne, name=name, flags=Flag.STATE)
        values = _rng(name).uniform(-1, 1, leaf.ne[::-1])
        assert leaf.place is not None
        leaf.place.host_bytes[: leaf.spec.n_bytes] = from_float(
            values.astype(np.float32), leaf.type
        ).reshape(-1)
        self.states.append(leaf)
        return leaf

    def weight(self, name: str, *ne: int, type: str = "") -> Tensor:
        kind = type_of(type or self.weight_type)
        values = _rng(name).uniform(-1, 1, ne[::-1]).astype(np.float32)
        return from_bytes(from_float(values, kind).reshape(-1), kind, ne, name=name)

    def fill(self, counts: Counts) -> None:
        """The inputs' values at these counts, and the pattern past them."""
        for name, (leaf, values) in self.inputs.items():
            spec, place = leaf.spec.at(counts), leaf.place
            assert place is not None
            place.host_bytes[place.offset : place.offset + leaf.spec.n_bytes] = PATTERN
            there = element_view(place.host_bytes, spec, place.offset)
            there[...] = np.asarray(values(_rng(name), there.shape)).astype(there.dtype)


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


Build = Callable[[Leaves, Numbers], list[Tensor]]


# --- the graphs -----------------------------------------------------------------------------------


def embedding(leaf: Leaves, n: Numbers) -> list[Tensor]:
    """Rows of tokens, a residual sum with norms, the rows that are output, logits."""
    x = ops.get_rows(leaf.weight("token_embd", E, N_VOCAB), leaf.ids("tokens", N_VOCAB, n.T))
    x = ops.scale(x, 8.0)  # [E, T]
    h = ops.mul(ops.rms_norm(x, 1e-5), leaf.weight("attn_norm", E, type="f32"))  # [E, T]
    h = ops.add(ops.mul_mat(leaf.weight("w", E, 48), h), leaf.weight("b", 48, type="f32"))
    h = ops.mul_mat(leaf.weight("o", 48, E, type="f32"), h)  # [E, T]
    ids = leaf.ids("out_ids", 1, n.O)
    x, h = ops.get_rows(x, ids), ops.get_rows(h, ids)  # [E, O]
    post = ops.mul(ops.rms_norm(h, 1e-5), leaf.weight("post_norm", E, type="f32"))
    x = ops.add(post, x)  # [E, O]
    x = ops.mul(ops.rms_norm(x, 1e-5), leaf.weight("output_norm", E, type="f32"))  # [E, O]
    y = ops.mul_mat(leaf.weight("output", E, N_VOCAB), x)  # [V, O]
    return [ops.scale(ops.tanh(ops.scale(y, 1 / 30)), 30.0)]


def feed_forward(leaf: Leaves, n: Numbers) -> list[Tensor]:
    """Gated products of one x, down, and a sum; a norm with a bias."""
    x = leaf.floats("x", E, n.T)  # [E, T]
    h = ops.norm(x, 1e-5)
    h = ops.add(ops.mul(h, leaf.weight("n", E, type="f32")), leaf.weight("nb", E, type="f32"))
    gate, up = (ops.mul_mat(leaf.weight(name, E, 96), h) for name in ("gate", "up"))
    h = ops.swiglu_split(gate, up)  # [96, T]
    out = ops.add(x, ops.mul_mat(leaf.weight("down", 96, E), h))  # [E, T]
    return [out, ops.geglu(ops.mul_mat(leaf.weight("both", E, 64), out))]


def _attention(flash_attn: bool, type_k: str) -> Build:
    def build(leaf: Leaves, n: Numbers) -> list[Tensor]:
        """q [D, H, T] and k [D, Hk, T] with rope, written to a cache and read from it."""
        D, H, Hk = 32, 4, 2
        x = leaf.floats("x", E, n.T)  # [E, T]
        pos = leaf.ids("positions", 1000, n.T)
        parts = []
        for name, heads in (("q", H), ("k", Hk), ("v", Hk)):
            part = ops.mul_mat(leaf.weight(name, E, D * heads), x)  # [D*heads, T]
            parts.append(ops.reshape_3d(part, D, heads, n.T))
        q, k, v = parts
        q = ops.mul(ops.rms_norm(q, 1e-5), leaf.weight("q_norm", D, type="f32"))
        q, k = (ops.rope(y, pos, D, RopeMode.NEOX) for y in (q, k))
        cache = {c: leaf.state(f"cache_{c}", type_k, D * Hk, 3 * N, 1) for c in "kv"}
        rows = leaf.rows("rows", n.T)
        cells, seen = leaf.ids("cells", 3 * N, N_LISTED, n.S), leaf.seen("seen", 3, n.T)
        kv = KVView({0: cache["k"]}, {0: cache["v"]}, rows, cells, seen)
        if not flash_attn:
            mask = leaf.mask("mask", N, n.T, 1, 1)
            group = Gathered(leaf.ids("gathered", 3 * N, N), mask, leaf.ids("tokens", 1, n.T))
            kv = replace(kv, gathered=(group,))
        inputs = GraphInputs(rows, pos, rows, (kv,))
        out = attend(q, k, v, inputs, 0, Scores(0.2))  # [D*H, T]
        return [ops.mul_mat(leaf.weight("wo", D * H, E), out)]

    return build


def listed_attention(leaf: Leaves, n: Numbers) -> list[Tensor]:
    """Queries over lists of cells, a list for each sequence."""
    D, H, Hk = 32, 4, 2
    q = ops.mul_mat(leaf.weight("q", E, D * H), leaf.floats("x", E, n.T))  # [D*H, T]
    q = ops.permute(ops.reshape_3d(q, D, H, n.T), 0, 2, 1, 3)  # [D, T, H]
    cache = leaf.state("cache", "f16", D * Hk, N_LISTED)
    k = ops.permute(ops.reshape_3d(cache, D, Hk, N_LISTED), 0, 2, 1, 3)  # [D, cells, Hk]
    cells, seen = leaf.ids("cells", N_LISTED, N_LISTED, n.S), leaf.seen("seen", 3, n.T)
    out = ops.flash_attn_ext(q, k, k, None, 0.2, 0, 0, cells=cells, seen=seen)  # [D, H, T]
    return [ops.mul_mat(leaf.weight("wo", D * H, E), ops.reshape_2d(out, D * H, n.T))]


def experts(leaf: Leaves, n: Numbers) -> list[Tensor]:
    """A mixture of experts, with a scale for each of them."""
    X, F = 4, 32
    linear = {
        name: ExpertLinear(name, leaf.weight(name, *ne), scale, None)
        for name, ne, scale in (
            ("gate", (E, F, X), None),
            ("up", (E, F, X), None),
            ("down", (F, E, X), leaf.weight("scale", X, type="f32")),
        )
    }
    router = Linear("logits", leaf.weight("router", E, X, type="f32"), None, None)
    block = Experts(Router(router, 2, "softmax"), linear["gate"], linear["up"], linear["down"])
    return [block(leaf.floats("x", E, n.T))]


def convolution(leaf: Leaves, n: Numbers) -> list[Tensor]:
    """Each token's last three columns, of the states [2*E, S] and of the new tokens, by an index;
    and the states after them. Then the same with the steps of one sequence in dimension 0."""
    K, rows = 3, leaf.ids("state_rows", 1, n.S)
    bcx = ops.mul_mat(leaf.weight("in", E, 2 * E), leaf.floats("x", E, n.T))  # [2*E, T]
    b, x = (ops.view_2d(bcx, E, n.T, bcx.nb[1], part * E * 4) for part in (0, 1))
    bx = ops.mul(b, x)  # [E, T]
    kernel = leaf.weight("kernel", K, E, type="f32")
    states = leaf.state("states", "f32", (K - 1) * E, 4)
    before = ops.get_rows(states, rows)  # [2*E, S]
    before = ops.reshape_2d(before, E, (K - 1) * n.S)  # [E, 2*S]
    columns = ops.concat(before, bx, 1)  # [E, 2*S + T]
    out = ops.ssm_conv(columns, kernel, taps=leaf.ids("taps", 2, K, n.T))  # [E, T]
    after = ops.get_rows(columns, leaf.ids("last", 2, (K - 1) * n.S))  # [E, 2*S]
    stored = ops.set_rows(states, ops.reshape_2d(after, (K - 1) * E, n.S), rows)
    one = ops.cont(ops.transpose(bx))  # [T, E]
    one = ops.concat(leaf.floats("old", K - 1, E), one, 0)  # [K-1 + T, E]
    one = ops.reshape_2d(ops.ssm_conv(one, kernel), E, n.T)
    return [stored, ops.mul(out, one)]


def others(leaf: Leaves, n: Numbers) -> list[Tensor]:
    """Copies to other types and shapes, reductions, orders, repeats and other arithmetic."""
    x = leaf.floats("x", E, 3, n.T)  # [E, 3, T]
    half = ops.cast(x, "f16")
    turned = ops.cont(ops.permute(ops.cast(half, "f32"), 0, 2, 1, 3))  # [E, T, 3]
    back = ops.cont_2d(ops.permute(turned, 0, 2, 1, 3), 3 * E, n.T)  # [3*E, T]
    q8 = ops.cast(ops.cast(back, "q8_0"), "f32")
    copied = ops.cpy(q8, leaf.floats("copied", 3 * E, n.T))
    flat = ops.reshape_1d(ops.dup(copied), 3 * E * n.T)  # [192*T]
    means = ops.repeat(ops.mean(x), x)  # [E, 3, T]
    arithmetic = ops.div(ops.sub(x, means), ops.add(ops.sqr(means), ops.abs(x)))
    sums = ops.cumsum(ops.cont(ops.permute(ops.sum_rows(turned), 1, 0, 2, 3)))  # [T, 1, 3]
    pairs = ops.mul_mat(x, half)  # [3, 3, T]: a matrix for each token
    along = ops.mul_mat(sums, ops.cast(sums, "f16"))  # [1, 1, 3]: sums of T products
    best = ops.argmax(ops.reshape_2d(x, E, 3 * n.T))  # [3*T] i32
    top = ops.top_k(x, 5)  # [5, 3, T] i32
    padded = ops.pad(arithmetic, 1, 0, 0, 2)  # [E + 1, 3, T, 3]
    gated = ops.gated_linear_attn(
        x, ops.l2_norm(x, 1e-5), x, ops.sigmoid(x), leaf.state("gla", "f32", 64 * 64 * 3, 1), 0.5
    )  # [E * 3, T + 64]
    return [flat, best, top, padded, pairs, along, gated, ops.argsort(sums, 1), ops.add_id(
        ops.dup(x), leaf.weight("bias", E, 4, type="f32"), leaf.ids("which", 4, 3, n.T)
    )]  # fmt: skip


GRAPHS: Mapping[str, Build] = {
    "embedding": embedding,
    "feed forward": feed_forward,
    "attention f16": _attention(True, "f16"),
    "attention q8_0": _attention(True, "q8_0"),
    "attention in steps": _attention(False, "f16"),
    "attention over lists": listed_attention,
    "experts": experts,
    "convolution": convolution,
    "others": others,
}


# --- running them ---------------------------------------------------------------------------------


class Running:
    """A graph whose tensors have memory of their own, prepared for a backend."""

    def __init__(
        self, build: Build, numbers: Numbers, backend: Backend, passes: str, weight_type: str
    ) -> None:
        self._leaves = Leaves(weight_type)
        self._graph = Graph(build(self._leaves, numbers))
        self._numbers = numbers
        self.steps = [
            step for split in scheduled(self._graph, [backend], passes=passes).splits
            for step in split.steps
        ]  # fmt: skip
        self._memory: dict[Tensor, Place] = {}
        places = {t: self._place(t) for step in self.steps for t in step.tensors}
        self._before = [_bytes_of(leaf).copy() for leaf in self._leaves.states]
        self._plan: Plan = backend.plan(self.steps, places)

    def _place(self, tensor: Tensor) -> Place:
        root = tensor.root
        at = root.place
        if at is None:
            at = self._memory.setdefault(root, Place(HostBuffer(aligned_bytes(root.spec.n_bytes))))
        return Place(at.buffer, at.offset + tensor.view_offs)

    def run(self, counts: Counts) -> dict[int, bytes]:
        """The bits of every result, and of the states, by a number that does not depend on counts.

        Asserts that nothing was written past them.
        """
        for place in self._memory.values():
            place.host_bytes[:] = PATTERN
        for leaf, before in zip(self._leaves.states, self._before, strict=True):
            _bytes_of(leaf)[:] = before
        self._leaves.fill(counts)
        if counts:
            self._plan.set_counts(counts)
        self._plan.submit()
        self._plan.check()
        for root, place in self._memory.items():
            assert not _written_past(place, root.spec.at(counts)), f"{root} past its counts"
        order = {node: i for i, node in enumerate(self._graph.nodes)}
        found = {
            order[y]: _elements(self._place(y), y.spec.at(counts))
            for step in self.steps
            for y in step.results.values()
        }
        states = {-1 - i: _bytes_of(leaf).tobytes() for i, leaf in enumerate(self._leaves.states)}
        return found | states


def _bytes_of(leaf: Tensor) -> np.ndarray:
    assert leaf.place is not None
    data: np.ndarray = leaf.place.host_bytes[leaf.place.offset :][: leaf.spec.n_bytes]
    return data


def _rows(data: np.ndarray, spec: Spec, offset: int) -> np.ndarray:
    """The rows of a result, as bytes, in place."""
    assert spec.rows_contiguous
    shape = (*spec.ne[:0:-1], spec.row_bytes)
    strides = (*spec.nb[:0:-1], 1)
    return np.lib.stride_tricks.as_strided(data[offset:], shape, strides)


def _elements(place: Place, spec: Spec) -> bytes:
    return _rows(place.host_bytes, spec, place.offset).tobytes()


def _written_past(place: Place, spec: Spec) -> bool:
    changed = place.host_bytes != PATTERN
    _rows(changed, spec, place.offset)[...] = False
    return bool(changed.any())


def check_bits(
    name: str, backend: Backend, passes: str, weight_type: str, bound: int, n_tokens: list[int]
) -> None:
    """Results at counts have the bits of the graph that is built for them, one after another."""
    symbolic = Numbers.bounded(bound)
    counted = Running(GRAPHS[name], symbolic, backend, passes, weight_type)
    for n in n_tokens:
        counts = symbolic.having(n).counts
        exact = Running(GRAPHS[name], Numbers.plain(n), backend, passes, weight_type)
        got, want = counted.run(counts), exact.run({})
        both = got.keys() & want.keys()
        assert len(both) > len(want) / 2
        assert exact.steps[-1].op == counted.steps[-1].op
        for i in both:
            assert got[i] == want[i], f"{name} at T = {n} of {bound}: result {i} differs"

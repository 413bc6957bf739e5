"""Products and attention, each by itself, as graphs that the CPU backend plans as those of a model.

A plan is one kernel over several weights, or several caches, one after another: so many that
reading them takes a while, and few where there is much to compute. Types of weights are those that
the backend has a kernel for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.cpu.backend import MATMUL_FORMATS, CpuBackend
from ggmlpy.backends.cpu.formats.base import PackedFormat
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.conformance.run import Prepared, computing, unsupported
from ggmlpy.graph.buffer import aligned_bytes
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of

WEIGHT_TYPES = tuple(MATMUL_FORMATS)
MOST_PRODUCTS = 1 << 30  # multiply-adds of a plan of more than one node
_DISTINCT_ROWS = (
    64  # of random values, which are repeated: a kernel's speed does not depend on them
)
# Heads of q, heads of K and V, elements of each: those of Llama-3.2-1B.
N_HEAD, N_HEAD_KV, HEAD = 32, 8, 64


class Case(Protocol):
    """What is measured."""

    @property
    def id(self) -> str: ...

    @property
    def n_products(self) -> int:
        """Multiply-adds of a node."""

    @property
    def other_bytes(self) -> int:
        """Of a node's x, or queries, and result."""

    @property
    def n_bytes(self) -> int:
        """What a node reads and writes at least, weights in the form that its kernel reads."""

    def unit(self, isa: ISA) -> str:
        """The ceiling of its multiply-adds (kernel_ceilings.py)."""

    @property
    def leaf(self) -> Leaf:
        """What its weights, or each of K and V, are."""

    @property
    def held_bytes(self) -> int:
        """Memory of a node's weights, as stored and as packed, or of its K and V."""

    def n_nodes(self, source: Sources) -> int:
        """How many weights there are, or caches."""

    def nodes(self, source: Sources) -> list[Tensor]:
        """A node for each of the weights, or caches."""


Leaf = tuple[str, int, int]  # type, elements of a row, rows


@dataclass(frozen=True, slots=True)
class Product:
    """Weights [k, m] of a type, times `n_rows` rows of f32."""

    type: str
    k: int
    m: int
    n_rows: int

    @property
    def id(self) -> str:
        return f"{self.type} {self.k}x{self.m} rows={self.n_rows}"

    @property
    def n_products(self) -> int:
        return self.k * self.m * self.n_rows

    @property
    def weight_bytes(self) -> int:
        return MATMUL_FORMATS[self.type].matrix_bytes(self.k, self.m)

    @property
    def other_bytes(self) -> int:
        return 4 * self.n_rows * (self.k + self.m)

    @property
    def n_bytes(self) -> int:
        return self.weight_bytes + self.other_bytes

    @property
    def leaf(self) -> Leaf:
        return self.type, self.k, self.m

    @property
    def held_bytes(self) -> int:
        is_packed = isinstance(MATMUL_FORMATS[self.type], PackedFormat)
        return type_of(self.type).row_bytes(self.k) * self.m + is_packed * self.weight_bytes

    def unit(self, isa: ISA) -> str:
        format = MATMUL_FORMATS[self.type]
        has_tiles = "amx" in isa.has and format.tiles is not None
        if format.quantizes_x:
            return "tiles" if has_tiles else "dot"
        return "bf16 tiles" if has_tiles else "fma"

    def n_nodes(self, source: Sources) -> int:
        return source.n_nodes(self.weight_bytes, self.n_products)

    def nodes(self, source: Sources) -> list[Tensor]:
        x = from_numpy(source.floats(self.n_rows, self.k))
        return [ops.mul_mat(w, x) for w in source.leaves(self.leaf, self.n_nodes(source))]


@dataclass(frozen=True, slots=True)
class Attention:
    """Queries over K and V of a type, in lists of cells as a context hands them over.

    `n_seqs` sequences with `n_queries` tokens each, of which the last one sees `depth` cells. In
    the split layout each sequence has a stream of its own; `unified` they lie in one stream, one
    after another, and `interleaved` there by turns.
    """

    type: str
    n_queries: int
    depth: int
    n_seqs: int = 1
    layout: str = "split"

    @property
    def id(self) -> str:
        what = f"prompt={self.n_queries} " if self.n_queries > 1 else ""
        many = f"streams={self.n_seqs} {self.layout} " if self.n_seqs > 1 else ""
        return f"attention {self.type} {what}{many}depth={self.depth}"

    @property
    def n_seen(self) -> int:
        """Cells that the queries of a sequence see, summed."""
        before = self.depth - self.n_queries
        return self.n_queries * before + self.n_queries * (self.n_queries + 1) // 2

    @property
    def n_products(self) -> int:
        return 2 * HEAD * N_HEAD * self.n_seqs * self.n_seen

    @property
    def cache_bytes(self) -> int:
        return 2 * self.n_seqs * self.depth * N_HEAD_KV * type_of(self.type).row_bytes(HEAD)

    @property
    def other_bytes(self) -> int:
        return 2 * 4 * HEAD * N_HEAD * self.n_seqs * self.n_queries

    @property
    def n_bytes(self) -> int:
        return self.cache_bytes + self.other_bytes

    @property
    def leaf(self) -> Leaf:
        return self.type, HEAD * N_HEAD_KV, self.n_seqs * self.depth

    @property
    def held_bytes(self) -> int:
        return self.cache_bytes

    def unit(self, isa: ISA) -> str:
        return "fma"

    def n_nodes(self, source: Sources) -> int:
        return source.n_nodes(self.cache_bytes, self.n_products)

    def nodes(self, source: Sources) -> list[Tensor]:
        n, S = self.n_queries, self.n_seqs
        streams = S if self.layout == "split" else 1
        # A unified cache has all queries in one stream, as a context's graph has them.
        q = from_numpy(source.floats(S * n, N_HEAD, HEAD))  # [D, H, S*n]
        q = ops.reshape_4d(q, HEAD, N_HEAD, S * n // streams, streams)
        q = ops.permute(q, 0, 2, 1, 3)  # [D, S*n/streams, H, streams]
        cells, seen = map(from_numpy, self._lists(streams))
        return [
            ops.flash_attn_ext(q, k, v, None, HEAD**-0.5, 0.0, 0.0, cells=cells, seen=seen)
            for k, v in self._caches(source, streams)
        ]

    def _lists(self, streams: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Cells of each sequence, [S, depth]; list, first entry and number of each query."""
        n, S, depth = self.n_queries, self.n_seqs, self.depth
        cells = np.arange(S * depth, dtype=np.int32)
        by_turns = self.layout == "interleaved"
        lists = cells.reshape(depth, S).T if by_turns else cells.reshape(S, depth)
        seen = np.zeros((S, n, 3), np.int32)
        seen[:, :, 0] = np.arange(S)[:, None]
        seen[:, :, 2] = np.arange(depth - n + 1, depth + 1)
        return lists.copy(), seen.reshape(streams, -1, 3)

    def _caches(self, source: Sources, streams: int) -> Iterator[tuple[Tensor, Tensor]]:
        """K and V, [D, cells, Hk, streams], of each node."""
        stored = source.leaves(self.leaf, 2 * self.n_nodes(source))
        ne = HEAD, N_HEAD_KV, self.n_seqs * self.depth // streams, streams
        heads = [ops.permute(ops.reshape_4d(leaf, *ne), 0, 2, 1, 3) for leaf in stored]
        yield from zip(heads[::2], heads[1::2], strict=False)


class Sources:
    """Random operands. Weights and caches of a shape are made once, for all cases that use them;
    there are as many as take up `memory_bytes`."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._rng = np.random.default_rng(0)
        self._made: dict[Leaf, list[Tensor]] = {}

    def n_nodes(self, n_bytes: int, n_products: int) -> int:
        """Nodes of a plan, each of which reads and computes so much."""
        by_products = max(1, MOST_PRODUCTS // n_products)
        return min(by_products, max(1, self._memory_bytes // n_bytes))

    def floats(self, *shape: int) -> NDArray[np.float32]:
        """At an address as aligned as those of a plan's values."""
        floats = aligned_bytes(4 * prod(shape)).view(np.float32).reshape(shape)
        floats[...] = self._rng.uniform(-1, 1, shape)
        return floats

    def leaves(self, leaf: Leaf, n: int) -> list[Tensor]:
        """`n` of them."""
        made = self._made.setdefault(leaf, [])
        made += [self._leaf(*leaf) for _ in range(n - len(made))]
        return made[:n]

    def _leaf(self, type: str, k: int, m: int) -> Tensor:
        n_rows = min(m, _DISTINCT_ROWS)
        if type_of(type).is_quantized:
            rows = random_rows(self._rng, type_of(type), n_rows, k)
        else:
            rows = from_float(self.floats(n_rows, k), type_of(type))
        whole = np.resize(rows, (m, rows.shape[-1]))
        # A leaf that never changes: a backend reads it where it is.
        return from_bytes(whole.reshape(-1), type, (k, m), flags=Flag.WEIGHT)


def memory_bytes(cases: Iterable[Case], source: Sources, n_ways: int) -> int:
    """What these cases take: weights and caches once, x and results in each of `n_ways`."""
    held: dict[Leaf, int] = {}
    others = 0
    for case in cases:
        n_nodes = case.n_nodes(source)
        held[case.leaf] = max(n_nodes * case.held_bytes, held.get(case.leaf, 0))
        others += n_nodes * case.other_bytes
    return sum(held.values()) + n_ways * others


@dataclass(slots=True)
class Measured:
    """A case planned for one instruction set and number of threads."""

    case: Case
    isa: ISA
    n_threads: int
    n_nodes: int
    plan: Prepared
    seconds: list[float]


def prepare(case: Case, backend: CpuBackend, source: Sources) -> Measured | str:
    """The plan, run once; or why the backend cannot run the case."""
    nodes = computing(*case.nodes(source))
    reason = unsupported(backend, nodes)
    if reason:
        return reason
    plan = Prepared(backend, nodes)
    plan.run()
    return Measured(case, backend.isa, backend.n_threads, len(nodes), plan, [])


def products(
    types: Sequence[str], sizes: Sequence[tuple[int, int]], rows: Sequence[int]
) -> list[Case]:
    """Every product: block sizes of types must divide the first of each size."""
    return [Product(t, k, m, n) for k, m in sizes for n in rows for t in types]


def attention(types: Sequence[str], depths: Sequence[int], n_seqs: int, prompt: int) -> list[Case]:
    """One query and many streams at these depths, and a prompt behind so many tokens and none."""
    cases: list[Case] = []
    for t in types:
        of_type = partial(Attention, t)
        cases += [of_type(1, depth) for depth in depths]
        for layout in ("split", "unified", "interleaved"):
            cases.append(of_type(1, depths[0], n_seqs, layout))
        cases += [of_type(prompt, depth + prompt) for depth in (0, depths[-1])]
    return cases

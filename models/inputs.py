"""The inputs of a model's graph: leaves that the runtime fills before each run.

Letters in shapes: T tokens of the ubatch in S streams, O outputs, R sequences, D head size, Hk K/V
heads, C cells of a stream, N cells that are seen. T, O and R may be counts that are known when a
graph is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggmlpy import ops
from ggmlpy.graph.tensor import Tensor
from ggmlpy.models.blocks.rotation import rotated
from ggmlpy.models.lora import LoraInputs


@dataclass(frozen=True, slots=True)
class Gathered:
    """Neighbouring sequences of a ubatch with n tokens each, their cells side by side: what
    attention in separate ops takes."""

    cells: Tensor  # [N*R] i32: rows of the cache, N for each sequence
    mask: Tensor  # [N, n, 1, R] f16: 0 (or as in `bias`) where a token sees a cell, else -inf
    tokens: Tensor  # [n*R] i32
    buckets: Tensor | None = None  # [N*n*R] i32: of each cell and token, see memory.Buckets


@dataclass(frozen=True, slots=True)
class KVView:
    """The part of a KV cache that one ubatch reads and writes.

    `k` and `v` map a layer's slot to its state leaf, [n_embd_gqa, C, streams]; a layer whose V is a
    part of K has none of its own. `rows` is None where the ubatch only reads. The cells of each
    sequence are listed in the order of positions, so its results do not depend on where they lie.
    """

    k: Mapping[int, Tensor]
    v: Mapping[int, Tensor]
    rows: Tensor | None  # [T] i64: the row that each token is written to, stream * C + cell
    cells: Tensor  # [entries, sequences] i32: the rows of each sequence, by position
    seen: Tensor  # [3, T/S, S] i32: of each token its list, the first entry it sees, and how many
    gathered: tuple[Gathered, ...] = ()  # without flash attention: all tokens, in order
    # For ALiBi: of each entry that a token sees -|distance| in positions, [entries, T/S, 1, S] f16.
    bias: Tensor | None = None
    # By slot what `store` multiplies K and V by, [n, n] for each block of n elements, if it does.
    rotations: Mapping[int, tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    stored: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by slot

    def store(self, layer: int, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
        """Write the tokens' k [Dk, Hk, T] and v [Dv, Hk, T]. Returns the caches, a row a cell;
        without v that of K twice.

        Read the returned tensors, not the leaves: that orders the write before the read. They are
        in `stored` too, for layers that read what this one has written.
        """
        by_k, by_v = self.rotations.get(layer, (None, None))
        k = rotated(k, by_k, "k_rotated")
        k_rows = self._store(self.k[layer], k).named("k_stored")
        if v is None:
            v_rows = k_rows
        else:
            v = rotated(v, by_v, "v_rotated")
            v_rows = self._store(self.v[layer], v).named("v_stored")
        self.stored[layer] = k_rows, v_rows
        return k_rows, v_rows

    def _store(self, cache: Tensor, x: Tensor) -> Tensor:
        D, Hk, T, _ = x.ne
        n_embd, C, n_stream, _ = cache.ne
        rows = ops.reshape_2d(cache, n_embd, C * n_stream)  # [D*Hk, cells of all streams]
        assert self.rows is not None
        # q, k and v may be parts of the rows of one product.
        by_token = (
            ops.reshape_2d(x, D * Hk, T) if x.contiguous else ops.view_2d(x, D * Hk, T, x.nb[2], 0)
        )
        return ops.set_rows(rows, by_token, self.rows)

    def held(self, layer: int) -> tuple[Tensor, Tensor]:
        """As `store` returns them, K and V that earlier graphs have written."""
        caches = (self.k[layer], self.v[layer])
        k_rows, v_rows = (ops.reshape_2d(x, x.ne[0], x.ne[1] * x.ne[2]) for x in caches)
        return k_rows.named("k_held"), v_rows.named("v_held")

    def heads(self, layer: int, stored: Tensor, D: int, Hk: int, name: str) -> Tensor:
        """Of all cells of a cache that `store` returned the first D elements of each of Hk heads,
        by stream: [D, C, Hk, streams]."""
        _, C, n_stream, _ = self.k[layer].ne
        row_bytes = stored.nb[1]
        view = ops.view_4d(
            stored, D, Hk, C, n_stream,
            stored.type.row_bytes(stored.ne[0] // Hk), row_bytes, row_bytes * C, 0,
        ).named(f"{name}_cells")  # [D, Hk, C, streams]  # fmt: skip
        return ops.permute(view, 0, 2, 1, 3).named(name)  # [D, C, Hk, streams]


@dataclass(frozen=True, slots=True)
class RecurrentView:
    """The recurrent state of the R sequences in one ubatch.

    `states` maps a recurrent layer's number to its state leaves, [n, rows] each. The states of an
    empty sequence are zero.

    What a token takes of the K - 1 tokens before it lies in a table of columns: the K - 1 columns
    that each state holds, of one sequence after another, then one for each token. K is the layers'
    `n_taps`; where that is 1 there are no taps. See `ggmlpy.models.blocks.recurrent`.
    """

    states: Mapping[int, tuple[Tensor, ...]]
    rows: Tensor  # [R] i32: the row of each sequence's states
    rows_out: Tensor  # [R] i32: the row that its new states are written to
    spans: Tensor  # [2, R] i32: of each sequence its first token, and how many it has
    taps: Tensor | None = None  # [K, T] i32: the columns of each token, its own last
    taps_out: Tensor | None = None  # [(K-1)*R] i32: the last columns of each sequence

    def load(self, layer: int, i: int = 0) -> Tensor:
        """The states of the ubatch's sequences in a layer's state leaf i, in order: [n, R]."""
        return ops.get_rows(self.states[layer][i], self.rows)

    def store(self, layer: int, states: Tensor, i: int = 0) -> Tensor:
        """Write the new states [n, R]. Pass the result to `GraphInputs.write`."""
        return ops.set_rows(self.states[layer][i], states, self.rows_out)


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """The inputs of one ubatch: T tokens, sequence after sequence.

    Where all sequences have as many tokens, each may be a stream of its own, dimension 3 of
    attention; else the tokens of all are one stream. `kvs` has a cache for full attention and one
    for each size of sliding window. `source` has what an encoder stored of each sequence's source,
    all of which every token of the sequence sees.
    """

    tokens: Tensor  # [T] i32
    positions: Tensor  # [T] i32
    out_ids: Tensor  # [O] i32: the tokens whose logits are output
    kvs: tuple[KVView, ...]
    recurrent: RecurrentView | None = None
    source: KVView | None = None  # of a model with an encoder
    # With M-RoPE [4*T] i32: the time, height and width of every token, which are the position of
    # text, and then 0.
    positions4: Tensor | None = None
    n_ctx_seq: int = 0  # tokens that a sequence may have
    lora: tuple[LoraInputs, ...] = ()  # the adapters that any of the tokens have
    directions: Mapping[int, Tensor] = field(default_factory=dict)  # of a control vector, by layer
    steered: set[int] = field(default_factory=set)  # the layers whose results have them
    writes: list[Tensor] = field(default_factory=list)  # nodes that no output depends on
    # What a layer hands on to later ones beside its result.
    handed_on: dict[str, Tensor] = field(default_factory=dict)

    def write(self, node: Tensor) -> None:
        """Add a write to a state leaf to the graph, although no node reads its result."""
        self.writes.append(node)

    def steer(self, layer: int, x: Tensor) -> Tensor:
        """The result x [E, T] of a layer, with its direction of the control vector if there is one.
        Results of several streams have none."""
        direction = self.directions.get(layer)
        if direction is None or x.ne[2] != 1:
            return x
        self.steered.add(layer)
        return ops.add(x, direction).named("l_out_steered")

    def kv_of(self, layer: int) -> KVView:
        """The cache that holds a layer's K and V."""
        return next(kv for kv in self.kvs if layer in kv.k)

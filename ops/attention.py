"""Attention in one op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from ggmlpy.common.arguments import checked
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.op import Array, op
from ggmlpy.graph.spec import Spec, require
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import F16, F32, I32
from ggmlpy.ops.softmax import (
    MaskedScores,
    alibi_slopes,
    check_mask,
    check_sinks,
    set_sinks,
)

T = TypeVar("T")


class _Given(NamedTuple, Generic[T]):
    """The optional sources."""

    mask: T | None
    cells: T | None
    seen: T | None
    sinks: T | None


@op("flash_attn_ext")
@dataclass(frozen=True, slots=True)
class FlashAttnExt(MaskedScores):
    """Softmax of q·k, times v, for each head.

        s[j] = scale * sum_d q[d, i, h, s] * k[d, c(j), h // G]              G = Hq / Hk
        s[j] = c * tanh(s[j] / c)                               with c = logit_softcap, unless 0
        s[j] = s[j] + slope(h) * mask[j, i, h % Hm, s % Sm]
        p[j] = exp(s[j] - m) / (sum_j exp(s[j] - m) + exp(sink(h) - m))
        y[d, h, i, s] = sum_j p[j] * v[d, c(j), h // G]

    q [D, n_q, Hq, S] f32, k [D, n_kv, Hk, S_k] and v [Dv, n_kv, Hk, S_k] f32, f16, bf16 or
    quantised, mask f16 contiguous, sinks [Hq] f32  ->  y [Dv, Hq, n_q, S] f32, contiguous, so that
    a reshape yields [Dv * Hq, n_q * S]. Keys are shared by division, masks by modulo. slope(h) is
    1, or ALiBi's where max_bias is above 0, see alibi_slopes.

    Without lists S_k is S, and the query sees row j of stream s for every j: mask is
    [n_kv, >= n_q, Hm, Sm].

    With lists any query may see any rows: cells [n_max, n_list] i32 are lists of cells in the order
    of their positions, seen [3, n_q, S] i32 contiguous says for each query (list, first, n): it
    sees entries first .. first + n - 1 of that list. Cell c is row c % n_kv of stream c // n_kv,
    which must follow each other in k and v (nb3 = ne1 * nb1). mask is [>= n, >= n_q, Hm, Sm], and
    its entry j belongs to entry first + j of the list. A cell may be listed more than once; entries
    that no query sees may have any value. Raises IndexOutOfRange when run with a list, an entry of
    it, or a visible cell that does not exist.

    Masked cells (mask -inf) have no effect, even if k or v is NaN there. A query for which all
    cells are masked, or that sees no entry, gives exactly 0, with sinks or without. The cells of a
    query give the same bits with and without lists, in the same order. Raises ShapeError for other
    shapes and types, and unless rows of q, k and v are contiguous. Source: Dao et al., 2022.
    """

    scale: float
    max_bias: float
    logit_softcap: float
    has_mask: bool = False
    has_sinks: bool = False
    has_lists: bool = False

    def source_names(self, n_srcs: int) -> tuple[str, ...]:
        return ("q", "k", "v", *self.optional_names())[:n_srcs]

    def optional_names(self) -> tuple[str, ...]:
        mask, sinks = ("mask",) * self.has_mask, ("sinks",) * self.has_sinks
        return (*mask, *("cells", "seen") * self.has_lists, *sinks)

    def _given(self, sources: Sequence[T]) -> _Given[T]:
        found = dict(zip(self.optional_names(), sources, strict=True))
        return _Given(*(found.get(name) for name in _Given._fields))

    def infer(self, q: Spec, k: Spec, v: Spec, *sources: Spec) -> Spec:
        given = self._given(sources)
        require(q.type is F32, "q must be f32")
        for name, spec in (("k", k), ("v", v)):
            require(
                spec.type.is_float or spec.type.is_quantized,
                f"{name} must be of a float type or quantised",
            )
        require(
            q.rows_contiguous and k.rows_contiguous and v.rows_contiguous,
            "rows of q, k and v must be contiguous",
        )
        size, n_query, n_head, n_seq = q.ne
        require(k.ne[0] == size, f"head sizes of q and k, {size} and {k.ne[0]}, must be equal")
        require(k.ne[1:] == v.ne[1:], "k and v must have the same dimensions 1, 2 and 3")
        n_kv, n_head_kv = k.ne[1:3]
        require(
            n_head % n_head_kv == 0,
            f"the {n_head} heads of q must be a multiple of the {n_head_kv} of k and v",
        )
        if given.cells is not None and given.seen is not None:
            _check_lists(q, given.cells, given.seen)
            for name, spec in (("k", k), ("v", v)):
                require(
                    spec.ne[3] == 1 or spec.nb[3] == spec.ne[1] * spec.nb[1],
                    f"streams of {name} must follow each other",
                )
        else:
            require(k.ne[3] == n_seq, f"dimension 3 of q, {n_seq}, must be that of k, {k.ne[3]}")
        if given.mask is not None:
            require(given.mask.type is F16, "mask must be f16")
            n_masked = given.mask.ne[0] if self.has_lists else n_kv
            check_mask(given.mask, n_masked, n_query, n_head, n_seq)
        if given.sinks is not None:
            check_sinks(given.sinks, n_head)
        self.check_bias()
        return Spec((v.ne[0], n_head, n_query, n_seq), F32)

    def reference(self, q: Array, k: Array, v: Array, *sources: Array) -> Array:
        given = self._given(sources)
        q, k, v = (t.astype(np.float64) for t in (q, k, v))
        n_seq, n_head, n_query, _ = q.shape
        n_shared = n_head // k.shape[1]
        slopes = alibi_slopes(n_head, self.max_bias)
        y = np.zeros((n_seq, n_query, n_head, v.shape[3]))
        for s, i in np.ndindex(n_seq, n_query):
            cells = self._cells_seen(given, s, i, k.shape)
            for h in range(n_head):
                bias = np.zeros(len(cells))
                if given.mask is not None:
                    masks = given.mask[s % given.mask.shape[0], h % given.mask.shape[1], i]
                    bias = slopes[h] * masks[: len(cells)].astype(np.float64)
                visible = ~np.isneginf(bias)
                sink = -np.inf if given.sinks is None else float(given.sinks[0, 0, 0, h])
                self._check_cells(cells[visible], k.shape)
                stream, row = cells[visible] // k.shape[2], cells[visible] % k.shape[2]
                at = stream, h // n_shared, row
                y[s, i, h] = self.attend(q[s, h, i], k[at], v[at], bias[visible], sink)
        return y

    def _cells_seen(self, given: _Given[Array], s: int, i: int, cache: tuple[int, ...]) -> Array:
        """The cells that query i of sequence s sees, before masks."""
        n_kv = cache[2]
        if given.cells is None or given.seen is None:
            return s * n_kv + np.arange(n_kv)
        which, first, n = (int(value) for value in given.seen[0, s, i])
        n_list, n_max = given.cells.shape[2:]
        if not 0 <= which < n_list:
            raise IndexOutOfRange(f"{self.name}: seen names list {which}, there are {n_list}")
        if not 0 <= first <= first + n <= n_max:
            raise IndexOutOfRange(
                f"{self.name}: seen names entries {first} to {first + n - 1} of a list of {n_max}"
            )
        if given.mask is not None and n > given.mask.shape[3]:
            raise IndexOutOfRange(
                f"{self.name}: seen names {n} entries, mask has {given.mask.shape[3]}"
            )
        return given.cells[0, 0, which, first : first + n]

    def _check_cells(self, visible: Array, cache: tuple[int, ...]) -> None:
        n_cells = cache[0] * cache[2]
        outside = (visible < 0) | (visible >= n_cells)
        if outside.any():
            raise IndexOutOfRange(
                f"{self.name}: cells names {visible[outside][0]}: it must be from 0 to"
                f" {n_cells - 1}, there are {n_cells} cells"
            )

    def attend(self, query: Array, keys: Array, values: Array, bias: Array, sink: float) -> Array:
        """The result of one query over its visible cells."""
        scores = self.scale * (keys @ query)
        if self.logit_softcap != 0:
            scores = self.logit_softcap * np.tanh(scores / self.logit_softcap)
        scores = scores + bias
        largest = np.maximum(scores.max(initial=-np.inf), sink)  # NaN if the sink is
        if np.isneginf(largest):
            return np.zeros(values.shape[1])
        weights = np.exp(scores - largest)
        attended: Array = weights @ values / (weights.sum() + np.exp(sink - largest))
        return attended


def _check_lists(q: Spec, cells: Spec, seen: Spec) -> None:
    require(
        cells.type is I32 and cells.rows_contiguous and cells.ne[2:] == (1, 1),
        "cells must be i32 [n_max, n_list] with contiguous rows",
    )
    n_query, n_seq = q.ne[1], q.ne[3]
    require(
        seen.type is I32 and seen.contiguous and seen.ne == (3, n_query, n_seq, 1),
        f"seen must be i32 [3, {n_query}, {n_seq}]: list, first entry and number of each query",
    )


@checked
def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    max_bias: float,
    logit_softcap: float,
    *,
    cells: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """`ggml_flash_attn_ext`, with `cells` and `seen` over lists of cells; see FlashAttnExt."""
    require(
        (cells is None) == (seen is None),
        f"{FlashAttnExt.name}: cells and seen must be given together",
    )
    made = FlashAttnExt(
        scale, max_bias, logit_softcap, has_mask=mask is not None, has_lists=cells is not None
    )
    return made.node(q, k, v, *(t for t in (mask, cells, seen) if t is not None))


@checked
def flash_attn_ext_add_sinks(a: Tensor, sinks: Tensor | None) -> Tensor:
    """`ggml_flash_attn_ext_add_sinks`: sets the sinks of the node `a`, and returns `a`."""
    return set_sinks(a, sinks, FlashAttnExt)

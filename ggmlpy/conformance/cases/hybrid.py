"""Layers of recurrent and hybrid models whose state is a matrix, and what stands around them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import CACHE_TYPES
from ggmlpy.conformance.inputs import Inputs, builds, stored
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Tensor


def _uniform(inputs: Inputs, ne: tuple[int, ...], low: float, high: float) -> NDArray[Any]:
    return inputs.rng.uniform(low, high, as_ne(ne)[::-1])


def _between(inputs: Inputs, i: int, low: float, high: float) -> Tensor:
    """Source i, uniform in a span of its own."""
    ne = as_ne(inputs.case.ne[i])
    return stored(_uniform(inputs, ne, low, high), "f32", ne)


def _of_length_one(inputs: Inputs, i: int, length: float = 1.0) -> Tensor:
    """Source i in rows of this length: states that take them in do not grow."""
    return ops.scale(ops.l2_norm(inputs[i], 1e-6), length)


def _spans(inputs: Inputs, i: int) -> Tensor | None:
    """Source i: the T tokens of source 1 as sequences of random lengths in any order; None without
    that source."""
    ne = inputs.case.ne
    if len(ne) <= i:
        return None
    n_tokens, n_seqs = as_ne(ne[1])[2], as_ne(ne[i])[1]
    inner = 1 + inputs.rng.choice(n_tokens - 1, n_seqs - 1, replace=False)
    bounds = np.array([0, *np.sort(inner), n_tokens])
    spans = np.stack([bounds[:-1], np.diff(bounds)], axis=1)
    return stored(inputs.rng.permutation(spans), "i32", as_ne(ne[i]))


@builds("ssm_scan")
def _ssm_scan(case: Case, inputs: Inputs) -> Tensor:
    """ne: s, x, dt, A, B, C, ids, and spans where there are any; so for the other scans."""
    dt, A = _between(inputs, 2, -4, 4), _between(inputs, 3, -2, -0.1)
    ids = inputs.ids(case.ne[6], case.ne[0][3])
    given = inputs[0], inputs[1], dt, A, inputs[4], inputs[5], ids
    return ops.ssm_scan(*given, case.params.get("K", 1), spans=_spans(inputs, 7))


@builds("rwkv_wkv6")
def _rwkv_wkv6(case: Case, inputs: Inputs) -> Tensor:
    """ne: k, v, r, tf, td, state."""
    td = _between(inputs, 4, 0.1, 1)
    given = inputs[0], inputs[1], inputs[2], inputs[3], td, inputs[5]
    return ops.rwkv_wkv6(*given, spans=_spans(inputs, 6))


@builds("rwkv_wkv7")
def _rwkv_wkv7(case: Case, inputs: Inputs) -> Tensor:
    """ne: r, w, k, v, a, b, state."""
    a, b = _of_length_one(inputs, 4), _of_length_one(inputs, 5, -0.7)
    w = _between(inputs, 1, 0.1, 1)
    given = inputs[0], w, inputs[2], inputs[3], a, b, inputs[6]
    return ops.rwkv_wkv7(*given, spans=_spans(inputs, 7))


@builds("gated_linear_attn")
def _gated_linear_attn(case: Case, inputs: Inputs) -> Tensor:
    """ne: k, v, q, g, state."""
    given = inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], case.params["scale"]
    return ops.gated_linear_attn(*given, spans=_spans(inputs, 5))


@builds("gated_delta_net")
def _gated_delta_net(case: Case, inputs: Inputs) -> Tensor:
    """ne: q, k, v, g, beta, state; plain: q and k as they come, for layouts."""
    plain = case.params.get("plain", False)
    q, k = (inputs[i] if plain else _of_length_one(inputs, i) for i in (0, 1))
    g, beta = _between(inputs, 3, -2, 0), _between(inputs, 4, 0, 0.1 if plain else 1)
    given = q, k, inputs[2], g, beta, inputs[5], case.params.get("K", 1)
    return ops.gated_delta_net(*given, spans=_spans(inputs, 6))


@builds("lightning_indexer")
def _lightning_indexer(case: Case, inputs: Inputs) -> Tensor:
    """ne: q, k, weights, mask; a third of the cells is masked, what their keys hold is not."""
    ne = as_ne(case.ne[3])
    values = _uniform(inputs, ne, -1, 1)
    values[inputs.rng.uniform(size=values.shape) < 1 / 3] = -np.inf
    values.reshape(-1)[-1] = 0.25
    mask = stored(values, "f16", ne)
    return ops.lightning_indexer(inputs[0], inputs[1], inputs[2], mask)


@builds("dsv4_hc_post")
def _dsv4_hc_post(case: Case, inputs: Inputs) -> Tensor:
    """ne: x, residual, post, and comb where streams are mixed."""
    comb = inputs[3] if len(case.ne) > 3 else None
    return ops.dsv4_hc_post(inputs[0], inputs[1], inputs[2], comb)


def _scan(
    n: int, size: int, heads: int, states: int, tokens: int, seqs: int, groups: int, a: int,
    layouts: tuple[str, ...] = (), **params: Any,
) -> Case:  # fmt: skip
    group = (n, groups, tokens, seqs)
    ne = [(n, size, heads, states), (size, heads, tokens, seqs), (heads, tokens, seqs), (a, heads)]
    return Case("ssm_scan", ne=[*ne, group, group, (seqs,)], layouts=layouts,
                types=("f32",) * 6 + ("i32",), **params)  # fmt: skip


def _listed(case: Case, n_seqs: int, states: int) -> Case:
    """A case of one sequence as one of several with spans, whose states are source `states`."""
    state = as_ne(case.ne[states])
    ne = [*case.ne]
    if case.op == "ssm_scan":
        ne[states] = (n_seqs,)
    else:
        ne[states] = (*state[:3], n_seqs) if case.op == "gated_delta_net" else (state[0], n_seqs)
    return Case(case.op, ne=[*ne, (2, n_seqs)], types=(*case.types, "i32"), **case.params)


def _delta(
    n: int, heads: int, keys: int, tokens: int, seqs: int, key_seqs: int = 0, gate: int = 1,
    layouts: tuple[str, ...] = (), **params: Any,
) -> Case:  # fmt: skip
    key, one = (n, keys, tokens, key_seqs or seqs), (1, heads, tokens, seqs)
    ne = [key, key, (n, heads, tokens, seqs), (gate, *one[1:]), one, (n, n, heads, seqs)]
    return Case("gated_delta_net", ne=ne, layouts=layouts, **params)


def _indexer(
    n: int, heads: int, tokens: int, cells: int, streams: int, masks: int, type: str = "f32",
    layouts: tuple[str, ...] = (),
) -> Case:  # fmt: skip
    ne = [(n, heads, tokens, streams), (n, 1, cells, streams), (heads, tokens, 1, streams)]
    return Case("lightning_indexer", ne=[*ne, (cells, tokens, 1, masks)], layouts=layouts,
                types=("f32", type, "f32", "f16"))  # fmt: skip


def _wkv(op: str, n: int, heads: int, tokens: int, seqs: int) -> Case:
    token, state = (n, heads, tokens), (n * n * heads, seqs)
    if op == "rwkv_wkv6":
        return Case(op, ne=[token, token, token, (n, heads), token, state])
    return Case(op, ne=[*[token] * 6, state])


CASES: list[Case] = [
    # Mamba-1: heads of one row, a decay for every element of the state
    *(_scan(16, 1, h, 4, t, s, 1, 16) for h in (37, 256) for t in (1, 7) for s in (1, 3)),
    _scan(17, 3, 5, 2, 5, 2, 1, 17), _scan(5, 1, 11, 1, 3, 1, 1, 5),
    _scan(31, 7, 4, 2, 5, 1, 2, 31),
    # Mamba-2: a decay for every head
    *(_scan(128, 64, 6, 3, t, s, g, 1) for t in (1, 5) for s in (1, 2) for g in (1, 2)),
    _scan(19, 5, 6, 2, 7, 2, 3, 1), _scan(37, 33, 3, 2, 3, 1, 3, 1),
    _scan(64, 80, 2, 1, 33, 1, 1, 1),
    *(_scan(32, 8, 4, 3, t, 2, 2, 1, K=k) for t in (1, 3, 6) for k in (2, 4)),
    _scan(19, 5, 6, 2, 7, 2, 3, 1, layouts=("view", "view", "", "", "view", "view")),
    _scan(19, 5, 6, 2, 7, 2, 3, 19, layouts=("permuted", "permuted", "", "", "permuted", "")),
    _scan(5, 1, 70_001, 1, 1, 1, 1, 5), _scan(16, 1, 3, 2, 1024, 1, 1, 16),
    # linear attention of RWKV
    *(_wkv(op, n, h, t, s) for op in ("rwkv_wkv6", "rwkv_wkv7") for n, h in ((64, 3), (37, 2))
      for t, s in ((1, 1), (8, 1), (6, 3), (33, 1))),
    *(_wkv(op, *of) for op in ("rwkv_wkv6", "rwkv_wkv7")
      for of in ((128, 2, 3, 1), (5, 7, 11, 11), (100, 1, 2, 1), (1, 70_001, 1, 1),
                 (16, 32, 4, 4))),
    # the gated delta rule
    *(_delta(n, 4, keys, t, s, gate=g) for n in (64, 128) for keys in (2, 4) for t in (1, 6)
      for s in (1, 2) for g in (1, n)),
    _delta(37, 6, 3, 5, 4, 2), _delta(20, 4, 2, 5, 2, 1, 20), _delta(5, 7, 7, 11, 3, 1),
    _delta(3, 70_001, 1, 1, 1), _delta(32, 2, 1, 100, 1), _delta(1, 3, 3, 5, 2),
    *(_delta(32, 4, 2, t, 2, gate=g, K=k) for t in (1, 3, 6) for k in (2, 4) for g in (1, 32)),
    *(_delta(19, 4, 2, 5, 2, layouts=(kind,) * 3, plain=True) for kind in ("view", "permuted")),
    # sequences of any numbers of tokens
    *(_listed(_scan(n, size, h, 9, t, 1, g, a, K=k), s, 6)
      for n, size, h, g, a, k in ((17, 3, 6, 2, 17, 1), (128, 33, 4, 2, 1, 2))
      for t, s in ((7, 1), (7, 7), (40, 5))),
    *(_listed(_wkv(op, n, h, t, 1), s, 5 if op == "rwkv_wkv6" else 6)
      for op in ("rwkv_wkv6", "rwkv_wkv7") for n, h in ((64, 3), (37, 2))
      for t, s in ((7, 1), (7, 7), (40, 5))),
    *(_listed(Case("gated_linear_attn", ne=[(n, 3, t)] * 4 + [(n * n * 3, 1)], scale=0.5), s, 4)
      for n in (16, 37) for t, s in ((7, 1), (7, 7), (40, 5))),
    *(_listed(_delta(n, 4, 2, t, 1, gate=g, K=k), s, 5)
      for n, g, k in ((64, 1, 1), (37, 37, 3)) for t, s in ((7, 1), (7, 7), (40, 5))),
    # the lightning indexer
    *(_indexer(128, 8, t, 37, 1, 1, type) for t in (1, 7) for type in CACHE_TYPES),
    _indexer(64, 5, 3, 33, 4, 2), _indexer(37, 3, 7, 16, 2, 2), _indexer(32, 1, 1, 1, 3, 1),
    _indexer(128, 64, 2, 300, 1, 1, "f16"), _indexer(3, 2, 1, 70_001, 1, 1),
    _indexer(37, 6, 5, 45, 2, 1, layouts=("view", "view", "view")),
    _indexer(37, 6, 5, 45, 2, 1, "f16", layouts=("permuted", "permuted")),
    # hyper-connections
    *(Case("dsv4_hc_comb", ne=[(24, t), (3,), (24,)], span=(-3, 3), eps=1e-6, n_iter=i)
      for t in (1, 7, 16, 33) for i in (1, 20)),
    *(Case("dsv4_hc_comb", ne=[((2 + c) * c, 11), (5,), ((2 + c) * c,)], eps=1e-3, n_iter=3)
      for c in (2, 3, 7)),
    Case("dsv4_hc_comb", ne=[(24, 7), (3,), (24,)], layouts=("view",), eps=1e-6, n_iter=2),
    Case("dsv4_hc_comb", ne=[(8, 70_001), (3,), (8,)], eps=1e-6, n_iter=2),
    *(Case("dsv4_hc_pre", ne=[(n, c, t), (c, t)]) for n, c in ((37, 4), (1100, 3), (4096, 4))
      for t in (1, 7)),
    *(Case("dsv4_hc_pre_gated", ne=[(n, c, t)] * 2, span=(-4, 4), scale=0.5)
      for n, c in ((37, 4), (1100, 3)) for t in (1, 7)),
    *(Case("dsv4_hc_post", ne=[(n, t), (n, c, t), (c, t), *comb])
      for n, c in ((37, 4), (1100, 3), (4096, 4)) for t in (1, 7) for comb in ((), ((c, c, t),))),
    *(Case("dsv4_hc_pre", ne=[(37, 4, 5), (4, 5)], layouts=(a, b))
      for a, b in (("view", "view"), ("permuted", "transposed"), ("transposed", ""))),
    *(Case("dsv4_hc_pre_gated", ne=[(37, 4, 5)] * 2, layouts=(a, b), scale=1.0)
      for a, b in (("view", "permuted"), ("transposed", "transposed"), ("", "transposed"))),
    *(Case("dsv4_hc_post", ne=[(37, 5), (37, 4, 5), (4, 5), (4, 4, 5)], layouts=(a, b, "view", c))
      for a, b, c in (("view", "view", "permuted"), ("transposed", "", "transposed"),
                      ("", "transposed", "view"))),
    Case("dsv4_hc_pre", ne=[(3, 2, 70_001), (2, 70_001)]),
    Case("dsv4_hc_post", ne=[(3, 70_001), (3, 2, 70_001), (2, 70_001)]),
]  # fmt: skip

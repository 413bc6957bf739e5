"""Attention: under masks, and over lists of cells."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import CACHE_TYPES, FLOATS
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.conformance.masks import mask_of, sinks_of
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Tensor, from_numpy


@builds("flash_attn_ext")
def _flash_attn_ext(case: Case, inputs: Inputs) -> Tensor:
    """ne: q, k, v, mask or nothing; params: max_bias, softcap, mask (kind), sinks, poison, lists.

    `poison` fills every key and value that no query of a sequence sees with NaN. `lists` is (n_max,
    n_list): queries see lists of cells.
    """
    params = case.params
    q, k, v = inputs[0], inputs[1], inputs[2]
    mask = None
    if len(case.ne) > 3:
        mask = mask_of(inputs, params.get("mask", "random"), as_ne(case.ne[3]), "f16")
        if params.get("poison"):
            masked = np.isneginf(mask.numpy().reshape(mask.ne[::-1]))
            unseen: NDArray[np.bool_] = np.min(masked, axis=(1, 2))
            _poison(k, unseen)
            _poison(v, unseen)
    scale = params.get("scale", 1 / math.sqrt(case.ne[0][0]))
    bias, softcap = params.get("max_bias", 0.0), params.get("softcap", 0.0)
    lists = {}
    if "lists" in params:
        lists = _lists(inputs, q, k.ne[1] * k.ne[3], *params["lists"])
    y = ops.flash_attn_ext(q, k, v, mask, scale, bias, softcap, **lists)
    return ops.flash_attn_ext_add_sinks(y, sinks_of(case, inputs, as_ne(case.ne[0])[2]))


def _lists(inputs: Inputs, q: Tensor, n_cells: int, n_max: int, n_list: int) -> dict[str, Tensor]:
    """Cells in any order and with holes, more than once where there are too few; each query sees a
    stretch of a list, the first all, the next one nothing. The last list is no query's."""
    cells = np.resize([inputs.rng.permutation(n_cells) for _ in range(n_list)], (n_list, n_max))
    cells[-1] = -1
    shape = (q.ne[3], q.ne[1])
    which = inputs.rng.integers(0, n_list - 1, shape)
    first = inputs.rng.integers(0, n_max, shape)
    n = inputs.rng.integers(0, n_max - first + 1)
    first.flat[0], n.flat[0] = 0, n_max
    n.flat[1:2] = 0
    seen = np.stack([which, first, n], axis=-1)
    return {"cells": from_numpy(cells.astype(np.int32)), "seen": from_numpy(seen.astype(np.int32))}


def _poison(cache: Tensor, unseen: NDArray[np.bool_]) -> None:
    """All ones: a NaN as f16, bf16 and f32, and in the scale of a q8_0 or q4_0 block."""
    assert cache.is_leaf and cache.place is not None, "poison works on contiguous keys and values"
    _, n_kv, n_head, n_seq = cache.ne
    rows = cache.place.host_bytes.reshape(n_seq, n_head, n_kv, -1)
    assert unseen.any(), "nothing is masked for every query"
    for s in range(n_seq):
        rows[s][:, unseen[s % len(unseen)]] = 0xFF


def attention(
    size: int, n_query: int, heads: tuple[int, int], n_kv: int, *, n_seq: int = 1,
    size_v: int | None = None, kv: str = "f16", heads_mask: int = 1, rows_mask: int | None = None,
    **params: Any,
) -> Case:  # fmt: skip
    """q [size, n_query, heads[0], n_seq], k and v with heads[1]; a mask where `mask` names one."""
    n_head, n_head_kv = heads
    ne = [
        (size, n_query, n_head, n_seq),
        (size, n_kv, n_head_kv, n_seq),
        (size_v or size, n_kv, n_head_kv, n_seq),
    ]
    if "mask" in params:
        ne.append((n_kv, rows_mask or n_query, heads_mask, n_seq))
    layouts = ("permuted", "permuted", "permuted") if params.pop("cache", False) else ()
    return Case("flash_attn_ext", ne=ne, types=("f32", kv, kv, "f16"), layouts=layouts, **params)


def listed(
    size: int, n_query: int, heads: tuple[int, int], n_max: int, *, n_kv: int = 131,
    n_seq: int = 1, n_stream: int = 1, kv: str = "f16", heads_mask: int = 1,
    size_v: int | None = None, **params: Any,
) -> Case:  # fmt: skip
    """Queries that see lists of up to n_max cells; k and v as rows of a cache lie."""
    n_head, n_head_kv = heads
    cache = (size, n_kv, n_head_kv, n_stream)
    cache_v = (size_v or size, *cache[1:])
    ne = [(size, n_query, n_head, n_seq), cache, cache_v]
    if "mask" in params:
        ne.append((n_max, n_query, heads_mask, n_seq))
    layouts = ("permuted", "permuted", "permuted")
    types = ("f32", kv, kv, "f16")
    return Case("flash_attn_ext", ne=ne, types=types, layouts=layouts, lists=(n_max, 4), **params)


LISTED = [
    *(listed(64, n, (8, 2), 96, n_seq=s, n_stream=2, kv=kv) for kv in CACHE_TYPES
      for n, s in ((1, 5), (7, 1))),
    *(listed(64, n, h, 131, n_seq=s) for h in ((1, 1), (3, 3), (12, 3), (6, 2), (8, 1))
      for n, s in ((1, 1), (37, 1), (2, 3))),
    listed(65, 3, (2, 2), 67),  # odd head size
    *(listed(576, n, (16, 1), 70, size_v=512, kv=kv) for n in (1, 3) for kv in ("f16", "q8_0")),
    *(listed(192, n, (4, 4), 70, size_v=128, kv=kv) for n in (1, 3) for kv in ("f16", "q4_0")),
    *(listed(64, n, (6, 2), 70, n_seq=s, mask="random", max_bias=8.0, sinks=True)
      for n, s in ((1, 3), (5, 1))),
    *(listed(64, 5, (4, 2), 70, sinks=s, softcap=c) for s in (False, True) for c in (0.0, 10.0)
      if s or c),
    listed(64, 5, (6, 3), 113, n_seq=2, mask="holes", heads_mask=3),
    listed(64, 5, (4, 2), 113, mask="all", sinks=True),
    *(listed(64, n, (4, 2), 700, n_kv=300, n_seq=s, n_stream=3, kv=kv)
      for n, s in ((1, 1), (1, 4), (133, 1)) for kv in ("f16", "q8_0")),
    listed(64, 3, (4, 2), 700, n_kv=300, n_stream=3, mask="holes"),
    listed(64, 3, (4, 2), 300, n_kv=30),  # cells more than once
]  # fmt: skip

ATTENTION = [
    *(attention(d, n, (4, 2), 113, mask="random") for d in (40, 64, 80, 96, 128, 256)
      for n in (1, 3, 33)),
    *(attention(64, n, (8, 2), 96, n_seq=3, kv=kv, mask="random") for kv in CACHE_TYPES
      for n in (1, 19)),
    *(attention(65, 3, (2, 2), 67, kv=kv, mask="random") for kv in FLOATS),  # odd head size
    attention(64, 3, (4, 1), 113, size_v=32, mask="random"),
    attention(192, 5, (2, 1), 96, size_v=128, mask="random"),
    *(attention(64, n, h, 256, mask="causal") for h in ((1, 1), (4, 4), (8, 1), (12, 3), (6, 2))
      for n in (1, 37)),
    *(attention(64, n, (6, 2), 113, n_seq=2, mask="random", max_bias=8.0, sinks=s)
      for n in (1, 5) for s in (False, True)),
    *(attention(64, n, (4, 2), 113, mask="random", softcap=10.0) for n in (1, 5)),
    *(attention(64, n, (4, 2), 113, mask="random", sinks=True, softcap=10.0) for n in (1, 5)),
    *(attention(64, n, (6, 3), 113, n_seq=2, mask="random", heads_mask=3) for n in (1, 5)),
    attention(64, 5, (4, 2), 113, mask="random", rows_mask=64),  # a mask with rows to spare
    *(attention(64, n, (4, 2), 113, sinks=s) for n in (1, 5) for s in (False, True)),  # no mask
    *(attention(64, n, (4, 2), 1024, n_seq=s, mask="tails") for n in (1, 7) for s in (1, 4)),
    *(attention(64, n, (4, 2), 300, mask="holes") for n in (1, 7)),
    *(attention(64, n, (4, 2), 300, n_seq=2, mask=m, sinks=s)
      for n in (1, 7) for m in ("dead", "all") for s in (False, True)),
    *(attention(64, n, (4, 2), 300, n_seq=3, kv=kv, mask="tails", poison=True)
      for n in (1, 7) for kv in ("f32", "f16", "bf16", "q8_0", "q4_0")),
    *(attention(64, n, (4, 2), 64, kv=kv, mask="all", poison=True)
      for n in (1, 5) for kv in ("f16", "q8_0")),
    *(attention(64, n, (4, 2), 113, n_seq=2, kv=kv, cache=True, mask="random")
      for n in (1, 5) for kv in ("f16", "q8_0")),  # as rows of a cache lie: heads inside tokens
    attention(64, 1, (2, 1), 1, mask="random"),
    attention(64, 2, (2, 1), 4099, mask="causal"),
]  # fmt: skip

CASES: list[Case] = [*ATTENTION, *LISTED]

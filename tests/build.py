"""From a conformance case to a graph with its inputs. The same case gives the same bytes."""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.graph.quants import from_float
from ggmlpy.graph.spec import as_ne
from ggmlpy.graph.tensor import Flag, Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of
from tests.blocks import random_rows
from tests.case import Case


def build(case: Case) -> Tensor:
    """The output tensor, over fresh inputs."""
    maker = _BUILDERS.get(case.op, _generic)
    return maker(case, Inputs(case))


class Inputs:
    """Makes a case's sources, in the order asked for."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rng = np.random.default_rng(zlib.crc32(case.id.encode()))

    def __getitem__(self, i: int) -> Tensor:
        """Source i, laid out as the case says; dimensions as declared."""
        ne = as_ne(self.case.ne[i])
        layout = self.case.layouts[i]
        if layout == "permuted":
            return ops.permute(self._leaf(i, (ne[0], ne[2], ne[1], ne[3])), 0, 2, 1, 3)
        if layout == "transposed":
            return ops.transpose(self._leaf(i, (ne[1], ne[0], ne[2], ne[3])))
        if layout == "view":
            return self._window(i, ne)
        assert layout == "", layout
        return self._leaf(i, ne)

    def _window(self, i: int, ne: tuple[int, int, int, int]) -> Tensor:
        """Rows start three elements (or a block) into longer rows; the first row is left out."""
        type = type_of(self.case.types[i])
        margin = type.block_size if type.is_quantized else 3
        whole = self._leaf(i, (ne[0] + margin, ne[1] + 2, ne[2] + 1, ne[3]))
        offset = whole.nb[1] + margin // type.block_size * type.type_size
        return ops.view_4d(whole, *ne, *whole.nb[1:], offset)

    def _leaf(self, i: int, ne: tuple[int, int, int, int]) -> Tensor:
        type = type_of(self.case.types[i])
        if type.is_quantized:
            rows = random_rows(self.rng, type, ne[1] * ne[2] * ne[3], ne[0])
            return self._flagged(i, from_bytes(rows, type, ne))
        low, high = self.case.span
        values: NDArray[Any]
        if not type.is_float:
            values = self.rng.integers(math.floor(low), math.ceil(high) + 1, ne[::-1])
        else:
            values = self.rng.uniform(low, high, ne[::-1])
        if self.case.params.get("ties"):
            values = np.round(values * 4) / 4
        return self._flagged(i, _stored(values, type.name, ne))

    def _flagged(self, i: int, leaf: Tensor) -> Tensor:
        """Only what a model's file holds is a weight: a backend may keep it in its own form."""
        weight = i == 0 and self.case.op in ("mul_mat", "mul_mat_id", "get_rows")
        leaf.flags = Flag.WEIGHT if weight else Flag.NONE
        return leaf

    def ids(
        self, ne: tuple[int, ...], limit: int, type: str = "i32", unique: bool = False
    ) -> Tensor:
        """Indices from 0 to limit - 1; `unique` within each row of the tensor."""
        shape = ne[::-1]
        if not unique:
            values = self.rng.integers(0, limit, shape)
        else:
            lists = [self.rng.permutation(limit)[: ne[0]] for _ in range(math.prod(ne[1:]))]
            values = np.array(lists).reshape(shape)
        return from_numpy(values.astype(type.replace("i", "int")))


def _stored(values: NDArray[Any], type: str, ne: tuple[int, ...]) -> Tensor:
    raw = from_float(values.astype(np.float64), type_of(type))
    leaf = from_bytes(raw.reshape(-1), type, ne)
    leaf.flags = Flag.NONE
    return leaf


def _generic(case: Case, inputs: Inputs) -> Tensor:
    """`ops.<op>(source, source, ..., param=...)`."""
    function: Callable[..., Tensor] = getattr(ops, case.op)
    known = inspect.signature(function).parameters
    params = {k: v for k, v in case.params.items() if k in known}
    return function(*[inputs[i] for i in range(len(case.ne))], **params)


def _get_rows(case: Case, inputs: Inputs) -> Tensor:
    """ne: x, ids."""
    return ops.get_rows(inputs[0], inputs.ids(case.ne[1], case.ne[0][1]))


def _set_rows(case: Case, inputs: Inputs) -> Tensor:
    """ne: dst, x, ids; params: repeat=True for ids that come more than once."""
    unique = not case.params.get("repeat", False)
    ids = inputs.ids(case.ne[2], case.ne[0][1], case.types[2], unique=unique)
    return ops.set_rows(inputs[0], inputs[1], ids)


def _ssm_conv(case: Case, inputs: Inputs) -> Tensor:
    """ne: x, kernel; with taps: columns, kernel, taps."""
    if len(case.ne) == 2:
        return ops.ssm_conv(inputs[0], inputs[1])
    taps = inputs.ids(case.ne[2], case.ne[0][1])
    return ops.ssm_conv(inputs[0], inputs[1], taps=taps)


def _mul_mat_id(case: Case, inputs: Inputs) -> Tensor:
    """ne: weights, x, ids."""
    ids = inputs.ids(case.ne[2], case.ne[0][2], unique=True)
    return ops.mul_mat_id(inputs[0], inputs[1], ids)


def _add_id(case: Case, inputs: Inputs) -> Tensor:
    """ne: a, b, ids."""
    return ops.add_id(inputs[0], inputs[1], inputs.ids(case.ne[2], case.ne[1][1]))


_ROPE_DEFAULTS: dict[str, Any] = {
    "mode": 0,
    "n_ctx_orig": 512,
    "freq_base": 10000.0,
    "freq_scale": 1.0,
    "ext_factor": 0.0,
    "attn_factor": 1.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def _rope(case: Case, inputs: Inputs) -> Tensor:
    """ne: x; params: factors=True for frequency factors, max_pos, and those of rope_ext."""
    params = {k: case.params.get(k, default) for k, default in _ROPE_DEFAULTS.items()}
    n_tokens = as_ne(case.ne[0])[2]
    sections = case.params.get("sections")
    n_pos = n_tokens if sections is None else 4 * n_tokens
    pos = inputs.ids((n_pos,), case.params.get("max_pos", 512))
    n_dims = case.params.get("n_dims", case.ne[0][0])
    factors = None
    if case.params.get("factors"):
        factors = from_numpy(inputs.rng.uniform(0.9, 1.1, n_dims).astype(np.float32))
    if sections is None:
        return ops.rope_ext(inputs[0], pos, factors, n_dims, **params)
    return ops.rope_multi(inputs[0], pos, factors, n_dims, sections, **params)


def _mask(inputs: Inputs, kind: str, ne: tuple[int, int, int, int], type: str) -> Tensor:
    """Added to scores; ne [n_kv, n_q, heads, sequences].

    random   -1 to 1, a fifth -inf            causal  the last query sees every key
    holes    half -inf                        tails   sequence s sees its own number of first keys
    dead     random, every third query sees nothing          all     nothing is seen
    """
    n_kv, n_query, _, n_seq = ne
    shape = ne[::-1]
    values = inputs.rng.uniform(-1, 1, shape)
    key = np.arange(n_kv)
    query = np.arange(n_query)[:, None]
    chance = inputs.rng.uniform(0, 1, shape)
    if kind == "causal":
        values = np.broadcast_to(np.where(key > query + n_kv - n_query, -np.inf, 0.0), shape)
    elif kind == "tails":
        n_seen = 1 + (np.arange(n_seq) + 1) * (n_kv - 1) // (n_seq + 1)
        values = np.where(key >= n_seen[:, None, None, None], -np.inf, np.zeros(shape))
    elif kind == "all":
        values = np.full(shape, -np.inf)
    else:
        values = np.where(
            chance < {"random": 0.2, "holes": 0.5, "dead": 0.2}[kind], -np.inf, values
        )
        if kind == "dead":
            seq = np.arange(n_seq)[:, None, None, None]
            values[np.broadcast_to((query + seq) % 3 == 0, shape)] = -np.inf
    return _stored(values, type, ne)


def _soft_max_ext(case: Case, inputs: Inputs) -> Tensor:
    """ne: x, mask or nothing; params: scale, max_bias, mask (kind), sinks."""
    params = case.params
    mask = None
    if len(case.ne) > 1:
        mask = _mask(inputs, params.get("mask", "random"), as_ne(case.ne[1]), case.types[1])
    y = ops.soft_max_ext(inputs[0], mask, params.get("scale", 1.0), params.get("max_bias", 0.0))
    return ops.soft_max_add_sinks(y, _sinks(case, inputs, as_ne(case.ne[0])[2]))


def _sinks(case: Case, inputs: Inputs, n_head: int) -> Tensor | None:
    if not case.params.get("sinks"):
        return None
    return from_numpy(inputs.rng.uniform(-10, 10, n_head).astype(np.float32))


def _flash_attn_ext(case: Case, inputs: Inputs) -> Tensor:
    """ne: q, k, v, mask or nothing; params: max_bias, softcap, mask (kind), sinks, poison, lists.

    `poison` fills every key and value that no query of a sequence sees with NaN. `lists` is (n_max,
    n_list): queries see lists of cells.
    """
    params = case.params
    q, k, v = inputs[0], inputs[1], inputs[2]
    mask = None
    if len(case.ne) > 3:
        mask = _mask(inputs, params.get("mask", "random"), as_ne(case.ne[3]), "f16")
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
    return ops.flash_attn_ext_add_sinks(y, _sinks(case, inputs, as_ne(case.ne[0])[2]))


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


def _arange(case: Case, inputs: Inputs) -> Tensor:
    return ops.arange(**case.params)


def _pool_2d(case: Case, inputs: Inputs) -> Tensor:
    """params: pool, which is ggml's `op`, and the others of pool_2d."""
    params = {"op" if k == "pool" else k: v for k, v in case.params.items()}
    return ops.pool_2d(inputs[0], **params)


_BUILDERS: dict[str, Callable[[Case, Inputs], Tensor]] = {
    "ssm_conv": _ssm_conv,
    "arange": _arange,
    "pool_2d": _pool_2d,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "mul_mat_id": _mul_mat_id,
    "add_id": _add_id,
    "rope_ext": _rope,
    "soft_max_ext": _soft_max_ext,
    "flash_attn_ext": _flash_attn_ext,
}

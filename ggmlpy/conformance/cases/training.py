"""Gradients, losses and steps of optimisers; and functions of the caller."""

from __future__ import annotations

from typing import Any

import numpy as np

from ggmlpy import ops
from ggmlpy.conformance.case import Case
from ggmlpy.conformance.cases.sizes import PRIMES
from ggmlpy.conformance.inputs import Inputs, builds
from ggmlpy.graph.tensor import Tensor, from_numpy, zeros


@builds("get_rows_back")
def _get_rows_back(case: Case, inputs: Inputs) -> Tensor:
    """ne: grad, ids; params: n_rows."""
    n_rows = case.params["n_rows"]
    ids = inputs.ids(case.ne[1], n_rows)
    return ops.get_rows_back(inputs[0], ids, zeros("f32", (case.ne[0][0], n_rows)))


def _weights(like: Tensor, inputs: Inputs) -> Tensor:
    """Rows that sum to 1, f32: positive, or 0 where `like` is -inf."""
    values = inputs.rng.uniform(0.1, 1, like.ne[::-1])
    if inputs.case.params.get("hidden"):
        values[np.isneginf(like.array().reshape(values.shape))] = 0
    return from_numpy((values / values.sum(axis=-1, keepdims=True)).astype(np.float32))


@builds("soft_max_ext_back")
def _soft_max_back(case: Case, inputs: Inputs) -> Tensor:
    """ne: grad; params: scale."""
    grad = inputs[0]
    return ops.soft_max_ext_back(grad, _weights(grad, inputs), case.params["scale"], 0.0)


def _logits(inputs: Inputs, i: int) -> Tensor:
    """Source i; with `hidden` a half of each row, but for its first element, is -inf."""
    logits = inputs[i]
    if inputs.case.params.get("hidden"):
        values = logits.array().reshape(logits.ne[::-1])
        values[..., 1:][inputs.rng.random(values[..., 1:].shape) < 0.5] = -np.inf
    return logits


@builds("cross_entropy_loss")
def _loss(case: Case, inputs: Inputs) -> Tensor:
    """ne: logits; params: hidden=True for logits of -inf whose labels are 0."""
    logits = _logits(inputs, 0)
    return ops.cross_entropy_loss(logits, _weights(logits, inputs))


@builds("cross_entropy_loss_back")
def _loss_back(case: Case, inputs: Inputs) -> Tensor:
    """ne: grad, logits; params: hidden, as of the loss."""
    logits = _logits(inputs, 1)
    return ops.cross_entropy_loss_back(inputs[0], logits, _weights(logits, inputs))


@builds("opt_step_adamw")
def _adamw(case: Case, inputs: Inputs) -> Tensor:
    """ne: w, grad, m, v."""
    w, grad, m, v = (inputs[i] for i in range(4))
    v.array()[...] = np.abs(v.array())
    params = from_numpy(np.array([1e-2, 0.9, 0.99, 1e-4, 0.1, 2.0, 3.0], np.float32))
    return ops.opt_step_adamw(w, grad, m, v, params)


@builds("opt_step_sgd")
def _sgd(case: Case, inputs: Inputs) -> Tensor:
    """ne: w, grad."""
    params = from_numpy(np.array([0.1, 0.2], np.float32))
    return ops.opt_step_sgd(inputs[0], inputs[1], params)


def _weighted(dst: Any, *rest: Any) -> None:
    """The sum of the sources, the second one twice and so on; every task has its rows."""
    *sources, ith, n_tasks, factor = rest
    rows = dst.reshape(-1, dst.shape[-1])
    mine = slice(len(rows) * ith // n_tasks, len(rows) * (ith + 1) // n_tasks)
    for i, source in enumerate(sources, 1):
        weighted = i * factor * source.reshape(rows.shape)[mine]
        rows[mine] += weighted.astype(dst.dtype)


@builds("map_custom1")
@builds("map_custom2")
@builds("map_custom3")
def _map_custom(case: Case, inputs: Inputs) -> Tensor:
    """ne: sources of one shape; params: n_tasks."""
    sources = [inputs[i] for i in range(len(case.ne))]
    function = getattr(ops, case.op)
    made: Tensor = function(*sources, _weighted, case.params["n_tasks"], 0.5)
    return made


@builds("custom_4d")
def _custom(case: Case, inputs: Inputs) -> Tensor:
    """ne: sources; params: type, the result has the shape of source 0."""
    sources = [inputs[i] for i in range(len(case.ne))]
    n0, n1, n2, n3 = sources[0].ne
    return ops.custom_4d(case.params["type"], n0, n1, n2, n3, sources, _weighted, 3, 2.0)


_LAID_OUT = (("view", ""), ("", "permuted"))
_ROWS = (PRIMES, (64, 5), (1021, 3), (1, 7), (4099, 2), (3, 70_001))
_UPDATED = (PRIMES, (1021, 3), (1,), (3, 70_001))

CASES: list[Case] = [
    *(Case("silu_back", ne=[ne, ne], span=(-9, 9)) for ne in _ROWS),
    *(Case("rms_norm_back", ne=[ne, ne], span=(-3, 3), eps=e) for ne in _ROWS for e in (1e-6, 0.1)),
    *(Case("silu_back", ne=[PRIMES] * 2, layouts=v) for v in _LAID_OUT),
    *(Case("rms_norm_back", ne=[PRIMES] * 2, layouts=v, eps=1e-5) for v in _LAID_OUT),
    *(Case("get_rows_back", ne=[(n, i), (i,)], types=(t, "i32"), n_rows=r)
      for t in ("f32", "f16") for n, i, r in (
          (37, 11, 5), (256, 7, 13), (1, 1, 1), (3, 1000, 40), (1021, 5, 2), (2, 70_001, 3),
          (3, 5, 70_001))),
    *(Case("get_rows_back", ne=[(37, 11), (11,)], types=(t, "i32"), n_rows=5, layouts=("view",))
      for t in ("f32", "f16")),
    *(Case("soft_max_ext_back", ne=[ne], scale=s) for ne in _ROWS for s in (1.0, 0.125)),
    *(Case("soft_max_ext_back", ne=[PRIMES], scale=0.5, layouts=(v,))
      for v in ("view", "permuted")),
    *(Case("cross_entropy_loss", ne=[ne], span=(-10, 10)) for ne in _ROWS),
    *(Case("cross_entropy_loss_back", ne=[(1,), ne], span=(-10, 10)) for ne in _ROWS),
    *(Case("cross_entropy_loss", ne=[PRIMES], layouts=(v,)) for v in ("view", "permuted")),
    *(Case("cross_entropy_loss_back", ne=[(1,), PRIMES], layouts=("", v))
      for v in ("view", "permuted")),
    *(Case("cross_entropy_loss", ne=[ne], hidden=True) for ne in (PRIMES, (1021, 3))),
    *(Case("cross_entropy_loss_back", ne=[(1,), ne], hidden=True) for ne in (PRIMES, (1021, 3))),
    *(Case("opt_step_adamw", ne=[ne] * 4) for ne in _UPDATED),
    *(Case("opt_step_sgd", ne=[ne] * 2) for ne in _UPDATED),
    *(Case("flash_attn_back", ne=[(d, n, h, s), (d, m, k, s), (m, d, k, s), (d, n, h, s)], masked=x)
      for d, n, m, h, k, s in ((16, 5, 11, 4, 2, 2), (33, 7, 7, 3, 3, 1), (8, 1, 3, 1, 1, 1))
      for x in (False, True)),
    *(Case(f"map_custom{k}", ne=[PRIMES] * k, n_tasks=n) for k in (1, 2, 3) for n in (1, 4, -1)),
    Case("map_custom2", ne=[PRIMES] * 2, types=("f16", "f32"), layouts=("permuted", "view"),
         n_tasks=2),
    *(Case("custom_4d", ne=[PRIMES] * n, type=t) for n in (1, 4) for t in ("f32", "f16", "i32")),
]  # fmt: skip

"""Masks and sinks of attention, made from a case's random numbers."""

from __future__ import annotations

import numpy as np

from ggmlpy.conformance.case import Case
from ggmlpy.conformance.inputs import Inputs, stored
from ggmlpy.graph.tensor import Tensor, from_numpy


def mask_of(inputs: Inputs, kind: str, ne: tuple[int, int, int, int], type: str) -> Tensor:
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
    return stored(values, type, ne)


def sinks_of(case: Case, inputs: Inputs, n_head: int) -> Tensor | None:
    if not case.params.get("sinks"):
        return None
    return from_numpy(inputs.rng.uniform(-10, 10, n_head).astype(np.float32))

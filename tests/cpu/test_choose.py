"""Sampling in compiled code gives the same tokens on every instruction set."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cpu.choose import CHAIN, NONE, choose
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.graph.buffer import address_of
from ggmlpy.sampling import Sampler, SamplingParams
from tests.cpu.conftest import VECTOR_ISAS


def tokens(isa: str, logits: NDArray[np.float32], us: NDArray[np.float64], k: int) -> list[int]:
    """What each u draws, with the other options of `SamplingParams` as they are by default."""
    memory = np.zeros(2 * k, np.int64)
    heap = address_of(memory)
    record = np.array((heap, heap + 8 * k, k, 1, 0.95, np.log(0.05), 0.8), CHAIN)
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3, ctypes.c_double)
    function = signature(Jit(isa).address(choose))
    return [function(address_of(record), address_of(logits), len(logits), u) for u in us.tolist()]


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_the_same_tokens_on_every_instruction_set(isa: str) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 40, 57, 1003):
        logits = rng.normal(0, 2, n).astype(np.float32)
        logits[rng.integers(0, n, n // 10)] = -np.inf
        s = Sampler(SamplingParams(seed=1), n)
        us = np.random.Generator(np.random.PCG64(1)).random(50)
        s._compiled = None
        assert tokens(isa, logits, us, 40) == [s.sample(logits) for _ in us]


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_logits_without_a_token(isa: str) -> None:
    for bad in (np.nan, np.inf):
        for at in (0, 39, 45, 60):
            logits = np.zeros(61, np.float32)
            logits[at] = bad
            assert tokens(isa, logits, np.array([0.5]), 40) == [NONE]
    nothing = np.full(61, -np.inf, np.float32)
    assert tokens(isa, nothing, np.array([0.5]), 40) == [NONE]

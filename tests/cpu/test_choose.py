"""Sampling in compiled code gives the same tokens on every instruction set."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cpu.choose import CHAIN, NONE, choose, keep_allowed
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.graph.buffer import address_of
from ggmlpy.sampling import Sampler, SamplingParams
from tests.cpu.conftest import VECTOR_ISAS


def tokens(
    isa: str,
    logits: NDArray[np.float32],
    us: NDArray[np.float64],
    k: int,
    mask: NDArray[np.uint64] | None = None,
) -> list[int]:
    """What each u draws, with the other options of `SamplingParams` as they are by default."""
    memory = np.zeros(2 * k, np.int64)
    heap, at = address_of(memory), 0 if mask is None else address_of(mask)
    record = np.array((heap, heap + 8 * k, k, 1, 0.95, np.log(0.05), 0.8, at), CHAIN)
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


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_masks_on_every_instruction_set(isa: str) -> None:
    rng = np.random.default_rng(0)
    signature = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
    copy = signature(Jit(isa).address(keep_allowed))
    us = rng.random(50)
    for n in (1, 40, 57, 64, 1003):
        logits = rng.normal(0, 2, n).astype(np.float32)
        mask = rng.integers(0, 2**64, -(-n // 64), np.uint64)
        mask[0] |= np.uint64(1)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[:n] == 1
        expected = np.where(allowed, logits, np.float32(-np.inf))
        assert tokens(isa, logits, us, 40, mask) == tokens(isa, expected, us, 40)
        into = np.zeros(n + 1, np.float32)  # what follows is not written to
        copy(address_of(into), address_of(logits), n, address_of(mask))
        assert np.array_equal(into, [*expected, 0])
        logits[~allowed] = np.nan
        assert tokens(isa, logits, us, 40, mask) == tokens(isa, expected, us, 40)
        assert tokens(isa, logits, us[:1], 40, np.zeros_like(mask)) == [NONE]

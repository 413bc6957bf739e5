"""The usual sampler chain in compiled code, which saves some 30 calls of numpy per token."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.limits import importing
from ggmlpy.graph.buffer import address_of
from ggmlpy.sampling.candidates import DRAW_BLOCK
from ggmlpy.sampling.filters import MinP, Temperature, TopK, TopP
from ggmlpy.sampling.steps import Filter

_MAX_CANDIDATES = DRAW_BLOCK  # more are drawn by blocks, and sorted faster by numpy
_ORDER = (TopK, TopP, MinP, Temperature)
_WHOLE = ctypes.c_int64

Mask = NDArray[np.uint64]
"""A bit for each token, of those that can be drawn: token i is bit i % 64 of word i // 64."""


@cache
def _function() -> Callable[[int, int, int, float], int]:
    """`choose` in backends/cpu/choose.py, compiled for this CPU."""
    return _compiled("choose", _WHOLE, _WHOLE, _WHOLE, ctypes.c_double)


@cache
def _keep_allowed() -> Callable[[int, int, int, int], int]:
    """`keep_allowed` in backends/cpu/choose.py."""
    return _compiled("keep_allowed", _WHOLE, _WHOLE, _WHOLE, _WHOLE)


def _compiled(name: str, *params: Any) -> Callable[..., int]:
    """It holds the GIL: it takes microseconds, and to get a released GIL back may take
    milliseconds."""
    with importing("the compiled sampler"):  # imported late: greedy sampling does not need it
        from ggmlpy.backends.cpu import choose
        from ggmlpy.backends.cpu.isa import select
        from ggmlpy.backends.cpu.jit import shared_jit

    signature = ctypes.PYFUNCTYPE(_WHOLE, *params)
    return signature(shared_jit(select()).address(getattr(choose, name)))


def masked(logits: NDArray[np.float32], mask: Mask) -> NDArray[np.float32]:
    """A copy of `logits` [n] in which those of tokens outside the mask are -inf."""
    logits = np.ascontiguousarray(logits, np.float32)
    into = np.empty_like(logits)
    _keep_allowed()(address_of(into), address_of(logits), len(logits), address_of(mask))
    return into


class CompiledChain:
    """A sampler chain of top_k, then any of top_p, min_p and temperature, then a draw."""

    __slots__ = ("_address", "_filters", "_memory", "_record")

    def __init__(self, filters: Sequence[Filter]) -> None:
        """Use `of`, which checks that `filters` are such a chain."""
        from ggmlpy.backends.cpu.choose import CHAIN

        self._filters = tuple(filters)
        k, min_keep = 0, 1
        top_p, log_min_p, temperature = 1.0, -math.inf, 1.0
        for step in filters:
            match step:
                case TopK():
                    k = step.k
                case TopP():
                    top_p, min_keep = step.p, min(step.min_keep, k)  # min_keep may be any integer
                case MinP():
                    log_min_p, min_keep = math.log(step.p), min(step.min_keep, k)
                case Temperature():
                    temperature = step.t
        self._memory = np.zeros(2 * k, np.int64)
        heap = address_of(self._memory)
        values = (heap, heap + 8 * k, k, min_keep, top_p, log_min_p, temperature, 0)
        self._record = np.array(values, CHAIN)
        self._address = address_of(self._record)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledChain, (self._filters,)  # a copy gets its own memory

    @staticmethod
    def of(filters: Sequence[Filter]) -> CompiledChain | None:
        """The compiled chain of these filters; None for other filters or another order."""
        kinds = [type(step) for step in filters]
        if kinds != [kind for kind in _ORDER if kind in kinds]:
            return None
        first = filters[0] if filters else None
        if not isinstance(first, TopK) or first.k > _MAX_CANDIDATES:
            return None
        keeps = {step.min_keep for step in filters if isinstance(step, TopP | MinP)}
        return CompiledChain(filters) if len(keeps) <= 1 else None

    def is_of(self, filters: Sequence[Filter]) -> bool:
        """Whether these are the chain's filters, unchanged since it was made."""
        mine = self._filters
        return len(filters) == len(mine) and all(map(is_, filters, mine))

    def sample(self, logits: NDArray[np.float32], u: float, mask: Mask | None = None) -> int | None:
        """The token drawn by u in [0, 1), of those in the mask; None for logits that
        `Sampler.sample` rejects."""
        logits = np.ascontiguousarray(logits)
        self._record["mask"] = 0 if mask is None else address_of(mask)
        token = _function()(self._address, address_of(logits), len(logits), u)
        return token if token >= 0 else None

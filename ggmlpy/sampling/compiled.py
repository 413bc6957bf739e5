"""The usual chain of filters in compiled code: some 30 calls of numpy less for a token."""

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
from ggmlpy.sampling.filters import Filter, MinP, Temperature, TopK, TopP

_MOST = DRAW_BLOCK  # candidates; more are drawn by blocks, and sorted faster by numpy
_ORDER = (TopK, TopP, MinP, Temperature)


@cache
def _function() -> Callable[[int, int, int, float], int]:
    """backends/cpu/choose.py, compiled for this CPU. It keeps the GIL: it is over in microseconds,
    and who lets go of it may wait for as many milliseconds."""
    with importing("the compiled sampler"):  # not before: for greedy sampling it is not needed
        from ggmlpy.backends.cpu.choose import choose
        from ggmlpy.backends.cpu.isa import select
        from ggmlpy.backends.cpu.jit import shared_jit

    whole = ctypes.c_int64
    signature = ctypes.PYFUNCTYPE(whole, whole, whole, whole, ctypes.c_double)
    return signature(shared_jit(select()).address(choose))


class CompiledChain:
    """What a top_k, then some of top_p, min_p and temperature, and a draw choose."""

    __slots__ = ("_address", "_filters", "_memory", "_record")

    def __init__(self, filters: Sequence[Filter]) -> None:
        """`filters` are such a chain, see `of`."""
        from ggmlpy.backends.cpu.choose import CHAIN

        self._filters = tuple(filters)
        k, min_keep = 0, 1
        top_p, log_min_p, temperature = 1.0, -math.inf, 1.0
        for step in filters:
            match step:
                case TopK():
                    k = step.k
                case TopP():
                    top_p, min_keep = step.p, min(step.min_keep, k)  # which may be any integer
                case MinP():
                    log_min_p, min_keep = math.log(step.p), min(step.min_keep, k)
                case Temperature():
                    temperature = step.t
        self._memory = np.zeros(2 * k, np.int64)
        heap = address_of(self._memory)
        values = (heap, heap + 8 * k, k, min_keep, top_p, log_min_p, temperature)
        self._record = np.array(values, CHAIN)
        self._address = address_of(self._record)

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledChain, (self._filters,)  # a copy has memory of its own

    @staticmethod
    def of(filters: Sequence[Filter]) -> CompiledChain | None:
        """None if they are others, or in another order."""
        kinds = [type(step) for step in filters]
        if kinds != [kind for kind in _ORDER if kind in kinds]:
            return None
        first = filters[0] if filters else None
        if not isinstance(first, TopK) or first.k > _MOST:
            return None
        keeps = {step.min_keep for step in filters if isinstance(step, TopP | MinP)}
        return CompiledChain(filters) if len(keeps) <= 1 else None

    def is_of(self, filters: Sequence[Filter]) -> bool:
        """Whether these are the filters that it was made of: nobody has changed the list."""
        mine = self._filters
        return len(filters) == len(mine) and all(map(is_, filters, mine))

    def choose(self, logits: NDArray[np.float32], u: float) -> int | None:
        """The token drawn by u in [0, 1); None for logits that `Sampler.sample` refuses."""
        logits = np.ascontiguousarray(logits)
        token = _function()(self._address, address_of(logits), len(logits), u)
        return token if token >= 0 else None

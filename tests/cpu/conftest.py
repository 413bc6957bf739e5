"""One compiler per instruction set of this machine, shared by all tests of the CPU backend."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from ggmlpy.backends.cpu.isa import available
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernel import Entry
from tests.cpu import simd_kernels

ISAS = [isa.name for isa in available()]
# avxvnni and amx add only integer products to the level below: other code is the same. Those of
# avxvnni are test_avxvnni.py's.
PRODUCT_ISAS = [name for name in ISAS if name != "avxvnni"]
VECTOR_ISAS = [name for name in ISAS if name not in ("avxvnni", "amx")]
Call = Callable[..., None]


def shared_out(values: Iterable[str]) -> list[tuple[str, str]]:
    """(instruction set, value): every value on the best, and on one of the others, the same for a
    value everywhere.

    For kernels whose code differs between instruction sets by its vocabulary only, which
    test_simd_*.py test on each.
    """
    best, *others = VECTOR_ISAS
    return [
        (isa, value)
        for value in values
        for isa in (best, *(others and [others[crc32(value.encode()) % len(others)]]))
    ]


@cache
def jit_for(isa: str) -> Jit:
    return Jit(isa)


@cache
def _simd_addresses(isa: str) -> dict[Entry, int]:
    return jit_for(isa).load(simd_kernels.ENTRIES)


@pytest.fixture(params=VECTOR_ISAS)
def jit(request: pytest.FixtureRequest) -> Jit:
    """A compiler, for each instruction set in turn."""
    return jit_for(request.param)


@pytest.fixture
def call(jit: Jit) -> Call:
    """Calls an entry of `simd_kernels`, arrays passed by address."""
    all_of_them = jit.isa.name in VECTOR_ISAS

    def call_entry(entry: Entry, *args: Any) -> None:
        addresses = _simd_addresses(jit.isa.name) if all_of_them else jit.load([entry])
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(args))
        plain = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in args]
        signature(addresses[entry])(*plain)

    return call_entry

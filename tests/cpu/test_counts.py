"""Counts that a run sets, on each instruction set: the bits of graphs of the exact shape, and
nothing written past them; fields of records that are counts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.counts import CountField, CountWriter
from ggmlpy.backends.cpu.kernel import RECORD_BYTES
from ggmlpy.graph.count import Count, Symbol
from tests.counted import GRAPHS, check_bits
from tests.cpu.conftest import ISAS, PRODUCT_ISAS, VECTOR_ISAS, shared_out

WEIGHTS = ("f32", "bf16", "q8_0")
PRODUCTS = ("embedding", "feed forward", "experts")
SIZES = {1: [1], 5: [3, 5, 1], 33: [17, 8, 33], 70: [33, 5, 70, 16]}  # values by bound


@cache
def backend(isa: str, n_threads: int) -> CpuBackend:
    return CpuBackend(n_threads, isa)


@pytest.mark.parametrize("passes", ["all", "none"])
@pytest.mark.parametrize(("isa", "name"), shared_out(GRAPHS))
def test_bits_are_those_of_the_exact_shape(isa: str, name: str, passes: str) -> None:
    for bound in (5, 33) if passes == "none" else (1, 70):
        check_bits(name, backend(isa, 2), passes, "q4_0", bound, SIZES[bound])


@pytest.mark.parametrize("isa", PRODUCT_ISAS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_bits_of_products_with_weights_of_other_types(isa: str, name: str) -> None:
    for type in WEIGHTS:
        if isa == ISAS[0] or type != "f32":
            check_bits(name, backend(isa, 3), "all", type, 33, SIZES[33])


@pytest.mark.parametrize("n_threads", [1, 5])
@pytest.mark.parametrize("name", ["attention q8_0", "attention over lists"])
def test_bits_of_attention_whose_bound_is_many_queries(name: str, n_threads: int) -> None:
    """Its work is cut otherwise from 128 queries on, and fewer leave threads to share chunks."""
    check_bits(name, backend(VECTOR_ISAS[0], n_threads), "all", "q4_0", 140, [3, 130, 1, 140])


def test_fields_of_all_widths_are_written() -> None:
    T, S = Symbol("T", 9), Symbol("S", 4)
    forms = [T.count, 3 * S.count + T.count - 1, 2 * S.count]
    dtypes = [np.dtype(name) for name in ("i8", "i4", "f4")]
    fields = [
        CountField(record, 24 + 8 * i, dtypes[(i + record) % 3], form)
        for record in (0, 2)
        for i, form in enumerate(forms)
        if isinstance(form, Count)
    ]
    memory = np.full(3 * RECORD_BYTES, 0x55, np.uint8)
    CountWriter(fields, memory).write({T: 5, S: 2})
    expected = np.full(3 * RECORD_BYTES, 0x55, np.uint8)
    for field in fields:
        at = RECORD_BYTES * field.record + field.offset
        value = {"T": 5, "T + 3*S - 1": 10, "3*S + T - 1": 10, "2*S": 4}[str(field.count)]
        raw = np.array([value], field.dtype).view(np.uint8)
        expected[at : at + raw.nbytes] = raw
    assert np.array_equal(memory, expected)

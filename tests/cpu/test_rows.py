"""get_rows and set_rows on the CPU: bytes, order of writes, and indices that point nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy import ops
from ggmlpy.backends.cpu.kernels.dequantize_k import READERS
from ggmlpy.conformance.blocks import random_rows
from ggmlpy.errors import IndexOutOfRange
from ggmlpy.graph.quants import from_float, to_float
from ggmlpy.graph.tensor import Tensor, from_bytes, from_numpy
from ggmlpy.graph.types import type_of
from tests.cpu.conftest import ISAS, VECTOR_ISAS, shared_out
from tests.cpu.running import compile_together, run

WRITABLE = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
READABLE = tuple(READERS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    rows = {type: np.zeros(type_of(type).row_bytes(256), np.uint8) for type in READABLE}
    leaves = {type: leaf(raw, type, (256, 1)) for type, raw in rows.items()}
    ids = from_numpy(np.zeros(1, np.int32))
    writes = [ops.set_rows(leaves[type], leaves["f32"], ids) for type in WRITABLE]
    for isa in VECTOR_ISAS:
        types = {type for at, type in shared_out(READABLE) if at == isa}
        reads = [ops.get_rows(leaves[type], ids) for type in types | {"f32"}]
        compile_together(isa, [*reads, *writes])


def leaf(raw: NDArray[Any], type: str, ne: tuple[int, ...]) -> Tensor:
    return from_bytes(np.ascontiguousarray(raw).view(np.uint8).reshape(-1), type, ne)


def hard_rows() -> NDArray[np.float32]:
    """Blocks of 32 that quantisers may stumble over."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((12, 64)).astype(np.float32)
    rows[0] = 0
    rows[1] = -1.0
    rows[2, ::2], rows[2, 1::2] = 3.0, -3.0  # the first of two with the same magnitude decides
    rows[3] = np.arange(64) / 2 - 16  # ties
    rows[4] *= 1e-30
    rows[5] *= 3e4
    rows[6, 1:] = 0
    rows[7] = np.round(rows[7] * 4) / 4
    rows[8] = np.linspace(-127, 127, 64) / 254
    rows[9, 5] = 60_000
    rows[10] = np.abs(rows[10])
    rows[11] = -np.abs(rows[11])
    return rows


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("type", WRITABLE)
@pytest.mark.parametrize("x_type", ["f32", "f16"])
def test_written_bytes_are_the_quantisers(isa: str, type: str, x_type: str) -> None:
    rows = hard_rows()
    x = leaf(from_float(rows, type_of(x_type)), x_type, (64, 12))
    dst = leaf(np.zeros((12, type_of(type).row_bytes(64)), np.uint8), type, (64, 12))
    ids = np.random.default_rng(1).permutation(12)
    y = ops.set_rows(dst, x, from_numpy(ids))
    got = _bytes_of(y, isa)
    stored = to_float(from_float(rows, type_of(x_type)), type_of(x_type))
    want = from_float(stored, type_of(type))
    np.testing.assert_array_equal(got[ids], want)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_sums_of_iq4_nl_are_rounded_at_every_step(isa: str) -> None:
    """So many blocks that a sum in another order, or with fused products, shows in some scale."""
    x = np.random.default_rng(5).standard_normal((500, 2048)).astype(np.float32)
    dst = leaf(np.zeros((500, type_of("iq4_nl").row_bytes(2048)), np.uint8), "iq4_nl", (2048, 500))
    y = ops.set_rows(dst, from_numpy(x), from_numpy(np.arange(500)))
    np.testing.assert_array_equal(_bytes_of(y, isa), from_float(x, type_of("iq4_nl")))


def _bytes_of(y: Tensor, isa: str) -> NDArray[np.uint8]:
    """What set_rows leaves in its dst, by rows."""
    return run(y, isa, 2, raw=True).reshape(y.ne[1], -1)


@pytest.mark.parametrize(("isa", "type"), shared_out(READABLE))
def test_read_values_are_the_formats(isa: str, type: str) -> None:
    """Bit by bit; random bytes for blocks, so that every code and scale occurs."""
    rng = np.random.default_rng(2)
    if type_of(type).is_quantized:
        raw = random_rows(rng, type_of(type), 9, 512)
    else:
        raw = from_float(rng.standard_normal((9, 512)).astype(np.float32), type_of(type))
    ids = rng.integers(0, 9, 20).astype(np.int32)
    got = run(ops.get_rows(leaf(raw, type, (512, 9)), from_numpy(ids)), isa, 2)
    want = to_float(np.asarray(raw).reshape(9, -1), type_of(type))[ids]
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
@pytest.mark.parametrize("type", ["f32", "q8_0"])
def test_the_last_of_two_writers_wins(type: str, n_threads: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((50, 32)).astype(np.float32)
    ids = rng.integers(0, 7, 50)
    dst = leaf(np.zeros((7, type_of(type).row_bytes(32)), np.uint8), type, (32, 7))
    got = run(ops.set_rows(dst, from_numpy(x), from_numpy(ids)), ISAS[0], n_threads)
    for row in range(7):
        last = np.nonzero(ids == row)[0][-1]
        stored = to_float(from_float(x[last : last + 1], type_of(type)), type_of(type))
        assert got[row].tobytes() == stored[0].tobytes()


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("bad", [-1, 9, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_get_rows_refuses_what_is_no_row(isa: str, bad: int, n_threads: int) -> None:
    x = from_numpy(np.ones((9, 40), np.float32))
    ids = np.array([3, 0, bad, 8], np.int32)
    with pytest.raises(IndexOutOfRange, match=str(bad)):
        run(ops.get_rows(x, from_numpy(ids)), isa, n_threads)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_set_rows_with_a_bad_index_writes_nothing(isa: str, dtype: Any, n_threads: int) -> None:
    x = from_numpy(np.ones((4, 40), np.float32))
    bad = -(2**31) if dtype is np.int32 else 2**40
    for at in range(4):
        ids = np.array([3, 0, 5, 8], dtype)
        ids[at] = bad
        y = ops.set_rows(from_numpy(np.zeros((9, 40), np.float16)), x, from_numpy(ids))
        with pytest.raises(IndexOutOfRange, match=str(bad)):
            run(y, isa, n_threads, after_error=lambda dst: np.testing.assert_array_equal(dst, 0))


def test_add_id_refuses_what_is_no_row() -> None:
    a = from_numpy(np.ones((2, 3, 40), np.float32))
    ids = from_numpy(np.array([[0, 1, 2], [0, 5, 1]], np.int32))
    with pytest.raises(IndexOutOfRange, match="5"):
        run(ops.add_id(a, from_numpy(np.ones((5, 40), np.float32)), ids), ISAS[0], 2)

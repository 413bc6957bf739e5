"""Products by AMX tiles, emulated on the instruction sets of this machine: the same kernels with
vector code in place of the tile instructions. Where the machine has AMX, "amx" is one of the levels
that all tests of products run on, and it is emulated here as well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.formats import tile_loop
from ggmlpy.backends.cpu.formats.block_tiles import GROUPS, LEAST_ROWS, PANELS, STRETCH
from ggmlpy.backends.cpu.isa import ISA, select
from ggmlpy.backends.cpu.jit import Jit
from ggmlpy.backends.cpu.kernels.fused_glu import MATMUL_GLU
from ggmlpy.backends.cpu.kernels.matmul import KERNELS, lists_stride
from ggmlpy.backends.cpu.simd.amx import FILE_BYTES, ROWS
from ggmlpy.graph.tensor import Tensor
from tests.cpu.conftest import ISAS
from tests.cpu.products import TILE_KINDS, block_size, random_x, run, weight_bytes

SOME = ("q4_0", "q4_K", "q2_K")  # one scale and none, one and two minima
WITH_FMA = [isa for isa in ISAS if "fma" in select(isa).has]  # AMX has it, and tiles need it
BEST, LAST, LAST_TYPES = WITH_FMA[0], WITH_FMA[-1], ("q4_0", "q2_K")


def emulated(isa: str) -> ISA:
    level = select(isa)
    return replace(level, has=level.has | {"amx-emulated"})


@cache
def backend(isa: str, n_threads: int = 2) -> CpuBackend:
    return CpuBackend(n_threads, emulated(isa))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """All kernels together: one at a time takes several times as long."""
    plain = [KERNELS[type] for type in (*TILE_KINDS, "q4_1", "mxfp4")]
    Jit(emulated(BEST)).load([*plain, MATMUL_GLU["q4_K"]])
    Jit(emulated(LAST)).load([KERNELS[type] for type in LAST_TYPES])


def weight(type: str, k: int, m: int, n_matrices: int = 1, seed: int = 0) -> Tensor:
    raw = weight_bytes(type, m * n_matrices, k, seed)
    return ggmlpy.from_bytes(raw.reshape(-1), type, (k, m, n_matrices))


def by_tiles(node: Tensor, isa: str = BEST, n_threads: int = 2) -> NDArray[np.float32]:
    got: NDArray[np.float32] = ggmlpy.compute(node, backend=backend(isa, n_threads))
    return got


def check(node: Tensor, isa: str = BEST) -> NDArray[np.float32]:
    """The bits of the same instruction set without tiles."""
    got = by_tiles(node, isa)
    assert got.tobytes() == run(node, isa).tobytes()
    return got


@pytest.mark.parametrize(
    ("isa", "type"),
    [*((BEST, type) for type in TILE_KINDS), *((LAST, type) for type in LAST_TYPES)],
)
def test_products_have_the_bits_of_those_without_tiles(isa: str, type: str) -> None:
    """Blocks for a part of a stretch, a whole one and more; rows for a panel, for one that is not
    full, and for panels and a rest; groups for one, for some and for more than are taken at once.
    """
    block = block_size(type)
    for k in (block, 3 * block, 32 * STRETCH + 256):
        for m, n in ((1, ROWS), (37, LEAST_ROWS), (16 * GROUPS + 21, 2 * ROWS + 4)):
            check(ops.mul_mat(weight(type, k, m), ggmlpy.from_numpy(random_x(n, k))), isa)


@pytest.mark.parametrize("type", TILE_KINDS)
def test_a_row_alone_has_the_bits_it_has_among_many(type: str) -> None:
    k, n = 256, PANELS * ROWS + ROWS + 13
    w, x = weight(type, k, 16 * GROUPS + 4), random_x(n, k)
    many = by_tiles(ops.mul_mat(w, ggmlpy.from_numpy(x)), n_threads=1)
    for i in (0, 15, 16, PANELS * ROWS - 1, PANELS * ROWS, n - 1):
        alone = by_tiles(ops.mul_mat(w, ggmlpy.from_numpy(x[i : i + 1])), n_threads=1)
        assert alone.tobytes() == many[i].tobytes()


def test_rows_went_through_tiles() -> None:
    """The memory that stands for tiles is in the scratch memory of a thread."""
    w = weight("q4_0", 64, 16)
    for n, used in ((LEAST_ROWS - 1, False), (LEAST_ROWS, True)):
        chosen = CpuBackend(1, emulated(BEST))
        node = ops.mul_mat(w, ggmlpy.from_numpy(random_x(n, 64)))
        ggmlpy.compute(node, backend=chosen)
        scratch = chosen._pool.take("scratch", 0)
        start = lists_stride(node) + tile_loop.FILE
        assert (scratch.n_bytes > start) == used
        assert not used or scratch.data[start : start + FILE_BYTES].any()


@pytest.mark.parametrize(
    ("type", "n_bad"), [("q4_0", 3), ("q4_K", 3), ("q2_K", 3), ("q6_K", 3), ("mxfp4", 1)]
)
def test_scales_that_are_not_finite_or_too_large(type: str, n_bad: int) -> None:
    """Inf, -inf and NaN of f16, and 2^127 of mxfp4: where results are not finite, signs and all."""
    k, m, n = 512, 16 * GROUPS + 5, 2 * ROWS + 3
    raw = weight_bytes(type, m, k)
    blocks = raw.reshape(m, k // block_size(type), -1)
    at = {"q6_K": 208, "q2_K": 80}.get(type, 0)
    for row, bits in enumerate([0xFF] if type == "mxfp4" else [0x7C00, 0xFC00, 0x7E00]):
        stored = np.frombuffer(bits.to_bytes(1 if type == "mxfp4" else 2, "little"), np.uint8)
        blocks[7 * row, -1, at : at + len(stored)] = stored
    w = ggmlpy.from_bytes(raw.reshape(-1), type, (k, m))
    got = check(ops.mul_mat(w, ggmlpy.from_numpy(random_x(n, k))))
    assert type == "mxfp4" or (~np.isfinite(got)).any(0).sum() == n_bad


@pytest.mark.parametrize("type", ["q4_0", "q4_1"])
def test_memory_may_hold_anything(type: str) -> None:
    """Blocks that a stretch lacks, and rows that a panel lacks, are made up of it."""
    chosen = CpuBackend(1, emulated(BEST))
    node = ops.mul_mat(weight(type, 96, 20), ggmlpy.from_numpy(random_x(LEAST_ROWS, 96)))
    want = ggmlpy.compute(node, backend=chosen)
    chosen._pool.take("scratch", 0).data[:] = 0xFF  # NaN
    assert ggmlpy.compute(node, backend=chosen).tobytes() == want.tobytes()


@pytest.mark.parametrize("type", SOME)
def test_threads_do_not_matter(type: str) -> None:
    node = ops.mul_mat(weight(type, 512, 100), ggmlpy.from_numpy(random_x(70, 512)))
    alone = by_tiles(node, n_threads=1)
    for n_threads in (2, 3):
        assert by_tiles(node, n_threads=n_threads).tobytes() == alone.tobytes()


@pytest.mark.parametrize("type", SOME)
def test_rows_that_do_not_lie_evenly(type: str) -> None:
    """Experts whose tokens have gaps, repeats, and come in threes from one row of x."""
    n_tokens, n_used, n_experts, k = 60, 3, 4, 512
    rng = np.random.default_rng(5)
    w = weight(type, k, 21, n_experts)
    for n_rows in (1, n_used):
        ids = rng.integers(0, n_experts, (n_tokens, n_used)).astype(np.int32)
        ids[:40:2] = 1
        x = ggmlpy.from_numpy(random_x(n_tokens, n_rows, k))
        check(ops.mul_mat_id(w, x, ggmlpy.from_numpy(ids)))


def test_a_gated_unit_of_experts() -> None:
    """Each expert's rows are packed anew, for its gate and its up."""
    rng = np.random.default_rng(6)
    ids = ggmlpy.from_numpy(rng.integers(0, 3, (90, 2)).astype(np.int32))
    x = ggmlpy.from_numpy(random_x(90, 1, 512))
    gate, up = (ops.mul_mat_id(weight("q4_K", 512, 90, 3, seed=i), x, ids) for i in range(2))
    check(ops.swiglu_split(gate, up))


def test_matrices_that_share_rows_of_x_by_position() -> None:
    """Rows of the second group of a dimension follow the first one's at another distance."""
    x = random_x(6, 4, 9, 256)  # r2 = 2, r3 = 3
    raw = weight_bytes("q4_K", 2 * 2 * 21, 256)
    w = ggmlpy.from_bytes(raw.reshape(-1), "q4_K", (256, 21, 2, 2))
    check(ops.mul_mat(w, ggmlpy.from_numpy(x)))


@pytest.mark.parametrize("type", TILE_KINDS)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_row_of_x_with_inf_or_nan_is_nan_and_no_other(bad: float, type: str) -> None:
    x = random_x(20, 256)
    w = weight(type, 256, 20)
    clean = by_tiles(ops.mul_mat(w, ggmlpy.from_numpy(x)))
    x[5, 77] = bad
    got = by_tiles(ops.mul_mat(w, ggmlpy.from_numpy(x)))
    assert np.isnan(got[5]).all()
    others = np.arange(20) != 5
    assert got[others].tobytes() == clean[others].tobytes()


@pytest.mark.parametrize("n", [16, 33, 150])
def test_a_bias_and_a_gated_unit(n: int) -> None:
    x = ggmlpy.from_numpy(random_x(n, 256))
    gate, up, down = (weight("q4_K", 256, m, seed=i) for i, m in enumerate((256, 256, 37)))
    hidden = ops.swiglu_split(ops.mul_mat(gate, x), ops.mul_mat(up, x))
    check(ops.add(ops.mul_mat(down, hidden), ggmlpy.from_numpy(random_x(37))))

"""mul_mat with weights: values, and the promise that only type and k decide the order of a sum."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.typing import NDArray

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu import packing
from ggmlpy.backends.cpu.kernels.matmul import KERNELS
from ggmlpy.backends.cpu.simd.amx import TILES_BY
from ggmlpy.graph.buffer import HostBuffer
from ggmlpy.graph.quants import Bytes, from_float
from ggmlpy.graph.tensor import Tensor
from ggmlpy.graph.types import TYPES
from tests.cpu.conftest import ISAS, PRODUCT_ISAS, jit_for
from tests.cpu.products import (
    FLOATS,
    QUANTIZED,
    WEIGHTS,
    as_multiplied,
    at_the_end_of_a_page,
    block_size,
    check_product,
    dequantized,
    each_product,
    random_x,
    run,
    same_bits,
    weight_bytes,
)

ROWS = (1, 5, 16, 17, 48, 100)
COLUMNS = (1, 2, 7, 33)
linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as on Linux")


@pytest.fixture(scope="module", autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    """All kernels that the chosen tests need: one at a time takes several times as long."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [item for item in items if item.module is request.module]
    params = [item.callspec.params for item in mine if hasattr(item, "callspec")]
    for isa in PRODUCT_ISAS:
        types = {p.get("type") for p in params if p.get("isa", ISAS[0]) == isa}
        jit_for(isa).load([kernel for type, kernel in KERNELS.items() if type in types])


def product(raw: Bytes, type: str, x: NDArray[np.float32]) -> Tensor:
    """[n, m] from weight rows [m, row_bytes] and x [n, k]."""
    weight = ggmlpy.from_bytes(raw, type, (x.shape[-1], len(raw)))
    return ops.mul_mat(weight, ggmlpy.from_numpy(x))


def sizes(type: str) -> list[int]:
    return [1, 37, 48, 187] if type in FLOATS else [block_size(type), 3 * block_size(type)]


@each_product(WEIGHTS)
def test_values(isa: str, type: str) -> None:
    for k in sizes(type):
        x = random_x(max(COLUMNS), k)
        for m in ROWS:
            raw = weight_bytes(type, m, k, seed=m)
            w = dequantized(raw, type)
            for n in COLUMNS:
                got = run(product(raw, type, x[:n]), isa)
                assert got.dtype == np.float32
                check_product(got, w, x[:n], type)


@pytest.mark.parametrize("type", WEIGHTS)
def test_long_rows(type: str) -> None:
    k = 4096
    raw, x = weight_bytes(type, 20, k), random_x(9, k)
    check_product(run(product(raw, type, x)), dequantized(raw, type), x, type)


@each_product(WEIGHTS)
def test_columns_do_not_depend_on_each_other(isa: str, type: str) -> None:
    """Alone, in tiles of any width, and in several chunks: the same bits."""
    k = 187 if type in FLOATS else 512
    raw, x = weight_bytes(type, 40, k), random_x(300, k)
    many = run(product(raw, type, x), isa)
    for n in (*range(1, 10), 15, 33):
        same_bits(run(product(raw, type, x[100 : 100 + n]), isa), many[100 : 100 + n])


@pytest.mark.parametrize("type", WEIGHTS)
def test_threads_do_not_matter(type: str) -> None:
    k = 172 if type in FLOATS else 512
    for m, n in ((1, 1), (100, 1), (16, 70), (100, 33)):
        node = product(weight_bytes(type, m, k), type, random_x(n, k))
        alone = run(node, n_threads=1)
        same_bits(run(node, n_threads=2), alone)
        same_bits(run(node, n_threads=3), alone)


@each_product(QUANTIZED, PRODUCT_ISAS[1:])
def test_integer_sums_are_the_same_on_every_instruction_set(isa: str, type: str) -> None:
    """They differ in the rounding of fma at most: not at all where both have it."""
    raw, x = weight_bytes(type, 33, 512), random_x(5, 512)
    got, best = run(product(raw, type, x), isa), run(product(raw, type, x), ISAS[0])
    if isa == "avx2":
        same_bits(got, best)
    np.testing.assert_allclose(got, best, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("type", WEIGHTS)
@pytest.mark.parametrize(
    ("a2", "a3", "r2", "r3"), [(1, 1, 4, 1), (2, 1, 3, 2), (2, 3, 1, 1), (3, 2, 5, 1)]
)
def test_broadcast_by_division(type: str, a2: int, a3: int, r2: int, r3: int) -> None:
    k, m, n = block_size(type) * 2, 21, 3
    raw = weight_bytes(type, a3 * a2 * m, k)
    weight = ggmlpy.from_bytes(raw, type, (k, m, a2, a3))
    x = random_x(a3 * r3, a2 * r2, n, k)
    got = run(ops.mul_mat(weight, ggmlpy.from_numpy(x))).reshape(a3 * r3, a2 * r2, n, m)
    w = dequantized(raw, type).reshape(a3, a2, m, k)
    for i3 in range(a3 * r3):
        for i2 in range(a2 * r2):
            alone = product(raw.reshape(a3, a2, m, -1)[i3 // r3, i2 // r2], type, x[i3, i2])
            same_bits(got[i3, i2], run(alone))
            check_product(got[i3, i2], w[i3 // r3, i2 // r2], x[i3, i2], type)


@each_product(WEIGHTS)
def test_any_strides_of_x(isa: str, type: str) -> None:
    """A window, permuted, and transposed: the bits of a contiguous copy."""
    k, m = 256, 20
    raw = weight_bytes(type, m, k)
    weight = ggmlpy.from_bytes(raw, type, (k, m))
    wide = ggmlpy.from_numpy(random_x(2, 6, 5, k + 7))
    window = ops.view_4d(wide, k, 3, 4, 2, *wide.nb[1:], wide.nb[1] + 12)
    square = ggmlpy.from_numpy(random_x(2, k, 9))
    for x in (window, ops.permute(window, 0, 2, 1, 3), ops.transpose(square)):
        plain = ggmlpy.from_numpy(np.ascontiguousarray(x.numpy()))
        same_bits(run(ops.mul_mat(weight, x), isa), run(ops.mul_mat(weight, plain), isa))


@pytest.mark.parametrize("x_type", ["f16", "bf16"])
@pytest.mark.parametrize("type", ["f32", "f16", "q8_0"])
def test_x_of_other_types(type: str, x_type: str) -> None:
    """Exact as f32, so the bits are those of the product with it; transposed ones too."""
    k, m, n = 64, 20, 6
    weight = ggmlpy.from_bytes(weight_bytes(type, m, k), type, (k, m))
    x = ggmlpy.from_bytes(from_float(random_x(n, k), TYPES[x_type]).reshape(-1), x_type, (k, n))
    plain = ggmlpy.from_numpy(x.numpy().astype(np.float32))
    same_bits(run(ops.mul_mat(weight, x)), run(ops.mul_mat(weight, plain)))
    turned = ggmlpy.from_bytes(
        from_float(random_x(k, n), TYPES[x_type]).reshape(-1), x_type, (n, k)
    )
    plain = ggmlpy.from_numpy(np.ascontiguousarray(turned.numpy().astype(np.float32).T))
    same_bits(run(ops.mul_mat(weight, ops.transpose(turned))), run(ops.mul_mat(weight, plain)))


@pytest.mark.parametrize("type", WEIGHTS)
def test_weights_at_odd_addresses(type: str) -> None:
    """As in a mapped file whose alignment is 1."""
    k, m = 256, 20
    raw = weight_bytes(type, m, k)
    file = np.zeros(raw.nbytes + 8, np.uint8)
    start = 3 - file.ctypes.data % 2
    file[start : start + raw.nbytes] = raw.reshape(-1)
    shifted = file[start : start + raw.nbytes].reshape(raw.shape)
    assert shifted.ctypes.data % 2 == 1
    x = random_x(3, k)
    same_bits(run(product(shifted, type, x)), run(product(raw, type, x)))


@each_product(FLOATS)
def test_floats_are_summed_in_16_lanes_and_a_tree(isa: str, type: str) -> None:
    """The bits of the order that formats/floats.py promises; a product is rounded with its sum
    where there is fma."""
    if type == "bf16" and jit_for(isa).isa.has & TILES_BY:
        pytest.skip("tiles have an order of their own, see test_amx_bf16.py")
    for n, m, k in ((3, 5, 187), (9, 18, 187)):
        raw, x = weight_bytes(type, m, k), random_x(n, k)
        w = dequantized(raw, type)
        sums = np.zeros((n, m, 16), np.float32)
        for i in range(k):
            products = x[:, None, i].astype(np.float64) * w[:, i]  # exact
            if "fma" not in jit_for(isa).isa.has:
                products = products.astype(np.float32).astype(np.float64)
            lane = sums[..., i % 16]
            lane[...] = products + lane
        while sums.shape[-1] > 1:
            sums = sums[..., : sums.shape[-1] // 2] + sums[..., sums.shape[-1] // 2 :]
        same_bits(run(product(raw, type, x), isa), sums[..., 0])


@linux
@each_product(FLOATS)
def test_stored_rows_are_read_to_their_end_and_not_beyond(isa: str, type: str) -> None:
    """Weights end where a page ends that may not be touched, as a mapped file may."""
    for k, m in ((64, 20), (37, 17), (187, 3), (16, 16), (1, 1)):
        raw, x = weight_bytes(type, m, k), random_x(7, k)
        want = run(product(raw, type, x), isa)
        with at_the_end_of_a_page(raw) as stored:
            got = [run(product(stored, type, x[:n]), isa) for n in (1, 2, 7)]
        for rows in got:
            same_bits(rows, want[: len(np.atleast_2d(rows))])


@linux
@each_product(FLOATS)
def test_the_last_expert_and_gated_products_read_no_further(isa: str, type: str) -> None:
    n, m, k = 5, 17, 37
    raw, x = weight_bytes(type, 3 * m, k), random_x(n, 1, k)
    ids = ggmlpy.from_numpy(np.array([[2, 0], [1, 2], [2, 1], [0, 2], [1, 0]], np.int32))

    def both(raw: Bytes) -> list[NDArray[np.float32]]:
        experts = ggmlpy.from_bytes(raw, type, (k, m, 3))
        one, other = (product(raw[rows], type, x[:, 0]) for rows in (slice(m), slice(-m, None)))
        nodes = [ops.mul_mat_id(experts, ggmlpy.from_numpy(x), ids)]
        nodes += [ops.swiglu_split(one, other), ops.swiglu_split(other, one)]
        return [run(node, isa) for node in nodes]

    want = both(raw)
    with at_the_end_of_a_page(raw) as stored:
        got = both(stored)
    for rows, wanted in zip(got, want, strict=True):
        same_bits(rows, wanted)


SCALES_AT = {  # where the f16 scales lie in a block
    "q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "iq4_nl": (0,),
    "q2_K": (80, 82), "q3_K": (108,), "q4_K": (0, 2), "q5_K": (0, 2), "q6_K": (208,),
    "iq4_xs": (0,), "tq1_0": (52,), "tq2_0": (64,), "mxfp4": (), "nvfp4": (),
    "q1_0": (0,), "q2_0": (0,),
}  # fmt: skip


def extreme_rows(type: str, k: int) -> Bytes:
    """Blocks whose codes are all the smallest, all the largest, and everything in between."""
    size, one = TYPES[type].type_size, np.array([1], np.float16).view(np.uint8)
    fills = (0x00, 0xFF, 0x80, 0x7F)
    rows = np.repeat(np.array(fills, np.uint8), size * (k // block_size(type)))
    blocks = rows.reshape(len(fills), -1, size)
    for at in SCALES_AT[type]:
        blocks[:, :, at : at + 2] = one
    if type == "mxfp4":
        blocks[:, :, 0] = 128  # 1
    if type == "nvfp4":
        blocks[:, :, :4] = 0x38, 0x7F, 0x01, 0x7E  # 1, 0, the smallest and the largest
    return blocks.reshape(len(fills), -1)


@each_product(QUANTIZED)
def test_extreme_codes_do_not_overflow(isa: str, type: str) -> None:
    k = 512
    raw = extreme_rows(type, k)
    x = np.stack([np.full(k, 1.5), np.full(k, -1.5), np.tile([1.5, -1.5], k // 2)])
    check_product(
        run(product(raw, type, x.astype(np.float32)), isa),
        dequantized(raw, type),
        x.astype(np.float32),
        type,
    )


@each_product(QUANTIZED)
def test_blocks_of_x_without_a_scale(isa: str, type: str) -> None:
    """Zeros, numbers too small to be scaled, and the largest and smallest that are."""
    k = 512
    raw, x = weight_bytes(type, 20, k), random_x(4, k)
    x[0] = 0
    x[1, 32:96] = 0
    x[2, :64] = 1e-40
    x[3, :32] *= np.float32(2.0**-118)
    x[3, 64:96] *= np.float32(1e30)
    got = run(product(raw, type, x), isa)
    assert not got[0].any()
    check_product(got[:3], dequantized(raw, type), x[:3], type)
    want = as_multiplied(x[3:], type) @ dequantized(raw, type).T
    np.testing.assert_allclose(got[3:], want, rtol=1e-3)


@each_product(QUANTIZED)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_row_of_x_with_inf_or_nan_is_nan(isa: str, bad: float, type: str) -> None:
    k = 256
    raw, x = weight_bytes(type, 20, k), random_x(12, k)
    clean = run(product(raw, type, x), isa)
    x[5, 77] = bad
    got = run(product(raw, type, x), isa)
    assert np.isnan(got[5]).all()
    others = np.arange(12) != 5
    same_bits(got[others], clean[others])


@each_product(["q4_0", "q8_0", "q3_K", "q6_K"])
def test_an_infinite_scale_spoils_its_row_alone(isa: str, type: str) -> None:
    """To the same bits for any number of rows of x, hence of groups at a time."""
    k, bad = 256, 18
    raw, x = weight_bytes(type, 40, k), random_x(21, k)
    clean = run(product(raw, type, x), isa)
    at = -2 if type.endswith("_K") else 0  # d of the row's last or first block
    raw[bad, at : at + 2 or None] = np.array([np.inf], np.float16).view(np.uint8)
    got = run(product(raw, type, x), isa)
    assert not np.isfinite(got[:, bad]).any()
    others = np.arange(40) != bad
    same_bits(got[:, others], clean[:, others])
    same_bits(np.concatenate([run(product(raw, type, row[None]), isa) for row in x]), got)


@each_product(FLOATS)
def test_inf_and_nan_in_float_products(isa: str, type: str) -> None:
    """As IEEE has it, in the elements that they reach and no other."""
    k = 37
    x = random_x(3, k)
    x[1, 3] = np.inf
    w = np.ones((20, k), np.float32)
    w[7, 36] = np.nan
    w[8, 3] = -2
    w[9, 3] = 0
    raw = from_float(w, TYPES[type])
    got = run(product(raw, type, x), isa)
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert np.isnan(got).sum() == 3 + 1
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-4)


def test_a_second_plan_shares_the_packed_weight() -> None:
    """And a changed x is quantised again: the plan holds no values."""
    raw = weight_bytes("q4_0", 40, 64)
    weight = ggmlpy.from_bytes(raw, "q4_0", (64, 40))
    for seed in range(3):
        x = random_x(2, 64, seed=seed)
        got = run(ops.mul_mat(weight, ggmlpy.from_numpy(x)))
        check_product(got, dequantized(raw, "q4_0"), x, "q4_0")
    assert weight.place is not None
    assert isinstance(weight.place.buffer, HostBuffer)
    assert len(packing._packed[weight.place.buffer]) == 1


def test_products_of_one_x_quantise_it_once() -> None:
    """Three products of the same x, then one of another: each gets its own."""
    x, z = ggmlpy.from_numpy(random_x(3, 64)), ggmlpy.from_numpy(random_x(3, 64, seed=2))
    raws = [weight_bytes("q8_0", 20, 64, seed=i) for i in range(4)]
    weights = [ggmlpy.from_bytes(raw, "q8_0", (64, 20)) for raw in raws]
    nodes = [ops.mul_mat(w, v) for w, v in zip(weights, (x, x, z, x), strict=True)]
    total = ops.add(ops.add(nodes[0], nodes[1]), ops.add(nodes[2], nodes[3]))
    together = ggmlpy.compute(*nodes, total, backend="cpu")
    for raw, v, got in zip(raws, (x, x, z, x), together, strict=False):
        check_product(got, dequantized(raw, "q8_0"), v.numpy(), "q8_0")

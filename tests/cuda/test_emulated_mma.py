"""mma.cuh and async.cuh: emulated, against numpy; their instructions, by NVRTC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ggmlpy.backends.cuda.emulated import EmulatedDriver, available
from ggmlpy.backends.cuda.nvrtc import nvrtc
from ggmlpy.backends.cuda.source import Unit
from ggmlpy.errors import BackendError
from tests.cuda.test_emulated import downloaded, launch, uploaded

emulated = pytest.mark.skipif(available() is not None, reason=str(available()))
FILE = str(Path(__file__).parent / "emulated_mma.cu")
LANES = np.arange(32)
G, T = LANES // 4, LANES % 4


def fragments(matrix: NDArray[Any], rows: NDArray[Any], cols: NDArray[Any]) -> NDArray[Any]:
    """Elements of a matrix at the places [lane, i], as registers [lane, ...] of 32 bits."""
    return np.ascontiguousarray(matrix[rows, cols]).view(np.uint32).reshape(32, -1)


def places(k: int, per: int) -> tuple[Any, Any, Any, Any]:
    """Rows and columns of a's elements of each lane, and of b's, as the PTX ISA has them."""
    i = np.arange(k // 2)[None]  # 16 * k elements of a over 32 lanes
    second_row = (i // per) % 2
    a_rows = G[:, None] + 8 * second_row
    a_cols = T[:, None] * per + i % per + (i // (2 * per)) * 4 * per
    i = np.arange(k // 4)[None]
    b_rows = T[:, None] * per + i % per + (i // per) * 4 * per
    b_cols = G[:, None] + 0 * i
    return a_rows, a_cols, b_rows, b_cols


def multiplied(name: str, a: NDArray[Any], b: NDArray[Any], d: NDArray[Any], per: int) -> Any:
    """What the kernel makes of matrices, as a matrix."""
    a_rows, a_cols, b_rows, b_cols = places(a.shape[1], per)
    i = np.arange(4)[None]
    d_rows, d_cols = G[:, None] + 8 * (i // 2), 2 * T[:, None] + i % 2
    registers = [fragments(a, a_rows, a_cols), fragments(b, b_rows, b_cols)]
    registers.append(fragments(d, d_rows, d_cols))
    driver = EmulatedDriver()
    x = uploaded(driver, np.ascontiguousarray(np.concatenate(registers, 1)))
    y = driver.allocate(32 * 4 * 4)
    launch(driver, name, y, x, threads=32, file=FILE)
    found = np.zeros_like(d)
    found[d_rows, d_cols] = downloaded(driver, y, d.dtype.str).reshape(32, 4)
    return found


def bf16(values: NDArray[Any]) -> NDArray[Any]:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def of_f16(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.astype(np.float64)


def of_bf16(bits: NDArray[Any]) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@emulated
@pytest.mark.parametrize("name", ["f16_k16", "bf16_k16"])
def test_products_of_floats(name: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((16, 16)), rng.standard_normal((16, 8))
    d = rng.standard_normal((16, 8)).astype(np.float32)
    rounded: Any = np.float16 if name == "f16_k16" else bf16
    value = of_f16 if name == "f16_k16" else of_bf16
    a16, b16 = rounded(a), rounded(b)
    found = multiplied(name, a16, b16, d, per=2)
    expected = (d + value(a16) @ value(b16)).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-7)


@emulated
@pytest.mark.parametrize("k", [16, 32])
def test_products_of_integers(k: int) -> None:
    rng = np.random.default_rng(k)
    a = rng.integers(-128, 128, (16, k), np.int8)
    b = rng.integers(-128, 128, (k, 8), np.int8)
    d = rng.integers(-(2**31), 2**31, (16, 8), np.int32)
    found = multiplied(f"s8_k{k}", a, b, d, per=4)
    expected = d.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(found, expected.astype(np.int32))


@emulated
@pytest.mark.parametrize("kind", range(4))
def test_matrices_from_shared_memory(kind: int) -> None:
    matrix = np.arange(256, dtype=np.uint16).reshape(16, 16)
    driver = EmulatedDriver(seed=kind)
    x, y = uploaded(driver, matrix), driver.allocate(32 * 4 * 4)
    launch(driver, "matrices", y, x, threads=32, n=kind, file=FILE)
    found = downloaded(driver, y, "u2").reshape(32, 4, 2)
    for m in range(2 if kind >= 2 else 4):
        part = matrix[m % 2 * 8 :, m // 2 * 8 :][:8, :8]
        part = part.T if kind % 2 else part
        assert np.array_equal(found[:, m], part.reshape(32, 2)), m


@emulated
def test_asynchronous_copies() -> None:
    values = np.arange(1, 257, dtype=np.float32)
    driver = EmulatedDriver()
    x, y = uploaded(driver, values), driver.allocate(2048)
    launch(driver, "copied", y, x, threads=64, n=100, file=FILE)
    found = downloaded(driver, y, "f4")
    assert found[:256].tolist() == [*values[:100], *[0] * 156]
    assert found[256:].tolist() == values.tolist()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_instructions(arch: str) -> None:
    try:
        compiler = nvrtc()
    except BackendError as error:
        pytest.skip(str(error))
    if arch == "sm_120a" and "sm_120" not in compiler.archs:
        pytest.skip(f"NVRTC {compiler.version_text} does not know it")
    assert compiler.compile(Unit(FILE), arch).log == ""

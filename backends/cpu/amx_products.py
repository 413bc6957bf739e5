"""Compares products of a few AMX tiles with numpy's, in a separate process for `amx_check.py`.

python -m ggmlpy.backends.cpu.amx_products     prints "right" if all are
"""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from ggmlpy.backends.cpu import codegen
from ggmlpy.backends.cpu.amx_check import RIGHT, WRONG, refused
from ggmlpy.backends.cpu.isa import ISA, known
from ggmlpy.backends.cpu.linker import Linker
from ggmlpy.backends.cpu.simd.amx import (
    CONFIG_BYTES,
    FILE_BYTES,
    ROW_BYTES,
    ROWS,
    Shape,
    Tiles,
    release,
)
from ggmlpy.backends.cpu.simd.core import Emitter, i64, void

_STRIDE = 192  # from row to row of the first factor
_FEW_ROWS = 5


def check(isa: ISA) -> None:
    """Multiplies tiles of the shapes that kernels use, on two threads. Raises ArithmeticError if a
    product is wrong."""
    errors: list[BaseException] = []

    def on_a_thread() -> None:
        try:
            _check_products(isa)
        except BaseException as error:
            errors.append(error)

    _check_products(isa)
    thread = threading.Thread(target=on_a_thread)
    thread.start()
    thread.join()
    for error in errors:
        raise error


def _check_products(isa: ISA) -> None:
    rng = np.random.default_rng(0)
    for n_bytes in (16, 32, 64):
        x = rng.integers(-128, 128, (ROWS, _STRIDE), np.int8)
        y = rng.integers(-128, 128, (n_bytes // 4, ROW_BYTES), np.int8)
        x[0], y[:, :4] = -128, -128  # the largest product
        got = _multiply(isa, "i8", n_bytes, x, y).view(np.int32)
        want = x[:, :n_bytes].astype(np.int32) @ _columns(y, 4).astype(np.int32)
        if not np.array_equal(got, want):
            raise ArithmeticError(f"a product of tiles with rows of {n_bytes} bytes is wrong")
    # Whole numbers, whose sums are exact in any order; fewer rows than a tile may have.
    factors = [rng.integers(-255, 256, (ROWS, n)).astype(np.float32) for n in (_STRIDE // 2, 32)]
    before = rng.integers(-999, 1000, (ROWS, 16)).astype(np.float32)
    sums = before.copy()
    sums[:_FEW_ROWS] += factors[0][:_FEW_ROWS, :32] @ _columns(factors[1], 2)
    x, y = ((f.view(np.uint32) >> 16).astype(np.uint16) for f in factors)
    bits = _multiply(isa, "bf16", ROW_BYTES, x, y, before.view(np.uint32))
    if not np.array_equal(bits.view(np.float32), sums):
        raise ArithmeticError("a product of tiles of bf16 is wrong")


def _columns(y: NDArray[Any], n: int) -> NDArray[Any]:
    """The matrix [k, 16] whose row j of a tile has elements nj .. nj + n - 1 of each column."""
    return y.reshape(len(y), -1, n).swapaxes(1, 2).reshape(n * len(y), -1)


def _multiply(
    isa: ISA,
    type_name: str,
    n_bytes: int,
    x: NDArray[Any],
    y: NDArray[Any],
    before: NDArray[np.uint32] | None = None,
) -> NDArray[np.uint32]:
    """The product of tiles of `n_bytes` a row of x, [ROWS, 16], as bits; that of bf16 is added to
    `before`."""
    got = np.zeros((ROWS, ROW_BYTES // 4), np.uint32) if before is None else before.copy()
    config, file = np.zeros(CONFIG_BYTES, np.uint8), np.zeros(FILE_BYTES, np.uint8)
    product = _product(isa, type_name, n_bytes)
    product(*(a.ctypes.data for a in (config, file, x, y, got)))
    return got


@cache
def _product(isa: ISA, type_name: str, n_bytes: int) -> Any:
    """The C function (config, file, x, y, result): ROWS rows of `n_bytes` times n_bytes / 4."""
    tiles = Tiles(Shape(ROWS, ROW_BYTES), Shape(ROWS, n_bytes), Shape(n_bytes // 4, ROW_BYTES))
    symbol = f"ggmlpy_tiles_{type_name}_{n_bytes}"
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(void.ir, [i64.ir] * 5), symbol)
    config, file, x, y, result = function.args
    b = Emitter(function.append_basic_block(), isa)
    row_bytes = ir.Constant(i64.ir, ROW_BYTES)
    if type_name == "i8":
        tiles.configure(b, file, config)
    else:
        tiles.configure(b, file, config, ir.Constant(i64.ir, _FEW_ROWS), (0, 1))
        tiles.load(b, file, 0, result, row_bytes)
    tiles.load(b, file, 1, x, ir.Constant(i64.ir, _STRIDE))
    tiles.load(b, file, 2, y, row_bytes)
    multiply = tiles.product if type_name == "i8" else tiles.add_product_of_bf16
    multiply(b, file, 0, 1, 2)
    tiles.store(b, file, 0, result)
    release(b)
    b.ret_void()
    code = codegen.object_code(llvm.parse_assembly(str(module)), symbol, isa)
    address = Linker(isa).link({symbol: code})[symbol]
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(address)


def main() -> None:
    reason = refused()
    if reason:
        sys.exit(reason)
    try:
        check(next(isa for isa in known() if "amx" in isa.has))
    except ArithmeticError as error:
        print(error, file=sys.stderr)
        sys.exit(WRONG)
    print(RIGHT)


if __name__ == "__main__":
    main()

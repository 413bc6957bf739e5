"""Reading files, for the packing of weights."""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir

from ggmlpy.backends.cpu.simd.core import Emitter, i8, i32, i64, intrinsic

CAN_READ = sys.platform != "win32"  # C's library has `pread`


@intrinsic(i64, i64, i64, i64, i64)
def read_at(b: Emitter, descriptor: Any, ptr: Any, n: Any, position: Any) -> Any:
    """Reads up to `n` bytes at `position` of an open file to `ptr`: how many, or -1."""
    if not CAN_READ:
        return ir.Constant(i64.ir, -1)
    file = b.trunc(descriptor, i32.ir)
    return b.llvm("pread", i64.ir, file, b.pointer(ptr, i8.ir), n, position)

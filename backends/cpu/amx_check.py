"""Whether AMX can be used: asked of the system, tried in a process of its own, remembered on disk.

A CPU that reports AMX may still not run it: Linux wants to be asked before a process may use tiles,
and under some hypervisors the instructions are illegal nevertheless. So a few small products of
tiles are computed first where nothing is lost if that process dies:

    python -m ggmlpy.backends.cpu.amx_check        says "right" if every product is

The verdict is kept beside the compiled kernels, for this CPU, kernel, compiler and source.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import signal
import subprocess
import sys
import threading
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from ggmlpy.backends.cpu import codegen
from ggmlpy.backends.cpu.cache import Cache
from ggmlpy.backends.cpu.compiling import search_path
from ggmlpy.backends.cpu.isa import ISA, known
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

_ARCH_PRCTL = 158  # the system call, on x86-64
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
_TIMEOUT_S = 60
_RIGHT = "right"  # what it says; a status of 0 is also what one gets where SIGCHLD is ignored
_WRONG = 3  # exit status: tiles can be had, but a product of them is wrong
# What a CPU that cannot run them does to a process. Other ends (out of memory, an interrupt,
# modules that cannot be imported) say nothing of AMX.
_FAULTS = frozenset({"SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE"})
_STRIDE = 192  # from row to row of the first factor
_FEW_ROWS = 5
_HERE = Path(__file__).parent


@cache
def usable() -> bool:
    """Whether this process may use tiles, and they work. The first time that Linux or the check
    says no, so does one line on stderr."""
    if sys.platform != "linux":
        return False  # how to ask other systems for it is not known
    verdicts = Cache()
    reason = _refused() or _failure(verdicts)
    if reason:
        _say_once(f"ggmlpy: AMX is not used, but AVX512: {reason}", verdicts)
    return not reason


def _say_once(text: str, said: Cache) -> None:
    """On stderr, unless an earlier process said so."""
    key = _key(text)
    if said.get(key) is None and sys.stderr is not None:
        print(text, file=sys.stderr)
        said.put(key, b"")


def _refused() -> str:
    """Asks that this process and its threads may use tiles; why not, if not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0:
        return ""
    return f"the system does not allow it ({os.strerror(ctypes.get_errno())})"


def _failure(verdicts: Cache) -> str:
    """Why the check in another process failed, now or earlier; "" if it did not."""
    key = _key("check")
    verdict = verdicts.get(key)
    if verdict is not None:
        return verdict.decode()
    try:
        reason, is_verdict = _run_check()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check of it did not come to an end: {error}"  # it may the next time
    if is_verdict:
        verdicts.put(key, reason.encode())
    return reason


def _run_check() -> tuple[str, bool]:
    """Why it failed, "" if it did not; and whether that holds for other processes too."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ggmlpy.backends.cpu.amx_check"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(search_path())},
    )
    if done.returncode == 0 and done.stdout.strip() == _RIGHT:
        return "", True
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return f"a process that tried it died of {name}", name in _FAULTS
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}, and no word"]
    return f"the check of it failed: {said[-1]}", done.returncode == _WRONG


def _key(what: str) -> str:
    """For the cache, of something that holds on this machine and with this source."""
    return hashlib.sha256("\0".join(["amx", what, *_identity()]).encode()).hexdigest()[:40]


def _identity() -> list[str]:
    """All that the verdict may depend on."""
    sources = [_HERE / name for name in ("amx_check.py", "codegen.py", "isa.py")]
    sources += sorted((_HERE / "simd").glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return [_cpu_model(), platform.release(), platform.version(), llvmlite.__version__, digest]


def _cpu_model() -> str:
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in islice(lines, 40):
            if line.startswith("model name"):
                return line
    return str(llvm.get_host_cpu_name())


# --- the check itself -----------------------------------------------------------------------------


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
    parsed = llvm.parse_assembly(str(module))
    codegen.optimize(parsed, symbol, isa)
    code = codegen.emit_object(parsed, symbol, isa)
    address = codegen.Linker(isa).link({symbol: code})[symbol]
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(address)


def main() -> None:
    reason = _refused()
    if reason:
        sys.exit(reason)
    try:
        check(next(isa for isa in known() if "amx" in isa.has))
    except ArithmeticError as error:
        print(error, file=sys.stderr)
        sys.exit(_WRONG)
    print(_RIGHT)


if __name__ == "__main__":
    main()

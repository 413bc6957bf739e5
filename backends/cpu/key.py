"""The key of a kernel's machine code: the kernel with all that is compiled into it, and what
compiles it. Edits of anything else, such as of code that selects or runs kernels, keep the key."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import sys
from functools import cache
from pathlib import Path

import llvmlite

from ggmlpy.backends.cpu.closure import Closures
from ggmlpy.backends.cpu.isa import ISA
from ggmlpy.backends.cpu.kernel import Entry
from ggmlpy.backends.cpu.simd.operators import OPERATORS
from ggmlpy.errors import KernelError

_HERE = Path(__file__).parent
# The source of the compiler: it counts as a whole.
_COMPILER = ("codegen.py", "frontend.py", "numba_parts.py", "simd/core.py")
# Their versions count: numba types and lowers kernels, by numpy's rules; gguf has grids of weights
# that become part of the machine code.
_PACKAGES = ("numba", "numpy", "gguf")
KEY_CHARS = 40


class Keys:
    """Keys for one instruction set."""

    def __init__(self, isa: ISA) -> None:
        self._closures = Closures(isa)
        operators = (
            f"{operator.__name__} {self._closures.of(meaning)}"
            for operator, meaning in OPERATORS.items()
        )
        self._toolchain = (*_toolchain(isa), *operators)

    def key(self, entry: Entry) -> str:
        """The name under which an entry's machine code is kept: the same in every process that has
        imported the same source. Raises KernelError where its closure cannot be told."""
        loaded = sys.modules.get(entry.module)
        if getattr(loaded, "__file__", None) is None:
            module = entry.module
            raise KernelError(
                f"kernels must be declared in a file that can be imported, not {module}"
            )
        closure = self._closures.of_entry(entry)
        identity = entry.module, entry.name, closure, *self._toolchain
        return hashlib.sha256("\0".join(identity).encode()).hexdigest()[:KEY_CHARS]


@cache
def _toolchain(isa: ISA) -> tuple[str, ...]:
    """Instruction set, compiler, Python, packages."""
    return (
        sys.platform,
        platform.machine(),
        isa.cpu,
        isa.features,
        " ".join(sorted(isa.has)),
        f"llvmlite {llvmlite.__version__}",
        *(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES),
        f"python {platform.python_version()}",
        *(hashlib.sha256((_HERE / name).read_bytes()).hexdigest() for name in _COMPILER),
    )

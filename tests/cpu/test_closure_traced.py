"""What ran as kernels were compiled is among what their digests depend on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

import ggmlpy.backends.cpu.backend  # noqa: F401  (declares all kernels)
from ggmlpy.backends.cpu import kernel
from ggmlpy.backends.cpu.closure import Closures
from ggmlpy.backends.cpu.isa import known
from ggmlpy.backends.cpu.simd.operators import OPERATORS
from tests.cpu.closures import ROOT

_TRACE = """
import importlib, json, sys
from ggmlpy.backends.cpu import frontend
from ggmlpy.backends.cpu.isa import known
from ggmlpy.backends.cpu.kernel import entry_of
ran = set()

def profiled(function):
    def call(*args):
        sys.setprofile(lambda frame, event, arg: ran.add(frame.f_code))
        try:
            return function(*args)
        finally:
            sys.setprofile(None)
    return call

lower, signature = frontend._lower, frontend._signature
frontend._lower = lambda intrinsic: profiled(lower(intrinsic))
frontend._signature = profiled(signature)
isa = next(isa for isa in known() if isa.name == sys.argv[1])
for name in sys.argv[2:]:
    module, kernel = name.rsplit(".", 1)
    importlib.import_module(module)
    ran.clear()
    lowered = set(frontend._dispatchers)
    frontend.lower_to_ir(entry_of(module, kernel), "kernel", isa)
    ran |= {inline.function.__code__ for inline in frontend._dispatchers.keys() - lowered}
    found = [(code.co_filename, code.co_qualname, code.co_firstlineno) for code in ran]
    print(json.dumps([name for name in found if "/backends/cpu/" in name[0]]))
"""
_TRACED = [
    "ggmlpy.backends.cpu.formats.k_quants.pack_q4_K",
    "ggmlpy.backends.cpu.kernels.matmul.matmul_bf16",
    "ggmlpy.backends.cpu.kernels.rows.get_rows_iq2_s",
    "ggmlpy.backends.cpu.kernels.unary.gelu_f32",
]
# What counts with every kernel, as operators do, and what picks functions for a level.
_COMPILER = {"frontend.py", "numba_parts.py", "core.py", "kernel.py"}


def test_what_runs_as_kernels_are_compiled_is_in_their_closures() -> None:
    """The functions of this package that ran while a kernel was lowered, and those that numba
    lowered, as a process that compiles has seen them."""
    level = known()[0]
    command = [sys.executable, "-W", "ignore", "-c", _TRACE, level.name, *_TRACED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    closures = Closures(level)
    operators = [
        meaning.emit for meaning in OPERATORS.values() if isinstance(meaning.emit, FunctionType)
    ]
    for name, line in zip(_TRACED, done.stdout.splitlines(), strict=True):
        entry = kernel.entry_of(*name.rsplit(".", 1))
        known_here = {
            (code.co_filename, code.co_qualname, code.co_firstlineno)
            for function in {*closures.functions(entry), *operators}
            for code in codes(function.__code__)
        }
        ran = {tuple(found) for found in json.loads(line)}
        counted = {found for found in ran if Path(found[0]).name not in _COMPILER}
        assert len(counted) > 10
        assert counted <= known_here, name


def codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)

"""Products of the level "avxvnni", on machines that have its instruction in another encoding only.

What its kernels ask for, 4-way int8 products in 256-bit registers, AVX512-VL hosts with VNNI have
too: the same code made with their features runs there, and must give the bits of the other levels.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

import ggmlpy
from ggmlpy import ops
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.isa import known
from tests.cpu.conftest import ISAS
from tests.cpu.products import TILE_KINDS, random_x, run, weight_bytes

_LEVELS = {isa.name: isa for isa in known()}
pytestmark = pytest.mark.skipif("avxvnni" not in _LEVELS, reason="AVX-VNNI is for x86-64")

_SCRIPT = """
from ggmlpy.backends.cpu import codegen, frontend, isa
from ggmlpy.backends.cpu.kernels.matmul import KERNELS
level = next(level for level in isa.known() if level.name == "avxvnni")
module = frontend.lower_to_ir(KERNELS["q4_0"], "kernel", level)
codegen.optimize(module, "kernel", level)
print(codegen.target_machine(level).emit_assembly(module))
"""


def test_its_code_has_its_instruction_and_no_wider_registers() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCRIPT], capture_output=True, text=True, check=True
    )
    assert len(re.findall(r"vpdpbusd\s.*ymm", done.stdout)) >= 16
    assert "zmm" not in done.stdout


@pytest.mark.parametrize("type", TILE_KINDS)
def test_its_products_have_the_bits_of_the_other_levels(type: str) -> None:
    host = {name for name, present in llvm.get_host_cpu_features().items() if present}
    level = _LEVELS["avxvnni"]
    if not level.needs <= host:
        if not {"avx512vl", "avx512vnni"} <= host:
            pytest.skip("this machine has no 4-way int8 products in 256-bit registers")
        level = replace(level, features="+avx512vl,+avx512vnni")
    raw, x = weight_bytes(type, 33, 512), random_x(9, 512)
    weight = ggmlpy.from_bytes(raw.reshape(-1), type, (512, 33))
    node = ops.mul_mat(weight, ggmlpy.from_numpy(x))
    got = ggmlpy.compute(node, backend=CpuBackend(2, level))
    assert got.tobytes() == run(node, ISAS[0]).tobytes()

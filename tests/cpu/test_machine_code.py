"""What the hot loops compile to: whole vectors, in registers, without calls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cpu.conftest import ISAS

ROOT = Path(__file__).parents[2]
KERNELS = (
    "attention.flash_attn_ext_avx512_1_f16",
    "attention.flash_attn_ext_avx512_4_f16",
    "elementwise.add_f32",
    "glu.swiglu_f32",
    "norm.rms_norm_f32",
    "rope.rope_f32",
    "softmax.soft_max_f32",
)
_SCRIPT = """
import importlib, json, sys
from ggmlpy.backends.cpu import codegen, frontend
from ggmlpy.backends.cpu.isa import select
from ggmlpy.backends.cpu.kernel import entry_of
isa = select("avx512")
found = {}
for name in sys.argv[1:]:
    module, kernel = name.split(".")
    module = importlib.import_module(f"ggmlpy.backends.cpu.kernels.{module}").__name__
    lowered = frontend.lower_to_ir(entry_of(module, kernel), kernel, isa)
    codegen.optimize(lowered, kernel, isa)
    found[name] = codegen.target_machine(isa).emit_assembly(lowered)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def assembly() -> dict[str, str]:
    if "avx512" not in ISAS:
        pytest.skip("register counts are those of AVX512")
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT, *KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def blocks(code: str) -> list[str]:
    """The stretches between labels and jumps."""
    return re.split(r"^\.?\w+:.*$|^\s*j\w+\s.*$", code, flags=re.MULTILINE)


@pytest.mark.parametrize("name", KERNELS)
def test_loops_are_vectors_without_calls(assembly: dict[str, str], name: str) -> None:
    busy = [
        block
        for block in blocks(assembly[name])
        if re.search(r"v(mul|add|fmadd\w+)ps\s.*zmm", block)
    ]
    assert busy
    for block in busy:
        assert "call" not in block


@pytest.mark.parametrize("n_heads", [1, 4])
def test_products_of_attention_stay_in_registers(assembly: dict[str, str], n_heads: int) -> None:
    """16 sums in the loop over q.k, and none of them goes to the stack on the way."""
    code = assembly[f"attention.flash_attn_ext_avx512_{n_heads}_f16"]
    loops = [block for block in blocks(code) if len(re.findall(r"vfmadd\w+ps\s.*zmm", block)) >= 16]
    assert loops
    for loop in loops:
        assert not re.search(r"^\s*v\w+\s.*\(%rsp", loop, re.MULTILINE)

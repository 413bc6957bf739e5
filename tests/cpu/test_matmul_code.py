"""The machine code of the products' inner loops: what makes them fast must not get lost unseen.

Code is made for AVX512 on any host, in a process of its own because numba is taken over there.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from functools import cache

import pytest

_SCRIPT = """
import sys
from ggmlpy.backends.cpu import codegen, frontend, isa
from ggmlpy.backends.cpu.kernels.matmul import KERNELS
level = next(level for level in isa.known() if level.name == "avx512")
for name in sys.argv[1:]:
    module = frontend.lower_to_ir(KERNELS[name], "kernel_" + name, level)
    codegen.optimize(module, "kernel_" + name, level)
    print(codegen.target_machine(level).emit_assembly(module))
    print("=====")
"""
_FORMATS = ("q4_0", "q8_0", "q4_K", "q6_K", "f16", "f32")

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="AVX512 is for x86-64"
)


@cache
def _assembly() -> dict[str, str]:
    """Assembly of the kernels by format."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *_FORMATS], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(_FORMATS, done.stdout.split("=====\n"), strict=False))


def inner_loops(assembly: str, instruction: str) -> list[list[str]]:
    """The innermost loops that hold `instruction` at least twice, as lists of instructions."""
    lines = [line.split("#")[0].strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\.\w+:", line)}
    loops = []
    for i, line in enumerate(lines):
        jump = re.fullmatch(r"j\w+\s+(\.\w+)", line)
        start = labels.get(jump[1], i) if jump else i
        body = [text for text in lines[start + 1 : i + 1] if text]
        innermost = start < i and not any(text.endswith(":") for text in body)
        if innermost and sum(text.startswith(instruction) for text in body) >= 2:
            loops.append(body)
    return loops


@pytest.mark.parametrize(("type", "most"), [("q4_0", (42, 145)), ("q8_0", (40, 140))])
def test_a_block_is_a_few_instructions(type: str, most: tuple[int, int]) -> None:
    """8 fourfold products for each row of x, fed from memory, and nothing on the stack.

    `most` instructions for a block times one row and times eight: 16 weight rows of 32 elements.
    """
    loops = inner_loops(_assembly()[type], "vpdpbusd")
    widths = [sum(text.startswith("vpdpbusd") for text in loop) for loop in loops]
    assert sorted(widths) == [8, 16, 32, 64]
    for width, loop in zip(widths, loops, strict=True):
        products = [text for text in loop if text.startswith("vpdpbusd")]
        assert all("{1to16}" in text for text in products)
        assert not [text for text in loop if "%rsp" in text], "sums are spilled"
        assert not [text for text in loop if text.startswith("call")]
        assert len(loop) <= most[0] + (most[1] - most[0]) * (width // 8 - 1) // 7


@pytest.mark.parametrize(("type", "n_blocks"), [("q4_K", 2), ("q6_K", 1)])
def test_k_quants_keep_their_sums_in_registers(type: str, n_blocks: int) -> None:
    """At width 8 a few vectors go to the stack; at 4 and below nothing but an address does."""
    loops = inner_loops(_assembly()[type], "vpdpbusd")
    widths = [sum(text.startswith("vpdpbusd") for text in loop) // n_blocks for loop in loops]
    assert sorted(widths) == [8, 16, 32, 64]
    for width, loop in zip(widths, loops, strict=True):
        on_stack = [text for text in loop if "%rsp" in text]
        stored = [text for text in on_stack if re.match(r"vmov\w+\s+%zmm\d+, .*%rsp", text)]
        assert len(stored) <= (8 if width == 64 else 0)
        assert len(on_stack) <= (16 if width == 64 else 1)
        assert len(loop) <= n_blocks * (75 + 22 * width // 8)


@pytest.mark.parametrize("type", ["f16", "f32"])
def test_floats_are_one_fma_an_element_and_row(type: str) -> None:
    loops = inner_loops(_assembly()[type], "vfmadd")
    assert {sum(text.startswith("vfmadd") for text in loop) for loop in loops} == {4, 8, 16}
    for loop in loops:
        assert not [text for text in loop if "%rsp" in text]
        assert len(loop) <= 28

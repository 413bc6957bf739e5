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
# Instructions for a block of 32 elements of 16 weight rows, times one row of x and times eight, and
# of two groups of 16 times six, or four of q6_K, whose weights are unpacked before.
_BLOCKS_OF_32 = {
    "q8_0": (36, 134, 242),
    "q4_0": (40, 138, 255),
    "mxfp4": (53, 151, 284),
}
# The same in blocks of several parts, with small scales and more constants: some registers too few.
_SUPERBLOCKS = {
    "q4_K": (55, 154, 288),
    "q6_K": (78, 229, 212),
}
# Products, multiplications and fma, for a block of 32 elements of 16 weight rows and a row of x:
# what runs on the ports of products (docs/performance.md).
ON_PRODUCT_PORTS = {
    "q4_0": 10,
    "q8_0": 10,
    "mxfp4": 10,
    "q4_K": 11,
    "q5_K": 11,
    "q2_K": 13,
    "q3_K": 11,
    "q6_K": 11,
}
_PAIRS = {"q6_K": 8}  # of a group and a row of x
_MOST_PAIRS = 12
_SLACK = 6  # instructions that another version of LLVM may need
_FORMATS = (*ON_PRODUCT_PORTS, "f16", "f32")

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="AVX512 is for x86-64"
)


@cache
def _assembly() -> dict[str, str]:
    """Assembly of the kernels by format."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *_FORMATS], capture_output=True, text=True
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


def product_loops(type: str, most: tuple[int, int, int]) -> list[tuple[int, list[str]]]:
    """Loops over blocks of one group with 8 fourfold products for each of 1, 2, 4 and 8 rows of x,
    by width.

    Checks what all formats promise: products fed from memory, no calls, few instructions, no tiles.
    """
    loops = [(width, loop) for width, loop in _all_loops(type) if not _shares_words(loop)]
    assert sorted(width for width, _ in loops) == [1, 2, 4, 8]
    for width, loop in loops:
        assert len(loop) <= most[0] + (most[1] - most[0]) * (width - 1) // 7 + _SLACK
    return loops


def _shares_words(loop: list[str]) -> bool:
    """Whether words of x are loaded for several products: that of one group are fed from memory."""
    return not all("{1to16}" in text for text in loop if text.startswith("vpdpbusd"))


def _all_loops(type: str) -> list[tuple[int, list[str]]]:
    assert "ldtilecfg" not in _assembly()[type]
    loops = inner_loops(_assembly()[type], "vpdpbusd")
    widths = [sum(text.startswith("vpdpbusd") for text in loop) // 8 for loop in loops]
    assert not [text for loop in loops for text in loop if text.startswith("call")]
    return list(zip(widths, loops, strict=True))


@pytest.mark.parametrize(("type", "n"), ON_PRODUCT_PORTS.items())
def test_scales_and_minima_are_one_instruction_each(type: str, n: int) -> None:
    """For a row of x, besides one for its d: what a loop of 8 rows has more than one of 4."""
    by_width = {
        width: sum(text.startswith(("vpdpbusd", "vfmadd", "vmulps")) for text in loop)
        for width, loop in _all_loops(type)
        if not _shares_words(loop)
    }
    assert by_width[8] - by_width[4] == 4 * n


@pytest.mark.parametrize(("type", "most"), _BLOCKS_OF_32.items())
def test_blocks_of_32_keep_everything_in_registers(type: str, most: tuple[int, int, int]) -> None:
    for _, loop in product_loops(type, most):
        assert not [text for text in loop if "%rsp" in text], "sums are spilled"


@pytest.mark.parametrize(("type", "most"), (_BLOCKS_OF_32 | _SUPERBLOCKS).items())
def test_two_groups_share_what_they_load(type: str, most: tuple[int, int, int]) -> None:
    """A word of x is loaded once for both, and no vector goes to the stack."""
    ((width, loop),) = [found for found in _all_loops(type) if _shares_words(found[1])]
    assert width == _PAIRS.get(type, _MOST_PAIRS)
    n_words = 8 * width // 2
    n_scales = width // 2  # d of each row of x
    n_others = 10  # starts of products, constants
    broadcasts = [text for text in loop if text.startswith(("vpbroadcastd", "vbroadcastss"))]
    assert len(broadcasts) <= n_words + n_scales + n_others
    assert not [text for text in loop if "%zmm" in text and "%rsp" in text]
    assert len(loop) <= most[2] + _SLACK


@pytest.mark.parametrize(("type", "most"), _SUPERBLOCKS.items())
def test_superblocks_keep_their_sums_in_registers(type: str, most: tuple[int, int, int]) -> None:
    """At width 8 a few vectors go to the stack; at 4 and below nothing but an address does."""
    for width, loop in product_loops(type, most):
        on_stack = [text for text in loop if "%rsp" in text]
        stored = [text for text in on_stack if re.match(r"vmov\w+\s+%zmm\d+, .*%rsp", text)]
        assert len(stored) <= (4 if width == 8 else 0)
        assert len(on_stack) <= (8 if width == 8 else 2)


@pytest.mark.parametrize("type", ["f16", "f32"])
def test_floats_are_one_fma_for_16_elements(type: str) -> None:
    """32 elements of 4 weight rows times 6, 4 and 2 rows of x: every number is loaded once. Sums
    stay in registers, also of one row. 6 rows also have a loop that does not prefetch."""
    widths: list[int] = []
    bare: list[int] = []
    for loop in inner_loops(_assembly()[type], "vfmadd"):
        assert not [text for text in loop if text.startswith("v") and "%rsp" in text]
        n_products = sum(text.startswith("vfmadd") for text in loop)
        if n_products < 16:
            continue
        n = n_products // 8
        n_lines = sum(text.startswith("prefetch") for text in loop)
        (widths if n_lines else bare).append(n)
        assert n_lines in (0, 4 if type == "f16" else 8)
        loads = [text for text in loop if "(" in text and not text.startswith(("pre", "lea"))]
        assert len(loads) == 2 * (4 + n)
        n_addresses = 4 + n  # which may be counted up each by itself
        assert len(loop) <= n_products + len(loads) + n_lines + n_addresses + _SLACK
    assert sorted(widths) == [2, 4, 6]
    assert sorted(bare) == [2, 6]


@pytest.mark.parametrize("type", ["f16", "f32"])
def test_short_rows_are_a_product_and_an_addition_for_16_rows(type: str) -> None:
    """4 rows of x and 1 times 16 columns: numbers are broadcast as they are read, columns are read
    once for all rows, and nothing is spilled."""
    stretches = re.split(r"^\.?\w+:.*$|^\s*j\w+\s.*$", _assembly()[type], flags=re.MULTILINE)
    found = []
    for stretch in stretches:
        lines = [line.strip() for line in stretch.splitlines()]
        n_products = sum(line.startswith("vmulps") for line in lines)
        if n_products:
            found.append(n_products)
            assert sum("{1to16}" in line for line in lines) >= n_products - 1
            assert sum(line.startswith("vaddps") for line in lines) <= n_products
            assert not [line for line in lines if "%zmm" in line and "%rsp" in line]
    assert sorted(found) == [16, 64]

"""What products become for the level "amx": made on any x86-64 host, since LLVM knows the
instructions whatever it runs on, in a process of its own because numba is taken over there.
"""

from __future__ import annotations

import platform
import re
import struct
import subprocess
import sys
from functools import cache

import pytest

from ggmlpy.backends.cpu.formats import bf16_tiles, block_tiles
from ggmlpy.backends.cpu.formats.tile_panels import WorkingMemory
from ggmlpy.backends.cpu.simd.amx import CONFIG_BYTES, FILE_BYTES, ROWS, Shape, Tiles

_SCRIPT = """
import sys
from ggmlpy.backends.cpu import codegen, frontend, isa
from ggmlpy.backends.cpu.kernels.fused_glu import MATMUL_GLU
from ggmlpy.backends.cpu.kernels.matmul import KERNELS
level = isa.known()[0]
assert level.name == "amx"
for name in sys.argv[1:]:
    kernel = MATMUL_GLU[name[:-4]] if name.endswith("+glu") else KERNELS[name]
    module = frontend.lower_to_ir(kernel, "kernel", level)
    codegen.optimize(module, "kernel", level)
    print(codegen.target_machine(level).emit_assembly(module))
    print("=====")
    codegen.emit_object(module, "kernel", level)  # raises if anything foreign is called
"""
# Instructions of the loop over two blocks of 32 elements, for 16 rows of x and of weights: of each
# block 16 x (convert, scale, add), 16 or 32 more for minima and for a second scale; the rest moves
# registers and addresses.
_LOOPS = {
    "q8_0": 166,
    "q2_K": 315,
    "q4_0+glu": 166,
}
_SLACK = 12  # that another version of LLVM may need

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="AMX is for x86-64"
)


@cache
def _assembly() -> dict[str, str]:
    names = [*_LOOPS, "f16", "bf16+glu"]
    command = [sys.executable, "-c", _SCRIPT, *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(names, done.stdout.split("=====\n"), strict=False))


def instructions(assembly: str) -> list[str]:
    return re.findall(r"^\t(tile\w+|ldtilecfg|tdp\w+)", assembly, re.MULTILINE)


def loop_with_products(assembly: str) -> list[str]:
    """The innermost loop with two products of tiles, as a list of instructions."""
    lines = [line.split("#")[0].strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\.\w+:", line)}
    loops = []
    for i, line in enumerate(lines):
        jump = re.fullmatch(r"j\w+\s+(\.\w+)", line)
        start = labels.get(jump[1], i) if jump else i
        body = [text for text in lines[start:i] if text and not text.endswith(":")]
        if sum(text.startswith("tdpbssd") for text in body) >= 2:
            loops.append(body)
    return min(loops, key=len)


@pytest.mark.parametrize("name", _LOOPS)
def test_tiles_are_configured_used_and_given_back(name: str) -> None:
    found = instructions(_assembly()[name])
    assert found[0] == "ldtilecfg"
    assert found.count("ldtilecfg") == found.count("tilerelease") == 1
    n = found.count("tdpbssd")
    assert n >= 3  # the first block of a stretch, and two in turn
    assert found.count("tilezero") == found.count("tilestored") == n
    assert found.count("tileloadd") == 2 * n


def test_the_configuration_is_what_the_manual_says() -> None:
    """Byte 0 the palette, at 16 the bytes of a row of each tile as u16, at 48 the rows as u8."""
    config = Tiles(Shape(16, 64), Shape(16, 32), Shape(8, 64)).config()
    assert len(config) == 64
    assert config[:16] == bytes([1, *[0] * 15])
    assert config[16:48] == struct.pack("<16H", 64, 32, 64, *[0] * 13)
    assert config[48:] == bytes([16, 16, 8, *[0] * 13])


@pytest.mark.parametrize("memory", [block_tiles.MEMORY, bf16_tiles.MEMORY], ids=["int8", "bf16"])
def test_parts_of_working_memory_follow_each_other(memory: WorkingMemory) -> None:
    """Each at a multiple of 64, and as long as it must be."""
    ends = [
        (0, CONFIG_BYTES),
        (memory.panels, 16 * memory.n_panels),
        (memory.products, memory.products_bytes),
        (memory.weights, memory.stretch * memory.weight_bytes),
        (memory.sums, memory.n_panels * memory.sums_bytes),
        (memory.gathered, ROWS * memory.gathered_stride),
        (memory.file, FILE_BYTES),
    ]
    assert [start for start, _ in ends[1:]] == [start + n for start, n in ends[:-1]]
    assert memory.n_bytes == sum(n for _, n in ends)
    assert all(start % 64 == 0 for start, _ in ends)


def test_f16_has_no_tiles() -> None:
    assert not instructions(_assembly()["f16"])


def test_bf16_adds_three_products_a_block() -> None:
    found = instructions(_assembly()["bf16+glu"])
    assert found[0] == "ldtilecfg"
    assert found.count("tilerelease") == 1
    n_sums = found.count("tilestored")  # LLVM may write the code for each of the unit's weights
    assert n_sums in (3, 6)
    assert found.count("tilezero") == n_sums
    n = found.count("tdpbf16ps")
    assert n and n % 3 == 0
    assert found.count("tileloadd") == n_sums + 4 * n // 3  # of each block: weights, parts of x


@pytest.mark.parametrize("name", _LOOPS)
def test_sums_stay_in_registers(name: str) -> None:
    """A few instructions for a row of x and a block, and a product ahead of them."""
    loop = loop_with_products(_assembly()[name])
    products = sum(text.startswith("tdpbssd") for text in loop)
    converted = [text for text in loop if text.startswith("vcvtdq2ps")]
    assert len(converted) == 16 * products == 16 * (4 if name == "q2_K" else 2)
    assert all("(%r" in text for text in converted), "products are not read where they are needed"
    stored = [text for text in loop if re.search(r"%zmm\d+, .*%rsp", text)]
    assert len(stored) <= 2, "sums are spilled"
    assert not [text for text in loop if text.startswith("call")]
    assert len(loop) <= _LOOPS[name] + _SLACK

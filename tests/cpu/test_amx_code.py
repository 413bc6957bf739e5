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
from itertools import pairwise

import pytest

from ggmlpy.backends.cpu.formats import bf16_tiles, block_tiles, tile_loop
from ggmlpy.backends.cpu.formats.x_panels import BLOCKS_AT_ONCE, LISTED_BYTES, panel_bytes
from ggmlpy.backends.cpu.simd.amx import (
    CONFIG_BYTES,
    FILE_BYTES,
    ROWS,
    TILE_BYTES,
    Shape,
    Tiles,
)

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
# The loop over BLOCKS_AT_ONCE blocks, for 16 rows of x and of weights: a block's scales and minima,
# and instructions. Of each block 16 x (add, fma) for a scale, 16 x (add, sub, fma) for a second
# one, 16 fma for d and for each minimum, and 5 or 9 of tiles; the rest is addresses.
_LOOPS = {
    "q8_0": (1, 0, 249),
    "q2_K": (2, 2, 606),
    "q4_0+glu": (1, 0, 245),
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


def loop_with_products(assembly: str, n: int) -> list[str]:
    """The innermost loop with `n` products of tiles, as a list of instructions."""
    lines = [line.split("#")[0].strip() for line in assembly.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if re.fullmatch(r"\.\w+:", line)}
    loops = []
    for i, line in enumerate(lines):
        jump = re.fullmatch(r"j\w+\s+(\.\w+)", line)
        start = labels.get(jump[1], i) if jump else i
        body = [text for text in lines[start : i + 1] if text and not text.endswith(":")]
        if sum(text.startswith("tdpbssd") for text in body) == n:
            loops.append(body)
    return min(loops, key=len)


@pytest.mark.parametrize("name", _LOOPS)
def test_tiles_are_configured_used_and_given_back(name: str) -> None:
    found = instructions(_assembly()[name])
    assert found[0] == "ldtilecfg"
    assert found.count("ldtilecfg") == found.count("tilerelease") == 1
    n, n_scales = found.count("tdpbssd"), _LOOPS[name][0]
    assert n > BLOCKS_AT_ONCE * n_scales  # the first products of a stretch, and those of the loop
    assert found.count("tilezero") == n
    assert found.count("tilestored") == n - 2  # the last products ahead of a stretch are not used
    assert found.count("tileloadd") == (2 * n if n_scales == 1 else 3 * n // 2)  # x serves both


def test_the_configuration_is_what_the_manual_says() -> None:
    """Byte 0 the palette, at 16 the bytes of a row of each tile as u16, at 48 the rows as u8."""
    config = Tiles(Shape(16, 64), Shape(16, 32), Shape(8, 64)).config()
    assert len(config) == 64
    assert config[:16] == bytes([1, *[0] * 15])
    assert config[16:48] == struct.pack("<16H", 64, 32, 64, *[0] * 13)
    assert config[48:] == bytes([16, 16, 8, *[0] * 13])


def test_parts_of_working_memory_of_bf16_follow_each_other() -> None:
    """Each at a multiple of 64, and as long as it must be."""
    ends = [
        (0, CONFIG_BYTES),
        (bf16_tiles.LISTED, bf16_tiles.PANELS * bf16_tiles.PANEL_BYTES),
        (bf16_tiles.WEIGHTS, bf16_tiles.STRETCH * TILE_BYTES),
        (bf16_tiles.SUMS, bf16_tiles.PANELS * bf16_tiles.SUMS_BYTES),
        (bf16_tiles.GATHERED, ROWS * bf16_tiles.GATHERED_STRIDE),
        (bf16_tiles.FILE, FILE_BYTES),
    ]
    check_parts(ends, bf16_tiles.WORK_BYTES)


def test_parts_of_working_memory_follow_each_other() -> None:
    k, n_groups, n_panels = 4096, block_tiles.GROUPS, block_tiles.PANELS
    ends = [
        (0, CONFIG_BYTES),
        (tile_loop.LISTED, LISTED_BYTES),
        (tile_loop.PRODUCTS, 2 * 2 * TILE_BYTES),
        (tile_loop.FILE, FILE_BYTES),
        (tile_loop.LOOP_BYTES, n_groups * block_tiles.STRETCH * tile_loop.UNPACKED_BYTES),
        (block_tiles.SUMS, n_panels * n_groups * TILE_BYTES),
        (block_tiles.X, block_tiles.most_panels(panel_bytes(k)) * panel_bytes(k)),
    ]
    check_parts(ends, block_tiles.work_bytes(k, 512))


def check_parts(ends: list[tuple[int, int]], n_bytes: int) -> None:
    assert [start for start, _ in ends[1:]] == [start + n for start, n in ends[:-1]]
    assert n_bytes == sum(n for _, n in ends)
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


@cache
def loop_of(name: str) -> list[str]:
    return loop_with_products(_assembly()[name], BLOCKS_AT_ONCE * _LOOPS[name][0])


@pytest.mark.parametrize("name", _LOOPS)
def test_sums_stay_in_registers(name: str) -> None:
    """A few instructions for a row of x and a block; numbers of products become no floats."""
    n_scales, n_minima, n_instructions = _LOOPS[name]
    loop, n_rows = loop_of(name), ROWS * BLOCKS_AT_ONCE
    added = [text for text in loop if text.startswith("vpaddd")]
    assert len(added) == n_scales * n_rows
    assert all("(%r" in text for text in added), "products are not read where they are needed"
    fma = sum(text.startswith("vfmadd") for text in loop)
    assert fma == (n_scales + 1 + n_minima) * n_rows
    assert not [text for text in loop if text.startswith(("vcvt", "vmul", "call"))]
    stored = [text for text in loop if re.search(r"%zmm\d+, .*\(%r", text)]
    assert len(stored) <= 2, "sums are spilled"
    assert len(loop) <= n_instructions + _SLACK


@pytest.mark.parametrize("name", _LOOPS)
def test_products_run_ahead_of_their_stores(name: str) -> None:
    """By two blocks, or one of two scales: a product takes 52 cycles, for which its store would
    wait. Between the tile instructions of a block there is arithmetic."""
    loop, n_scales = loop_of(name), _LOOPS[name][0]
    of_block = len(loop) / BLOCKS_AT_ONCE
    for i, text in enumerate(loop):
        stored = re.match(r"tilestored\s+(%tmm\d)", text)
        if stored:
            before = [*loop[i:], *loop[:i]][::-1]
            ago = next(j for j, t in enumerate(before) if re.match(rf"tdpbssd.*{stored[1]}$", t))
            assert ago > of_block * 2 / n_scales
    at = [i for i, text in enumerate(loop) if re.match("tile(loadd|stored)|tdp", text)]
    apart = [b - a for a, b in pairwise(at)]
    assert min(apart) >= of_block / 20

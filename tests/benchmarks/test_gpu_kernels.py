"""Predictions from machine code: loops, occupancy, times. Nothing is compiled here."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from benchmarks import gpu_cover_attention as attention
from benchmarks import gpu_cover_products as products
from benchmarks import gpu_kernels, sass
from benchmarks.gpu_executed import Cells, Executed, allowed, path_to_macs
from benchmarks.gpu_limits import (
    A100,
    DRAM_S,
    H100,
    Demand,
    Gpu,
    Occupancy,
    in_turn_s,
    times,
    waves,
)
from benchmarks.gpu_tables import document, markdown
from benchmarks.sass import LONGEST, Loop, Taste, parse
from benchmarks.sass_mix import Mix, access_bytes, macs_of, pipe_of
from ggmlpy.backends.cuda import source
from ggmlpy.backends.cuda.kernels.attention import _chunk_of
from ggmlpy.errors import BackendError

pytestmark = pytest.mark.quick

# Two loops, one in the other; a division with a slow path; shuffles of warps that are apart; a
# function that is called; a choice between a short and a long way.
TEXT = """
//--------------------- .text.small   --------------------------
\t.section\t.text.small,"ax",@progbits
small:
.text.small:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/              @!P0 BRA `(.L_x_2) ;
        /*0030*/                   MUFU.RCP R0, R0 ;
        /*0040*/                   CALL.REL.NOINC `($__internal_0_$__cuda_slowpath) ;
.L_x_2:
        /*0050*/                   BSSY B0, `(.L_x_4) ;
        /*0060*/               @P1 BRA `(.L_x_3) ;
        /*0070*/                   STG.E desc[UR4][R2.64], R4 ;
        /*0080*/                   FADD R1, R1, R1 ;
        /*0090*/                   FADD R1, R1, R1 ;
        /*00a0*/                   BSYNC B0 ;
.L_x_3:
        /*00b0*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64] ;
        /*00c0*/                   BSYNC B0 ;
.L_x_4:
        /*00d0*/                   BRA.DIV UR4, `(.L_x_7) ;
        /*00e0*/                   SHFL.BFLY PT, R4, R5, 0x1, 0x1f ;
.L_x_8:
        /*00f0*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0100*/                   IADD3 R0, R0, 0x1, RZ ;
        /*0110*/               @P2 BRA `(.L_x_8) ;
        /*0120*/                   CALL.REL.NOINC `($small$helper) ;
        /*0130*/               @P3 BRA `(.L_x_1) ;
        /*0140*/                   EXIT ;
.L_x_7:
        /*0150*/                   WARPSYNC.COLLECTIVE R15, `(.L_x_9) ;
.L_x_9:
        /*0160*/                   BRA `(.L_x_8) ;
        .type           $__internal_0_$__cuda_slowpath,@function
$__internal_0_$__cuda_slowpath:
        /*0170*/                   FMUL R0, R0, R0 ;
        /*0180*/                   RET.REL.NODEC R2 `(small) ;
$small$helper:
        /*0190*/                   PRMT R0, R0, R1, R2 ;
        /*01a0*/                   RET.REL.NODEC R2 `(small) ;
.L_x_10:
        /*01b0*/                   BRA `(.L_x_10);
        /*01c0*/                   NOP;
"""


def loops_of(text: str, taste: Taste = LONGEST) -> Loop:
    return parse(text, taste)["small"].body


# --- machine code ---


def test_loops_are_found_with_those_inside() -> None:
    body = loops_of(TEXT)
    assert [loop.address for loop in body.walk()] == [0, 0x10, 0xF0]
    assert body.mix == {"LDC": 1, "EXIT": 1}
    assert not any(loop.others for loop in body.walk())
    assert body.inner[0].inner[0].mix == {"HMMA.16816.F32": 1, "IADD3": 1, "BRA": 1}


def test_the_longest_way_is_counted_with_what_is_called_but_not_slow_paths() -> None:
    mix = loops_of(TEXT).inner[0].mix
    assert mix["FADD"] == 2 and mix["MUFU.RCP"] == 1
    assert mix["PRMT"] == 1  # of the function that is called
    assert not mix["FMUL"] and not mix["WARPSYNC.COLLECTIVE"] and not mix["NOP"]


def test_a_taste_chooses_the_way() -> None:
    short = loops_of(TEXT, Taste("LDGSTS", "STG|RCP")).inner[0].mix
    assert short["LDGSTS.E.BYPASS.128"] == 1
    assert not short["STG.E"] and not short["MUFU.RCP"]
    assert short.global_bytes == 32


def test_what_is_never_executed_is_issued() -> None:
    never = TEXT.replace("                   IADD3 R0, R0, 0x1", "              @!PT LDS RZ, [RZ]")
    (outer,) = loops_of(never).inner
    (inner,) = outer.inner
    assert inner.mix == {"HMMA.16816.F32": 1, "NOP": 1, "BRA": 1}
    assert inner.mix.clocks()["shared"] == 0.0


def test_opcodes_say_what_they_do() -> None:
    opcodes = ("LDG.E.128", "LDG.E.U16", "LDS.64", "LDS", "LDSM.16.M88.4")
    assert [access_bytes(opcode) for opcode in opcodes] == [16, 2, 8, 4, 16]
    assert macs_of("HMMA.16816.F32") == 16 * 8 * 16
    assert macs_of("IMMA.16832.S8.S8") == 16 * 8 * 32
    assert macs_of("HGMMA.64x128x16.F32") == 64 * 128 * 16 // 4
    assert macs_of("FFMA") == 32 and macs_of("IADD3") == 0
    assert pipe_of("IMAD.MOV.U32") == "fma" and pipe_of("IMAD.WIDE") == "imad"
    assert pipe_of("LOP3.LUT") == "alu" and pipe_of("UIADD3") == "none"


def test_clocks_are_of_the_pipe_and_of_issuing() -> None:
    clocks = Mix({"LOP3.LUT": 8, "LDS.128": 2, "MUFU.EX2": 1}).clocks()
    assert clocks["issue"] == 11 / 4
    assert (clocks["alu"], clocks["shared"], clocks["xu"]) == (4, 8, 2)


def test_without_nvdisasm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.sass.shutil.which", lambda name: None)
    monkeypatch.setattr("benchmarks.sass.importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match="pip install nvidia-cuda-nvdisasm"):
        sass.nvdisasm()
    assert gpu_kernels.main(["--types", "f16"]) == 1


# --- limits ---


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared", "blocks", "limit"),
    [
        (H100, 128, 168, 0, 3, "registers"),  # 5,376 a warp: 3 in each quarter
        (H100, 256, 32, 0, 8, "registers"),
        (H100, 256, 16, 0, 8, "warps"),
        (H100, 256, 32, 50_176, 4, "shared memory"),
        (A100, 256, 32, 50_176, 3, "shared memory"),
        (H100, 32, 16, 0, 32, "blocks"),
        (H100, 256, 255, 0, 1, "registers"),
        (H100, 1024, 128, 0, 0, "registers"),  # does not fit
    ],
)
def test_occupancy(
    gpu: Gpu, threads: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    found = Occupancy.of(gpu, threads, registers, shared)
    assert found.blocks == blocks
    assert found.warps == blocks * threads // 32
    assert found.limit == limit


def test_a_launch_takes_what_takes_longest_and_the_wait_for_the_next_one() -> None:
    eight = Occupancy(8, 64, "warps")
    found = times(
        H100, eight, Demand(H100.copy_bytes_s, 0, {"alu": 132 * H100.clock}, n_blocks=132)
    )
    assert found.parts["memory"] == found.parts["alu"] == pytest.approx(1.0)
    assert found.total_s == pytest.approx(1.0 + 1e-6)
    few = times(H100, eight, Demand(0, 0, {"alu": 132 * H100.clock}, n_blocks=33))
    assert few.limit == "alu"
    assert few.work_s == pytest.approx(4.0)
    assert waves(H100, eight, 132 * 8) == 1


def test_blocks_begin_when_others_end() -> None:
    assert in_turn_s([3.0, 1.0, 1.0, 1.0], 2) == 3.0
    assert in_turn_s([1.0, 1.0, 1.0], 2) == 2.0
    assert in_turn_s([1.0], 396) == 1.0
    alike = times(H100, Occupancy(1, 8, "registers"), Demand(0, 0, {}, 0, 0, 0, 1.0, n_blocks=133))
    assert alike.parts["chain"] == 2.0
    # A block by itself takes a second of a multiprocessor's, and there are two waves.
    busy = Demand(0, 0, {"alu": 133 * H100.clock}, n_blocks=133)
    assert times(H100, Occupancy(1, 8, "registers"), busy).parts["chain"] == pytest.approx(2.0)


def test_what_bandwidth_allows() -> None:
    """13.3 bytes a clock of a multiprocessor, while it issues four instructions."""
    assert allowed(H100, 2.0) == pytest.approx(0.60, abs=0.01)


# --- covers ---


def constant(file: str, name: str) -> int:
    found = re.search(rf"constexpr int {name} = (\d+)", source.text(file))
    assert found, f"{file} has no {name}"
    return int(found.group(1))


def test_the_table_knows_the_constants_of_the_kernels() -> None:
    for name in ("SLICES", "WARPS", "WARP_ROWS", "COLUMNS", "TILES_AT_ONCE"):
        assert constant("products.cuh", name) == getattr(products, name)
    most = constant("products.cuh", "MOST_COLUMNS")
    assert most // products.COLUMNS == products.MANY_TILES
    assert constant("products_floats.cuh", "WARP_GROUPS") == products.FLOAT_GROUPS
    assert constant("products_int8.cuh", "WARP_GROUPS") == products.INT8_GROUPS
    assert constant("products_one.cuh", "ONE_STAGES") == products.ONE_STAGES
    assert constant("products_few.cuh", "FEW_STAGES") == products.FEW_STAGES
    assert constant("products_floats.cuh", "MANY_STAGES") == products.FLOAT_STAGES
    assert constant("products_int8.cuh", "MANY_STAGES") == products.INT8_STAGES
    for name in ("WIDE_COLUMNS", "WIDE_STAGES", "WIDE_GROUPS", "WIDE_TILES"):
        assert constant("products_wide.cu", name) == getattr(products, name)
    assert constant("attention_block.cuh", "AHEAD") == attention.CHUNKS_AHEAD
    assert constant("attention_block.cuh", "AT_ONCE") == attention.COLUMNS_AT_ONCE
    assert constant("attention.cu", "COST_CELLS") == attention.COST_CELLS
    for name in ("CHUNK", "EQUAL_CHUNKS", "CHUNKS_A_DOUBLING"):
        assert constant("attention.cuh", name) == getattr(attention, name)
    assert attention.CHUNK == attention.LEAST_COST * attention.COST_CELLS
    assert "LEAST_COST = CHUNK / COST_CELLS" in source.text("attention.cu")
    assert constant("attention_size.cuh", "STAGES") == attention.STAGES
    assert f"WARP_ROWS = {attention.TILE_ROWS} * TILES" in source.text("attention_size.cuh")


def test_chunks_are_those_of_the_launcher() -> None:
    for chunk in range(1, 1000):
        begin = attention.chunk_begin(chunk)
        assert (_chunk_of(begin), _chunk_of(begin - 1)) == (chunk, chunk - 1)


@pytest.mark.parametrize("cells", [Cells(1, 0, 1), Cells(1, 32_768, 1), Cells(32, 4096, 1)])
def test_items_have_all_cells_once(cells: Cells) -> None:
    items = attention.planned_items(cells, 16, 8, 528, 8065)
    n_cells = cells.n_seqs * (cells.depth + 1)
    assert sum(item.n_cells for item in items) == n_cells
    assert all(item.is_split for item in items) == (cells.depth > 0)
    n_chunks = (_chunk_of(cells.depth) + 1) * cells.n_seqs
    assert sum(item.n_chunks for item in items) == n_chunks


def test_a_prompt_has_tasks_of_queries() -> None:
    items = attention.planned_items(Cells(1, 0, 512), 16, 8, 528, 8065)
    assert {item.task for item in items} == set(range(32))
    assert {item.n_queries for item in items} == {16}
    last = [item for item in items if item.task == 31]
    assert sum(item.n_cells for item in last) == 512


def test_tasks_without_room_for_their_states_are_not_cut() -> None:
    cells = Cells(1, 32_768, 512)
    all_split = attention.planned_items(cells, 16, 8, 528, 1 << 20)
    assert sum(item.n_queries * item.n_chunks for item in all_split) > 8065
    items = attention.planned_items(cells, 16, 8, 528, 8065)
    split = {item.task for item in items if item.is_split}
    assert split == {0, 1, 2, 3, 4}  # of 16 queries and 97 chunks each
    assert sum(item.n_cells for item in items) == sum(32_768 + 16 * i for i in range(1, 33))


def test_warps_of_floats_have_two_groups_of_rows_and_half_of_the_columns() -> None:
    assert products.tiles_of_parts(12, 1) == [12]
    assert products.tiles_of_parts(16, 2) == [16, 16]
    assert products.tiles_of_parts(12, 2) == [16, 8]
    assert products.tiles_of_parts(1, 2) == [2]


def test_a_chunk_is_waited_for_as_far_as_those_before_it_do_not_take_as_long() -> None:
    chunk = Executed()
    chunk.add(Mix({"IADD3": 100}), 1)
    own_s = 200 / H100.clock  # of a warp; pipes take 8 x 50 clocks for 8 warps
    assert products.chunk_wait_s(chunk, 1, 1) == pytest.approx(DRAM_S - own_s)
    assert products.chunk_wait_s(chunk, 1, 3) == pytest.approx(DRAM_S / 3 - own_s)
    assert products.chunk_wait_s(chunk, 8, 1) == pytest.approx(DRAM_S - 2 * own_s)
    assert products.chunk_wait_s(chunk, 1, 8) == 0.0
    tensor = Executed()
    tensor.add(Mix({"HMMA.16816.F32": 1}), 64)
    flops_s = H100.f16_flops * H100.mma_share / H100.n_sm
    tensor_s = 8 * 64 * 2 * 2048 / flops_s
    assert products.chunk_wait_s(tensor, 8, 1) == pytest.approx(DRAM_S - tensor_s)


def test_unrolled_loops_end_early() -> None:
    one, all = Mix({"IMMA": 1, "LDS": 5}), Mix({"IMMA": 16, "LDS": 20})
    assert products.between(one, all, 1) == one
    assert products.between(one, all, 16) == all
    assert products.between(one, all, 4) == {"IMMA": 4, "LDS": 8}


def test_a_kernel_without_an_mma_is_not_the_one_of_the_table() -> None:
    with pytest.raises(ValueError, match="other: no loop with an mma"):
        path_to_macs(Loop(0, Mix({"FFMA": 8}), 8, ()), "other")
    odd = Loop(0, Mix(), 0, (Loop(16, Mix({"HMMA.16816.F32": 3}), 3, ()),))
    with pytest.raises(ValueError, match="is of another kernel"):
        products._Nest.of(odd, 2, 64, "odd")


def test_an_iteration_covers_no_more_than_a_chunk() -> None:
    """Of bf16 weights, both parts of x are multiplied: 128 numbers for a chunk of 64."""
    mix = Mix({"HMMA.16816.F32.BF16": 8})
    body = Loop(0, Mix(), 0, (Loop(16, mix, 8, ()),))
    assert products._Nest.of(body, 2, 64, "bf16").of_k == 64
    with pytest.raises(ValueError, match="is of another kernel"):
        products._Nest.of(body, 1, 64, "bf16")


def test_mma_of_16_integers_take_as_long_as_those_of_32() -> None:
    executed = Executed()
    executed.add(Mix({"IMMA.16816.S8.S8": 2, "IMMA.16832.S8.S8": 1, "HMMA.16816.F32": 1}), 10)
    assert executed.macs("I") == 10 * (2 * 4096 + 4096)
    assert executed.macs("H") == 10 * 2048
    assert executed.n == 40


# --- tables ---


def test_tables_show_what_is_there() -> None:
    rows: list[dict[str, Any]] = [{"a": 1.23456, "b": True}, {"a": None, "b": 1234.5}]
    assert list(markdown({"a": "x", "b": "y"}, rows)) == [
        "| x | y |", "|---|---|", "| 1.23 | yes |", "| - | 1234 |",
    ]  # fmt: skip


def test_results_have_a_line_for_each_row() -> None:
    result = {"about": {"n": 1}, "steps": [{"a": 1, "b": [2]}, {"a": 3}], "none": []}
    text = gpu_kernels.as_lines(result)
    assert json.loads(text) == result
    assert '  {"a": 1, "b": [2]},\n' in text


def test_the_document_says_that_nothing_is_measured() -> None:
    about = {key: key for key in ("gpu", "arch", "nvrtc", "date", "commit", "command", "constants")}
    units = [{"unit": "norm.cu", "kernel": "rms_norm", "sm_80": [32, 0, 64]}]
    result: dict[str, Any] = {
        "about": about | {"archs": ["sm_80"]}, "steps": [], "attention": [], "launches": {},
        "units": units,
    }  # fmt: skip
    text = document(result)
    assert "Predicted from machine code, not measured" in text
    assert "| norm.cu | rms_norm | 32 / 0 / 64 |" in text

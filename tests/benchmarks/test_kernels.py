"""The benchmark of kernels: what runs is right, and counted right. Nothing is timed."""

from __future__ import annotations

import ctypes
import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import kernel_ceilings, kernels
from benchmarks.kernel_cases import (
    HEAD,
    MOST_PRODUCTS,
    N_HEAD,
    WEIGHT_TYPES,
    Attention,
    Case,
    Measured,
    Product,
    Sources,
    attention,
    memory_bytes,
    products,
)
from benchmarks.kernel_ceilings import FACTORS_BYTES, LOOPS, READ, Machine
from benchmarks.kernels import main, parse, speed_of
from ggmlpy.backends.cpu.backend import CpuBackend
from ggmlpy.backends.cpu.isa import known, select
from ggmlpy.backends.cpu.jit import shared_jit
from ggmlpy.common import system_memory
from ggmlpy.conformance.checks import check_node
from ggmlpy.conformance.run import Prepared, computing
from tests.cpu.conftest import ISAS

TINY = [
    "--types", "q4_0,f32", "--rows", "1,3", "--sizes", "64x33", "--kv-types", "q8_0",
    "--depths", "5", "--streams", "2", "--prompt", "3", "--repeat", "2", "--memory-mb", "1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_ceilings, "SECONDS", 1e-5)
    monkeypatch.setattr(kernels, "READ_BYTES", 1 << 12)
    monkeypatch.setattr(kernels, "last_level_cache_bytes", lambda: None)


def run_loop(isa: str, loop: Any, *arguments: Any) -> None:
    code = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(shared_jit(select(isa)).address(loop))
    code(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments))


@pytest.mark.parametrize(("isa", "n"), list(product(ISAS, LOOPS)))
def test_loops_compute_all_that_they_count(isa: str, n: int) -> None:
    """A loop that left products out would give a ceiling that nothing reaches."""
    rng = np.random.default_rng(0)
    dots, fmas = LOOPS[n]
    n_rounds = 11
    x, w = rng.integers(0, 128, (16, 64), np.uint8), rng.integers(-128, 128, (16, 64), np.int8)
    sums = np.zeros((16, 16), np.int32)
    run_loop(isa, dots, np.concatenate([x.view(np.int8), w]), n_rounds, sums)
    each = (x[:, None].astype(np.int32) * w[None]).reshape(16, 16, 16, 4).sum(3)
    want = sum(each[i % 8] for i in range(n_rounds))
    assert np.array_equal(sums[:n], want[:n])
    assert not sums[n:].any()
    factors = rng.integers(-9, 10, (32, 16)).astype(np.float32)  # whose sums are exact
    of_f32 = np.zeros((16, 16), np.float32)
    run_loop(isa, fmas, factors, n_rounds, of_f32)
    want_f32 = sum(factors[i % 8] * factors[16:] for i in range(n_rounds))
    assert np.array_equal(of_f32[:n], want_f32[:n])


@pytest.mark.parametrize("isa", ISAS)
def test_reading_reads_every_line(isa: str) -> None:
    lines = np.zeros((24, 16), np.int32)
    for i in range(len(lines)):
        lines[i, i % 16] = 1 << i
    sums = np.zeros((8, 16), np.int32)
    run_loop(isa, READ, lines, lines.nbytes, sums)
    assert np.array_equal(sums, np.bitwise_or.reduce(lines.reshape(3, 8, 16)))


def test_threads_read_parts_and_all_ceilings_are_found() -> None:
    isa = select("generic")
    machine = Machine(isa, 2, np.ones(5000, np.uint8))
    assert [len(part) for part in machine._parts] == [2048, 2048]
    assert machine.measure(1e-5).keys() == {"read", "fma", "dot"}
    tiled = replace(isa, has=isa.has | {"amx-emulated"})
    found = Machine(tiled, 1, np.ones(1024, np.uint8)).measure(1e-5)
    assert found.keys() == {"read", "fma", "dot", "tiles", "bf16 tiles"}
    assert min(found.values()) > 0
    assert FACTORS_BYTES >= 1024 + 16 * 64


# --- what is measured ---------------------------------------------------------------------------

LAYOUTS = ("split", "unified", "interleaved")
SOME: list[Case] = [
    *(Product(t, 256, 33, n) for t in ("q4_0", "q4_K", "f16") for n in (1, 5)),
    *(Attention(t, 1, 9) for t in ("f16", "q8_0")),
    *(Attention("f32", 2, 9, 3, layout) for layout in LAYOUTS),
]


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.id)
def test_kernels_compute_what_they_are_said_to(case: Case) -> None:
    source = Sources(1 << 17)
    nodes = computing(*case.nodes(source))
    assert all(node.op is not None for node in nodes)
    assert {node.op.name for node in nodes if node.op} == {
        "mul_mat" if isinstance(case, Product) else "flash_attn_ext"
    }
    assert len({node.src[-1 if isinstance(case, Product) else 0] for node in nodes}) == 1
    assert check_node(nodes[0], CpuBackend(1)) == ""


def test_layouts_are_the_same_attention_of_the_same_sizes() -> None:
    """All queries see as many cells as they are said to, none two of which are the same."""
    for layout in LAYOUTS:
        case = Attention("f16", 2, 9, 3, layout)
        (node,) = computing(*case.nodes(Sources(1)))
        q, k, _, cells, seen = (t.spec for t in node.src)
        streams = 3 if layout == "split" else 1
        assert q.ne == (HEAD, 6 // streams, N_HEAD, streams)
        assert k.ne == (HEAD, 27 // streams, 8, streams)
        lists, sees = (t.numpy() for t in node.src[3:])
        assert sorted(lists.reshape(-1).tolist()) == list(range(27))
        assert sees.reshape(-1, 3).tolist() == [[s, 0, 8 + i] for s in range(3) for i in range(2)]
        assert case.n_products == 3 * (8 + 9) * 2 * HEAD * N_HEAD
        assert case.cache_bytes == 2 * k.n_elements * 2
        assert cells.ne[:2] == (9, 3)
        assert seen.ne[:3] == (3, 6 // streams, streams)
    first = [Attention("f16", 1, 9, 3, at).nodes(Sources(1))[0].src[3].numpy() for at in LAYOUTS]
    assert np.array_equal(first[0], first[1])
    assert first[2].squeeze()[1].tolist() == list(range(1, 27, 3))


def test_there_are_as_many_weights_as_memory_and_products_allow() -> None:
    source = Sources(1 << 20)
    q4_0 = Product("q4_0", 512, 512, 1)
    assert q4_0.weight_bytes == 512 * 512 // 32 * 18
    assert len(q4_0.nodes(source)) == (1 << 20) // q4_0.weight_bytes
    same = [node.src[0] for node in Product("q4_0", 512, 512, 3).nodes(source)]
    assert same == [node.src[0] for node in q4_0.nodes(source)]
    assert len(set(same)) == len(same)
    assert source.n_nodes(1, MOST_PRODUCTS // 2) == 2
    assert source.n_nodes(1 << 30, 1 << 40) == 1
    assert q4_0.n_bytes == q4_0.weight_bytes + 4 * 1024


def test_the_ceiling_is_that_of_the_instructions_that_kernels_use() -> None:
    by_name = {isa.name: isa for isa in known()}
    plain = select("generic")
    assert Product("q4_0", 32, 16, 1).unit(plain) == "dot"
    assert Product("f32", 32, 16, 1).unit(plain) == "fma"
    assert Attention("q8_0", 1, 9).unit(plain) == "fma"
    if "amx" in by_name:
        amx = by_name["amx"]
        assert Product("q4_K", 256, 16, 1).unit(amx) == "tiles"
        assert Product("bf16", 32, 16, 1).unit(amx) == "bf16 tiles"
        assert Product("f16", 32, 16, 1).unit(amx) == "fma"


def test_figures_are_medians_of_a_node_beside_their_ceilings() -> None:
    case = Product("f16", 1000, 100, 1)
    never: Any = None
    measured = Measured(case, select("generic"), 2, 4, never, [9.0, 4e-3, 1e-9])
    speed = speed_of(measured, {"read": 1e9, "fma": 4e8})
    assert speed.seconds == pytest.approx(1e-3)
    assert speed.products_per_s == pytest.approx(1e8)
    assert speed.share_of_products == pytest.approx(0.25)
    assert speed.share_of_reading == pytest.approx((2e5 + 4400) / 1e-3 / 1e9)
    assert speed.shown == ("0.1", "0.204", "25%")
    fast = speed_of(measured, {"read": 2.5e8, "fma": 4e8})
    assert fast.shown[-1] == "r 82%"


def test_every_type_that_is_packed_is_measured() -> None:
    cases = products(WEIGHT_TYPES, [(256, 16)], [1])
    assert {case.type for case in cases if isinstance(case, Product)} == set(WEIGHT_TYPES)
    assert len({case.id for case in cases}) == len(cases) > 15
    assert len({case.id for case in attention(["f16"], [8, 16], 4, 4)}) == 7


# --- the command --------------------------------------------------------------------------------


def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    isas = list(dict.fromkeys((ISAS[0], "generic")))
    results = tmp_path / "kernels.json"
    options = ["--isa", ",".join(isas), "--threads", "1,2", "--save", str(results)]
    assert main([*TINY, *options]) == 0
    shown = capsys.readouterr().out
    assert "kernels, 1 thread" in shown
    assert "kernels, 2 threads" in shown
    (entry,) = json.loads(results.read_text()).values()
    ways = [(c["isa"], c["threads"]) for c in entry["ceilings"]]
    assert ways == [(isa, n) for n in (1, 2) for isa in isas]
    of_products = {f"{t} 64x33 rows={n}" for t in ("q4_0", "f32") for n in (1, 3)}
    of_attention = {
        f"attention q8_0 {case}"
        for case in (
            "depth=5", "streams=2 split depth=5", "streams=2 unified depth=5",
            "streams=2 interleaved depth=5", "prompt=3 depth=3", "prompt=3 depth=8",
        )
    }  # fmt: skip
    for way in ways:
        found = [k for k in entry["kernels"] if (k["isa"], k["threads"]) == way]
        assert {k["id"] for k in found} == of_products | of_attention
        assert all(k["seconds"] > 0 and k["share"] > 0 for k in found)
    assert all(id in shown for id in of_products | of_attention)


def test_a_pattern_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    only = ["--isa", "generic", "--threads", "1", "--only", "q4_0*rows=3"]
    assert main([*TINY, *only]) == 0
    shown = capsys.readouterr()
    assert "generic, 1 thread: planning 1 kernel\n" in shown.err
    rows = [line for line in shown.out.splitlines() if "64x33" in line]
    assert len(rows) == 1
    assert "q4_0 64x33 rows=3" in rows[0]


def test_memory_is_counted(tmp_path: Path) -> None:
    """Of a type and size once, however many cases use it; x and results for each way."""
    source = Sources(1 << 20)
    one, two = Product("q4_0", 512, 512, 1), Product("q4_0", 512, 512, 3)
    n_nodes = (1 << 20) // one.weight_bytes
    stored = 512 * 512 // 32 * 18
    held = n_nodes * (stored + one.weight_bytes)
    others = n_nodes * 4 * 1024
    assert memory_bytes([one], source, 1) == held + others
    assert memory_bytes([one, two], source, 3) == held + 3 * (others + 3 * others)
    in_place = Product("f32", 512, 512, 1)
    assert memory_bytes([in_place], source, 1) == 4 * 512 * 512 + 4 * 1024
    caches = Attention("f16", 1, 9, 3), Attention("f16", 1, 9, 3, "unified")
    n_nodes = (1 << 20) // caches[0].cache_bytes
    queries = 2 * 4 * HEAD * N_HEAD * 3
    assert memory_bytes(caches, source, 1) == n_nodes * (caches[0].cache_bytes + 2 * queries)
    made = {x.root for node in caches[0].nodes(source) for x in node.src[1:3]}
    assert sum(leaf.spec.n_bytes for leaf in made) == n_nodes * caches[0].cache_bytes


@pytest.mark.parametrize("options", [["--memory-mb", "9"], ["--rows", "500000"]])
def test_more_memory_than_there_is_is_refused_before_any_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    def take(*_: Any) -> Any:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(system_memory, "physical_memory", lambda: 8 << 20)
    monkeypatch.setattr(np, "ones", take)
    monkeypatch.setattr(kernels, "prepare", take)
    assert main([*TINY, *options]) == 1
    said = r"error: --memory-mb [19]: \d+ bytes of memory cannot be had, this machine has 8388608\n"
    assert re.fullmatch(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--only", "q9"], "--only q9: no kernel is called so"),
        (["--types", "q4_K", "--sizes", "64x8"], "rows of q4_K are multiples of 256"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, *wrong]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--isa", "sse5", "there is no sse5 here, but"),
        ("--types", "q9", "there is no q9 here, but"),
        ("--kv-types", "x", "there is no x here, but"),
        ("--sizes", "64", "'64' must be sizes such as 2048x8192,1536x1001"),
        ("--sizes", "64x0", "'0' must be a whole number of at least 1"),
        ("--rows", "1,0", "'1,0' must be whole numbers of at least 1, separated by commas"),
        ("--repeat", "many", "'many' must be a whole number of at least 1"),
        ("--save", "no/such/folder/x.json", "there is no folder no/such/folder"),
    ],
)
def test_what_there_is_not_is_refused(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([option, value])
    assert re.search(f"{option}: {re.escape(said)}", capsys.readouterr().err)


def test_quick_is_a_part_of_the_whole() -> None:
    whole, quick = parse([]), parse(["--quick"])
    assert set(quick.types) < set(whole.types)
    assert quick.isa == ISAS[:1]
    assert quick.repeat < whole.repeat
    assert parse(["--quick", "--repeat", "9"]).repeat == 9


def test_weights_that_caches_hold_are_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "last_level_cache_bytes", lambda: 64 << 20)
    one = products(["q4_0"], [(64, 33)], [1])
    assert kernels.doubts_of(one, parse(["--memory-mb", "128"])) == []
    (doubt,) = kernels.doubts_of(one, parse([]))
    assert "--memory-mb 128" in doubt
    assert kernels.doubts_of(one * 4, parse([])) == []


def test_caches_are_read_where_they_are() -> None:
    """Not copied for each plan: six plans of 32 streams would hold half a gigabyte."""
    case = Attention("f16", 1, 9)
    source = Sources(1)
    (node,) = computing(*case.nodes(source))
    plan = Prepared(CpuBackend(1), [node])
    root = node.src[1].root
    assert root.place is not None
    assert plan._place(root).address == root.place.address

"""`ggmlpy batched-bench`: cases, caches and contexts. No timing is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.bench_output import REFERENCE, SMALL, json_lines, table
from tests.cli.conftest import Run


def batched(run: Run, model: Path, *args: Any) -> list[dict[str, Any]]:
    return json_lines(run, "batched-bench", "-m", model, *args)


def test_batched_columns_are_llama_cpps(run: Run, tiny: Path) -> None:
    outcome = run("batched-bench", "-m", tiny, *SMALL, *REFERENCE)
    assert outcome.out.splitlines()[0] == (
        "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |"
        "    S t/s |"
    )
    _, *rows = table(outcome.out)
    counts = [[int(cell) for cell in row[:4]] for row in rows]
    assert counts == [[4, 2, 1, 6], [4, 2, 3, 18], [6, 2, 1, 8], [6, 2, 3, 24]]
    assert all(float(cell) >= 0 for row in rows for cell in row[4:])
    assert outcome.err.startswith(
        "24 tokens of context, 8 for each of 3 sequences; batches of 2048"
    )


@pytest.mark.parametrize("form", [("--json",), ("--output-format", "jsonl")])
def test_batched_json_has_llama_cpps_fields(run: Run, tiny: Path, form: tuple[str, ...]) -> None:
    rows = batched(run, tiny, *SMALL, *form)
    assert [row["n_kv"] for row in rows] == [6, 18, 8, 24]
    for row in rows:
        assert row["t"] == pytest.approx(row["t_pp"] + row["t_tg"])
        assert row["speed_pp"] * row["t_pp"] == pytest.approx(row["pl"] * row["pp"])
        assert row["speed_tg"] * row["t_tg"] == pytest.approx(row["pl"] * row["tg"])
        assert row["speed"] * row["t"] == pytest.approx(row["n_kv"])


@pytest.mark.parametrize(
    ("flags", "n_kv", "n_kv_max"),
    [
        ((), 3 * 6 + 3 * 2, 24),
        (("-kvu",), 3 * 6 + 3 * 2, 24),
        (("-pps",), 3 * 6 + 3 * 2, 24),
        (("-pps", "--kv-unified"), 6 + 3 * 2, 12),
        (("-pps", "--kv-layout", "unified"), 6 + 3 * 2, 12),
        (("-pps", "--kv-layout", "paged"), 6 + 3 * 2, 24),
    ],
)
def test_shared_prompts_and_one_cache(
    run: Run, tiny: Path, flags: tuple[str, ...], n_kv: int, n_kv_max: int
) -> None:
    (row,) = batched(run, tiny, "-npp", 6, "-ntg", 2, "-npl", 3, "--json", *flags)
    assert (row["n_kv"], row["n_kv_max"]) == (n_kv, n_kv_max)
    assert row["is_pp_shared"] == ("-pps" in flags)
    is_unified = bool({"-kvu", "--kv-unified", "unified"}.intersection(flags))
    assert row["kv_unified"] == is_unified
    assert row["kv_layout"] == (
        "unified" if is_unified else "paged" if "paged" in flags else "split"
    )
    n_run = 6 if row["is_pp_shared"] else 18
    assert row["speed_pp"] * row["t_pp"] == pytest.approx(n_run)


def test_layouts_that_contradict_each_other(run: Run, tiny: Path) -> None:
    result = run("batched-bench", "-m", tiny, "-kvu", "--kv-layout", "paged")
    assert result.code != 0
    assert 'kv_layout is "paged", but kv_unified is True' in result.err


def test_options_reach_the_context(run: Run, tiny: Path) -> None:
    args = ("-npp", 6, "-ntg", 0, "-npl", 1, "-c", 100, "-b", 4, "-ub", 64, "-t", 3)
    (row,) = batched(run, tiny, *args, "-ctk", "bf16", "-ctv", "f32", "-fa", "off", "--json")
    wanted = {
        "n_kv_max": 100, "n_batch": 4, "n_ubatch": 4, "n_threads": 3, "type_k": "bf16",
        "type_v": "f32", "flash_attn": False, "backends": "reference", "tg": 0, "speed_tg": 0.0,
    }  # fmt: skip
    assert row.items() >= wanted.items()


def test_a_case_that_does_not_fit_is_said(run: Run, tiny: Path) -> None:
    outcome = run("batched-bench", "-m", tiny, *SMALL, "-c", 18, *REFERENCE, "--json")
    assert outcome.code == 0
    assert [json.loads(line)["pp"] for line in outcome.out.splitlines()] == [4, 4]
    assert outcome.err.splitlines() == [
        f"ggmlpy: warning: PP 6, TG 2, B {b} is skipped:"
        " it needs 8 tokens for each sequence, which has n_ctx_seq = 6"
        for b in (1, 3)
    ]
    outcome = run("batched-bench", "-m", tiny, *SMALL, "-c", 5, "-kvu", *REFERENCE, "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.splitlines()[-1] == (
        "ggmlpy: error: n_ctx is 5: none of the cases fits; the smallest needs -c 6, all of them"
        " -c 24, which it is without -c"
    )
    outcome = run("batched-bench", "-m", tiny, *SMALL, "-c", 6, *REFERENCE, "--json")
    assert "none of the cases fits; the smallest needs -c 18 (6 with -kvu), all" in outcome.err
    outcome = run("batched-bench", "-m", tiny, *SMALL, "-c", 2, *REFERENCE)
    assert outcome.error == "n_ctx is 2: less than one token for each of 3 sequences"


@pytest.mark.parametrize("option", ["-npp", "-ntg", "-npl"])
@pytest.mark.parametrize("text", ["", "1,,2", "a", "1;2", "-3", "1.5", "2,-1"])
def test_lists_that_are_none(run: Run, tiny: Path, option: str, text: str) -> None:
    message = run("batched-bench", "-m", tiny, f"{option}={text}").usage_error
    assert f"'{option}'" in message
    assert f"{text!r} is not a list of integers of at least" in message


@pytest.mark.parametrize("option", ["-npp", "-npl"])
def test_nothing_cannot_be_measured(run: Run, tiny: Path, option: str) -> None:
    message = run("batched-bench", "-m", tiny, option, "0").usage_error
    assert "'0' is not a list of integers of at least 1" in message


def test_a_context_that_has_no_equal_parts(run: Run, tiny: Path) -> None:
    args = ("batched-bench", "-m", tiny, *SMALL, "-c", 100, *REFERENCE)
    assert run(*args).usage_error == (
        "'-c': 3 sequences cannot have equal parts of 100 tokens: set it to 99 or"
        " 102, or -kvu to share them"
    )
    for shared in ("-kvu", "--kv-unified"):
        assert run(*args, shared).code == 0
        for separate in ("-no-kvu", "--no-kv-unified"):
            assert run(*args, shared, separate).code == 2


def test_the_context_that_is_said_to_be_needed_is_enough(run: Run, tiny: Path) -> None:
    args = ("batched-bench", "-m", tiny, *SMALL, *REFERENCE, "--json")
    for more, n_rows in ((("-c", 18), 2), (("-c", 6, "-kvu"), 1), (("-c", 24), 4)):
        assert len(run(*args, *more).out.splitlines()) == n_rows


def test_sequences_that_write_one_after_the_other(run: Run, tiny: Path) -> None:
    (row,) = batched(run, tiny, "-npp", 6, "-ntg", 2, "-npl", 3, "-tgs", "--json")
    assert row["is_tg_separate"]
    assert row["n_kv"] == 3 * 8

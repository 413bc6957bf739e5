"""`ggmlpy bench`, and the formats that `batched-bench` has too. No timing is judged."""

from __future__ import annotations

import csv
import json
import sqlite3
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Any

import click
import pytest

from ggmlpy.bench import bandwidth
from ggmlpy.cli.table import Format, Records, rate_text
from ggmlpy.cli.types import Numbers
from tests.cli.bench_output import REFERENCE, SMALL, json_lines, table
from tests.cli.conftest import Run
from tests.models.seeded import write_seeded
from tests.models.seeded_specs import SPECS
from tests.models.tiny import Tiny, write_model


@pytest.fixture(autouse=True)
def _known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "read_bandwidth", lambda n_threads: 5e9)
    monkeypatch.setattr(bandwidth, "last_level_cache_bytes", lambda: 1)


def test_the_bench_table(run: Run, tiny: Path) -> None:
    outcome = run(
        "bench", "-m", tiny, "-p", 8, "-n", "2,3", "-d", "0,5", "-r", 2, "-t", 2, *REFERENCE
    )
    assert outcome.code == 0, outcome
    head, *rows = table(outcome.out)
    assert head == [
        "model", "size", "params", "backend", "threads", "test", "t/s", "GB/s", "of bandwidth",
    ]  # fmt: skip
    assert [row[5] for row in rows] == [
        "pp8", "tg2", "tg3", "pp8 @ d5", "tg2 @ d5", "tg3 @ d5",
    ]  # fmt: skip
    for row in rows:
        assert row[:1] + row[3:5] == ["llama f32", "reference", "2"]
        mean, _, deviation = row[6].partition(" ± ")
        assert float(mean) > 0
        assert float(deviation) >= 0
        assert row[8].endswith("%")
    assert outcome.err == "read bandwidth of this machine: 5.0 GB/s with 2 threads\n"


@pytest.mark.parametrize("form", [("--json",), ("-o", "jsonl")])
def test_bench_json_has_llama_benchs_fields(run: Run, tiny: Path, form: tuple[str, ...]) -> None:
    args = ("-p", 8, "-n", 2, "-d", 5, "-r", 3, "-t", 2)
    rows = json_lines(run, "bench", "-m", tiny, *args, *form)
    assert [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows] == [
        (8, 0, 5),
        (0, 2, 5),
    ]
    for row in rows:
        assert row["n_threads"] == 2
        assert len(row["samples_ts"]) == 3
        assert row["avg_ts"] == pytest.approx(sum(row["samples_ts"]) / 3)
        assert row["stddev_ts"] >= 0
        assert row["avg_ns"] == pytest.approx(sum(row["samples_ns"]) / 3, abs=1)
        assert row["stddev_ns"] == pytest.approx(stdev(row["samples_ns"]), abs=1)
        n_tokens = row["n_prompt"] + row["n_gen"]
        rates = [1e9 * n_tokens / ns for ns in row["samples_ns"]]
        assert row["samples_ts"] == pytest.approx(rates, rel=1e-3)
        assert row["bandwidth_gbs"] > 0
        assert row["bandwidth_share"] == pytest.approx(row["bandwidth_gbs"] / 5)
        assert row["model_n_params"] == 98_624


def test_only_what_is_asked_for_is_measured(run: Run, tiny: Path) -> None:
    for args, wanted in ((("-p", 0, "-n", 2), (0, 2)), (("-p", 4, "-n", 0), (4, 0))):
        rows = json_lines(run, "bench", "-m", tiny, *args, "-r", 1, "--json")
        assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [wanted]
        assert rows[0]["stddev_ts"] == 0
    message = run("bench", "-m", tiny, "-p", 0, "-n", 0).usage_error
    assert "-p and -n are both 0: there is nothing to measure" in message
    assert "'1,x' is not a list" in run("bench", "-m", tiny, "-d", "1,x").usage_error


def test_memory_that_is_not_the_hosts_has_no_share(run: Run, tiny: Path) -> None:
    """As on a device of its own: `null` stands for one here."""
    args = ("-m", tiny, "-p", 4, "-n", 0, "-r", 1, "--backend", "null")
    outcome = run("bench", *args, "--json")
    row = json.loads(outcome.out)
    assert (row["backends"], row["bandwidth_share"]) == ("null", None)
    shown = run("bench", *args)
    assert shown.err == ""
    assert table(shown.out)[1][8] == "-"


def test_what_fits_the_cache_has_no_share(
    run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "last_level_cache_bytes", lambda: 1 << 25)
    args = ("bench", "-m", tiny, "-p", 4, "-n", 0, "-r", 1)
    (row,) = json_lines(run, *args, "--json")
    assert row["bandwidth_share"] is None and row["bandwidth_gbs"] > 0
    assert table(run(*args, *REFERENCE).out)[1][8] == "cache"


@pytest.mark.parametrize(("name", "gives"), [("bert", "embeddings"), ("dream", "logits")])
def test_models_that_generate_nothing(run: Run, tmp_path: Path, name: str, gives: str) -> None:
    path = write_seeded(tmp_path, name, SPECS[name])
    refused = f"a {name} model generates no text: "
    args = ("bench", "-m", path, "-n", 2, "-d", "0,3", "-r", 1, *REFERENCE, "--json")
    outcome = run(*args, "-p", 4)
    assert [json.loads(line)["n_prompt"] for line in outcome.out.splitlines()] == [4]
    assert outcome.err == (
        f"ggmlpy: note: {refused}only prompts without a depth are measured, t/s is of tokens whose"
        f" {gives} are computed\n"
    )
    alone = run(*args, "-p", 0)
    assert alone.error == f"{refused}only prompts without a depth can be measured"
    many = ("batched-bench", "-m", path, "-npp", 4, "-npl", "1,2", *REFERENCE, "--json")
    assert run(*many, "-ntg", 2).error == f"{refused}-ntg 0 measures prompts"
    rows = [json.loads(line) for line in run(*many, "-ntg", 0).out.splitlines()]
    assert [(row["n_kv"], row["speed_tg"]) for row in rows] == [(4, 0), (8, 0)]


SHORTENED = {
    "bert": ((), [(100, 0, 0)], "pp100 in place of pp512"),
    "gpt2": (
        ("-d", "0,96"),
        [(100, 0, 0), (0, 100, 0), (4, 0, 96), (0, 4, 96)],
        "pp100 in place of pp512, tg100 in place of tg128, pp4 @ d96 in place of pp512 @ d96,"
        " tg4 @ d96 in place of tg128 @ d96",
    ),
}


@pytest.mark.parametrize("name", SHORTENED)
def test_default_lengths_are_those_that_the_model_can_have(
    run: Run, tmp_path: Path, name: str
) -> None:
    args, sizes, told = SHORTENED[name]
    spec = SPECS[name]
    path = write_seeded(tmp_path, name, replace(spec, keys={**spec.keys, "context_length": 100}))
    limit = (
        f"a {name} model of this file can have at most 100 tokens a sequence (it has embeddings of"
        " that many positions)"
    )
    command = ("bench", "-m", path, "-r", 1, *REFERENCE, "--json")
    done = run(*command, *args)
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [(row["n_prompt"], row["n_gen"], row["n_depth"]) for row in rows] == sizes
    assert done.err.splitlines()[-1] == f"ggmlpy: note: {told}: {limit}"
    for given in (("-p", 101), ("-p", 101, "-n", 0)):
        error = run(*command, *given).err.splitlines()[-1]
        assert error == f"ggmlpy: error: n_ctx_seq is 101: {limit}"


def test_caches_that_cpus_share_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of the known size
    monkeypatch.setattr(bandwidth, "CPUS", tmp_path)
    assert bandwidth.last_level_cache_bytes() is None
    for cpu, cpus in enumerate(("0-1", "0-1", "2-3", "2-3")):
        for index, (level, size) in enumerate(((1, "32K"), (3, "4096K"))):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            of_cache = {"level": level, "size": size, "shared_cpu_list": cpus}
            for name, value in of_cache.items():
                (folder / name).write_text(f"{value}\n")
    assert bandwidth.last_level_cache_bytes() == 2 * 4096 * 1024


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8", [8]),
        ("1-3", [1, 2, 3]),
        ("8-16+4", [8, 12, 16]),
        ("8-17+4,1", [8, 12, 16, 1]),
        ("8-64*2", [8, 16, 32, 64]),
        ("5-5*2", [5]),
    ],
)
def test_ranges_of_numbers(text: str, numbers: list[int]) -> None:
    assert Numbers(1).convert(text, None, None) == numbers


@pytest.mark.parametrize(
    "text", ["8-16+0", "8-16*1", "5-5*1", "0-16*2", "8-4", "8-16-2", "8+2", "1-2000"]
)
def test_ranges_that_have_no_end_or_no_beginning(text: str) -> None:
    with pytest.raises(click.BadParameter) as raised:
        Numbers(0).convert(text, None, None)
    assert raised.value.message.startswith(repr(text))


def test_every_number_of_threads_has_its_rows(run: Run, tiny: Path) -> None:
    args = ("bench", "-m", tiny, "-p", 4, "-n", 0, "-r", 1, "-t", "1,2")
    rows = json_lines(run, *args, "--json")
    assert [row["n_threads"] for row in rows] == [1, 2]
    shown = table(run(*args, *REFERENCE).out)
    assert [row[4] for row in shown] == ["threads", "1", "2"]
    for wrong in ("0", "1,x", "1000"):
        message = run("bench", "-m", tiny, "-t", wrong).usage_error
        assert message.startswith("'-t' / '--threads': ")


def test_a_prompt_and_text_as_one_test(run: Run, tiny: Path) -> None:
    args = ("bench", "-m", tiny, "-p", 0, "-n", 0, "-pg", "4,2", "-pg", "3,1", "-r", 1, "--json")
    rows = json_lines(run, *args)
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(4, 2), (3, 1)]
    assert "'4' is not two numbers" in run("bench", "-m", tiny, "-pg", "4").usage_error


@pytest.mark.parametrize(
    "args",
    [
        ("bench", "-p", 4, "-n", 2, "-r", 2, "-o"),
        ("batched-bench", *SMALL, "--output-format"),
    ],
)
def test_csv_has_the_fields_of_json(run: Run, tiny: Path, args: tuple[Any, ...]) -> None:
    command = (*args, "csv", "-m", tiny, *REFERENCE)
    rows = list(csv.DictReader(run(*command).out.splitlines()))
    wanted = json_lines(run, args[0], "-m", tiny, *args[1:-1], "--json")
    assert [list(row) for row in rows] == [list(row) for row in wanted]
    first = "n_prompt" if args[0] == "bench" else "pp"
    assert [row[first] for row in rows] == [str(row[first]) for row in wanted]
    if args[0] == "bench":
        assert all(len(json.loads(row["samples_ts"])) == 2 for row in rows)


@pytest.mark.parametrize(
    "args",
    [
        ("bench", "-p", 4, "-n", 2, "-r", 2, "-o"),
        ("batched-bench", *SMALL, "--output-format"),
    ],
)
def test_json_and_sql_have_the_records(run: Run, tiny: Path, args: tuple[Any, ...]) -> None:
    wanted = json_lines(run, args[0], "-m", tiny, *args[1:-1], "--json")
    array = json.loads(run(*args, "json", "-m", tiny, *REFERENCE).out)
    assert [list(record) for record in array] == [list(record) for record in wanted]
    database = sqlite3.connect(":memory:")
    database.row_factory = sqlite3.Row
    for _ in range(2):  # into a table that is there too
        database.executescript(run(*args, "sql", "-m", tiny, *REFERENCE).out)
    table = "llama_bench" if args[0] == "bench" else "batched_bench"
    rows = database.execute(f"SELECT * FROM {table}").fetchall()
    assert len(rows) == 2 * len(wanted)
    same = ("model_filename", "n_batch", "type_k", "flash_attn", "n_prompt", "n_gen", "pp", "n_kv")
    for row, record in zip(rows, wanted, strict=False):
        assert row.keys() == list(record)
        for name in set(same) & set(record):
            assert row[name] == record[name]
        for name, value in record.items():
            if isinstance(value, float):
                assert isinstance(row[name], float)
            elif isinstance(value, list):
                assert len(json.loads(row[name])) == len(value)


def test_quotes_and_missing_values_in_sql(capsys: pytest.CaptureFixture[str]) -> None:
    record = {"name": "it's", "share": None, "fits": True, "rate": float("inf"), "n": -1}
    with Records(Format.sql, "t") as records:
        records.write(record)
    database = sqlite3.connect(":memory:")
    database.executescript(capsys.readouterr().out)
    assert database.execute("SELECT * FROM t").fetchall() == [("it's", None, 1, "inf", -1)]


def test_an_array_without_records(capsys: pytest.CaptureFixture[str]) -> None:
    with Records(Format.json, "t"):
        pass
    assert json.loads(capsys.readouterr().out) == []


def test_every_combination_is_measured(run: Run, tiny: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "a,b.gguf", Tiny(n_layer=1))
    args = ("-p", 4, "-p", 6, "-n", 0, "-r", 1, "-ub", "2,4", "-fa", 0, "-fa", 1, "-ctk", "f16,f32")
    rows = json_lines(run, "bench", "-m", tiny, "-m", other, *args, "--json")
    seen = [
        tuple(row[n] for n in ("model_filename", "n_ubatch", "type_k", "flash_attn", "n_prompt"))
        for row in rows
    ]
    assert seen == list(product(map(str, (tiny, other)), (2, 4), ("f16", "f32"), (0, 1), (4, 6)))
    by_comma = json_lines(run, "bench", "-m", f"{tiny},{tiny}", "-p", 4, "-n", 0, "-r", 1, "--json")
    assert [row["model_filename"] for row in by_comma] == [str(tiny)] * 2
    head, *shown = table(run("bench", "-m", tiny, *args, *REFERENCE).out)
    assert head[4:8] == ["threads", "n_ubatch", "type_k", "fa"]
    assert [row[5:9] for row in shown[:3]] == [
        ["2", "f16", "0", "pp4"],
        ["2", "f16", "0", "pp6"],
        ["2", "f16", "1", "pp4"],
    ]


def test_values_that_lists_cannot_have(run: Run, tiny: Path) -> None:
    for given, message in (
        (("-ub", "4,0"), "'-ub' / '--ubatch-size': 0 is not at least 1"),
        (("-fa", "on,perhaps"), "'-fa' / '--flash-attn': 'perhaps' is not on, off or auto"),
        (("-ngl", "1,-2"), "'-ngl' / '--gpu-layers' / '--n-gpu-layers': -2 is not at least -1"),
        (("-m", ""), "'-m' / '--model': the name of the file is empty"),
        (("-m", f"{tiny},"), "'-m' / '--model': the name of the file is empty"),
    ):
        assert run("bench", *given).usage_error == message
    missing = run("bench", "-m", tiny, "-m", "none.gguf").error
    assert missing == "none.gguf: there is no such file in ."


def test_rates_fit_their_columns() -> None:
    assert [rate_text(x) for x in (0, 84.2, 99_999.994)] == ["0.00", "84.20", "99999.99"]
    assert [rate_text(x) for x in (99_999.995, 12_345_678.9)] == ["100000", "12345679"]

"""`ggmlpy perplexity`: figures of llama-perplexity, recorded with f32 K and V and without flash
attention, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.engine.perplexity_data import HELLASWAG, STORY, TEXT, WINOGRANDE, multiple_choice_file
from tests.shared import shared_path

EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "2")
ESTIMATES = [
    (TEXT, ("-c", "32"),
     "[1]1.3043,[2]2.2100,[3]3.4043,[4]4.2652,[5]3.8236,[6]4.0132,[7]5.7139,[8]7.2630,[9]6.8956,"),
    (TEXT, ("-c", "32", "-b", "32", "--chunks", "3"), "[1]1.3043,[2]2.2100,[3]3.4043,"),
    (TEXT, ("-c", "64", "--chunks", "2"), "[1]2.8913,[2]4.2124,"),
    (TEXT * 3, ("-c", "16", "--ppl-stride", "100"),
     "[1]7.9982,[2]5.4483,[3]5.7325,[4]6.2284,[5]5.6157,[6]5.7313,[7]6.0098,"),
]  # fmt: skip


@pytest.fixture(scope="module")
def stories() -> Path:
    return shared_path("stories260K.gguf")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore:n_ctx")
@pytest.mark.parametrize(("text", "options", "line"), ESTIMATES, ids=range(len(ESTIMATES)))
def test_estimates_are_llama_perplexitys(
    run: Run, stories: Path, tmp_path: Path, text: str, options: tuple[str, ...], line: str
) -> None:
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    outcome = run("perplexity", "-m", stories, "-f", tmp_path / "t.txt", *EXACT, *options)
    assert outcome.code == 0, outcome
    shown, final = outcome.out.splitlines()
    assert shown == line
    assert final.startswith(f"Final estimate: PPL = {line.split(']')[-1].strip(',')} +/- ")


def test_the_final_estimate_has_an_error(run: Run, stories: Path, text: Path) -> None:
    outcome = run("perplexity", "-m", stories, "-f", text, "-c", 32, *EXACT)
    assert outcome.out.endswith("Final estimate: PPL = 6.8956 +/- 1.69451\n")
    lines = run(
        "perplexity", "-m", stories, "-f", text, "-c", 32, *EXACT, "--ppl-output-type", 1
    ).out.splitlines()
    assert lines[0].split() == ["0", "1.3043", "0.265703", "0.088909"]
    assert [line.split()[0] for line in lines[:9]] == [str(32 * i) for i in range(9)]


def test_the_packaged_models_perplexity(run: Run, tmp_path: Path) -> None:
    """llama.cpp says 2.4590 to 2.4665, by how many tokens are run at a time: q8_0 weights."""
    outcome = run("perplexity", "-p", STORY, "-c", 48, "--json", "-t", 2)
    found = json.loads(outcome.out)
    assert found["ppl"] == pytest.approx(2.4665, rel=1e-2)
    want = [1.9973, 2.8792, 2.9287, 2.4856, 2.1615, 2.4665]
    assert found["ppl_after"] == pytest.approx(want, rel=1e-2)
    assert (found["n_chunks"], found["n_ctx"], found["n_scored"]) == (6, 48, 6 * 23)
    assert found["mean_nll_error"] * found["ppl"] == pytest.approx(found["ppl_error"])


ACCURACIES: list[tuple[str, tuple[Any, ...], str]] = [
    ("h.txt", ("--hellaswag",), "10	10.00000000%	[1.7876%, 40.4150%]"),
    ("h.txt", ("--hellaswag",), "5	20.00000000%	[3.6224%, 62.4465%]"),
    ("h.txt", ("--hellaswag", "--hellaswag-tasks", 4), "4	0.00000000%	[0.0000%, 48.9891%]"),
    ("m.bin", ("--multiple-choice",), "1	100.00000000"),
    ("m.bin", ("--multiple-choice",), "10	10.00000000"),
    ("m.bin", ("--multiple-choice",), "Final result: 10.0000 +/- 10.0000"),
    ("m.bin", ("--multiple-choice",), "Random chance: 31.2500 +/- 15.4504"),
    ("m.bin", ("--multiple-choice", "--multiple-choice-tasks", 4), "4	0.00000000"),
]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "h.txt").write_text(HELLASWAG + "\n", encoding="utf-8")
    (tmp_path / "w.csv").write_text(WINOGRANDE, encoding="utf-8")
    (tmp_path / "m.bin").write_bytes(multiple_choice_file())
    return tmp_path


@pytest.mark.parametrize(("name", "options", "line"), ACCURACIES, ids=range(len(ACCURACIES)))
def test_accuracies_are_llama_perplexitys(
    run: Run, stories: Path, tasks: Path, name: str, options: tuple[Any, ...], line: str
) -> None:
    file = ("-bf" if name == "m.bin" else "-f", tasks / name)
    out = run("perplexity", "-m", stories, *file, "-c", 128, *EXACT, *options).out
    assert line in out.splitlines()


@pytest.mark.parametrize("n", [0, 3])
def test_scores_of_winogrande_are_llama_perplexitys(
    run: Run, stories: Path, tasks: Path, n: int
) -> None:
    want = [
        (-0.987034, -1.054362, 1, 2), (-1.902547, -1.901157, 2, 1), (-1.934737, -1.928721, 2, 1),
        (-1.910718, -1.641934, 2, 2), (-1.965007, -1.873940, 2, 2), (-1.583101, -1.700886, 1, 1),
    ]  # fmt: skip
    want = [want[i] for i in (2, 4, 5)] if n else want
    options = ("--winogrande", "--winogrande-tasks", n, "-f", tasks / "w.csv", "-c", 128)
    out = run("perplexity", "-m", stories, *options, *EXACT).out
    lines = [line.split() for line in out.splitlines() if re.match(r"\d+\t", line)]
    assert len(lines) == len(want)
    for line, values in zip(lines, want, strict=True):
        assert list(map(float, line[2:])) == pytest.approx(values, abs=3e-6)
    found = json.loads(run("perplexity", "-m", stories, *options, *EXACT, "--json").out)
    assert found["accuracy"] == pytest.approx(sum(a == b for *_, a, b in want) / len(want))
    assert found["chance"] == 0.5


def test_predictions_are_saved_and_compared(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    given = ("-p", STORY, "-c", 48, "-t", 2)
    saved = run("perplexity", *given, "--kl-divergence-base", base, "-b", 512, "--json")
    ppl = json.loads(saved.out)["ppl"]
    same = json.loads(
        run("perplexity", "--kl-divergence-base", base, "--kl-divergence", "--json", "-t", 2).out
    )
    assert same["ppl"] == pytest.approx(ppl, rel=1e-6)
    assert same["ppl_base"] == pytest.approx(ppl, rel=1e-2)  # nothing is below -16 there
    assert abs(same["kld"]) < 1e-5
    assert same["same_top"] == 1
    out = run(
        "perplexity", "--kl-divergence-base", base, "--kl-divergence", "-ctk", "q4_0", "-t", 2
    ).out
    lines = out.splitlines()
    assert re.match(r"   6 +\d\.\d{4} ± +\d\.\d{4} ", lines[6])
    assert any(re.match(r"Median  KLD: +0\.0\d+$", line) for line in lines)
    assert "99.9%   KLD:" in out
    assert 80 < float(re.search(r"Same top p : +([\d.]+)", out)[1]) < 100  # type: ignore[index]


def test_what_does_not_fit_together_is_one_line(run: Run, tasks: Path, tmp_path: Path) -> None:
    def usage(*options: Any) -> str:
        return run("perplexity", *options).usage_error

    h = tasks / "h.txt"
    assert "cannot be used together" in usage("-f", h, "--hellaswag", "--winogrande")
    assert "-bf is the file of --multiple-choice" in usage("-bf", h)
    assert "needs --kl-divergence-base FILE" in usage("--kl-divergence")
    assert "cannot be used" in usage("-p", "a", "--ppl-stride", 3, "--kl-divergence-base", h)
    assert "are not of tasks" in usage("-f", h, "--hellaswag", "--ppl-stride", 3)
    assert "There is no text" in usage()
    assert "There are no tasks" in usage("--hellaswag")


def test_bad_input_is_one_line(run: Run, tasks: Path, tmp_path: Path) -> None:
    def error(*options: Any) -> str:
        return run("perplexity", *options).error

    assert error("-p", "Once", "-c", "8").startswith("the text has ")
    message = "HellaSwag: the file has 1 lines: it must have 6 for each task"
    assert error("-p", "Once", "--hellaswag") == message
    message = "multiple choice: the tasks are in a binary file: give it with -bf"
    assert error("-f", tasks / "h.txt", "--multiple-choice") == message
    (tmp_path / "bad").write_bytes(b"\xff" * 50)
    assert "the file says 4294967295 tasks" in error("-bf", tmp_path / "bad", "--multiple-choice")
    kl = ("--kl-divergence", "--kl-divergence-base")
    assert "no file of predictions" in error(*kl, tmp_path / "bad")
    assert "the file cannot be read" in error(*kl, tmp_path / "none")

"""Arguments as llama.cpp's users type them, and help on terminals of any width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggmlpy import llama
from tests.cli.conftest import Run

QUICK = ("--backend", "reference", "-n", 1, "--temp", 0, "-q", "-p", "a")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What models are opened with."""
    seen: list[dict[str, Any]] = []
    original = llama.Llama.__init__

    def noting(self: Any, path: Any, **given: Any) -> None:
        seen.append(given)
        original(self, path, **given)

    monkeypatch.setattr(llama.Llama, "__init__", noting)
    return seen


@pytest.mark.parametrize(
    ("args", "fused"),
    [
        ((), True),
        (("-fa",), True),
        (("-fa", "-q"), True),
        (("-fa", "on"), True),
        (("-fa", "auto"), True),
        (("-fa", "off"), False),
        (("-fa", "0"), False),
        (("-fa=off",), False),
        (("--flash-attn", "1"), True),
        (("--flash-attn=off",), False),
    ],
)
def test_flash_attention(
    run: Run, tiny: Path, opened: list[dict[str, Any]], args: tuple[str, ...], fused: bool
) -> None:
    outcome = run("generate", "-m", tiny, *QUICK, *args)
    assert (outcome.code, outcome.err) == (0, "")
    assert opened[0]["flash_attn"] is fused


def test_layers_on_a_gpu_that_is_not_there(
    run: Run, tiny: Path, opened: list[dict[str, Any]]
) -> None:
    outcome = run("generate", "-m", tiny, *QUICK, "-ngl", 99)
    assert outcome.code == 0
    assert outcome.err == (
        "ggmlpy: warning: n_gpu_layers is 99, but no device has memory of its own: all layers lie"
        " on the host of reference\n"
    )
    assert run("generate", "-m", tiny, *QUICK, "-ngl", 0).err == ""
    assert [given["n_gpu_layers"] for given in opened] == [99, 0]


def test_tensors_lie_where_they_are_told(
    run: Run, tiny: Path, opened: list[dict[str, Any]]
) -> None:
    given = ["-ot", r"blk\.0\.ffn=host,output=reference"]
    assert run("generate", "-m", tiny, *QUICK, *given).code == 0
    assert opened[0]["override_tensors"] == {r"blk\.0\.ffn": "host", "output": "reference"}
    outcome = run("generate", "-m", tiny, *QUICK, "-ot", "blk")
    assert (outcome.code, "PATTERN=BACKEND" in outcome.err) == (2, True)
    outcome = run("generate", "-m", tiny, *QUICK, "-ot", "blk=cuda")
    assert outcome.code == 1
    assert "'blk' is to lie on 'cuda': it must be one of host, reference" in outcome.err


def test_values_and_flags_may_still_be_joined(run: Run, tiny: Path) -> None:
    separate = run("generate", "-m", tiny, *QUICK, "-n", 3, "-v")
    joined = run("generate", "-m", tiny, *QUICK, "-n3", "-qv")
    assert joined.out == separate.out
    assert joined.code == 0


def test_a_value_may_look_like_an_option(run: Run, tiny: Path) -> None:
    outcome = run("generate", "-m", tiny, *QUICK, "-p", "-np")
    assert (outcome.code, outcome.out[:3]) == (0, "-np")


def test_the_null_backend_is_told_apart(run: Run, tiny: Path) -> None:
    outcome = run("generate", "-m", tiny, *QUICK, "--backend", "null")
    assert outcome.err == (
        "ggmlpy: warning: the backend null computes nothing: the text is meaningless\n"
    )


@pytest.mark.parametrize("columns", [24, 40, 60, 79, 80, 100])
@pytest.mark.parametrize("command", [(), ("generate",), ("batched-bench",), ("inspect",)])
def test_help_cuts_no_name(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    help = run(*command, "--help").out
    names = {
        (): ["--version", "--help", "generate", "batched-bench", "tokenize"],
        ("generate",): ["--repeat-penalty", "--cache-type-k", "--n-predict", "--flash-attn"],
        ("batched-bench",): ["--output-format", "--cache-type-k", "--n-gpu-layers", "-npp"],
        ("inspect",): ["--json", "FILE"],
    }[command]
    assert [name for name in names if name not in help] == []
    assert "bool" not in help
    assert "[bold]" not in help
    if columns >= 40:
        assert max(map(len, help.splitlines())) <= columns

"""llama.cpp's flags: each is an option of ours, or has a reason why it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from ggmlpy.cli import app
from ggmlpy.cli.llama_flags import (
    ABSENT,
    FORMER,
    TOOLS,
    accepted_by,
    as_markdown,
    why_absent,
)
from ggmlpy.cli.unknown import names_of
from ggmlpy.llama import Llama
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
# {names of an option: the tools that have it}, by tests/tools/record_flags.py
RECORDED: dict[str, str] = json.loads(Path(__file__).with_name("llama_flags.json").read_text())
HELP = {"-h", "--help"}  # of every command


def flags_of(tool: str) -> set[str]:
    """What a tool of llama.cpp lists."""
    short = tool.removeprefix("llama-")
    rows = (names.split() for names, tools in RECORDED.items() if short in tools.split())
    return {name for names in rows for name in names}


def test_the_record_is_whole() -> None:
    counts = {tool: len(flags_of(tool)) for tool in TOOLS}
    assert counts == {
        "llama-completion": 249,
        "llama-cli": 345,
        "llama-server": 411,
        "llama-perplexity": 213,
        "llama-embedding": 203,
        "llama-tokenize": 198,
        "llama-quantize": 15,
        "llama-imatrix": 211,
        "llama-bench": 80,
        "llama-batched-bench": 203,
    }


@pytest.mark.parametrize(("tool", "command"), TOOLS.items())
def test_every_flag_is_an_option_or_has_a_reason(tool: str, command: str) -> None:
    own = names_of(app.commands[command]).keys() | HELP
    silent = [f for f in flags_of(tool) if f not in own and why_absent(f, command) is None]
    assert silent == []


def test_what_llama_cpp_turns_off_is_off() -> None:
    """Of a flag with two forms, `--no-…` and `-no-…` are the names of the second one."""
    for name, command in app.commands.items():
        for option in (p for p in command.params if isinstance(p, click.Option)):
            if option.secondary_opts:
                assert not [n for n in option.opts if n.lstrip("-").startswith("no-")], name


def test_no_reason_is_left_over() -> None:
    """A flag that all of its commands have by now does not belong in the table."""
    used = {
        (flag, why_absent(flag, command))
        for tool, command in TOOLS.items()
        for flag in flags_of(tool) - names_of(app.commands[command]).keys()
    }
    listed = {(flag, row.reason) for row in ABSENT for flag in row.names}
    assert listed - used == set()


def test_flags_without_an_effect(run: Run, tiny: Path) -> None:
    """The text is the same, and the help does not list them."""
    line = ("-m", tiny, "-p", "Once upon", "-n", 8, "--temp", 0, "-q", "--backend", "reference")
    flags = [f for row in accepted_by("generate") for f in row.names]
    assert {"-no-cnv", "--no-warmup", "--jinja", "--simple-io", "--log-disable"} <= set(flags)
    assert run("generate", *line, *flags, "-b", 512) == run("generate", *line)
    assert not [flag for flag in flags if f"{flag} " in run("generate", "--help").out]
    talk = [f for row in accepted_by("chat") for f in row.names]
    assert run("chat", *line, "-st", *talk).out == run("chat", *line, "-st").out
    for command, app_command in app.commands.items():
        given = {f for row in accepted_by(command) for f in row.names}
        assert given <= names_of(app_command).keys()
        assert given <= {f for tool in TOOLS for f in flags_of(tool)}


def test_a_batch_limits_ubatches(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def opened(path: Path, **options: Any) -> Llama:
        llm = Llama(path, **options)
        sizes.append((options["n_batch"], llm._context.sizes.n_ubatch))
        return llm

    monkeypatch.setattr("ggmlpy.llama.Llama", opened)
    line = ("-m", tiny, "-p", "a", "-n", 1, "--backend", "reference", "-q")
    for more in (("-b", 8), ("-ub", 16), ("-b", 64, "-ub", 16)):
        assert run("generate", *line, *more).code == 0
    assert sizes == [(8, 8), (2048, 16), (64, 16)]


def test_all_refused_flags_are_told(run: Run) -> None:
    typed = ("--numa", "x", "-n", 4, "--zzz", "--tempo=3", "-tb", 2, "--zzz")
    assert run("generate", *typed).usage_error == (
        "No such options: '--numa' (the system places threads: `numactl` limits its choice),"
        " '--zzz', '--tempo' (did you mean --temp?), '-tb' (prompts and decoding run on the same"
        " threads: -t is their number)"
    )


def test_reasons_are_told(run: Run) -> None:
    for flag, command, reason in (
        ("-mg", "generate", "--backend cuda:1 names a GPU"),
        ("--numa", "bench", "the system places threads: `numactl` limits its choice"),
        ("--temp", "perplexity", "nothing is sampled"),
        ("-tb", "chat", "prompts and decoding run on the same threads: -t is their number"),
        ("-C", "generate", "the system places threads: `taskset` limits its choice"),
    ):
        assert run(command, flag, "1").usage_error == f"No such option '{flag}': {reason}"


def test_what_other_commands_have(run: Run) -> None:
    """Also where it could be read as a short option with its value."""
    error = run("generate", "--chunks", "3").usage_error
    assert error == "No such option '--chunks': perplexity and imatrix have it"
    error = run("perplexity", "--chunk", "2").usage_error
    assert error == "No such option '--chunk': did you mean --chunks?"
    assert run("generate", "-pg", "8,8").usage_error == "No such option '-pg': bench has it"


def test_options_before_the_command(run: Run) -> None:
    for typed, example in (
        ("-m", "generate -m"),
        ("--model=x", "generate --model"),
        ("-npp", "batched-bench -npp"),
    ):
        error = run(typed, "x").usage_error
        name = typed.partition("=")[0]
        assert (
            error == f"No such option '{name}': a command comes first, as in `ggmlpy {example} …`"
        )


def test_names_of_tools(run: Run) -> None:
    for tool, command in TOOLS.items():
        assert run(tool, "-m", "x").usage_error == f"{tool} is `ggmlpy {command}` here"
    assert "Did you mean 'generate'?" in run("generat").usage_error


def test_flags_of_earlier_versions(run: Run) -> None:
    error = run("generate", "--no-mmap").usage_error
    assert error == "No such option '--no-mmap': model files are mapped into memory always"
    for command, flag, reason in (
        ("bench", "-mmp", "model files are mapped into memory always"),
        ("generate", "-cb", "serve has it"),
        ("generate", "-dio", "model files are mapped into memory always"),
        ("chat", "--mlock", "the system decides which pages of the model file stay in memory"),
        ("generate", "--host", "serve has it"),
        ("chat", "--slot-save-path", "serve has it"),
    ):
        assert run(command, flag, "1").usage_error == f"No such option '{flag}': {reason}"
    for row in FORMER:
        for command in row.commands or TOOLS.values():
            assert not set(row.names) & names_of(app.commands[command]).keys()
    listed = {flag for tool in TOOLS for flag in flags_of(tool)}
    assert not [row for row in FORMER if not row.commands and set(row.names) & listed]


def test_neighbours_of_a_misspelt_flag(run: Run) -> None:
    for typed, meant in (
        ("--tempo", "--temp"),
        ("--repeat-penality", "--repeat-penalty, --presence-penalty or --frequency-penalty"),
        ("-ctx-size", "--ctx-size"),
        ("--ctxsize", "--ctx-size"),
        ("-nlg", "-ngl"),
    ):
        error = run("generate", typed, "1").usage_error
        assert error.startswith(f"No such option '{typed}': did you mean {meant}"), error
    for args in (("--hlep",), ("generate", "--hlep")):
        assert run(*args).usage_error == "No such option '--hlep': did you mean --help?"
    assert run("generate", "--zzz").usage_error == "No such option '--zzz'"


def test_underscores_in_names(run: Run, tiny: Path) -> None:
    """llama.cpp takes --n_predict too."""
    common = ("-m", tiny, "--backend", "reference", "--temp", 0, "-q", "-p", "a_b", "--no-echo")
    assert run("generate", *common, "--n_predict", 3) == run("generate", *common, "-n", 3)
    assert "did you mean --n-predict" in run("generate", "--n_predit", 3).usage_error


@pytest.mark.parametrize("command", sorted(app.commands))
def test_hf_is_never_help(run: Run, command: str) -> None:
    """click would read -hf as -h -f, and show the help."""
    for args in (("-hf",), ("-hfx", "user/repo"), (command, "-hfx", "user/repo"), (command, "-hf")):
        outcome = run(*args)
        assert (outcome.code, outcome.out) == (2, ""), args
        assert "-hf" in outcome.usage_error


def test_the_page_has_the_table() -> None:
    """`python -m tests.cli.test_llama_flags` writes it."""
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page == with_table(page)


def with_table(page: str) -> str:
    """The page with the table as it is now, below its heading."""
    before, heading, after = page.partition("\n## Flags of llama.cpp\n")
    assert heading
    text, _, rest = after.partition("\n| flags of llama.cpp |")
    _, _, below = rest.partition("\n\n")
    return f"{before}{heading}{text}\n" + "\n".join(as_markdown()) + f"\n\n{below}"


if __name__ == "__main__":
    path = ROOT / "docs" / "cli.md"
    path.write_text(with_table(path.read_text()))

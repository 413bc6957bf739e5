"""--grammar, -j and their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy import packaged_model
from tests.cli.conftest import Run

pytest.importorskip("llguidance")

LIST = 'root ::= ("- " [a-z]{2,5} "\\n"){2}\n'
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["n"],
    "additionalProperties": False,
}
QUIET = ("-m", packaged_model(), "-q", "-n", 60, "-s", 1)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    grammar, schema = tmp_path / "list.gbnf", tmp_path / "schema.json"
    grammar.write_text(LIST)
    schema.write_text(json.dumps(SCHEMA))
    return grammar, schema


def test_generate(run: Run, files: tuple[Path, Path]) -> None:
    by_text = run("generate", *QUIET, "--no-echo", "--grammar", LIST)
    assert by_text.code == 0, by_text
    assert len(by_text.out.splitlines()) == 2
    assert by_text.out == run("generate", *QUIET, "--no-echo", "--grammar-file", files[0]).out
    for name in ("-j", "--json-schema"):
        found = run("generate", *QUIET, "--no-echo", name, json.dumps(SCHEMA))
        assert json.loads(found.out).keys() == {"n"}
        assert found.out == run("generate", *QUIET, "--no-echo", f"{name}-file"
                                if name != "-j" else "-jf", files[1]).out  # fmt: skip
    lark = run("generate", *QUIET, "--no-echo", "--grammar", '%llguidance {}\nstart: " end"')
    assert lark.out == " end\n"


def test_chat(run: Run) -> None:
    found = run("chat", *QUIET, "--grammar", 'root ::= "yes" | "no"', stdin="Are you?\nAnd now?\n")
    assert found.code == 0, found
    assert set(found.out.splitlines()) <= {"yes", "no"}
    assert len(found.out.splitlines()) == 2


@pytest.mark.parametrize(
    "args, message",
    [
        (["--grammar", "root ::= b"], 'there is no rule "b"'),
        (["-j", "{"], "the JSON schema is not JSON"),
        (["-j", '{"items": {"not": {}}}'], "refused at #/items: keywords that are not supported"),
        (["-jf", "nowhere.json"], "nowhere.json"),
        (["-j", "{}", "--grammar", LIST], "cannot be used together"),
    ],
)  # fmt: skip
def test_what_is_refused_is_one_line(run: Run, args: list[str], message: str) -> None:
    found = run("generate", *QUIET, *args)
    assert found.code != 0
    assert message in found.err
    assert len(found.err.splitlines()) == 1

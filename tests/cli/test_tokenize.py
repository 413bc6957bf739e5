"""`ggmlpy tokenize`, against the ids that other software gives and against its own inverse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy import Tokenizer, packaged_model
from tests.cli.conftest import Run
from tests.shared import shared_path


@pytest.mark.parametrize("name", ["llama-spm", "qwen2", "bert-bge"])
def test_ids_are_llama_cpps(run: Run, name: str) -> None:
    file = shared_path(f"vocab/ggml-vocab-{name}.gguf")
    texts = shared_path(f"vocab/ggml-vocab-{name}.gguf.inp").read_bytes().decode()
    lines = shared_path(f"vocab/ggml-vocab-{name}.gguf.out").read_text().splitlines()
    pairs = list(zip(texts.split("\n__ggml_vocab_test__\n"), lines, strict=False))
    for text, ids in pairs[:3]:
        outcome = run("tokenize", file, "--ids", "--no-bos", "-p", "-", stdin=text + "\n")
        assert outcome.code == 0, outcome
        assert outcome.out == f"[{', '.join(ids.split())}]\n"


def test_without_a_file_the_packaged_model_is_meant(run: Run, tmp_path: Path) -> None:
    packaged = packaged_model()
    assert run("tokenize", "-p", "Once").out == run("tokenize", packaged, "Once").out
    assert run("inspect", "--json").out == run("inspect", packaged, "--json").out
    where = f"there is no such file in {tmp_path}"
    hint = "the file comes before a text, which -p can give too"
    assert run("tokenize", tmp_path / "Once").error == f"Once: {where}; {hint}"
    assert run("tokenize", tmp_path / "m.gguf").error == f"m.gguf: {where}"


def test_a_line_for_each_token(run: Run, tiny: Path) -> None:
    outcome = run("tokenize", tiny, "a\nä z<s>")
    assert outcome.out.splitlines() == [
        "     1 -> '<s>'",
        "   286 -> ' a'",
        r"    13 -> '\n'",
        r"   198 -> '\xc3'",
        r"   167 -> '\xa4'",
        "   259 -> ' '",
        "   285 -> 'z'",
        "    63 -> '<'",
        "   278 -> 's'",
        "    65 -> '>'",
    ]
    assert outcome.err == ""


def test_special_tokens_only_where_asked_for(run: Run, tiny: Path) -> None:
    plain = run("tokenize", tiny, "a</s>", "--ids", "--no-bos")
    special = run("tokenize", tiny, "a</s>", "--ids", "--no-bos", "--special")
    assert json.loads(special.out) == [286, 2]
    assert len(json.loads(plain.out)) == 5


def test_json_and_count(run: Run, tiny: Path) -> None:
    lines = run("tokenize", tiny, "ä", "--json").out.splitlines()
    tokens = [json.loads(line) for line in lines]
    assert [t["id"] for t in tokens] == [1, 259, 198, 167]
    assert bytes(b for t in tokens[1:] for b in t["bytes"]).decode() == " ä"
    assert [t["type"] for t in tokens] == ["control", "normal", "byte", "byte"]
    assert json.loads(run("tokenize", tiny, "ä", "--json", "--ids").out) == [1, 259, 198, 167]
    counted = run("tokenize", tiny, "ä", "--ids", "--show-count").out
    assert counted == "[1, 259, 198, 167]\nTotal number of tokens: 4\n"


def test_decode_is_the_way_back(run: Run, tiny: Path) -> None:
    ids = run("tokenize", tiny, "ab ä\n-", "--ids").out
    assert run("tokenize", tiny, "--decode", "-p", ids).out == "ab ä\n-\n"
    assert run("tokenize", tiny, "--decode", *json.loads(ids)).out == "ab ä\n-\n"
    assert run("tokenize", tiny, "--decode", "-p", "-", stdin=ids).out == "ab ä\n-\n"
    told = json.loads(run("tokenize", tiny, "--decode", "--special", "--json", 1, 260).out)
    assert told == {"ids": [1, 260], "text": Tokenizer.from_gguf(tiny).decode([1, 260], True)}


def test_decode_without_a_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number in the file's place is a token, unless there is a file of that name."""
    monkeypatch.chdir(tmp_path)
    ids = run("tokenize", "-p", "Once upon", "--ids").out
    words = run("tokenize", "--decode", *json.loads(ids))
    assert words.out == "Once upon\n"
    assert run("tokenize", "--decode", ids.strip()).out == words.out
    assert run("tokenize", "--decode", "-p", ids).out == words.out
    assert "There are no token ids" in run("tokenize", "--decode").usage_error
    assert "cannot be used together" in run("tokenize", "--decode", 7, "-p", "8").usage_error
    assert run("tokenize", "--decode", "m.gguf", 7).error == "m.gguf: there is no such file in ."
    assert run("tokenize", "--decode", "7x").error.startswith("7x: there is no such file in .; ")
    (tmp_path / "7").touch()
    assert run("tokenize", "--decode", 7, 8).error.startswith("7: the file is empty")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "There is no text"),
        (("--decode",), "There are no token ids: give them, -p, -f, or a pipe"),
        (("a", "b"), "2 texts are given: put the text in quotes"),
        (("a", "-p", "b"), "cannot be used together"),
        (("-f", "x", "-p", "b"), "-p and -f cannot be used together"),
        (("--decode", "1", "x"), "'x' is no token id: it must be an integer"),
    ],
)
def test_wrong_command_lines(run: Run, tiny: Path, args: tuple[str, ...], message: str) -> None:
    assert message in run("tokenize", tiny, *args).usage_error


def test_ids_outside_the_vocabulary(run: Run, tiny: Path) -> None:
    outcome = run("tokenize", tiny, "--decode", 1, 288)
    assert outcome.error == "tiny.gguf: token 288 is outside the vocabulary of 288 tokens"
    assert "token -1 is outside" in run("tokenize", tiny, "--decode", "-p", "-1").error


def test_text_that_is_not_unicode(run: Run, tiny: Path) -> None:
    outcome = run("tokenize", tiny, "-p", "-", stdin=b"ab\xff")
    assert outcome.error == "standard input: not UTF-8 text at byte 2"
    assert run("tokenize", tiny, "a\udcff").error.startswith("the text is not Unicode")


def test_the_model_may_be_an_option(run: Run, tiny: Path) -> None:
    plain = run("tokenize", tiny, "a b", "--ids")
    assert run("tokenize", "-m", tiny, "a b", "--ids") == plain
    assert run("tokenize", "--model", tiny, "-p", "a b", "--ids", "--no-parse-special") == plain
    assert run("tokenize", "-m", tiny, "-p", r"a\x20b", "--ids") == plain
    assert run("tokenize", "-m", tiny, r"a\x20b", "-e", "--ids") == plain
    assert run("tokenize", "-m", tiny, r"a\x20b", "--ids").out != plain.out

"""The table of pre-tokenizers: every expression compiles, and cuts as its model's original does."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.text.tokenizer import PRE_TOKENIZERS, PreTokenizerWarning, Tokenizer
from ggmlpy.text.tokenizer.bpe import word_splitter
from tests.unit.vocabularies import bpe_metadata, without

SPLITTERS = {name: word_splitter(row) for name, row in PRE_TOKENIZERS.items()}


def words(name: str, text: str) -> list[str]:
    return [word for word, _ in SPLITTERS[name].pre_tokenize_str(text)]


# Cut by hand; "|" stands for a cut. What llama.cpp cuts otherwise, for want of a full regex engine,
# is marked: there the model's own rule is what counts.
CUTS = [
    ("gpt-2", "Hello|,| world|!|  | I|'ll| pay| 12345|$|\n|\n|ok| "),
    ("gpt-2", "DON|'|T| don|'t"),
    ("default", "a|123|4|,| b|==|c"),
    ("falcon", "x| |123|4|`|y|`<|z| 12"),
    ("starcoder", "a| |1|2|3| b"),
    ("llama-bpe", "Hello| world|123|45|DON|'T| (|see| x|)\n\n|  | end|   "),
    ("llama-bpe", "\u00e9t\u00e9| \u4eca\u65e5|\u3002| |\u0661\u0662\u0663|\u0664"),
    ("llama-bpe", "a|\t|\tb|\n|  | c|\r\n\r\n|d"),
    ("qwen2", "x|1|2|3| y|='|s"),
    ("qwen35", "x|1| \u0e01\u0e33\u0e48| y"),
    ("qwen2", "x|1| \u0e01\u0e33|\u0e48| y"),
    ("tekken", "camel|Case| HTTPServer|1|2|/path|/\n|don|'t"),
    ("tekken", "\u0416\u0438|\u0416\u0438"),  # llama.cpp: no cut
    ("gpt-4o", "camel|Case's| XMLHttp| |123|4| don't"),
    ("gpt-4o", "\u00c9t\u00e9|\u00c9t\u00e9"),  # llama.cpp: no cut
    ("gpt-4o", "\u0915\u093f| \u0915"),
    ("kimi-k2", "ab|\u6c49\u5b57|Cd|Ef's|1234"[:-1] + "|4"),
    ("tiny_aya", "a|1|234|567| b|89"),
    ("afmoe", "abc|12|345|678|\u6c49\u5b57| x"),  # llama.cpp: "abc12"
    ("superbpe", "by the way, |1|234|567| and so on"),
    (
        "deepseek-llm",
        "Hello| world|!|\n|\u4f60\u597d| |123| \u00e9|t|\u00e9",
    ),  # as published: :-~ has t
    ("deepseek-coder", "if| x|==|1|2|\n|:"),
    ("deepseek-v3", "x|123|4| +=|\u4f60\u597d|.name| $\n"),
    ("spark2_5", "x|1|2|3|4| ok|\n|\n|y"),
    ("bloom", "Hello| world|,| ok|\uff0c| yes"),
    ("viking", "Hello| world|,|1|2"),
    ("seed-coder", "x| +|\n|y|1"),
    ("qwen2", "x| +\n|y|1"),
    ("bailingmoe", "x|'S|\n\n|y"),
    ("exaone-moe", "one two three| (|x|)\n|\n|4"),
    ("youtu", "\u6c49\u5b57|\uff0c|\uac00\uac01| camel|Case|1|2"),
    ("minicpm5", "ab|123|4| c"),
    ("jais-2", "a|" + " " * 4 + "|" + " " * 2 + "| b"),
    ("ufakzeka", "Ankara|'da| x"),
    ("qwen2", "Ankara|'d|a| x"),
    ("laguna", "a| b|\n\n|c"),
    ("chameleon", "a|1|2|!|  |b|IMGIMGABZ"),
    ("gemma4", "a b c|\n\n|d"),
]


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_cuts(name: str, cut: str) -> None:
    assert words(name, cut.replace("|", "")) == cut.split("|")


@settings(max_examples=20)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_cutting_loses_nothing(text: str) -> None:
    for name in PRE_TOKENIZERS:
        assert "".join(words(name, text)) == text, name


def test_every_name_has_one_row() -> None:
    from ggmlpy.text.tokenizer.pre_tokenizers import _ROWS

    names = [name for row_names, _ in _ROWS for name in row_names.split()]
    assert sorted(names) == sorted(PRE_TOKENIZERS)
    assert len(names) > 80


@pytest.mark.parametrize("asked", ["llama-bpe", "gpt-2", "qwen2", "deepseek-llm", "falcon"])
def test_known_names_do_not_warn(asked: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tokenizer.from_metadata(bpe_metadata(pre=asked))


def test_an_unknown_name_warns_and_the_file_still_serves() -> None:
    with pytest.warns(
        PreTokenizerWarning, match=r'pre is "future-bpe".*may differ.*llama-bpe'
    ) as w:
        tokenizer = Tokenizer.from_metadata(bpe_metadata(pre="future-bpe"), name="m.gguf")
    assert w[0].filename == __file__  # it points at the caller
    assert str(w[0].message).startswith("m.gguf: tokenizer.ggml.pre")
    assert tokenizer.pre == "future-bpe"
    assert tokenizer.decode(tokenizer.encode("a1234b")) == "a1234b"


def test_a_missing_name_warns() -> None:
    with pytest.warns(PreTokenizerWarning, match=r"pre is missing"):
        tokenizer = Tokenizer.from_metadata(without(bpe_metadata(), "pre"))
    assert tokenizer.pre is None

"""Lazy grammars: where the trigger of one is, and which tokens it has no place for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ggmlpy.grammar import Grammar, LazyGrammar, LazyMatcher, Matchers
from ggmlpy.grammar.lazy import AT_START, BEHIND_A_TEXT
from ggmlpy.text.tokenizer import Tokenizer
from tests.unit.vocabularies import bpe_metadata

pytest.importorskip("llguidance")

GRAMMAR = Grammar.lark('start: "<a>" /[0-9]+/ ";"')
THINK = ("<think>", "</think>")


def lazy(trigger: str = "<a>", **options: Any) -> tuple[LazyMatcher, list[bytes]]:
    """One that looks at the texts of a list, whose indices are the tokens."""
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    matchers = Matchers(tokenizer)
    given = LazyGrammar(GRAMMAR, trigger, tuple(tokenizer.encode_part("<a>")), **options)
    real = matchers.lazy(given, ())
    texts: list[bytes] = []
    return LazyMatcher(given, lambda token: texts[token], real._start), texts


def begins(matcher: LazyMatcher, texts: list[bytes], pieces: list[str]) -> list[bool]:
    """Behind which pieces of an answer the grammar holds."""
    found = []
    for piece in pieces:
        texts.append(piece.encode())
        assert matcher.allows(len(texts) - 1)
        found.append(matcher.accept(len(texts) - 1) is not None)
    return found


@pytest.mark.parametrize(
    ("pieces", "held"),
    [
        (["a ", "<a>"], [False, True]),
        (["x" * 500, "<", "a", ">12"], [False, False, False, True]),
        (["<b><", "a", ">"], [False, False, True]),
        (["<a", "a>", "<a>"], [False, False, True]),
    ],
)
def test_triggers(pieces: list[str], held: list[bool]) -> None:
    assert begins(*lazy(), pieces) == held


def test_text_that_cannot_be_behind_a_trigger() -> None:
    """The token is refused, and nothing has changed."""
    matcher, texts = lazy()
    assert begins(matcher, texts, ["<a"]) == [False]
    texts += [b">x", b">1;", b"> ", b"b>", b">1"]
    assert [matcher.allows(token) for token in range(1, 6)] == [False, True, False, True, True]
    found = matcher.accept(5)
    assert found is not None and not found.is_accepting


def test_bytes_of_half_a_character() -> None:
    matcher, texts = lazy()
    texts += ["é".encode()[:1], "é".encode()[1:] + b"<a>"]
    assert [matcher.accept(token) is not None for token in (0, 1)] == [False, True]
    texts.append(b"<a>" + "é".encode()[:1])
    matcher.restart(1)
    assert not matcher.allows(2)


@pytest.mark.parametrize("thinks", [True, False])
def test_reasoning_has_no_trigger(thinks: bool) -> None:
    pieces = ["" if thinks else " <thi", "" if thinks else "nk>", "<a>", "</thi", "nk> <a>"]
    assert begins(*lazy(reasoning=THINK, thinks=thinks), pieces) == [False] * 4 + [True]
    assert begins(*lazy(reasoning=THINK), ["<th>", "<a>"]) == [False, True]
    first = lazy(rf"{AT_START}<a>", reasoning=THINK, thinks=thinks)
    assert begins(*first, pieces) == [False] * 4 + [True]


def test_places() -> None:
    """At the beginning of an answer, and behind a text of the grammar."""
    trigger = rf"(?:{AT_START}|{BEHIND_A_TEXT};,){re.escape('<a>')}"
    assert begins(*lazy(trigger), ["\n", "<a>"]) == [False, True]
    assert begins(*lazy(trigger), ["x", "<a>"]) == [False, False]
    matcher, texts = lazy(trigger)
    assert begins(matcher, texts, [" " * 500, "<a>"]) == [False, False]
    texts.append(b"1;")
    matcher.restart(2)
    assert begins(matcher, texts, [",", "<a>"]) == [False, True]


def test_what_the_prompt_ends_with() -> None:
    assert begins(*lazy("<s><a>", before="<s>"), ["<a>"]) == [True]
    reasons = lazy("<s><a>", before="<s>", reasoning=THINK)
    assert begins(*reasons, ["<think>", "<a></think><a>", "<s><a>"]) == [False, False, True]

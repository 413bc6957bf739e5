"""Grammars in GBNF allow what their definition says, however they are cut into lexemes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ggmlpy.errors import GrammarError
from ggmlpy.grammar.gbnf import parse_gbnf
from ggmlpy.grammar.lark import lark_of
from ggmlpy.grammar.matcher import Matcher
from ggmlpy.grammar.nodes import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Token
from tests.grammar.recogniser import Recogniser, has, is_productive

llguidance = pytest.importorskip("llguidance")

EOS = 256
# Tokens of several bytes too, as in a vocabulary.
LONG = [b"ab", b"a\n", b"\n\n", b"aba", b'":', b' "', b"1. ", "é".encode(), "日本".encode(), b"\n "]


class Bytes:
    """A vocabulary of all bytes."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = EOS
    tokens = (*(bytes([i]) for i in range(256)), b"<eos>", *LONG)
    special_token_ids = (EOS,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.fixture(scope="module")
def vocabulary() -> Any:
    return llguidance.LLTokenizer(Bytes())


def no_token(text: str) -> int | None:
    return None


def matcher(vocabulary: Any, rules: Rules) -> Matcher:
    # Of a text that must come, masks would have the first token only.
    text = '%llguidance {"no_forcing": true}\n' + lark_of(rules, no_token)
    made = llguidance.LLMatcher(vocabulary, text, log_level=0)
    assert not made.is_error(), made.get_error()
    return Matcher(made, vocabulary.vocab_size)


def allowed(made: Matcher) -> set[int]:
    bits = np.unpackbits(made.allowed().view(np.uint8), bitorder="little")
    return {int(i) for i in np.flatnonzero(bits) if i < 256 + 1 + len(LONG)}


def check_text(made: Matcher, rules: Rules, text: str) -> None:
    """At each character the mask has exactly what the definition allows."""
    reference = Recogniser(rules)
    for character in [*text, ""]:
        if made.is_finished:
            assert reference.is_complete and not reference.following()
            assert not character or not possible(rules, text_before(reference), character)
            return
        tokens = allowed(made)
        assert (EOS in tokens) == reference.is_complete
        for i, long in enumerate(LONG):
            follows = possible(rules, text_before(reference), long.decode())
            assert (257 + i in tokens) == follows, long
        following = reference.following()
        for code in range(128):
            assert (code in tokens) == any(has(symbol, code) for symbol in following), chr(code)
        if not character:
            return
        reference.push(character)
        reference.text = text_before(reference) + character  # type: ignore[attr-defined]
        if not reference.is_possible:
            data = character.encode()
            assert made.n_valid(list(data)) < len(data)
            return
        for byte in character.encode():
            made.accept(byte)


def text_before(reference: Recogniser) -> str:
    return getattr(reference, "text", "")


def possible(rules: Rules, before: str, after: str) -> bool:
    reference = Recogniser(rules)
    for character in before + after:
        reference.push(character)
        if not reference.is_possible:
            return False
    return True


# --- random grammars ---

LETTERS = "ab\n"
NAMES = ["root", "x", "y", "z"]
classes = st.sets(st.sampled_from([*LETTERS, "é"]), min_size=1, max_size=3).map(
    lambda found: Chars(tuple((ord(c), ord(c)) for c in sorted(found)))
)
literals = st.text(LETTERS, min_size=1, max_size=3).map(
    lambda text: Seq(tuple(Chars(((ord(c), ord(c)),)) for c in text))
)
leaves: st.SearchStrategy[Node] = classes | literals | st.sampled_from(NAMES).map(Ref)


def larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    limits = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 4)])
    repeats = st.tuples(inner, limits).map(lambda made: Repeat(made[0], *made[1]))
    return several.map(Seq) | several.map(Alt) | repeats


bodies = st.recursive(leaves, larger, max_leaves=7)
grammars = st.fixed_dictionaries({name: bodies for name in NAMES})


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(rules=grammars, text=st.text(LETTERS + "é", max_size=8))
def test_random_grammars(vocabulary: Any, rules: Rules, text: str) -> None:
    assume(is_productive(rules))
    check_text(matcher(vocabulary, rules), rules, text)


@settings(max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)
@given(rules=grammars, data=st.data())
def test_texts_of_random_grammars(vocabulary: Any, rules: Rules, data: st.DataObject) -> None:
    """Texts that the grammar has, which random ones seldom are."""
    assume(is_productive(rules))
    reference, text = Recogniser(rules), ""
    for _ in range(10):
        codes = sorted({low for symbol in reference.following() for low, _ in symbol.ranges})
        if not codes:
            break
        character = chr(data.draw(st.sampled_from(codes)))
        reference.push(character)
        text += character
    check_text(matcher(vocabulary, rules), rules, text)


# --- llama.cpp's own grammars ---

GRAMMARS = {
    "arithmetic": r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
""",
    "json": r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
""",
    "list": r"""
root ::= item+
# Excludes various line break characters
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
""",
    "chess": r"""
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
""",
    "japanese": r"""
root ::= jp-char+ ([ \t\n] jp-char+)*
jp-char     ::= [ぁ-ゟ] | [ァ-ヿ] | [、-〾] | [一-鿿]
""",
}
TEXTS = {
    "arithmetic": ["a=1\n", "x1 + (2*y) =\n 3\n\n  b=c\n", "a=\n1\n\n\n", "a\n-b=1\n2=", "(a=1\n"],
    "json": [
        '{"a": [1, 2.5e-3,\n \t"x\\n\\u00e9é"] , "b":{}}\n  ',
        '{ "a" :\n true}',
        "{\n}",
        "[1]",
        '{"a":01',
        '{"a"  ',
    ],
    "list": ["- a b\n- é\n", "- \n", "- a\x85"],
    "chess": ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O-O O-O+\n10. exd8=Q# Ke1\n", "1. e9"],
    "japanese": ["日本 の\nアイ。", "日本  の", "a"],
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_known_grammars(vocabulary: Any, name: str) -> None:
    rules = parse_gbnf(GRAMMARS[name])
    for text in TEXTS[name]:
        check_text(matcher(vocabulary, rules), rules, text)


RECORDED = Path(__file__).with_name("llama_cpp.json")  # by tests/tools/record_gbnf.py


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text("utf-8")), ids=lambda c: c["name"])
def test_as_llama_cpp(vocabulary: Any, case: dict[str, Any]) -> None:
    """Texts, how many bytes of them llama.cpp takes, and whether the text may end there."""
    rules = parse_gbnf(case["grammar"])
    for text, n_taken, is_complete in case["texts"]:
        made = matcher(vocabulary, rules)
        data = list(text.encode())
        n = made.n_valid(data)
        assert n == n_taken, text
        for byte in data[:n]:
            made.accept(byte)
        assert made.is_accepting == is_complete, text


# --- the notation ---


def literal(text: str) -> Node:
    codes = [Chars(((ord(c), ord(c)),)) for c in text]
    return codes[0] if len(codes) == 1 else Seq(tuple(codes))


@pytest.mark.parametrize(
    "text, node",
    [
        ('"abc"', literal("abc")),
        (r'"\x41\u00e9\U0001F600\n\t\r\\\"\[\]\-"', literal('Aé😀\n\t\r\\"[]-')),
        ("[a-cx]", Chars(((97, 99), (120, 120)))),
        ("[-a]", Chars(((45, 45), (97, 97)))),
        ("[a-]", Chars(((45, 45), (97, 97)))),
        ("[^\\x00-\\U0010FFFE]", Chars(((0x10FFFF, 0x10FFFF),))),
        (".", Chars(((0, 0xD7FF), (0xE000, 0x10FFFF)))),
        ("[a-zb-d]", Chars(((97, 122),))),
        ("", Seq(())),
        ('""', Seq(())),
        ("root*", Repeat(Ref("root"), 0, None)),
        ("root {2, 3} ?", Repeat(Repeat(Ref("root"), 2, 3), 0, 1)),
        ('"ab"{3}', Repeat(literal("ab"), 3, 3)),
        ('"a"{1,}', Repeat(literal("a"), 1, None)),
        ('"a"{0}', Seq(())),
        ("( root\n| # comment\n root )", Alt((Ref("root"), Ref("root")))),
        ("root |\n root", Alt((Ref("root"), Ref("root")))),
        ("<think> !<[7]>*", Seq((Token("<think>", False), Repeat(Token(7, True), 0, None)))),
    ],
)  # fmt: skip
def test_notation(text: str, node: Node) -> None:
    assert parse_gbnf(f"# first\nroot ::= {text} # last\n")["root"] == node


@pytest.mark.parametrize(
    "text, message",
    [
        ("", 'no rule "root"'),
        ("a ::= root", 'no rule "root"'),
        ("root ::= b", 'line 1, column 10: there is no rule "b"'),
        ("root ::= (a", "expected )"),
        ("root ::= a)\na ::= b", "line 1, column 11: expected an item"),
        ('root ::= "a', "expected a character"),
        ("root ::= [a", "expected a character"),
        ("root ::= []", "the class has no characters"),
        ("root ::= [^\\x00-\\U0010FFFF]", "the class has no characters"),
        ("root ::= [b-a]", "must not end before it begins"),
        (r'root ::= "\q"', "unknown escape"),
        (r'root ::= "\x4"', "2 hexadecimal digits"),
        (r'root ::= "\UFFFFFFFF"', "at most 10FFFF"),
        ("root ::= * a", "has nothing before it"),
        ("root ::= root{2,1}", "a number of at least 2"),
        ("root ::= root{a}", "expected a number"),
        ("root ::= root{99999999999}", "expected a number below"),
        ("root = a", "expected ::="),
        ("root ::= <[1]", "expected ]>"),
        ("root ::= <think", "expected >"),
        ("root ::= " + "(" * 1000, "parentheses are open"),
    ],
)
def test_what_is_no_grammar(text: str, message: str) -> None:
    with pytest.raises(GrammarError) as error:
        parse_gbnf(text)
    assert message in str(error.value)


@given(text=st.text(st.sampled_from('root:=|"[]()*+?{}<>!,.^- \\\n#a1é'), max_size=40))
def test_damaged_grammars(text: str) -> None:
    """Nothing but GrammarError, also of what is made of them."""
    for given_text in (text, f"root ::= {text}"):
        with suppress(GrammarError):
            lark_of(parse_gbnf(given_text), no_token)


def test_tokens_by_name_and_number() -> None:
    rules = parse_gbnf("root ::= <think> !<[7]>* [a-z]+")
    assert "<[5]>" in lark_of(rules, {"<think>": 5}.get)
    assert "<[^7]>" in lark_of(rules, {"<think>": 5}.get)
    with pytest.raises(GrammarError, match="not one token"):
        lark_of(rules, no_token)


def count_lexemes(text: str, start: Sequence[str]) -> int:
    lines = lark_of(parse_gbnf(text), no_token).splitlines()
    return sum(line.startswith(tuple(start)) for line in lines)


def test_lexemes_stay_whole() -> None:
    """A grammar that is regular is one lexeme, and strings and numbers of JSON are."""
    assert count_lexemes(GRAMMARS["chess"], "L") == 1
    assert count_lexemes(GRAMMARS["json"], "L") == 10
    assert "(/[\\x{30}-\\x{39}]/){1,}" in lark_of(parse_gbnf(GRAMMARS["arithmetic"]), no_token)


@pytest.mark.parametrize("item", ["[0-9]", "[0-9] r"])
@pytest.mark.parametrize("n", [7, 8, 15, 40])
def test_parentheses_in_one_another(vocabulary: Any, item: str, n: int) -> None:
    """As older converters of JSON schemas write "at most n", in lexemes and in rules."""
    text = f'root ::= "x" {f"({item} " * n}{")?" * n} "y"\nr ::= "a" r "b" | "c"'
    rules = parse_gbnf(text)
    once = "1" if item == "[0-9]" else "1acb"
    check_text(matcher(vocabulary, rules), rules, f"x{once}{once}y")
    for times in (0, 1, n, n + 1):
        data = list(f"x{once * times}y".encode())
        made = matcher(vocabulary, rules)
        assert (made.n_valid(data) == len(data)) == (times <= n)


def test_recursion_that_repeats_is_none() -> None:
    for text in ('root ::= "a" root | "b"', 'root ::= root "a" | "b"'):
        assert count_lexemes(text, "L") == 1


def test_a_grammar_that_is_too_large() -> None:
    rules = "\n".join(f"a{i} ::= a{i + 1} a{i + 1}" for i in range(30))
    with pytest.raises(GrammarError, match="too large"):
        lark_of(parse_gbnf(f'root ::= "(" root ")" | a0\n{rules}\na30 ::= [a-c] | "b"'), no_token)

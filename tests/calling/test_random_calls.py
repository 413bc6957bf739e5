"""Calls with random arguments are read back as they were, and any other text does no harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.tools import AnswerParser, Message, tool_use
from ggmlpy.tools.formats import Format
from ggmlpy.tools.json_formats import (
    BareObjects,
    DeepSeek,
    Generic,
    Harmony,
    MarkedArray,
    TaggedObjects,
)
from ggmlpy.tools.named_formats import CommandCalls, FunctionCalls, KimiCalls, Recipients
from ggmlpy.tools.tagged_formats import (
    Invocations,
    MiniMaxCalls,
    TaggedFunctions,
    TaggedPairs,
)
from ggmlpy.tools.written_formats import GemmaCalls, PythonCalls
from tests.calling.writers import WRITERS, deepseek

THINK = ("<think>", "</think>")
TOOLS = [
    {
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "more": {}},
            },
        }
    },
    {"function": {"name": "now"}},
]
USE = tool_use(TOOLS, "auto", None)
FORMATS: dict[str, Format] = {
    "Hermes": TaggedObjects(THINK),
    "Llama 3": BareObjects(THINK),
    "Granite 3": MarkedArray(THINK, marker="<|tool_call|>"),
    "Mistral list": MarkedArray(THINK),
    "Mistral": MarkedArray(THINK, is_named=True),
    "DeepSeek R1": DeepSeek(THINK, has_block=True),
    "DeepSeek V3.1": DeepSeek(THINK, has_block=False),
    "GLM": TaggedPairs(THINK),
    "Qwen3-Coder": TaggedFunctions(THINK),
    "LFM2": PythonCalls(THINK),
    "Gemma 4": GemmaCalls(THINK, begin="<|tool_call>", end="<tool_call|>", quote='<|"|>'),
    "gpt-oss": Harmony(),
    "Kimi K2": KimiCalls(THINK),
    "Command R": CommandCalls(("<|START_THINKING|>", "<|END_THINKING|>")),
    "Functionary": FunctionCalls(),
    "Functionary 3.2": Recipients(),
    "Nemotron": MarkedArray(THINK, marker="<TOOLCALL>", end="</TOOLCALL>"),
    "MiniMax M2": MiniMaxCalls(THINK),
    "Seed-OSS": TaggedFunctions(("<seed:think>", "</seed:think>"), tag="seed:tool_call", around=""),
    "DSML": Invocations(THINK),
    "generic": Generic(THINK),
}


def read(format: Format, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and names and arguments of calls."""
    names = [tool.name for tool in USE.callable]
    parser = AnswerParser(format, names, types=USE.types)
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    made = Message.of(deltas)
    return made.content, made.reasoning, [(call.name, call.arguments) for call in made.calls]


def cut(text: str, data: st.DataObject) -> list[str]:
    """The text in pieces."""
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


# Texts without the ends of tags, which no format can quote.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>|\r"), max_size=20).map(str.strip)
KEYS = st.text("abcdefgh_", min_size=1, max_size=5)
VALUES = st.recursive(
    st.integers(-(10**9), 10**9) | TEXT | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
# Without a schema a string is told from JSON only if it is none.
ARGUMENTS = st.fixed_dictionaries(
    {"city": TEXT}, optional={"days": st.integers(), "more": VALUES.filter(lambda v: v != str(v))}
)


@pytest.mark.parametrize("name", WRITERS)
@settings(deadline=None)
@given(arguments=ARGUMENTS, data=st.data())
def test_a_call_is_read_back(name: str, arguments: dict[str, Any], data: st.DataObject) -> None:
    """With its exact arguments, in any pieces."""
    text = WRITERS[name]("weather", arguments)
    content, _, calls = read(FORMATS[name], cut(text, data))
    assert [name for name, _ in calls] == ["weather"]
    assert json.loads(calls[0][1]) == arguments
    assert not content


PARTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "now", "arguments": {}}',
        '{"name": "now"', '"arguments": {"a": [1', "{", "}", "[", "]", ",", ":", '"', " ", "\n",
        "\\", "now", "weather", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
        "<function=now>", "<parameter=a>", "</parameter>", "</function>", "<|tool_call>",
        "<tool_call|>", '<|"|>', "call:now{", "<|tool_call_start|>", "<|tool_call_end|>", "now(",
        "a=1", ")", "<|tool_call|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "; ",
        "<|channel|>", "<|message|>", "<|end|>", "analysis", "final", "to=functions.now",
        "<|start|>", "assistant", "\ud83d", "\\ud83d\\ude00", '{"tool_calls": [', '{"response": "',
        deepseek("tool calls begin"), deepseek("tool call begin"), deepseek("tool sep"),
        deepseek("tool call end"), deepseek("tool calls end"), "function", "```json\n", "x", "<",
        "Paris", ">>>", "now\n", "all", "<|tool_calls_section_begin|>", "<|tool_call_begin|>",
        "functions.now:0",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>",
        "<|START_ACTION|>", "<|END_ACTION|>", "[{", '"tool_name": "now"', '"tool_call_id": "0"',
        "</TOOLCALL>", "<TOOLCALL>", "<minimax:tool_call>", '<invoke name="now">', "</invoke>",
        '<parameter name="a">', "</minimax:tool_call>", "<seed:tool_call>", "</seed:tool_call>",
        "<\uff5cDSML\uff5cfunction_calls>", '<\uff5cDSML\uff5cinvoke name="now">',
    ]
)  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
@settings(deadline=None)
@given(parts=st.lists(PARTS, max_size=14), data=st.data())
def test_pieces_do_not_matter(name: str, parts: list[str], data: st.DataObject) -> None:
    """Nor does it matter what the text is: nothing raises."""
    text = "".join(parts)
    assert read(FORMATS[name], cut(text, data)) == read(FORMATS[name], [text])


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("gpt-oss", "generic")])
@settings(deadline=None)
@given(parts=st.lists(PARTS, max_size=10))
def test_what_is_no_call_is_content(name: str, parts: list[str]) -> None:
    text = "x" + "".join(parts)  # a letter first: what follows is no reasoning
    content, thoughts, calls = read(FORMATS[name], [text])
    assert not thoughts
    if not calls:
        assert content == text
    else:  # what is shown is in the text, in its order
        rest = iter(text)
        assert all(char in rest for char in content)


def test_deep_nesting_is_no_error() -> None:
    deep = "[" * 50_000
    argument = f"<arg_key>city</arg_key>\n<arg_value>{deep}</arg_value>"
    for name, text in (
        ("LFM2", f"<|tool_call_start|>[now(a={deep})]<|tool_call_end|>"),
        ("Gemma 4", f"<|tool_call>call:now{{a:{deep}}}<tool_call|>"),
        ("GLM", f"<tool_call>weather\n{argument}\n</tool_call>"),
        ("GLM", f"<tool_call>now\n{argument.replace('city', 'a')}\n</tool_call>"),
        ("Hermes", f'<tool_call>{{"name": "now", "id": {deep}'),
        ("Hermes", f'<tool_call>{{"name": "now", "id": {deep}{"]" * len(deep)}}}</tool_call>'),
    ):
        read(FORMATS[name], [text])


@pytest.mark.parametrize("inner", ["f'{1}'", "1e999", "b'x'", "1j", "...", "{1}", "x.y", "1 + 1"])
def test_python_that_is_no_json(inner: str) -> None:
    text = f"<|tool_call_start|>[now(a={inner})]<|tool_call_end|>"
    content, _, calls = read(FORMATS["LFM2"], [text])
    assert (content, calls) == (text, [])


def test_pythons_quotes_and_escapes() -> None:
    text = """<|tool_call_start|>[now(a='it\\'s "\\x41\\U0001f600\\d"', b=(1, None))]"""
    arguments = read(FORMATS["LFM2"], [text])[2][0][1]
    assert json.loads(arguments) == {"a": 'it\'s "A\U0001f600d"', "b": [1, None]}


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "-Infinity"])
def test_numbers_that_json_does_not_have_are_text(value: str) -> None:
    pair = f"<arg_key>more</arg_key>\n<arg_value>{value}</arg_value>"
    calls = read(FORMATS["GLM"], [f"<tool_call>weather\n{pair}\n</tool_call>"])[2]
    assert json.loads(calls[0][1]) == {"more": value}
    text = f"<|tool_call>call:now{{a:{value}}}<tool_call|>"
    assert read(FORMATS["Gemma 4"], [text]) == (text, "", [])


def test_half_a_character_is_a_replacement() -> None:
    for half in ("\\ud83d", "\\ude00"):
        assert read(FORMATS["generic"], [f'{{"response": "a{half}"}}'])[0] == "a\ufffd"
    assert read(FORMATS["generic"], ['{"response": "\\ud83d\\ude00"}'])[0] == "\U0001f600"


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<b>Hello</b> world", "<b>Hello</b> world", ""),
        ("Hi there", "Hi there", ""),
        (" to be or not", " to be or not", ""),
        ("<|channel|>final Hello big world", "<|channel|>final Hello big world", ""),
        ("<|channel|>analysis<|message|>Hm<|end|>stray text", "stray text", "Hm"),
        ("<|channel|>final<|message|>Hi<|end|><|start|>assistant<|chan", "Hi", ""),
        ("<|channel|>anal", "", ""),
    ],
)
def test_gpt_oss_without_headers(text: str, content: str, reasoning: str) -> None:
    """Text that is in no message is content; a header that is cut is nothing."""
    assert read(FORMATS["gpt-oss"], [text]) == (content, reasoning, [])
    assert read(FORMATS["gpt-oss"], list(text)) == (content, reasoning, [])


@pytest.mark.parametrize("text", ['{"tool_calls": []}', '{"tool_calls": [5]} x', '{"a": 1}', "Hi"])
def test_a_generic_answer_without_calls(text: str) -> None:
    assert read(FORMATS["generic"], [text]) == (text, "", [])
    assert read(FORMATS["generic"], list(text)) == (text, "", [])


@pytest.mark.parametrize("name", ["GLM", "Qwen3-Coder", "Hermes", "Mistral"])
def test_arguments_that_are_cut_are_no_json(name: str) -> None:
    """A client would run a call with a value that lacks its end."""
    text = WRITERS[name]("weather", {"city": "Paris and more", "days": 3})
    for end in range(text.index("Paris"), text.rindex("3") + 1):
        _, _, calls = read(FORMATS[name], [text[:end]])
        with pytest.raises(json.JSONDecodeError):
            json.loads(calls[0][1])


@pytest.mark.parametrize(
    ("given", "expected"),
    [("null", "{}"), ('"{\\"days\\": 1}"', '{"days": 1}'), ('{"days": 1}', '{"days": 1}')],
)
def test_arguments_that_are_no_object(given: str, expected: str) -> None:
    for text in (
        f'<tool_call>{{"name": "weather", "arguments": {given}}}</tool_call>',
        f'<tool_call>{{"arguments": {given}, "name": "weather"}}</tool_call>',
    ):
        assert read(FORMATS["Hermes"], list(text)) == ("", "", [("weather", expected)])

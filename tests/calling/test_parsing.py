"""Parsing of answers: reasoning and calls, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.tools import AnswerParser, Delta, Message
from ggmlpy.tools.formats import Format
from ggmlpy.tools.json_formats import Harmony
from ggmlpy.tools.reader import Reader
from ggmlpy.tools.tagged_formats import TaggedPairs
from tests.calling.formats import ANSWERS, PARIS, THINK, USE, Answered, spelt


def parser_of(answered: Answered, **options: Any) -> AnswerParser:
    names = [tool.name for tool in answered.use.callable]
    return AnswerParser(
        answered.format, names, thinks=answered.thinks, types=answered.use.types, **options
    )


def parsed(parser: AnswerParser, pieces: list[str]) -> list[Delta]:
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return deltas + parser.finish()


def cut(text: str, at: set[int]) -> list[str]:
    ends = sorted({n for n in at if n < len(text)} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def without_ids(message: Message) -> Any:
    calls = [(call.name, call.arguments) for call in message.calls]
    return message.content, message.reasoning, calls


@pytest.mark.parametrize("name", ANSWERS)
def test_what_an_answer_says(name: str) -> None:
    answered = ANSWERS[name]
    message = Message.of(parsed(parser_of(answered), [answered.text]))
    assert message.content == answered.content
    assert message.reasoning == answered.reasoning
    found = tuple((call.name, json.loads(call.arguments)) for call in message.calls)
    assert found == answered.calls
    assert len({call.id for call in message.calls} - {""}) == len(message.calls)


@pytest.mark.parametrize("name", ANSWERS)
@settings(max_examples=30, deadline=None)
@given(at=st.sets(st.integers(1, 400)))
def test_cuts_change_nothing(name: str, at: set[int]) -> None:
    answered = ANSWERS[name]
    whole = Message.of(parsed(parser_of(answered), [answered.text]))
    pieces = Message.of(parsed(parser_of(answered), cut(answered.text, at)))
    assert without_ids(pieces) == without_ids(whole)
    one_by_one = Message.of(parsed(parser_of(answered), list(answered.text)))
    assert without_ids(one_by_one) == without_ids(whole)


@pytest.mark.parametrize("name", ANSWERS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_damaged_answers(name: str, data: st.DataObject) -> None:
    """Cut, or with characters that do not belong there: no exception, whatever the cuts."""
    answered = ANSWERS[name]
    text = answered.text[: data.draw(st.integers(0, len(answered.text)))]
    for _ in range(data.draw(st.integers(0, 3))):
        i = data.draw(st.integers(0, len(text)))
        text = (
            text[:i]
            + data.draw(st.sampled_from(['"', "<", "{", "}", "]", "\\", "x", "\n"]))
            + text[i:]
        )
    at = data.draw(st.sets(st.integers(1, 400)))
    whole = Message.of(parsed(parser_of(answered), [text]))
    assert without_ids(Message.of(parsed(parser_of(answered), cut(text, at)))) == without_ids(whole)


@pytest.mark.parametrize("name", ANSWERS)
def test_without_tools_nothing_is_a_call(name: str) -> None:
    answered = ANSWERS[name]
    parser = AnswerParser(answered.format, thinks=answered.thinks)
    message = Message.of(parsed(parser, [answered.text]))
    assert message.calls == []
    if answered.calls and not isinstance(answered.format, Harmony):
        assert answered.calls[0][0] in message.content or "tool_calls" in message.content


def test_calls_come_as_they_are_written() -> None:
    """The name at once, then the arguments."""
    parser = parser_of(ANSWERS["hermes"])
    assert parser.push('Yes. <tool_call>\n{"name": "get_we') == [Delta(content="Yes.")]
    (begun,) = parser.push('ather", ')
    assert begun.call is not None
    assert (begun.call.name, begun.call.index) == ("get_weather", 0)
    found = [parser.push(piece) for piece in ('"arguments": {"ci', 'ty": "Bo', 'nn"', "}}")]
    texts = [delta.call.arguments for deltas in found for delta in deltas if delta.call]
    assert texts == ['{"ci', 'ty": "Bo', 'nn"', "}"]
    assert parser.push("\n</tool_call>") == parser.finish() == []


def test_content_is_not_held_back_for_long() -> None:
    parser = parser_of(ANSWERS["hermes"])
    assert parser.push("a < b <tool") == [Delta(content="a < b")]
    assert parser.push("s> c") == [Delta(content=" <tools> c")]


def test_one_call_ends_the_answer() -> None:
    answered = ANSWERS["hermes, all of it"]
    parser = parser_of(answered, one_call=True)
    message = Message.of(parsed(parser, list(answered.text)))
    assert [call.name for call in message.calls] == ["get_weather"]
    assert parser.is_complete


def test_reasoning_that_is_shown() -> None:
    for format, text in (
        (Format(THINK), "<think>Why?</think>\nSo."),
        (Harmony(), "<|channel|>analysis<|message|>Why?<|end|>"),
    ):
        parser = AnswerParser(format, shows_reasoning=True)
        message = Message.of(parsed(parser, [text]))
        assert message.reasoning == ""
        assert "Why?" in message.content


def test_as_dicts() -> None:
    answered = ANSWERS["hermes, all of it"]
    deltas = parsed(parser_of(answered), [answered.text])
    message = Message.of(deltas).as_dict()
    assert message["content"] == "I look."
    assert message["reasoning_content"] == "Hm."
    call = message["tool_calls"][0]
    assert call == {
        "id": call["id"],
        "type": "function",
        "function": {"name": "get_weather", "arguments": spelt(PARIS[1])},
    }
    assert call["id"].startswith("call_")
    dicts = [delta.as_dict() for delta in deltas]
    assert dicts[0] == {"reasoning_content": "Hm."}
    assert {"content": "I look."} in dicts
    calls = [each["tool_calls"][0] for each in dicts if "tool_calls" in each]
    assert [each["index"] for each in calls if "id" in each] == [0, 1]
    only_calls = Message.of(parsed(parser_of(ANSWERS["hermes"]), [ANSWERS["hermes"].text]))
    assert only_calls.as_dict()["content"] is None
    assert Message.of([Delta(content="a")]).as_dict() == {"role": "assistant", "content": "a"}


OPTIONAL = {
    "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"type": ["string", "null"]},
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "any": {},
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("optional", "12345", "12345"),
        ("optional", "null", None),
        ("optional", '"quoted"', "quoted"),
        ("either", "12", "12"),
        ("either", "None", None),
        ("text", '"quoted"', '"quoted"'),
        ("text", "null", "null"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("any", "12", 12),
    ],
)
def test_values_follow_the_schema(name: str, text: str, value: Any) -> None:
    parser = AnswerParser(TaggedPairs(), ["f"], types={"f": OPTIONAL})
    pair = f"<arg_key>{name}</arg_key><arg_value>{text}</arg_value>"
    (call,) = Message.of(parsed(parser, [f"<tool_call>f{pair}</tool_call>"])).calls
    assert json.loads(call.arguments) == {name: value}


@pytest.mark.parametrize("rest", [', "why": {"a": [1]}}', ", !}", '"}'])
def test_what_is_wrong_in_a_call_is_no_text(rest: str) -> None:
    text = f'<tool_call>{{"name": "now", "arguments": {{}}{rest}</tool_call>\nDone.'
    message = Message.of(parsed(parser_of(ANSWERS["hermes"]), [text]))
    assert [call.arguments for call in message.calls] == ["{}"]
    assert message.content == "Done."


def test_ids() -> None:
    """Those of the model where they come before the arguments, else new ones."""
    for text, id in (
        ('[TOOL_CALLS][{"id": "abc123456", "name": "now", "arguments": {}}]', "abc123456"),
        ("[TOOL_CALLS]now[CALL_ID]abc123456[ARGS]{}", "abc123456"),
        ('[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abc123456"}]', None),
    ):
        (call,) = Message.of(parsed(parser_of(ANSWERS["mistral"]), [text])).calls
        assert len(call.id) == 9 and (call.id == id or id is None)


@given(text=st.text(alphabet="ab<|>", max_size=30), at=st.sets(st.integers(1, 30)))
def test_the_first_marker(text: str, at: set[int]) -> None:
    """Of markers that overlap, at any cut that of the whole text."""
    markers = ["<a>", "<|", "<|b", "a<"]

    def found(pieces: list[str]) -> tuple[str, str, str]:
        reader, parts, marker = Reader(), list[str](), list[str]()

        def run() -> Any:
            marker.append((yield from reader.until(markers, parts.append)))

        running = run()
        for piece in pieces:
            reader.rest += piece
            next(running, None)
        reader.is_ended = True
        next(running, None)
        return "".join(parts), marker[0], reader.rest

    places = [(text.find(m), -len(m), m) for m in markers if m in text]
    at_first, _, first = min(places, default=(len(text), 0, ""))
    expected = text[:at_first], first, text[at_first + len(first) :]
    assert found([text]) == found(cut(text, at)) == found(list(text)) == expected


def test_uses() -> None:
    assert [tool.name for tool in USE.callable] == ["get_weather", "now"]
    assert not USE.must_call and USE.parallel

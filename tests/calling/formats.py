"""Answers in the format of each family, and what they say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ggmlpy.tools.definitions import ToolUse, tool_use
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
from ggmlpy.tools.tagged_formats import Invocations, MiniMaxCalls, TaggedFunctions, TaggedPairs
from ggmlpy.tools.written_formats import GemmaCalls, PythonCalls

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather at a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "unit": {"enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
USE = tool_use(TOOLS, "auto", None)
Calls = tuple[tuple[str, dict[str, Any]], ...]

THINK = ("<think>", "</think>")
PARIS = ("get_weather", {"city": 'Pa"ris\\ é', "days": 2})
NOW: tuple[str, dict[str, Any]] = ("now", {})


def spelt(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Answered:
    """A text, and the message that it is."""

    format: Format
    text: str
    content: str = ""
    reasoning: str = ""
    calls: Calls = ()
    thinks: bool = False
    use: ToolUse = field(default=USE, repr=False)


def _object(call: tuple[str, dict[str, Any]], key: str = "arguments") -> str:
    return f'{{"name": "{call[0]}", "{key}": {spelt(call[1])}}}'


_W = "\uff5c"
_DS = {
    name: f"<{_W}{name}{_W}>"
    for name in (
        "tool▁calls▁begin",
        "tool▁call▁begin",
        "tool▁sep",
        "tool▁call▁end",
        "tool▁calls▁end",
    )
}
_CB, _B, _S, _E, _CE = _DS.values()
_D = f"{_W}DSML{_W}"
_HERMES = f"<tool_call>\n{_object(PARIS)}\n</tool_call>"
_GEMMA4: dict[str, str] = {"begin": "<|tool_call>", "end": "<tool_call|>", "quote": '<|"|>'}
_HARMONY = (
    "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary"
    f" to=functions.get_weather <|constrain|>json<|message|>{spelt(PARIS[1])}"
)
_APRIEL = ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")


def _kimi(call: tuple[str, dict[str, Any]], i: int) -> str:
    head = f"<|tool_call_begin|>functions.{call[0]}:{i}<|tool_call_argument_begin|>"
    return f"{head}{spelt(call[1])}<|tool_call_end|>"


def _action(call: tuple[str, dict[str, Any]], i: int) -> str:
    return f'{{"tool_call_id": "{i}", "tool_name": "{call[0]}", "parameters": {spelt(call[1])}}}'


_PLAIN = {"city": "Paris", "days": 2}

ANSWERS: dict[str, Answered] = {
    "text": Answered(Format(), "Hello.\n There ", "Hello.\n There "),
    "text with a marker of none": Answered(Format(), "<tool_call>", "<tool_call>"),
    "reasoning": Answered(Format(THINK), "<think>\nWhy?\n</think>\n\nSo.", "So.", "Why?"),
    "reasoning that the prompt begins": Answered(
        Format(THINK), "Why not?</think>So.", "So.", "Why not?", thinks=True
    ),
    "reasoning without an end": Answered(Format(THINK), " <think>Why not?\n", "", "Why not?"),
    "hermes": Answered(TaggedObjects(), _HERMES, calls=(PARIS,)),
    "hermes, all of it": Answered(
        TaggedObjects(THINK),
        f"<think>Hm.</think>\nI look.\n{_HERMES}\n<tool_call>\n{_object(NOW)}\n</tool_call>\n",
        "I look.",
        "Hm.",
        (PARIS, NOW),
    ),
    "hermes, arguments first": Answered(
        TaggedObjects(),
        f'<tool_call>{{"arguments": {spelt(PARIS[1])}, "name": "get_weather"}}</tool_call>',
        calls=(PARIS,),
    ),
    "hermes, no arguments": Answered(
        TaggedObjects(), '<tool_call>{"name": "now"}</tool_call>', calls=(NOW,)
    ),
    "hermes, another tool": Answered(
        TaggedObjects(),
        '<tool_call>{"name": "nothing"}</tool_call>',
        '<tool_call>{"name": "nothing"}</tool_call>',
    ),
    "hermes, no JSON": Answered(TaggedObjects(), "a <tool_call> b", "a <tool_call> b"),
    "qwen3-coder": Answered(
        TaggedFunctions(),
        "Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\nFrance\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "Yes.",
        calls=(("get_weather", {"city": "Paris\nFrance", "days": 2}),),
    ),
    "glm": Answered(
        TaggedPairs(THINK),
        "<think></think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>"
        "\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        calls=(("get_weather", {"city": "12", "days": 2}),),
    ),
    "glm, on one line": Answered(
        TaggedPairs(),
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bo</arg_value></tool_call>"
        "<tool_call>now</tool_call>",
        calls=(("get_weather", {"city": "Bo"}), NOW),
    ),
    "llama 3": Answered(BareObjects(), _object(PARIS, "parameters"), calls=(PARIS,)),
    "llama 3, two": Answered(
        BareObjects(),
        f'<|python_tag|>{{"type": "function", "name": "now"}}; {_object(PARIS, "parameters")}',
        calls=(NOW, PARIS),
    ),
    "llama 3, text": Answered(BareObjects(), ' {"a": 1} is JSON', ' {"a": 1} is JSON'),
    "mistral": Answered(
        MarkedArray(), f"[TOOL_CALLS][{_object(PARIS)}, {_object(NOW)}]", calls=(PARIS, NOW)
    ),
    "mistral, named": Answered(
        MarkedArray(("[THINK]", "[/THINK]"), is_named=True),
        f"[THINK]a[/THINK]b[TOOL_CALLS]get_weather[ARGS]{spelt(PARIS[1])}[TOOL_CALLS]now[ARGS]{{}}",
        "b",
        "a",
        (PARIS, NOW),
    ),
    "granite 3": Answered(
        MarkedArray(marker="<|tool_call|>"), f"<|tool_call|>[{_object(PARIS)}]", calls=(PARIS,)
    ),
    "deepseek r1": Answered(
        DeepSeek(THINK),
        f"Hm.</think>\n{_CB}{_B}function{_S}get_weather\n```json\n{spelt(PARIS[1])}\n```{_E}\n"
        f"{_B}function{_S}now\n```json\n{{}}\n```{_E}{_CE}",
        "",
        "Hm.",
        (PARIS, NOW),
        thinks=True,
    ),
    "deepseek v3.1": Answered(
        DeepSeek(has_block=False),
        f"So{_CB}{_B}get_weather{_S}{spelt(PARIS[1])}{_E}{_B}now{_S}{{}}{_E}{_CE}",
        "So",
        calls=(PARIS, NOW),
    ),
    "deepseek dsml": Answered(
        Invocations(),
        f'So.\n\n<{_D}function_calls>\n<{_D}invoke name="get_weather">\n'
        f'<{_D}parameter name="city" string="true">Paris</{_D}parameter>\n'
        f'<{_D}parameter name="days" string="false">2</{_D}parameter>\n</{_D}invoke>\n'
        f'<{_D}invoke name="now">\n</{_D}invoke>\n</{_D}function_calls>',
        "So.",
        calls=(("get_weather", _PLAIN), NOW),
    ),
    "gpt-oss": Answered(Harmony(), _HARMONY, "", "Let me see.", (PARIS,)),
    "gpt-oss, text": Answered(
        Harmony(),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.",
        "Hi.",
        "Hm.",
    ),
    "gpt-oss, recipient first": Answered(
        Harmony(),
        " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        calls=(NOW,),
    ),
    "lfm2": Answered(
        PythonCalls(),
        "<|tool_call_start|>[get_weather(city=\"Pa'ris\", days=2), now()]<|tool_call_end|>Wait.",
        "Wait.",
        calls=(("get_weather", {"city": "Pa'ris", "days": 2}), NOW),
    ),
    "lfm2, no call": Answered(
        PythonCalls(),
        "<|tool_call_start|>[1 + 1]<|tool_call_end|>",
        "<|tool_call_start|>[1 + 1]<|tool_call_end|>",
    ),
    "gemma 4": Answered(
        GemmaCalls(("<|channel>thought", "<channel|>"), **_GEMMA4),
        "<|channel>thought\nHm.\n<channel|>Wait.<|tool_call>call:get_weather{city:<|\"|>Pa{}ris"
        '<|"|>,days:2,unit:<|"|>C<|"|>}<tool_call|>',
        "Wait.",
        "Hm.",
        (("get_weather", {"city": "Pa{}ris", "days": 2, "unit": "C"}),),
    ),
    "function gemma": Answered(
        GemmaCalls(
            begin="<start_function_call>", end="<end_function_call>", quote="<escape>"
        ),
        "<start_function_call>call:get_weather{city:<escape>Bo<escape>,days:2}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        calls=(("get_weather", {"city": "Bo", "days": 2}), NOW),
    ),
    "kimi k2": Answered(
        KimiCalls(THINK),
        f"<think>Hm.</think>So.<|tool_calls_section_begin|>{_kimi(PARIS, 0)}{_kimi(NOW, 1)}"
        "<|tool_calls_section_end|>",
        "So.",
        "Hm.",
        (PARIS, NOW),
    ),
    "command r": Answered(
        CommandCalls(("<|START_THINKING|>", "<|END_THINKING|>")),
        f"<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    {_action(PARIS, 0)},\n"
        f"    {_action(NOW, 1)}\n]<|END_ACTION|>",
        "",
        "Hm.",
        (PARIS, NOW),
    ),
    "command r, text": Answered(
        CommandCalls(), "<|START_RESPONSE|>Hi <co>there</co>.<|END_RESPONSE|>", "Hi <co>there</co>."
    ),
    "functionary": Answered(
        FunctionCalls(),
        f"So. <function=get_weather>{spelt(PARIS[1])}</function>\n<function=now>{{}}</function>",
        "So.",
        calls=(PARIS, NOW),
    ),
    "functionary 3.2": Answered(
        Recipients(),
        f"all\nSo:\n>>> 1\n>>>get_weather\n{spelt(PARIS[1])}>>>now\n{{}}",
        "So:\n>>> 1",
        calls=(PARIS, NOW),
    ),
    "functionary 3.2, text": Answered(Recipients(), ">>>all\nHi >>> there", "Hi >>> there"),
    "functionary 3.2, no recipient": Answered(Recipients(), "allow >>>it", "allow >>>it"),
    "nemotron": Answered(
        MarkedArray(THINK, marker="<TOOLCALL>", end="</TOOLCALL>"),
        f"Hm.\n</think>\n<TOOLCALL>[{_object(PARIS)}, {_object(NOW)}]</TOOLCALL>",
        "",
        "Hm.",
        (PARIS, NOW),
        thinks=True,
    ),
    "apriel": Answered(
        MarkedArray(_APRIEL, marker="<tool_calls>", end="</tool_calls>"),
        f"Hm.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{_object(PARIS)}]</tool_calls>",
        "",
        "Hm.",
        (PARIS,),
        thinks=True,
    ),
    "minimax": Answered(
        MiniMaxCalls(THINK),
        'Hm.\n</think>\n\nSo.\n<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Paris</parameter>\n<parameter name="days">2</parameter>\n</invoke>'
        '\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "So.",
        "Hm.",
        (("get_weather", _PLAIN), NOW),
        thinks=True,
    ),
    "seed-oss": Answered(
        TaggedFunctions(("<seed:think>", "</seed:think>"), tag="seed:tool_call", around=""),
        "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Paris</parameter>\n<parameter=days>2</parameter>\n</function>\n"
        "</seed:tool_call>",
        "",
        "Hm.",
        (("get_weather", _PLAIN),),
    ),
    "generic": Answered(
        Generic(), f'{{"tool_calls": [{_object(PARIS)}, {_object(NOW)}]}}', calls=(PARIS, NOW)
    ),
    "generic, text": Answered(
        Generic(), '{"response": "A \\"line\\"\\n\\u00e9\\ud83d\\ude00"}', 'A "line"\né😀'
    ),
    "generic, neither": Answered(Generic(), '{"a": 1} b', '{"a": 1} b'),
}  # fmt: skip

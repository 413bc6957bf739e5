"""What the models of each family write for a call, after their model cards and templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def deepseek(name: str) -> str:
    return f"<\uff5c{name}\uff5c>".replace(" ", "\u2581")


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def llama(name: str, arguments: dict[str, Any]) -> str:
    return f'{{"name": "{name}", "parameters": {json.dumps(arguments)}}}'


def granite(name: str, arguments: dict[str, Any]) -> str:
    return f'<|tool_call|>[{{"name": "{name}", "arguments": {json.dumps(arguments)}}}]'


def mistral_list(name: str, arguments: dict[str, Any]) -> str:
    call = {"name": name, "arguments": arguments, "id": "abcdefghi"}
    return f"[TOOL_CALLS][{json.dumps(call)}]"


def mistral(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"


def deepseek_r1(name: str, arguments: dict[str, Any]) -> str:
    begin, end = deepseek("tool call begin"), deepseek("tool call end")
    call = (
        f"{begin}function{deepseek('tool sep')}{name}\n```json\n{json.dumps(arguments)}\n```{end}"
    )
    return f"{deepseek('tool calls begin')}{call}{deepseek('tool calls end')}"


def deepseek_v31(name: str, arguments: dict[str, Any]) -> str:
    begin, end = deepseek("tool call begin"), deepseek("tool call end")
    call = f"{begin}{name}{deepseek('tool sep')}{json.dumps(arguments)}{end}"
    return f"{deepseek('tool calls begin')}{call}{deepseek('tool calls end')}"


def tagged(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def glm(name: str, arguments: dict[str, Any]) -> str:
    pairs = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{tagged(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{''.join(pairs)}</tool_call>"


def qwen_coder(name: str, arguments: dict[str, Any]) -> str:
    pairs = (
        f"<parameter={key}>\n{tagged(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"


def lfm2(name: str, arguments: dict[str, Any]) -> str:
    def written(value: Any) -> str:
        return json.dumps(value) if isinstance(value, str) else repr(value)

    pairs = ", ".join(f"{key}={written(value)}" for key, value in arguments.items())
    return f"<|tool_call_start|>[{name}({pairs})]<|tool_call_end|>"


def gemma(name: str, arguments: dict[str, Any]) -> str:
    def value(given: Any) -> str:
        if isinstance(given, str):
            return f'<|"|>{given}<|"|>'
        if isinstance(given, list):
            return f"[{','.join(map(value, given))}]"
        if isinstance(given, dict):
            return f"{{{','.join(f'{k}:{value(v)}' for k, v in given.items())}}}"
        return json.dumps(given)

    pairs = ",".join(f"{key}:{value(given)}" for key, given in arguments.items())
    return f"<|tool_call>call:{name}{{{pairs}}}<tool_call|>"


def gpt_oss(name: str, arguments: dict[str, Any]) -> str:
    head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return head + json.dumps(arguments)


def kimi(name: str, arguments: dict[str, Any]) -> str:
    call = f"functions.{name}:0<|tool_call_argument_begin|>{json.dumps(arguments)}"
    section = f"<|tool_call_begin|>{call}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{section}<|tool_calls_section_end|>"


def command_r(name: str, arguments: dict[str, Any]) -> str:
    call = {"tool_call_id": "0", "tool_name": name, "parameters": arguments}
    return f"<|START_ACTION|>[\n    {json.dumps(call)}\n]<|END_ACTION|>"


def functionary(name: str, arguments: dict[str, Any]) -> str:
    return f"<function={name}>{json.dumps(arguments)}</function>"


def functionary_32(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}\n{json.dumps(arguments)}"


def nemotron(name: str, arguments: dict[str, Any]) -> str:
    return f'<TOOLCALL>[{{"name": "{name}", "arguments": {json.dumps(arguments)}}}]</TOOLCALL>'


def minimax(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(
        f'<parameter name="{key}">{tagged(value)}</parameter>\n' for key, value in arguments.items()
    )
    call = f'<invoke name="{name}">\n{pairs}</invoke>'
    return f"<minimax:tool_call>\n{call}\n</minimax:tool_call>"


def seed_oss(name: str, arguments: dict[str, Any]) -> str:
    pairs = "".join(
        f"<parameter={key}>{tagged(value)}</parameter>\n" for key, value in arguments.items()
    )
    return f"<seed:tool_call>\n<function={name}>\n{pairs}</function>\n</seed:tool_call>"


def dsml(name: str, arguments: dict[str, Any]) -> str:
    mark = "\uff5cDSML\uff5c"
    pairs = "".join(
        f'<{mark}parameter name="{key}" string="{json.dumps(isinstance(value, str))}">'
        f"{tagged(value)}</{mark}parameter>\n"
        for key, value in arguments.items()
    )
    call = f'<{mark}invoke name="{name}">\n{pairs}</{mark}invoke>'
    return f"<{mark}function_calls>\n{call}\n</{mark}function_calls>"


def generic(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"tool_calls": [{"name": name, "arguments": arguments}]})


WRITERS: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "Hermes": hermes,
    "Llama 3": llama,
    "Granite 3": granite,
    "Mistral list": mistral_list,
    "Mistral": mistral,
    "DeepSeek R1": deepseek_r1,
    "DeepSeek V3.1": deepseek_v31,
    "GLM": glm,
    "Qwen3-Coder": qwen_coder,
    "LFM2": lfm2,
    "Gemma 4": gemma,
    "gpt-oss": gpt_oss,
    "Kimi K2": kimi,
    "Command R": command_r,
    "Functionary": functionary,
    "Functionary 3.2": functionary_32,
    "Nemotron": nemotron,
    "MiniMax M2": minimax,
    "Seed-OSS": seed_oss,
    "DSML": dsml,
    "generic": generic,
}

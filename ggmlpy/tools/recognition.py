"""The format of a model, recognised by its chat template and its vocabulary."""

from __future__ import annotations

from collections.abc import Callable

from ggmlpy.tools.formats import Format
from ggmlpy.tools.json_formats import (
    BareObjects,
    DeepSeek,
    Harmony,
    MarkedArray,
    TaggedObjects,
)
from ggmlpy.tools.named_formats import CommandCalls, FunctionCalls, KimiCalls, Recipients
from ggmlpy.tools.tagged_formats import Invocations, MiniMaxCalls, TaggedFunctions, TaggedPairs
from ggmlpy.tools.written_formats import GemmaCalls, PythonCalls

HasToken = Callable[[str], bool]

_THINK = (
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
    ("<think>", "</think>"),
)


def format_of(template: str, has_token: HasToken) -> Format:
    """The format of a model with this template; `has_token` tells whether a text is one token of
    its vocabulary. A plain `Format` where none is known."""
    think = next((pair for pair in _THINK if pair[0] in template or pair[1] in template), None)
    if "<|channel|>" in template and "<|start|>" in template:
        return Harmony()
    if Invocations.tokens[0] in template:
        return Invocations(think, is_newer="function_calls>" not in template)
    if DeepSeek.begins[0] in template:
        return DeepSeek(think, has_block="```json" in template)
    if "<|tool_call>" in template:
        channel = ("<|channel>thought", "<channel|>")
        think = channel if channel[1] in template else think
        return GemmaCalls(think, begin="<|tool_call>", end="<tool_call|>", quote='<|"|>')
    if "<start_function_call>" in template:
        begin, end = "<start_function_call>", "<end_function_call>"
        return GemmaCalls(think, begin=begin, end=end, quote="<escape>")
    if "<|tool_calls_section_begin|>" in template:
        return KimiCalls(think)
    if "<|START_ACTION|>" in template:
        return CommandCalls(think)
    if "<minimax:tool_call>" in template:
        return MiniMaxCalls(think)
    if "<seed:tool_call>" in template:
        return TaggedFunctions(think, tag="seed:tool_call", around="")
    for tag in ("TOOLCALL", "tool_calls"):
        if f"<{tag}>[" in template:
            return MarkedArray(think, marker=f"<{tag}>", end=f"</{tag}>")
    if "[TOOL_CALLS]" in template:
        return MarkedArray(think, is_named="[ARGS]" in template)
    if "<|tool_call_start|>" in template or has_token("<|tool_call_start|>"):
        return PythonCalls(think)
    if "<|tool_call|>" in template:
        return MarkedArray(think, marker="<|tool_call|>")
    if "<arg_key>" in template:
        return TaggedPairs(think)
    if ">>>all" in template:
        return Recipients(think)
    if "<function=" in template:
        return TaggedFunctions(think) if "<parameter=" in template else FunctionCalls(think)
    if "<tool_call>" in template and '"arguments' in template:
        return TaggedObjects(think)
    if "ipython" in template and '"parameters"' in template:
        return BareObjects(think)
    return Format(think)

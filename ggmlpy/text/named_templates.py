"""Chat templates by the names that llama.cpp gives them, for files without one of their own.

Most formats write each message between two texts that depend on its role, and begin the answer:

    chatml      <|im_start|>role\\n content <|im_end|>\\n
    llama3      <|start_header_id|>role<|end_header_id|>\\n\\n content <|eot_id|>
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ggmlpy.errors import TemplateError

Around = tuple[str, str]  # what stands before a text, and behind it


@dataclass(frozen=True, slots=True)
class _Turns:
    """A format in which each message stands between two texts."""

    system: Around
    user: Around
    assistant: Around
    opening: str  # of the answer
    begin: str = ""
    strips: bool = False  # white space around the texts of messages

    @property
    def source(self) -> str:
        content = "m.content | trim" if self.strips else "m.content"
        parts = [_literal(self.begin), "{% for m in messages %}"]
        for role in ("system", "user", "assistant"):
            before, behind = getattr(self, role)
            parts += [
                f'{{% if m.role == "{role}" %}}',
                _literal(before) + f"{{{{ {content} }}}}" + _literal(behind),
                "{% endif %}",
            ]
        opening = f"{{% if add_generation_prompt %}}{_literal(self.opening)}{{% endif %}}"
        return "".join([*parts, "{% endfor %}", opening])


def _literal(text: str) -> str:
    """An expression of jinja for a text, which is written as it is."""
    return f"{{{{ {json.dumps(text)} }}}}" if text else ""


def _marked(before: str, behind: str, begin: str = "", *, strips: bool = False) -> _Turns:
    """Every role in the same way: `before` has its name as ROLE, and begins the answer too."""
    system, user, assistant = (before.replace("ROLE", r) for r in ("system", "user", "assistant"))
    return _Turns((system, behind), (user, behind), (assistant, behind), assistant, begin, strips)


def _vicuna(system: Around) -> _Turns:
    return _Turns(system, ("USER: ", "\n"), ("ASSISTANT: ", "</s>\n"), "ASSISTANT:")


def _exaone(user: Around, mark: str, end: str) -> _Turns:
    marks = (mark.replace("ROLE", role) for role in ("system", "assistant"))
    system, assistant = marks
    return _Turns((system, end), user, (assistant, end), assistant, strips=True)


_TURN, _END = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
_EOS = "<\uff5cend\u2581of\u2581sentence\uff5c>"
_TURNS = {
    "chatml": _marked("<|im_start|>ROLE\n", "<|im_end|>\n"),
    "llama3": _marked("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", strips=True),
    "phi3": _marked("<|ROLE|>\n", "<|end|>\n"),
    "phi4": _marked("<|im_start|>ROLE<|im_sep|>", "<|im_end|>"),
    "falcon3": _marked("<|ROLE|>\n", "\n"),
    "zephyr": _marked("<|ROLE|>\n", "<|endoftext|>\n"),
    "glmedge": _Turns(
        ("<|system|>\n", ""), ("<|user|>\n", ""), ("<|assistant|>\n", ""), "<|assistant|>"
    ),
    "chatglm4": _marked("<|ROLE|>\n", "", "[gMASK]<sop>"),
    "granite": _marked("<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n"),
    "megrez": _marked("<|role_start|>ROLE<|role_end|>", "<|turn_end|>"),
    "mistral-v7": _Turns(
        ("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"), ("[INST] ", "[/INST]"), (" ", "</s>"), ""
    ),
    "mistral-v7-tekken": _Turns(
        ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"), ("[INST]", "[/INST]"), ("", "</s>"), ""
    ),
    "vicuna": _vicuna(("", "\n\n")),
    "vicuna-orca": _vicuna(("SYSTEM: ", "\n")),
    "openchat": _Turns(
        ("", "<|end_of_turn|>"),
        ("GPT4 Correct User: ", "<|end_of_turn|>"),
        ("GPT4 Correct Assistant: ", "<|end_of_turn|>"),
        "GPT4 Correct Assistant:",
    ),
    "deepseek": _Turns(
        ("", ""),
        ("### Instruction:\n", "\n"),
        ("### Response:\n", "\n<|EOT|>\n"),
        "### Response:\n",
    ),
    "deepseek2": _Turns(("", "\n\n"), ("User: ", "\n\n"), ("Assistant: ", _EOS), "Assistant:"),
    "deepseek3": _Turns(
        ("", "\n\n"),
        ("<\uff5cUser\uff5c>", ""),
        ("<\uff5cAssistant\uff5c>", _EOS),
        "<\uff5cAssistant\uff5c>",
    ),
    "command-r": _Turns(
        (f"{_TURN}<|SYSTEM_TOKEN|>", _END),
        (f"{_TURN}<|USER_TOKEN|>", _END),
        (f"{_TURN}<|CHATBOT_TOKEN|>", _END),
        f"{_TURN}<|CHATBOT_TOKEN|>",
        strips=True,
    ),
    "exaone3": _exaone(("[|user|]", "\n"), "[|ROLE|]", "[|endofturn|]\n"),
    "exaone4": _exaone(("[|user|]", "\n"), "[|ROLE|]", "[|endofturn|]\n"),
    "exaone-moe": _exaone(("<|user|>\n", "<|endofturn|>\n"), "<|ROLE|>\n", "<|endofturn|>\n"),
}
_TURNS |= {name: _TURNS["granite"] for name in ("granite-4.0", "granite-4.1")}

# The system message is a part of the first user's message.
_GEMMA = """\
{% set system = namespace(text="") %}
{% for m in messages %}
{% if m.role == "system" %}
{% set system.text = system.text ~ (m.content | trim) %}
{% else %}
<start_of_turn>{{ "model" if m.role == "assistant" else m.role }}
{% if system.text and m.role != "assistant" %}
{{ system.text }}

{% set system.text = "" %}
{% endif %}
{{ m.content | trim }}<end_of_turn>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %}
"""


def _instructions(
    start: str, end: str, system: Around, answer: Around, *, strips: str = "", again: str = ""
) -> str:
    """Turns `[INST] system user [/INST] answer`: a turn starts with what is behind an answer.

    `strips` names the roles whose texts lose the white space around them, `again` stands before
    every turn but the first.
    """
    parts = ["{% set turn = namespace(begun=false, n=0) %}{% for m in messages %}"]
    parts.append(
        "{% if not turn.begun %}{% if turn.n %}"
        f"{_literal(again)}{{% endif %}}{_literal(start)}"
        "{% set turn.begun = true %}{% set turn.n = turn.n + 1 %}{% endif %}"
    )
    for role, around in (("system", system), ("user", ("", end)), ("assistant", answer)):
        content = "m.content | trim" if role in strips.split() else "m.content"
        left = "{% set turn.begun = false %}" if role == "assistant" else ""
        text = f"{_literal(around[0])}{{{{ {content} }}}}{_literal(around[1])}"
        parts.append(f'{{% if m.role == "{role}" %}}{text}{left}{{% endif %}}')
    return "".join([*parts, "{% endfor %}"])


_SYS = ("<<SYS>>\n", "\n<</SYS>>\n\n")
_LLAMA2: tuple[str, str] = ("[INST] ", " [/INST]")
_SOURCES = {name: turns.source for name, turns in _TURNS.items()} | {
    "gemma": _GEMMA,
    "llama2": _instructions(*_LLAMA2, ("", "\n"), ("", "</s>")),
    "llama2-sys": _instructions(*_LLAMA2, _SYS, ("", "</s>")),
    "llama2-sys-bos": _instructions(*_LLAMA2, _SYS, ("", "</s>"), again="<s>"),
    "llama2-sys-strip": _instructions(*_LLAMA2, _SYS, ("", "</s>"), strips="system user assistant"),
    "mistral-v1": _instructions(" [INST] ", " [/INST]", ("", "\n\n"), (" ", "</s>")),
    "mistral-v3": _instructions(
        "[INST] ", "[/INST]", ("", "\n\n"), (" ", "</s>"), strips="assistant"
    ),
    "mistral-v3-tekken": _instructions("[INST]", "[/INST]", ("", "\n\n"), ("", "</s>")),
}
NAMES = tuple(sorted(_SOURCES))


def template_source(name_or_source: str) -> str:
    """The template of a name, or what is a template itself. Raises TemplateError."""
    if name_or_source in _SOURCES:
        return _SOURCES[name_or_source]
    if "{{" in name_or_source or "{%" in name_or_source:
        return name_or_source
    raise TemplateError(
        f"{name_or_source!r} is no chat template, nor the name of one: these are {', '.join(NAMES)}"
    )

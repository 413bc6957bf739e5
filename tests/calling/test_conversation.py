"""Tools and their options, and conversations as prompts of templates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ggmlpy.errors import ArgumentError, TemplateError
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.tools import Conversation, ToolUse, template_variables, tool_use
from ggmlpy.tools.json_formats import DeepSeek
from ggmlpy.tools.recognition import format_of
from tests.calling.formats import TOOLS

NAMES = ["get_weather", "now"]
CALL = {"id": "abcdefghi", "type": "function"}
CALL |= {"function": {"name": "now", "arguments": '{"a": 1}'}}  # type: ignore[dict-item]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "How late?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "Noon.", "tool_call_id": "abcdefghi"},
]
HEAD = '{% for t in tools or [] %}{{ t | tojson }}{% endfor %}<tool_call>"arguments"'
BODY = "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
TAIL = "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}"
OBJECTS = f"{HEAD}{BODY}{CALLS}{{{{ c.function.arguments | tojson }}}}{{% endfor %}}{TAIL}"
TEXTS = f"{HEAD}{BODY}{CALLS}{{{{ 'A' + c.function.arguments }}}}{{% endfor %}}{TAIL}"
NO_CALLS = f"{HEAD}{BODY}{TAIL}"
NO_TOOLS = f"{BODY}{TAIL}"
ONLY_USERS = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def conversation(source: str) -> Conversation:
    return Conversation(ChatTemplate(source), lambda text: False)


@pytest.mark.parametrize(
    ("choice", "names", "must_call"),
    [
        (None, NAMES, False),
        ("auto", NAMES, False),
        ("none", [], False),
        ("required", NAMES, True),
        ({"type": "function", "function": {"name": "now"}}, ["now"], True),
    ],
)
def test_choices(choice: Any, names: list[str], must_call: bool) -> None:
    use = tool_use(TOOLS, choice, None)
    assert [tool.name for tool in use.callable] == names
    assert [tool.name for tool in use.tools] == (NAMES if names else [])
    assert (use.must_call, use.parallel) == (must_call, True)
    assert not tool_use(TOOLS, choice, False).parallel


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ("now", None, "tools is a str: it must be a list of definitions"),
        ([5], None, r"tools\[0\] is an int: it must be"),
        ([{"type": "code"}], None, r"tools\[0\] is {'type': 'code'}: it must be"),
        ([{"function": {"name": "a b"}}], None, r"tools\[0\]: name is 'a b'"),
        ([{"function": {"name": "a", "parameters": 3}}], None, r"\(a\): parameters is an int"),
        (
            [{"function": {"name": "a", "parameters": {"type": "array"}}}],
            None,
            r"tools\[0\] \(a\): parameters has type 'array': it must be \"object\"",
        ),
        (
            [{"function": {"name": "a", "parameters": {"properties": 3}}}],
            None,
            r"tools\[0\] \(a\): properties is an int: it must be an object",
        ),
        ([*TOOLS, TOOLS[1]], None, r"tools\[2\]: there is another tool with the name 'now'"),
        ([], "required", 'tool_choice is "required": tools must have at least one'),
        (TOOLS, "maybe", "tool_choice is 'maybe': it must be \"auto\""),
        (
            TOOLS,
            {"type": "function", "function": {"name": "then"}},
            "tool_choice names 'then', which is no tool: tools are get_weather, now",
        ),
    ],
)
def test_wrong_options(tools: Any, choice: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tool_use(tools, choice, None)


def test_wrong_variables() -> None:
    with pytest.raises(ArgumentError, match="parallel_tool_calls is an int"):
        tool_use(TOOLS, None, 1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="chat_template_kwargs is a str"):
        template_variables("enable_thinking")
    with pytest.raises(ArgumentError, match="chat_template_kwargs has 'tools', which has another"):
        template_variables({"tools": []})


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (OBJECTS, '[assistant]{"a": 1}'),
        (TEXTS, '[assistant]A{"a": 1}'),
        (NO_CALLS, '[assistant]{"tool_calls": [{"name": "now", "arguments": {"a": 1}}]}'),
    ],
)
def test_calls_and_results(source: str, written: str) -> None:
    """Arguments as the template takes them, given as JSON or as an object."""
    made = conversation(source)
    rendered = made.render(MESSAGES, tool_use(TOOLS, None, None), {})
    assert rendered.format.name == "hermes"
    assert rendered.prompt.startswith('{"type": "function", "function": {"name": "get_weather"')
    assert f"{written}[tool]Noon.[assistant]" in rendered.prompt
    function = {"name": "now", "arguments": {"a": 1}}
    messages = [MESSAGES[0], {**MESSAGES[1], "tool_calls": [{"function": function}]}, MESSAGES[2]]
    assert made.render(messages, ToolUse(), {}).prompt.endswith(f"{written}[tool]Noon.[assistant]")


def test_templates_without_tools() -> None:
    """A system message describes them; calls and results are text."""
    rendered = conversation(NO_TOOLS).render(MESSAGES, tool_use(TOOLS, None, None), {})
    assert rendered.format.name == "generic"
    system, _, rest = rendered.prompt.partition("[user]")
    assert '"name": "get_weather"' in system and '{"response": …}' in system
    assert rest == (
        'How late?[assistant]{"tool_calls": [{"name": "now", "arguments": {"a": 1}}]}'
        '[user]{"tool_response": {"tool_call_id": "abcdefghi", "content": "Noon."}}[assistant]'
    )
    own = [{"role": "system", "content": "Be brief."}, MESSAGES[0]]
    prompt = conversation(NO_TOOLS).render(own, tool_use(TOOLS, None, None), {}).prompt
    assert prompt.startswith("[system]Be brief.\n\nYou can call these tools")
    prompt = conversation(ONLY_USERS).render(MESSAGES[:1], tool_use(TOOLS, None, None), {}).prompt
    assert prompt.startswith("[user]You can call these tools")
    assert prompt.endswith("\n\nHow late?")


def test_prompts_that_end_in_the_reasoning() -> None:
    source = "{{ messages[0].content }}{% if thinks %}<think>\n{% else %}<think></think>{% endif %}"
    for thinks in (True, False):
        rendered = conversation(source).render(MESSAGES[:1], ToolUse(), {"thinks": thinks})
        assert rendered.thinks == thinks


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ("now", r"messages\[0\]: tool_calls is a str: it must be a list"),
        ([{"name": "now"}], r"messages\[0\]: tool_calls\[0\] is {'name': 'now'}: it must be"),
        (
            [{"function": {"name": "now", "arguments": "{"}}],
            r"messages\[0\]: tool_calls\[0\]: arguments is '{': it must be a JSON object",
        ),
    ],
)
def test_wrong_calls(calls: Any, message: str) -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}]
    with pytest.raises(TemplateError, match=message):
        conversation(OBJECTS).render(messages, ToolUse(), {})


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ('<tool_call> {"name": …, "arguments": …}</think>', "hermes"),
        ("<tool_call><function=a><parameter=b>", "qwen3-coder"),
        ("<tool_call>a<arg_key>", "glm"),
        ('Environment: ipython {"name": …, "parameters": …}', "llama 3"),
        ("[TOOL_CALLS][{", "mistral"),
        ("[TOOL_CALLS]a[ARGS]{", "mistral"),
        ("<|tool_call|>[{", "mistral"),
        ("<\uff5ctool▁calls▁begin\uff5c>", "deepseek"),
        ("<' + '\uff5cDSML\uff5c' + 'function_calls>", "deepseek dsml"),
        ("<|start|>assistant<|channel|>", "gpt-oss"),
        ("<|tool_call>call:", "gemma"),
        ("<start_function_call>call:", "gemma"),
        ("<|tool_call_start|>", "lfm2"),
        ("<|tool_calls_section_begin|>", "kimi k2"),
        ("<|START_ACTION|>[", "command r"),
        ("'<function=' + name", "functionary"),
        ("'>>>all' + content", "functionary 3.2"),
        ("<TOOLCALL>[", "mistral"),
        ('<tool_call></tool_call> <tool_calls>[{"arguments', "mistral"),
        ("<minimax:tool_call><invoke", "minimax"),
        ("<seed:tool_call><function=<parameter=", "qwen3-coder"),
        ("<|im_start|>", "text"),
        ("<tool_call><invoke>", "text"),
    ],
)
def test_recognition(template: str, name: str) -> None:
    assert format_of(template, lambda text: False).name == name
    assert format_of("", lambda text: text == "<|tool_call_start|>").name == "lfm2"


def test_templates_that_need_all_of_a_definition() -> None:
    """A description and parameters are added for them alone."""
    source = (
        "{% for t in tools or [] %}<tool_call>{{ t.function.description | upper }}"
        '{{ t.function.parameters | tojson }}{# "arguments" #}{% endfor %}' + NO_CALLS
    )
    rendered = conversation(source).render(MESSAGES[:1], tool_use(TOOLS, None, None), {})
    assert '<tool_call>{"type": "object", "properties": {}}' in rendered.prompt
    assert "THE WEATHER AT A PLACE." in rendered.prompt
    with pytest.raises(TemplateError, match="no description"):
        source = (
            "{{ tools }}{{ raise_exception('no description') if tools[0].function.name == 'now' }}"
        )
        conversation('<tool_call>"arguments"' + source).render(
            MESSAGES[:1], tool_use(TOOLS[1:], None, None), {}
        )


def test_templates_that_keep_ids_in_a_list() -> None:
    """As Kimi K2's."""
    source = (
        "{% set ids = namespace(of=[]) %}{% for m in messages %}{% set _ = ids.of.append(m.role) %}"
        "{% endfor %}{{ ids.of.pop(0) }}{{ ids.of | length }}"
    )
    for _ in range(2):
        assert ChatTemplate(source).render(MESSAGES) == "user2"


def test_definitions_reach_the_template_whole() -> None:
    rendered = conversation(OBJECTS).render(MESSAGES[:1], tool_use(TOOLS, None, None), {})
    first = rendered.prompt[
        : rendered.prompt.index('{"type": "function", "function": {"name": "now"')
    ]
    assert json.loads(first) == TOOLS[0]


def test_calls_for_templates_that_write_none() -> None:
    """They are written as the model writes them."""
    source = "{{ tools }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    call = {"id": "1", "function": {"name": "now", "arguments": '{"a": "x", "b": [1, null]}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Well.", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": "12:00"},
    ]
    python = 'now(a="x", b=[1, None])'
    objects = '{"name": "now", "arguments": {"a": "x", "b": [1, null]}}'
    for mark, written in (
        ("<|tool_call_start|>", f"<|tool_call_start|>[{python}, {python}]<|tool_call_end|>"),
        ("<|tool_call|>", f"<|tool_call|>[{objects}, {objects}]"),
    ):
        conversation = Conversation(ChatTemplate(f"{{# {mark} #}}" + source), lambda text: False)
        prompt = conversation.render(messages, tool_use(TOOLS, "auto", None), {}).prompt
        assert f"[assistant]Well.\n\n{written}[tool]12:00" in prompt


@pytest.mark.parametrize("block", ["", "```json"])
def test_deepseek_is_told_of_tools_that_its_template_does_not_write(block: str) -> None:
    begin, sep, end, _ = DeepSeek.tokens
    source = f"{{# {DeepSeek.begins[0]}{block} #}}" + (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<{{ c.function.name + c.function.arguments }}>{% endfor %}{% endfor %}"
    )
    call = {"id": "1", "function": {"name": "now", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "12:00"},
    ]
    conversation = Conversation(ChatTemplate(source), lambda text: False)
    made = conversation.render(messages, tool_use(TOOLS, "auto", None), {})
    assert isinstance(made.format, DeepSeek)
    assert made.prompt.startswith("[system]You can call")
    assert '"name": "get_weather"' in made.prompt
    told = f"{begin}function{sep}NAME\n```json\n" if block else f"{begin}NAME{sep}ARGUMENTS{end}"
    assert told in made.prompt
    assert made.prompt.endswith('[user]Hi[assistant]<now{"a": 1}>[tool]12:00')
    # Without tools the calls are written by the template too.
    silent = conversation.render(messages, tool_use(None, None, None), {})
    assert silent.prompt == '[user]Hi[assistant]<now{"a": 1}>[tool]12:00'

"""Chat templates: what they are given, and where they come from."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.errors import TemplateError
from ggmlpy.text.chat import ChatTemplate
from tests.unit.conversations import CHATML, TALK, USER, render


def test_tojson_escapes_neither_html_nor_letters() -> None:
    value = {"b": "<é & 'x'>", "a": [1, None]}
    assert render("{{ v | tojson }}", v=value) == '{"b": "<é & \'x\'>", "a": [1, null]}'
    assert render("{{ v | tojson(indent=2) }}", v=[1]) == "[\n  1\n]"
    assert render(
        "{{ v | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}", v=value
    ) == ('{"a":[1,null],"b":"<\\u00e9 & \'x\'>"}')


def test_strftime_now() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    rendered = render("{{ strftime_now('%Y-%m-%d') }}")
    assert before <= rendered <= datetime.now().strftime("%Y-%m-%d")


def test_tools_and_documents_are_none_unless_given() -> None:
    source = "{{ tools is none }} {{ documents is none }} {{ enable_thinking is defined }}"
    assert render(source) == "True True False"
    assert render(source, tools=[1], documents=[], enable_thinking=False) == "False False True"


def test_loop_controls_and_generation_blocks() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "012"
    )
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hi there!"


def test_blocks_take_no_lines() -> None:
    assert render("{% if true %}\n  {% set x = 1 %}\n{{ x }}\n{% endif %}\n") == "1\n"


def test_common_helpers_of_templates_work() -> None:
    assert render("{{ messages | map(attribute='role') | join(', ') }}", TALK) == (
        "system, user, assistant, user"
    )
    assert (
        render(
            "{{ (messages | selectattr('role', 'equalto', 'user') | list | last).content }}", TALK
        )
        == "Thanks"
    )
    assert render("{{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}") == "b"
    assert render("{{ 'x%s' % 1 }} {{ '{}-{:02d}'.format('a', 5) }} {{ 7 % 4 }} {{ 2 ** 5 }}") == (
        "x1 a-05 3 32"
    )
    assert render("{{ ', '.join(['a', 'b']) }} {{ 'a-b' | replace('-', '+') }}") == "a, b a+b"
    assert (
        render("{{ 'a-b'.replace('-', '+') }} {{ [1] + [2] }} {{ 'ab' * 2 }}") == "a+b [1, 2] abab"
    )
    assert (
        render(
            "{% set x %}a{{ 1 }}{% endset %}{{ x | upper }}{% set y | trim %} b {% endset %}{{ y }}"
        )
        == "A1b"
    )
    assert render("{% macro m(x, y=['a', 'b']) %}{{ x }}{{ y[1] }}{% endmacro %}{{ m(1) }}") == "1b"
    assert render("{% set a, b = 1, [2] %}{{ a }}{{ b }}{{ (a, b) in [(1, [2])] }}") == "1[2]True"
    call = "{% macro m() %}{{ caller('y') }}{% endmacro %}{% call(x) m() %}<{{ x }}>{% endcall %}"
    assert render(call) == "<y>"
    assert render("{{ 'a\nb' | indent(2) }}") == "a\n  b"
    assert render("{% for k, v in {'a': 1} | items %}{{ k ~ v }}{% endfor %}") == "a1"
    assert render("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}") == "a1"
    assert (
        render("{{ {'a': 1}.get('b', 'none') }} {{ messages[0].name is defined }}") == "none False"
    )


def test_what_is_given_stays_unchanged() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert render("{{ messages[0].content }}", messages) == "a"
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache": True}]


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", "onetwo"),
        (
            "{% for p in messages[0]['content'] if p['type'] == 'text' %}"
            "<{{ p.text }}{% if p.cache is defined %} cached{% endif %}>{% endfor %}",
            "<one><two cached>",
        ),
        (
            "{% if messages[0].content is string %}{{ messages[0].content }}{% else %}"
            "{{ messages[0].content | map(attribute='text') | join('+') }}{% endif %}",
            "one+two",
        ),
    ],
)
def test_text_parts_are_passed_as_they_are(source: str, rendered: str) -> None:
    assert render(source, [{"role": "user", "content": PARTS}]) == rendered


def test_a_string_becomes_a_part_where_the_template_reads_only_parts() -> None:
    """It would read the characters of a string, none of which has a type, and write nothing."""
    source = (
        "{% for m in messages %}{{ m.role }}:{% for part in m.content %}"
        "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %};{% endfor %}"
    )
    assert render(source, TALK) == "system:Be brief.;user:Hi there;assistant:Hello!;user:Thanks;"


@pytest.mark.parametrize(
    "content",
    [
        "{{ messages[0].content }}",
        "{{ messages[0].content | trim }}",
        "{{ '' + messages[0].content }}",
        "{{ messages[0]['content'].strip() }}",
    ],
)
def test_text_parts_are_joined_where_the_template_does_not_read_them(content: str) -> None:
    """It would write "[{'type': 'text', …" otherwise, or fail."""
    assert render(content, [{"role": "user", "content": PARTS}]) == "one\ntwo"


def test_a_call_of_a_tool_needs_no_content() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    source = "{{ messages[0].content is none }} {{ messages[0].tool_calls[0].function.name }}"
    assert render(source, [call]) == "True f"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages is str: must be a list of dicts"),
        (5, "messages is int: must be a list of dicts"),
        ({"role": "user"}, "messages is dict: must be a list of dicts"),
        ([], "messages is empty"),
        ([USER, "hello"], r"messages\[1\] is str: must be a dict"),
        ([USER, {"content": "x"}], r"messages\[1\]: role is None: must be a string"),
        ([{"role": 7, "content": "x"}], r"messages\[0\]: role is 7"),
        ([{"role": "", "content": "x"}], r"messages\[0\]: role is ''"),
        ([{"role": "user"}], r"messages\[0\]: content is missing or None"),
        ([{"role": "user", "content": 5}], r"messages\[0\]: content is int: must be a string or"),
        (
            [USER, {"role": "user", "content": [{"type": "image_url"}]}],
            r"messages\[1\]: content\[0\] is of type 'image_url': must be of type \"text\"",
        ),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\]: content\[0\] is str"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]: text is None"),
    ],
)
def test_bad_messages(messages: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(CHATML).render(messages)


CONTENT = ChatTemplate("<{{ messages[0].content }}>")


@settings(deadline=None)
@given(content=st.text())
def test_content_is_never_taken_for_template_code(content: str) -> None:
    messages = [{"role": "user", "content": content + "{{ 7 * 7 }}{% raw %}"}]
    assert CONTENT.render(messages) == (f"<{content}{{{{ 7 * 7 }}}}{{% raw %}}>")


def test_template_and_tokens_from_metadata() -> None:
    template = ChatTemplate.from_metadata(
        {
            "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
            "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )
    assert template.render([USER]) == "<s>Hi there</s>"
    assert not template.is_default
    assert template.stops() == []


@pytest.mark.parametrize("none", [-1, 0xFFFF_FFFF])
def test_ids_that_say_there_is_no_such_token(none: int) -> None:
    metadata = {
        "tokenizer.chat_template": "<{{ bos_token }}|{{ eos_token }}>",
        "tokenizer.ggml.tokens": ["<unk>", "<s>"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": none,
    }
    assert ChatTemplate.from_metadata(metadata).render([USER]) == "<<s>|>"


def test_default_is_chatml_where_the_vocabulary_knows_it() -> None:
    template = ChatTemplate.from_metadata({"tokenizer.ggml.tokens": ["a", "<|im_start|>"]})
    assert template.is_default
    assert template.stops() == ["<|im_end|>"]
    assert template.render(TALK) == ChatTemplate(CHATML).render(TALK)
    assert template.render([USER], add_generation_prompt=False) == (
        "<|im_start|>user\nHi there<|im_end|>\n"
    )


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.chat_template": " \n"}])
def test_default_is_a_plain_dialogue_elsewhere(metadata: dict[str, Any]) -> None:
    template = ChatTemplate.from_metadata(metadata)
    assert template.is_default
    assert template.stops() == ["\nUser:"]
    assert template.render(TALK) == (
        "Be brief.\n\nUser: Hi there\nAssistant: Hello!\nUser: Thanks\nAssistant:"
    )
    assert template.render([USER], add_generation_prompt=False) == "User: Hi there\n"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.chat_template": 7}, "tokenizer.chat_template is int: must be a string"),
        ({"tokenizer.ggml.tokens": 7}, "tokenizer.ggml.tokens is int: must be an array"),
        (
            {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.bos_token_id": 1},
            r"tokenizer.ggml.bos_token_id is 1: must be an id in 0 \.\. 0",
        ),
        (
            {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.eos_token_id": "x"},
            "tokenizer.ggml.eos_token_id is 'x'",
        ),
    ],
)
def test_bad_metadata(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ChatTemplate.from_metadata(metadata)


def test_a_template_is_a_string() -> None:
    with pytest.raises(TemplateError, match=r"^chat template is int: must be a string$"):
        ChatTemplate(5)  # type: ignore[arg-type]

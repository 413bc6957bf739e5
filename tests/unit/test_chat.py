"""Chat templates: known formats, messages, defaults, and templates that mean harm."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy import template_limits
from ggmlpy.chat import ChatTemplate
from ggmlpy.errors import GgmlpyError, TemplateError

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi there"}
ASSISTANT = {"role": "assistant", "content": "Hello!"}
THANKS = {"role": "user", "content": "Thanks"}
TALK = [SYSTEM, USER, ASSISTANT, THANKS]

# ---------------------------------------------------------------- formats that models use

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA_3 = """\
{% set ns = namespace(first=true) %}
{% for message in messages %}
{% set text = '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\\n\\n'
   ~ message.content | trim ~ '<|eot_id|>' %}
{% if ns.first %}
{% set text = bos_token ~ text %}
{% set ns.first = false %}
{% endif %}
{{- text -}}
{% endfor %}
{% if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{% endif %}
"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0].role == 'system' -%}
{{ raise_exception('there is no system role') }}
{%- endif -%}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('user and assistant must take turns') }}
{%- endif -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<start_of_turn>' ~ role ~ '\\n' ~ message.content | trim ~ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

MISTRAL = """\
{%- macro instruct(text) -%}
[INST] {{ text }} [/INST]
{%- endmacro -%}
{%- set turns = messages -%}
{%- set system = '' -%}
{%- if messages[0].role == 'system' -%}
{%- set system = messages[0].content + '\\n\\n' -%}
{%- set turns = messages[1:] -%}
{%- endif -%}
{{- bos_token -}}
{%- for message in turns -%}
{%- if message.role == 'user' -%}
{{- instruct(system + message.content if loop.first else message.content) -}}
{%- else -%}
{{- ' ' + message.content + eos_token -}}
{%- endif -%}
{%- endfor -%}
"""

ZEPHYR = """\
{% for message in messages %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""


def test_chatml() -> None:
    assert ChatTemplate(CHATML).render(TALK) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_llama_3() -> None:
    template = ChatTemplate(LLAMA_3, bos_token="<|begin_of_text|>")
    assert template.render([SYSTEM, {"role": "user", "content": "  Hi there \n"}]) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_gemma() -> None:
    template = ChatTemplate(GEMMA, bos_token="<bos>")
    assert template.render([USER, ASSISTANT, THANKS]) == (
        "<bos><start_of_turn>user\nHi there<end_of_turn>\n"
        "<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nThanks<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    with pytest.raises(TemplateError, match=r"line 3: .*: there is no system role"):
        template.render(TALK)
    with pytest.raises(TemplateError, match=r"line 7: .*: user and assistant must take turns"):
        template.render([USER, USER])


def test_mistral() -> None:
    template = ChatTemplate(MISTRAL, bos_token="<s>", eos_token="</s>")
    assert template.render(TALK) == (
        "<s>[INST] Be brief.\n\nHi there [/INST] Hello!</s>[INST] Thanks [/INST]"
    )


def test_zephyr() -> None:
    template = ChatTemplate(ZEPHYR, eos_token="</s>")
    assert template.render([SYSTEM, USER]) == (
        "<|system|>\nBe brief.</s>\n<|user|>\nHi there</s>\n<|assistant|>\n"
    )
    assert template.render([USER], add_generation_prompt=False) == "<|user|>\nHi there</s>\n"


# ---------------------------------------------------------------- what templates are given


def render(source: str, messages: list[Any] | None = None, **extra: Any) -> str:
    return ChatTemplate(source).render(messages or [USER], **extra)


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
    assert render("{% call(x) m() %}<{{ x }}>{% endcall %}", m=lambda caller: caller("y")) == "<y>"
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


# ---------------------------------------------------------------- messages


def test_text_parts_are_joined_by_newlines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "one\ntwo"


def test_a_call_of_a_tool_needs_no_content() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    source = "{{ messages[0].content is none }} {{ messages[0].tool_calls[0].function.name }}"
    assert render(source, [call]) == "True f"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages is str: must be a list of dicts"),
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


@given(content=st.text())
def test_content_is_never_taken_for_template_code(content: str) -> None:
    messages = [{"role": "user", "content": content + "{{ 7 * 7 }}{% raw %}"}]
    assert CONTENT.render(messages) == (f"<{content}{{{{ 7 * 7 }}}}{{% raw %}}>")


# ---------------------------------------------------------------- metadata and defaults


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


# ---------------------------------------------------------------- templates that are wrong


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\n{% if %}", 2),
        ("a\n\n{{ x", 3),
        ("{% for m in messages %}\n", 1),
        ("{{ 1 | no_such_filter }}", 1),
        ("\n{% generation %}", 2),
    ],
)
def test_syntax_errors_name_the_line(source: str, line: int) -> None:
    with pytest.raises(TemplateError, match=f"chat template, line {line}: "):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ nothing.here }}", "line 2: 'nothing' is undefined"),
        ("\n\n{{ 1 / 0 }}", "line 3: division by zero"),
        ("{% macro m() %}\n{{ 1 + 'a' }}{% endmacro %}\n\n{{ m() }}", "line 2: "),
        ("{{ [1] | tojson(indent='x' * 101) }}", "line 1: it indents by 101"),
        ("{% include 'other' %}", "line 1: "),
        ("{{ raise_exception('no') }}", "line 1: it does not accept the conversation: no"),
        ("{{ nothing | tojson }}", "line 1: .*not JSON serializable"),
    ],
)
def test_errors_while_rendering_name_the_line(source: str, message: str) -> None:
    template = ChatTemplate(source)
    with pytest.raises(TemplateError, match=message) as error:
        template.render([USER])
    assert isinstance(error.value, GgmlpyError)


# ---------------------------------------------------------------- templates that mean harm

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'].x }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ (''|attr('__class__')).x }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{0.__class__.__mro__}'.format_map({'0': 1}) }}",
    "{{ [''] | map(attribute='__class__.x') | list }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.x }}",
    "{{ strftime_now.__code__ }}",
    "{% import 'os' as os %}",
]

MUTATIONS = [
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update(a=1) }}",
    "{{ messages[0].pop('role') }}",
    "{% set messages[0].role = 'x' %}",
]

TOO_LARGE = [
    "{{ range(100001) | list }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ 10 ** 9 * 'a' }}",
    "{{ [1] * 10 ** 9 }}",
    "{{ [[0] * 10 ** 5] * 10 ** 5 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ 'a'.rjust(10 ** 9) }}",
    "{{ 'a'.center(10 ** 9) }}",
    "{{ 'a'.zfill(10 ** 9) }}",
    "{{ '\t'.expandtabs(10 ** 9) }}",
    "{{ 'a'.translate({97: 'b' * 10 ** 6}) }}",
    "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "{{ 'a'.encode().ljust(10 ** 9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ '{:{w}}'.format(1, w=999999999) }}",
    "{{ ('a' * 10 ** 6).replace('a', 'b' * 10 ** 6) }}",
    "{{ ('a' * 10 ** 6).replace('', 'b' * 10 ** 6) }}",
    "{{ ('a' * 10 ** 6) | replace('a', 'b' * 10 ** 6) }}",
    "{{ ('a' * 10 ** 6).join(range(99999)) }}",
    "{{ range(99999) | join('a' * 10 ** 6) }}",
    "{{ ('a\n' * 10 ** 6) | indent(10 ** 6) }}",
    "{{ ('a\n' * 10 ** 6) | indent('b' * 10 ** 6) }}",
    "{{ [1] | tojson(indent=10 ** 9) }}",
    "{{ range(99999) | list | tojson(separators=('a' * 10 ** 6, ':')) }}",
    "{% set ns = namespace(x=range(9999) | list) %}{% for i in range(30) %}"
    "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson(indent=100) }}",
    "{{ range(99999) | join(['a' * 10 ** 6]) }}",
    "{{ ('{0}' * 10 ** 5).format('a' * 10 ** 6) }}",
    "{{ ('%(a)s' * 10 ** 5) % {'a': 'b' * 10 ** 6} }}",
    "{{ ('\n' * 10 ** 7) | indent(100, blank=true) }}",
    "{{ lipsum(10 ** 9) }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ 'a' | center(10 ** 9) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ 1 | round(10 ** 9, 'ceil') }}",
    "{{ range(9) | batch(10 ** 9, 'x') | list }}",
    "{{ range(9) | slice(10 ** 9) | list }}",
]

DOUBLINGS = [
    "{% set ns.x = ns.x + ns.x %}",
    "{% set ns.x = ns.x ~ ns.x %}",
    "{% set ns.x = [ns.x, ns.x] | join %}",
    "{% set ns.x = [ns.x, ns.x] %}",
    "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
    "{% set ns.x = (ns.x, ns.x) %}",
    "{% set ns.x = dict(a=ns.x, b=ns.x) %}{{ ns.x }}",
    "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
    "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
    "{% set ns.x = '{0}{0}'.format(ns.x) %}",
    "{% set ns.x = twice(ns.x) %}",
    "{% set ns.x = ns.x.replace('a', 'aa') %}",
]

ENDLESS = [
    "{% set x = range(99999) | list %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
    "{% for a in range(99999) %}{% set x = range(99999) | list | length %}{% endfor %}",
    "{{ ([range(99999)] * 99999) | map('list') | map('length') | list }}",
    "{% set x = range(99999) | list %}"
    "{{ ([x] * 99) | map('select', 'in', x) | map('list') | list }}",
    "{% for a in [0, 1] recursive %}{{ loop([0, 1]) if loop.depth < 99 }}{% endfor %}",
]


def refused(source: str) -> str:
    """The message with which a template is refused, be it while compiling or rendering."""
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(TemplateError) as error:
        ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "a"}]
    return str(error.value)


@pytest.mark.parametrize("source", ESCAPES + MUTATIONS)
def test_python_is_out_of_reach(source: str) -> None:
    refused(source)


LIMITS = (
    "text of more than|integer of more than|Range too big|it may not use|width that is too large|"
    "it indents by|No filter named|'lipsum' is undefined"
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", TOO_LARGE)
def test_what_would_be_too_large_is_not_made(source: str) -> None:
    assert re.search(LIMITS, refused(source))


@pytest.mark.parametrize("step", DOUBLINGS)
def test_growth_by_doubling_is_refused(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_TEXT", 2**16)
    macro = "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}"
    source = "{% set ns = namespace(x='a') %}{% for i in range(60) %}" + step + "{% endfor %}"
    assert "text of more than 65,536 characters" in refused(macro + source)


@pytest.mark.parametrize(
    "source", ["{% set x = ('&' * 30000) | e %}", "{% set x = '{!a}'.format('é' * 30000) %}"]
)
def test_results_of_filters_and_calls_are_measured(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "MAX_TEXT", 2**16)
    assert "text of more than 65,536 characters" in refused(source)


def test_much_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_TEXT", 2**16)
    message = refused("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}")
    assert "text of more than 65,536 characters" in message


@pytest.mark.parametrize("body", ["{{ 'a' * 999 }}", "{{ '" + "a" * 999 + "' }}", "a" * 999])
def test_much_captured_output_is_refused(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_WRITTEN", 2**20)
    loop = "{% for i in range(2000) %}" + body + "{% endfor %}"
    for source in (
        "{% set x %}" + loop + "{% endset %}",
        "{% macro m() %}" + loop + "{% endmacro %}{{ m() | length }}",
        "{% filter length %}" + loop + "{% endfilter %}",
    ):
        assert "it writes more than 1,048,576 characters" in refused(source)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("source", ENDLESS)
def test_endless_work_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "TIME_LIMIT_S", 0.2)
    assert "it runs longer than 0.2 seconds" in refused(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "not " * 5000 + "1 }}",
    ],
)
def test_deep_nesting_is_refused(source: str) -> None:
    assert "too deeply" in refused(source)

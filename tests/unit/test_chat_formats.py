"""Chat templates that models come with give the text that those models were trained on."""

from __future__ import annotations

import pytest

from ggmlpy.errors import TemplateError
from ggmlpy.text.chat import ChatTemplate
from tests.unit.conversations import ASSISTANT, CHATML, SYSTEM, TALK, THANKS, USER

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

"""Chat templates by name make llama.cpp's prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggmlpy.errors import TemplateError
from ggmlpy.text.chat import ChatTemplate
from ggmlpy.text.named_templates import NAMES, template_source
from tests.tools.record_templates import CHATS

# {name: the prompt for each of CHATS}
RECORDED: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("peer_templates.json").read_text()
)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_those_of_llama_cpp(name: str) -> None:
    template = ChatTemplate(template_source(name))
    assert [template.render(chat) for chat in CHATS] == RECORDED[name]


def test_what_is_a_template_itself() -> None:
    assert template_source("{{ messages }}") == "{{ messages }}"
    with pytest.raises(TemplateError, match=r"'lama3' is no chat template, nor the name of one: "):
        template_source("lama3")

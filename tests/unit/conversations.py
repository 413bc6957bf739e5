"""Messages, and a template in the most common format, for the tests of chat templates."""

from __future__ import annotations

from typing import Any

from ggmlpy.text.chat import ChatTemplate
from ggmlpy.text.template_process import Limits, TemplateProcess

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hi there"}
ASSISTANT = {"role": "assistant", "content": "Hello!"}
THANKS = {"role": "user", "content": "Thanks"}
TALK = [SYSTEM, USER, ASSISTANT, THANKS]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

PROCESS = TemplateProcess(Limits())  # of many tests: each start takes 0.1 s


def render(source: str, messages: list[Any] | None = None, **extra: Any) -> str:
    return ChatTemplate(source, process=PROCESS).render(messages or [USER], **extra)

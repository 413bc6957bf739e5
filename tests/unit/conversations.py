"""Messages, and a template in the most common format, for the tests of chat templates."""

from __future__ import annotations

from typing import Any

from ggmlpy.chat import ChatTemplate

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


def render(source: str, messages: list[Any] | None = None, **extra: Any) -> str:
    return ChatTemplate(source).render(messages or [USER], **extra)

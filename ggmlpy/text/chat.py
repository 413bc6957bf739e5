"""Chat templates: messages to a prompt in the format that a model was trained with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ggmlpy.errors import TemplateError
from ggmlpy.text.template_process import Limits, TemplateProcess
from ggmlpy.text.tokenizer.keys import NO_TOKEN

_PROBE = "ggmlpy text part"  # a text that no template has

# For a file without a template whose vocabulary has ChatML's tokens.
CHATML = """\
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

# For other files without a template: a dialogue as text, which a base model can continue.
PLAIN = """\
{% for message in messages %}
{% if message.role == "system" %}
{{ message.content }}

{% else %}
{{ message.role | capitalize }}: {{ message.content }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}Assistant:{% endif %}
"""


class ChatTemplate:
    """A jinja2 chat template, as GGUF files and Hugging Face's tokenizers carry them.

    Variables are `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools` and
    `documents` (None unless given); functions are `raise_exception`, `strftime_now` and the filter
    `tojson`. The template runs in jinja2's sandbox, in a process with limits on time and memory
    (`template_process.py`), which gets the variables as JSON.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        process: TemplateProcess | None = None,
    ) -> None:
        """Compile `source` in `process`, by default in a new one.

        Templates of different models do not share a process, since one could leave something behind
        for the next. Raises TemplateError with the line of a mistake.
        """
        if not isinstance(source, str):
            raise TemplateError(f"chat template is {type(source).__name__}: must be a string")
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.is_default = False
        """Whether this is a general template, because the file has none."""
        self._process = process or TemplateProcess(Limits())
        self._process.run(source)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ChatTemplate:
        """The template of a GGUF file, with the text of its BOS and EOS tokens.

        Without `tokenizer.chat_template` it is a general one, and `is_default` is true: ChatML if
        the vocabulary has `<|im_start|>`, else lines "User: …", "Assistant: …". General templates
        write no BOS, which the tokenizer must add.
        """
        source = metadata.get("tokenizer.chat_template", "")
        if not isinstance(source, str):
            kind = type(source).__name__
            raise TemplateError(f"key tokenizer.chat_template is {kind}: must be a string")
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        if not isinstance(tokens, Sequence):
            kind = type(tokens).__name__
            raise TemplateError(f"key tokenizer.ggml.tokens is {kind}: must be an array")
        bos_token = _token_text(metadata, tokens, "tokenizer.ggml.bos_token_id")
        eos_token = _token_text(metadata, tokens, "tokenizer.ggml.eos_token_id")
        if source.strip():
            return cls(source, bos_token, eos_token)
        template = cls(CHATML if "<|im_start|>" in tokens else PLAIN, bos_token, eos_token)
        template.is_default = True
        return template

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """The prompt for `messages`, which must be tokenized with special tokens parsed.

        messages               dicts with "role" and "content", a string or a list of text parts
                               {"type": "text", "text": …}; other keys are passed on
        add_generation_prompt  end with the beginning of the assistant's answer
        extra                  more variables for the template: tools, documents, enable_thinking …

        Messages and variables may contain dicts, lists, strings, numbers, booleans and None. They
        are passed as JSON: a tuple becomes a list, the keys of a dict become strings. Parts are
        passed as they are, but joined by newlines if the template does not read them: it would
        write the list. For a template that reads only parts, a string becomes one.

        Raises TemplateError, with the index of a wrong message or the line of the template.
        """
        variables = {"tools": None, "documents": None} | extra
        variables |= {"bos_token": self.bos_token, "eos_token": self.eos_token}
        variables |= {"add_generation_prompt": add_generation_prompt}
        checked = _checked_messages(messages)
        has_parts = any(isinstance(message.get("content"), list) for message in checked)
        if has_parts and not self._reads_parts(variables):
            checked = [_joined(message) for message in checked]
        rendered = self._process.run(self.source, variables | {"messages": checked})
        if not has_parts and _is_lost(checked, rendered) and self._reads_parts(variables):
            checked = [_as_parts(message) for message in checked]
            rendered = self._process.run(self.source, variables | {"messages": checked})
        return rendered

    def _reads_parts(self, variables: Mapping[str, Any]) -> bool:
        """Whether the template reads a list of content parts, tried with one of them."""
        part = {"type": "text", "text": _PROBE}
        messages = [{"role": "user", "content": [part]}]
        try:
            rendered = self._process.run(self.source, {**variables, "messages": messages})
        except TemplateError:
            return False
        return _PROBE in rendered and not re.search(f"['\"]{_PROBE}['\"]", rendered)

    def stops(self) -> list[str]:
        """Stop strings for an answer, which only general templates need."""
        if not self.is_default:
            return []
        return ["<|im_end|>"] if self.source == CHATML else ["\nUser:"]


def _token_text(metadata: Mapping[str, Any], tokens: Sequence[Any], key: str) -> str:
    """The text of the token whose id is at `key`; empty without the key or a vocabulary."""
    token = metadata.get(key)
    if token in (None, -1, NO_TOKEN) or not tokens:
        return ""
    if not isinstance(token, int) or not 0 <= token < len(tokens):
        raise TemplateError(f"key {key} is {token!r}: must be an id in 0 .. {len(tokens) - 1}")
    return str(tokens[token])


def _checked_messages(messages: object) -> list[dict[str, Any]]:
    """The messages as new dicts, with their content as a string or a list of text parts."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise TemplateError(f"messages is {type(messages).__name__}: must be a list of dicts")
    if not messages:
        raise TemplateError("messages is empty: must have at least one message")
    return [_checked_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _checked_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} is {type(message).__name__}: must be a dict")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise TemplateError(f"{where}: role is {role!r}: must be a string that is not empty")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return dict(message)  # a tool call needs no text
    return dict(message) | {"content": _checked_content(content, f"{where}: content")}


def _checked_content(content: object, where: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        kind = "missing or None" if content is None else type(content).__name__
        raise TemplateError(f"{where} is {kind}: must be a string or a list of text parts")
    parts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise TemplateError(f"{where}[{i}] is {type(part).__name__}: must be a dict")
        if part.get("type") != "text":
            type_ = part.get("type")
            raise TemplateError(f'{where}[{i}] is of type {type_!r}: must be of type "text"')
        text = part.get("text")
        if not isinstance(text, str):
            raise TemplateError(f"{where}[{i}]: text is {text!r}: must be a string")
        parts.append(dict(part))
    return parts


def _is_lost(messages: list[dict[str, Any]], rendered: str) -> bool:
    """Whether no text of the messages is in the prompt, as if the template had read none."""
    contents = (message.get("content") for message in messages)
    texts = [content.strip() for content in contents if isinstance(content, str)]
    return any(texts) and not any(text in rendered for text in texts if text)


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a string as its only part."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return message | {"content": [{"type": "text", "text": content}]}


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its parts joined by newlines."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return message | {"content": "\n".join(part["text"] for part in content)}

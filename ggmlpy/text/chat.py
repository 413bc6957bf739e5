"""Chat templates: from messages to the prompt that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ggmlpy.errors import TemplateError
from ggmlpy.text.template_process import Limits, TemplateProcess
from ggmlpy.text.tokenizer.keys import NO_TOKEN

# For a file without a template whose vocabulary has the marks of it.
CHATML = """\
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

# For a file without either: a dialogue as text, which a plain language model can continue.
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

    A template sees `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools` and
    `documents` (None unless given), `raise_exception`, `strftime_now` and the `tojson` filter.
    It runs in jinja2's sandbox, in a process with limits on time and memory
    (`template_process.py`), and what it is given goes there as JSON.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        process: TemplateProcess | None = None,
    ) -> None:
        """Compile `source` in `process`, by default one of its own: what a template may leave there
        is not for other models. Raises TemplateError with the line where it is wrong.
        """
        if not isinstance(source, str):
            raise TemplateError(f"chat template is {type(source).__name__}: must be a string")
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.is_default = False
        """Whether the file has no template, and this is a general one that we chose for it."""
        self._process = process or TemplateProcess(Limits())
        self._process.run(source)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> ChatTemplate:
        """The template of a GGUF file, with the text of its BOS and EOS tokens.

        A file without `tokenizer.chat_template` gets a general one, and `is_default` says so:
        ChatML if the vocabulary has `<|im_start|>`, else lines "User: …", "Assistant: …". Those
        write no BOS; adding it is left to the tokenizer.
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
        """The prompt for `messages`, to be tokenized with special tokens recognised.

        messages               dicts with "role" and "content", a string or a list of text parts,
                               which are joined by newlines; other keys are passed on
        add_generation_prompt  end with the beginning of the assistant's answer
        extra                  more variables for the template: tools, documents, enable_thinking …

        Messages and variables are made of dicts, lists, strings, numbers, booleans and None. They
        reach the template through JSON: a tuple as a list, the keys of a dict as strings.

        Raises TemplateError, for a message with its index, for the template with its line.
        """
        variables = {"tools": None, "documents": None} | extra
        variables |= {"bos_token": self.bos_token, "eos_token": self.eos_token}
        variables |= {"add_generation_prompt": add_generation_prompt}
        variables["messages"] = _checked_messages(messages)
        return self._process.run(self.source, variables)

    def stops(self) -> list[str]:
        """Strings that end an answer, beside the model's own end tokens; only defaults need any."""
        if not self.is_default:
            return []
        return ["<|im_end|>"] if self.source == CHATML else ["\nUser:"]


def _token_text(metadata: Mapping[str, Any], tokens: Sequence[Any], key: str) -> str:
    """The text of the token whose id is at `key`; empty without such a key or a vocabulary."""
    token = metadata.get(key)
    if token in (None, -1, NO_TOKEN) or not tokens:
        return ""
    if not isinstance(token, int) or not 0 <= token < len(tokens):
        raise TemplateError(f"key {key} is {token!r}: must be an id in 0 .. {len(tokens) - 1}")
    return str(tokens[token])


def _checked_messages(messages: object) -> list[dict[str, Any]]:
    """The messages as new dicts with their content as text."""
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
        return dict(message)  # a call of a tool may stand for the text
    return dict(message) | {"content": _text(content, f"{where}: content")}


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        kind = "missing or None" if content is None else type(content).__name__
        raise TemplateError(f"{where} is {kind}: must be a string or a list of text parts")
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise TemplateError(f"{where}[{i}] is {type(part).__name__}: must be a dict")
        if part.get("type") != "text":
            type_ = part.get("type")
            raise TemplateError(f'{where}[{i}] is of type {type_!r}: must be of type "text"')
        text = part.get("text")
        if not isinstance(text, str):
            raise TemplateError(f"{where}[{i}]: text is {text!r}: must be a string")
        texts.append(text)
    return "\n".join(texts)

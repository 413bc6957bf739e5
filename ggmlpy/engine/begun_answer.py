"""An answer that the messages have begun (prefill): the prompt ends within it.

… <assistant> The answer is   ->   42.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ggmlpy.errors import ArgumentError, Unsupported
from ggmlpy.tools import AnswerParser, Generic, Rendered


@dataclass(frozen=True, slots=True)
class BegunAnswer:
    """The beginning of an answer."""

    content: str
    reasoning: str  # before it

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]]) -> BegunAnswer:
        """That of the last message. Raises ArgumentError for one that cannot be continued."""
        last = messages[-1] if messages else None
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            raise ArgumentError(
                "messages do not end with one of the assistant, which could be continued"
            )
        if len(messages) == 1:
            raise ArgumentError("messages have the beginning of an answer only, and no question")
        if last.get("tool_calls"):
            raise ArgumentError("messages end with a call of a tool, which cannot be continued")
        content = _text(last.get("content"))
        if not content.strip():
            raise ArgumentError("messages end with one of the assistant that has no text")
        if content != content.rstrip():
            raise ArgumentError(
                "messages end with white space in the assistant's text: the answer begins with it"
            )
        return cls(content, _text(last.get("reasoning_content")))

    def behind(self, rendered: Rendered) -> str:
        """What a prompt without it has to end with, whose reasoning is over then. Raises
        Unsupported for a format that has a header before the text of an answer."""
        format = rendered.format
        if format.reasoning is not None and format.think is None:
            raise Unsupported(
                "the answers of this model have parts with headers: one that was begun cannot be"
                " continued"
            )
        if format.think is None:
            return self.content
        begin, end = format.think
        if rendered.thinks:
            return f"{self.reasoning}{end}\n\n{self.content}"
        if self.reasoning:
            return f"{begin}{self.reasoning}{end}\n\n{self.content}"
        return self.content

    def check(self, rendered: Rendered, *, has_grammar: bool, must_call: bool, tools: bool) -> None:
        """Raise ArgumentError where a grammar holds, which would begin behind the beginning."""
        if has_grammar or must_call or (tools and isinstance(rendered.format, Generic)):
            raise ArgumentError(
                "messages end with one of the assistant, and a grammar, a response_format, tools or"
                " a tool_choice say how the answer begins: the last message must be another one"
            )


def continued(rendered: Rendered, text: str) -> Rendered:
    """A prompt that ends with the beginning of an answer."""
    return replace(rendered, prompt=rendered.prompt + text, thinks=False)


def read_by(parser: AnswerParser, text: str) -> AnswerParser:
    """A parser that goes on behind the beginning of an answer."""
    parser.push(text)
    return parser


def _text(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else ()
    texts = [each.get("text") for each in parts if isinstance(each, Mapping)]
    return "\n".join(each for each in texts if isinstance(each, str))

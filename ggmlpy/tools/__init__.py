"""Tools (function calling) and reasoning: in the prompt, and in the answer as it comes.

In: OpenAI's tools and messages, a chat template. Out: a prompt, and of the answer's text content,
reasoning and calls, piece by piece.

    definitions.py     tools and tool_choice, checked
    conversation.py    messages and tools to a prompt
    recognition.py     the format of a model, by its template
    formats.py         what all formats have in common
    json_formats.py    formats with arguments in JSON, and the generic one
    named_formats.py   others, with names of their own for the parts
    tagged_formats.py  formats with tags around each parameter
    written_formats.py formats as in a programming language
    literals.py        their literals
    parsing.py         the parser of an answer
    reader.py          reading a text that comes in pieces
    answer.py          deltas, messages and calls
    lark.py            grammars of answers that must call a tool, and of calls that may come
    bare_texts.py      schemas of strings that are written without JSON's quotes
"""

from __future__ import annotations

from ggmlpy.tools.answer import Delta, Message
from ggmlpy.tools.conversation import Conversation, Rendered, template_variables
from ggmlpy.tools.definitions import ToolUse, tool_use
from ggmlpy.tools.json_formats import Generic
from ggmlpy.tools.lark import with_tokens
from ggmlpy.tools.parsing import AnswerParser

__all__ = [
    "AnswerParser",
    "Conversation",
    "Delta",
    "Generic",
    "Message",
    "Rendered",
    "ToolUse",
    "template_variables",
    "tool_use",
    "with_tokens",
]

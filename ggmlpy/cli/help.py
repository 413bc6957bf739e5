"""A command's docstring as its help."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rich.markup import escape

_EXAMPLES = "Examples:"


def help_text(command: Callable[..., None]) -> str:
    """The docstring in rich's markup: paragraphs fill the terminal, examples keep their lines."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(_paragraph(escape(text)) for text in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith(_EXAMPLES):
        return f"[bold]{_EXAMPLES}[/]" + text.removeprefix(_EXAMPLES)
    return text.replace("\n", " ")

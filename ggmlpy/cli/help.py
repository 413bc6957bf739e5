"""A command's docstring as its help; and help for terminals too narrow for typer's tables."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from rich.markup import escape, render

_EXAMPLES = "Examples:"
NARROW = 80  # columns, below which typer's tables would cut the names of options


class ReadableHelp:
    """For a typer command or group: help that no terminal cuts."""

    def get_help_option(self, ctx: Any) -> Any:
        """`-h, --help`, which takes no value, and therefore shows no word for one."""
        parent: Any = super()
        option = parent.get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """typer's tables where there is room for them, else an option a paragraph."""
        width = shutil.get_terminal_size().columns
        if width >= NARROW:
            parent: Any = super()
            try:
                parent.format_help(ctx, formatter)
            except (
                SystemExit
            ) as end:  # rich's, for a reader that has gone: `guard` ends the program
                raise end.__context__ or end from None
        else:
            formatter.write("\n".join(_narrow_lines(self, ctx, max(width, 20))) + "\n")


def _narrow_lines(command: Any, ctx: Any, width: int) -> Iterator[str]:
    yield from _wrapped(" ".join(command.get_usage(ctx).split()), width)
    for paragraph in (command.help or "").split("\n\n"):
        yield ""
        for line in render(paragraph).plain.splitlines():
            yield from _wrapped(line, width)
    for parameter in command.get_params(ctx):
        if not getattr(parameter, "hidden", False):
            yield ""
            yield from _wrapped(_names(parameter), width)
            yield from _wrapped("    " + _description(parameter), width)
    for name in getattr(command, "commands", {}):
        yield ""
        yield name
        yield from _wrapped("    " + command.get_command(ctx, name).get_short_help_str(200), width)


def _wrapped(line: str, width: int) -> list[str]:
    """The line in pieces that fit; all begin where it does, words of any length stay whole."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _names(parameter: Any) -> str:
    """`-n --n-predict N`"""
    names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name[0] == "-"]
    return " ".join([*names, parameter.metavar or ""]).strip()


def _description(parameter: Any) -> str:
    """What it does, and what holds without it."""
    default = parameter.show_default
    if default is True:
        default = parameter.default
    told = "" if default in (None, False, "") or callable(default) else f" [default: {default}]"
    return f"{parameter.help or ''}{told}"


def help_text(command: Callable[..., None]) -> str:
    """The docstring in rich's markup: paragraphs fill the terminal, examples keep their lines."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(_paragraph(escape(text)) for text in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith(_EXAMPLES):
        return f"[bold]{_EXAMPLES}[/]" + text.removeprefix(_EXAMPLES)
    return text.replace("\n", " ")

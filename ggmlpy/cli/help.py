"""The format of help: paragraphs, examples that keep their lines, options in sections."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable

import click

_EXAMPLES = "Examples:"
_MAX_WIDTH = 100  # columns
_MIN_WIDTH = 20  # on narrower terminals lines are longer than the terminal


class HelpFormatter(click.HelpFormatter):
    """As wide as the terminal. Names of options are never cut: a long one has its own line."""

    def __init__(self, *args: object, **more: object) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(width=min(max(columns, _MIN_WIDTH), _MAX_WIDTH))

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Two columns; on a narrow terminal the second one starts on a line of its own."""
        listed = list(rows)
        longest = max((len(term) for term, _ in listed), default=0)
        column = min(longest, col_max, self.width // 3) + col_spacing + self.current_indent
        indent = " " * self.current_indent
        for term, text in listed:
            lines = textwrap.wrap(text, self.width - column) or [""]
            if len(indent + term) + col_spacing <= column:
                self.write(f"{indent + term:<{column}}{lines.pop(0)}".rstrip() + "\n")
            else:
                self.write("".join(f"{line}\n" for line in self._wrapped(indent + term)))
            self.write("".join(f"{'':{column}}{line}\n" for line in lines if line))

    def write_examples(self, examples: Iterable[str]) -> None:
        """Lines that are wrapped only where they are longer than the terminal is wide."""
        with self.section(_EXAMPLES.removesuffix(":")):
            for line in examples:
                indented = " " * self.current_indent + line.strip()
                self.write("".join(f"{part}\n" for part in self._wrapped(indented)))

    def _wrapped(self, line: str) -> list[str]:
        """The line in pieces that fit, with words of any length kept whole."""
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        return textwrap.wrap(
            line,
            self.width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )


class Context(click.Context):
    """A context whose help is written by HelpFormatter."""

    formatter_class = HelpFormatter


class ReadableHelp(click.Command):
    """A command or group whose help has examples, and sections of options."""

    context_class = Context

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(formatter, HelpFormatter)
        for paragraph in inspect.cleandoc(self.help or "").split("\n\n"):
            if paragraph.startswith(_EXAMPLES):
                formatter.write_examples(paragraph.splitlines()[1:])
            else:
                formatter.write_paragraph()
                formatter.write_text(" ".join(paragraph.split()))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

"""The `ggmlpy` command. One module per command; heavy imports wait until a command runs.

In: arguments and standard input. Out: text, tables, JSON, exit codes.

What the commands share:

    options.py  options, one by one
    groups.py   options that are taken together
    common.py   opening a model, reading text
    loading.py  a sign of life while a model loads
    table.py    rows of a table as they come
    guard.py    errors as one line and an exit code
    command.py  arguments, as llama.cpp's users type them
    help.py     docstrings as help
    show.py     what a terminal can be sent
"""

from __future__ import annotations

from typing import Annotated

import typer

from ggmlpy.cli.batched_bench import batched_bench
from ggmlpy.cli.bench import bench
from ggmlpy.cli.chat import chat
from ggmlpy.cli.command import Command
from ggmlpy.cli.generate import generate
from ggmlpy.cli.graph import graph
from ggmlpy.cli.guard import GuardedGroup
from ggmlpy.cli.help import help_text
from ggmlpy.cli.inspect import inspect
from ggmlpy.cli.tokenize import tokenize

app = typer.Typer(
    cls=GuardedGroup,
    name="ggmlpy",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"ggmlpy {version('ggmlpy')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_show_version, is_eager=True, help="The version."
        ),
    ] = False,
) -> None:
    """Load a GGUF model, write text with it, and look inside: its file, its tokens, its graph.

    `ggmlpy generate` runs at once, with a small model that is part of the package.
    """


for _command in (generate, chat, bench, batched_bench, inspect, tokenize, graph):
    app.command(cls=Command, help=help_text(_command))(_command)


def main() -> None:
    """The entry point: run the command that the arguments name, and exit."""
    app(prog_name="ggmlpy")

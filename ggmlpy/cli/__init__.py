"""The `ggmlpy` command. One module per command; heavy imports wait until a command runs.

In: the arguments of the process. Out: text on stdout, messages on stderr, an exit code.

What the commands share:

    options.py      shared options, and groups of them; others in *_options.py
    types.py        types of option values
    escapes.py      escapes in texts that are typed
    command.py      commands, options and arguments as click has them
    groups.py       options as the fields of a dataclass
    help.py         the format of help
    unknown.py      messages about options that a command does not have
    llama_flags.py  llama.cpp's flags that no command has, with the reasons
    guard.py        runs a command; errors become one line and an exit code
    common.py       opens a model, reads text
    hub.py          options that name a model on a hub
    loading.py      progress while a model loads
    table.py        tables whose rows are written one by one
    show.py         text that is safe for any terminal
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import click

from ggmlpy.cli.batch import batch
from ggmlpy.cli.batched_bench import batched_bench
from ggmlpy.cli.bench import bench
from ggmlpy.cli.chat import chat
from ggmlpy.cli.embedding import embedding
from ggmlpy.cli.generate import generate
from ggmlpy.cli.graph import graph
from ggmlpy.cli.guard import run
from ggmlpy.cli.help import ReadableHelp
from ggmlpy.cli.imatrix import imatrix
from ggmlpy.cli.inspect import inspect
from ggmlpy.cli.llama_flags import TOOLS
from ggmlpy.cli.perplexity import perplexity
from ggmlpy.cli.quantize import quantize
from ggmlpy.cli.serve import serve
from ggmlpy.cli.test_ops import test_ops
from ggmlpy.cli.tokenize import tokenize
from ggmlpy.cli.unknown import names_of, no_such_options


class _Group(ReadableHelp, click.Group):
    """The commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = (args[0] if args else "").partition("=")[0]
        with_it = [name for name, each in self.commands.items() if first in names_of(each)]
        own = names_of(self).keys() | {"-h", "--help"}
        # click would read -hf as -h -f
        if first not in own and (with_it or (len(first) > 2 and first.startswith("-h"))):
            hint = f"a command comes first, as in `ggmlpy {(*with_it, 'generate')[0]} {first} …`"
            raise click.NoSuchOption(first, f"No such option '{first}': {hint}", ctx=ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise no_such_options([error.option_name], self, ctx) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in TOOLS:  # of llama.cpp
            raise click.UsageError(f"{args[0]} is `ggmlpy {TOOLS[args[0]]}` here.", ctx=ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands, each with the first sentence of its help, which click would cut."""
        sentences = {
            name: " ".join((command.help or "").split("\n\n")[0].split())
            for name, command in self.commands.items()
        }
        with formatter.section("Commands"):
            formatter.write_dl(list(sentences.items()))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _with_dashes(name: str) -> str:
    """An option's name as it is declared: llama.cpp takes underscores too."""
    return name.replace("_", "-")


@click.group(
    cls=_Group,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": _with_dashes,
    },
)
@click.version_option(package_name="ggmlpy", message="ggmlpy %(version)s")
def app() -> None:
    """Load a GGUF model, generate text with it, and inspect its file, its tokens and its graph.

    `ggmlpy generate` runs at once, with a small model that is part of the package, and `ggmlpy
    COMMAND --help` shows the options of a command. Their names are llama.cpp's.
    """


for _command in (
    generate,
    chat,
    serve,
    batch,
    perplexity,
    embedding,
    inspect,
    tokenize,
    graph,
    quantize,
    imatrix,
    bench,
    batched_bench,
    test_ops,
):
    app.add_command(_command)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point: run the command that the arguments name, and exit."""
    run(app, args)

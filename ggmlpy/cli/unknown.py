"""What the message about an option that a command does not have tells: why, or what was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from ggmlpy.cli.llama_flags import why_absent

_N_NEIGHBOURS = 3
_LIKENESS = 0.7
_N_NAMED = 3  # commands that have the option


def names_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by their names."""
    options = (param for param in command.params if isinstance(param, click.Option))
    return {name: each for each in options for name in (*each.opts, *each.secondary_opts)}


def is_known_elsewhere(flag: str, command: click.Command, ctx: click.Context) -> bool:
    """Whether llama.cpp or another command has an option of this name."""
    return why_absent(flag, command.name or "") is not None or bool(_having(flag, ctx))


def no_such_option(
    flag: str, command: click.Command, ctx: click.Context, hint: str = ""
) -> click.NoSuchOption:
    """The error for an option that the command does not have.

    It says why llama.cpp's flag is not here, else which commands have it, else what is spelt like
    it, else `hint`.
    """
    more = why_absent(flag, command.name or "")
    if more is None and (having := _having(flag, ctx)):
        others = having if len(having) <= _N_NAMED else [*having[:_N_NAMED], "others"]
        more = f"{_listed(others, 'and')} ha{'s' if len(having) == 1 else 've'} it"
    if more is None and (near := _near(flag, names_of(command))):
        more = f"did you mean {_listed(near, 'or')}?"
    if more is None:
        more = hint
    return click.NoSuchOption(flag, f"No such option '{flag}'{more and ': '}{more}", ctx=ctx)


def _having(flag: str, ctx: click.Context) -> list[str]:
    """The names of the commands that have an option."""
    app = ctx.find_root().command
    commands = app.commands if isinstance(app, click.Group) else {}
    return [name for name, command in commands.items() if flag in names_of(command)]


def _near(flag: str, names: Iterable[str]) -> list[str]:
    """The names that are spelt like `flag`, the most alike first; the number of dashes is free."""
    by_letters = {f"-{name.lstrip('-')}": name for name in names if len(name.lstrip("-")) > 1}
    found = get_close_matches(f"-{flag.lstrip('-')}", by_letters, _N_NEIGHBOURS, _LIKENESS)
    return [by_letters[each] for each in found]


def _listed(words: list[str], last: str) -> str:
    """`a, b or c`"""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]

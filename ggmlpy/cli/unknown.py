"""What the message about an option that a command does not have tells: why, or what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

import click

from ggmlpy.cli.llama_flags import why_absent

_N_NEIGHBOURS = 3
_LIKENESS = 0.7
_SLIP = 0.9  # of a name with one letter too few, or one too many
_N_NAMED = 3  # commands that have the option


def names_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by their names."""
    options = (param for param in command.params if isinstance(param, click.Option))
    return {name: each for each in options for name in (*each.opts, *each.secondary_opts)}


def is_known_elsewhere(flag: str, command: click.Command, ctx: click.Context) -> bool:
    """Whether llama.cpp or another command has an option of this name."""
    return why_absent(flag, command.name or "") is not None or bool(_having(flag, ctx))


def no_such_options(
    flags: Sequence[str], command: click.Command, ctx: click.Context
) -> click.NoSuchOption:
    """The error for options that the command does not have, each with what is known about it."""
    told = [(flag, _told(flag, command, ctx)) for flag in dict.fromkeys(flags)]
    if len(told) == 1:
        message = f"No such option '{flags[0]}'" + "".join(f": {more}" for _, more in told if more)
    else:
        rows = (f"'{flag}'" + (f" ({more})" if more else "") for flag, more in told)
        message = f"No such options: {', '.join(rows)}"
    return click.NoSuchOption(flags[0], message, ctx=ctx)


def _told(flag: str, command: click.Command, ctx: click.Context) -> str:
    """Why llama.cpp's flag is not here, else of which option it is a slip, else which commands have
    it, else what is spelt like it."""
    if reason := why_absent(flag, command.name or ""):
        return reason
    options = [name for name, each in names_of(command).items() if not each.hidden] + ["--help"]
    near, having = _near(flag, options, _LIKENESS), _having(flag, ctx)
    if near and (not having or _near(flag, options, _SLIP)):
        return f"did you mean {_listed(near, 'or')}?"
    if having:
        others = having if len(having) <= _N_NAMED else [*having[:_N_NAMED], "others"]
        return f"{_listed(others, 'and')} ha{'s' if len(having) == 1 else 've'} it"
    return ""


def _having(flag: str, ctx: click.Context) -> list[str]:
    """The names of the commands that have an option."""
    app = ctx.find_root().command
    commands = app.commands if isinstance(app, click.Group) else {}
    return [name for name, command in commands.items() if flag in names_of(command)]


def _near(flag: str, names: Iterable[str], likeness: float) -> list[str]:
    """The names that are spelt like `flag`, the most alike first; the number of dashes is free."""
    by_letters = {f"-{name.lstrip('-')}": name for name in names if len(name.lstrip("-")) > 1}
    found = get_close_matches(f"-{flag.lstrip('-')}", by_letters, _N_NEIGHBOURS, likeness)
    return [by_letters[each] for each in found]


def _listed(words: list[str], last: str) -> str:
    """`a, b or c`"""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]

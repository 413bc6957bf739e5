"""Decorators for commands, options and arguments, on top of click's.

Options have llama.cpp's names, of which many are several letters behind one dash. click reads `-np
4` as `-n p` followed by `4` if a command has no `-np`. When parsing fails, the error therefore
names the option as it was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ggmlpy.cli.help import ReadableHelp
from ggmlpy.cli.llama_flags import accepted_by
from ggmlpy.cli.unknown import is_known_elsewhere, names_of, no_such_options

_SURPLUS = "unexpected extra argument"  # in click's message
_HELP = ("-h", "--help")
Function = TypeVar("Function", bound=Callable[..., Any])


class Option(click.Option):
    """An option, listed in a section of the help."""

    def __init__(self, *args: Any, section: str = "Options", **more: Any) -> None:
        super().__init__(*args, **more)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """As click's, with a default that is described in words as it is."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        return extra

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """As click's, with the variable of the environment that has the value."""
        hint = super().get_error_hint(ctx)
        source = ctx.get_parameter_source(self.name or "") if ctx is not None else None
        return f"{hint} (${self.envvar})" if source is ParameterSource.ENVIRONMENT else hint


class Command(ReadableHelp):
    """A command of `ggmlpy`."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for i, row in enumerate(accepted_by(self.name or "")):
            hidden: dict[str, Any] = {"is_flag": True, "expose_value": False, "hidden": True}
            self.params.append(click.Option([*row.names, f"accepted_{i}"], **hidden))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        unknown = self._unknown_options(typed, ctx)
        # These would be read as other options with a value, or as a flag that ends the program.
        if any(flag.startswith("-h") or is_known_elsewhere(flag, self, ctx) for flag in unknown):
            raise no_such_options(unknown, self, ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise no_such_options(unknown or [error.option_name], self, ctx) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # whose help the message names
            if not unknown and _SURPLUS in error.message:
                message = error.message.removesuffix(".") + self._where_models_go(typed)
                raise click.UsageError(message, error.ctx) from None
            if not unknown:
                raise
            raise no_such_options(unknown, self, ctx) from None

    def _where_models_go(self, args: Sequence[str]) -> str:
        """What to add to the error about an argument too many: it may be meant as the model."""
        names = {"-m", "--model"} & names_of(self).keys()
        given = {arg.partition("=")[0] for arg in args}
        return "; a model is given by -m FILE" if names and not names & given else ""

    def _unknown_options(self, args: Sequence[str], ctx: click.Context) -> list[str]:
        """The arguments that are spelt like options and name none.

        Several letters behind one dash name one, or are flags of one letter each. They may also be
        an option with its value, `-mFILE`: such are found only where nothing else is.
        """
        options = names_of(self)
        found: list[str] = []
        doubtful: list[str] = []
        before = None
        for arg in args[: args.index("--")] if "--" in args else args:
            is_value = before is not None and not before.is_flag
            before = None if is_value else options.get(arg.replace("_", "-"))
            typed = arg.partition("=")[0]
            name, letters = typed.replace("_", "-"), typed[1:]
            if is_value or name[:1] != "-" or not letters.lstrip("-")[:1].isalpha():
                continue
            if name in options or name in _HELP:
                continue
            glued = False
            if letters[0] != "-" and len(letters) > 1:
                shorts = [options.get(f"-{letter}") for letter in letters]
                is_name = letters.replace("-", "").replace("_", "").isalnum()
                if not letters[1].isalpha() or all(o and o.is_flag for o in shorts) or not is_name:
                    continue
                glued = shorts[0] is not None and not shorts[0].is_flag
            is_doubtful = glued and not is_known_elsewhere(typed, self, ctx)
            (doubtful if is_doubtful else found).append(typed)
        return found or doubtful


def command(function: Callable[..., Any]) -> click.Command:
    """Decorator: the function as a command, with its docstring as help."""
    return click.command(cls=Command)(function)


def option(
    name: str, usage: str, help: str, *, section: str = "Options", **more: Any
) -> Callable[[Function], Function]:
    """Decorator: an option `name` from its usage, `-n --n-predict N`: names, then its metavar."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    more.setdefault("metavar", " ".join(words[len(names) :]) or None)
    more.setdefault("show_default", True)
    return click.option(*names, name, help=help, cls=Option, section=section, **more)


def several(
    name: str, usage: str, help: str, default: Sequence[Any] = (), **more: Any
) -> Callable[[Function], Function]:
    """Decorator: an option whose type gives lists, and which can be given several times: the
    command gets one list, or `default`."""

    def joined(ctx: click.Context, param: click.Parameter, given: Sequence[Sequence[Any]]) -> Any:
        return [value for values in given for value in values] or list(default)

    more.setdefault("show_default", ",".join(map(str, default)) or False)
    return option(name, usage, help, multiple=True, callback=joined, **more)


def flag(name: str, usage: str, help: str, **more: Any) -> Callable[[Function], Function]:
    """Decorator: an option without a value."""
    return option(name, usage, help, is_flag=True, **more)


def argument(name: str, metavar: str, help: str, **more: Any) -> Callable[[Function], Function]:
    """Decorator: an argument."""
    return click.argument(name, metavar=metavar, help=help, **more)

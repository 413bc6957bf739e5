"""Decorators for commands, options and arguments, on top of click's.

Options have llama.cpp's names, of which many are several letters behind one dash. click reads `-np
4` as `-n p` followed by `4` if a command has no `-np`. When parsing fails, the error therefore
names the option as it was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ggmlpy.cli.help import ReadableHelp
from ggmlpy.cli.unknown import is_known_elsewhere, names_of, no_such_option

_SURPLUS = "unexpected extra argument"  # in click's message
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


class Command(ReadableHelp):
    """A command of `ggmlpy`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        typed = list(args)
        unknown, hint = self._unknown_option(typed)
        # These would be read as other options with a value, or as a flag that ends the program.
        if unknown.startswith("-h") or (unknown and is_known_elsewhere(unknown, self, ctx)):
            raise no_such_option(unknown, self, ctx, hint)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise no_such_option(unknown or error.option_name, self, ctx, hint) from None
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # whose help the message names
            if not unknown and _SURPLUS in error.message:
                message = error.message.removesuffix(".") + self._where_models_go(typed)
                raise click.UsageError(message, error.ctx) from None
            if not unknown:
                raise
            raise no_such_option(unknown, self, ctx, hint) from None

    def _where_models_go(self, args: Sequence[str]) -> str:
        """What to add to the error about an argument too many: it may be meant as the model."""
        names = {"-m", "--model"} & names_of(self).keys()
        given = {arg.partition("=")[0] for arg in args}
        return "; a model is given by -m FILE" if names and not names & given else ""

    def _unknown_option(self, args: Sequence[str]) -> tuple[str, str]:
        """The first argument of several letters behind one dash that names no option, or an empty
        text, and a hint."""
        options = names_of(self)
        before = None
        for arg in args[: args.index("--")] if "--" in args else args:
            is_value = before is not None and not before.is_flag
            before = None if is_value else options.get(arg.replace("_", "-"))
            letters = arg[1:].partition("=")[0]
            if is_value or arg[:1] != "-" or not letters[:2].isalpha() or len(letters) < 2:
                continue
            shorts = [options.get(f"-{letter}") for letter in letters]
            if f"-{letters}" not in options and not all(o and o.is_flag for o in shorts):
                takes_value = shorts[0] is not None and not shorts[0].is_flag
                hint = f"a value of {arg[:2]} stands after a space" if takes_value else ""
                return f"-{letters}", hint
        return "", ""


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

"""How a command reads its arguments, where llama.cpp's names and typer's habits differ.

typer takes `-np` for `-n` with the value `p` where there is no option `-np`. Here a value that
begins with a letter stands after a space, so that what was typed is what an error names. And the
switch `-fa` may stand alone, as it could in llama.cpp for years: it is then `-fa on`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand, TyperOption

from ggmlpy.cli.guard import UsageError
from ggmlpy.cli.help import ReadableHelp
from ggmlpy.cli.options import SWITCHES


class Command(ReadableHelp, TyperCommand):
    """A command of `ggmlpy`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = dict.fromkeys(ctx.help_option_names, False)
        for parameter in self.params:
            if isinstance(parameter, TyperOption):
                names = (*parameter.opts, *parameter.secondary_opts)
                takes_value |= dict.fromkeys(names, not parameter.is_flag)
        return super().parse_args(ctx, _spelled_out(ctx, args, takes_value))


def _spelled_out(ctx: Any, args: list[str], takes_value: Mapping[str, bool]) -> list[str]:
    """The arguments, with the value of a switch that stands alone.

    Raises UsageError for an option that there is not, where typer would read another one.
    """
    spelled: list[str] = []
    left = list(args)
    while left:
        arg = left.pop(0)
        spelled.append(arg)
        if arg == "--":
            break
        if arg in SWITCHES and arg in takes_value and (not left or left[0].startswith("-")):
            spelled.append("on")
        elif takes_value.get(arg):
            spelled += left[:1]
            del left[:1]
        elif not _is_readable(arg, takes_value):
            raise UsageError(_unknown(arg, takes_value), ctx=ctx)
    return spelled + left


def _is_readable(arg: str, takes_value: Mapping[str, bool]) -> bool:
    """Whether it can only be meant as typer reads it: `-qv` is two flags, `-n128` has a value."""
    if not arg.startswith("-") or not arg[1:3].isalpha() or len(arg) < 3:
        return True
    if arg.partition("=")[0] in takes_value:
        return True
    for i, letter in enumerate(arg[1:], 2):
        takes = takes_value.get(f"-{letter}")
        if takes is None:
            return False
        if takes:
            return not arg[i : i + 1].isalpha()
    return True


def _unknown(arg: str, takes_value: Mapping[str, bool]) -> str:
    message = f"No such option: {arg}"
    if takes_value.get(arg[:2]):
        message += f"; a value of {arg[:2]} stands after a space"
    return message

"""Groups of options: the fields of a dataclass, each with the option that sets it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field, fields
from functools import wraps
from itertools import product
from typing import Any

import click

from ggmlpy.cli.command import option, several
from ggmlpy.cli.types import Listed


def setting(default: Any, usage: str, help: str, **more: Any) -> Any:
    """A field of a group: its default, and the option that sets it."""
    return field(default=default, metadata={"usage": usage, "help": help, **more})


def group(cls: type, name: str, section: str) -> Callable[[Callable[..., None]], Any]:
    """Decorator: options for the fields of a dataclass, of which the command gets an object."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            values = {each.name: given.pop(each.name) for each in fields(cls)}
            command(**given, **{name: cls(**values)})

        for each in reversed(fields(cls)):
            more = {"default": each.default, "section": section, **each.metadata}
            run = option(each.name, **more)(run)
        return run

    return decorate


def grid(
    cls: type, name: str, section: str, of: Collection[str]
) -> Callable[[Callable[..., None]], Any]:
    """Decorator: as `group`, but the fields `of` may have several values, separated by commas or in
    several options. The command gets a list of objects, one for each combination."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = [each.name for each in fields(cls)]

        @wraps(command)
        def run(**given: Any) -> None:
            values = [given.pop(each) if each in of else [given.pop(each)] for each in names]
            made = [cls(**dict(zip(names, each, strict=True))) for each in product(*values)]
            command(**given, **{name: made})

        for each in reversed(fields(cls)):
            more = {"section": section, **each.metadata}
            if each.name in of:
                kind = more.pop("type", click.STRING)
                run = several(each.name, default=[each.default], type=Listed(kind), **more)(run)
            else:
                run = option(each.name, default=each.default, **more)(run)
        return run

    return decorate

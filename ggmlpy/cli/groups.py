"""Groups of options: the fields of a dataclass, each with the option that sets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import wraps
from typing import Any

from ggmlpy.cli.command import option


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

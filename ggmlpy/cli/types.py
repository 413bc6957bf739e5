"""Types of option values: parsing, and messages for values that cannot be parsed."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import click

from ggmlpy.common.quoting import printable

MAX_SCALE = 1e6  # of an adapter
MAX_NUMBERS = 1000  # in a list such as 1-512

_NUMBERS = re.compile(r"([0-9]+)(?:-([0-9]+)(?:([+*])([0-9]+))?)?")
_BIAS = re.compile(r"([0-9]+)([+-][0-9a-z.+-]+)", re.IGNORECASE)
Value = TypeVar("Value")
Parameter = click.Parameter | None
Context = click.Context | None


class Whole(click.ParamType[int]):
    """An integer of `low` to `high`, or `unlimited`, a number that means no limit."""

    name = "integer"

    def __init__(
        self, low: int = 0, high: int | None = None, *, unlimited: int | None = None
    ) -> None:
        self.low, self.high, self.unlimited = low, high, unlimited

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not an integer.", param, ctx)
        fits = self.low <= number and (self.high is None or number <= self.high)
        if fits or number == self.unlimited:
            return number
        must = f"at least {self.low}" if self.high is None else f"in {self.low} … {self.high}"
        nor = "" if self.unlimited is None else f", nor {self.unlimited} for no limit"
        self.fail(f"{number} is not {must}{nor}.", param, ctx)


class Range(click.ParamType[tuple[int, int]]):
    """`N` or `MIN-MAX`, of at least 1."""

    name = "range"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, _, most = str(value).partition("-")
        try:
            found = int(least), int(most or least)
        except ValueError:
            self.fail(f"{value!r} is not a number, nor MIN-MAX.", param, ctx)
        if not 1 <= found[0] <= found[1]:
            self.fail(f"{value!r} is not a range from 1 on.", param, ctx)
        return found


class Predicted(Whole):
    """A number of tokens to generate; -1: no limit, -2: until the context is full."""

    def __init__(self) -> None:
        super().__init__(0, unlimited=-1)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        return -2 if value in (-2, "-2") else super().convert(value, param, ctx)


class FileName(click.Path):
    """The path of a file, which need not exist; a leading ~ is expanded."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        if value == "":
            self.fail("the name of the file is empty.", param, ctx)
        from ggmlpy.gguf.path import path_of

        try:
            return path_of(super().convert(value, param, ctx))
        except ValueError:  # a NUL, or a character that the system's encoding does not have
            self.fail(f"'{printable(str(value))}' cannot be the name of a file.", param, ctx)


class Real(click.ParamType[float]):
    """A number of `low` to `high`. Without `low` any number, also inf and NaN."""

    name = "number"

    def __init__(self, low: float | None = None, high: float = math.inf) -> None:
        self.low, self.high = low, high

    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number.", param, ctx)
        if self.low is None or self.low <= number <= self.high:
            return number
        must = f"at least {self.low:g}"
        if self.high != math.inf:
            must = f"in {self.low:g} … {self.high:g}"
        self.fail(f"{number} is not {must}.", param, ctx)


class Threads(Whole):
    """A number of CPU threads."""

    def __init__(self) -> None:
        super().__init__(1)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        from ggmlpy.backends.cpu.runner import MAX_THREADS

        return Whole(1, MAX_THREADS).convert(value, param, ctx)


class Numbers(click.ParamType[list[int]]):
    """A list of integers such as `128,512`, each of `low` to `high`.

    As in llama.cpp `8-16` are all from 8 to 16, `8-16+4` every fourth, `8-64*2` the doubles of 8.
    """

    name = "numbers"

    def __init__(self, low: int) -> None:
        self.low = low

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[int]:
        if isinstance(value, list):
            return value
        parts = [_range(part.strip()) for part in value.split(",")]
        numbers = [number for part in parts for number in part]
        if not all(parts) or min(numbers) < self.low:
            self.fail(
                f"{value!r} is not a list of integers of at least {self.low}, such as 128,512 or"
                " 8-64*2.",
                param,
                ctx,
            )
        if len(numbers) > MAX_NUMBERS:
            self.fail(f"{value!r} are more than {MAX_NUMBERS} numbers.", param, ctx)
        return numbers


class Listed(click.ParamType[list[Any]]):
    """Values of a type, separated by commas."""

    def __init__(self, each: click.ParamType[Any]) -> None:
        self.each = each
        self.name = each.name

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[Any]:
        parts = value if isinstance(value, list) else value.split(",")
        return [self.each(part, param, ctx) for part in parts]


class FileNames(FileName):
    """Paths of files, separated by commas; a file may have commas in its name."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        parts = [value] if os.path.exists(value) else value.split(",")  # noqa: PTH110 - any text
        return [super(FileNames, self).convert(part, param, ctx) for part in parts]


class ScaledFiles(click.ParamType[list[tuple[Path, float]]]):
    """Paths of files, each with a scale: `FILE:SCALE`, several separated by commas."""

    name = "files"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[tuple[Path, float]]:
        found = []
        for part in value.split(","):
            path, colon, scale = part.rpartition(":")
            if not colon:
                self.fail(f"{part!r} is not FILE:SCALE.", param, ctx)
            number = Real(-MAX_SCALE, MAX_SCALE).convert(scale, param, ctx)
            found.append((FileName().convert(path, param, ctx), number))
        return found


class ThreadNumbers(Numbers):
    """A list of numbers of CPU threads."""

    def __init__(self) -> None:
        super().__init__(1)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> list[int]:
        from ggmlpy.backends.cpu.runner import MAX_THREADS

        numbers = super().convert(value, param, ctx)
        if max(numbers) > MAX_THREADS:
            self.fail(f"{max(numbers)} is more than {MAX_THREADS}.", param, ctx)
        return numbers


class PromptAndText(click.ParamType[tuple[int, int]]):
    """Two integers such as `512,128`."""

    name = "numbers"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[int, int]:
        numbers = Numbers(1).convert(value, param, ctx)
        if len(numbers) != 2:
            must = "two numbers, of prompt tokens and of generated ones, such as 512,128"
            self.fail(f"{value!r} is not {must}.", param, ctx)
        return numbers[0], numbers[1]


class Switch(click.ParamType[str]):
    """`on`, `off` or `auto`; llama-bench has 1 and 0."""

    name = "switch"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> str:
        word = {"1": "on", "0": "off"}.get(value, value)
        if word not in ("on", "off", "auto"):
            self.fail(f"{value!r} is not on, off or auto.", param, ctx)
        return str(word)


class OnOff(click.ParamType[bool]):
    """`on` or `off`, also as 1 and 0."""

    name = "switch"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> bool:
        if isinstance(value, bool):
            return value
        if value not in ("on", "off", "1", "0"):
            self.fail(f"{value!r} is not on or off.", param, ctx)
        return value in ("on", "1")


class Layers(Whole):
    """A number of layers; -1, all and auto: all of them."""

    def __init__(self) -> None:
        super().__init__(-1)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> int:
        return super().convert(-1 if value in ("all", "auto") else value, param, ctx)


class LogitBias(click.ParamType[tuple[int, float]]):
    """`15043+1` or `15043-inf`: a token id, and what is added to its logit."""

    name = "bias"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        found = _BIAS.fullmatch(value)
        try:
            if found is not None:
                return int(found[1]), float(found[2])
        except ValueError:
            pass
        self.fail(f"{value!r} is not TOKEN+BIAS or TOKEN-BIAS, such as 15043-inf.", param, ctx)


class Overrides(click.ParamType[dict[str, str]]):
    """`PATTERN=BACKEND,PATTERN=BACKEND` as pairs."""

    name = "overrides"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> dict[str, str]:
        if isinstance(value, dict):
            return value
        pairs = [part.rpartition("=") for part in value.split(",") if part]
        for pattern, equals, name in pairs:
            if not (pattern and equals and name):
                must = "PATTERN=BACKEND, or several with commas"
                self.fail(f"{value!r} is not {must}.", param, ctx)
        return {pattern: name for pattern, _, name in pairs}


class Regex(click.ParamType[re.Pattern[str]]):
    """A regular expression."""

    name = "regex"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> re.Pattern[str]:
        try:
            return re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is not a regular expression: {printable(str(error))}", param, ctx)


def _range(text: str) -> list[int]:
    """The numbers of `8`, `8-16`, `8-16+4` or `8-64*2`; an empty list for any other text.

    A list is cut after MAX_NUMBERS + 1 numbers.
    """
    found = _NUMBERS.fullmatch(text)
    if found is None:
        return []
    first, last = int(found[1]), int(found[2] or found[1])
    by, step = found[3] or "+", int(found[4] or 1)
    if step < 1 if by == "+" else step < 2 or first < 1:
        return []  # it would never end
    numbers: list[int] = []
    while first <= last and len(numbers) <= MAX_NUMBERS:
        numbers.append(first)
        first = first + step if by == "+" else first * step
    return numbers

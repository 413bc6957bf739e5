"""Forms of kernels: a source file and the defines it is compiled with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "kernels"
# The header of the emulation (.hpp), which common.cuh includes for it alone, is none of these.
_INCLUDE = re.compile(r'^#include "([\w.]+\.cuh)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Form:
    """A kernel of a `.cu` file, compiled with these defines.

    file     its name in the folder of kernels: "norm.cu"
    name     of the kernel in it
    defines  names and values, sorted
    """

    file: str
    name: str
    defines: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """`rms_norm(BLOCK=256)`, for messages."""
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.defines)})"

    @property
    def unit(self) -> Unit:
        """What it is compiled from, which holds all kernels of the file."""
        return Unit(self.file, self.defines)


@dataclass(frozen=True, slots=True)
class Unit:
    """A source file with its defines: one translation unit."""

    file: str
    defines: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.file, *self.options])

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(f"-D{name}={value}" for name, value in self.defines)

    @property
    def digest(self) -> str:
        """A hash of the defines, the file and the files of this folder that it includes."""
        made = hashlib.sha256(str(self).encode())
        for name in included(self.file):
            made.update(name.encode() + b"\0" + text(name).encode())
        return made.hexdigest()


@cache
def text(name: str) -> str:
    """A file of the folder of kernels."""
    return (FOLDER / name).read_text(encoding="utf-8")


@cache
def included(name: str) -> tuple[str, ...]:
    """A file and those that it includes, in the order in which they are first read."""
    found: dict[str, None] = {}

    def add(file: str) -> None:
        if file not in found:
            found[file] = None
            for other in _included_by(file):
                add(other)

    add(name)
    return tuple(found)


def _included_by(name: str) -> Iterator[str]:
    return (match.group(1) for match in _INCLUDE.finditer(text(name)))


def headers(name: str) -> dict[str, str]:
    """The files that a file includes, without itself, by name."""
    return {file: text(file) for file in included(name)[1:]}

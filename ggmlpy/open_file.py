"""A file that stays open for as long as something refers to it, read at positions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ggmlpy.errors import FileError
from ggmlpy.quoting import printable

CAN_READ = hasattr(os, "preadv")


class OpenFile:
    """A descriptor that is closed when nothing refers to it any more."""

    __slots__ = ("descriptor", "name")

    def __init__(self, path: Path) -> None:
        self.name = printable(path.name)
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file cannot be copied or pickled: who closes it first?")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "descriptor"):  # it is not where opening failed
            close(self.descriptor)


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where stored bytes lie: in `file`, from `begin` on."""

    file: OpenFile
    begin: int

    def read(self, begin: int, out: NDArray[np.uint8]) -> None:
        """Fill `out` with the bytes from `begin` on, counted from this place.

        Raises FileError if that fails, or the file ends before `out` is full.
        """
        name, position = self.file.name, self.begin + begin
        left = out.data
        while len(left):
            try:
                n = os.preadv(self.file.descriptor, [left], position)
            except OSError as error:
                reason = error.strerror or error
                raise FileError(f"{name}: the file cannot be read: {reason}") from error
            if n == 0:
                self.check(begin, len(out))
                raise FileError(f"{name}: the file ends before its size")
            position, left = position + n, left[n:]

    def check(self, begin: int, n_bytes: int) -> None:
        """Raise FileError if `n_bytes` from `begin` on are not there any more."""
        begin += self.begin
        size = os.fstat(self.file.descriptor).st_size
        if size < begin + n_bytes:
            raise FileError(
                f"{self.file.name}: the file was cut short to {size} bytes, those from {begin} to"
                f" {begin + n_bytes} are wanted"
            )

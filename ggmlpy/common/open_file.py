"""A file that stays open for as long as something refers to it, read at positions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.quoting import printable
from ggmlpy.errors import FileError

CAN_READ = hasattr(os, "preadv")


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What identifies a file and its contents without reading them."""

    path: str  # absolute, without links
    n_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class OpenFile:
    """A descriptor that is closed with the last reference to it."""

    __slots__ = ("_opened", "_path", "descriptor", "name")

    def __init__(self, path: Path) -> None:
        self.name = printable(path.name)
        self._path = os.path.realpath(path)
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._opened = self._stamp()

    def stamp(self) -> FileStamp:
        """The file as it is. Raises FileError if it was written to since it was opened."""
        now, then = self._stamp(), self._opened
        if (now.n_bytes, now.mtime_ns) != (then.n_bytes, then.mtime_ns):
            raise FileError(f"{self.name}: the file was written to since it was opened")
        return now

    def _stamp(self) -> FileStamp:
        status = os.fstat(self.descriptor)
        return FileStamp(
            self._path,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
            status.st_dev,
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file cannot be copied or pickled: it has one owner, who closes it")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "descriptor"):  # not if opening failed
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
                f" {begin + n_bytes} are needed"
            )

"""One GGUF file, mapped into memory."""

from __future__ import annotations

import mmap
import stat
import sys
from pathlib import Path
from typing import Literal

from ggmlpy.common.open_file import CAN_READ, FilePlace, FileStamp, OpenFile
from ggmlpy.common.quoting import printable
from ggmlpy.errors import FileError, MissingFile
from ggmlpy.gguf.path import missing

ByteOrder = Literal["little", "big"]

_MARGIN = 1 << 20
_CAN_RELEASE = sys.platform != "win32" and hasattr(mmap, "MADV_DONTNEED")


class Part:
    """A mapped file (a split model has several) and the byte order of its numbers.

    Views keep the mapping alive by reference, so arrays stay valid after `close`, which only drops
    this object's reference and denies new views. Changes that other programs make to the file are
    visible; if one truncates it, reading ends the process.
    """

    __slots__ = ("_file", "_view", "byte_order", "path")

    def __init__(self, path: Path, view: memoryview, file: OpenFile | None = None) -> None:
        self.path = path
        self._file = file
        self.byte_order: ByteOrder = "little"  # until the header is read
        self._view: memoryview | None = view

    @classmethod
    def open(cls, path: Path) -> Part:
        """Map `path`. Raises MissingFile if it does not exist or is a folder, or FileError."""
        name = printable(path.name or str(path))
        try:
            _check_regular(path, name)
            file = OpenFile(path)
            view = memoryview(mmap.mmap(file.descriptor, 0, access=mmap.ACCESS_READ))
            return cls(path, view, file)
        except FileError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(path) from error
        except (
            OSError,
            ValueError,
        ) as error:  # ValueError: a NUL in the path, or the file is empty now
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise FileError(f"{name}: the file cannot be read: {reason}") from error

    @property
    def name(self) -> str:
        """The file's name on one line, for messages."""
        return printable(self.path.name)

    @property
    def prefix(self) -> str:
        """The byte order in `struct`'s and numpy's notation."""
        return "<" if self.byte_order == "little" else ">"

    @property
    def view(self) -> memoryview:
        """All bytes of the file, read-only. Raises FileError after `close`."""
        if self._view is None:
            raise FileError(f"{self.name}: the file is closed")
        return self._view

    def stamp(self) -> FileStamp:
        """The file's identity. Raises FileError if it is closed or was written to since."""
        if self._file is None:
            raise FileError(f"{self.name}: the file is closed")
        return self._file.stamp()

    def place(self, position: int) -> FilePlace | None:
        """Where to read from without the map, so that no page of it is loaded.

        None after `close`, and if the system cannot read at a position.
        """
        return None if self._file is None or not CAN_READ else FilePlace(self._file, position)

    def release(self, begin: int, end: int) -> None:
        """Release the pages of these bytes from memory; reading loads them again.

        Reading a page may map the large folio of the page cache that contains it, hence the margin.
        """
        mapped = None if self._view is None else self._view.obj
        if isinstance(mapped, mmap.mmap) and _CAN_RELEASE:
            begin = max(0, begin - _MARGIN) // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(end + _MARGIN, len(mapped))
            mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def close(self) -> None:
        self._view = None
        self._file = None  # closed with the last FilePlace


def _check_regular(path: Path, name: str) -> None:
    """Raise FileError for what cannot be mapped, before opening: a pipe would block."""
    status, where = path.stat(), printable(str(path))
    if stat.S_ISDIR(status.st_mode):
        raise MissingFile(f"{where} is a folder; it must be a GGUF file")
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{where} is a device or a pipe; it must be a GGUF file")
    if status.st_size == 0:
        raise FileError(f"{name}: the file is empty; a GGUF file has at least 24 bytes")

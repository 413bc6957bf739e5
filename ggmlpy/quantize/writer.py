"""GGUF files written tensor by tensor, that appear when they are complete."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.quoting import printable
from ggmlpy.errors import FileError
from ggmlpy.graph.types import TensorType
from ggmlpy.quantize.keys import Stored, text_bytes

_VERSION = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor that is to be written."""

    name: bytes
    type: TensorType
    ne: Sequence[int]  # without dimensions of 1 at the end

    @property
    def n_bytes(self) -> int:
        n_rows = 1
        for n in self.ne[1:]:
            n_rows *= n
        return self.type.row_bytes(self.ne[0]) * n_rows


def shape_of(ne: Sequence[int]) -> tuple[int, ...]:
    """The shape without dimensions of 1 at the end, as ggml writes it."""
    n_dims = max([i + 1 for i, n in enumerate(ne) if n > 1], default=1)
    return tuple(ne[:n_dims])


def header(keys: Stored, entries: Sequence[Entry], alignment: int) -> bytes:
    """All that stands before the tensors' data."""
    parts = [b"GGUF", struct.pack("<IQQ", _VERSION, len(entries), len(keys))]
    for key, value in keys.items():
        parts += [text_bytes(key.encode(errors="surrogateescape")), value]
    offset = 0
    for entry in entries:
        parts.append(text_bytes(entry.name))
        dims = struct.pack(f"<I{len(entry.ne)}Q", len(entry.ne), *entry.ne)
        parts.append(dims + struct.pack("<IQ", entry.type.id, offset))
        offset += entry.n_bytes + -entry.n_bytes % alignment
    whole = b"".join(parts)
    return whole + bytes(-len(whole) % alignment)


class NewFile(AbstractContextManager["NewFile"]):
    """A file that is written beside its place, and put there by `finish`.

    Leaving the `with` block without that, as after an error, removes it. Raises FileError where the
    system refuses to write.
    """

    def __init__(self, path: Path, alignment: int) -> None:
        self.path = path
        self._alignment = alignment
        self._temporary: Path | None = None
        if path.is_dir():
            raise self._failed(IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
        try:
            number, name = tempfile.mkstemp(
                prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent
            )
        except OSError as error:
            raise self._failed(error) from None
        self._temporary = Path(name)
        self._file: BinaryIO = os.fdopen(number, "wb")

    def write(self, data: bytes | NDArray[np.uint8]) -> None:
        """Appends bytes."""
        try:
            self._file.write(data if isinstance(data, bytes) else data.data)
        except OSError as error:
            raise self._failed(error) from None

    def pad(self) -> None:
        """Appends zeros up to the alignment."""
        self.write(bytes(-self._file.tell() % self._alignment))

    def finish(self) -> None:
        """Puts the file in its place; one of that name is replaced."""
        assert self._temporary is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.chmod(0o666 & ~_umask())
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._failed(error) from None
        self._temporary = None

    def __exit__(self, *error: object) -> None:
        if self._temporary is not None:
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._temporary.unlink()
            self._temporary = None

    def _failed(self, error: OSError) -> FileError:
        where = printable(str(self.path))
        return FileError(f"{where}: the file cannot be written: {error.strerror or error}")


def _umask() -> int:
    """The permissions that new files lack; reading it sets it for a moment."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask

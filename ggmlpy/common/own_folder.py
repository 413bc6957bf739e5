"""Files that this process trusts because only its user can have written them: the cache folder.

The folder, which is created with mode 0700, and every file in it must belong to the user, must not
be writable by others, and must not be links. Files are opened relative to the folder that was
checked, and not by a path, which could name another folder by then. The folders above need no
check: a folder that replaces this one would belong to another user.

A folder of the user that others can write to, such as one made under a loose umask, is set to mode
0700; files of other users in it are not read. Windows has no such modes and keeps the folders below
a user's profile to that user, so nothing is checked there.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.mapped_file import map_file

_PRIVATE = 0o700
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would convert line ends
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor block on a pipe
_READ = os.O_RDONLY | _BINARY | _NO_LINK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINK
_NOTED_S = 24 * 3600  # between two notes that a file is used: reading stays reading
_FOLDER = os.environ.get("GGMLPY_CACHE_DIR") or None


def default_folder() -> Path:
    """The cache folder: $GGMLPY_CACHE_DIR, else the platform's folder for caches.

    For a user without a home, as in some containers, it is one that cannot be created.
    """
    if _FOLDER is not None:
        return Path(_FOLDER)
    try:
        return _platform_folder()
    except RuntimeError:
        return Path(os.devnull)


def _platform_folder() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ggmlpy"


@dataclass(frozen=True, slots=True)
class OwnFile:
    """A regular file that is the user's. `used` is when it was written, mapped, or read with
    `note_use`."""

    name: str
    n_bytes: int
    used: float  # seconds since 1970; to a day where it was read


class OwnFolder:
    """An open folder that belongs to this user alone. Files are given by their names."""

    def __init__(self, path: Path, handle: int | None) -> None:
        self._path = path
        self._handle = handle  # None where files cannot be opened relative to a folder

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, *, make: bool = False) -> Iterator[OwnFolder]:
        """The folder at `path`, for a `with` block.

        Raises OSError if it does not exist (or, with `make`, cannot be created), is a link, belongs
        to another user, or can be written to by others.
        """
        if make:
            _make(path)
        if sys.platform == "win32":
            yield cls(path, None)
            return
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, which anyone may have made")
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            _close_to_others(handle)
            yield cls(path, handle)
        finally:
            os.close(handle)

    def read(self, name: str, max_bytes: int, *, note_use: bool = False) -> bytes:
        """A file's content; with `note_use` its time becomes now, unless that was done in the last
        day. Raises OSError if it is missing, longer, or not this user's alone."""
        with self._reading(name, _NOTED_S if note_use else math.inf) as (handle, n_bytes):
            if n_bytes > max_bytes:
                raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", name)
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read(n_bytes)

    def map(self, name: str) -> NDArray[np.uint8]:
        """A file mapped into memory, as by `map_file`, which stays as it is when the file is
        replaced or removed; the file's time becomes now. Raises OSError if it is missing, empty, or
        not this user's alone."""
        with self._reading(name, 0) as (handle, n_bytes):
            return map_file(handle, n_bytes)

    @contextlib.contextmanager
    def _reading(self, name: str, noted_s: float) -> Iterator[tuple[int, int]]:
        """A file's descriptor and size, for a `with` block after which its use is noted, unless
        that was done in the last `noted_s` seconds."""
        handle = os.open(self._at(name), _READ, dir_fd=self._handle)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or _others_can_write(status):
                raise PermissionError(errno.EPERM, "not a file of this user alone", name)
            yield handle, status.st_size
            if time.time() - status.st_mtime > noted_s:
                with contextlib.suppress(OSError):  # it may be a file system for reading only
                    self._touch(handle, name)
        finally:
            os.close(handle)

    def write(self, name: str, *parts: bytes | memoryview, durable: bool = False) -> None:
        """Replace a file by parts one after another, atomically; with `durable` even if the machine
        then stops, for which the disk is waited for. Raises OSError.

        No temporary file is left after an exception, not even after KeyboardInterrupt.
        """
        new = self._at(f"{secrets.token_hex(8)}.tmp")
        try:
            with os.fdopen(os.open(new, _CREATE, 0o600, dir_fd=self._handle), "wb") as file:
                for part in parts:
                    file.write(part)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(new, self._at(name), src_dir_fd=self._handle, dst_dir_fd=self._handle)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=self._handle)
            raise

    def files(self) -> list[OwnFile]:
        """The regular files in the folder that are the user's. Raises OSError."""
        found = []
        with os.scandir(self._path if self._handle is None else self._handle) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # one that is gone by now
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and _is_own(status):
                        found.append(OwnFile(entry.name, status.st_size, status.st_mtime))
        return found

    def remove(self, name: str) -> None:
        """Remove a file. Raises OSError if it is not there, or cannot be removed."""
        os.unlink(self._at(name), dir_fd=self._handle)

    def _touch(self, handle: int, name: str) -> None:
        os.utime(handle if os.utime in os.supports_fd else self._at(name))

    def _at(self, name: str) -> str:
        """The path of a file, relative to the open folder if there is a handle."""
        return name if self._handle is not None else str(self._path / name)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FileExistsError(error.errno, "it is not a folder", str(folder)) from None


def _close_to_others(folder: int) -> None:
    """Raise OSError if the folder belongs to another user, or cannot be made private."""
    if sys.platform == "win32":
        return
    status = os.fstat(folder)
    user = os.geteuid()
    if status.st_uid != user:
        text = f"it belongs to user {status.st_uid}, and this process runs as user {user}"
        raise PermissionError(errno.EPERM, text)
    if _others_can_write(status):
        with contextlib.suppress(OSError):
            os.fchmod(folder, _PRIVATE)
        if _others_can_write(os.fstat(folder)):
            text = f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o}; chmod 700)"
            raise PermissionError(errno.EPERM, text)


def _others_can_write(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to another user, or others can write to it."""
    if sys.platform == "win32":
        return False
    return not _is_own(status) or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _is_own(status: os.stat_result) -> bool:
    return sys.platform == "win32" or status.st_uid == os.geteuid()

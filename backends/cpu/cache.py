"""Compiled objects on disk, shared by all processes of a user.

    <folder>/cpu/<key>.o      magic | sha256 of the key and the code | code

What is kept here is executed, so it must be this user's own: the folder, which is made with mode
0700, and every file belong to the user, nobody else may write to them, and neither is reached by a
link. Files are opened relative to the folder that was checked, so folders above it need no check:
who can put another one in its place can put only a folder, or files, of someone else there. A
folder of the user that others may write to is closed to them; files of theirs in it stay unused.
Windows keeps folders below a user's profile to that user and has no such modes: nothing is checked
there. The digest protects against damage, and against an object under the name of another.

A cache that cannot be read, written or trusted is a slow start and never an error: damaged files
count as absent, and who compiles warns where nothing can be kept. amx_check.py keeps its verdicts
here too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_MAGIC = b"ggmlpy object 2\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_PRIVATE = 0o700
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would turn line ends
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor wait for a pipe
_READ = os.O_RDONLY | _BINARY | _NO_LINK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINK
_FOLDER = os.environ.get("GGMLPY_CACHE_DIR") or None


def default_folder() -> Path:
    """$GGMLPY_CACHE_DIR, else the platform's folder for such files.

    For a user without a home, as in some containers, it is one that cannot be made.
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


class KernelCacheWarning(UserWarning):
    """Compiled kernels cannot be kept: each start compiles them again."""


class Cache:
    """Objects by key, in a folder. `problem` is why the last one could not be stored, if one
    could not."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()) / "cpu"
        self.problem: OSError | None = None

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.o"

    def get(self, key: str) -> bytes | None:
        """The object stored under `key`; None if there is none that is whole and the user's."""
        return self.get_all([key]).get(key)

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Those of the objects that are there, whole, and the user's."""
        found = {}
        with contextlib.suppress(OSError), _opened(self.folder) as folder:
            for key in keys:
                with contextlib.suppress(OSError):
                    start, code = _split(self._read(folder, f"{key}.o"))
                    if start == _start(key, code):
                        found[key] = code
        return found

    def put(self, key: str, code: bytes) -> None:
        """Stores an object: readers see the old file or the whole new one."""
        try:
            self.folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
            with _opened(self.folder) as folder:
                self._write(folder, f"{key}.o", _start(key, code) + code)
        except OSError as error:
            self.problem = error

    def _read(self, folder: int | None, name: str) -> bytes:
        """A file's content. Raises OSError if it is not there, or not this user's alone."""
        handle = os.open(self._at(folder, name), _READ, dir_fd=folder)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or _others_reach(status):
                raise PermissionError(errno.EPERM, "not a file of this user alone", name)
            with open(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)

    def _write(self, folder: int | None, name: str, content: bytes) -> None:
        new = self._at(folder, f"{secrets.token_hex(8)}.tmp")
        try:
            with os.fdopen(os.open(new, _CREATE, 0o600, dir_fd=folder), "wb") as file:
                file.write(content)
            os.replace(new, self._at(folder, name), src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise

    def _at(self, folder: int | None, name: str) -> str:
        """What the system calls a file, relative to the open folder where there is one."""
        return name if folder is not None else str(self.folder / name)


def _start(key: str, code: bytes) -> bytes:
    """What stands in a file before the code."""
    return _MAGIC + hashlib.sha256(key.encode() + b"\n" + code).digest()


def _split(content: bytes) -> tuple[bytes, bytes]:
    n = len(_MAGIC) + _DIGEST_BYTES
    return content[:n], content[n:]


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """A descriptor of the folder, or None where files are not opened relative to one. Raises
    OSError if it is not there, or others can write to it."""
    if sys.platform == "win32":
        yield None
        return
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, which anyone may have made")
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _close_to_others(opened)
        yield opened
    finally:
        os.close(opened)


def _close_to_others(folder: int) -> None:
    """Raises OSError where an open folder is another user's, or cannot be closed to others."""
    status = os.fstat(folder)
    user = os.geteuid()
    if status.st_uid != user:
        text = f"it belongs to user {status.st_uid}, and this process runs as user {user}"
        raise PermissionError(errno.EPERM, text)
    if _others_reach(status):  # of an earlier version under a loose umask
        with contextlib.suppress(OSError):
            os.fchmod(folder, _PRIVATE)
        if _others_reach(os.fstat(folder)):
            text = f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o}; chmod 700)"
            raise PermissionError(errno.EPERM, text)


def _others_reach(status: os.stat_result) -> bool:
    """Whether a file or folder is another user's, or others may write to it."""
    if sys.platform == "win32":
        return False
    return status.st_uid != os.geteuid() or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))

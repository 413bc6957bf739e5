"""Compiled objects on disk, shared by all processes of a user.

    <folder>/cpu/<key>.o      magic | sha256 of the code | code

A cache that cannot be read, written or trusted is a slow start and never an error: damaged files
count as absent, and who compiles warns where nothing can be kept. amx_check.py keeps its verdicts
here too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path

_MAGIC = b"ggmlpy object 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
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
        """The object stored under `key`; None if there is none that is whole."""
        try:
            content = self.path(key).read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        code = content[start:]
        if content[:start] != _MAGIC + hashlib.sha256(code).digest():
            return None
        return code

    def put(self, key: str, code: bytes) -> None:
        """Stores an object: readers see the old file or the whole new one."""
        content = _MAGIC + hashlib.sha256(code).digest() + code
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
        except OSError as error:
            self.problem = error
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(name).replace(self.path(key))
        except OSError as error:
            self.problem = error
            with contextlib.suppress(OSError):
                Path(name).unlink()

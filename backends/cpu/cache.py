"""Compiled objects on disk, shared by all processes of a user.

    <folder>/cpu/<key>.o      magic | sha256 of the key and the code | code
    <folder>/cuda/<key>.o     the same, of kernels for GPUs

What is kept here is executed, so only files that this user alone can have written are used: see
`ggmlpy/common/own_folder.py`. The digest protects against damage, and against an object under the
name of another.

A cache that cannot be read, written or trusted makes a start slow and is never an error: damaged
files count as absent, and the compiler warns where nothing can be kept. amx_check.py keeps its
verdicts here too.

Each edit of a kernel and each upgrade leaves objects behind that are not used any more. Those not
used for 60 days are dropped whenever something was compiled, and the longest unused ones where
all together are over 256 MB. A full set of kernels for one instruction set has 6 MB, so that is 40
of them; a program that runs once a month still finds its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ggmlpy.common.own_folder import OwnFile, OwnFolder, default_folder

_MAGIC = b"ggmlpy object 2\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_MAX_BYTES = 1 << 28  # of an object; the largest has 0.2 MB
_OBJECT = re.compile(r"[0-9a-f]{40}\.o")
_TEMPORARY = re.compile(r"[0-9a-f]{16}\.tmp")  # of a process that was killed as it wrote
_DAY_S = 24 * 3600
_UNUSED_S = 60 * _DAY_S
_TOTAL_BYTES = 256_000_000


class KernelCacheWarning(UserWarning):
    """Compiled kernels cannot be kept: each start compiles them again."""


class Cache:
    """Objects by key, in a folder. `problem` is why the last one could not be stored, if one
    could not."""

    def __init__(self, folder: Path | None = None, part: str = "cpu") -> None:
        """`part` is a backend's own folder in `folder`, with its own limit of bytes."""
        self.folder = (folder or default_folder()) / part
        self.problem: OSError | None = None

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.o"

    def get(self, key: str) -> bytes | None:
        """The object stored under `key`; None if there is none that is whole and the user's."""
        return self.get_all([key]).get(key)

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Those of the objects that are there, whole, and the user's."""
        found = {}
        with contextlib.suppress(OSError), OwnFolder.opened(self.folder) as folder:
            for key in keys:
                with contextlib.suppress(OSError):
                    start, code = _split(folder.read(f"{key}.o", _MAX_BYTES, note_use=True))
                    if start == _start(key, code):
                        found[key] = code
        return found

    def put(self, key: str, code: bytes) -> None:
        """Stores an object: readers see the old file or the whole new one."""
        try:
            with OwnFolder.opened(self.folder, make=True) as folder:
                folder.write(f"{key}.o", _start(key, code) + code)
        except OSError as error:
            self.problem = error

    def drop_unused(self) -> None:
        """Removes objects that were not used for long, and the longest unused of too many bytes.
        Other processes may do the same at the same time; one that wants an object which has just
        gone compiles it."""
        with contextlib.suppress(OSError), OwnFolder.opened(self.folder) as folder:
            for name in _unused(folder.files(), time.time()):
                with contextlib.suppress(OSError):
                    if not _OBJECT.fullmatch(name) or _is_object(folder.read(name, _MAX_BYTES)):
                        folder.remove(name)


def _unused(files: Iterable[OwnFile], now: float) -> Iterator[str]:
    total = 0
    for file in sorted(files, key=lambda file: file.used, reverse=True):
        age = now - file.used
        if _OBJECT.fullmatch(file.name):
            total += file.n_bytes
            if age > _UNUSED_S or total > _TOTAL_BYTES:
                yield file.name
        elif _TEMPORARY.fullmatch(file.name) and age > _DAY_S:
            yield file.name


def _is_object(content: bytes) -> bool:
    """Whether a file is one of ours, of whatever version."""
    return content.startswith(b"ggmlpy object ")


def _start(key: str, code: bytes) -> bytes:
    """What stands in a file before the code."""
    return _MAGIC + hashlib.sha256(key.encode() + b"\n" + code).digest()


def _split(content: bytes) -> tuple[bytes, bytes]:
    n = len(_MAGIC) + _DIGEST_BYTES
    return content[:n], content[n:]

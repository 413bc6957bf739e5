"""Digests of model files, stored on disk: computing one reads gigabytes, which takes seconds.

    <folder>/weights/<digest of the first file's path>.json     {"files": […], "digest": "…"}

A digest is valid only for files with the same paths, sizes, times, inodes and devices, and only if
no other user can have written it (`ggmlpy/common/own_folder.py`). Damaged and foreign files are
ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from dataclasses import astuple
from pathlib import Path

from ggmlpy.common.open_file import FileStamp
from ggmlpy.common.own_folder import OwnFolder

_SETTLED_NS = (
    2_000_000_000  # a change within the same tick of the file system's clock is not visible
)
_MAX_BYTES = 1 << 20
_DIGEST = re.compile("[0-9a-f]{64}")


class KeptDigests:
    """A digest for each list of files, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "weights"

    def get(self, files: list[FileStamp]) -> str | None:
        """The digest stored for these files; None if there is none, or a file has changed."""
        try:
            with OwnFolder.opened(self._folder) as folder:
                kept = json.loads(folder.read(_name(files), _MAX_BYTES))
            if kept["files"] != [list(astuple(file)) for file in files]:
                return None
            digest = kept["digest"]
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None

    def put(self, files: list[FileStamp], digest: str) -> None:
        """Store a digest, unless the files changed just now. Never raises OSError."""
        changed_ns = max(max(file.mtime_ns, file.ctime_ns) for file in files)
        if time.time_ns() - changed_ns < _SETTLED_NS:
            return
        text = json.dumps({"files": [astuple(file) for file in files], "digest": digest})
        with contextlib.suppress(OSError), OwnFolder.opened(self._folder, make=True) as folder:
            folder.write(_name(files), text.encode())


def _name(files: list[FileStamp]) -> str:
    return f"{hashlib.sha256(os.fsencode(files[0].path)).hexdigest()[:32]}.json"

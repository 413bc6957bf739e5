"""Digests of model files, kept from one process to the next: reading gigabytes again takes seconds.

    <folder>/weights/<digest of the first file's path>.json     {"files": […], "digest": "…"}

A digest counts for files whose paths, sizes, times, inodes and devices are those it was kept with,
and only if no one but the user can have written it. Whatever is wrong with what is kept, it is as
if there were nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from dataclasses import astuple
from pathlib import Path

from ggmlpy.open_file import FileStamp

_SETTLED_NS = 2_000_000_000  # a later change within the same tick of a file's clock goes unseen
_MOST_BYTES = 1 << 20
_DIGEST = re.compile("[0-9a-f]{64}")


class KeptDigests:
    """A digest for each list of files, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "weights"

    def get(self, files: list[FileStamp]) -> str | None:
        """What was kept for these files, if they are as they were then."""
        try:
            with self._path(files).open("rb") as file:
                if not _is_ours(os.fstat(file.fileno())):
                    return None
                kept = json.loads(file.read(_MOST_BYTES))
            if kept["files"] != [list(astuple(file)) for file in files]:
                return None
            digest = kept["digest"]
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        return digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else None

    def put(self, files: list[FileStamp], digest: str) -> None:
        """Keep a digest, unless the files were changed only just now. Never raises OSError."""
        changed_ns = max(max(file.mtime_ns, file.ctime_ns) for file in files)
        if time.time_ns() - changed_ns < _SETTLED_NS:
            return
        text = json.dumps({"files": [astuple(file) for file in files], "digest": digest})
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                Path(name).replace(self._path(files))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _path(self, files: list[FileStamp]) -> Path:
        name = hashlib.sha256(os.fsencode(files[0].path)).hexdigest()
        return self._folder / f"{name[:32]}.json"


def _is_ours(status: os.stat_result) -> bool:
    """Whether a file is the user's own, and no one else may write it."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

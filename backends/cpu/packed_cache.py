"""Packed weights on disk: a later start maps them instead of packing them again. Off by default.

    <folder>/packed/<key>.w     magic | key | zeros up to 4096 bytes | the packed weight

GGMLPY_PACKED_CACHE says how many GB may be kept. The key covers what identifies the file of the
weight without reading it (its path, size, times and inode), the place, type and shape of the weight
in it, and the code that packs. Files that this user alone can have written are used, as of compiled
kernels (`ggmlpy/common/own_folder.py`), and only whole: one is on the disk before it has its name.

Packing needs fresh memory, mapping does not, and all processes share what is mapped. Fresh memory
takes 0.05 s/GB where the system has it at hand, but 1 to 2 s/GB in a virtual machine that gives
memory which was not used for two seconds back to its host (EPYC (Zen 5), Linux 6.18, 2026-11-27).

A cache that cannot be read, written or trusted makes loading slow and is never an error. Each time
that something is written, what was not used for 30 days is dropped, and the longest unused where
all together would be more than may be kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ggmlpy.common.own_folder import OwnFile, OwnFolder, default_folder
from ggmlpy.common.progress import tell
from ggmlpy.errors import BackendError
from ggmlpy.graph.buffer import Bytes

VARIABLE = "GGMLPY_PACKED_CACHE"
HEADER_BYTES = 4096  # a page: what follows is aligned as memory of its own is
_SETTING = os.environ.get(VARIABLE) or "0"
_MAGIC = b"ggmlpy packed 1\n"  # a new number where pieces of a weight are arranged otherwise
_KEY_CHARS = 40
_KEPT = re.compile(r"[0-9a-f]{40}\.w")
_TEMPORARY = re.compile(r"[0-9a-f]{16}\.tmp")  # of a process that was killed as it wrote
_DAY_S = 24 * 3600
_UNUSED_S = 30 * _DAY_S


class PackedCacheWarning(UserWarning):
    """Packed weights cannot be kept: each start packs them again."""


class PackedCache:
    """Packed weights by key, in a folder, of `max_bytes` in all."""

    def __init__(self, max_bytes: int, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()) / "packed"
        self._max_bytes = max_bytes

    def get(self, key: str, n_bytes: int) -> Bytes | None:
        """The weight of `n_bytes` under `key`, mapped and not yet in memory; None if it is not
        there, or not whole."""
        with contextlib.suppress(OSError), OwnFolder.opened(self.folder) as folder:
            mapped = folder.map(f"{key}.w", note_use=True)
            if len(mapped) == HEADER_BYTES + n_bytes and mapped[:HEADER_BYTES] == _header(key):
                return np.frombuffer(mapped, np.uint8, offset=HEADER_BYTES)
        return None

    def put_all(self, weights: Mapping[str, Bytes]) -> None:
        """Write weights, after what is to be dropped has been. Warns where that fails; then those
        that were written stay."""
        n_bytes = sum(HEADER_BYTES + weight.nbytes for weight in weights.values())
        try:
            if n_bytes > self._max_bytes:
                raise OSError(0, f"{n_bytes} bytes are more than the {self._max_bytes} allowed")
            with OwnFolder.opened(self.folder, make=True) as folder:
                self._make_room(folder, n_bytes)
                _write_all(folder, weights, n_bytes)
        except OSError as error:
            warnings.warn(
                f"packed weights cannot be kept in {self.folder}: {error.strerror or error}."
                f" Each start packs them again, unless {VARIABLE} (GB) and the disk leave room",
                PackedCacheWarning,
                stacklevel=2,
            )

    def _make_room(self, folder: OwnFolder, n_bytes: int) -> None:
        for name in _to_drop(folder.files(), self._max_bytes - n_bytes, time.time()):
            with contextlib.suppress(OSError):  # another process may have done so
                folder.remove(name)


def key_of(identity: Iterable[object]) -> str:
    """The key of a weight that all these things together identify."""
    text = "\0".join(map(str, identity))
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_CHARS]


def cache_from_environment(setting: str = _SETTING) -> PackedCache | None:
    """What $GGMLPY_PACKED_CACHE asks for: a cache of so many GB, or none. Raises BackendError."""
    try:
        n_bytes = float(setting) * 1e9
        if not 0 <= n_bytes < float("inf"):
            raise ValueError
    except ValueError:
        raise BackendError(f"{VARIABLE}: {setting!r} is not a number of GB") from None
    return PackedCache(int(n_bytes)) if n_bytes > 0 else None


def _header(key: str) -> bytes:
    return (_MAGIC + key.encode()).ljust(HEADER_BYTES, b"\0")


def _write_all(folder: OwnFolder, weights: Mapping[str, Bytes], n_bytes: int) -> None:
    done = 0
    for key, weight in weights.items():
        tell("keeping packed weights", done / n_bytes)
        folder.write(f"{key}.w", _header(key), weight.data, durable=True)
        done += HEADER_BYTES + weight.nbytes
    tell("keeping packed weights", 1.0)


def _to_drop(files: Sequence[OwnFile], may_stay: int, now: float) -> Iterator[str]:
    """Names of files that were not used for long, and of the longest unused beyond `may_stay`
    bytes."""
    total = 0
    for file in sorted(files, key=lambda file: file.used, reverse=True):
        age = now - file.used
        if _KEPT.fullmatch(file.name):
            total += file.n_bytes
            if age > _UNUSED_S or total > may_stay:
                yield file.name
        elif _TEMPORARY.fullmatch(file.name) and age > _DAY_S:
            yield file.name

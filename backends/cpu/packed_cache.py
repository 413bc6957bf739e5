"""Packed weights on disk: a later start maps them instead of packing them again. Off by default.

    <folder>/packed/<key>.w     magic | key | digest | zeros up to 4096 bytes | the packed weight

GGMLPY_PACKED_CACHE says how many GB may be kept. The key covers what identifies the file of the
weight without reading it (its path, size, times and inode), the place, type and shape of the weight
in it, and the code that packs. Files that this user alone can have written are used, as of compiled
kernels (`ggmlpy/common/own_folder.py`), and only whole: one is on the disk before it has its name.
The digest, of whoever packs (packing.py), tells whether the weight is still what was written.

Packing needs fresh memory, mapping does not, and all processes share what is mapped. Fresh memory
takes 0.05 s/GB where the system has it at hand, but 1 to 2 s/GB in a virtual machine that gives
memory which was not used for two seconds back to its host. Summing what is mapped takes 0.017 s/GB
more than bringing it into memory, on two threads (EPYC (Zen 5), Linux 6.18, 2026-11-27).

A cache that cannot be read, written or trusted makes loading slow and is never an error. Files are
dropped only when others are written: those not used for 30 days, and the longest unused where all
together would be more than may be kept. So models that take turns need room for all of them. What
this process has mapped stays. Of new weights those are kept that fit beside it and on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from ggmlpy.common.arguments import checked
from ggmlpy.common.callers import warn_caller
from ggmlpy.common.own_folder import OwnFile, OwnFolder, default_folder
from ggmlpy.common.progress import tell
from ggmlpy.errors import BackendError
from ggmlpy.graph.buffer import Bytes

VARIABLE = "GGMLPY_PACKED_CACHE"
HEADER_BYTES = 4096  # a page: what follows is aligned as memory of its own is
_SETTING = os.environ.get(VARIABLE) or "0"
# A new number where a weight's pieces are arranged otherwise (PackedFormat), which the key does not
# show, or summed otherwise.
_MAGIC = b"ggmlpy packed 2\n"
_KEY_CHARS = 40
DIGEST_BYTES = 32
_KEPT = re.compile(r"[0-9a-f]{40}\.w")
_TEMPORARY = re.compile(r"[0-9a-f]{16}\.tmp")  # of a process that was killed as it wrote
_UNUSED_S = 30 * 24 * 3600
_ABANDONED_S = 3600  # a file that is being written has a time of just now
# What this process has mapped, by the names of files: another cache in it may have mapped them.
_in_use: WeakValueDictionary[str, Bytes] = WeakValueDictionary()


class PackedCacheWarning(UserWarning):
    """Packed weights cannot be kept: each start packs them again."""


@dataclass(frozen=True, slots=True)
class KeptWeight:
    """A packed weight, and the digest of it when it was packed."""

    data: Bytes
    digest: bytes  # DIGEST_BYTES

    @property
    def file_bytes(self) -> int:
        """Bytes of its file."""
        return HEADER_BYTES + self.data.nbytes


class PackedCache:
    """Packed weights by key, in a folder, of `max_bytes` in all."""

    @checked
    def __init__(self, max_bytes: int, folder: Path | None = None) -> None:
        self.folder = (folder or default_folder()) / "packed"
        self._max_bytes = max_bytes

    def get(self, key: str, n_bytes: int) -> KeptWeight | None:
        """The weight of `n_bytes` under `key`, mapped as by `map_file`, not yet in memory and not
        compared with its digest; None if it is not there, or its size or header is wrong."""
        with contextlib.suppress(OSError), OwnFolder.opened(self.folder) as folder:
            content = folder.map(_name(key))
            digest = _digest_in(content[:HEADER_BYTES].tobytes(), key)
            if digest is not None and len(content) == HEADER_BYTES + n_bytes:
                _in_use[_name(key)] = content
                return KeptWeight(content[HEADER_BYTES:], digest)
        return None

    def put_all(self, weights: Mapping[str, KeptWeight]) -> None:
        """Write the weights that there is room for, after what is to be dropped has been. Warns
        where some cannot be kept."""
        try:
            with OwnFolder.opened(self.folder, make=True) as folder:
                _write_all(folder, self._make_room(folder, weights))
        except OSError as error:
            self._warn(self._reason(error), _remedy(error))

    def _make_room(
        self, folder: OwnFolder, weights: Mapping[str, KeptWeight]
    ) -> dict[str, KeptWeight]:
        """The first weights that are allowed beside what is in use, after files were dropped so
        that these may be written. Warns where that is not all."""
        files = folder.files()
        in_use = sum(file.n_bytes for file in _without(weights, files) if file.name in _in_use)
        n_bytes = in_use + sum(weight.file_bytes for weight in weights.values())
        if n_bytes > self._max_bytes:
            needed = _gb(math.ceil(n_bytes / 1e6) * 1e6)
            self._warn(
                f"they take {needed} GB, {_gb(self._max_bytes)} are allowed",
                f"{VARIABLE} is {needed} or more",
            )
        allowed = _fitting(weights, self._max_bytes - in_use)
        may_stay = self._max_bytes - sum(weight.file_bytes for weight in allowed.values())
        for name in _to_drop(_without(allowed, files), may_stay, time.time()):
            with contextlib.suppress(OSError):  # another process may have done so
                folder.remove(name)
        return allowed

    def _reason(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        in_place = error.filename2  # of a file that cannot be replaced
        return reason if in_place is None else f"{self.folder / in_place}: {reason}"

    def _warn(self, reason: str, remedy: str) -> None:
        warn_caller(
            f"packed weights cannot all be kept in {self.folder}: {reason}."
            f" Each start packs again what is not kept, unless {remedy}",
            PackedCacheWarning,
        )


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
        raise BackendError(
            f"{VARIABLE} is {setting!r}: it must be a number of GB, 0 or more"
        ) from None
    return PackedCache(int(n_bytes)) if n_bytes > 0 else None


def _name(key: str) -> str:
    return f"{key}.w"


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.10g}"


def _remedy(error: OSError) -> str:
    """What lets weights be kept that could not be."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "its disk has room, or GGMLPY_CACHE_DIR names a folder on another one"
    if error.errno in (errno.EEXIST, errno.EISDIR):
        return "what is there is removed"
    return "GGMLPY_CACHE_DIR names a folder that this user alone can write to"


def _without(weights: Iterable[str], files: Iterable[OwnFile]) -> list[OwnFile]:
    """The files but for those of weights, which are given by their keys."""
    names = set(map(_name, weights))
    return [file for file in files if file.name not in names]


def _fitting(weights: Mapping[str, KeptWeight], room: int) -> dict[str, KeptWeight]:
    """Weights that take up to `room` bytes on disk: the first ones, and later ones beside which a
    larger one had no room."""
    fitting = {}
    for key, weight in weights.items():
        if weight.file_bytes <= room:
            fitting[key] = weight
            room -= weight.file_bytes
    return fitting


def _header(key: str, digest: bytes) -> bytes:
    return (_MAGIC + key.encode() + digest).ljust(HEADER_BYTES, b"\0")


def _digest_in(header: bytes, key: str) -> bytes | None:
    """The digest that a header of `key` has; None if it is not one."""
    begin = len(_MAGIC) + len(key)
    digest = header[begin : begin + DIGEST_BYTES]
    return digest if header == _header(key, digest) else None


def _write_all(folder: OwnFolder, weights: Mapping[str, KeptWeight]) -> None:
    """Write all weights that can be: a smaller one may have room where a larger one has none.
    Raises the first OSError in the end."""
    errors: list[OSError] = []
    n_bytes, done = sum(weight.file_bytes for weight in weights.values()), 0
    for key, weight in weights.items():
        tell("keeping packed weights", done / n_bytes)
        try:
            folder.write(_name(key), _header(key, weight.digest), weight.data.data, durable=True)
        except OSError as error:
            errors.append(error)
        done += weight.file_bytes
    tell("keeping packed weights", 1.0)
    if errors:
        raise errors[0]


def _to_drop(files: Sequence[OwnFile], may_stay: int, now: float) -> Iterator[str]:
    """Names of files that were not used for long or not completed, and of the longest unused beyond
    `may_stay` bytes. Those in use are not among them, nor those that another process writes, but
    all count."""
    total = 0
    for file in sorted(files, key=_stays_first):
        age = now - file.used
        if _KEPT.fullmatch(file.name):
            total += file.n_bytes
            if file.name not in _in_use and (age > _UNUSED_S or total > may_stay):
                yield file.name
        elif _TEMPORARY.fullmatch(file.name):
            if age > _ABANDONED_S:
                yield file.name
            else:
                total += file.n_bytes


def _stays_first(file: OwnFile) -> tuple[bool, float]:
    """Sorts files: those in use and those not completed, then the last used ones."""
    return file.name not in _in_use and _KEPT.fullmatch(file.name) is not None, -file.used

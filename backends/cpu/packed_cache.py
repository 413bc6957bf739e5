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
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
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


@dataclass(frozen=True, slots=True)
class _Obstacle:
    """Why weights cannot be kept, and what would let them be."""

    reason: str
    remedy: str


class PackedCache:
    """Packed weights by key, in a folder, of `max_bytes` in all.

    `from_environment` says that this limit is that of $GGMLPY_PACKED_CACHE, which a warning then
    names in place of the argument.
    """

    @checked
    def __init__(
        self, max_bytes: int, folder: Path | None = None, *, from_environment: bool = False
    ) -> None:
        self.folder = (folder or default_folder()) / "packed"
        self._max_bytes = max_bytes
        self._place = "GGMLPY_CACHE_DIR" if folder is None else "folder of PackedCache"
        self._from_environment = from_environment

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
        once where some cannot be kept."""
        obstacles = []
        try:
            with OwnFolder.opened(self.folder, make=True) as folder:
                files = folder.files()
                room = self._max_bytes - _in_use_bytes(_without(weights, files))
                allowed = _fitting(weights, room)
                if len(allowed) < len(weights):
                    obstacles.append(self._limit(_file_bytes(weights) - room))
                self._make_room(folder, files, allowed)
                _write_all(folder, allowed)
        except OSError as error:
            obstacles.append(self._obstacle(error))
        if obstacles:
            self._warn(obstacles)

    def _make_room(
        self, folder: OwnFolder, files: Sequence[OwnFile], weights: Mapping[str, KeptWeight]
    ) -> None:
        """Drop files so that the weights may be written."""
        may_stay = self._max_bytes - _file_bytes(weights)
        for name in _to_drop(_without(weights, files), may_stay, time.time()):
            with contextlib.suppress(OSError):  # another process may have done so
                folder.remove(name)

    def _limit(self, n_missing: int) -> _Obstacle:
        """`max_bytes`, which is too small by so many bytes."""
        needed = math.ceil((self._max_bytes + n_missing) / 1e6) * 10**6
        setting = f"max_bytes of PackedCache is {needed}"
        if self._from_environment:
            setting = f"{VARIABLE} is {_gb(needed)}"
        return _Obstacle(
            f"they take {_gb(needed)} GB, {_gb(self._max_bytes)} are allowed", f"{setting} or more"
        )

    def _obstacle(self, error: OSError) -> _Obstacle:
        reason = error.strerror or str(error)
        in_place = error.filename2  # of a file that cannot be replaced
        if in_place is not None:
            reason = f"{self.folder / in_place}: {reason}"
        if error.errno in _NO_ROOM:
            return _Obstacle(reason, f"the disk has room or {self._place} is on another one")
        if error.errno in (errno.EEXIST, errno.EISDIR):
            return _Obstacle(reason, "what is there is removed")
        return _Obstacle(reason, f"{self._place} is a folder that this user alone can write to")

    def _warn(self, obstacles: Sequence[_Obstacle]) -> None:
        reasons = "; ".join(obstacle.reason for obstacle in obstacles)
        remedies = ", and ".join(obstacle.remedy for obstacle in obstacles)
        warn_caller(
            f"packed weights cannot all be kept in {self.folder}: {reasons}."
            f" Each start packs again what is not kept, unless {remedies}",
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
    return PackedCache(int(n_bytes), from_environment=True) if n_bytes > 0 else None


def _name(key: str) -> str:
    return f"{key}.w"


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.10g}"


def _without(weights: Iterable[str], files: Iterable[OwnFile]) -> list[OwnFile]:
    """The files but for those of weights, which are given by their keys."""
    names = set(map(_name, weights))
    return [file for file in files if file.name not in names]


def _in_use_bytes(files: Iterable[OwnFile]) -> int:
    """Bytes of those files that this process has mapped."""
    return sum(file.n_bytes for file in files if file.name in _in_use)


def _file_bytes(weights: Mapping[str, KeptWeight]) -> int:
    """Bytes of the files of all weights."""
    return sum(weight.file_bytes for weight in weights.values())


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
    """Write all weights that can be: a smaller one may have room on the disk where a larger one had
    none. One that is not smaller is not tried, as each try would fill the disk. Tells the share
    that is kept. Raises the first OSError in the end."""
    errors: list[OSError] = []
    n_bytes, n_kept, too_large = _file_bytes(weights), 0, math.inf
    for key, weight in weights.items():
        tell("keeping packed weights", n_kept / n_bytes)
        if weight.file_bytes >= too_large:
            continue
        try:
            folder.write(_name(key), _header(key, weight.digest), weight.data.data, durable=True)
            n_kept += weight.file_bytes
        except OSError as error:
            errors.append(error)
            if error.errno in _NO_ROOM:
                too_large = weight.file_bytes
    if weights:
        tell("keeping packed weights", n_kept / n_bytes)
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

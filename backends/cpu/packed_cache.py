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
this process has mapped stays, and what cannot have room beside it is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

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


class PackedCache:
    """Packed weights by key, in a folder, of `max_bytes` in all."""

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
        """Write weights, after what is to be dropped has been. Warns where that fails; then those
        that were written stay."""
        n_bytes = sum(HEADER_BYTES + weight.data.nbytes for weight in weights.values())
        try:
            if n_bytes > self._max_bytes:
                raise OSError(0, f"{n_bytes} bytes are more than the {self._max_bytes} allowed")
            with OwnFolder.opened(self.folder, make=True) as folder:
                self._make_room(folder, n_bytes, set(map(_name, weights)))
                _write_all(folder, weights, n_bytes)
        except OSError as error:
            warnings.warn(
                f"packed weights cannot be kept in {self.folder}: {error.strerror or error}."
                f" Each start packs them again, unless {VARIABLE} (GB) and the disk leave room",
                PackedCacheWarning,
                stacklevel=2,
            )

    def _make_room(self, folder: OwnFolder, n_bytes: int, names: Collection[str]) -> None:
        """Drop files so that `n_bytes` more may be written, some of which replace `names`."""
        files = [file for file in folder.files() if file.name not in names]
        in_use = sum(file.n_bytes for file in files if file.name in _in_use)
        may_stay = self._max_bytes - n_bytes
        if in_use > may_stay:
            raise OSError(
                0,
                f"{n_bytes} bytes, beside {in_use} in use, are more than the {self._max_bytes}"
                " allowed",
            )
        for name in _to_drop(files, may_stay, time.time()):
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


def _name(key: str) -> str:
    return f"{key}.w"


def _header(key: str, digest: bytes) -> bytes:
    return (_MAGIC + key.encode() + digest).ljust(HEADER_BYTES, b"\0")


def _digest_in(header: bytes, key: str) -> bytes | None:
    """The digest that a header of `key` has; None if it is not one."""
    begin = len(_MAGIC) + len(key)
    digest = header[begin : begin + DIGEST_BYTES]
    return digest if header == _header(key, digest) else None


def _write_all(folder: OwnFolder, weights: Mapping[str, KeptWeight], n_bytes: int) -> None:
    done = 0
    for key, weight in weights.items():
        tell("keeping packed weights", done / n_bytes)
        folder.write(_name(key), _header(key, weight.digest), weight.data.data, durable=True)
        done += HEADER_BYTES + weight.data.nbytes
    tell("keeping packed weights", 1.0)


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

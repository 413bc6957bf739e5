"""States of sequences as bytes and files.

    magic "ggmlpy state\\0" | version u32 | header length u64 | header (JSON) | arrays | SHA-256

The header names every array with its type and length; the digest is over all that comes before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import tempfile
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.quoting import printable
from ggmlpy.errors import FileError, MissingFile, StateError
from ggmlpy.graph.types import type_of
from ggmlpy.memory.recurrent_state import States
from ggmlpy.memory.rotation import Rotation
from ggmlpy.memory.spans import Spans
from ggmlpy.memory.state import LayerRows, Rows, SequenceState

MAGIC = b"ggmlpy state\0"
# In 1 a model was known by a sample of its weights, in 2 a recurrent layer had one state, in 3
# K and V were not rotated.
VERSION = 4
_VERSION_OF_CHANGED = 5  # the same, with sequences that LoRA adapters or control vectors changed
_DIGEST_BYTES = 32
_PREFIX = struct.Struct("<13sIQ")
_UNFINISHED = ".unfinished"  # ends the name of a file that is being written
_SHOWN = 50  # characters of the name that it will have

Array = NDArray[Any]


def to_bytes(states: dict[int, SequenceState], about: dict[str, Any] | None = None) -> bytes:
    """States by sequence number as the bytes of a file. `about` is stored in the header."""
    return b"".join(_parts(states, about))


def _parts(
    states: dict[int, SequenceState], about: dict[str, Any] | None
) -> Iterator[bytes | memoryview]:
    """The bytes of a file, piece by piece: the arrays are not copied."""
    arrays: list[Array] = []
    header = {
        "about": about or {},
        "sequences": {str(seq): _describe(state, arrays) for seq, state in states.items()},
    }
    text = json.dumps(header).encode()
    digest = hashlib.sha256()
    changed = any(state.changes for state in states.values())
    version = _VERSION_OF_CHANGED if changed else VERSION
    parts: list[bytes | memoryview] = [_PREFIX.pack(MAGIC, version, len(text)), text]
    parts += [np.ascontiguousarray(array).data for array in arrays if array.size]
    for part in parts:
        digest.update(part)
        yield part
    yield digest.digest()


def _describe(state: SequenceState, arrays: list[Array]) -> dict[str, Any]:
    """A state's part of the header. Its arrays are appended in the order of the file."""
    layers = []
    for i, rows in state.layers.items():
        layers.append(
            {
                "layer": i,
                "n_tokens": len(rows.positions),
                "forgotten": [[r.start, r.stop] for r in rows.evicted.ranges],
                "k_type": rows.k_type.name,
                "k_row_bytes": rows.k.shape[1],
                "v_type": rows.v_type.name,
                "v_row_bytes": rows.v.shape[1],
                "k_rotation": rows.rotation.k,
                "v_rotation": rows.rotation.v,
            }
        )
        arrays += [rows.positions, rows.k, rows.v]
    recurrent = []
    for (layer, i), row in state.recurrent.items():
        recurrent.append({"layer": layer, "part": i, "n": len(row)})
        arrays.append(row)
    described = {"tokens": state.tokens, "layers": layers, "recurrent": recurrent}
    return described | ({"changes": state.changes} if state.changes else {})


def from_bytes(data: bytes, name: str = "state") -> tuple[dict[int, SequenceState], dict[str, Any]]:
    """States by sequence number, and the `about` of `to_bytes`.

    Raises StateError for bytes that are not a state, or a damaged one.
    """
    if len(data) < _PREFIX.size + _DIGEST_BYTES or not data.startswith(MAGIC):
        raise StateError(f"{name}: not a ggmlpy state")
    _, version, n_header = _PREFIX.unpack_from(data)
    if version not in (VERSION, _VERSION_OF_CHANGED):
        raise StateError(
            f"{name}: version {version} of the format, this reads {VERSION} and"
            f" {_VERSION_OF_CHANGED}: it must be made again"
        )
    body, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise StateError(f"{name}: damaged or cut short: its digest does not match")
    try:  # the digest finds damage, but a file from elsewhere may hold anything
        header = json.loads(bytes(body[_PREFIX.size : _PREFIX.size + n_header]))
        reader = _Reader(body, _PREFIX.size + n_header)
        states = {_number(seq): _parse(d, reader) for seq, d in header["sequences"].items()}
        reader.expect_end()
        return states, dict(header["about"])
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        reason = shorten(str(error), 200)
        raise StateError(f"{name}: its header contradicts its contents: {reason}") from error


class _Reader:
    """Reads arrays from bytes, one after another."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        left = len(self._data) - self._at
        if not 0 <= n_bytes <= left:
            raise ValueError(f"an array of {n_bytes} bytes where {left} are left")
        self._at += n_bytes
        return np.frombuffer(self._data, np.uint8, n_bytes, self._at - n_bytes)

    def rows(self, n: int, row_bytes: int) -> Rows:
        return self.take(n * row_bytes).reshape(n, row_bytes)

    def expect_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes are left over")


def _parse(described: dict[str, Any], reader: _Reader) -> SequenceState:
    layers: dict[int, LayerRows] = {}
    for d in described["layers"]:
        n_tokens = _whole(d["n_tokens"])
        positions = np.frombuffer(reader.take(4 * n_tokens).tobytes(), np.int32)
        k = reader.rows(n_tokens, _whole(d["k_row_bytes"]))
        v = reader.rows(n_tokens, _whole(d["v_row_bytes"]))
        k_type, v_type = type_of(str(d["k_type"])), type_of(str(d["v_type"]))
        evicted = Spans.parse((_whole(start), _whole(stop)) for start, stop in d["forgotten"])
        by = Rotation(_whole(d["k_rotation"]), _whole(d["v_rotation"]))
        layers[_new(d["layer"], layers)] = LayerRows(positions, k_type, k, v_type, v, evicted, by)
    recurrent: States = {}
    for d in described["recurrent"]:
        row = np.frombuffer(reader.take(4 * _whole(d["n"])).tobytes(), np.float32)
        key = _whole(d["layer"]), _whole(d["part"])
        if key in recurrent:
            raise ValueError(f"state {key[1]} of layer {key[0]} is there twice")
        recurrent[key] = row
    tokens = [_whole(token) for token in described["tokens"]]
    changes = tuple(_change(*change) for change in described.get("changes", ()))
    return SequenceState(tokens, layers, recurrent, changes)


def _change(digest: object, scale: object) -> tuple[str, float]:
    if not isinstance(digest, str) or type(scale) is not float:
        raise ValueError("a change of the model that is no digest with a scale")
    return digest, scale


def _whole(value: object) -> int:
    """A number of the header. `int` would accept 1.5, true and "1" as 1."""
    if type(value) is not int:
        raise ValueError(f"{value!r} where a whole number must be")
    return value


def _number(key: str) -> int:
    """The number of a sequence, which is a string in JSON and has one spelling."""
    seq = int(key)
    if seq < 0 or str(seq) != key:
        raise ValueError(f"{key!r} where the number of a sequence must be")
    return seq


def _new(layer: object, layers: Container[int]) -> int:
    number = _whole(layer)
    if number in layers:
        raise ValueError(f"layer {number} is there twice")
    return number


def write_file(
    path: str | Path, states: dict[int, SequenceState], about: dict[str, Any] | None = None
) -> None:
    """Write states to a file, completely or not at all. Raises FileError.

    A process that is killed meanwhile leaves a file of another name, for `remove_unfinished`.
    """
    path = Path(path)
    try:
        with _locked(path.parent):
            handle, name = tempfile.mkstemp(
                dir=path.parent, prefix=f".{path.name[:_SHOWN]}.", suffix=_UNFINISHED
            )
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines(_parts(states, about))
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
    except OSError as error:
        reason = error.strerror or error
        raise FileError(f"{printable(str(path))}: the state cannot be written: {reason}") from error


def remove_unfinished(folder: str | Path) -> int:
    """Remove what killed processes have left of files in a folder, and return how many these were.

    While another process writes states there nothing is removed. Raises FileError.
    """
    folder = Path(folder)
    n = 0
    try:
        with _locked(folder, alone=True) as is_locked:
            for file in folder.glob(f".*{_UNFINISHED}") if is_locked else ():
                file.unlink(missing_ok=True)
                n += 1
    except OSError as error:
        reason = error.strerror or error
        raise FileError(f"{printable(str(folder))}: cannot be cleaned: {reason}") from error
    return n


@contextmanager
def _locked(folder: Path, *, alone: bool = False) -> Iterator[bool]:
    """Let no other process remove unfinished files of a folder in the block; with `alone` no other
    one writes there either. Yields whether that is so: some file systems have no locks, and with
    `alone` nothing is waited for. The system unlocks it when a process ends."""
    if sys.platform == "win32":
        yield False
        return
    import fcntl

    with ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked


def read_file(path: str | Path) -> tuple[dict[int, SequenceState], dict[str, Any]]:
    """States from a file.

    Raises MissingFile, FileError if it cannot be read, StateError if it is not a valid state file.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder" if Path(path).is_dir() else "there is no such file"
        raise MissingFile(f"{path}: {what}")
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise FileError(f"{printable(str(path))}: the state cannot be read: {reason}") from error
    return from_bytes(data, printable(path.name))

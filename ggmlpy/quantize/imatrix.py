"""Importance matrices: how much errors in each column of a weight count.

An entry of a weight [n, rows, matrices] has, for each matrix, the sums of the squares of its inputs
and how many tokens were summed. Files are GGUF with two tensors per weight:

    NAME.in_sum2   f32 [n, matrices]     NAME.counts   f32 [1, matrices]
    imatrix.datasets   imatrix.chunk_count   imatrix.chunk_size   general.type "imatrix"

or of the older format, little-endian (i32 n_entries, then entries, then what they come from):

    i32 length | name | i32 n_calls | i32 n_values | f32 values: mean square * n_calls
    i32 n_chunks | i32 length | name of the text
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ggmlpy.common.arguments import checked
from ggmlpy.common.quoting import printable, quoted
from ggmlpy.errors import FileError, GGUFError, MissingFile, WeightError
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.overrides import Scalar
from ggmlpy.gguf.path import path_of
from ggmlpy.graph.types import F32
from ggmlpy.quantize.keys import Stored, stored_number, stored_text, stored_texts
from ggmlpy.quantize.rows import Floats
from ggmlpy.quantize.writer import Entry, NewFile, header, shape_of

_ALIGNMENT = 32
_MAX_TEXT = 127  # bytes of a text in the metadata of a quantised model
_SUMS, _COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True, slots=True, eq=False)
class Squares:
    """Squares of the inputs of one weight."""

    sums: Floats
    """[matrices, n]; [1, matrices * n] where all matrices have one count."""
    counts: NDArray[np.int64]
    """Tokens, [matrices] or [1]."""


@dataclass(frozen=True, slots=True)
class Imatrix:
    """An importance matrix."""

    entries: dict[str, Squares]
    """By the names of weights."""
    datasets: tuple[str, ...] = ()
    """Names of the texts."""
    n_chunks: int = 0
    chunk_size: int = 512
    """Tokens of a chunk."""
    name: str = ""
    """Of the file."""
    is_legacy: bool = field(default=False)
    """Whether sums are mean squares times the number of chunks, as in the older format."""

    @classmethod
    @checked
    def load(cls, path: str | PathLike[str]) -> Imatrix:
        """Read a file of either format. Raises MissingFile, FileError, and GGUFError or WeightError
        for a damaged one."""
        where = path_of(path)
        if _magic(where) == b"GGUF":
            return _read_gguf(where)
        return _read_legacy(where)

    def importance(self, name: str) -> Floats | None:
        """The mean squares of a weight's inputs, [matrices * n]; 1 in a matrix that had none. None
        without an entry."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        counts = entry.counts.astype(np.float32)[:, None]
        if self.is_legacy and counts[0, 0] == 0:
            return entry.sums.reshape(-1)
        with np.errstate(all="ignore"):
            means = np.where(counts > 0, entry.sums / counts, np.float32(1))
        return np.ascontiguousarray(means, np.float32).reshape(-1)

    def only(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Imatrix:
        """Entries whose names have one of `include` in them (if there are any) and none of
        `exclude`."""

        def is_kept(name: str) -> bool:
            if any(part in name for part in exclude):
                return False
            return not include or any(part in name for part in include)

        return replace(self, entries={n: e for n, e in self.entries.items() if is_kept(n)})

    def described(self) -> dict[str, Scalar]:
        """The metadata of a model that was quantised with it."""
        if not self.entries:
            return {}
        keys: dict[str, Scalar] = {"quantize.imatrix.file": _cut(self.name)}
        if self.datasets:
            keys["quantize.imatrix.dataset"] = _cut(self.datasets[0])
        keys["quantize.imatrix.entries_count"] = len(self.entries)
        if self.n_chunks > 0:
            keys["quantize.imatrix.chunks_count"] = self.n_chunks
        return keys

    @checked
    def save(self, path: str | PathLike[str]) -> None:
        """Write it as GGUF. Raises FileError."""
        keys: Stored = {
            "general.type": stored_text("imatrix"),
            "imatrix.datasets": stored_texts(list(self.datasets)),
            "imatrix.chunk_count": stored_number("u32", self.n_chunks),
            "imatrix.chunk_size": stored_number("u32", self.chunk_size),
        }
        tensors: list[tuple[Entry, Floats]] = []
        for name, entry in sorted(self._raw().items()):
            n_matrices = len(entry.counts)
            for suffix, values in ((_SUMS, entry.sums), (_COUNTS, entry.counts)):
                floats = np.ascontiguousarray(values, np.float32)
                ne = shape_of((floats.size // n_matrices, n_matrices))
                tensors.append((Entry((name + suffix).encode(), F32, ne), floats))
        with NewFile(Path(path), _ALIGNMENT) as new:
            new.write(header(keys, [entry for entry, _ in tensors], _ALIGNMENT))
            for _, floats in tensors:
                new.write(floats.reshape(-1).view(np.uint8))
                new.pad()
            new.finish()

    @checked
    def save_legacy(self, path: str | PathLike[str]) -> None:
        """Write it in the older format, without weights that had no input. Raises FileError."""
        raw = {name: e for name, e in sorted(self._raw().items()) if e.counts.any()}
        with NewFile(Path(path), 1) as new:
            new.write(struct.pack("<i", len(raw)))
            for name, entry in raw.items():
                n_calls = -(-int(entry.counts.max()) // self.chunk_size)
                counts = entry.counts.astype(np.float32)[:, None]
                with np.errstate(all="ignore"):
                    means = np.where(counts > 0, entry.sums / counts, np.float32(1))
                values = (means * np.float32(n_calls)).astype("<f4").reshape(-1)
                text = name.encode()
                new.write(struct.pack("<i", len(text)) + text)
                new.write(struct.pack("<ii", n_calls, len(values)) + values.tobytes())
            text = (self.datasets[-1] if self.datasets else "").encode()
            new.write(struct.pack("<ii", self.n_chunks, len(text)) + text)
            new.finish()

    def _raw(self) -> dict[str, Squares]:
        """Entries with sums of squares and numbers of tokens."""
        if not self.is_legacy:
            return self.entries
        size = self.chunk_size
        return {
            n: Squares(e.sums * np.float32(size), e.counts * size) for n, e in self.entries.items()
        }

    @classmethod
    def combined(cls, matrices: Iterable[Imatrix], chunk_size: int = 512) -> Imatrix:
        """The sum of several. Raises WeightError for entries of different sizes."""
        total: dict[str, Squares] = {}
        datasets: list[str] = []
        for one in matrices:
            one = replace(one, chunk_size=chunk_size) if one.is_legacy else one
            for name, entry in one._raw().items():
                before = total.get(name)
                total[name] = entry if before is None else _added(name, before, entry)
            datasets += one.datasets
        most = max((int(e.counts.max()) for e in total.values() if len(e.counts)), default=0)
        return cls(total, tuple(datasets), most // chunk_size, chunk_size)


def _added(name: str, one: Squares, other: Squares) -> Squares:
    if one.sums.size != other.sums.size:
        raise WeightError(
            f"importance matrices of {one.sums.size} and {other.sums.size} values for tensor "
            f"{quoted(name)} cannot be added"
        )
    n = max(len(one.counts), len(other.counts))
    if any(len(entry.counts) not in (1, n) for entry in (one, other)):
        raise WeightError(
            f"importance matrices of {len(one.counts)} and {len(other.counts)} matrices for "
            f"tensor {quoted(name)} cannot be added"
        )
    sums = one.sums.reshape(n, -1) + other.sums.reshape(n, -1)
    counts = np.broadcast_to(one.counts, n) + np.broadcast_to(other.counts, n)
    return Squares(sums, counts)


def _cut(text: str) -> str:
    return text.encode(errors="surrogateescape")[:_MAX_TEXT].decode(errors="surrogateescape")


def _magic(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4)
    except IsADirectoryError:
        raise MissingFile(
            f"{printable(str(path))} is a folder; it must be an importance matrix"
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(
            f"{printable(path.name)}: there is no such file in {printable(str(path.parent))}"
        ) from None
    except OSError as error:
        raise FileError(
            f"{printable(str(path))}: the file cannot be read: {error.strerror}"
        ) from None


def _read_gguf(path: Path) -> Imatrix:
    with GGUFFile.open(path) as file:
        name, metadata = file.name, file.metadata
        for key in ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"):
            if key not in metadata:
                raise GGUFError(f'{name}: no importance matrix: key "{key}" is missing')
        entries = {}
        for tensor in file.tensors.values():
            if tensor.type is not F32:
                raise GGUFError(
                    f"{name}: tensor {quoted(tensor.name)} is {tensor.type.name}, must be f32"
                )
            if tensor.name.endswith(_SUMS):
                weight = tensor.name.removesuffix(_SUMS)
                counts = file.tensors.get(weight + _COUNTS)
                if counts is None or counts.type is not F32:
                    raise GGUFError(f"{name}: no counts for tensor {quoted(weight)}")
                entries[weight] = _entry(
                    name,
                    weight,
                    tensor.copy().view(np.float32),
                    counts.copy().view(np.float32),
                )
        if not entries:
            raise GGUFError(f"{name}: no importance matrix: it has no tensor *{_SUMS}")
        return Imatrix(
            entries,
            tuple(metadata.array("imatrix.datasets", of="str").tolist()),
            metadata.int("imatrix.chunk_count"),
            max(1, metadata.int("imatrix.chunk_size")),
            name=str(path),
        )


def _entry(file: str, name: str, sums: Floats, counts: Floats) -> Squares:
    _check_finite(file, name, sums)
    _check_finite(file, name, counts)
    if sums.size % counts.size:
        raise GGUFError(
            f"{file}: {sums.size} values of tensor {quoted(name)} for {counts.size} matrices"
        )
    return Squares(sums.reshape(counts.size, -1), np.rint(counts).astype(np.int64))


def _check_finite(file: str, name: str, values: Floats) -> None:
    if not np.isfinite(values).all():
        raise GGUFError(f"{file}: values for tensor {quoted(name)} are not finite")


def _read_legacy(path: Path) -> Imatrix:
    name = printable(path.name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{name}: the file cannot be read: {error.strerror}") from None
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        if n < 0 or at + n > len(data):
            raise GGUFError(f"{name}: no importance matrix, or cut off: {n} bytes at {at}")
        at += n
        return data[at - n : at]

    def number() -> int:
        return int.from_bytes(take(4), "little", signed=True)

    n_entries = number()
    if n_entries < 1:
        raise GGUFError(f"{name}: no importance matrix: {n_entries} entries")
    entries = {}
    for _ in range(n_entries):
        weight = take(number()).decode(errors="surrogateescape")
        n_calls, n_values = number(), number()
        if n_values < 1:
            raise GGUFError(f"{name}: {n_values} values for tensor {quoted(weight)}")
        sums = np.frombuffer(take(4 * n_values), "<f4").astype(np.float32)
        _check_finite(name, weight, sums)
        entries[weight] = Squares(sums[None], np.array([n_calls]))
    n_chunks = 0
    datasets: tuple[str, ...] = ()
    if at < len(data):
        n_chunks = number()
        text = take(number()).decode(errors="surrogateescape") if at < len(data) else ""
        datasets = (text,) if text else ()
    return Imatrix(entries, datasets, n_chunks, name=str(path), is_legacy=True)

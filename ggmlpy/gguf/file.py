"""GGUFFile: opening a model of one file or several.

    magic "GGUF" | version u32 | n_tensors u64 | n_kv u64      24 bytes
    n_kv x (key string | type u32 | value)                     metadata.py, arrays.py
    n_tensors x (name string | n_dims u32 | dims u64 … | type u32 | offset u64)   tensors.py
    padding to the alignment, then the tensors' data

Versions 2 and 3 differ in big-endian files only, which are recognised by their version number: the
magic is the same in both byte orders. They can be read, except for quantised tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from ggmlpy.common.arguments import checked
from ggmlpy.common.open_file import FileStamp
from ggmlpy.common.quoting import printable, quoted
from ggmlpy.errors import GGUFError, WeightError
from ggmlpy.gguf.cursor import Cursor
from ggmlpy.gguf.metadata import Metadata, read_metadata
from ggmlpy.gguf.overrides import Scalar, overridden
from ggmlpy.gguf.part import ByteOrder, Part
from ggmlpy.gguf.path import path_of
from ggmlpy.gguf.tensors import MIN_INFO_BYTES, TensorInfo, read_tensors

_MAGIC = b"GGUF"
_HEADER_BYTES = 24
_MIN_KV_BYTES = 13  # an empty key (8), a type (4), a value (1)
_DEFAULT_ALIGNMENT = 32
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GGUFFile:
    """An open model file, little- or big-endian: metadata and tensors in a memory map.

    Use `GGUFFile.open`, preferably in a `with` statement. Arrays stay valid after `close`, but no
    others can be read.
    """

    __slots__ = (
        "_ends_of_metadata",
        "_parts",
        "alignment",
        "byte_order",
        "metadata",
        "path",
        "tensors",
        "version",
    )

    def __init__(self, contents: list[_Contents]) -> None:
        first = contents[0]
        self._parts = tuple(content.part for content in contents)
        self._ends_of_metadata = tuple(content.end_of_metadata for content in contents)
        self.path: Path = first.part.path
        self.version: int = first.version
        self.byte_order: ByteOrder = first.part.byte_order
        self.alignment: int = first.alignment
        self.metadata: Metadata = first.metadata
        self.tensors: dict[str, TensorInfo] = _merged(contents)

    @classmethod
    @checked
    def open(
        cls, path: str | bytes | PathLike[str], kv_overrides: Mapping[str, Scalar] | None = None
    ) -> GGUFFile:
        """Open the model at `path`; for a split model, that is its first file. ~ is expanded.

        `kv_overrides` are values that take the place of those of the metadata, see `overridden`.
        Raises ArgumentError for one of another kind, MissingFile if a file does not exist or is a
        folder, FileError if one cannot be read, and GGUFError if one is no GGUF file or damaged.
        """
        first = _read_contents(path_of(path))
        file = cls([first, *_read_siblings(first)])
        file.metadata = overridden(file.metadata, kv_overrides or {})
        return file

    @property
    def name(self) -> str:
        """The (first) file's name on one line, for messages."""
        return self._parts[0].name

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the model."""
        return tuple(part.path for part in self._parts)

    def stamps(self) -> list[FileStamp]:
        """The identity of each file, which changes with its contents.

        Raises FileError if one was written to since it was opened, or is closed.
        """
        return [part.stamp() for part in self._parts]

    def release_metadata(self) -> None:
        """Release the pages before the tensors' data from memory; reading loads them again."""
        for part, end in zip(self._parts, self._ends_of_metadata, strict=True):
            part.release(0, end)

    def close(self) -> None:
        """Close the files. Arrays stay valid and keep their file mapped."""
        for part in self._parts:
            part.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        n_keys, n_tensors = len(self.metadata), len(self.tensors)
        return f"GGUFFile({str(self.path)!r}, {n_keys} keys, {n_tensors} tensors)"


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of one file."""

    part: Part
    version: int
    alignment: int
    metadata: Metadata
    tensors: list[TensorInfo]
    end_of_metadata: int  # and of the tensors' descriptions


def _read_contents(path: Path) -> _Contents:
    cursor = Cursor(Part.open(path))
    version, n_tensors, n_kv = _read_header(cursor)
    metadata = read_metadata(cursor, n_kv)
    alignment = _alignment(metadata, cursor.part)
    cursor.at = "header"
    cursor.check_count(n_tensors, MIN_INFO_BYTES, "tensors")
    tensors = read_tensors(cursor, n_tensors, alignment)
    cursor.part.release(0, cursor.pos)  # a large vocabulary, which may not be needed
    return _Contents(cursor.part, version, alignment, metadata, tensors, cursor.pos)


def _read_header(cursor: Cursor) -> tuple[int, int, int]:
    """(version, n_tensors, n_kv); sets the part's byte order."""
    name = cursor.part.name
    magic = bytes(cursor.view[:4])
    if magic != _MAGIC:
        hint = "; it is a Git LFS pointer, not the file itself" if magic == b"vers" else ""
        raise GGUFError(f"{name}: not a GGUF file: begins with {magic!r}, not {_MAGIC!r}{hint}")
    if len(cursor.view) < _HEADER_BYTES:
        raise GGUFError(f"{name}: {len(cursor.view)} bytes long, a GGUF file has at least 24")
    little = int.from_bytes(cursor.view[4:8], "little")
    big = int.from_bytes(cursor.view[4:8], "big")
    cursor.part.byte_order = "big" if big < little else "little"
    version = min(little, big)
    if version not in (2, 3):
        advice = "; the model must be converted again" if version == 1 else ""
        raise GGUFError(f"{name}: GGUF version {version}, must be 2 or 3{advice}")
    cursor.pos = 8
    n_tensors, n_kv = cursor.u64(), cursor.u64()
    cursor.check_count(n_kv, _MIN_KV_BYTES, "keys")
    cursor.check_count(n_tensors, MIN_INFO_BYTES, "tensors")
    return version, n_tensors, n_kv


def _int(metadata: Metadata, key: str, default: int | None = None) -> int:
    """An integer on which the structure of the file depends."""
    try:
        return metadata.int(key) if default is None else metadata.int(key, default)
    except WeightError as error:
        raise GGUFError(str(error)) from error


def _alignment(metadata: Metadata, part: Part) -> int:
    alignment = _int(metadata, "general.alignment", _DEFAULT_ALIGNMENT)
    if alignment < 8 or alignment & (alignment - 1):
        raise GGUFError(
            f'{part.name}: key "general.alignment" is {alignment}, '
            f"must be a power of two and at least 8"
        )
    return alignment


def _read_siblings(first: _Contents) -> list[_Contents]:
    """The other files of a split model; none if `first` is the only one."""
    count = _int(first.metadata, "split.count", 0)
    if count <= 1:
        return []
    name = first.part.name
    number = _int(first.metadata, "split.no")
    match = _SPLIT_NAME.fullmatch(first.part.path.name)
    if match is None or (int(match["number"]), int(match["count"])) != (number + 1, count):
        raise GGUFError(
            f'{name}: the keys "split.no" and "split.count" make it part {number + 1} of {count}, '
            f"so its name must end in -{number + 1:05}-of-{count:05}.gguf"
        )
    sibling_names = [f"{match['stem']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    if number != 0:
        raise GGUFError(
            f"{name}: part {number + 1} of a split model; open the first, "
            f"{printable(sibling_names[0])}"
        )
    siblings = []
    for i, sibling_name in enumerate(sibling_names[1:], start=1):
        sibling = _read_contents(first.part.path.with_name(sibling_name))
        _check_sibling(sibling, first, i, count)
        siblings.append(sibling)
    _check_tensor_count(first, siblings)
    return siblings


def _check_sibling(sibling: _Contents, first: _Contents, number: int, count: int) -> None:
    for key, must_be in (("split.no", number), ("split.count", count)):
        found = _int(sibling.metadata, key)
        if found != must_be:
            raise GGUFError(
                f'{sibling.part.name}: key "{key}" is {found}, must be {must_be} according to '
                f"{first.part.name}"
            )
    if sibling.part.byte_order != first.part.byte_order:
        raise GGUFError(
            f"{sibling.part.name}: {sibling.part.byte_order}-endian, "
            f"but {first.part.name} is {first.part.byte_order}-endian"
        )


def _check_tensor_count(first: _Contents, siblings: list[_Contents]) -> None:
    expected = _int(first.metadata, "split.tensors.count")
    found = sum(len(contents.tensors) for contents in (first, *siblings))
    if found != expected:
        raise GGUFError(
            f'{first.part.name}: key "split.tensors.count" is {expected}, '
            f"but its {len(siblings) + 1} files hold {found} tensors"
        )


def _merged(contents: list[_Contents]) -> dict[str, TensorInfo]:
    """All tensors by name, in the order of the files."""
    tensors: dict[str, TensorInfo] = {}
    for content in contents:
        for tensor in content.tensors:
            if tensor.name in tensors:
                where = printable(tensors[tensor.name].path.name)
                twice = f"tensor {quoted(tensor.name)} is there twice, first in {where}"
                raise GGUFError(f"{content.part.name}: {twice}")
            tensors[tensor.name] = tensor
    return tensors

"""The digest of weights: what it is made of, and that every byte counts."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from ggmlpy.common.progress import listening
from ggmlpy.errors import FileError
from ggmlpy.gguf import GGUFFile, TensorInfo
from ggmlpy.gguf.weights_digest import digest_of
from tests.gguf_builder import Tensor, build_gguf
from tests.unit.test_gguf_file import some_tensors, write_with_gguf

SIZES = {"b": 1000, "a": 100, "c": 99, "d": 1}  # bytes; chunks of 100 in these tests


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggmlpy.gguf.weights_digest.CHUNK_BYTES", 100)
    monkeypatch.setattr("ggmlpy.gguf.weights_digest._READ_BYTES", 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    tensors: dict[str, Tensor] = {x: ("i8", (n,), rng.bytes(n)) for x, n in SIZES.items()}
    return build_gguf(tmp_path / "m.gguf", {}, tensors)


def digest(path: Path) -> str:
    with GGUFFile.open(path) as file:
        return digest_of(file.tensors.values())


def by_hand(path: Path) -> str:
    """As the module's docstring has it, of what the gguf package reads."""
    whole = hashlib.sha256()
    for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda t: str(t.name)):
        ne = [*tensor.shape.tolist(), 1, 1, 1][:4]
        whole.update(json.dumps([tensor.name, tensor.tensor_type.name.lower(), ne]).encode())
        data = tensor.data.tobytes()
        for begin in range(0, len(data), 100):
            whole.update(hashlib.sha256(data[begin : begin + 100]).digest())
    return whole.hexdigest()


def test_it_is_what_the_docstring_says(path: Path) -> None:
    assert digest(path) == by_hand(path)


def test_it_is_read_past_the_map(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = digest(path)
    if hasattr(os, "preadv"):
        with monkeypatch.context() as patch:
            patch.setattr(TensorInfo, "data", property(lambda info: pytest.fail(info.name)))
            assert digest(path) == want
    monkeypatch.setattr("ggmlpy.gguf.part.CAN_READ", False)
    assert digest(path) == want


@pytest.mark.parametrize("name", SIZES)
def test_every_byte_counts(path: Path, name: str) -> None:
    """The first and last of each chunk and read, and some between."""
    before, seen = path.read_bytes(), {digest(path)}
    begin = GGUFFile.open(path).tensors[name].offset
    places = {*range(0, SIZES[name], 33), *range(99, SIZES[name], 100), SIZES[name] - 1}
    for at in places:
        changed = bytearray(before)
        changed[begin + at] ^= 1
        path.write_bytes(changed)
        seen.add(digest(path))
    assert len(seen) == len(places) + 1


def test_names_types_and_shapes_count(tmp_path: Path) -> None:
    tensors: list[dict[str, Tensor]] = [
        {"a": ("i8", (8,), bytes(8))},
        {"b": ("i8", (8,), bytes(8))},
        {"a": ("i8", (4, 2), bytes(8))},
        {"a": ("f32", (2,), bytes(8))},
        {"a": ("i8", (4,), bytes(4)), "b": ("i8", (4,), bytes(4))},
    ]
    found = {digest(build_gguf(tmp_path / f"{i}.gguf", {}, each)) for i, each in enumerate(tensors)}
    assert len(found) == len(tensors)


def test_split_and_big_endian_models_have_the_digest_of_the_whole(tmp_path: Path) -> None:
    write_with_gguf(tmp_path / "m.gguf", some_tensors())
    write_with_gguf(tmp_path / "big.gguf", some_tensors(), gguf.GGUFEndian.BIG)
    write_with_gguf(tmp_path / "s.gguf", some_tensors(), split_max_tensors=3)
    want = digest(tmp_path / "m.gguf")
    assert digest(tmp_path / "big.gguf") == want
    assert digest(tmp_path / "s-00001-of-00003.gguf") == want


def test_a_file_that_was_cut_short(path: Path) -> None:
    file = GGUFFile.open(path)
    os.truncate(path, file.tensors["c"].offset)
    with pytest.raises(FileError, match=r"m\.gguf: the file was cut short to \d+ bytes"):
        digest_of(file.tensors.values())


def test_progress_is_told(path: Path) -> None:
    told: list[tuple[str, float]] = []
    with listening(lambda what, share: told.append((what, share))):
        digest(path)
    assert told[-1] == ("hashing weights", 1.0)

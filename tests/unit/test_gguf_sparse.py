"""Files that are long but hold nothing: zeros without end take no space on a disk.

What is read of them must not grow with their length. tests/unit/test_gguf_damaged.py has the
counts that a short file cannot hold.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from ggmlpy.errors import GGUFError
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.cursor import MAX_HEADER_BYTES, MAX_STEPS
from tests.gguf_builder import Raw, gguf_bytes

N_BYTES = 64 << 30

pytestmark = pytest.mark.skipif(os.name != "posix", reason="long files take space on this system")


def refusal(folder: Path, raw: bytes, n_bytes: int = N_BYTES) -> str:
    """The message with which a file is refused that is `raw` and zeros."""
    path = folder / "m.gguf"
    path.write_bytes(raw)
    try:
        os.truncate(path, n_bytes)
    except OSError:
        pytest.skip("this file system has no files of 64 GB")
    with pytest.raises(GGUFError) as refused:
        GGUFFile.open(path)
    return str(refused.value).removeprefix("m.gguf: ")


def array(type_id: int, n: int) -> Raw:
    return Raw(struct.pack("<IIQ", 9, type_id, n))


@pytest.mark.parametrize("count", [2**31, 2**33])
def test_more_tensors_or_keys_than_a_header_holds(tmp_path: Path, count: int) -> None:
    left = f"but only {MAX_HEADER_BYTES - 24} bytes are left of a header"
    message = refusal(tmp_path, gguf_bytes(n_tensors=count))
    assert message == f"header counts {count} tensors of at least 24 bytes each, {left}"
    message = refusal(tmp_path, gguf_bytes(n_kv=count))
    assert message == f"header counts {count} keys of at least 13 bytes each, {left}"


def test_names_that_are_all_empty(tmp_path: Path) -> None:
    n = MAX_HEADER_BYTES // 32
    message = refusal(tmp_path, gguf_bytes(n_kv=n))
    assert message == 'key "" is empty: a key must have a name'
    assert refusal(tmp_path, gguf_bytes(n_tensors=n)) == 'tensor "" is there twice'


@pytest.mark.parametrize(
    ("type_id", "what", "size", "most"),
    [(8, "strings", 8, MAX_STEPS), (9, "arrays", 12, MAX_STEPS // 64)],
)
def test_elements_that_are_all_empty(
    tmp_path: Path, type_id: int, what: str, size: int, most: int
) -> None:
    message = refusal(tmp_path, gguf_bytes({"k": array(type_id, 2**31)}))
    assert message.startswith(f'key "k" counts {2**31} {what} of at least {size} bytes each, but')
    message = refusal(tmp_path, gguf_bytes({"k": array(type_id, most + 1)}))
    wanted = f"the most in a file's arrays, all together, are {most}"
    assert message == f'key "k" counts {most + 1} {what}: {wanted}'
    few = struct.pack("<IIQ", 9, 8, 100) + bytes(800)
    message = refusal(tmp_path, gguf_bytes({"few": Raw(few), "k": array(type_id, most)}))
    assert message == f'key "k" counts {most} {what}: {wanted}'


@pytest.mark.parametrize("n_bytes", [MAX_HEADER_BYTES, 40 << 30])
def test_texts_longer_than_a_header(tmp_path: Path, n_bytes: int) -> None:
    too_long = (
        f"needs {n_bytes} bytes at position {{}}, but a header must end after 268435456 bytes"
    )
    value = gguf_bytes({"k": Raw(struct.pack("<IQ", 8, n_bytes))})
    assert refusal(tmp_path, value) == f'key "k" {too_long.format(len(value))}'
    element = gguf_bytes({"k": Raw(struct.pack("<IIQQ", 9, 8, 1, n_bytes))})
    assert refusal(tmp_path, element) == f'string 0 of key "k" {too_long.format(len(element))}'
    key = gguf_bytes(n_kv=1) + struct.pack("<Q", n_bytes)
    assert refusal(tmp_path, key) == f"key 1 of 1 {too_long.format(len(key))}"


def test_a_large_tensor_is_no_part_of_the_header(tmp_path: Path) -> None:
    raw = gguf_bytes({}, {"x": ("i8", (N_BYTES - 96,), b"")})
    assert "but the file ends after" in refusal(tmp_path, raw, N_BYTES - 96)
    os.truncate(tmp_path / "m.gguf", N_BYTES)
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        assert file.tensors["x"].n_bytes == N_BYTES - 96

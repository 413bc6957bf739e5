"""Damaged files: one clear line, the right exception, no hang, no allocation by a number they hold.

The fuzz tests judge by one rule: a file opens, and all of it can be read, or GgmlpyError is raised.
"""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggmlpy.errors import FileError, GgmlpyError, GGUFError, MissingFile
from ggmlpy.gguf import GGUFFile, LazyArray
from tests.gguf_builder import Raw, Tensor, Typed, build_gguf, gguf_bytes

F32_4: Tensor = ("f32", (4,), bytes(16))
METADATA: dict[str, Any] = {
    "general.alignment": 32,
    "llama.block_count": 2,
    "a.float": 0.5,
    "a.name": "model",
    "tokens": [f"t{i}" for i in range(70)],
    "few": ["x", "", "yz"],
    "types": list(range(10)),
    "flags": [True, False],
    "nested": [[1, 2], [3]],
    "nested.text": [["a"], ["b", "c"]],
}
TENSORS: dict[str, Tensor] = {
    "x": ("f32", (2, 3), bytes(24)),
    "y": ("q4_0", (32, 2), bytes(36)),
    "z": ("i8", (1, 2, 3, 4), bytes(24)),
}
SOUND = {order: gguf_bytes(METADATA, TENSORS, byte_order=order) for order in ("little", "big")}


def refusal(path: Path, kind: type[GgmlpyError] = GGUFError) -> str:
    """The message with which `path` is refused, without the file's name; it must be one line."""
    with pytest.raises(kind) as error:
        GGUFFile.open(path)
    assert error.type is kind
    message = str(error.value)
    assert message.startswith(f"{path.name}: ")
    assert "\n" not in message
    assert len(message) < 500 + len(path.name)
    return message.removeprefix(f"{path.name}: ")


def refused_bytes(folder: Path, raw: bytes) -> str:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    return refusal(path)


def refused(folder: Path, *args: Any, **kwargs: Any) -> str:
    return refusal(build_gguf(folder / "model.gguf", *args, **kwargs))


# ---- not a file


def test_a_missing_file(tmp_path: Path) -> None:
    message = f"there is no such file in {tmp_path}"
    assert refusal(tmp_path / "none.gguf", MissingFile) == message
    (tmp_path / "file").write_bytes(b"x")
    refusal(tmp_path / "file" / "model.gguf", MissingFile)
    with pytest.raises(FileNotFoundError):
        GGUFFile.open(tmp_path / "none.gguf")


def test_a_folder(tmp_path: Path) -> None:
    message = f"{tmp_path} is a folder; it must be a GGUF file"
    with pytest.raises(MissingFile) as error:
        GGUFFile.open(tmp_path)
    assert str(error.value) == message
    for path in (".", "/"):
        with pytest.raises(MissingFile, match=r"is a folder; it must be a GGUF file$"):
            GGUFFile.open(path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert refusal(path, FileError).startswith("the file is empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError) as error:
        GGUFFile.open(tmp_path / "pipe")
    assert str(error.value) == f"{tmp_path}/pipe is a device or a pipe; it must be a GGUF file"


def test_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = build_gguf(tmp_path / "model.gguf")
    monkeypatch.setattr(os, "open", denied)
    assert refusal(path, FileError) == "the file cannot be read: Permission denied"


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"^a\\x00b: the file cannot be read: "):
        GGUFFile.open(tmp_path / "a\0b")
    refusal(tmp_path / ("x" * 5000), FileError)


# ---- header


@pytest.mark.parametrize("raw", [b"G", b"ggml", b"PK\3\4" + bytes(99), b"FUGG" + bytes(99)])
def test_wrong_magic(tmp_path: Path, raw: bytes) -> None:
    message = refused_bytes(tmp_path, raw)
    assert message == f"not a GGUF file: begins with {raw[:4]!r}, not b'GGUF'"


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    assert refused_bytes(tmp_path, pointer).endswith("is a Git LFS pointer, not the file itself")


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("version", [0, 1, 4, 1000])
def test_wrong_version(tmp_path: Path, version: int, byte_order: str) -> None:
    message = refused(tmp_path, version=version, byte_order=byte_order)
    assert message.startswith(f"GGUF version {version}, must be 2 or 3")
    assert message.endswith("; the model must be converted again") == (version == 1)


@pytest.mark.parametrize("n_bytes", range(4, 24))
def test_a_file_shorter_than_its_header(tmp_path: Path, n_bytes: int) -> None:
    message = refused_bytes(tmp_path, SOUND["little"][:n_bytes])
    assert message == f"{n_bytes} bytes long, a GGUF file has at least 24"


@pytest.mark.parametrize("count", [3, 1000, 2**32, 2**63, 2**64 - 1])
def test_counts_are_checked_against_the_file(tmp_path: Path, count: int) -> None:
    assert refused(tmp_path, {"k": 1}, n_kv=count).startswith(f"header counts {count} keys of")
    message = refused(tmp_path, {}, {"x": F32_4}, n_tensors=count)
    assert message.startswith(f"header counts {count} tensors of at least 24 bytes each")


# ---- keys and values


def test_keys(tmp_path: Path) -> None:
    assert refused(tmp_path, [("k", 1), ("k", 2)]) == 'key "k" is there twice'
    message = refused(tmp_path, [("k", 1), (b"\xff\xfe", 2)])
    assert message == r'key 2 of 2 has a name that is not UTF-8 at position 41: "\\xff\\xfe"'
    message = refused(tmp_path, [("k" * 65_536, 1)])
    assert message == "key 1 of 1 has a name of 65536 bytes at position 24, the most is 65535"


def test_names_are_quoted_on_one_line_and_cut(tmp_path: Path) -> None:
    unknown = Raw(struct.pack("<II", 77, 0))
    assert refused(tmp_path, {'a\n"b"\x1b\u2028': unknown}).startswith(
        r'key "a\n\"b\"\u001b\u2028" has the unknown value type 77'
    )
    assert refused(tmp_path, {"größe": unknown}).startswith('key "größe" has')
    assert refused(tmp_path, {"k" * 60_000: unknown}).startswith(f'key "{"k" * 100}…" has')


@pytest.mark.parametrize("type_id", [13, 99, 2**32 - 1])
def test_unknown_value_types(tmp_path: Path, type_id: int) -> None:
    known = "known are 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool, "
    wanted = f'key "k" has the unknown value type {type_id}; {known}'
    padding = bytes(40)
    assert refused(tmp_path, {"k": Raw(struct.pack("<I", type_id) + padding)}).startswith(wanted)
    array = Raw(struct.pack("<IIQ", 9, type_id, 1) + padding)
    assert refused(tmp_path, {"k": array}).startswith(wanted)


LENGTHS = [2**20, 2**31, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_are_checked_against_the_file(tmp_path: Path, length: int) -> None:
    string = struct.pack("<IQ", 8, length)
    message = refused(tmp_path, {"k": Raw(string)})
    assert (
        message == f'key "k" needs {length} bytes at position 45, but the file ends after 45 bytes'
    )
    for type_id, what in (
        (0, "elements of type u8 of at least 1"),
        (12, "elements of type f64 of at least 8"),
        (8, "strings of at least 8"),
        (9, "arrays of at least 12"),
    ):
        array = struct.pack("<IIQ", 9, type_id, length) + bytes(100)
        assert refused(tmp_path, {"k": Raw(array)}) == (
            f'key "k" counts {length} {what} bytes each, but only 100 bytes follow in the file'
        )
    nested = struct.pack("<IIQIQ", 9, 9, 1, 5, length)
    assert refused(tmp_path, {"k": Raw(nested)}).startswith(
        f'element 0 of key "k" counts {length} elements of type i32'
    )
    key = gguf_bytes({}, n_kv=1) + struct.pack("<Q", length) + bytes(20)
    assert refused_bytes(tmp_path, key).startswith(f"key 1 of 1 needs {length} bytes")


@pytest.mark.parametrize("alignment", [0, 1, 4, 7, 12, 24, 33, 40, 2**32 - 1])
def test_alignment(tmp_path: Path, alignment: int) -> None:
    message = refused(tmp_path, {"general.alignment": alignment})
    wanted = f'key "general.alignment" is {alignment}, must be a power of two and at least 8'
    assert message == wanted


def test_alignment_of_another_type(tmp_path: Path) -> None:
    wanted = 'key "general.alignment" has type {}, must be an integer'
    for value, type in ((32.0, "f32"), ("32", "str"), (True, "bool"), ([32], "arr[i32]")):
        assert refused(tmp_path, {"general.alignment": value}) == wanted.format(type)


def test_a_huge_alignment(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    build_gguf(path, {"general.alignment": 2**31}, {"x": F32_4}, alignment=32)
    assert refusal(path).startswith('tensor "x" (f32 [4]) needs the bytes 2147483648 to 2147483664')
    build_gguf(path, {"general.alignment": Typed("u64", 2**63)})
    assert GGUFFile.open(path).alignment == 2**63  # odd, but nothing is to be aligned


# ---- tensors


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("x", ("f32", (1, 1, 1, 1, 4), bytes(16)), 'tensor "x" has 5 dimensions, the most is 4'),
        ("x", ("f32", (0,), b""), 'tensor "x" has shape [0]: dimensions must be above 0'),
        ("x", ("f32", (4, 0, 2), b""), 'tensor "x" has shape [4, 0, 2]: dimensions must be'),
        ("x", ("f32", (2**32, 2**31), b""), "product below 2^63"),
        ("x", ("f32", (2**64 - 1,), b""), "product below 2^63"),
        ("x", ("f32", (2**40,), bytes(16)), 'tensor "x" (f32 [1099511627776]) needs the bytes 64'),
        ("x", ("f32", (5,), bytes(16)), "needs the bytes 64 to 84, but the file ends after 80"),
        ("x", ("q4_0", (33, 2), bytes(99)), "q4_0 is stored in blocks of 32 elements"),
        ("x", ("q4_K", (32,), bytes(99)), "q4_K is stored in blocks of 256 elements"),
        ("x", ("q4_0", (), bytes(99)), "q4_0 is stored in blocks of 32 elements"),
        ("x", (999, (4,), bytes(16)), 'tensor "x" has the unknown type 999; known are 0 (f32) to'),
        ("x", (2**32 - 1, (4,), bytes(16)), 'tensor "x" has the unknown type 4294967295'),
        ("n" * 65, F32_4, "tensor 1 of 1 has a name of 65 bytes at position 24, the most is 64"),
        (b"\xc3", F32_4, r'tensor 1 of 1 has a name that is not UTF-8 at position 24: "\\xc3"'),
    ],
)
def test_tensor_entries(tmp_path: Path, name: str, tensor: Tensor, message: str) -> None:
    assert message in refused(tmp_path, {}, [(name, tensor)])


def test_dimension_count_of_a_billion(tmp_path: Path) -> None:
    raw = gguf_bytes({}, n_tensors=1) + struct.pack("<QcI", 1, b"x", 2**32 - 1) + bytes(99)
    assert refused_bytes(tmp_path, raw) == 'tensor "x" has 4294967295 dimensions, the most is 4'


@pytest.mark.parametrize("type_id", [4, 5, 31, 32, 33, 36, 37, 38])
def test_removed_tensor_types(tmp_path: Path, type_id: int) -> None:
    message = refused(tmp_path, {}, {"blk.0.x": (type_id, (32,), bytes(99))})
    assert message.startswith(f'tensor "blk.0.x" has type {type_id} (')
    assert "which was removed from the format" in message


def test_tensors_named_alike(tmp_path: Path) -> None:
    assert refused(tmp_path, {}, [("x", F32_4), ("x", F32_4)]) == 'tensor "x" is there twice'


@pytest.mark.parametrize("offset", [1, 16, 33])
def test_offsets_are_aligned(tmp_path: Path, offset: int) -> None:
    message = refused(tmp_path, {}, {"x": F32_4}, offsets={"x": offset})
    wanted = f'tensor "x" has offset {offset}, which must be a multiple of the alignment 32'
    assert message == wanted


@pytest.mark.parametrize("offset", [32, 2**31, 2**63, 2**64 - 32])
def test_offsets_lie_in_the_file(tmp_path: Path, offset: int) -> None:
    message = refused(tmp_path, {}, {"x": F32_4}, offsets={"x": offset})
    wanted = f"needs the bytes {64 + offset} to {80 + offset}, but the file ends after 80 bytes"
    assert message == f'tensor "x" (f32 [4]) {wanted}'


def test_overlapping_tensors(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {"x": ("f32", (16,), bytes(64)), "y": F32_4, "z": F32_4}
    message = refused(tmp_path, {}, tensors, offsets={"y": 32})
    assert message == 'tensor "y" begins at byte 160, inside tensor "x", which ends at 192'
    assert "inside tensor" in refused(tmp_path, {}, tensors, offsets={"z": 64})
    assert "inside tensor" in refused(tmp_path, {}, tensors, offsets={"x": 0, "y": 0})


# ---- fuzz


def read_all(path: Path) -> bool:
    """Whether `path` opens, in which case all of it is read; only GgmlpyError may say no."""
    try:
        file = GGUFFile.open(path)
    except GgmlpyError as error:
        assert str(error).startswith(path.name)
        return False
    for key, value in file.metadata.items():
        assert file.metadata.value_type(key)
        if isinstance(value, LazyArray):
            assert len(value.tolist()) == len(value)
    for tensor in file.tensors.values():
        try:
            assert len(tensor.data) == tensor.n_bytes
        except GgmlpyError:
            assert file.byte_order == "big"
            assert tensor.type.is_quantized
    return True


def n_bytes_allocated(read: Callable[[], object]) -> int:
    """The most memory in use at once while `read` ran, beyond what was in use before."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_sound_files_are_sound(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for raw in SOUND.values():
        path.write_bytes(raw)
        assert read_all(path)
        assert n_bytes_allocated(lambda: read_all(path)) < 100_000


@pytest.mark.parametrize("byte_order", SOUND)
def test_every_truncation_is_refused(tmp_path: Path, byte_order: str) -> None:
    path = tmp_path / "model.gguf"
    for n_bytes in range(len(SOUND[byte_order])):
        path.write_bytes(SOUND[byte_order][:n_bytes])
        assert not read_all(path), f"opened with {n_bytes} of {len(SOUND[byte_order])} bytes"


@pytest.mark.parametrize(("byte_order", "code"), [("little", "I"), ("little", "Q"), ("big", "Q")])
def test_a_large_number_anywhere(tmp_path: Path, byte_order: str, code: str) -> None:
    """Whatever count, length, type, offset or dimension stands there: a large one does no harm."""
    path = tmp_path / "model.gguf"
    top = 2 ** (8 * struct.calcsize(code))
    prefix = "<" if byte_order == "little" else ">"

    def read_all_damaged() -> None:
        sound = SOUND[byte_order]
        for pos in range(4, len(sound) - 8):
            for number in (top - 1, top // 16)[: 2 if code == "I" else 1]:
                damaged = bytearray(sound)
                struct.pack_into(prefix + code, damaged, pos, number)
                path.write_bytes(damaged)
                read_all(path)

    assert n_bytes_allocated(read_all_damaged) < 1_000_000


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "model.gguf"


POSITIONS = st.integers(0, len(SOUND["little"]) - 1)


@settings(max_examples=400, deadline=10_000)
@given(
    st.sampled_from(sorted(SOUND)),
    st.lists(st.tuples(POSITIONS, st.integers(0, 255)), min_size=1, max_size=6),
)
def test_any_bytes_changed(
    scratch: Path, byte_order: str, changes: Iterable[tuple[int, int]]
) -> None:
    damaged = bytearray(SOUND[byte_order])
    for pos, value in changes:
        damaged[pos] = value
    scratch.write_bytes(damaged)
    assert n_bytes_allocated(lambda: read_all(scratch)) < 1_000_000


@settings(max_examples=300, deadline=10_000)
@given(st.sampled_from(sorted(SOUND)), POSITIONS, st.integers(0, 40), st.binary(max_size=40))
def test_any_stretch_replaced(
    scratch: Path, byte_order: str, pos: int, n_removed: int, inserted: bytes
) -> None:
    sound = SOUND[byte_order]
    scratch.write_bytes(sound[:pos] + inserted + sound[pos + n_removed :])
    assert n_bytes_allocated(lambda: read_all(scratch)) < 1_000_000


@settings(max_examples=200, deadline=10_000)
@given(st.integers(2, 3), st.binary(max_size=300))
def test_noise_after_the_version(scratch: Path, version: int, noise: bytes) -> None:
    scratch.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 1, 2) + noise)
    assert n_bytes_allocated(lambda: read_all(scratch)) < 1_000_000

"""Opening sound files: tensors, byte orders, split models, closing. The oracle is `gguf`."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ggmlpy.errors import FileError, GGUFError, MissingFile, Unsupported
from ggmlpy.gguf import GGUFFile
from ggmlpy.graph.types import F32, TYPES
from tests.gguf_builder import Tensor, Typed, build_gguf
from tests.shared import shared_path


def write_with_gguf(
    path: Path,
    tensors: dict[str, np.ndarray],
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
    split_max_tensors: int = 0,
) -> None:
    writer = gguf.GGUFWriter(
        path, "llama", endianess=endianess, split_max_tensors=split_max_tensors
    )
    writer.add_uint32("llama.block_count", 2)
    for name, values in tensors.items():
        writer.add_tensor(name, values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def some_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"a": (3,), "b.weight": (5, 7), "c": (2, 3, 4), "d": (2, 3, 4, 5), "e": (1, 1)}
    tensors: dict[str, np.ndarray] = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    tensors["f"] = tensors["c"].astype(np.float16)
    tensors["g"] = rng.integers(-99, 99, (4, 2)).astype(np.int32)
    tensors["h"] = rng.integers(-99, 99, 9).astype(np.int8)
    return tensors


def assert_same_tensors(file: GGUFFile, path: Path) -> None:
    oracle = gguf.GGUFReader(path)
    assert list(file.tensors) == [tensor.name for tensor in oracle.tensors]
    for wanted in oracle.tensors:
        found = file.tensors[wanted.name]
        shape = wanted.shape.tolist()
        assert found.name == wanted.name
        assert found.type.id == int(wanted.tensor_type)
        assert found.ne == tuple(shape + [1] * (4 - len(shape)))
        assert (found.n_dims, found.n_elements) == (len(shape), wanted.n_elements)
        assert (found.offset, found.n_bytes) == (wanted.data_offset, wanted.n_bytes)
        assert found.data.tobytes() == wanted.data.tobytes()


def test_tensors_against_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_with_gguf(path, some_tensors())
    file = GGUFFile.open(str(path))
    assert (file.version, file.byte_order, file.alignment) == (3, "little", 32)
    assert (file.path, file.paths) == (path, (path,))
    assert_same_tensors(file, path)


@pytest.mark.parametrize("name", ["stories260K.gguf", "reference/archs/qwen2-dense.gguf"])
def test_real_files_against_the_gguf_package(name: str) -> None:
    path = shared_path(name)
    assert_same_tensors(GGUFFile.open(path), path)


def test_tensor_data_is_a_view_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_with_gguf(path, some_tensors())
    tensor = GGUFFile.open(path).tensors["d"]
    assert tensor.data.dtype == np.uint8
    assert tensor.data.shape == (tensor.n_bytes,)
    assert np.shares_memory(tensor.data, tensor.data)
    assert not tensor.data.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        tensor.data.flags.writeable = True
    with pytest.raises(dataclasses.FrozenInstanceError):
        tensor.offset = 0  # type: ignore[misc]


def block(type: str, n_blocks: int = 1) -> Tensor:
    """`n_blocks` blocks of a type in one row."""
    kind = TYPES[type]
    raw = np.arange(kind.type_size * n_blocks, dtype=np.uint8).tobytes()
    return kind.id, (kind.block_size * n_blocks,), raw


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
@pytest.mark.parametrize("version", [2, 3])
def test_every_type_at_any_alignment(tmp_path: Path, version: int, alignment: int) -> None:
    wanted = {name: block(name, 3) for name in TYPES}
    path = build_gguf(tmp_path / "m.gguf", {}, wanted, version=version, alignment=alignment)
    file = GGUFFile.open(path)
    assert (file.version, file.alignment) == (version, alignment)
    assert list(file.tensors) == list(wanted)
    for name, tensor in file.tensors.items():
        assert tensor.type is TYPES[name]
        assert tensor.offset % alignment == 0
        assert tensor.data.tobytes() == wanted[name][2]


def test_dimensions(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {
        "scalar": ("f32", (), b"abcd"),
        "three": ("f32", (2, 1, 3), bytes(24)),
        "four": ("i8", (1, 2, 3, 4), bytes(24)),
    }
    file = GGUFFile.open(build_gguf(tmp_path / "m.gguf", {}, tensors))
    found = {name: (tensor.n_dims, tensor.ne) for name, tensor in file.tensors.items()}
    assert found == {
        "scalar": (0, (1, 1, 1, 1)),
        "three": (3, (2, 1, 3, 1)),
        "four": (4, (1, 2, 3, 4)),
    }
    assert file.tensors["scalar"].data.tobytes() == b"abcd"


def test_data_may_lie_in_any_order_with_gaps_and_a_tail(tmp_path: Path) -> None:
    letters: dict[str, Tensor] = {x: ("i8", (4,), x.encode() * 4) for x in "abcd"}
    del letters["d"]
    path = build_gguf(tmp_path / "m.gguf", {}, letters, offsets={"a": 64, "b": 0, "c": 160})
    path.write_bytes(path.read_bytes() + bytes(92) + b"dddd" + b"tail")
    file = GGUFFile.open(path)
    assert list(file.tensors) == ["a", "b", "c"]
    found = [tensor.data.tobytes() for tensor in file.tensors.values()]
    assert found == [b"cccc", b"aaaa", b"dddd"]


def test_a_file_without_tensors_needs_no_padding(tmp_path: Path) -> None:
    for metadata in ({}, {"k": "abc"}):
        file = GGUFFile.open(build_gguf(tmp_path / "m.gguf", metadata))
        assert (file.tensors, dict(file.metadata)) == ({}, metadata)


def test_big_endian_against_the_gguf_package(tmp_path: Path) -> None:
    wanted = some_tensors()
    write_with_gguf(tmp_path / "big.gguf", wanted, gguf.GGUFEndian.BIG)
    file = GGUFFile.open(tmp_path / "big.gguf")
    assert file.byte_order == "big"
    assert file.metadata["llama.block_count"] == 2
    assert list(file.tensors) == list(wanted)
    for name, values in wanted.items():
        assert file.tensors[name].ne[: values.ndim] == values.shape[::-1]
        assert file.tensors[name].data.tobytes() == values.tobytes()
        assert not file.tensors[name].data.flags.writeable


def test_big_endian_types(tmp_path: Path) -> None:
    """bf16 is swapped as the two-byte number that it is; blocks are refused by name."""
    tensors: dict[str, Tensor] = {"x": ("bf16", (2,), b"\x3f\x80\x40\x00"), "y": block("q4_0")}
    path = build_gguf(tmp_path / "m.gguf", {}, tensors, byte_order="big")
    file = GGUFFile.open(path)
    assert file.tensors["x"].data.tobytes() == b"\x80\x3f\x00\x40"
    with pytest.raises(Unsupported, match=r'^m\.gguf: tensor "y" is q4_0 in a big-endian file'):
        file.tensors["y"].data  # noqa: B018


def test_close_leaves_arrays_valid(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_with_gguf(path, some_tensors())
    with GGUFFile.open(path) as file:
        info = file.tensors["a"]
        data = info.data
    file.close()  # twice is fine
    path.unlink()
    assert data.view(np.float32).tolist() == some_tensors()["a"].tolist()
    with pytest.raises(FileError, match=r"^model\.gguf: the file is closed$"):
        info.data  # noqa: B018
    assert info.n_bytes == 12


def test_close_unmaps_once_nothing_refers_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_with_gguf(path, some_tensors())
    file = GGUFFile.open(path)
    mapping = weakref.ref(file.tensors["a"]._part.view.obj)
    data = file.tensors["a"].data
    file.close()
    gc.collect()
    assert mapping() is not None
    del data
    gc.collect()
    assert mapping() is None


def test_tensors_compare_and_print_as_data(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "m.gguf", {"k": 1}, {"x": ("f32", (2,), bytes(8))})
    first, second = GGUFFile.open(path), GGUFFile.open(path)
    assert first.tensors["x"] == second.tensors["x"]
    assert len({first.tensors["x"], second.tensors["x"]}) == 1
    assert first.tensors["x"].type is F32
    assert repr(first.tensors["x"]).startswith("TensorInfo(name='x', type=f32, ne=(2, 1, 1, 1)")
    assert repr(first) == f"GGUFFile({str(path)!r}, 1 keys, 1 tensors)"
    assert repr(first.metadata) == "Metadata(m.gguf, 1 keys)"


# ---- split models


def test_split_against_the_gguf_package(tmp_path: Path) -> None:
    wanted = some_tensors()
    write_with_gguf(tmp_path / "model.gguf", wanted, split_max_tensors=3)
    paths = tuple(tmp_path / f"model-{i:05}-of-00003.gguf" for i in (1, 2, 3))
    assert set(tmp_path.iterdir()) == set(paths)
    file = GGUFFile.open(paths[0])
    assert (file.path, file.paths) == (paths[0], paths)
    assert file.metadata["llama.block_count"] == 2
    assert list(file.tensors) == list(wanted)
    for name, values in wanted.items():
        assert file.tensors[name].data.tobytes() == values.tobytes()
    assert [file.tensors[name].path for name in "adh"] == list(paths)
    file.close()
    for name in "adh":
        with pytest.raises(FileError, match="the file is closed"):
            file.tensors[name].data  # noqa: B018


def part_name(i: int, count: int = 3) -> str:
    return f"m-{i:05}-of-{count:05}.gguf"


def write_split(folder: Path, count: int = 3) -> Path:
    """A sound split model of one tensor a file; the path of its first file."""
    for i in range(count):
        write_part(folder, i, count)
    return folder / part_name(1, count)


def write_part(
    folder: Path,
    i: int,
    count: int = 3,
    keys: Mapping[str, int | None] = {},
    tensor: str = "",
    byte_order: str = "little",
) -> None:
    """Part `i` of `count`; `keys` replaces values of its metadata, or with None removes keys."""
    values = {"split.no": i, "split.count": count, "split.tensors.count": count, **keys}
    build_gguf(
        folder / part_name(i + 1, count),
        {key: Typed("u16", value) for key, value in values.items() if value is not None},
        {tensor or f"t{i}": ("i8", (4,), bytes([i]) * 4)},
        byte_order=byte_order,
    )


def test_split_hand_made(tmp_path: Path) -> None:
    file = GGUFFile.open(write_split(tmp_path, 12))
    assert [tensor.data[0] for tensor in file.tensors.values()] == list(range(12))


@pytest.mark.parametrize("count", [0, 1])
def test_a_split_of_one_file_needs_no_name(tmp_path: Path, count: int) -> None:
    path = build_gguf(tmp_path / "m.gguf", {"split.no": 0, "split.count": count})
    assert GGUFFile.open(path).paths == (path,)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_split(tmp_path)
    (tmp_path / part_name(2)).unlink()
    with pytest.raises(MissingFile, match=r"^m-00002-of-00003\.gguf: there is no such file in "):
        GGUFFile.open(first)


@pytest.mark.parametrize("i", [2, 3])
def test_a_later_part_names_the_first(tmp_path: Path, i: int) -> None:
    write_split(tmp_path)
    with pytest.raises(GGUFError) as error:
        GGUFFile.open(tmp_path / part_name(i))
    assert str(error.value) == (
        f"m-0000{i}-of-00003.gguf: part {i} of a split model; open the first, m-00001-of-00003.gguf"
    )


def test_a_split_file_must_keep_its_name(tmp_path: Path) -> None:
    first = write_split(tmp_path).rename(tmp_path / "renamed.gguf")
    with pytest.raises(GGUFError, match=r"part 1 of 3, so its name must end in -00001-of-00003"):
        GGUFFile.open(first)


@pytest.mark.parametrize(
    ("i", "changes", "message"),
    [
        (
            0,
            {"keys": {"split.tensors.count": 4}},
            'm-00001.*"split.tensors.count" is 4, but its 3 files hold 3 tensors',
        ),
        (0, {"keys": {"split.tensors.count": None}}, 'm-00001.*"split.tensors.count" is missing'),
        (0, {"keys": {"split.no": None}}, 'm-00001.*"split.no" is missing'),
        (
            0,
            {"keys": {"split.count": 2}},
            "m-00001.*part 1 of 2, so its name must end in -00001-of-00002",
        ),
        (
            0,
            {"keys": {"split.no": 1}},
            "m-00001.*part 2 of 3, so its name must end in -00002-of-00003",
        ),
        (1, {"keys": {"split.no": 2}}, 'm-00002.*"split.no" is 2, must be 1 according to'),
        (2, {"keys": {"split.count": 4}}, 'm-00003.*"split.count" is 4, must be 3 according to'),
        (2, {"keys": {"split.no": None}}, 'm-00003.*"split.no" is missing'),
        (2, {"tensor": "t0"}, 'm-00003.*tensor "t0" is there twice, first in m-00001-of-00003'),
        (1, {"byte_order": "big"}, "m-00002.*big-endian, but m-00001-of-00003.gguf is little"),
    ],
)
def test_contradictory_splits(
    tmp_path: Path, i: int, changes: dict[str, Any], message: str
) -> None:
    first = write_split(tmp_path)
    write_part(tmp_path, i, **changes)
    with pytest.raises(GGUFError, match=f"^{message}"):
        GGUFFile.open(first)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    first = write_split(tmp_path)
    second = tmp_path / part_name(2)
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(GGUFError, match=r'^m-00002-of-00003\.gguf: tensor "t1" .* needs the bytes'):
        GGUFFile.open(first)

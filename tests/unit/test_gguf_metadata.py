"""Metadata: every value type in both byte orders, typed getters, lazy arrays."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import gguf
import numpy as np
import pytest

from ggmlpy.errors import FileError, GGUFError, WeightError
from ggmlpy.gguf import GGUFFile, LazyArray, Metadata
from ggmlpy.gguf.metadata import Kind
from tests.gguf_builder import Raw, Typed, build_gguf
from tests.shared import shared_path

NUMBERS: dict[str, list[Any]] = {
    "u8": [0, 200, 255],
    "i8": [-128, 5, 127],
    "u16": [0, 65_535],
    "i16": [-32_768, 7],
    "u32": [0, 2**32 - 1],
    "i32": [-(2**31), 2**31 - 1],
    "f32": [0.5, -3.25, math.inf],
    "u64": [2**64 - 1, 1],
    "i64": [-(2**63), 2**63 - 1],
    "f64": [1e300, -0.1],
    "bool": [True, False, True],
}
ORDERS = ("little", "big")


def metadata_of(path: Path, values: dict[str, Any], byte_order: str = "little") -> Metadata:
    build_gguf(path / "model.gguf", values, byte_order=byte_order)
    return GGUFFile.open(path / "model.gguf").metadata


@pytest.mark.parametrize("byte_order", ORDERS)
@pytest.mark.parametrize("type", NUMBERS)
def test_numbers(tmp_path: Path, type: str, byte_order: str) -> None:
    wanted = NUMBERS[type]
    values = {f"k{i}": Typed(type, value) for i, value in enumerate(wanted)}
    metadata = metadata_of(tmp_path, values, byte_order)
    assert list(metadata.values()) == wanted
    assert {metadata.value_type(key) for key in metadata} == {type}
    python_type = {"f": float, "b": bool}.get(type[0], int)
    assert all(value.__class__ is python_type for value in metadata.values())


@pytest.mark.parametrize("byte_order", ORDERS)
@pytest.mark.parametrize("type", NUMBERS)
def test_number_arrays(tmp_path: Path, type: str, byte_order: str) -> None:
    wanted = NUMBERS[type]
    # the key's length shifts the elements, so that they are read unaligned too
    for key in ("k", "ke", "key"):
        metadata = metadata_of(tmp_path, {key: Typed(type, wanted), "after": 7}, byte_order)
        array = metadata.array(key)
        assert metadata.value_type(key) == f"arr[{type}]"
        assert (array.type, len(array)) == (type, len(wanted))
        assert array.tolist() == list(array) == wanted
        assert [array[i] for i in range(len(wanted))] == wanted
        assert array[-1] == wanted[-1]
        assert array[::-1] == wanted[::-1]
        assert array.numpy().tolist() == wanted
        assert array.numpy().dtype.isnative
        assert not array.numpy().flags.writeable
        assert metadata["after"] == 7


def test_number_arrays_are_views_of_the_file(tmp_path: Path) -> None:
    array = metadata_of(tmp_path, {"k": np.arange(1000, dtype=np.int32)}).array("k")
    assert np.shares_memory(array.numpy(), array.numpy())
    assert array.numpy().dtype == np.int32


@pytest.mark.parametrize("byte_order", ORDERS)
def test_strings(tmp_path: Path, byte_order: str) -> None:
    wanted = ["", "a", "ünïcode ▁", "with\0zero", "\0" * 20, "x" * 70_000, ""]
    metadata = metadata_of(tmp_path, {"one": "völlig", "all": wanted, "after": "end"}, byte_order)
    assert metadata.str("one") == "völlig"
    assert metadata.str("after") == "end"
    array = metadata.array("all")
    assert (array.type, len(array)) == ("str", 7)
    assert array.tolist() == list(array) == wanted
    assert [array[i] for i in range(7)] == wanted
    assert array[2:4] == wanted[2:4]
    assert array.bytes(2) == array.bytes(-5) == wanted[2].encode()


def test_strings_that_are_not_utf8_keep_their_bytes(tmp_path: Path) -> None:
    raw = [b"ok", b"\xff\xfe", b"cut \xe2\x96", b"\xed\xa0\x80"]
    metadata = metadata_of(tmp_path, {"one": raw[1], "all": raw})
    array = metadata.array("all")
    assert [array.bytes(i) for i in range(4)] == raw
    assert [text.encode(errors="surrogateescape") for text in array] == raw
    assert metadata.str("one").encode(errors="surrogateescape") == raw[1]


@pytest.mark.parametrize("byte_order", ORDERS)
def test_arrays_of_arrays(tmp_path: Path, byte_order: str) -> None:
    wanted = [[[1, 2], [3]], [[]], [[-4, 5, 6]]]
    texts = [["a", "bc"], [""], ["d"]]
    values = {"n": wanted, "s": texts, "mixed": [["a"], [1.5], [2.5]], "none": Typed("arr", [])}
    metadata = metadata_of(tmp_path, values | {"after": 1}, byte_order)
    assert metadata.array("n").tolist() == wanted
    assert metadata.value_type("n") == "arr[arr[arr[i32]]]"
    inner = metadata.array("n")[2]
    assert isinstance(inner, LazyArray)
    assert inner[0].numpy().tolist() == [-4, 5, 6]
    assert metadata.array("s").tolist() == texts
    assert metadata.array("s")[0].bytes(1) == b"bc"
    assert metadata.array("mixed").tolist() == [["a"], [1.5], [2.5]]
    assert metadata.array("mixed").type == "arr[mixed]"
    assert metadata["after"] == 1


def test_empty_arrays(tmp_path: Path) -> None:
    types = ["str", *NUMBERS]
    metadata = metadata_of(tmp_path, {type: Typed(type, []) for type in types})
    for type in types:
        array = metadata.array(type)
        assert (array.type, len(array), array.tolist(), array[:]) == (type, 0, [], [])
        with pytest.raises(IndexError, match="has 0 elements, index 0"):
            array[0]
    assert metadata.array("f32").numpy().shape == (0,)


def test_array_indices_are_checked(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, {"n": [1, 2], "s": ["a", "b"]})
    for key in ("n", "s"):
        for index in (2, -3, 2**70):
            with pytest.raises(IndexError, match=f'key "{key}" has 2 elements, index {index} is'):
                metadata.array(key)[index]
        with pytest.raises(TypeError):
            metadata.array(key)[1.0]  # type: ignore[call-overload]
    assert metadata.array("n")[np.int64(1)] == 2


def test_mapping(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, {"a": 1, "b": "x"})
    assert (len(metadata), list(metadata), "a" in metadata, "c" in metadata) == (
        2,
        ["a", "b"],
        True,
        False,
    )
    assert metadata.get("c") is None
    with pytest.raises(KeyError):
        metadata["c"]


ALL_KINDS = {"s": "x", "i": 3, "f": 0.5, "b": True, "a": [1]}


@pytest.mark.parametrize(
    ("getter", "key", "kind"),
    [
        ("str", "s", "a string"),
        ("int", "i", "an integer"),
        ("float", "f", "a float"),
        ("bool", "b", "a bool"),
        ("array", "a", "an array"),
    ],
)
def test_getters(tmp_path: Path, getter: str, key: str, kind: str) -> None:
    metadata = metadata_of(tmp_path, ALL_KINDS)
    get = getattr(metadata, getter)
    assert get(key) is get(key, None)
    assert get("missing", None) is None
    assert get("missing", default=12) == 12
    with pytest.raises(WeightError) as missing:
        get("llama.block_count")
    assert str(missing.value) == 'model.gguf: key "llama.block_count" is missing'
    for other in set(ALL_KINDS) - {key}:
        found = metadata.value_type(other)
        with pytest.raises(WeightError) as wrong:
            get(other, default=None)  # a default is for a missing key, not for a wrong one
        assert str(wrong.value) == f'model.gguf: key "{other}" has type {found}, must be {kind}'


def test_array_getter_checks_the_elements(tmp_path: Path) -> None:
    values = {"s": ["x"], "i": Typed("u64", [1]), "f": Typed("f64", [1.0]), "b": [True]}
    metadata = metadata_of(tmp_path, values)
    kinds: dict[Kind, str] = {"str": "s", "int": "i", "float": "f", "bool": "b"}
    for kind, key in kinds.items():
        assert metadata.array(key, of=kind) is metadata[key]
        for other in set(values) - {key}:
            with pytest.raises(WeightError, match=rf'key "{other}" has type .*an array of {kind}'):
                metadata.array(other, of=kind)


def test_value_type_of_a_missing_key(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r'^model\.gguf: key "x" is missing$'):
        metadata_of(tmp_path, {}).value_type("x")


def test_arrays_refuse_what_their_elements_are_not(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, {"s": ["x"], "n": [1], "a": [[1]]})
    for key, type in (("s", "str"), ("a", r"arr\[i32\]")):
        with pytest.raises(WeightError, match=f'key "{key}" is an array of {type}, must hold num'):
            metadata.array(key).numpy()
    for key, type in (("n", "i32"), ("a", r"arr\[i32\]")):
        with pytest.raises(WeightError, match=f'key "{key}" is an array of {type}, must hold str'):
            metadata.array(key).bytes(0)


def test_closed_files_give_no_more(tmp_path: Path) -> None:
    build_gguf(tmp_path / "model.gguf", {"s": ["x"], "n": [1, 2], "a": [[1]], "one": 5})
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        numbers = file.metadata.array("n").numpy()
    assert numbers.tolist() == [1, 2]  # what was taken stays
    assert file.metadata["one"] == 5
    for key in ("s", "n", "a"):
        with pytest.raises(FileError, match=r"^model\.gguf: the file is closed$"):
            file.metadata.array(key).tolist()
        with pytest.raises(FileError, match=r"^model\.gguf: the file is closed$"):
            file.metadata.array(key)[0]


def test_booleans_are_true_unless_zero(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "model.gguf", {"k": Typed("bool", [True, False])})
    path.write_bytes(path.read_bytes()[:-2] + b"\x02\x00")
    array = GGUFFile.open(path).metadata.array("k")
    assert array.tolist() == [True, False]
    assert array[0] is True


@pytest.mark.parametrize("depth", [5, 6, 5000])
def test_deep_nesting_is_refused(tmp_path: Path, depth: int) -> None:
    assert metadata_of(tmp_path, {"k": [[[[7]]]]}).array("k").tolist() == [[[[7]]]]
    array_of_one = struct.pack("<IQ", 9, 1)
    deep = struct.pack("<I", 9) + array_of_one * (depth - 1) + struct.pack("<IQI", 5, 1, 7)
    with pytest.raises(GGUFError, match=r'key "k" has arrays nested deeper than 4 levels'):
        metadata_of(tmp_path, {"k": Raw(deep)})


def big_vocabulary(path: Path, n: int) -> Path:
    values = {"tokens": [f"token {i}" for i in range(n)], "types": np.zeros(n, np.int32)}
    return build_gguf(path / "model.gguf", values | {"merges": [f"{i} x{i}" for i in range(n)]})


def test_opening_decodes_no_array(tmp_path: Path) -> None:
    path = big_vocabulary(tmp_path, 100_000)
    GGUFFile.open(path)  # what is done once, such as compiled patterns, is done here
    before = sys.getallocatedblocks()
    file = GGUFFile.open(path)
    assert sys.getallocatedblocks() - before < 500  # not 300,000 strings and numbers
    assert file.metadata.array("tokens")[99_999] == "token 99999"
    assert sys.getallocatedblocks() - before < 600
    assert len(file.metadata.array("merges").tolist()) == 100_000
    assert sys.getallocatedblocks() - before < 10_000  # decoded strings are not kept either


def test_a_large_vocabulary_opens_in_few_steps(tmp_path: Path) -> None:
    """Not one for each of its strings: those of a window are found at once."""
    n_lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal n_lines
        n_lines += event == "line"
        return count

    path = big_vocabulary(tmp_path, 20_000)
    GGUFFile.open(path)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        GGUFFile.open(path)
    finally:
        sys.settrace(before)
    assert 100 < n_lines < 4000  # for 40,000 strings


@pytest.mark.parametrize("endianess", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def test_against_the_gguf_package(tmp_path: Path, endianess: gguf.GGUFEndian) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=endianess)
    integers = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
    for i, name in enumerate(integers):
        getattr(writer, f"add_{name}")(f"k.{name}", 100 + i)
    writer.add_float32("k.float32", 0.1)
    writer.add_float64("k.float64", 0.1)
    writer.add_bool("k.bool", True)
    writer.add_string("k.string", "▁tok")
    writer.add_array("k.strings", ["a", "", "▁b"])
    writer.add_array("k.ints", [1, -2, 3])
    writer.add_array("k.floats", [1.5, -2.5])
    writer.add_array("k.bools", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert_same_metadata(path)


@pytest.mark.parametrize("name", ["stories260K.gguf", "vocab/ggml-vocab-llama-spm.gguf"])
def test_real_files_against_the_gguf_package(name: str) -> None:
    assert_same_metadata(shared_path(name))


def assert_same_metadata(path: Path) -> None:
    file = GGUFFile.open(path)
    fields = gguf.GGUFReader(path).fields
    wanted = {k: field.contents() for k, field in fields.items() if not k.startswith("GGUF.")}
    assert list(file.metadata) == list(wanted)
    for key, value in file.metadata.items():
        found = value.tolist() if isinstance(value, LazyArray) else value
        assert found == wanted[key], key

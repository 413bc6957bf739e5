"""Finding strings: the guessed starts must be those that a plain walk finds, whatever they hold."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggmlpy.errors import GGUFError
from ggmlpy.gguf import GGUFFile
from ggmlpy.gguf.arrays import read_array
from ggmlpy.gguf.cursor import Cursor
from ggmlpy.gguf.part import Part
from ggmlpy.gguf.strings import string_starts
from tests.gguf_builder import build_gguf
from tests.resident import linux, resident_bytes


def starts_of(raw: bytes, n: int, pos: int = 0, byte_order: str = "little") -> list[int]:
    part = Part(Path("model.gguf"), memoryview(raw))
    if byte_order == "big":
        part.byte_order = "big"
    cursor = Cursor(part, pos, 'key "k"')
    starts = string_starts(cursor, n)
    assert cursor.pos == starts[-1]
    return [int(start) for start in starts]


def stored(strings: list[bytes], byte_order: str = "little") -> bytes:
    code = "<Q" if byte_order == "little" else ">Q"
    return b"".join(struct.pack(code, len(text)) + text for text in strings)


def wanted(strings: list[bytes], pos: int = 0) -> list[int]:
    return list(itertools.accumulate((8 + len(text) for text in strings), initial=pos))


def ordinary(n: int, seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [b"x" * length for length in rng.integers(1, 12, n)]


UNUSUAL = {
    "nothing": b"",
    "zeros": b"\0" * 30,
    "leading zeros": b"\0\0\0\0\0\0\0text",
    "trailing zeros": b"text\0\0\0\0\0\0\0",
    "a number inside": struct.pack("<Q", 5) + b"hello",
    "255 bytes": b"y" * 255,
    "256 bytes": b"y" * 256,
    "65,535 bytes": b"y" * 65_535,
    "65,536 bytes": b"y" * 65_536,
    "longer than a window": b"y" * 200_000,
}


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("unusual", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.parametrize("place", [0, 1, 500, 999, 1000])
def test_one_unusual_string(unusual: bytes, place: int, byte_order: str) -> None:
    strings = ordinary(1000)
    strings.insert(place, unusual)
    raw = stored(strings, byte_order)
    assert starts_of(raw + b"after", 1001, byte_order=byte_order) == wanted(strings)


@pytest.mark.parametrize("unusual", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_nothing_but_unusual_strings(unusual: bytes) -> None:
    strings = [unusual] * 100
    assert starts_of(stored(strings), 100) == wanted(strings)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 50_000])
def test_any_number_over_several_windows(n: int) -> None:
    strings = ordinary(n, seed=n)
    for before in (0, 1, 3, 8):
        raw = b"\0" * before + stored(strings) + b"\0" * 40
        assert starts_of(raw, n, before) == wanted(strings, before)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=20), st.text("\0\1a", max_size=20).map(str.encode)),
        min_size=64,
        max_size=200,
    )
)
def test_any_strings(strings: list[bytes]) -> None:
    assert starts_of(stored(strings), len(strings)) == wanted(strings)


@pytest.mark.parametrize("place", [0, 1, 70, 99])
@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**32, 60_000])
def test_a_string_longer_than_the_file_is_named(place: int, length: int) -> None:
    strings = ordinary(100)
    raw = bytearray(stored(strings))
    struct.pack_into("<Q", raw, wanted(strings)[place], length)
    with pytest.raises(GGUFError, match=rf'string {place} of key "k" needs {length} bytes'):
        starts_of(bytes(raw), 100)


def test_every_cut_is_refused() -> None:
    raw = stored(ordinary(80))
    for n_bytes in range(len(raw)):
        with pytest.raises(GGUFError, match=r'^model\.gguf: .*key "k"'):
            starts_of(raw[:n_bytes], 80)


def test_a_string_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = build_gguf(tmp_path / "model.gguf", {"tokens": ["abc"] * 100})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(GGUFError, match=r'string 99 of key "tokens" needs 3 bytes'):
        GGUFFile.open(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    strings=st.lists(
        st.binary(max_size=6)
        | st.text(max_size=6).map(str.encode)
        | st.sampled_from([b"", b"\xe4\xb8", b"\xff", b"a\0b", b"\0", "\u0120the".encode()])
    )
)
@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_all_at_once_are_the_strings_one_by_one(strings: list[bytes], byte_order: str) -> None:
    """Also where they hold zero bytes, or end within a character."""
    raw = struct.pack(">IQ" if byte_order == "big" else "<IQ", 8, len(strings))
    part = Part(Path("model.gguf"), memoryview(b"before" + raw + stored(strings, byte_order)))
    part.byte_order = "big" if byte_order == "big" else "little"
    array = read_array(Cursor(part, 6, 'key "k"'))
    assert array.tolist() == [text.decode(errors="surrogateescape") for text in strings]
    assert [array[i] for i in range(len(strings))] == array.tolist()


@linux
def test_the_pages_of_a_large_vocabulary_do_not_stay(tmp_path: Path) -> None:
    strings = [f"word {i} of many" for i in range(100_000)]
    path = build_gguf(tmp_path / "m.gguf", {"tokens": strings})
    file = GGUFFile.open(path)
    assert path.stat().st_size > 2 << 20
    assert resident_bytes(path) == 0
    array = file.metadata.array("tokens")
    assert array[5] == strings[5]
    assert resident_bytes(path) > 0
    assert array.tolist() == strings
    assert resident_bytes(path) == 0
    assert array[7] == strings[7]
    file.release_metadata()
    assert resident_bytes(path) == 0
    assert array[7] == strings[7]

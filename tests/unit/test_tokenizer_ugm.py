"""UGM: the greatest sum of scores, the normalisation before it, and damaged maps of characters."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.text.tokenizer.charsmap import Charsmap
from ggmlpy.text.tokenizer.keys import Keys
from tests.unit.charsmaps import charsmap
from tests.unit.random_vocabularies import REPLACEMENTS, ugm_metadata
from tests.unit.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    keyed,
    without,
)

MAPS = st.dictionaries(
    st.text("ab\u00e9\u0301 \t", min_size=1, max_size=4),
    st.text("ab\u00e8 ", max_size=3),
    min_size=1,
)


def small(*more: tuple[str, int, float], **keys: Any) -> Tokenizer:
    """The tokens <pad> 0, </s> 1, <unk> 2, ▁ 3, a 4, b 5, ab 6, ▁a 7, then more."""
    tokens = [
        ("<pad>", CONTROL, 0.0),
        ("</s>", CONTROL, 0.0),
        ("<unk>", UNKNOWN, 0.0),
        (SPACE, NORMAL, -2.0),
        ("a", NORMAL, -3.0),
        ("b", NORMAL, -4.0),
        ("ab", NORMAL, -5.0),
        (SPACE + "a", NORMAL, -4.5),
        *more,
    ]
    texts, types, scores = zip(*tokens, strict=True)
    return Tokenizer.from_metadata(
        keyed(model="t5", tokens=texts, token_type=types, scores=scores) | keyed(**keys), "m.gguf"
    )


def segmentations(text: str, pieces: dict[str, float], unknown: float) -> Iterator[list[str]]:
    """All ways to spell the text; a character without a token is a piece of its own."""
    if not text:
        yield []
    for n in range(1, len(text) + 1):
        if text[:n] in pieces or n == 1:
            for rest in segmentations(text[n:], pieces, unknown):
                yield [text[:n], *rest]


@given(st.integers(0, 10_000), st.text("ab \u00e9", min_size=1, max_size=9))
def test_the_greatest_sum_of_all(seed: int, text: str) -> None:
    rng = random.Random(seed)
    drawn = (
        "".join(rng.choices("ab\u2581", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 9))
    )
    pieces = {piece: float(np.float32(rng.uniform(-9, -1))) for piece in drawn}
    unknown = float(np.float32(min(pieces.values()) - np.float32(10)))
    tokenizer = Tokenizer.from_metadata(
        keyed(
            model="t5",
            tokens=["<pad>", "</s>", "<unk>", *pieces],
            token_type=[CONTROL, CONTROL, UNKNOWN] + [NORMAL] * len(pieces),
            scores=[0.0] * 3 + list(pieces.values()),
        )
    )
    best = max(
        segmentations(text.replace(" ", SPACE), pieces, unknown),
        key=lambda spelt: sum(pieces.get(piece, unknown) for piece in spelt),
    )
    ids = [tokenizer.vocab.ids.get(piece, 2) for piece in best]
    fused = [id for i, id in enumerate(ids) if id != 2 or ids[i - 1 : i] != [2]]
    assert tokenizer.encode(text) == fused


@given(MAPS, st.text("ab\u00e9\u0301 \t", max_size=20))
def test_the_longest_key_is_replaced(replacements: dict[str, str], text: str) -> None:
    expected, at = "", 0
    while at < len(text):
        ends = [n for n in range(len(text), at, -1) if text[at:n] in replacements]
        expected += replacements[text[at : ends[0]]] if ends else text[at]
        at = ends[0] if ends else at + 1
    assert read(charsmap(replacements)).apply(text) == expected


@pytest.mark.parametrize(
    ("merge", "prefix", "spelt"),
    [
        (True, True, "_a_b"),
        (True, False, "_a_b"),  # every word begins with a space
        (False, True, "___a__b_"),
        (False, False, "__a__b_"),
    ],
)
def test_spaces(merge: bool, prefix: bool, spelt: str) -> None:
    tokenizer = small(remove_extra_whitespaces=merge, add_space_prefix=prefix)
    got = "".join(tokenizer.text(id) for id in tokenizer.encode("  a  b "))
    assert got == spelt.replace("_", SPACE)
    assert tokenizer.encode("") == []
    assert tokenizer.encode("  ") == ([] if merge else [3, 3])  # no space before spaces


def test_each_part_between_tokens_is_normalised_alone() -> None:
    tokenizer = small(("<tool>", USER_DEFINED, -1000.0), add_space_prefix=True)
    assert tokenizer.encode("b<tool>b") == [3, 5, 8, 3, 5]
    assert tokenizer.encode("b<pad>b", special=True) == [3, 5, 0, 3, 5]
    assert tokenizer.encode("</s>") == [3, 2]


def test_the_end_is_added_by_default() -> None:
    assert small().encode("a", add_bos=True) == [4, 1]
    assert small(add_eos_token=False).encode("a", add_bos=True) == [4]
    assert small(add_bos_token=True, bos_token_id=0).encode("a", add_bos=True) == [0, 4, 1]


def test_which_tokens_match() -> None:
    types = [CONTROL, BYTE, UNUSED, NORMAL]
    assert [small(("xy", type, -9.0)).encode("xy") for type in types] == [[2], [2], [8], [8]]


def test_the_score_of_unknown_text() -> None:
    """It is the lowest one of a normal token less 10, which unused tokens do not lower."""
    long = ("bxb", NORMAL, -24.0)  # dearer than b, unknown, b: 4 + 34 + 4 only by 10 less
    assert small(long, ("[PAD]", UNUSED, -10_000.0)).encode("bxb") == [8]
    assert small(("bxb", UNUSED, -23.1)).encode("bxb") == [5, 2, 5]  # 4 + 15 + 4
    assert small(("bxb", UNUSED, -22.9)).encode("bxb") == [8]


def test_unknown_text_is_one_token() -> None:
    assert small().encode("xyz a zz") == [2, 7, 3, 2]
    lacking = [SPACE + "a", "b"]  # no token for ▁ alone: a word ends, and the next begins, unknown
    tokenizer = Tokenizer.from_metadata(
        keyed(model="t5", tokens=["p", "e", "u", *lacking], scores=[0.0, 0.0, 0.0, -1.0, -1.0])
    )
    assert tokenizer.encode("bx xb") == [4, 2, 4]
    nameless = small(unknown_token_id=0xFFFFFFFF)
    assert nameless.encode("ab") == [6]
    with pytest.raises(TokenizerError, match=r"^m\.gguf: the vocabulary has no token for 'x'"):
        nameless.encode("ax")


def test_bytes_that_are_not_utf8_are_not_replaced() -> None:
    data = np.frombuffer(charsmap({"\ufffd": "a"}), np.uint8)
    tokenizer = small(("\ufffd", NORMAL, -1.0), precompiled_charsmap=data)
    assert tokenizer.encode("b\ufffd") == [5, 4]
    assert tokenizer.encode(b"b\xff\xe2\x82") == [5, 8, 8, 8]


def test_decode() -> None:
    tokenizer = small(("<tool>", USER_DEFINED, 0.0), ("<0xC3>", BYTE, 0.0), add_space_prefix=True)
    assert tokenizer.decode(tokenizer.encode(" ab a<tool>b")) == " ab a<tool> b"
    assert tokenizer.decode([7, 7]) == "a a"
    assert tokenizer.decode([1, 4], special=True) == "</s>a"
    assert tokenizer.token_bytes(9) == b"\xc3"


def test_long_text_is_that_of_its_words() -> None:
    words = ["ab", "bxx", "xa", "bbb", "aab"]
    tokenizer = small(remove_extra_whitespaces=True)
    alone = [id for word in words for id in tokenizer.encode(word)]
    assert tokenizer.encode(" ".join(words * 20_000)) == alone * 20_000


def read(data: bytes) -> Charsmap:
    stored = np.frombuffer(data, np.uint8)
    return Charsmap.from_keys(Keys(keyed(precompiled_charsmap=stored), "m.gguf: "))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64])
def test_bytes_may_be_signed(dtype: Any) -> None:
    data = np.frombuffer(charsmap(REPLACEMENTS), np.uint8).astype(dtype)
    keys = Keys(keyed(precompiled_charsmap=data.tolist()), "")
    assert Charsmap.from_keys(keys).apply("e\u0301\u00bd") == "\u00e91\u20442"


def loop() -> bytes:
    """A node whose child for "a" is itself."""
    units = [0] * 512
    units[0] = 256 << 10
    units[256 ^ 97] = (256 ^ 97 ^ 256) << 10 | 97
    return struct.pack("<I512Iss", 2048, *units, b"", b"x")


GOOD = charsmap({"a": "b", "ab": ""})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"has 0 bytes, which its header contradicts"),
        (b"\0\0\0", r"has 3 bytes"),
        (b"\0\0\0\0", r"has 4 bytes"),
        (struct.pack("<I", len(GOOD)) + GOOD[4:], r"header contradicts"),
        (struct.pack("<I", 6) + GOOD[4:], r"header contradicts"),
        (GOOD[:-2], r"is damaged: no replacement ends after byte "),
        (GOOD[:-2] + b"\xff\0", r"is damaged: b'\\xff' is not UTF-8"),
        (struct.pack("<II", 4, 1 << 20) + b"x\0", r"an offset is beyond its 1 units"),
        (struct.pack("<I300I", 1200, 256 << 10, *[0] * 299) + b"\0", r"beyond its 300 units"),
        (loop(), r"paths without an end"),
    ],
)
def test_a_damaged_map_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=rf"^m\.gguf: .*\.precompiled_charsmap .*{message}"):
        read(data)


@pytest.mark.parametrize("stored", [[0.5] * 9, [256] * 9, [-129] * 9, ["a"], "abc", 3])
def test_a_map_that_is_not_bytes(stored: Any) -> None:
    with pytest.raises(TokenizerError, match=r"precompiled_charsmap .*must (hold|be)"):
        Charsmap.from_keys(Keys(keyed(precompiled_charsmap=stored), ""))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_any_byte_may_be_wrong(at: int, byte: int) -> None:
    data = bytearray(GOOD)
    data[at] = byte
    try:
        read(bytes(data)).apply("abcab")
    except TokenizerError as error:
        assert "precompiled_charsmap" in str(error)


def test_what_is_missing_or_wrong() -> None:
    with pytest.raises(TokenizerError, match=r"scores is missing"):
        Tokenizer.from_metadata(without(ugm_metadata(), "scores"))
    with pytest.raises(TokenizerError, match=r"scores is infinite at 8"):
        small(("x", NORMAL, float("-inf"))).encode("a")
    with pytest.raises(TokenizerError, match=r"eos_token_id is missing, but .*add_eos_token"):
        small(eos_token_id=0xFFFFFFFF)

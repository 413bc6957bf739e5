"""RWKV: the longest token, escaped texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer import Tokenizer
from tests.unit.random_texts import CLASSES
from tests.unit.random_vocabularies import rwkv_metadata
from tests.unit.vocabularies import CONTROL, NORMAL, UNUSED, keyed

TOKENIZER = Tokenizer.from_metadata(rwkv_metadata())
PIECES = [piece.encode() for pieces in CLASSES.values() for piece in pieces]
DATA = st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=8).map(b"".join)


def small(*texts: str, **keys: Any) -> Tokenizer:
    types = [CONTROL] + [NORMAL] * len(texts)
    metadata = keyed(model="rwkv", tokens=["<s>", *texts], token_type=types)
    return Tokenizer.from_metadata(metadata | keyed(**keys), "m.gguf")


@given(DATA)
def test_the_longest_token_at_each_position(data: bytes) -> None:
    tokens = {TOKENIZER.token_bytes(id): id for id in range(1, TOKENIZER.n_vocab)}
    expected, at = [], 0
    while at < len(data):
        end = next(end for end in range(len(data), at, -1) if data[at:end] in tokens)
        expected.append(tokens[data[at:end]])
        at = end
    assert TOKENIZER.encode(data) == expected
    assert b"".join(map(TOKENIZER.token_bytes, expected)) == data


@given(DATA)
def test_streams_are_whole(data: bytes) -> None:
    stream = TOKENIZER.stream()
    text = "".join(map(stream.push, TOKENIZER.encode(data))) + stream.finish()
    assert text == TOKENIZER.decode(TOKENIZER.encode(data)) == data.decode(errors="replace")


@given(st.binary(min_size=1, max_size=6))
def test_texts_are_literals_of_bytes(data: bytes) -> None:
    assert small(repr(data)[2:-1]).token_bytes(1) == data


def test_escapes() -> None:
    assert small(r"\x41\\\t\'\xE9").token_bytes(1) == b"A\\\t'\xe9"
    assert small("\u00e9").encode("\u00e9") == [1]


@pytest.mark.parametrize("text", ["a\\", "\\x4", "\\xg0", "a\\\\\\"])
def test_half_an_escape_is_refused(text: str) -> None:
    tokenizer = small("a", text)
    for use in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([2])):
        with pytest.raises(TokenizerError, match=r"^m\.gguf: .*\.tokens holds .* escaped byte"):
            use()


def test_a_byte_without_a_token() -> None:
    assert small("a", "ab", unknown_token_id=0).encode("abca") == [2, 0, 1]
    assert small("abc", unknown_token_id=0).encode("abd") == [0, 0, 0]
    with pytest.raises(TokenizerError, match=r"^m\.gguf: .* no token for the byte 0x62 and none"):
        small("a").encode("ab")


def test_special_tokens_are_no_text() -> None:
    tokenizer = small("<", "s", ">", bos_token_id=0, eos_token_id=0, add_bos_token=True)
    assert tokenizer.encode("<s>") == [1, 2, 3]
    assert tokenizer.encode("<s>", special=True) == [0]
    assert tokenizer.encode("s", add_bos=True) == [2]  # whatever the file says
    assert tokenizer.decode([0, 2]) == "s"
    assert tokenizer.decode([0, 2], special=True) == "<s>s"
    padded = keyed(model="rwkv", tokens=["a", "aa"], token_type=[NORMAL, UNUSED])
    assert Tokenizer.from_metadata(padded).encode("aa") == [0, 0]

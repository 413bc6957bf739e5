"""Decoding token by token: the same text as all at once, and never half a character."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer import StreamDecoder, Tokenizer
from tests.unit.vocabularies import bpe_metadata, spm_metadata, wpm_metadata

TOKENIZERS = {
    kind: Tokenizer.from_metadata(metadata())
    for kind, metadata in (("spm", spm_metadata), ("bpe", bpe_metadata), ("wpm", wpm_metadata))
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=["\u2581", "\ufffd"]))
IDS = st.lists(st.integers(0, 10**9), max_size=40)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("special", [False, True])
@given(ids=IDS, start=st.booleans())
def test_pieces_join_to_the_whole(kind: str, special: bool, ids: list[int], start: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = [id % tokenizer.n_vocab for id in ids]
    stream = tokenizer.stream(special, start=start)
    pushed = "".join([stream.push(id) for id in ids]) + stream.finish()
    assert pushed == tokenizer.decode(ids, special, start=start)


@pytest.mark.parametrize("kind", ["spm", "bpe"])
@given(text=TEXTS)
def test_whole_characters_only(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    stream = tokenizer.stream()
    pieces = [stream.push(id) for id in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == text
    assert stream.finish() == ""


def byte_stream(given: bytes) -> tuple[StreamDecoder, Callable[[], str]]:
    """A decoder whose token `id` is the byte `id`, fed with all of `given`."""
    stream = StreamDecoder(lambda id: bytes([id]), clean_spaces=False)
    text = "".join(stream.push(byte) for byte in given)
    return stream, lambda: text


LAST = (b"\x80", b"\x90", b"\x9f", b"\xa0", b"\xbf")
CONTINUATIONS = [b"a"] + [
    b"".join(tail) + b"a" for n in (1, 2, 3) for tail in product(LAST, repeat=n)
]


@given(st.lists(st.sampled_from([*b"a \x80\x90\xa0\xbf\xc0\xc3\xe0\xe2\xed\xef\xf0\xf4\xf5\xff"])))
def test_text_comes_as_soon_as_it_is_certain(given_bytes: list[int]) -> None:
    """What is pushed is exactly what every continuation agrees on."""
    given = bytes(given_bytes)
    _, text = byte_stream(given)
    futures = [(given + more).decode(errors="replace") for more in CONTINUATIONS]
    agreed = takewhile(lambda chars: len(set(chars)) == 1, zip(*futures, strict=False))
    assert text() == "".join(chars[0] for chars in agreed)


@pytest.mark.parametrize(
    ("given", "pushed"),
    [
        (b"\xe2\x82", ""),
        (b"\xe2\x82\xac", "\u20ac"),
        (b"\xe2a", "\ufffda"),
        (b"\xf0\x9f\x98", ""),
        (b"\xf0\x9f\x98\x80", "\U0001f600"),
        (b"\xff", "\ufffd"),
        (b"\xc0", "\ufffd"),  # never valid
        (b"\xed\xa0", "\ufffd\ufffd"),  # would be a surrogate
        (b"\xf4\x90", "\ufffd\ufffd"),  # would be beyond U+10FFFF
    ],
)
def test_invalid_bytes_at_once(given: bytes, pushed: str) -> None:
    assert byte_stream(given)[1]() == pushed


def test_what_is_left_at_the_end_is_replaced() -> None:
    stream, text = byte_stream(b"a\xe2\x82")
    assert text() == "a"
    assert stream.finish() == "\ufffd"


def test_continued_text_keeps_its_space() -> None:
    tokenizer = TOKENIZERS["spm"]
    ids = tokenizer.encode("little llama")
    assert tokenizer.stream().push(ids[0]) == tokenizer.text(ids[0])[1:]
    assert tokenizer.stream(start=False).push(ids[0]) == " " + tokenizer.text(ids[0])[1:]
    whole = tokenizer.decode(ids[:2]) + tokenizer.decode(ids[2:], start=False)
    assert whole == "little llama"


def test_the_space_after_bos_stays() -> None:
    tokenizer = TOKENIZERS["spm"]
    stream = tokenizer.stream()
    assert [stream.push(id) for id in tokenizer.encode("a", add_bos=True)] == ["", " a"]


def without_spaces(text: str) -> str:
    """As BERT's own decoder removes them: one rule after the other."""
    text = re.sub(r" (?=[?!.,])", "", text)
    text = text.replace(" ' ", "'")
    return re.sub(r" (?='(?:s|m|re|ve))", "", text)


def test_spaces_are_removed_alike_from_pieces_and_from_the_whole() -> None:
    """All texts of six such pieces, character by character."""
    for pieces in product((" ", "'", ".", "ve"), repeat=6):
        text = "".join(pieces)
        stream = StreamDecoder(lambda id: bytes([id]), clean_spaces=True)
        pushed = "".join(map(stream.push, text.encode())) + stream.finish()
        assert pushed == without_spaces(text), text


@pytest.mark.parametrize("piece", [" ", " '", "' ", " ' s", "'", "a ", "\u20ac'"])
def test_little_is_kept_back_whatever_comes(piece: str) -> None:
    """What is kept is read again with the next token: it must not grow."""
    stream = StreamDecoder(lambda _: piece.encode(), clean_spaces=True)
    shown = sum(len(stream.push(0)) for _ in range(1000))
    assert shown >= len(without_spaces(piece * 1000)) - 6


def test_tidied_text_streams_word_by_word() -> None:
    tokenizer = TOKENIZERS["wpm"]
    stream = tokenizer.stream()
    pieces = [stream.push(id) for id in tokenizer.encode("the play, the")]
    assert pieces == ["", "the", " play", ","]
    assert stream.finish() == " the"


@pytest.mark.parametrize("id", [-1, 10**6])
def test_ids_outside_the_vocabulary(id: int) -> None:
    tokenizer = TOKENIZERS["spm"]
    for use in (
        tokenizer.text,
        tokenizer.token_bytes,
        tokenizer.token_type,
        tokenizer.stream().push,
    ):
        with pytest.raises(TokenizerError, match=rf"token {id} is outside the vocabulary of"):
            use(id)
    with pytest.raises(TokenizerError, match="outside the vocabulary"):
        tokenizer.decode([5, id])

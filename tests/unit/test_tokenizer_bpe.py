"""BPE: merging, ignored merges, byte completeness, and the spelling without a byte alphabet."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from ggmlpy.text.tokenizer import PRE_TOKENIZERS, Tokenizer
from ggmlpy.text.tokenizer.bpe import BYTE_CHARS
from tests.unit.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    SENTENCES,
    SPACE,
    bpe_metadata,
    keyed,
    with_tokens,
    without,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
METADATA = bpe_metadata()
TOKENIZER = Tokenizer.from_metadata(METADATA)
RANKS = {
    tuple(merge.split(" ")): rank for rank, merge in enumerate(METADATA["tokenizer.ggml.merges"])
}


def merge_by_scanning(word: str) -> list[str]:
    """The merge of lowest rank, leftmost first, until there is none."""
    pieces = list(word)
    while True:
        ranked = [(RANKS[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in RANKS]
        if not ranked:
            return pieces
        _, i = min(ranked)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@given(TEXTS | st.text("the litle'sd 1.\n\u00e4", max_size=40))
def test_encodes_as_told(text: str) -> None:
    """GPT-2's rule, with the words cut by the library's own built-in version of it."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    expected = [piece for word, _ in words for piece in merge_by_scanning(word)]
    assert [TOKENIZER.text(id) for id in TOKENIZER.encode(text)] == expected


@given(TEXTS)
def test_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_round_trip_with_every_pre_tokenizer(pre: str) -> None:
    if PRE_TOKENIZERS[pre].byte_level:
        tokenizer = Tokenizer.from_metadata(bpe_metadata(pre=pre))
    else:
        tokenizer = Tokenizer.from_metadata(plain_metadata(pre=pre))
    for text in SENTENCES:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_byte_alphabet_is_gpt_2s() -> None:
    assert set(BYTE_CHARS) == set(pre_tokenizers.ByteLevel.alphabet())
    assert BYTE_CHARS[0x20] == "\u0120"
    assert BYTE_CHARS[0x0A] == "\u010a"
    assert BYTE_CHARS[ord("a")] == "a"
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "\x00 \x7f\u00a0\u00ad\u00ff\u20ac\U0001f600"
    [(word, _)] = spelt.pre_tokenize_str(text)
    assert word == "".join(BYTE_CHARS[byte] for byte in text.encode())


def tiny_metadata(**overrides: Any) -> dict[str, Any]:
    """All bytes, and "abc" which no merge makes."""
    return keyed(
        model="gpt2", pre="gpt-2", tokens=[*BYTE_CHARS, "ab", "abc"], merges=["a b"]
    ) | keyed(**overrides)


def test_ignore_merges_takes_whole_words() -> None:
    assert Tokenizer.from_metadata(tiny_metadata()).encode("abc") == [256, ord("c")]
    llama3 = tiny_metadata(pre="llama-bpe", bos_token_id=0)
    assert Tokenizer.from_metadata(llama3).encode("abc") == [257]


def test_a_merge_whose_half_nothing_makes_does_nothing() -> None:
    metadata = tiny_metadata(tokens=[*BYTE_CHARS, "ab", "abc"], merges=["a bc", "a b"])
    assert Tokenizer.from_metadata(metadata).encode("abc") == [256, ord("c")]


def test_merges_that_make_the_same_token_have_ranks_of_their_own() -> None:
    """ "b c" comes before "a b", which comes before "a bc": the pair decides, not what it makes."""
    metadata = tiny_metadata(
        tokens=[*BYTE_CHARS, "bc", "ab", "abc", "abcd", "cd"],
        merges=["b c", "a b", "a bc", "c d", "ab cd", "abc d"],
    )
    tokenizer = Tokenizer.from_metadata(metadata)
    assert [tokenizer.text(id) for id in tokenizer.encode("abcd")] == ["abcd"]
    later = Tokenizer.from_metadata(
        metadata | keyed(merges=["a b", "c d", "b c", "a bc", "abc d"])  # nothing joins ab and cd
    )
    assert [later.text(id) for id in later.encode("abcd")] == ["ab", "cd"]


def test_a_word_of_any_length_takes_little_time() -> None:
    """100,000 letters: their square would be hours."""
    tokenizer = Tokenizer.from_metadata(tiny_metadata())
    assert tokenizer.encode("ab" * 50_000) == [256] * 50_000


def test_a_token_that_is_no_spelling_of_bytes_is_itself() -> None:
    """Added tokens are often stored as plain text though the file calls them normal."""
    metadata = tiny_metadata(tokens=[*BYTE_CHARS, "ab", "abc", "\u4e2d a", "\u0120a"])
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.decode([258]) == "\u4e2d a"
    assert tokenizer.decode([259]) == " a"


def test_a_byte_without_token_is_left_out() -> None:
    """As in llama.cpp: never the unknown token, which ends the text in some vocabularies."""
    tokens = [char for char in BYTE_CHARS if char != "x"] + ["ab", "<unk>"]
    for more in ({}, {"unknown_token_id": 256}):
        tokenizer = Tokenizer.from_metadata(tiny_metadata(tokens=tokens, **more))
        assert [tokenizer.text(id) for id in tokenizer.encode("axb")] == ["a", "b"]
        assert tokenizer.encode("xxx") == []
    space = [char for char in BYTE_CHARS if ord(char) != 0xE2] + ["ab"]  # 0xE2 also begins a ▁
    assert Tokenizer.from_metadata(tiny_metadata(tokens=space)).encode("a b") == [97, 32, 98]


def test_no_bos_unless_the_file_or_its_family_says_so() -> None:
    text = SENTENCES[0]
    plain = Tokenizer.from_metadata(bpe_metadata())
    assert not plain.add_bos
    assert plain.encode(text, add_bos=True) == plain.encode(text)
    assert Tokenizer.from_metadata(bpe_metadata(pre="llama-bpe")).add_bos
    assert not Tokenizer.from_metadata(bpe_metadata(pre="llama-bpe", add_bos_token=False)).add_bos
    framed = Tokenizer.from_metadata(bpe_metadata(add_bos_token=True, add_eos_token=True))
    ids = framed.encode(text, add_bos=True)
    assert ids == [framed.bos_id, *plain.encode(text), framed.eos_id]
    assert framed.encode("", add_bos=True) == [framed.bos_id, framed.eos_id]


def test_no_default_special_ids() -> None:
    tokenizer = Tokenizer.from_metadata(without(METADATA, "bos_token_id", "eos_token_id"))
    assert tokenizer.bos_id is None
    assert tokenizer.eos_id is None


def plain_metadata(**overrides: Any) -> dict[str, Any]:
    """Gemma 4's spelling: ▁ for a space, byte tokens for what has no token."""
    controls = ["<pad>", "<eos>", "<bos>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [SPACE, "a", "b", "\n", f"{SPACE}a", f"{SPACE}ab", "\n\n", f"b{SPACE}a", "\n\n\n"]
    metadata = keyed(
        model="gpt2",
        pre="gemma4",
        tokens=controls + byte_tokens + pieces,
        token_type=[CONTROL] * 3 + [BYTE] * 256 + [NORMAL] * len(pieces),
        merges=[f"{SPACE} a", f"b {SPACE}a", "\n \n", f"{SPACE}a b"],
        bos_token_id=2,
        eos_token_id=1,
    )
    return metadata | keyed(**overrides)


PLAIN = Tokenizer.from_metadata(plain_metadata(model="gemma4"))


def pieces_of(text: str) -> list[str]:
    return [PLAIN.text(id) for id in PLAIN.encode(text)]


def test_plain_spelling() -> None:
    assert PLAIN.kind == "bpe"
    assert PLAIN.pre == "gemma4"
    assert pieces_of(" ab") == [f"{SPACE}ab"]
    assert pieces_of("b ab") == [f"b{SPACE}a", "b"]  # merges cross words, there are none
    assert pieces_of("\u00e9") == ["<0xC3>", "<0xA9>"]
    assert pieces_of("a\n\nb") == ["a", "\n\n", "b"]
    assert pieces_of("\n\n\n") == ["\n\n\n"]  # no merge makes it


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[SPACE])))
def test_plain_round_trip(text: str) -> None:
    assert PLAIN.decode(PLAIN.encode(text)) == text


def test_gemma_4_always_begins_with_bos() -> None:
    """Early files say that it does not, and the model babbles without."""
    tokenizer = Tokenizer.from_metadata(plain_metadata(add_bos_token=False))
    assert tokenizer.encode("a", add_bos=True)[0] == tokenizer.bos_id


def test_plain_spelling_without_byte_tokens() -> None:
    tokens = ["<bos>", SPACE, "a"]
    metadata = plain_metadata(tokens=tokens, merges=[], bos_token_id=0)
    tokenizer = Tokenizer.from_metadata(without(metadata, "token_type", "eos_token_id"))
    assert tokenizer.encode(" a") == [1, 2]
    assert tokenizer.encode("ab") == [2]
    tokens += ["<0xC3>", "b"]  # half of an é
    metadata = plain_metadata(tokens=tokens, merges=[], bos_token_id=0)
    tokenizer = Tokenizer.from_metadata(without(metadata, "token_type", "eos_token_id"))
    assert tokenizer.encode("a\u00e9b") == [2, 3, 4]


def test_user_defined_tokens_are_always_matched() -> None:
    tool = TOKENIZER.n_vocab - 1
    ids = TOKENIZER.encode("call <tool> now")
    assert ids.count(tool) == 1
    assert TOKENIZER.decode(ids) == "call <tool> now"
    longer = Tokenizer.from_metadata(with_tokens(METADATA, ("<tool> n", 4)))
    assert longer.n_vocab - 1 in longer.encode("call <tool> now")

"""SPM: the merge order, byte fallback, the space prefix."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer import Tokenizer
from ggmlpy.text.tokenizer.merging import merge
from tests.unit.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    SENTENCES,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    keyed,
    spm_metadata,
    with_tokens,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=[SPACE]))
TOKENIZER = Tokenizer.from_metadata(spm_metadata())


def merge_by_scanning(text: str, scores: dict[str, float]) -> list[str]:
    """The rule as it is told: of all neighbours that can merge, the best, and leftmost, does."""
    pieces = list(text)
    while True:
        pairs = [left + right for left, right in pairwise(pieces)]
        ranked = [(-scores[pair], i) for i, pair in enumerate(pairs) if pair in scores]
        if not ranked:
            return pieces
        _, i = min(ranked)
        pieces[i : i + 2] = [pairs[i]]


@given(
    text=st.text("ab\u2581", max_size=30),
    scores=st.dictionaries(
        st.text("ab\u2581", min_size=2, max_size=5), st.sampled_from([0.0, -1.0, -2.0, -2.5])
    ),
)
def test_merges_as_told(text: str, scores: dict[str, float]) -> None:
    costs = {piece: -score for piece, score in scores.items()}
    got = merge(text, lambda left, right: costs.get(left + right))
    assert got == merge_by_scanning(text, scores)


@given(st.integers(0, 10_000), st.text("ab \u00e9\n", max_size=40))
def test_cutting_into_words_changes_nothing(seed: int, text: str) -> None:
    """Any vocabulary, also one whose tokens have ▁ inside, encodes as if words were not cut."""
    rng = random.Random(seed)
    pieces = {
        "".join(rng.choices("ab\u2581", k=rng.randint(1, 5))) for _ in range(rng.choice([2, 5, 25]))
    }
    scores = {piece: rng.choice([0.0, -1.0, -2.0]) for piece in sorted(pieces)}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", SPACE, *bytes_, *sorted(pieces - {SPACE})]
    tokenizer = Tokenizer.from_metadata(
        keyed(
            model="llama",
            tokens=tokens,
            scores=[scores.get(token, 0.0) for token in tokens],
            token_type=[UNKNOWN, CONTROL, CONTROL, NORMAL]
            + [BYTE] * 256
            + [NORMAL] * len(pieces - {SPACE}),
            add_space_prefix=False,
        )
    )
    expected = []
    for piece in merge_by_scanning(text.replace(" ", SPACE), scores):
        known = piece in pieces or piece == SPACE
        expected += [piece] if known else [f"<0x{byte:02X}>" for byte in piece.encode()]
    assert [tokenizer.text(id) for id in tokenizer.encode(text)] == expected
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(TEXTS)
def test_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text
    assert TOKENIZER.decode_prompt(TOKENIZER.encode(text, add_bos=True)) == text


@pytest.mark.parametrize("text", SENTENCES)
def test_uses_pieces(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert len(ids) < len(text)
    assert TOKENIZER.decode(ids) == text


def test_a_character_without_token_is_spelt_in_bytes() -> None:
    ids = TOKENIZER.encode("\u1234")
    assert [TOKENIZER.text(id) for id in ids] == [SPACE, "<0xE1>", "<0x88>", "<0xB4>"]
    assert TOKENIZER.token_bytes(ids[1]) == b"\xe1"


def small(add_space_prefix: bool = True, with_unk: bool = True) -> Tokenizer:
    """A vocabulary without byte tokens."""
    tokens = ["<unk>", "<s>", "</s>", SPACE, "a", "b", "ab", SPACE + "a"]
    return Tokenizer.from_metadata(
        keyed(
            model="llama",
            tokens=tokens,
            scores=[0, 0, 0, -4, -5, -6, -1, -2],
            token_type=[UNKNOWN, CONTROL, CONTROL] + [NORMAL] * 5,
            add_space_prefix=add_space_prefix,
            unknown_token_id=0 if with_unk else 0xFFFFFFFF,
        )
    )


def test_unknown_without_byte_tokens() -> None:
    assert small().encode("a\u1234b") == [7, 0, 5]  # one for the character, not one a byte
    with pytest.raises(TokenizerError, match=r"no token for '\u1234'"):
        small(with_unk=False).encode("a\u1234b")


def test_a_token_across_words() -> None:
    tokens = ["<unk>", "<s>", "</s>", SPACE, "a", "b", "ab", f"{SPACE}b", f"ab{SPACE}b"]
    tokenizer = Tokenizer.from_metadata(
        keyed(model="llama", tokens=tokens, scores=[0.0] * 9, add_space_prefix=False)
    )
    assert tokenizer.encode("ab b bab ") == [8, 7, 6, 3]


def test_a_space_without_token_is_the_byte() -> None:
    """Spelt as the three bytes of ▁ (so in llama.cpp) it would not come back as a space."""
    metadata = spm_metadata(add_space_prefix=False)
    tokens = [text.replace(SPACE, "\u2582") for text in metadata["tokenizer.ggml.tokens"]]
    tokenizer = Tokenizer.from_metadata(metadata | keyed(tokens=tokens))
    assert [tokenizer.text(id) for id in tokenizer.encode(" ")] == ["<0x20>"]
    assert tokenizer.decode(tokenizer.encode(SENTENCES[0])) == SENTENCES[0]


def test_space_prefix() -> None:
    assert small().encode("ab") == [3, 6]  # "ab" scores better than "▁a"
    assert small(add_space_prefix=False).encode("ab") == [6]
    assert small().decode([3, 6]) == "ab"
    assert small().decode([3, 6], start=False) == " ab"
    assert small(add_space_prefix=False).decode([3, 6]) == " ab"
    assert small().encode("") == []
    assert small().encode("", add_bos=True) == [1]


def test_space_prefix_again_after_a_special_token() -> None:
    assert small().encode("a</s>a", special=True) == [7, 2, 7]
    assert small().encode("</s></s>a", special=True, add_bos=True) == [1, 2, 2, 7]


def test_only_the_first_space_of_a_text_is_removed() -> None:
    assert small().decode([3, 3, 4]) == " a"
    assert small().decode([1, 3, 4]) == " a"  # after BOS there may be a space
    assert small().decode([1, 3, 4], special=True) == "<s> a"


def test_typed_control_text_is_no_control_token() -> None:
    """llama.cpp would merge "<" and "/s>" to the token that ends the text."""
    metadata = with_tokens(spm_metadata(), ("</", NORMAL), ("</s", NORMAL), ("<", NORMAL))
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("</s>")
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids) == "</s>"
    assert tokenizer.encode("</s>", special=True) == [tokenizer.eos_id]


def test_user_defined_spaces_are_matched_in_raw_text() -> None:
    metadata = with_tokens(spm_metadata(add_space_prefix=False), ("    ", USER_DEFINED))
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("def f():\n    x")
    assert tokenizer.n_vocab - 1 in ids
    assert tokenizer.decode(ids) == "def f():\n    x"

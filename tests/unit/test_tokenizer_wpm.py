"""WPM: BERT's word pieces in GGUF's spelling."""

from __future__ import annotations

import pytest

from ggmlpy.errors import TokenizerError
from ggmlpy.text.tokenizer import Tokenizer
from tests.unit.vocabularies import SPACE, without, wpm_metadata

TOKENIZER = Tokenizer.from_metadata(wpm_metadata())


def pieces_of(text: str, tokenizer: Tokenizer = TOKENIZER) -> list[str]:
    return [tokenizer.text(id).replace(SPACE, "_") for id in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("unplayable", ["_un", "play", "able"]),
        ("playing", ["_play", "ing"]),
        ("  The\tplays\n", ["_the", "_play", "s"]),
        ("Caf\u00e9", ["_cafe"]),
        ("cafe\u0301", ["_cafe"]),
        ("the,play!", ["_the", "_,", "_play", "_!"]),
        ("the\u5929play", ["_the", "_\u5929", "_play"]),  # a CJK sign is a word
        ("playx the", ["[UNK]", "_the"]),  # one piece is missing: the whole word is unknown
        ("able", ["[UNK]"]),  # only known inside words
        ("[CLS]", ["[UNK]", "[UNK]", "[UNK]"]),  # not parsed unless asked to
        ("play" * 99, ["_play"] + ["play"] * 98),  # unknown to BERT beyond 100 characters
        ("p\u0903lay", ["_play"]),  # a spacing mark, which BERT keeps
        ("", []),
        ("\x00\u200b", []),
    ],
)
def test_word_pieces(text: str, pieces: list[str]) -> None:
    assert pieces_of(text) == pieces


def test_frame() -> None:
    """CLS and SEP, whatever the file says of BOS and EOS."""
    tokenizer = Tokenizer.from_metadata(wpm_metadata(add_bos_token=False, add_eos_token=False))
    ids = tokenizer.encode("the", add_bos=True)
    assert [tokenizer.text(id) for id in ids] == ["[CLS]", SPACE + "the", "[SEP]"]


def test_special_tokens_in_text() -> None:
    ids = TOKENIZER.encode("the [MASK] play", special=True)
    assert [TOKENIZER.text(id) for id in ids] == [SPACE + "the", "[MASK]", SPACE + "play"]


def test_case_and_accents_by_the_file() -> None:
    cased = Tokenizer.from_metadata(wpm_metadata(**{"normalizer.lowercase": False}))
    assert pieces_of("The the", cased) == ["[UNK]", "_the"]
    assert pieces_of("caf\u00e9", cased) == ["[UNK]"]  # accents follow case
    stripped = Tokenizer.from_metadata(
        wpm_metadata(**{"normalizer.lowercase": False, "normalizer.strip_accents": True})
    )
    assert pieces_of("caf\u00e9 Caf\u00e9", stripped) == ["_cafe", "[UNK]"]


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("The play.", "the play."),
        ("the , play !", "the, play!"),
        ("it's", "it's"),
        ("i'm playing?", "i'm playing?"),
        ("play ' play", "play'play"),
        ("'the' play", "'the'play"),
    ],
)
def test_decoding_tidies_spaces(text: str, decoded: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == decoded
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_bos=True)) == decoded


def test_unknown_token_is_needed() -> None:
    tokenizer = Tokenizer.from_metadata(
        without(wpm_metadata(), "unknown_token_id") | {"tokenizer.ggml.padding_token_id": 0}
    )
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.unknown_token_id is missing"):
        tokenizer.encode("the")

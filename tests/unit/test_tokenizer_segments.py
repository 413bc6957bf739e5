"""BPE kinds whose text is rewritten first; bytes that are not UTF-8; spaces in decoding."""

from __future__ import annotations

import pytest

from ggmlpy.text.tokenizer import Tokenizer
from tests.unit.vocabularies import (
    BYTE,
    NORMAL,
    SPACE,
    bpe_metadata,
    keyed,
    spm_metadata,
    with_tokens,
    wpm_metadata,
)


def texts(tokenizer: Tokenizer, text: str | bytes) -> list[str]:
    return [tokenizer.text(id) for id in tokenizer.encode(text)]


def whitespace_metadata(**overrides: object) -> dict[str, object]:
    tokens = ["<0x0A>", "<0x21>", "\u4eca", "\u65e5", "\u4eca\u65e5", "a", "b", "ab", "A"]
    return keyed(
        model="whitespace",
        pre="whitespace",
        tokens=tokens,
        token_type=[BYTE, BYTE] + [NORMAL] * 7,
        merges=["\u4eca \u65e5", "a b"],
    ) | keyed(**overrides)


def test_spaces_are_dropped_between_words() -> None:
    tokenizer = Tokenizer.from_metadata(whitespace_metadata())
    assert texts(tokenizer, "\u4eca\u65e5\u3000\u4eca \u65e5\nab!Ab") == [
        "\u4eca\u65e5",
        "\u4eca",
        "\u65e5",
        "ab",
        "<0x21>",
        "A",
        "b",
    ]
    lower = Tokenizer.from_metadata(whitespace_metadata(**{"normalizer.lowercase": True}))
    assert texts(lower, "Ab AB") == ["ab", "ab"]
    assert lower.decode(lower.encode("\u4eca\u65e5 AB")) == "\u4eca\u65e5ab"


def dna_metadata() -> dict[str, object]:
    names = ("<dna>", "</dna>", "<oov>", "ACGTAC\ue000", "GAAAAA\ue000")
    return with_tokens(bpe_metadata(model="hybriddna"), *((name, NORMAL) for name in names))


def test_dna_is_cut_into_6_mers() -> None:
    tokenizer = Tokenizer.from_metadata(dna_metadata())
    tail = ["<dna>", "ACGTAC\ue000", "<oov>", "GAAAAA\ue000", "</dna>"]
    ids = tokenizer.encode("x<dna>acgtacTTTTTTg</dna>")
    assert [tokenizer.text(id) for id in ids] == ["x", *tail]
    assert tokenizer.decode(ids) == "x<dna>ACGTAC<oov>GAAAAA</dna>"
    assert texts(tokenizer, "<dna>ACG\u00e9A") == ["<dna>", "<oov>"]  # six bytes, no end
    plain = Tokenizer.from_metadata(bpe_metadata(model="hybriddna"))
    assert plain.decode(plain.encode("<dna>ACGT</dna>")) == "<dna>ACGT</dna>"


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        (b"\xff", [SPACE, "<0xFF>"]),
        (b"a\x80\xbf", [SPACE + "a", "<0x80>", "<0xBF>"]),
        # The first byte tells how many bytes the character has, whatever follows.
        (b"\xc3a", [SPACE, "<0xC3>", "<0x61>"]),
        (b"\xe2\x82", [SPACE, "<0xE2>", "<0x82>"]),
        ("\u00e9".encode(), [SPACE, "<0xC3>", "<0xA9>"]),
    ],
)
def test_bytes_that_are_not_utf_8_in_spm(text: bytes, spelt: list[str]) -> None:
    metadata = spm_metadata(
        tokens=[
            *("<unk>", "<s>", "</s>"),
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *(SPACE, "a", SPACE + "a"),
        ],
        token_type=[2, 3, 3] + [BYTE] * 256 + [NORMAL] * 3,
        scores=[0.0] * 259 + [-1.0, -2.0, -3.0],
    )
    tokenizer = Tokenizer.from_metadata(metadata)
    assert texts(tokenizer, text) == spelt
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == b" " + text


def test_bytes_that_are_not_utf_8_elsewhere() -> None:
    for metadata in (bpe_metadata(), wpm_metadata()):
        tokenizer = Tokenizer.from_metadata(metadata)
        assert tokenizer.encode(b"the \xe2\x82!") == tokenizer.encode("the \ufffd\ufffd!")
        assert tokenizer.encode(b"the") == tokenizer.encode("the")


def test_special_tokens_between_bytes() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    ids = tokenizer.encode(b"\xff<|im_end|>\xff", special=True)
    assert ids.count(tokenizer.special_ids["eot"]) == 1


def test_glm_takes_whole_words() -> None:
    metadata = with_tokens(bpe_metadata(), ("zzz", NORMAL))
    for name, whole in (("glm4", True), ("glm5", True), ("chatglm-bpe", False)):
        tokenizer = Tokenizer.from_metadata(metadata | keyed(pre=name))
        assert texts(tokenizer, "zzz") == (["zzz"] if whole else ["z", "z", "z"]), name


@pytest.mark.parametrize(
    ("name", "clean"), [("gpt-2", True), ("llama-bpe", True), ("qwen2", False)]
)
def test_spaces_are_cleaned_if_asked(name: str, clean: bool) -> None:
    """Exact by default, which generation needs; as llama_detokenize with `clean_spaces`."""
    tokenizer = Tokenizer.from_metadata(bpe_metadata(pre=name))
    text = "x ? y : it 's , we 've ' a"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    cleaned = tokenizer.decode(ids, clean_spaces=tokenizer.clean_spaces)
    assert cleaned == ("x? y : it's, we've'a" if clean else text)
    stream = tokenizer.stream(clean_spaces=tokenizer.clean_spaces)
    assert "".join([*map(stream.push, ids), stream.finish()]) == cleaned

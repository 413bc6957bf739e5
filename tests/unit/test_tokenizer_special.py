"""Special tokens: finding them by key and text, matching them in text, and hiding them."""

from __future__ import annotations

import pytest

from ggmlpy.tokenizer import Tokenizer, TokenizerWarning, TokenType
from tests.unit.vocabularies import (
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    bpe_metadata,
    spm_metadata,
    with_tokens,
)


def with_texts(*texts: str, type: int = CONTROL, **keys: int) -> Tokenizer:
    """A BPE vocabulary with tokens `texts` added."""
    return Tokenizer.from_metadata(
        with_tokens(bpe_metadata(**keys), *((text, type) for text in texts))
    )


def ends(tokenizer: Tokenizer) -> set[str]:
    return {tokenizer.text(id) for id in tokenizer.eog_ids}


def test_control_tokens_are_parsed_only_when_asked() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    end = tokenizer.eot_id
    assert end is not None
    text = "Hi<|im_end|> there"
    assert end not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    parsed = tokenizer.encode(text, special=True)
    assert parsed == [*tokenizer.encode("Hi"), end, *tokenizer.encode(" there")]
    assert tokenizer.decode(parsed) == "Hi there"
    assert tokenizer.decode(parsed, special=True) == text
    assert tokenizer.token_bytes(end) == b""
    assert tokenizer.token_bytes(end, special=True) == b"<|im_end|>"


def test_the_longest_token_is_matched_first() -> None:
    """Even where a shorter one begins further left."""
    tokenizer = with_texts("<<ab", "b>", "ab>>>", type=USER_DEFINED)
    n = tokenizer.n_vocab
    assert tokenizer.encode("<<ab>>>") == [*tokenizer.encode("<<"), n - 1]
    assert tokenizer.encode("<<ab>") == [n - 3, *tokenizer.encode(">")]
    assert tokenizer.encode("b>b>") == [n - 2, n - 2]


def test_nothing_but_special_tokens() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata())
    ids = tokenizer.encode("<|im_end|><|im_end|>", special=True)
    assert ids == [tokenizer.eot_id] * 2


def test_double_bos_warns() -> None:
    tokenizer = Tokenizer.from_metadata(bpe_metadata(add_bos_token=True))
    with pytest.warns(TokenizerWarning, match="begins with BOS"):
        ids = tokenizer.encode("<|begin|>Hi", add_bos=True, special=True)
    assert ids[:2] == [tokenizer.bos_id] * 2


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["<|eot_id|>", "<|eom_id|>"], {"<|eot_id|>", "<|eom_id|>"}),
        (["<end_of_turn>"], {"<end_of_turn>"}),
        (["<|end|>"], {"<|end|>"}),
        (["</s>"], {"</s>"}),
        (["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"],) * 2,
        (["<\uff5cend\u2581of\u2581sentence\uff5c>"],) * 2,
        (["<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),  # gpt-oss
        (["<|end|>", "<|flush|>", "<|calls|>"], {"<|flush|>", "<|calls|>"}),  # solar-open
        (["</s>", "<turn|>", "<|tool_response>"], {"<turn|>", "<|tool_response>"}),  # Gemma 4
    ],
)
def test_ends_known_by_text(texts: list[str], expected: list[str] | set[str]) -> None:
    own = {"<|endoftext|>", "<|im_end|>"}
    assert ends(with_texts(*texts)) == own | set(expected)


def test_known_texts_are_control_tokens_whatever_their_type() -> None:
    tokenizer = with_texts("<|eot_id|>", type=NORMAL)
    id = tokenizer.n_vocab - 1
    assert tokenizer.token_type(id) is TokenType.CONTROL
    assert tokenizer.decode([id]) == ""
    assert id not in tokenizer.encode("<|eot_id|>")
    assert tokenizer.encode("<|eot_id|>", special=True) == [id]


def test_an_html_tag_ends_nothing() -> None:
    """Gemma has <s> and </s> among its tags; its texts begin with another token."""
    tokenizer = with_texts("<s>", "</s>", type=USER_DEFINED)
    id = tokenizer.n_vocab - 1
    assert id not in tokenizer.eog_ids
    assert tokenizer.decode(tokenizer.encode("a</s>")) == "a</s>"
    sentence = with_texts("<s>", "</s>", type=USER_DEFINED, bos_token_id=tokenizer.n_vocab - 2)
    assert id in sentence.eog_ids  # beside a BOS that is <s>, it ends the sentence


def test_declared_ids_come_first() -> None:
    tokenizer = with_texts("<|eot_id|>", "<stop>", eot_token_id=2, fim_pre_token_id=3)
    assert tokenizer.eot_id == 2
    assert {2, tokenizer.n_vocab - 2} <= tokenizer.eog_ids
    assert tokenizer.special_ids["fim_pre"] == 3
    assert with_texts(prefix_token_id=7).special_ids["fim_pre"] == 7  # the older key


def test_absent_ids() -> None:
    """Converters write 2^32 - 1 for "none"; many files have a padding id outside the vocabulary."""
    tokenizer = Tokenizer.from_metadata(
        spm_metadata(padding_token_id=0xFFFFFFFF, unknown_token_id=0xFFFFFFFF)
    )
    assert tokenizer.pad_id is None
    assert tokenizer.unk_id is None
    assert Tokenizer.from_metadata(spm_metadata(padding_token_id=32000)).pad_id is None


def test_unused_tokens_show_only_as_special() -> None:
    tokenizer = with_texts("[PAD151936]", type=UNUSED)
    id = tokenizer.n_vocab - 1
    assert tokenizer.decode([id]) == ""
    assert tokenizer.decode([id], special=True) == "[PAD151936]"


def test_spaces_swallowed_by_known_models() -> None:
    metadata = with_tokens(spm_metadata(), ("<|user|>", CONTROL), ("<mask>", CONTROL))
    n = len(metadata["tokenizer.ggml.tokens"])
    text = "a <|user|>\n b <mask> c"

    def parsed(**general: str) -> str:
        more = {f"general.{key}": value for key, value in general.items()}
        tokenizer = Tokenizer.from_metadata(metadata | more)
        ids = tokenizer.encode(text, special=True)
        parts = [[]]  # type: list[list[int]]
        for id in ids:
            if id >= n - 2:
                parts.append([])
            else:
                parts[-1].append(id)
        return "|".join(tokenizer.decode(part) for part in parts)

    assert parsed() == "a |\n b | c"
    assert parsed(name="Phi-3 mini") == "a |b |c"
    assert parsed(architecture="nomic-bert-moe") == "a |\n b| c"

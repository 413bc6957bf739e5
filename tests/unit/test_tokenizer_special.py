"""Special tokens: finding them by key and text, matching them in text, and hiding them."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from ggmlpy.text.tokenizer import Tokenizer, TokenizerWarning, TokenType
from ggmlpy.text.tokenizer.partition import Literal, Literals
from tests.unit.lines import lines_run
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


def cut_one_by_one(text: str, literals: list[Literal]) -> list[str | int]:
    """All places of the first literal, then of the next in what is left between them."""
    if not literals or not text:
        return [text] if text else []
    first, *rest = literals
    segments = text.split(first.text)
    parts: list[str | int] = []
    for i, segment in enumerate(segments):
        if first.rstrip and i > 0:
            segment = segment.lstrip(" \n")
        if first.lstrip and i < len(segments) - 1:
            segment = segment.rstrip(" \n")
        parts += [first.id] if i > 0 else []
        parts += cut_one_by_one(segment, rest)
    return parts


def test_literals_are_matched_as_if_one_by_one() -> None:
    """Literals that begin, end and overlap each other, and that swallow spaces."""
    rng = random.Random(1)
    for _ in range(500):
        texts = {"".join(rng.choices("ab \u20ac", k=rng.randrange(1, 6))) for _ in range(8)}
        ordered = sorted(texts, key=lambda text: (-len(text.encode()), text))
        literals = [
            Literal(id, text, rng.random() < 0.3, rng.random() < 0.3)
            for id, text in enumerate(ordered)
        ]
        finder = Literals(literals)
        for _ in range(5):
            text = "".join(rng.choices("ab \n\u20ac", (3, 3, 3, 1, 1), k=rng.randrange(20)))
            assert finder.split(text) == cut_one_by_one(text, literals)


def tool_texts(n: int) -> list[str]:
    return [f"<|tool_{i}|>" for i in range(n)]


def literals(n_tools: int) -> Literals:
    runs = ["\n" * n for n in range(2, 32)]
    return Literals([Literal(id, text) for id, text in enumerate(tool_texts(n_tools) + runs)])


@pytest.mark.parametrize(
    "text", ["<|", "<|a", "<|tool_1|>", "<|tool_1|", "\n", "\n\n<", "\n" * 30 + "a"]
)
def test_literals_take_steps_by_the_length_of_the_text(text: str) -> None:
    finder = literals(10)
    once = lines_run(lambda: finder.split(text * 100))
    assert lines_run(lambda: finder.split(text * 200)) < 2.2 * once


def test_twice_the_literals_in_twice_the_text_take_twice_the_steps() -> None:
    few, many = literals(20), literals(40)
    once = lines_run(lambda: few.split("a".join(tool_texts(20) * 10)))
    assert lines_run(lambda: many.split("a".join(tool_texts(40) * 10))) < 2.2 * once
    assert lines_run(lambda: many.split("a" * 1000)) < 20


def test_a_long_literal_takes_little_memory() -> None:
    """A token's text is as long as a file says, up to the size of its header."""
    text = "<|" + "a" * 100_000
    tracemalloc.start()
    finder = Literals([Literal(0, text), Literal(1, text + "|>"), Literal(2, "<|a")])
    assert finder.split(f"{text}|>{text}<|ab") == [1, 0, 2, "b"]
    assert tracemalloc.get_traced_memory()[1] < 20 * len(text)
    tracemalloc.stop()


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


def test_a_rendered_chat_begins_with_one_bos() -> None:
    """As llama-server: added where the vocabulary wants one and the template wrote none."""
    tokenizer = Tokenizer.from_metadata(spm_metadata(add_eos_token=True))
    one = tokenizer.encode_chat("<s>a</s>")
    assert one == tokenizer.encode_chat("a</s>")
    assert one == tokenizer.encode("<s>a</s>", special=True)
    assert (one[0], one.count(1), one[-1], one.count(2)) == (1, 1, 2, 1)
    without_bos = Tokenizer.from_metadata(spm_metadata(add_bos_token=False))
    assert 1 not in without_bos.encode_chat("a")
    assert without_bos.encode_chat("<s>a")[0] == 1


def test_channels_of_gpt_oss_are_text() -> None:
    """They are shown, and matched in any text; <|end|> then ends a message, not the answer."""
    tokenizer = with_texts("<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
    ids = tokenizer.encode("<|channel|>a<|message|>b<|end|><|return|>")
    assert tokenizer.decode(ids) == "<|channel|>a<|message|>b<|end|><|return|>"
    types = [tokenizer.token_type(id) for id in tokenizer.encode("<|channel|><|end|>")]
    assert types == [TokenType.USER_DEFINED, TokenType.USER_DEFINED]
    (end,) = tokenizer.encode("<|end|>")
    assert end not in tokenizer.eog_ids
    (returned,) = tokenizer.encode("<|return|>", special=True)
    assert tokenizer.token_type(returned) == TokenType.CONTROL


def test_a_closing_tag_of_gemma_4_is_text() -> None:
    tokenizer = with_texts("</s>", "<|tool_response>")
    assert tokenizer.decode(tokenizer.encode("</s>", special=True)) == "</s>"
    assert tokenizer.token_type(tokenizer.encode("</s>", special=True)[0]) == TokenType.NORMAL

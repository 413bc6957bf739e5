"""Grammars with every kind of vocabulary: texts of tokens are those that the grammar has."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from ggmlpy import Grammar, packaged_model
from ggmlpy.errors import SamplingError
from ggmlpy.grammar import Matcher, Matchers
from ggmlpy.sampling import Sampler, SamplingParams
from ggmlpy.text.tokenizer import Tokenizer, TokenType
from tests.shared import shared_path

pytest.importorskip("llguidance")

FILES = ["llama-bpe", "qwen2", "gpt-2", "llama-spm", "phi-3", "bert-bge"]


def schema(name: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "the_name_of_it": {"type": "string", "maxLength": 9},
            name: {"type": "integer", "minimum": -9, "maximum": 999},
        },
        "required": ["the_name_of_it", name],
        "additionalProperties": False,
    }


def made_up(model: str, pieces: list[str], **more: Any) -> Tokenizer:
    """A small vocabulary: two special tokens, and the pieces."""
    tokens = ["<unk>", "</s>", *pieces]
    types = [TokenType.UNKNOWN, TokenType.CONTROL] + [TokenType.NORMAL] * len(pieces)
    keys: dict[str, Any] = {
        "model": model,
        "tokens": tokens,
        "token_type": [int(type) for type in types],
        "scores": [0.0] * len(tokens),
        "eos_token_id": 1,
        "unknown_token_id": 0,
        "add_eos_token": False,
        **more,
    }
    return Tokenizer.from_metadata({f"tokenizer.ggml.{key}": keys[key] for key in keys})


def tokenizers() -> dict[str, Any]:
    made: dict[str, Any] = {
        "packaged": lambda: Tokenizer.from_gguf(packaged_model()),
        "rwkv": lambda: made_up(
            "rwkv", [*(f"\\x{byte:02x}" for byte in range(256)), "the_name", '{"', '":', "\\n"]
        ),
        "t5": lambda: made_up("t5", [*map(chr, range(33, 127)), "▁", "é", "name", "▁1"]),
    }
    for name in FILES:
        path = f"vocab/ggml-vocab-{name}.gguf"
        made[name] = lambda path=path: Tokenizer.from_gguf(shared_path(path))
    return made


TOKENIZERS = tokenizers()


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = TOKENIZERS[request.param]()
    return made


@pytest.fixture(scope="module")
def matchers(tokenizer: Tokenizer) -> Matchers:
    return Matchers(tokenizer)


def walk(made: Matcher, tokenizer: Tokenizer, seed: int) -> tuple[bytes, int]:
    """A text whose tokens the masks allow, and how many tokens were forced."""
    rng = random.Random(seed)
    text, n_forced = b"", 0
    while True:
        forced = made.force()
        n_forced += len(forced)
        text += b"".join(map(tokenizer.token_bytes, forced))
        if made.is_finished:
            return text, n_forced
        bits = np.unpackbits(made.allowed().view(np.uint8), bitorder="little")
        ids = np.flatnonzero(bits[: tokenizer.n_vocab])
        ends = [int(id) for id in ids if int(id) in tokenizer.eog_ids]
        assert made.is_accepting == bool(ends)
        others = [int(id) for id in ids if int(id) not in tokenizer.eog_ids]
        assert all(tokenizer.token_bytes(id) for id in others)  # none is only special
        if ends and (not others or rng.random() < 0.3):
            return text, n_forced
        token = rng.choice(others)
        made.accept(token)
        text += tokenizer.token_bytes(token)


def test_json(tokenizer: Tokenizer, matchers: Matchers) -> None:
    name = "e" if tokenizer.kind == "wpm" else "é"  # this one has no é
    for seed in range(4):
        text, n_forced = walk(matchers.start(Grammar.json_schema(schema(name))), tokenizer, seed)
        found = json.loads(text.decode())
        assert found.keys() == {"the_name_of_it", name}
        assert n_forced


def test_texts_of_several_bytes(tokenizer: Tokenizer, matchers: Matchers) -> None:
    if tokenizer.kind in ("ugm", "wpm"):
        pytest.skip("has no tokens for such characters")
    pattern = "(日本|[ب-ي]{2}|😀)+ é"
    for seed in range(4):
        text, _ = walk(matchers.start(Grammar.regex(pattern)), tokenizer, seed)
        assert re.fullmatch(pattern, text.decode())


def test_forced_tokens_are_those_of_the_text(tokenizer: Tokenizer, matchers: Matchers) -> None:
    """But for the end, which longer tokens could take."""
    if tokenizer.kind not in ("spm", "bpe", "rwkv"):
        pytest.skip("the tokenizer changes texts")
    text = " the name of it was not known to anyone"
    made = matchers.start(Grammar.choices([f"{text}1", f"{text}2"]))
    forced, tokens = made.force(), tokenizer.encode_part(text)
    assert forced == tokens[: len(forced)]
    assert len(forced) >= len(tokens) - 3


def test_a_vocabulary_that_ends_nothing() -> None:
    """Without a token that ends a text, one that is complete goes on where it can."""
    tokenizer = Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "rwkv",
            "tokenizer.ggml.tokens": [f"\\x{byte:02x}" for byte in range(256)],
        }
    )
    assert not tokenizer.eog_ids
    made = Matchers(tokenizer).start(Grammar.regex("a+b?"))
    for byte in b"aa":
        made.allowed()
        made.accept(byte)
    bits = np.unpackbits(made.allowed().view(np.uint8), bitorder="little")
    assert list(np.flatnonzero(bits[:256])) == [ord("a"), ord("b")]
    made.accept(ord("b"))
    assert made.is_finished


def test_a_text_without_tokens() -> None:
    """It ends with an error, not with another text."""
    tokenizer = TOKENIZERS["t5"]()
    made = Matchers(tokenizer).start(Grammar.choices(["a日b"]))
    assert [tokenizer.token_bytes(token) for token in made.force()] in ([], [b"a"])
    sampler = Sampler(SamplingParams(), tokenizer.n_vocab)
    with pytest.raises(SamplingError, match="no token of the vocabulary is allowed"):
        sampler.sample(np.zeros(tokenizer.n_vocab, np.float32), made.allowed())


def test_a_token_by_its_name() -> None:
    tokenizer = Tokenizer.from_gguf(shared_path("vocab/ggml-vocab-qwen2.gguf"))
    (token,) = tokenizer.encode_part("<|im_start|>", special=True)
    made = Matchers(tokenizer).start(Grammar.gbnf('root ::= "a" <|im_start|> "b"'))
    (a,) = tokenizer.encode_part("a")
    assert made.force()[:2] == [a, token] or made.n_valid([a, token]) == 2
